#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times other implementations of LayerNorm and RMSNorm beside normjit, on the cases of `normjit-bench suite`.

    scripts/bench_peers.py --build build --seed 1 --output peers.json
    scripts/bench_peers.py --regime decode
    scripts/bench_peers.py --regime fused --peers-from DIR --only max-autotune,liger,vllm --compact
    scripts/bench_peers.py --regime quantized --peers-from DIR --compile-jobs 15 --cases 40 --compact
    scripts/bench_peers.py --cases 30 --seconds 500 --compile-jobs 12

The peers are PyTorch eager, torch.compile in its default mode and with max-autotune, and a Triton kernel for LayerNorm; for
RMSNorm, for a residual that is added in front of the norm with the sum written, and for results of 8 bits, also those of
scripts/peers.py that can be loaded, from a folder of --peers-from too. Results of 4 bits are left out. All of them, normjit
and the copy (docs/performance.md) run in this process, on the same inputs: each is captured in a CUDA graph that rotates
through inputs and outputs of at least four times the L2 cache, and the graphs are replayed in turns, three rounds of them. A
time is the median of the rounds' medians.
Every result is compared with float64 first; one of 8 bits with the steps in f32 that follow, where a peer may round sum, norm
and result to 16 bits or not: bytes are at most one step off, in at most 1 % of the elements (scripts/eight_bits.py).

scripts/plot_suite.py draws what is stored. A peer that fails is left out of its case, with the reason in the file; the
results are stored after each case, so that a run that is cut short has the others. Needs PyTorch with Triton, a GPU, and
the targets normjit_bench and normjit_peers built. Exit status: 0 done, 1 if normjit failed in a case, 2 usage, 3 without a
GPU or a build.
"""
import argparse
import collections
import ctypes
import datetime
import gc
import json
import math
import multiprocessing
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch._inductor.config
import triton
import triton.language as tl

import torch.nn.functional as F

import eight_bits
import peers
from compare_with_pytorch import OUTPUTS, TYPES, fields, inputs_of, outputs_of, reference
from peers_report import compact_line, line_of, marks_of, summary

# What was found fastest on a busy GPU must not be used on a quiet one.
torch._inductor.config.autotune_local_cache = False
torch.set_grad_enabled(False)

ROUNDS = 3
PEERS = ("eager", "torch.compile", "max-autotune", "triton", *peers.NAMES)


# --- The Triton peer: a row, or several, in registers; rows that are too wide are read three times.

@triton.jit
def activated(v, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        v = tl.where(v < 0, 0.0, v)
    if ACTIVATION == "gelu":
        v = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    if ACTIVATION == "gelu_tanh":  # 1 + tanh(u) is 2 / (1 + exp(-2 u))
        v = v / (1.0 + tl.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)))
    if ACTIVATION == "silu":
        v = v / (1.0 + tl.exp(-v))
    return v


@triton.jit
def whole_rows(x, y, weight, bias, rows, COLUMNS: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
               ROWS: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr, WEIGHT: tl.constexpr,
               BIAS: tl.constexpr, ACTIVATION: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    at = row[:, None] * COLUMNS + column[None, :]
    v = tl.load(x + at, mask=inside, other=0.0).to(COMPUTE)
    mean = tl.sum(v, 1) / COLUMNS
    v = tl.where(inside, v - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(v * v, 1) / COLUMNS + EPS)
    v = v * rstd[:, None]
    if WEIGHT:
        v = v * tl.load(weight + column, mask=column < COLUMNS, other=0.0).to(COMPUTE)[None, :]
    if BIAS:
        v = v + tl.load(bias + column, mask=column < COLUMNS, other=0.0).to(COMPUTE)[None, :]
    v = activated(v, ACTIVATION) * SCALE
    tl.store(y + at, v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def looped_row(x, y, weight, bias, rows, COLUMNS: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
               ROWS: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr, WEIGHT: tl.constexpr,
               BIAS: tl.constexpr, ACTIVATION: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += row * COLUMNS
    y += row * COLUMNS
    part = tl.zeros([BLOCK], dtype=COMPUTE)
    for begin in range(0, COLUMNS, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        part += tl.load(x + column, mask=column < COLUMNS, other=0.0).to(COMPUTE)
    mean = tl.sum(part, 0) / COLUMNS
    part = tl.zeros([BLOCK], dtype=COMPUTE)
    for begin in range(0, COLUMNS, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        v = tl.load(x + column, mask=column < COLUMNS, other=0.0).to(COMPUTE)
        v = tl.where(column < COLUMNS, v - mean, 0.0)
        part += v * v
    rstd = 1.0 / tl.sqrt(tl.sum(part, 0) / COLUMNS + EPS)
    for begin in range(0, COLUMNS, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < COLUMNS
        v = (tl.load(x + column, mask=inside, other=0.0).to(COMPUTE) - mean) * rstd
        if WEIGHT:
            v = v * tl.load(weight + column, mask=inside, other=0.0).to(COMPUTE)
        if BIAS:
            v = v + tl.load(bias + column, mask=inside, other=0.0).to(COMPUTE)
        v = activated(v, ACTIVATION) * SCALE
        tl.store(y + column, v.to(y.dtype.element_ty), mask=inside)


def triton_choices(columns):
    """(kernel, rows a program, block, warps) worth trying."""
    block = triton.next_power_of_2(columns)
    shapes = []
    if block <= 32768:
        for elements in (1024, 4096, 16384):
            shapes.append((whole_rows, max(1, elements // block), block))
    if block > 8192:
        shapes += [(looped_row, 1, size) for size in (2048, 8192)]
    for kernel, rows, size in dict.fromkeys(shapes):
        for warps in (1, 2, 4, 8, 16, 32):
            if 8 <= rows * size // (32 * warps) <= 32:
                yield kernel, rows, size, warps


# --- normjit in this process

class Normjit:
    """The functions of normjit_peers, with their errors raised."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        pointer, number, text, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int
        for name, result, arguments in (
                ("error", text, []), ("open", pointer, [flag]), ("operands", text, []),
                ("prepare", pointer, [pointer, text, number, number, number]), ("release", None, [pointer]),
                ("plan", text, [pointer]), ("workspace_bytes", number, [pointer]),
                ("launch", flag, [pointer, pointer, number, number, number, pointer, flag, pointer]),
                ("copies", pointer, [pointer, text, number, flag]), ("release_copies", None, [pointer]),
                ("copy_shapes", flag, [pointer]), ("copy_bytes", number, [pointer]),
                ("copy", flag, [pointer, flag, pointer, pointer])):
            function = getattr(self.library, "normjit_peers_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.bench = self.good(self.open(torch.cuda.current_device()))

    def good(self, handle):
        if not handle:
            raise RuntimeError(self.error().decode())
        return handle

    def done(self, status):
        if status != 0:
            raise RuntimeError(self.error().decode())


def stream():
    return torch.cuda.current_stream().cuda_stream


# --- Data

def tensors(count, shape, dtype, mean=None, deviation=1.0):
    """So many of this shape; random where a mean is given, else zero."""
    made = [torch.empty(shape, dtype=dtype, device="cuda") for _ in range(count)]
    for tensor in made:
        tensor.zero_() if mean is None else tensor.normal_(mean, deviation)
    return made


class Data:
    """Inputs and outputs of a case, as many sets as make four times the L2 cache."""

    DISTRIBUTIONS = {"x": (0.25, 1.0), "residual": (0.0, 1.0), "weight": (1.0, 0.25), "tensor_scale": (0.02, 0.002)}

    def __init__(self, case, l2):
        self.words, self.spec, self.rows, moved = case["spec"].split("/"), fields(case["spec"]), case["rows"], case["bytes"]
        self.overlap, self.sample, self.plane = case["overlap"], case["sample_rows"], case["plane"]
        spec, rows = self.spec, self.rows
        self.count = min(16384, max(2, -(-4 * l2 // moved)))
        self.calls = self.count * -(-8 // self.count)
        self.out = OUTPUTS[spec["out"]]
        shapes, outputs = inputs_of(spec, rows, self.sample, self.plane), outputs_of(spec, rows, self.plane)
        made = {name: tensors(self.count, shape, dtype, *self.DISTRIBUTIONS.get(name, (0.0, 0.25)))
                for name, (shape, dtype) in shapes.items()}
        self.inputs = [{name: made[name][i] for name in made} for i in range(self.count)]
        types = {self.out, *(dtype for _, dtype in shapes.values())}
        wide = torch.float64 if torch.float64 in types else torch.float32
        # What PyTorch computes in: its layer_norm wants one type for all tensors.
        self.arithmetic = self.out if len(types) == 1 else wide
        made = {name: tensors(self.count, shape, dtype) for name, (shape, dtype) in outputs.items()}
        self.outputs = [{name: made[name][i] for name in made} for i in range(self.count)]

    def difference(self, outputs, own=True):
        """The largest one from float64 in the first rows of set 0, relative to what the output types allow. A peer (not `own`)
        may round elsewhere in front of 8 bits."""
        unit = max(self.sample, self.plane, 1)  # rows that belong together
        most = 1 << (26 if self.spec["amax"] else 24)  # of elements
        units = min(self.rows // unit, max(1, most // (self.spec["cols"] * unit)))
        first = {name: tensor if tensor.dim() == 1 else tensor[:units if len(tensor) < self.rows else units * unit]
                 for name, tensor in self.inputs[0].items()}
        got = dict(zip((name for name in RESULTS if name in self.outputs[0]), outputs))
        if self.spec["out"] not in eight_bits.TYPES:
            return self.largest(got, reference(self.spec, first, torch.float64), "y", "sum")
        rows, tried = units * unit, []
        for want in self.wanted(first, own):
            off = self.largest(got, want, "sum", "also", "amax")
            found = eight_bits.differences(self.spec, self.first_rows(got, rows), want, rows, 16)
            if off <= 1 and found.within:
                return off
            tried.append((found, off))
        found, off = max(tried, key=lambda one: one[0].same)
        raise RuntimeError(f"wrong: {found}, {off:.3g} times the allowed difference of the other results")

    def wanted(self, first, own):
        """The outputs in 8 bits of these inputs; a peer's may have any of several roundings, of y behind its scale, too."""
        spec = self.spec
        for rounding in [spec["round"]] if own else [(), ("norm",), ("sum",), ("sum", "norm")]:
            found = reference({**spec, "out": "f32", "round": rounding}, first, torch.float64)
            plain, rounded = found["y"].float(), found["y"].to(TYPES[spec["in"]]).float()
            if own:
                cases = [(rounded, None) if "y" in rounding else (plain, None)]
            else:
                cases = [(plain, None), (rounded, None), (rounded, plain)]
            for y, of in cases:
                yield {**found, **eight_bits.quantized(spec, y, first, of)}

    def first_rows(self, got, rows):
        """y and its scales of so many rows, as a launch of them alone would have them."""
        found = {"y": got["y"].view(self.rows, -1)[:rows]}
        if "row_scale" in got:
            found["row_scale"] = got["row_scale"].flatten()[:rows]
        if "block_scale" in got:
            scales = eight_bits.by_rows(self.spec, got["block_scale"], self.rows)
            found["block_scale"] = eight_bits.laid_out(self.spec, scales[:rows])
        return found

    def largest(self, got, want, *names):
        worst = 0.0
        for name in names:
            if name not in want or name not in got:
                continue
            exact = want[name].double()
            dtype = TYPES[self.spec["in"]] if name == "amax" else got[name].dtype  # it may be of rounded results
            allowed = max(8 * torch.finfo(dtype).eps, 2e-5) * (1 + exact.abs())
            result = got[name].reshape(self.inputs[0]["x"].shape)[:len(exact)] if exact.dim() else got[name].reshape(())
            off = ((result.double() - exact).abs() / allowed).max().item()
            worst = off if off != off else max(worst, off)  # NaN stays
        return worst


# --- The contenders: functions of the number of a set, which return the outputs in the order of RESULTS. A maker returns None
# where its implementation has no such norm.

RESULTS = ("y", "sum", "row_scale", "block_scale", "also", "amax")


def results(outputs):
    return tuple(outputs[name] for name in RESULTS if name in outputs)


def make_normjit(normjit, kernel, data):
    workspace = torch.zeros(max(16, normjit.workspace_bytes(kernel)), dtype=torch.uint8, device="cuda")
    names = normjit.operands().decode().split()
    sets = []
    for inputs, outputs in zip(data.inputs, data.outputs):
        given = {**inputs, **outputs}
        sets.append((ctypes.c_void_p * len(names))(*(given[name].data_ptr() if name in given else None for name in names)))

    def call(i):
        normjit.done(normjit.launch(kernel, sets[i], data.rows, data.sample, data.plane, workspace.data_ptr(), data.overlap, stream()))
        return results(data.outputs[i])
    return call


def make_copy(normjit, copies, data):
    """The fastest of the copies."""
    memory = tensors(data.count, max(16, normjit.copy_bytes(copies)), torch.uint8)

    def call_of(shape):
        def call(i):
            normjit.done(normjit.copy(copies, shape, memory[i].data_ptr(), stream()))
            return memory[i]
        return call
    calls = [call_of(shape) for shape in range(normjit.copy_shapes(copies))]
    return min(calls, key=lambda call: quick_time(call, data))


def make_pytorch(data, mode):
    spec, arithmetic, out = data.spec, data.arithmetic, data.out

    def fused(inputs):  # as it is written in models
        s = inputs["x"] + inputs["residual"] if spec["residual"] == "add" else inputs["x"]
        if spec["norm"] == "rmsnorm":
            y = F.rms_norm(s, (spec["cols"],), inputs["weight"], spec["eps"])
        else:
            y = F.layer_norm(s, (spec["cols"],), inputs["weight"], inputs["bias"], spec["eps"])
        found = eight_bits.quantized(spec, y.float(), inputs) if spec["out"] in eight_bits.TYPES else {"y": y}
        return results({**found, "sum": s} if spec["sum"] else found)

    def layer(inputs):
        found = reference(spec, inputs, arithmetic)
        return results({**found, "y": found["y"].to(out)})
    function = fused if peers.form_of({**spec, "also": "", "amax": False}) else layer
    # fullgraph: what cannot be compiled is an error and does not fall back to eager.
    run = function if mode is None else torch.compile(function, dynamic=False, fullgraph=True, mode=mode)
    return lambda i: run(data.inputs[i])


def make_peer(function, data):
    """A function of scripts/peers.py on inputs of its own, which it may overwrite."""
    if function is None:
        return None
    sets = [function.prepare(one) for one in data.inputs]
    if function.in_place:
        sets = [{**one, **{name: one[name].clone() for name in ("x", "residual") if name in one}} for one in sets]
    return lambda i: function(**sets[i])


def make_triton(data):
    spec = data.spec
    if spec["norm"] != "layernorm" or spec["inb"] or spec["residual"] or spec["sum"] or spec["offset"] or spec["affine_rows"]:
        return None
    if spec["out"] in eight_bits.TYPES:
        return None
    activation = next((name for name in ("relu", "gelu_tanh", "gelu", "silu") if name in data.words), "none")
    compute = tl.float64 if torch.float64 in (TYPES[spec["in"]], data.out, data.arithmetic) else tl.float32

    def call_of(kernel, rows, block, warps):
        def call(i):
            x, y = data.inputs[i]["x"], data.outputs[i]["y"]
            weight, bias = data.inputs[i].get("weight"), data.inputs[i].get("bias")
            kernel[(triton.cdiv(data.rows, rows),)](
                x, y, x if weight is None else weight, x if bias is None else bias, data.rows, spec["cols"],
                spec["eps"], spec["scale"], rows, block, compute, weight is not None, bias is not None,
                activation, num_warps=warps)
            return (y,)
        return call

    best, best_time, reason = None, math.inf, "no configuration fits"
    for choice in triton_choices(spec["cols"]):
        call = call_of(*choice)
        try:
            took = quick_time(call, data)
        except Exception as error:  # out of registers or shared memory
            reason = str(error)
            continue
        if took < best_time:
            best, best_time = call, took
    if best is None:
        raise RuntimeError(reason)
    return best


# --- Time

class Replay:
    """Calls captured in a graph that rotates through the sets."""

    def __init__(self, call, count, calls):
        self.calls = calls
        self.call = call  # with the tensors that the graph works on
        for i in range(min(count, 2)):
            call(i)  # compiles and tunes
        torch.cuda.synchronize()
        # As many outputs as sets stay alive, so that the next ones go elsewhere.
        self.kept = collections.deque(maxlen=count)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(calls):
                self.kept.append(call(i % count))

    def microseconds(self):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.calls


def quick_time(call, data):
    replay = Replay(call, data.count, min(data.calls, 4096))
    return min(replay.microseconds() for _ in range(3))


def times_of(replays):
    """Microseconds by name: all in turns, in rounds that begin with another one each."""
    names = list(replays)
    rounds = {name: [] for name in names}
    for number in range(ROUNDS):
        for name in names[number % len(names):] + names[:number % len(names)]:
            replay = replays[name]
            warm = replay.microseconds() * replay.calls
            repeats = max(2, min(20, int(100e3 / warm)))
            rounds[name].append(statistics.median(replay.microseconds() for _ in range(repeats)))
    return {name: statistics.median(found) for name, found in rounds.items()}


def measure(normjit, case, l2, others, chosen):
    """The entry of a case in the results, with the peers that are chosen; `others` are the loaded ones of peers.py."""
    text, moved, overlap = case["spec"], case["bytes"], case["overlap"]
    torch._dynamo.reset()
    data = Data(case, l2)
    kernel = normjit.good(normjit.prepare(normjit.bench, text.encode(), data.rows, data.sample, data.plane))
    copies = normjit.good(normjit.copies(normjit.bench, text.encode(), moved, overlap))
    entry = {key: case[key] for key in ("spec", "rows", "regime", "drawn", "overlap", "sample_rows", "plane", "bytes", "target")}
    entry["plan"] = normjit.plan(kernel).decode()
    makers = {
        "eager": lambda: make_pytorch(data, None), "torch.compile": lambda: make_pytorch(data, "default"),
        "max-autotune": lambda: make_pytorch(data, "max-autotune-no-cudagraphs"), "triton": lambda: make_triton(data),
        **{name: lambda peer=peer: make_peer(peers.function_of(peer, data.spec, overlap), data)
           for name, peer in others.items()},
    }
    makers = {"normjit": lambda: make_normjit(normjit, kernel, data),
              **{name: make for name, make in makers.items() if name in chosen}}
    replays, errors = {"copy": Replay(make_copy(normjit, copies, data), data.count, data.calls)}, {}
    for name, make in makers.items():
        try:
            call = make()
            if call is None:
                continue
            result = call(0)
            torch.cuda.synchronize()  # an error is this contender's own
            off = data.difference(result, own=name == "normjit")
            if not off <= 1:
                raise RuntimeError(f"wrong: {off:.3g} times the allowed difference from float64")
            # Eager PyTorch has many kernels a call; of few rows they are all launches.
            replays[name] = Replay(call, data.count, min(data.calls, 4096) if name == "eager" else data.calls)
        except Exception as error:
            errors[name] = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            torch.cuda.synchronize()  # raises where the GPU itself is lost
    times = times_of(replays)
    normjit.release(kernel)
    normjit.release_copies(copies)

    entry["copy_us"], entry["normjit_us"] = times["copy"], times.get("normjit")
    entry["peers"] = {name: times.get(name) for name in chosen}
    measured = {name: time for name, time in entry["peers"].items() if time is not None}
    if measured and entry["normjit_us"] is not None:
        entry["best_peer"] = min(measured, key=measured.get)
        entry["best_peer_over_normjit"] = measured[entry["best_peer"]] / entry["normjit_us"]
        least = 1.0 if case["target"] == "<= fastest peer" else 0.98
        entry["met"] = entry["best_peer_over_normjit"] >= least
    if errors:
        entry["errors"] = errors
    return entry


# --- Compiling beforehand: most of the time that a case takes, and it needs no quiet GPU

def compile_share(cases, share, jobs, chosen, folder):
    """Fills the disk caches of torch.compile and Triton for every jobs-th case; what fails is met again later."""
    torch._inductor.config.compile_threads = 1  # these processes are as many as there are cores
    others = peers.load(folder, [name for name in chosen if name in peers.COMPILED], quiet=True)
    for case in cases[share::jobs]:
        torch._dynamo.reset()
        data = Data(case, 0)
        makers = {"torch.compile": lambda: make_pytorch(data, "default"),
                  "max-autotune": lambda: make_pytorch(data, "max-autotune-no-cudagraphs"),
                  "triton": lambda: make_triton(data),
                  **{name: lambda peer=peer: make_peer(peers.function_of(peer, data.spec, False), data)
                     for name, peer in others.items()}}
        for name, make in makers.items():
            try:
                call = make() if name in chosen else None
                if call is not None:
                    call(0)
                torch.cuda.synchronize()
            except Exception:
                pass


def compile_all(cases, jobs, chosen, folder, seconds):
    """In so many processes; those that still compile after so many seconds end."""
    began = time.monotonic()
    processes = [multiprocessing.get_context("spawn").Process(target=compile_share, args=(cases, share, jobs, chosen, folder))
                 for share in range(jobs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(None if math.isinf(seconds) else max(0.0, began + seconds - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    print(f"compiled by {jobs} processes in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


# --- Cases, results

def cases_of(tool, arguments):
    command = [str(tool), "suite", "--list", "--json"]
    if arguments.seed is not None:
        command += ["--seed", str(arguments.seed)]
    if arguments.regime:
        command += ["--regime", arguments.regime]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    text_of = lambda case: f"{case['rows']} x {case['spec']}" + marks_of(case)
    cases = [case for case in listed["cases"]
             if re.search(arguments.match, text_of(case)) and fields(case["spec"])["out"] != "e2m1"]
    if arguments.cases and arguments.cases < len(cases):  # spread evenly, so that every regime has some
        cases = [cases[i * len(cases) // arguments.cases] for i in range(arguments.cases)]
    return cases, listed["seed"]


def driver_version():
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parent.parent / "build")
    parser.add_argument("--output", type=Path, default=Path("peers.json"))
    parser.add_argument("--seed", type=int, help="of the suite's random cases")
    parser.add_argument("--regime", help="only the cases of this one")
    parser.add_argument("--match", default="", metavar="REGEX", help="only cases in whose `ROWS x SPEC` it is found; a case of "
                        "overlapping launches ends with ` overlapped`, others with ` samples of ROWS`, ` planes of ROWS`")
    parser.add_argument("--cases", type=int, help="only so many, spread evenly")
    parser.add_argument("--compile-jobs", type=int, default=0, help="compile all peers first, in so many processes")
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="begin no case after so long; compile beforehand for at most half of it")
    parser.add_argument("--only", default=",".join(PEERS), metavar="NAME,...", help="only these peers: " + ", ".join(PEERS))
    parser.add_argument("--peers-from", type=Path, metavar="DIR", help="a folder with more of them (scripts/peers.py)")
    parser.add_argument("--compact", action="store_true", help="print the fastest peer alone")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    for name in chosen:
        if name not in PEERS:
            parser.error(f"--only: {name} is none of {', '.join(PEERS)}")
    tool, library = arguments.build / "normjit-bench", arguments.build / "libnormjit_peers.so"
    for path in (tool, library):
        if not path.exists():
            print(f"{path} is missing: build the targets normjit_bench and normjit_peers, or name --build",
                  file=sys.stderr)
            return 3
    if not torch.cuda.is_available():
        print("no GPU that PyTorch can use", file=sys.stderr)
        return 3

    began = time.monotonic()
    torch.cuda.init()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    normjit = Normjit(library)
    cases, seed = cases_of(tool, arguments)
    if arguments.compile_jobs > 0:
        compile_all(cases, arguments.compile_jobs, chosen, arguments.peers_from, arguments.seconds / 2)
    others = peers.load(arguments.peers_from, [name for name in chosen if name in peers.NAMES])
    chosen = [name for name in chosen if name in others or name not in peers.NAMES]
    results = {"device": properties.name, "driver": driver_version(), "torch": torch.__version__,
               "triton": triton.__version__, "cuda": torch.version.cuda,
               "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"), "seed": seed,
               "cases": []}
    print(f"{results['device']}, driver {results['driver']}, PyTorch {results['torch']}, Triton {results['triton']}, "
          f"{results['date']} UTC, seed {seed}; microseconds\n")
    if not arguments.compact:
        print("| regime | spec | rows | copy | normjit | of copy | " + " | ".join(chosen) + " | best peer / normjit | met |")
        print("|---" * (8 + len(chosen)) + "|", flush=True)
    failed, named = 0, set()
    for case in cases:
        if time.monotonic() - began > arguments.seconds:
            print(f"{len(results['cases'])} of {len(cases)} cases in {arguments.seconds:.0f} s", file=sys.stderr)
            break
        try:
            entry = measure(normjit, case, properties.L2_cache_size, others, chosen)
        except Exception as error:
            failed += 1
            print(f"{case['spec']}, {case['rows']} rows: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            try:
                torch.cuda.synchronize()
            except Exception:
                print("the GPU is lost; stopping here", file=sys.stderr)
                break
            continue
        finally:
            gc.collect()
        torch.cuda.empty_cache()
        failed += entry["normjit_us"] is None
        for name, reason in entry.get("errors", {}).items():
            if (name, reason) not in named:  # once each; the results have all of them
                named.add((name, reason))
                print(f"{case['spec']}, {case['rows']} rows, {name}: {reason}", file=sys.stderr, flush=True)
        results["cases"].append(entry)
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
        print(compact_line(entry) if arguments.compact else line_of(entry), flush=True)
    print("\n" + summary(results["cases"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
