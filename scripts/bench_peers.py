#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times other LayerNorm implementations beside normjit, on the cases of `normjit-bench suite`.

    scripts/bench_peers.py --build build --seed 1 --output peers.json
    scripts/bench_peers.py --regime decode
    scripts/bench_peers.py --cases 30 --seconds 500 --compile-jobs 12

The peers are PyTorch eager, torch.compile in its default mode and with max-autotune, and a Triton kernel. All of them,
normjit and the plain copy run in this process, on the same inputs: each is captured in a CUDA graph that rotates through
inputs and outputs of at least four times the L2 cache, and the graphs are replayed in turns, three rounds of them. A time
is the median of the rounds' medians. Every result is compared with float64 first.

scripts/plot_suite.py draws what is stored. A peer that fails is left out of its case, with the reason in the file; the
results are stored after each case, so that a run that is cut short has the others. Needs PyTorch with Triton, a GPU, and
the targets normjit_bench and normjit_peers built. Exit status: 0 done, 1 if normjit failed in a case, 3 without a GPU or a
build.
"""
import argparse
import collections
import ctypes
import datetime
import gc
import json
import math
import multiprocessing
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch._inductor.config
import triton
import triton.language as tl

from compare_with_pytorch import TYPES, fields, reference

# What was found fastest on a busy GPU must not be used on a quiet one.
torch._inductor.config.autotune_local_cache = False
torch.set_grad_enabled(False)

ROUNDS = 3
PEERS = ("eager", "torch.compile", "max-autotune", "triton")


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
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        for name, result, arguments in (
                ("error", ctypes.c_char_p, []), ("open", pointer, [ctypes.c_int]),
                ("prepare", pointer, [pointer, ctypes.c_char_p, number]), ("release", None, [pointer]),
                ("plan", ctypes.c_char_p, [pointer]), ("workspace_bytes", number, [pointer]),
                ("launch", ctypes.c_int, [pointer] * 7 + [number] + [pointer] * 2),
                ("copy", ctypes.c_int, [pointer] * 3 + [number, pointer])):
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

    def __init__(self, text, rows, moved, l2):
        self.words, self.spec, self.rows = text.split("/"), fields(text), rows
        spec, columns = self.spec, self.spec["cols"]
        self.count = min(16384, max(2, -(-4 * l2 // moved)))
        self.calls = self.count * -(-8 // self.count)
        inputs, weights = TYPES[spec["in"]], TYPES[spec["w"]]
        self.out = TYPES[spec["out"]]
        self.x = tensors(self.count, (rows, columns), inputs, 0.25)
        self.y = tensors(self.count, (rows, columns), self.out)
        none = [None] * self.count
        self.weight = tensors(self.count, columns, weights, 1.0, 0.25) if spec["affine"] else none
        self.bias = tensors(self.count, columns, weights, 0.0, 0.25) if spec["affine"] == "wb" else none
        types = {spec["in"], spec["out"]} | ({spec["w"]} if spec["affine"] else set())
        wide = torch.float64 if "f64" in types else torch.float32
        # What PyTorch computes in: its layer_norm wants one type for all tensors.
        self.arithmetic = inputs if len(types) == 1 else wide
        self.mean, self.rstd = (tensors(self.count, rows, wide) if "stats" in self.words else none for _ in range(2))

    def difference(self, y):
        """The largest one from float64 in the first rows of set 0, relative to what the output type allows."""
        rows = min(self.rows, max(1, (1 << 24) // self.spec["cols"]))
        want = reference(self.spec, self.x[0][:rows], self.weight[0], self.bias[0], torch.float64)
        allowed = max(8 * torch.finfo(self.out).eps, 2e-5) * (1 + want.abs())
        return ((y[:rows].double() - want).abs() / allowed).max().item()


# --- The contenders: functions of the number of a set, which return the output

def pointer_of(tensor):
    return None if tensor is None else tensor.data_ptr()


def make_normjit(normjit, kernel, data):
    workspace = torch.zeros(max(16, normjit.workspace_bytes(kernel)), dtype=torch.uint8, device="cuda")
    sets = [[pointer_of(tensor) for tensor in one]
            for one in zip(data.x, data.y, data.weight, data.bias, data.mean, data.rstd)]

    def call(i):
        normjit.done(normjit.launch(kernel, *sets[i], data.rows, workspace.data_ptr(), stream()))
        return data.y[i]
    return call


def make_copy(normjit, moved, data):
    half = max(16, moved // 2 // 16 * 16)
    first, second = (tensors(data.count, half, torch.uint8) for _ in range(2))

    def call(i):
        normjit.done(normjit.copy(normjit.bench, first[i].data_ptr(), second[i].data_ptr(), half, stream()))
        return second[i]
    return call


def make_pytorch(data, mode):
    spec, arithmetic, out = data.spec, data.arithmetic, data.out

    def layer(x, weight, bias):
        return reference(spec, x, weight, bias, arithmetic).to(out)
    # fullgraph: what cannot be compiled is an error and does not fall back to eager.
    run = layer if mode is None else torch.compile(layer, dynamic=False, fullgraph=True, mode=mode)
    return lambda i: run(data.x[i], data.weight[i], data.bias[i])


def make_triton(data):
    spec = data.spec
    activation = next((name for name in ("relu", "gelu_tanh", "gelu", "silu") if name in data.words), "none")
    compute = tl.float64 if torch.float64 in (data.x[0].dtype, data.out, data.arithmetic) else tl.float32

    def call_of(kernel, rows, block, warps):
        def call(i):
            x, y = data.x[i], data.y[i]
            weight, bias = data.weight[i], data.bias[i]
            kernel[(triton.cdiv(data.rows, rows),)](
                x, y, x if weight is None else weight, x if bias is None else bias, data.rows, spec["cols"],
                spec["eps"], spec["scale"], rows, block, compute, weight is not None, bias is not None,
                activation, num_warps=warps)
            return y
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
            repeats = max(5, min(20, int(100e3 / warm)))
            rounds[name].append(statistics.median(replay.microseconds() for _ in range(repeats)))
    return {name: statistics.median(found) for name, found in rounds.items()}


def measure(normjit, case, l2):
    """The entry of a case in the results."""
    text, rows, moved = case["spec"], case["rows"], case["bytes"]
    torch._dynamo.reset()
    data = Data(text, rows, moved, l2)
    kernel = normjit.good(normjit.prepare(normjit.bench, text.encode(), rows))
    entry = {key: case[key] for key in ("spec", "rows", "regime", "drawn", "bytes", "target")}
    entry["plan"] = normjit.plan(kernel).decode()
    makers = {
        "normjit": lambda: make_normjit(normjit, kernel, data), "eager": lambda: make_pytorch(data, None),
        "torch.compile": lambda: make_pytorch(data, "default"),
        "max-autotune": lambda: make_pytorch(data, "max-autotune-no-cudagraphs"),
        "triton": lambda: make_triton(data),
    }
    replays, errors = {"copy": Replay(make_copy(normjit, moved, data), data.count, data.calls)}, {}
    for name, make in makers.items():
        try:
            call = make()
            result = call(0)
            torch.cuda.synchronize()  # an error is this contender's own
            off = data.difference(result)
            if not off <= 1:
                raise RuntimeError(f"wrong: {off:.3g} times the allowed difference from float64")
            replays[name] = Replay(call, data.count, data.calls)
        except Exception as error:
            errors[name] = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            print(f"{text}, {rows} rows: {name}: {errors[name]}", file=sys.stderr)
            torch.cuda.synchronize()  # raises where the GPU itself is lost
    times = times_of(replays)
    normjit.release(kernel)

    entry["copy_us"], entry["normjit_us"] = times["copy"], times.get("normjit")
    entry["peers"] = {name: times.get(name) for name in PEERS}
    measured = {name: entry["peers"][name] for name in PEERS if entry["peers"][name] is not None}
    if measured and entry["normjit_us"] is not None:
        entry["best_peer"] = min(measured, key=measured.get)
        entry["best_peer_over_normjit"] = measured[entry["best_peer"]] / entry["normjit_us"]
        least = 1.0 if case["target"] == "<= fastest peer" else 0.98
        entry["met"] = entry["best_peer_over_normjit"] >= least
    if errors:
        entry["errors"] = errors
    return entry


# --- Compiling beforehand: most of the time that a case takes, and it needs no quiet GPU

def compile_share(cases, share, jobs):
    """Fills the disk caches of torch.compile and Triton for every jobs-th case; what fails is met again later."""
    for case in cases[share::jobs]:
        torch._dynamo.reset()
        data = Data(case["spec"], case["rows"], case["bytes"], 0)
        for make in (lambda: make_pytorch(data, "default"), lambda: make_pytorch(data, "max-autotune-no-cudagraphs"),
                     lambda: make_triton(data)):
            try:
                make()(0)
                torch.cuda.synchronize()
            except Exception:
                pass


def compile_all(cases, jobs):
    began = time.monotonic()
    processes = [multiprocessing.get_context("spawn").Process(target=compile_share, args=(cases, share, jobs))
                 for share in range(jobs)]
    for process in processes:
        process.start()
    for process in processes:
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
    cases = listed["cases"]
    if arguments.cases and arguments.cases < len(cases):  # spread evenly, so that every regime has some
        cases = [cases[i * len(cases) // arguments.cases] for i in range(arguments.cases)]
    return cases, listed["seed"]


def driver_version():
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def line_of(entry):
    number = lambda value, digits=2: "-" if value is None else f"{value:.{digits}f}"
    ours = entry["normjit_us"]
    cells = [entry["regime"], f"`{entry['spec']}`", str(entry["rows"]), number(entry["copy_us"]), number(ours),
             number(entry["copy_us"] / ours if ours else None, 3), *(number(entry["peers"][p]) for p in PEERS),
             number(entry.get("best_peer_over_normjit"), 3), {True: "yes", False: "NO"}.get(entry.get("met"), "-")]
    return "| " + " | ".join(cells) + " |"


def summary(entries):
    lines = []
    for regime in dict.fromkeys(entry["regime"] for entry in entries):
        ratios = [e["best_peer_over_normjit"] for e in entries if e["regime"] == regime and "met" in e]
        met = sum(e.get("met", False) for e in entries if e["regime"] == regime)
        if ratios:
            lines.append(f"{regime}: {met} of {len(ratios)} met, best peer / normjit: worst {min(ratios):.3f}, "
                         f"geometric mean {statistics.geometric_mean(ratios):.3f}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parent.parent / "build")
    parser.add_argument("--output", type=Path, default=Path("peers.json"))
    parser.add_argument("--seed", type=int, help="of the suite's random cases")
    parser.add_argument("--regime", help="only the cases of this one")
    parser.add_argument("--cases", type=int, help="only so many, spread evenly")
    parser.add_argument("--compile-jobs", type=int, default=0, help="compile all peers first, in so many processes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after so long")
    arguments = parser.parse_args()
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
        compile_all(cases, arguments.compile_jobs)
    results = {"device": properties.name, "driver": driver_version(), "torch": torch.__version__,
               "triton": triton.__version__, "cuda": torch.version.cuda,
               "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"), "seed": seed,
               "cases": []}
    print(f"{results['device']}, driver {results['driver']}, PyTorch {results['torch']}, Triton {results['triton']}, "
          f"{results['date']} UTC, seed {seed}; microseconds\n")
    print("| regime | spec | rows | copy | normjit | of copy | " + " | ".join(PEERS) + " | best peer / normjit | met |")
    print("|---" * (8 + len(PEERS)) + "|", flush=True)
    failed = 0
    for case in cases:
        if time.monotonic() - began > arguments.seconds:
            print(f"{len(results['cases'])} of {len(cases)} cases in {arguments.seconds:.0f} s", file=sys.stderr)
            break
        try:
            entry = measure(normjit, case, properties.L2_cache_size)
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
            print(f"{case['spec']}, {case['rows']} rows, {name}: {reason}", file=sys.stderr, flush=True)
        results["cases"].append(entry)
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
        print(line_of(entry), flush=True)
    print("\n" + summary(results["cases"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
