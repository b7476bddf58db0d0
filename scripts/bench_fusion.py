#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times what Inductor fuses with a LayerNorm, beside the same with normjit's operator, into which nothing is fused.

    NORMJIT_LIBRARY=build/libnormjit.so scripts/bench_fusion.py [--dtype bfloat16] [--columns 768,4096]

For each width, with 96 MiB of rows, microseconds of torch.compile's program with F.layer_norm and with normjit's operator, and the
first over the second: of LayerNorm alone, of x + r and LayerNorm(x + r) where both are results, and of LayerNorm(x + r) where it
alone is. Programs run in CUDA graphs, on other inputs each time than the time before; medians. normjit.torch leaves rows to
Inductor by what this shows. Exit status: 0 done, 3 without PyTorch or a GPU.
"""
import argparse
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))
os.environ["NORMJIT_TORCH_COMPILE"] = "kernel"  # no rows are left to Inductor

COLUMNS = "768,1280,2048,4096,5120,6144,8192,12288,16384,32768"
BYTES = 96 << 20
INPUTS = 3
ROUNDS, RUNS = 3, 9  # of all inputs in a graph; of the graph


def microseconds(program, inputs):
    """The median time of a call."""
    import torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            for x, r in inputs:
                program(x, r)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            for x, r in inputs:
                program(x, r)
    times = []
    for _ in range(RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / ROUNDS / len(inputs))
    return statistics.median(times)


def programs(layer_norm, columns, weight, bias):
    """Functions of x and r."""
    def alone(x, r):
        return layer_norm(x, (columns,), weight, bias)

    def both(x, r):
        total = x + r
        return total, layer_norm(total, (columns,), weight, bias)

    def of_sum(x, r):
        return layer_norm(x + r, (columns,), weight, bias)
    return alone, both, of_sum


def line_of(columns, dtype):
    import torch
    from normjit.torch import layer_norm
    rows = max(64, BYTES // (columns * dtype.itemsize))
    inputs = [tuple(torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in "xr") for _ in range(INPUTS)]
    weight, bias = (torch.randn(columns, device="cuda", dtype=dtype) for _ in range(2))
    cells = []
    for pair in zip(*(programs(f, columns, weight, bias) for f in (torch.nn.functional.layer_norm, layer_norm))):
        times = []
        for program in pair:
            torch._dynamo.reset()
            times.append(microseconds(torch.compile(program, dynamic=False), inputs))
        cells.append("{:7.1f} {:7.1f} {:5.2f}".format(*times, times[0] / times[1]))
    return "{:>8} {:>8} | ".format(columns, rows) + " | ".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", help="float32, float16 or bfloat16")
    parser.add_argument("--columns", default=COLUMNS, help="separated by commas")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as missing:
        print("Skipped: {}".format(missing), file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("Skipped: no GPU for PyTorch here", file=sys.stderr)
        return 3
    torch.set_grad_enabled(False)
    print("{:>8} {:>8} | {:<21} | {:<21} | {:<21}".format("columns", "rows", "alone", "sum and LayerNorm", "LayerNorm of sum"))
    for columns in map(int, options.columns.split(",")):
        print(line_of(columns, getattr(torch, options.dtype)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
