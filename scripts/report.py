#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a page about measured layers, to be opened in a browser: how far each is from a copy of the same bytes,
where the planner's choice loses against the best plan that was timed, and what differs between two files.

  scripts/report.py src/normjit/plan/measured/h100.txt.xz -o report.html
  scripts/report.py before.txt after.txt -o report.html     # two versions, or two GPUs

DATA are files of `normjit tune --random --data`, and JSON of `normjit bench --json` and `normjit-bench suite
--output`. Of several files each is compared with the first one, by layers of the same spec, rows, rows of a
sample, plane and alignment. Only files of `tune` have several plans of a layer; the first of them is the
planner's choice of that day. Parts of one measurement can be joined by `cat`; files may be compressed with xz.

The page is one file, which needs no network. Needs the Python package plotly, whose script it contains.
Exit status: 0 done; 2 wrong arguments, a file that is no such data, files without a common layer, no plotly.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import math
import pathlib
import re
import subprocess
import sys
import typing

import tune_data

PAGE = pathlib.Path(__file__).resolve().parent / "report.html"
# A plan, in the order of the lines of `tune --random`, and what a plan's text leaves out.
FIELDS = ("strategy", "threads", "threads_per_row", "vector", "per_thread", "group_rows", "blocks_per_sm",
          "blocks_per_row", "exchange", "unaligned", "stages", "grouped_rows")
DEFAULTS = {"blocks_per_row": "1", "exchange": "none", "unaligned": "0", "stages": "0", "grouped_rows": "0"}
SPEC = re.compile(r"(layernorm|rmsnorm)(?:_bwd)?/cols=(\d+)/(f16|bf16|f32|f64)(?:/\S*)?")
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
OPERATIONS = {  # what a field of a spec adds to the norm
    "residual": r"add(after)?|dsum", "sum": r"sum", "weight": r"w1?|w1?:rows", "weight and bias": r"wb1?|wb1?:rows",
    "modulation": r"mods?0?(:\w+)?", "gate": r"gate(after)?(:\w+)*", "activation": r"relu|gelu|gelu_tanh|silu",
    "quantized": r"q=.*", "statistics": r"stats",
}
CURVE = re.compile(r"(\w+): (\d+) layers: mean (\S+) %, median (\S+) %, p95 (\S+) %, worst (\S+) %")
FEATURES_FROM = 0.05  # features are of layers whose choice loses as much; those of all would double the page


class BadData(Exception):
    """A file that holds something else. The message is one line and names it."""


@dataclasses.dataclass
class Timed:
    plan: tuple[str, ...]  # as FIELDS
    microseconds: float
    registers: int = -1  # -1: not known
    spill_bytes: int = -1


@dataclasses.dataclass
class Layer:
    name: str  # seed and number; empty for those of bench
    spec: str
    rows: int
    sample: int
    plane: int
    align: int  # in elements; 0: not known
    overlap: bool
    copy: float  # microseconds
    plans: list[Timed] = dataclasses.field(default_factory=list)  # the planner's choice first

    @property
    def key(self) -> tuple[object, ...]:
        return self.spec, self.rows, self.sample, self.plane, self.overlap


@dataclasses.dataclass
class Source:
    name: str
    gpu: str
    layers: list[Layer]
    left_out: int = 0  # cases that failed


def family_of(spec: str) -> str:
    if "_bwd/" in spec:
        return "gradients"
    return "channels first" if spec.endswith("/cf") else "forward"


def time_from(value: typing.Any) -> float:
    microseconds = float(value)
    if not (math.isfinite(microseconds) and microseconds > 0):
        raise ValueError(f"{value} is no time")
    return microseconds


def plan_from(text: str) -> tuple[str, ...]:
    """The plan of a text as `to_text` writes it: "block_row threads=256 ... stages=2"."""
    strategy, *words = text.split()
    fields = {**DEFAULTS, **dict(word.split("=", 1) for word in words), "strategy": strategy}
    return tuple(fields[name] for name in FIELDS)


def plan_of(strategy: str, words: list[str]) -> tuple[str, ...]:
    """The plan of a line of `tune`, without the usual ones of its last fields."""
    least, most = len(FIELDS) - 1 - len(DEFAULTS), len(FIELDS) - 2  # grouped_rows is of no line
    if not least <= len(words) <= most:
        raise ValueError("no plan")
    return (strategy, *words, *(DEFAULTS[name] for name in FIELDS[1 + len(words):]))


def layer_from(name: str, spec: str, rows: int, sample: int, plane: int, align: int, overlap: bool, copy: float) -> Layer:
    if not SPEC.fullmatch(spec) or rows < 1:
        raise ValueError(f"no layer: {rows} rows of {spec}")
    return Layer(name, spec, rows, max(sample, 1), plane, align, overlap, copy)


def read_tune(text: str) -> Source:
    """Of the format that src/cli/layers.h describes. ValueError with the number of a line that is something else."""
    source, seed, gpus = Source("", "", []), "0", []
    layer: Layer | None = None
    for number, line in enumerate(text.splitlines(), 1):
        first, *words = line.split() or ["#"]
        try:
            if first == "gpu" and words:
                gpus.append(line[4:])
            elif first == "seed":
                seed, = words
            elif first == "layer":
                index, spec, *pairs = words
                named = dict(pair.split("=", 1) for pair in pairs)
                rows, sample, plane, align = (int(named[key]) for key in ("rows", "sample", "plane", "align"))
                layer = layer_from(f"{seed}/{index}", spec, rows, sample, plane, align, False, time_from(named["copy"]))
            elif first == "end" and layer:
                if layer.plans:
                    source.layers.append(layer)
                layer = None
            elif ":" in words and layer and not first.startswith("#"):
                colon = words.index(":")
                plan, (time, registers, spills) = plan_of(first, words[:colon]), words[colon + 1:]
                layer.plans.append(Timed(plan, time_from(time), int(registers), int(spills)))
            elif not first.startswith("#"):
                raise ValueError
        except (KeyError, ValueError):
            raise ValueError(f"line {number} is not understood: {line[:80]!r}") from None
    source.gpu = "; ".join(dict.fromkeys(gpus))
    return source


def read_json(text: str) -> Source:
    """What `normjit bench --json` and `normjit-bench suite` print. ValueError for anything else."""
    try:
        content = json.loads(text)
        cases = content["results"] if "results" in content else content["cases"]
        measured = [case for case in cases if "error" not in case]
        layers = []
        for case in measured:
            layer = layer_from("", case["spec"], int(case["rows"]), int(case["sample_rows"]), int(case["plane"]), 0,
                               bool(case["overlap"]), time_from(case["copy"]["median_us"]))
            layer.plans.append(Timed(plan_from(case["plan"]), time_from(case["kernel"]["median_us"])))
            layers.append(layer)
        gpu = str(content.get("device") or (measured[0]["device"] if measured else ""))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is JSON, but not of normjit bench or normjit-bench suite ({error!r})") from None
    return Source("", gpu, layers, len(cases) - len(measured))


def read(path: str) -> Source:
    try:
        text = tune_data.text_of(path)
        source = read_json(text) if text.lstrip()[:1] in ("{", "[") else read_tune(text)
    except OSError as error:
        raise BadData(f"{path}: {error.strerror}") from None
    except ValueError as error:  # also of text that is not UTF-8, or no JSON
        raise BadData(f"{path} is no file of normjit tune --random, bench --json or normjit-bench suite: {error}") from None
    if not source.layers:
        raise BadData(f"{path} has no measured layer")
    source.name = path
    return source


def pairs_of(base: Source, other: Source) -> list[tuple[Layer, Layer]]:
    """The same layers, each once, by the first time that they were measured."""
    known: dict[tuple[object, ...], Layer] = {}
    for layer in base.layers:
        known.setdefault(layer.key, layer)
    pairs: dict[tuple[object, ...], tuple[Layer, Layer]] = {}
    for layer in other.layers:
        first = known.get(layer.key)
        if first and (first.align == layer.align or 0 in (first.align, layer.align)):
            pairs.setdefault(layer.key, (first, layer))
    return list(pairs.values())


def features_of(bench: str, source: Source) -> dict[int, dict[str, list[float]]]:
    """What the planner's model knows of the choice and of the best plan, where these differ, by the number of the layer."""
    arch = re.search(r"\((sm_\w+)", source.gpu)
    try:
        with tune_data.as_text_file(source.name) as name:
            done = subprocess.run([bench, "features", *(["--arch", arch[1]] if arch else []), name], check=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip()
        raise BadData(f"{bench} features {source.name} failed: {said}") from None
    table = csv.DictReader(io.StringIO(done.stdout))
    names = list(table.fieldnames or [])
    names = names[names.index("ptxas_spill_bytes") + 1:]
    found = {}
    for number, layer in enumerate(source.layers):
        choice, *others = (next(table) for _ in layer.plans)
        best = min([choice, *others], key=lambda row: float(row["microseconds"]))
        if float(choice["microseconds"]) > (1 + FEATURES_FROM) * float(best["microseconds"]):
            found[number] = {name: [float(choice[name]), float(best[name])] for name in names if choice[name] != best[name]}
    return found


def read_curve(path: str) -> list[dict[str, typing.Any]]:
    try:
        found = CURVE.findall(pathlib.Path(path).read_text(encoding="utf-8"))
        points = [{"family": family.replace("_", " "), "layers": int(layers), "mean": float(mean), "median": float(median),
                   "p95": float(p95), "worst": float(worst)} for family, layers, mean, median, p95, worst in found]
    except OSError as error:
        raise BadData(f"{path}: {error.strerror}") from None
    except ValueError:
        points = []
    if not points:
        raise BadData(f"{path} has no line of scripts/fit_plans.py --curve")
    return points


def names_of(paths: list[str]) -> list[str]:
    """The ends of paths, as long as they have to be to differ."""
    if len(set(paths)) < len(paths):
        raise BadData(f"{max(paths, key=paths.count)} is given twice")
    for parts in range(1, 1 + max(path.count("/") for path in paths)):
        names = ["/".join(path.split("/")[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return paths


def tail_of(plan: tuple[str, ...]) -> str:
    """Without what a plan's text leaves out, as far as it stands at the end."""
    words = list(plan)
    while words[-1] == DEFAULTS.get(FIELDS[len(words) - 1]):
        words.pop()
    return " ".join(words)


def content_of(sources: list[Source], features: list[dict[int, dict[str, list[float]]]],
               curve: list[dict[str, typing.Any]]) -> dict[str, typing.Any]:
    """All that the page shows. Layers are columns of equal length; a layer is its place in them."""
    layers = [(number, layer) for number, source in enumerate(sources) for layer in source.layers]
    place = {id(layer): at for at, (_, layer) in enumerate(layers)}
    plans: dict[str, int] = {}  # and their places
    columns: dict[str, list[typing.Any]] = {}
    for number, layer in layers:
        norm, width, dtype = SPEC.fullmatch(layer.spec).groups()  # type: ignore[union-attr]
        words = layer.spec.split("/")[3:]
        row = {
            "source": number, "name": layer.name, "spec": layer.spec, "rows": layer.rows, "sample": layer.sample,
            "plane": layer.plane, "align": layer.align, "overlap": int(layer.overlap), "copy": layer.copy,
            "family": family_of(layer.spec), "dtype": dtype, "columns": int(width),
            "bytes": layer.rows * int(width) * BYTES[dtype],
            "operations": [norm] + [name for name, of in OPERATIONS.items() if any(re.fullmatch(of, word) for word in words)],
            "plans": [plans.setdefault(tail_of(timed.plan), len(plans)) for timed in layer.plans],
            "us": [timed.microseconds for timed in layer.plans],
            "registers": [timed.registers for timed in layer.plans],
            "spills": [timed.spill_bytes for timed in layer.plans],
        }
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    pairs = [[(place[id(a)], place[id(b)]) for a, b in pairs_of(sources[0], other)] for other in sources[1:]]
    for other, found in zip(sources[1:], pairs):
        if not found:
            raise BadData(f"{other.name} and {sources[0].name} have no layer in common")
    names = names_of([source.name for source in sources])
    return {
        "sources": [{"name": name, "gpu": source.gpu, "layers": len(source.layers), "left_out": source.left_out,
                     "plans": sum(len(layer.plans) for layer in source.layers)}
                    for name, source in zip(names, sources)],
        "fields": FIELDS, "defaults": DEFAULTS, "plans": list(plans), "layers": columns, "pairs": pairs, "curve": curve,
        "features": {place[id(source.layers[number])]: row for source, found in zip(sources, features)
                     for number, row in found.items()},
    }


def page_of(content: dict[str, typing.Any], plotly: str) -> str:
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    head, middle, tail = re.split("<!--plotly-->|<!--data-->", PAGE.read_text(encoding="utf-8"))
    return f'{head}<script>{plotly}</script>{middle}<script id="data" type="application/json">{data}</script>{tail}'


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="DATA")
    parser.add_argument("-o", "--output", default="report.html", help="the page (%(default)s)")
    parser.add_argument("--curve", metavar="FILE", help="also draw what scripts/fit_plans.py --curve has printed")
    parser.add_argument("--bench", metavar="PROGRAM", help="build/normjit-bench: where a choice loses 5 %% or more, also show "
                        "in which features of the planner's model it and the best plan differ")
    options = parser.parse_args(arguments)
    try:
        sources = [read(path) for path in options.data]
        features = [features_of(options.bench, source) if options.bench and source.layers[0].name else {} for source in sources]
        content = content_of(sources, features, read_curve(options.curve) if options.curve else [])
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped,unused-ignore]
        page = page_of(content, get_plotlyjs())
        pathlib.Path(options.output).write_text(page, encoding="utf-8")
    except ImportError as error:
        print(f"report.py: {error}; pip install plotly", file=sys.stderr)
        return 2
    except (BadData, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    said = ", ".join(f"{len(source.layers)} layers of {source.name}" for source in sources)
    print(f"{options.output}: {said}; {len(page.encode()) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
