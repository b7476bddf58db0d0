#!/usr/bin/env python3
"""Times normjit.jax beside what XLA makes of the same formula, and checks that both give the same.

    PYTHONPATH=python NORMJIT_LIBRARY=build/libnormjit.so scripts/bench_jax.py
    scripts/bench_jax.py --budget 30 --cases 4096,short --json

A time is that of one call in a jit-compiled program, whose inputs and outputs together take at least four times the L2 cache, so
that each call finds its data in memory: the median of a few runs, normjit and XLA in turns. "Gradient" is the same for the
value's forward and backward pass. "Host" is what one call takes of the CPU when nothing waits for its result. The error is the largest
one against the formula in f32 (in f64 for f32), relative to an element or to 1.

--budget SECONDS bounds all of it: a case is left out, by name, once no time for it is left. --json prints one object with what
the table has. Exit status: 0 done, 1 if a result is wrong, 3 without JAX or an NVIDIA GPU.
"""
import argparse
import collections
import functools
import json
import statistics
import sys
import time

try:
    import jax
    import jax.numpy as jnp

    import normjit.jax
    from normjit.jax import _ffi, _operator
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
SECONDS_A_CASE = 6  # compiles of both, and of their gradients
RUNS = 9


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=120, help="seconds for all")
    parser.add_argument("--cases", default="", help="only those whose names have one of these words, separated by commas")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args()


def formula_of(case):
    """(x, weight, bias) to y, in jax.numpy."""
    problem = _operator.Problem(case.columns, 1e-5, case.activation, 1.0)
    return lambda x, weight, bias: _operator.formula(problem, False, x, weight, bias)[0]


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


def measure(case):
    data = jnp.dtype(case.dtype).itemsize * case.rows * case.columns
    copies = max(1, -(-L2_BYTES // (2 * data)))
    keys = jax.random.split(jax.random.key(1), copies + 2)
    inputs = [jax.random.normal(key, (case.rows, case.columns), case.dtype) for key in keys[2:]]
    layer = [jax.random.normal(key, (case.columns,), case.dtype) for key in keys[:2]]
    contenders = {"normjit": normjit_of(case), "xla": formula_of(case)}

    results = {name: jax.jit(function)(inputs[0], *layer) for name, function in contenders.items()}
    with jax.enable_x64(True):
        errors = {name: error_of(case, y, inputs[0], *layer) for name, y in results.items()}
    del results

    programs = {name: jax.jit(lambda inputs, function=function: [function(x, *layer) for x in inputs])
                for name, function in contenders.items()}
    forward = microseconds(programs, inputs)
    report = {"case": case.name, "rows": case.rows, "columns": case.columns, "dtype": case.dtype,
              "activation": case.activation, "calls": copies, "forward_us": forward, "error": errors}
    if data <= 256 << 20:  # what a gradient keeps must fit, too
        def gradient(function):
            loss = lambda layer, x: (function(x, *layer).astype(jnp.float32) * 0.1).sum()
            return jax.jit(lambda inputs: [jax.grad(loss, (0, 1))(layer, x) for x in inputs])
        report["gradient_us"] = microseconds(
            {name: gradient(function) for name, function in contenders.items()}, inputs)
    return report


def host_times():
    """Microseconds of the CPU for a call, of a size whose kernel takes less."""
    x, layer = jnp.ones((8, 768), jnp.float32), (jnp.ones(768), jnp.ones(768))
    calls = {"normjit.jax.layer_norm": lambda: normjit.jax.layer_norm(x, *layer),
             "jit of it": functools.partial(jax.jit(lambda x, w, b: normjit.jax.layer_norm(x, w, b)), x, *layer),
             "jit of the formula": functools.partial(jax.jit(formula_of(Case("", 8, 768, "float32", None))), x, *layer)}
    times = {}
    for name, call in calls.items():
        jax.block_until_ready([call() for _ in range(100)])
        rounds = []
        for _ in range(5):
            began = time.perf_counter()
            results = [call() for _ in range(500)]
            rounds.append(time.perf_counter() - began)
            jax.block_until_ready(results)
        times[name] = min(rounds) / 500 * 1e6
    return times


def table(report):
    lines = ["{}, JAX {}".format(report["device"], report["jax"]),
             "{:<22}{:>20} {:>9} {:>11} {:>8} {:>7} {:>14} {:>8} {:>10}".format(
                 "layer", "rows x columns", "dtype", "normjit us", "XLA us", "ratio", "gradient us", "XLA us", "error")]
    for row in report["cases"]:
        forward, gradient = row["forward_us"], row.get("gradient_us")
        lines.append("{:<22}{:>20} {:>9} {:>11.1f} {:>8.1f} {:>7.2f} {:>14} {:>8} {:>10.1e}".format(
            row["case"], "{} x {}".format(row["rows"], row["columns"]), row["dtype"], forward["normjit"], forward["xla"],
            forward["xla"] / forward["normjit"], *("{:.1f}".format(gradient[name]) if gradient else "-"
                                                   for name in ("normjit", "xla")), row["error"]["normjit"]))
    lines += ["host us a call: " + ", ".join("{} {:.1f}".format(*item) for item in report["host_us"].items())]
    lines += ["left out: " + ", ".join(report["left_out"])] if report["left_out"] else []
    lines += ["WRONG: " + ", ".join(report["wrong"])] if report["wrong"] else []
    return "\n".join(lines)


def main():
    began = time.monotonic()
    options = arguments()
    try:
        device = _ffi.gpus()[0]
    except RuntimeError as why:
        print("Skipped: {}".format(why), file=sys.stderr)
        return 3
    words = options.cases.split(",")
    report = {"device": device.device_kind, "jax": jax.__version__, "cases": [], "left_out": [], "wrong": []}
    report["host_us"] = host_times()
    for case in (case for case in CASES if any(word in case.name for word in words)):
        if time.monotonic() - began + SECONDS_A_CASE > options.budget:
            report["left_out"].append(case.name)
            continue
        row = measure(case)
        report["cases"].append(row)
        if not row["error"]["normjit"] <= TOLERANCE[case.dtype]:
            report["wrong"].append(case.name)
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
