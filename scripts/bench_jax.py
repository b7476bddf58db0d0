#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times normjit.jax beside what XLA makes of the same formula, and checks that both give the same.

    NORMJIT_LIBRARY=build/libnormjit.so scripts/bench_jax.py
    scripts/bench_jax.py --budget 30 --cases "odd,short" --json out.json

A time is that of one call in a jit-compiled program, whose inputs and outputs together take at least four times the L2 cache, so
that each call finds its data in memory: the median of a few runs, normjit and XLA in turns. "Gradient" is the same for value
and gradients together, for a given gradient of the value. "Host" is what one call takes of the CPU when nothing waits for its
result. The error is the largest one against the formula in f32 (in f64 for f32), relative to an element or to 1.

--budget SECONDS, since the start, bounds all of it: what is not done then is left out, by name. A row is printed as soon as it
is there; what is wrong or failed comes last, on stderr, too. --json names a file that has all that is known at any time. Exit
status: 0 done, 1 if a result is wrong, 2 if a case could not be measured, 3 without JAX or an NVIDIA GPU.
"""
import argparse
import collections
import functools
import os
import statistics
import sys
import time

from bench_report import OutOfTime, Report

BEGAN = time.monotonic()  # the import of JAX counts, too
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))

try:
    import jax
    import jax.numpy as jnp

    import normjit.jax
    from normjit.jax import _ffi, _formula, _operator
except ImportError as missing:
    print("Skipped: {}".format(missing), file=sys.stderr)
    sys.exit(3)

Case = collections.namedtuple("Case", "name rows columns dtype activation")
CASES = (
    Case("language model", 16384, 4096, "bfloat16", None),
    Case("over (64, 256, 256)", 16, 4194304, "float32", None),
    Case("64 + GELU", 4194304, 64, "float32", "gelu"),
    Case("odd", 65536, 1023, "float16", None),
    Case("BERT", 4096, 768, "float16", None),
    Case("long", 2048, 65536, "float32", None),
    Case("short", 2097152, 16, "float32", None),
    Case("wide", 8192, 8192, "bfloat16", None),
)
TOLERANCE = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
L2_BYTES = 4 * (60 << 20)
SECONDS_A_CASE = 5  # compiles of both, and of their gradients
RUNS = 9


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=120, help="seconds, of all")
    parser.add_argument("--cases", default="", help="only those whose names have one of these words, separated by commas")
    parser.add_argument("--json", help="a file for all that was found")
    return parser.parse_args()


def x64():
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def formula_of(case):
    """(x, weight, bias) to y, in jax.numpy."""
    def formula(x, weight, bias):
        short = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
        text = "layernorm/cols={}/{}/w={}/wb".format(case.columns, short[x.dtype.name], short[weight.dtype.name])
        problem = _operator.problem_of(text + ("/" + case.activation if case.activation else ""))
        return _formula.formula(problem, x, weight, bias)[0]

    return formula


def normjit_of(case):
    return functools.partial(normjit.jax.layer_norm, activation=case.activation)


def error_of(case, y, x, weight, bias):
    """Row by row, as the whole in f64 would not fit."""
    wide = jnp.float64 if case.dtype == "float32" else jnp.float32
    rows = slice(0, max(1, min(case.rows, (1 << 22) // case.columns)))
    wanted = formula_of(case)(*(array.astype(wide) for array in (x[rows], weight, bias)))
    found = y[rows].astype(wide)
    return float(jnp.max(jnp.abs(found - wanted) / jnp.maximum(1, jnp.abs(wanted))))


def microseconds(programs, inputs):
    """The time of a call, one for each input, in each program, by name; the programs take turns."""
    passes = max(4, 64 // len(inputs))  # under way at once, so that the GPU never waits for the host
    times = {name: [] for name in programs}
    for run in range(1 + RUNS):
        for name, program in programs.items():
            began = time.perf_counter()
            for _ in range(passes):
                results = program(inputs)
            jax.block_until_ready(results)
            if run > 0:
                times[name].append((time.perf_counter() - began) / passes / len(inputs) * 1e6)
    return {name: statistics.median(some) for name, some in times.items()}


def measure(case, report):
    """Adds to the report what it finds, as it comes."""
    data = jnp.dtype(case.dtype).itemsize * case.rows * case.columns
    copies = max(1, -(-L2_BYTES // (2 * data)))
    keys = jax.random.split(jax.random.key(1), copies + 2)
    inputs = [jax.random.normal(key, (case.rows, case.columns), case.dtype) for key in keys[2:]]
    layer = [jax.random.normal(key, (case.columns,), case.dtype) for key in keys[:2]]
    contenders = {"normjit": normjit_of(case), "xla": formula_of(case)}

    results = {name: jax.jit(function)(inputs[0], *layer) for name, function in contenders.items()}
    with x64():
        errors = {name: error_of(case, y, inputs[0], *layer) for name, y in results.items()}
    report.update(calls=copies, error=errors)
    del results

    programs = {name: jax.jit(lambda inputs, function=function: [function(x, *layer) for x in inputs])
                for name, function in contenders.items()}
    report["forward_us"] = microseconds(programs, inputs)
    if data <= 256 << 20:  # what a gradient keeps must fit, too
        def gradient(function):
            def both_passes(x, dy):
                y, backward = jax.vjp(function, x, *layer)
                return y, backward(dy)
            return jax.jit(lambda inputs: [both_passes(x, inputs[i - 1]) for i, x in enumerate(inputs)])
        report["gradient_us"] = microseconds(
            {name: gradient(function) for name, function in contenders.items()}, inputs)


def host_times(times):
    """Adds microseconds of the CPU for a call, of a size whose kernel takes less."""
    x, layer = jnp.ones((8, 768), jnp.float32), (jnp.ones(768), jnp.ones(768))
    calls = {"normjit.jax.layer_norm": lambda: normjit.jax.layer_norm(x, *layer),
             "jit of it": functools.partial(jax.jit(lambda x, w, b: normjit.jax.layer_norm(x, w, b)), x, *layer),
             "jit of the formula": functools.partial(jax.jit(formula_of(Case("", 8, 768, "float32", None))), x, *layer)}
    for name, call in calls.items():
        jax.block_until_ready([call() for _ in range(100)])
        rounds = []
        for _ in range(5):
            began = time.perf_counter()
            results = [call() for _ in range(500)]
            rounds.append(time.perf_counter() - began)
            jax.block_until_ready(results)
        times[name] = min(rounds) / 500 * 1e6


# ---- The report

HEADER = "{:<22}{:>20} {:>9} {:>11} {:>8} {:>7} {:>14} {:>8} {:>10}".format(
    "layer", "rows x columns", "dtype", "normjit us", "XLA us", "ratio", "gradient us", "XLA us", "error")


def line_of(row):
    def pair(key):
        times = row.get(key)
        return ["{:.1f}".format(times[name]) for name in ("normjit", "xla")] if times else ["-", "-"]
    forward, error = row.get("forward_us"), row.get("error")
    return "{:<22}{:>20} {:>9} {:>11} {:>8} {:>7} {:>14} {:>8} {:>10}".format(
        row["case"], "{} x {}".format(row["rows"], row["columns"]), row["dtype"], *pair("forward_us"),
        "{:.2f}".format(forward["xla"] / forward["normjit"]) if forward else "-", *pair("gradient_us"),
        "{:.1e}".format(error["normjit"]) if error else "-")


def faults(report):
    """What is wrong, a sentence each."""
    for row in report["cases"]:
        if "error" in row and not row["error"]["normjit"] <= TOLERANCE[row["dtype"]]:
            yield "{}: the error is {:.2g}, allowed is {:.0e}".format(
                row["case"], row["error"]["normjit"], TOLERANCE[row["dtype"]])


def remarks(report):
    """The lines behind the table."""
    return (["left out: " + ", ".join(report["left_out"])] * bool(report["left_out"])
            + report.remarks())


def run(cases, budget, report):
    """Fills the report, and prints it as it grows."""
    with report.step("host"):
        host_times(report["host_us"])
    print("host us a call: " + ", ".join("{} {:.1f}".format(*item) for item in report["host_us"].items()))
    print(HEADER, flush=True)
    for case in cases:
        if OutOfTime.due or BEGAN + budget - time.monotonic() < SECONDS_A_CASE:
            report["left_out"].append(case.name)
            continue
        row = {"case": case.name, "rows": case.rows, "columns": case.columns, "dtype": case.dtype,
               "activation": case.activation}
        report["cases"].append(row)
        try:
            with report.step(case.name):
                measure(case, row)
        except OutOfTime:
            report["left_out"].append("what remains of " + case.name)
        print(line_of(row), flush=True)


def main():
    options = arguments()
    try:
        device = _ffi.gpus()[0]
    except RuntimeError as why:
        print("Skipped: {}".format(why), file=sys.stderr)
        return 3
    words = options.cases.split(",")
    report = Report(options.json, faults, device=device.device_kind, jax=jax.__version__, host_us={}, cases=[])
    report.write()  # an error here costs nothing yet
    print("{device}, JAX {jax}".format(**report))
    try:
        with report.time_limit(BEGAN + options.budget - time.monotonic(), "all that is not above"):
            run([case for case in CASES if any(word in case.name for word in words)], options.budget, report)
    finally:
        for file in (sys.stdout, sys.stderr) if remarks(report) else ():
            print("\n".join(remarks(report)), file=file, flush=True)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
