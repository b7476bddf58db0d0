#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times norms with what stands around them under torch.compile: all by Inductor, beside one kernel of normjit.

    NORMJIT_LIBRARY=build/libnormjit.so scripts/bench_fusion.py [--forms ...] [--norms ...] [--dtypes ...] [--columns ...]
                                                                [--seconds 150] [--jobs N] [--write]

For each form, norm, type and width, with 96 MiB of rows:

plain      s = x + r and norm(s), with s as a result and without; the norm with its weights
modulated  norm(x) * (1 + scale) + shift, and the same of s = x + r, with s as a result
gated      the same of s = x * gate + r, with s as a result

scale, shift and gate are parts of a projection, with a row for each of 16 samples. A LayerNorm has no weights in the last two.
Columns: microseconds of Inductor's program; the same over that of normjit's kernel, which the pass of enable_fusion() makes of the
program. Programs run in CUDA graphs, on other inputs each time than the time before; medians. Processes, as many as --jobs,
compile all of them first.

--write puts into python/normjit/torch/_fusion_table.py the widths where normjit is at least 1.02 times as fast in all programs of
a form. Of what was not measured, the table keeps what it has: with --seconds, what there is no time for. Exit status: 0 done, 3
without PyTorch or a GPU.
"""
import argparse
import concurrent.futures
import importlib.util
import multiprocessing
import os
import statistics
import sys
import time

BEGAN = time.monotonic()
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
TABLE = os.path.join(ROOT, "python", "normjit", "torch", "_fusion_table.py")

FORMS, NORMS, DTYPES = "plain,modulated,gated", "layernorm,rmsnorm", "bf16,f16,f32"
COLUMNS = "768,1152,1536,2048,3072,4096,5120,8192"
BYTES = 96 << 20
SAMPLES = 16
INPUTS = 3
ROUNDS, RUNS = 3, 9  # of all inputs in a graph; of the graph
LEAST = 1.02  # less is noise
OFF = 0.06  # how far results may lie apart, where values of 16 bits are rounded at other places

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Where a norm with what stands around it, in one kernel of normjit, is faster than what Inductor makes of all. Written by
scripts/bench_fusion.py --write ({})."""

# (norm, type of x): ranges of columns, both ends included. "layernorm" is of add + norm, "layernorm modulated" of
# norm * (1 + scale) + shift, and "layernorm gated" of that behind x * gate + residual.
FASTER: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {{
'''


def microseconds(program, inputs):
    """The median time of a call."""
    import torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            for some in inputs:
                program(*some)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            for some in inputs:
                program(*some)
    times = []
    for _ in range(RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / ROUNDS / len(inputs))
    return statistics.median(times)


def programs(form, norm, text, columns, weight, bias):
    """Pairs of functions of x, r and a projection: by Inductor, by normjit."""
    from torch.nn import functional

    from normjit.torch import norm as of_spec
    affine = "" if weight is None else "/w" if bias is None else "/wb"
    rounding = "" if text == "f32" else "/round=sum"
    behind = affine + ("" if form == "plain" else "/mod")

    def plain(s):
        if norm == "rmsnorm":
            return functional.rms_norm(s, (columns,), weight, 1e-5)
        return functional.layer_norm(s, (columns,), weight, bias)

    def theirs(s, p):
        if form == "plain":
            return plain(s)
        _, scale, shift = p.chunk(3, -1)
        return plain(s) * (1 + scale) + shift

    def ours(fields, x, r, p):
        gate, scale, shift = (None,) * 3 if form == "plain" else p.chunk(3, -1)
        found = of_spec("{}/cols={}/{}{}{}".format(norm, columns, text, fields, behind), x, weight=weight, bias=bias,
                        residual=r, gate=gate if form == "gated" else None, mod_scale=scale, mod_shift=shift)
        return tuple(found[:2]) if "/sum" in fields else (found,)

    def of_the_sum(x, r, p):
        s = x * p.chunk(3, -1)[0] + r if form == "gated" else x + r
        return theirs(s, p), s
    with_sum = of_the_sum, lambda x, r, p: ours("/gate" * (form == "gated") + "/add/sum" + rounding, x, r, p)
    if form == "plain":
        return with_sum, (lambda x, r, p: of_the_sum(x, r, p)[:1], lambda x, r, p: ours("/add" + rounding, x, r, p))
    if form == "modulated":
        return (lambda x, r, p: (theirs(x, p),), lambda x, r, p: ours("", x, None, p)), with_sum
    return (with_sum,)


def cases(form, norm, text, columns, rows=None):
    """Rows, inputs, and pairs of programs of which Inductor's is not yet compiled."""
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"  # in tests
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[text]
    tokens = max(4, (rows or BYTES // (columns * dtype.itemsize)) // SAMPLES)

    def some(*shape):
        return torch.randn(*shape, device=device, dtype=dtype)
    inputs = [(some(SAMPLES, tokens, columns), some(SAMPLES, tokens, columns), some(SAMPLES, 1, 3 * columns))
              for _ in range(INPUTS)]
    weight = some(columns) if form == "plain" or norm == "rmsnorm" else None
    bias = some(columns) if weight is not None and norm == "layernorm" else None
    return SAMPLES * tokens, inputs, programs(form, norm, text, columns, weight, bias)


def compiled(program):
    import torch
    import torch._inductor.config
    torch._inductor.config.autotune_local_cache = False  # what prepare() chooses, on a busy GPU, is not for measure()
    torch._dynamo.reset()
    return torch.compile(program, dynamic=False)


def prepare(task):
    """Compiles what measure() runs, for the caches; in a process of its own."""
    import torch
    with torch.no_grad():
        _, inputs, pairs = cases(*task)
        for theirs, ours in pairs:
            for found, wanted in zip(ours(*inputs[0]), compiled(theirs)(*inputs[0]), strict=True):
                torch.testing.assert_close(found, wanted, rtol=OFF, atol=OFF)
        torch.cuda.empty_cache()


def measure(task):
    """Rows, and microseconds of Inductor and of normjit for each program."""
    rows, inputs, pairs = cases(*task)
    return rows, [(microseconds(compiled(theirs), inputs), microseconds(ours, inputs)) for theirs, ours in pairs]


def prepare_all(tasks, jobs, seconds):
    """Of all tasks, or of those that there is time for. The groups in which one failed."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there are as many processes
    pool = concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    waiting, failed = {pool.submit(prepare, task): task for task in tasks}, set()
    try:
        for at, done in enumerate(concurrent.futures.as_completed(waiting, seconds)):
            if done.exception():
                failed.add(waiting[done][:3])
                print("FAILED {}: {}".format(waiting[done], done.exception()), file=sys.stderr)
            if at % 10 == 9 or at + 1 == len(tasks):
                print("{} of {} compiled".format(at + 1, len(tasks)), file=sys.stderr, flush=True)
    except concurrent.futures.TimeoutError:
        print("the others are compiled as they come", file=sys.stderr)
    finally:
        pool.shutdown(cancel_futures=True)
    return failed


def ranges_of(columns, wins):
    """From the first to the last of widths in a row that win; a width between two is taken to be like them."""
    found, begin = [], None
    for at, (width, won) in enumerate(zip(columns, wins)):
        begin = width if won and begin is None else begin
        if begin is not None and (at + 1 == len(columns) or not wins[at + 1]):
            found.append((begin, width))
            begin = None
    return found


def present_table(path):
    module = importlib.util.spec_from_file_location("table", path)
    table = importlib.util.module_from_spec(module)
    module.loader.exec_module(table)
    return table.FASTER


def write(path, found, device):
    """Replaces what was measured."""
    table = {**present_table(path), **found}
    with open(path, "w") as file:
        file.write(HEAD.format(device))
        for (norm, text), ranges in sorted(table.items()):
            if ranges:
                file.write('    ("{}", "{}"): ({},),\n'.format(norm, text, ", ".join(map(str, ranges))))
        file.write("}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, all_of_them in (("forms", FORMS), ("norms", NORMS), ("dtypes", DTYPES), ("columns", COLUMNS)):
        parser.add_argument("--" + name, default=all_of_them, help="separated by commas; unless given, " + all_of_them)
    parser.add_argument("--seconds", type=float, default=150, help="of all; what there is no time for is left out")
    parser.add_argument("--jobs", type=int, default=min(14, os.cpu_count() or 1), help="processes that compile; 0: none")
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
    widths, found, left_out = sorted(map(int, options.columns.split(","))), {}, []
    groups = [(form, norm, text) for form in options.forms.split(",") for norm in options.norms.split(",")
              for text in options.dtypes.split(",")]
    failed = set()
    if options.jobs:
        failed = prepare_all([(*group, columns) for group in groups for columns in widths], options.jobs, options.seconds / 2)
    print("{:>9} {:>9} {:>4} {:>7} {:>7} | {:<17} | {}".format(
        "form", "norm", "type", "columns", "rows", "program, speed-up", "another one"))
    for group in groups:
        form, norm, text = group
        wins = []
        for columns in widths:
            if time.monotonic() - BEGAN > options.seconds or group in failed:
                break
            rows, times = measure((*group, columns))
            cells = ["{:8.1f} {:6.2f}  ".format(theirs, theirs / ours) for theirs, ours in times]
            print("{:>9} {:>9} {:>4} {:>7} {:>7} | {}".format(*group, columns, rows, " | ".join(cells)), flush=True)
            wins.append(all(theirs >= LEAST * ours for theirs, ours in times))
        if len(wins) == len(widths):
            found[norm if form == "plain" else "{} {}".format(norm, form), text] = ranges_of(widths, wins)
        else:
            left_out.append(" ".join(group))
    if left_out:
        print("Left out, for want of time or since they failed: " + ", ".join(left_out))
    if options.write:
        write(TABLE, found, torch.cuda.get_device_name())
    return 0


if __name__ == "__main__":
    sys.exit(main())
