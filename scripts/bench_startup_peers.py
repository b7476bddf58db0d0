#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the first calls of CuPy and Triton in fresh processes, beside `normjit-bench startup`.

    scripts/bench_startup_peers.py --build build
    scripts/bench_startup_peers.py --peers cupy --repeat 9 --budget 300 --output startup_peers.json

CuPy's RawModule compiles the very source that normjit renders for this spec, by NVRTC; Triton a LayerNorm kernel of its
own for the same shape. A first call goes from the source to the return of the first launch; imports, CUDA's initialisation
and the memory come before it. Cold is with an empty cache directory, warm with what the cold process left there; a launch
is the median host time of later ones, each on an idle GPU. Times are medians over processes.

All of it takes no longer than the budget: normjit and the peers get equal shares of what is left of it, one after the
other, and what overruns its share is killed, with all that it has started. A line is printed as soon as it is known, and
says of how many processes it is the median where time was short.

Needs a GPU and the targets normjit_tool and normjit_bench built; CuPy, PyTorch and Triton as far as they are to be measured. A peer that
cannot be measured says why and the others go on. Exit status: 0 done, 1 if no peer could be measured, 3 without a GPU or a
build.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAUNCHES = 200
PEERS = ("cupy", "triton")


def milliseconds(begin):
    return (time.perf_counter() - begin) * 1e3


def launch_microseconds(launch, synchronize):
    times = []
    for _ in range(LAUNCHES):
        begin = time.perf_counter()
        launch()
        times.append(milliseconds(begin) * 1e3)
        synchronize()
    return statistics.median(times)


# --- The peers, each in a process of its own; they print one line of JSON.

def cupy_peer(case):
    import cupy
    import numpy

    rows, columns = case["rows"], case["columns"]
    x = cupy.ones((rows, columns), dtype=cupy.float32)
    y = cupy.empty_like(x)
    weight, bias = cupy.ones(columns, dtype=cupy.float32), cupy.ones(columns, dtype=cupy.float32)
    # struct Operands: rows, workspace, x, x_stride, weight, bias, y, y_stride.
    words = [rows, 0, x.data.ptr, columns, weight.data.ptr, bias.data.ptr, y.data.ptr, columns]
    operands = numpy.array([tuple(words)], dtype=[(f"word{i}", numpy.int64) for i in range(len(words))])[0]
    arguments = (operands,)
    cupy.cuda.Device().synchronize()

    begin = time.perf_counter()
    module = cupy.RawModule(code=Path(case["source"]).read_text(), options=("--std=c++17", "--minimal"), backend="nvrtc")
    kernel = module.get_function(case["kernel"])
    launch = lambda: kernel((case["blocks"],), (case["threads"],), arguments)
    launch()
    first = milliseconds(begin)
    cupy.cuda.Device().synchronize()
    launch_us = launch_microseconds(launch, cupy.cuda.Device().synchronize)
    row = y[0].get()
    if abs(float(row[0]) - case["expected"]) > 1e-4:
        raise SystemExit(f"CuPy's kernel gave {row[0]}, not {case['expected']}")
    return {"version": "CuPy " + cupy.__version__, "first_ms": first, "launch_us": launch_us}


def triton_peer(case):
    global triton, tl  # where the kernel looks for them
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def layer_norm(x, y, weight, bias, rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, BLOCK)
        inside = column < COLUMNS
        v = tl.load(x + row * COLUMNS + column, mask=inside, other=0.0)
        v = tl.where(inside, v - tl.sum(v, 0) / COLUMNS, 0.0)
        v = v / tl.sqrt(tl.sum(v * v, 0) / COLUMNS + 1e-5)
        v = v * tl.load(weight + column, mask=inside) + tl.load(bias + column, mask=inside)
        tl.store(y + row * COLUMNS + column, 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)), mask=inside)

    rows, columns = case["rows"], case["columns"]
    x = torch.ones((rows, columns), device="cuda")
    y = torch.empty_like(x)
    weight, bias = torch.ones(columns, device="cuda"), torch.ones(columns, device="cuda")
    torch.cuda.synchronize()
    block = triton.next_power_of_2(columns)
    launch = lambda: layer_norm[(rows,)](x, y, weight, bias, rows, COLUMNS=columns, BLOCK=block)

    begin = time.perf_counter()
    launch()
    first = milliseconds(begin)
    torch.cuda.synchronize()
    launch_us = launch_microseconds(launch, torch.cuda.synchronize)
    if abs(y[0, 0].item() - case["expected"]) > 1e-4:
        raise SystemExit(f"Triton's kernel gave {y[0, 0].item()}, not {case['expected']}")
    return {"version": "Triton " + triton.__version__, "first_ms": first, "launch_us": launch_us}


def child(name, case):
    print(json.dumps({"cupy": cupy_peer, "triton": triton_peer}[name](json.loads(case))))


# --- The parent.

class Failed(Exception):
    pass


class TimedOut(Failed):
    pass


def run_until(deadline, command, environment=None):
    """The exit status, output and errors of a program that is killed at the deadline, with its whole process group."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:  # pipes could outlive the program
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   start_new_session=True)
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimedOut("timed out") from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # also what a program that is done has left
            except ProcessLookupError:
                pass
            process.wait()
        out.seek(0), err.seek(0)
        return process.returncode, out.read(), err.read()


def in_fresh_process(name, case, cache, deadline):
    environment = dict(os.environ, CUPY_CACHE_DIR=cache, TRITON_CACHE_DIR=cache)
    status, out, err = run_until(deadline, [sys.executable, __file__, "--child", name, json.dumps(case)], environment)
    if status != 0:
        lines = (err or out).strip().splitlines()
        raise Failed(lines[-1] if lines else f"exit status {status}")
    return json.loads(out.splitlines()[-1])


def measured(name, case, repeat, deadline):
    cold, warm = [], []
    try:
        for _ in range(repeat):
            with tempfile.TemporaryDirectory(prefix="normjit-peers-") as cache:
                first = in_fresh_process(name, case, cache, deadline)
                warm.append(in_fresh_process(name, case, cache, deadline))
                cold.append(first)
    except TimedOut:
        if not cold:
            raise
    middle = lambda runs, key: statistics.median(run[key] for run in runs)
    return {"version": cold[0]["version"], "processes": len(cold), "cold_ms": middle(cold, "first_ms"),
            "warm_ms": middle(warm, "first_ms"), "launch_us": middle(warm, "launch_us")}


class NoTool(Exception):
    pass


def tool(build, deadline, *arguments, program="normjit"):
    status, out, err = run_until(deadline, [str(build / program), *arguments])
    if status != 0:
        lines = err.strip().splitlines()
        raise NoTool(lines[-1] if lines else f"{program} {arguments[0]}: exit status {status}")
    return out


def own_calls(build, spec, rows, repeat, deadline):
    own = json.loads(tool(build, deadline, "startup", spec, "--rows", str(rows), "--repeat", str(repeat),
                          "--kernels", "0", "--json", program="normjit-bench"))["results"][0]
    return {"version": "normjit", "processes": repeat, "cold_ms": own["cold_ms"], "warm_ms": own["disk_ms"],
            "launch_us": own["later_us"]}


def prepared_case(build, spec, rows, folder, deadline):
    """What the children need; only plans that a plain launch runs."""
    shown = json.loads(tool(build, deadline, "show", spec, "--arch", "native", "--rows", str(rows), "--json"))
    plan = shown["choice"]["plan"]
    use = next(use for use in shown["uses"] if use["plan"] == plan and use["regime"] == shown["regime"])
    strategy = plan.split()[0]
    if "unaligned" in plan or "blocks_per_row" in plan or strategy not in ("warp_rows", "block_row"):
        sys.exit(f"the plan of {spec} is '{plan}'; CuPy's plain launches run warp_rows and block_row only")
    source = folder / "kernel.cu"
    source.write_text(tool(build, deadline, "render", spec, "--arch", "native", "--plan", plan))
    kernel = re.search(r"define NJ_ENTRY (\w+)", source.read_text())[1]
    return {"source": str(source), "kernel": kernel, "rows": rows, "columns": shown["columns"], "blocks": use["blocks"],
            "threads": int(re.search(r"threads=(\d+)", plan)[1]), "expected": 0.841345}  # GELU of the bias


def print_line(name, result, repeat):
    if "error" in result:
        print(f"{name:20}cannot be measured: {result['error']}", flush=True)
        return
    short = f"   {result['processes']} of {repeat}" if result["processes"] < repeat else ""
    print(f"{result['version']:20}{result['cold_ms']:10.2f}{result['warm_ms']:10.2f}{result['launch_us']:11.2f}{short}",
          flush=True)


def measure_all(options, spec, peers):
    end = time.monotonic() + options.budget
    results = {}
    print(f"{options.rows} x {spec}\n{'':20}{'cold ms':>10}{'warm ms':>10}{'launch us':>11}", flush=True)
    with tempfile.TemporaryDirectory(prefix="normjit-peers-") as folder:
        case = prepared_case(options.build, spec, options.rows, Path(folder), end)
        names = ["normjit", *peers]
        for i, name in enumerate(names):
            now = time.monotonic()
            deadline = now + (end - now) / (len(names) - i)
            try:
                results[name] = (own_calls(options.build, spec, options.rows, options.repeat, deadline) if name == "normjit"
                                 else measured(name, case, options.repeat, deadline))
            except Failed as why:
                results[name] = {"error": str(why)}
            print_line(name, results[name], options.repeat)
    return results


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--child":
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"), help="the build directory")
    parser.add_argument("--columns", type=int, default=64, help="of the f32 layer with weight, bias and exact GELU")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated: cupy, triton")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each kind")
    parser.add_argument("--budget", type=float, default=120, help="seconds for all of it")
    parser.add_argument("--output", type=Path, help="store the results as JSON")
    options = parser.parse_args()
    peers = options.peers.split(",")
    if not set(peers) <= set(PEERS) or options.repeat < 1 or options.budget <= 0:
        parser.error("--peers takes cupy and triton, --repeat 1 or more, --budget more than 0")
    if not (options.build / "normjit").exists():
        print(f"{options.build}/normjit is not built", file=sys.stderr)
        return 3

    spec = f"layernorm/cols={options.columns}/f32/wb/gelu"
    try:
        results = measure_all(options, spec, peers)
    except (NoTool, TimedOut) as why:
        print(why, file=sys.stderr)
        return 3
    if options.output:
        options.output.write_text(json.dumps({"spec": spec, "rows": options.rows, "results": results}, indent=2) + "\n")
    return 0 if any("error" not in results[name] for name in peers) else 1


if __name__ == "__main__":
    sys.exit(main())
