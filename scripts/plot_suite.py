#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `normjit-bench suite` and scripts/bench_peers.py have stored: the fraction of copy speed over the columns of a row.

    scripts/plot_suite.py suite.json [--peers peers.json] --output docs/h200.svg

One line for each dtype, through the lowest of its cases that move more than 64 MB with weight and bias and nothing else;
hollow marks are rows that are no multiple of 16 bytes. One dashed line for each peer, of bf16 alone.
Needs matplotlib. Exit status: 0 done, 2 usage, no matplotlib, or a file that is not such a result.
"""
import argparse
import json
import re
import sys

COLORS = {"bf16": "#0072b2", "f16": "#009e73", "f32": "#d55e00", "f64": "#cc79a7"}  # distinct to colour-blind readers, too
PEER_COLORS = ("#8c959f", "#57606a", "#24292f", "#b08800")
PEER_DASHES = ((7, 4), (2, 3), (9, 3, 2, 3), (4, 2))
BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8}


class BadResults(Exception):
    """A file that holds something else. The message names it."""


def cases_of(path, source):
    """(dtype, columns, case) of the cases that are drawn."""
    with open(path) as file:
        results = json.load(file)
    try:
        shapes = [(re.fullmatch(r"layernorm/cols=(\d+)/(\w+)/eps=1e-05/wb", case["spec"]), case) for case in results["cases"]]
        return results, [(shape[2], int(shape[1]), case) for shape, case in shapes if shape and case["bytes"] > 64_000_000]
    except (KeyError, TypeError) as error:
        raise BadResults("{} has no results of {}: {!r}".format(path, source, error)) from None


def is_odd(dtype, columns):
    return columns * BYTES[dtype] % 16 != 0


def lines_of_dtypes(cases):
    """{dtype: [(columns, fraction)]}"""
    return {dtype: [(columns, case["fraction_of_copy"]) for its, columns, case in cases
                    if its == dtype and "fraction_of_copy" in case] for dtype in COLORS}


def lines_of_peers(cases):
    """{peer: [(columns, fraction)]} of bf16; a peer that failed has no point there."""
    lines = {}
    for dtype, columns, case in cases:
        if dtype == "bf16" and not is_odd(dtype, columns):
            for peer, microseconds in case["peers"].items():
                if microseconds:
                    lines.setdefault(peer, []).append((columns, case["copy_us"] / microseconds))
    return lines


def transposed(points):
    return [x for x, _ in points], [y for _, y in points]


def lowest(points):
    """All columns in order, and the lowest fraction of each."""
    return transposed(sorted({columns: fraction for columns, fraction in sorted(points, reverse=True)}.items()))


def tick_text(columns, _):
    unit = next((unit for unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")) if columns >= 2 ** unit[0]), (0, ""))
    return "{:.0f}{}".format(columns / 2 ** unit[0], unit[1])


def draw(suite, dtypes, peers, output):
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "normjit", "svg.fonttype": "none"})  # the same results make the same bytes
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(10, 5.5), layout="constrained")
    for dtype, points in dtypes.items():
        even, odd = ([point for point in points if is_odd(dtype, point[0]) == wanted] for wanted in (False, True))
        if points:
            axes.plot(*lowest(even), color=COLORS[dtype], label=dtype)
        axes.plot(*transposed(even), "o", color=COLORS[dtype], markersize=4)
        axes.plot(*transposed(odd), "o", color=COLORS[dtype], markersize=4, fillstyle="none")
    for index, (peer, points) in enumerate(peers.items()):
        axes.plot(*lowest(points), color=PEER_COLORS[index % 4], dashes=PEER_DASHES[index % 4], label=peer + ", bf16")
    if any(is_odd(dtype, columns) for dtype, points in dtypes.items() for columns, _ in points):
        axes.plot([], [], "o", color="#24292f", fillstyle="none", label="odd widths")
    axes.set_xscale("log", base=4)
    axes.xaxis.set_major_formatter(tick_text)
    axes.set(ylim=(0, 1.05), xlabel="columns of a row", ylabel="fraction of the speed of a copy of the same bytes")
    axes.grid(color="#e1e4e8")
    axes.set_title("{device}\ndriver {driver}, {date}".format(**suite), fontsize=9, loc="left")
    figure.suptitle("LayerNorm with weight and bias, more than 64 MB moved")
    axes.legend(bbox_to_anchor=(1, 1), loc="upper left", frameon=False)
    figure.savefig(output, metadata={"Date": None} if output.endswith(".svg") else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="the results of normjit-bench suite")
    parser.add_argument("--peers", help="the results of scripts/bench_peers.py")
    parser.add_argument("--output", required=True, help="the figure: .svg, .png or another format of matplotlib")
    options = parser.parse_args()
    try:
        suite, cases = cases_of(options.suite, "normjit-bench suite")
        peers = cases_of(options.peers, "scripts/bench_peers.py")[1] if options.peers else []
        if not cases:
            raise BadResults("no case of {} moves more than 64 MB with weight and bias and nothing else".format(options.suite))
        draw(suite, lines_of_dtypes(cases), lines_of_peers(peers), options.output)
    except ImportError as error:
        print("plot_suite.py: {}; pip install matplotlib".format(error), file=sys.stderr)
        return 2
    except (BadResults, OSError, ValueError, KeyError) as error:
        print("plot_suite.py: {}".format(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
