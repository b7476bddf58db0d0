#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times norms of sums under torch.compile: all by Inductor, beside normjit's operator, alone and with the sum in it.

    NORMJIT_LIBRARY=build/libnormjit.so scripts/bench_fusion.py [--norms ...] [--dtypes ...] [--columns ...] [--write]

For each norm, type and width, with 96 MiB of rows, of s = x + r and norm(s): once with both as results, and once with the norm alone.
Columns: microseconds of Inductor's program; the same over that of Inductor's sum followed by normjit's norm; the same over that of
normjit's norm of the sum, which is what the pass of enable_fusion() makes. Programs run in CUDA graphs, on other inputs each time than
the time before; medians. --write makes python/normjit/torch/_fusion_table.py of the widths where the third is at least 1.02 times as
fast as Inductor's in both forms. Exit status: 0 done, 3 without PyTorch or a GPU.
"""
import argparse
import os
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
TABLE = os.path.join(ROOT, "python", "normjit", "torch", "_fusion_table.py")

COLUMNS = "768,1024,2048,3072,4096,5120,6144,8192,12288,16384"
BYTES = 96 << 20
INPUTS = 3
ROUNDS, RUNS = 3, 9  # of all inputs in a graph; of the graph
LEAST = 1.02  # less is noise

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Where add + norm in one kernel of normjit is faster than what Inductor makes of both. Written by
scripts/bench_fusion.py --write ({})."""

# (norm, type of x): ranges of columns, both ends included.
FASTER: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {{
'''


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


def programs(norm, columns, text, weight, bias):
    """Functions of x and r, and the spec tail of each: by Inductor, by it and normjit, by normjit."""
    import torch
    from normjit.torch import norm as of_spec
    head = "{}/cols={}/{}".format(norm, columns, text)
    affine = "/w" if bias is None else "/wb"
    rounding = "" if text == "f32" else "/round=sum"
    functional = torch.nn.functional

    def theirs(s):
        if bias is None:
            return functional.rms_norm(s, (columns,), weight, 1e-5)
        return functional.layer_norm(s, (columns,), weight, bias)

    def ours(s):
        return of_spec(head + affine, s, weight=weight, bias=bias)

    def both(function):
        def program(x, r):
            s = x + r
            return s, function(s)
        return program

    def fused_both(x, r):
        return of_spec(head + "/add/sum" + rounding + affine, x, residual=r, weight=weight, bias=bias)[:2]

    def fused(x, r):
        return of_spec(head + "/add" + rounding + affine, x, residual=r, weight=weight, bias=bias)
    return (both(theirs), both(ours), fused_both), (lambda x, r: theirs(x + r), lambda x, r: ours(x + r), fused)


def measure(norm, dtype, text, columns):
    """Microseconds of both forms, three programs each."""
    import torch
    rows = max(64, BYTES // (columns * dtype.itemsize))
    inputs = [tuple(torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in "xr") for _ in range(INPUTS)]
    weight, bias = (torch.randn(columns, device="cuda", dtype=dtype) for _ in range(2))
    forms = []
    for three in programs(norm, columns, text, weight, bias if norm == "layernorm" else None):
        torch._dynamo.reset()
        forms.append([microseconds(torch.compile(program, dynamic=False), inputs) for program in three])
    return rows, forms


def ranges_of(columns, wins):
    """From the first to the last of widths in a row that win; a width between two is taken to be like them."""
    found, begin = [], None
    for at, (width, won) in enumerate(zip(columns, wins)):
        begin = width if won and begin is None else begin
        if begin is not None and (at + 1 == len(columns) or not wins[at + 1]):
            found.append((begin, width))
            begin = None
    return found


def write(found, device):
    with open(TABLE, "w") as file:
        file.write(HEAD.format(device))
        for (norm, text), ranges in sorted(found.items()):
            if ranges:
                file.write('    ("{}", "{}"): ({},),\n'.format(norm, text, ", ".join(map(str, ranges))))
        file.write("}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norms", default="rmsnorm,layernorm", help="separated by commas")
    parser.add_argument("--dtypes", default="bf16,f16,f32", help="separated by commas")
    parser.add_argument("--columns", default=COLUMNS, help="separated by commas, rising")
    parser.add_argument("--write", action="store_true", help="write the table")
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
    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    widths, found = list(map(int, options.columns.split(","))), {}
    print("{:>9} {:>4} {:>7} {:>7} | {:<24} | {:<24}".format("norm", "type", "columns", "rows", "sum and norm", "norm of sum"))
    for norm in options.norms.split(","):
        for text in options.dtypes.split(","):
            wins = []
            for columns in widths:
                rows, forms = measure(norm, dtypes[text], text, columns)
                cells = ["{:8.1f} {:6.2f} {:6.2f}  ".format(t[0], t[0] / t[1], t[0] / t[2]) for t in forms]
                print("{:>9} {:>4} {:>7} {:>7} | {}".format(norm, text, columns, rows, " | ".join(cells)), flush=True)
                wins.append(all(t[0] >= LEAST * t[2] for t in forms))
            found[norm, text] = ranges_of(widths, wins)
    if options.write:
        write(found, torch.cuda.get_device_name())
    return 0


if __name__ == "__main__":
    sys.exit(main())
