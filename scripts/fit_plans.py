#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the planner's model to measured layers, and writes it as src/normjit/plan/model.cc.

  scripts/fit_plans.py DATA... [--bench build/normjit-bench] [-o src/normjit/plan/model.cc]
  scripts/fit_plans.py DATA... --curve

DATA are files of `normjit tune --random`, which may be compressed with xz (NAME.xz). The model has the plans of
a layer ranked, by trees of depth 6 over the features of src/normjit/plan/features.h; forward norms, norms with
channels first and gradients have trees of their own, since their plans never compete. What it prints is of
layers that the fit has not seen: the data are divided into five parts by layer, and each part is judged by a
model of the other four. --curve prints the same for a growing number of layers. The fit knows the rows of each
layer; it is judged as the planner uses it, which knows no more than their regime.

Regret is the time of the plan that the model chooses over that of the fastest measured plan of the layer, less
one. Needs Python packages catboost and pandas.
"""

import argparse
import io
import json
import pathlib
import subprocess
import tempfile

import catboost
import numpy as np
import pandas as pd

import tune_data

ROOT = pathlib.Path(__file__).resolve().parent.parent
FACTS = ["seed", "layer", "spec", "rows", "plan", "microseconds", "copy_us", "ptxas_registers", "ptxas_spill_bytes"]
DEPTH = 6  # the most; trees of less have questions without an answer at their end
FAMILIES = {
    "forward": {"iterations": 800, "learning_rate": 0.1, "depth": 6},
    "channels_first": {"iterations": 400, "learning_rate": 0.05, "depth": 4},
    "gradients": {"iterations": 480, "learning_rate": 0.1, "depth": 6},
}
WEIGHTS = {"forward": (0.15, 1.5), "channels_first": (1, 1), "gradients": (0.05, 3)}  # the least, the most
FOLDS = 5


def family_of(spec):
    if "_bwd/" in spec:
        return "gradients"
    return "channels_first" if spec.endswith("/cf") else "forward"


def load(bench, files, rows):
    """The plans of all layers, by layer, with their features for "actual" rows, or "typical" ones of the regime."""
    tables = []
    for file in files:
        with tune_data.as_text_file(file) as name:
            out = subprocess.run([bench, "features", "--rows", rows, name], check=True, capture_output=True, text=True)
        tables.append(pd.read_csv(io.StringIO(out.stdout)))
    data = pd.concat(tables, ignore_index=True).rename(columns={"copy": "copy_us"})
    data["group"] = (data.seed.astype(str) + "/" + data.layer.astype(str)).astype(object)
    data["best"] = data.groupby("group").microseconds.transform("min")
    data["slower"] = np.log2(data.microseconds / data.best)
    data["family"] = data.spec.map(family_of)
    return data.sort_values("group", kind="stable", ignore_index=True)


def features_of(data):
    return [name for name in data.columns if name not in FACTS + ["group", "best", "slower", "family"]]


def weight_of(data):
    """Of many rows the planner chooses for hundreds of megabytes, so that larger layers count more."""
    least, most = WEIGHTS[data.family.iloc[0]]
    weight = np.where(data.rows > 132, np.clip(data.copy_us / 30, least, most), 1)
    # Plans of unaligned rows are in the data since their kernels are what they are: of few layers.
    weight = np.where(data.groupby("group").unaligned.transform("max") > 0, 4 * weight, weight)
    return np.where(data.seed == 0, 6, weight)  # those of the suite, of which the file has few plans


def fit(data, settings):
    """A model, and the factor that makes its scores estimates of the binary logarithm of the time."""
    names = features_of(data)
    common = {"loss_function": "YetiRank", "verbose": 0, "random_seed": 1, "allow_writing_files": False}
    model = catboost.CatBoost(common | settings)
    relevance = np.exp2(-5 * data.slower)  # a plan that is 15 % slower than the best counts half
    model.fit(catboost.Pool(data[names], relevance, group_id=data.group.values, group_weight=weight_of(data)))
    score = pd.Series(-model.predict(data[names]), index=data.index)
    score -= score.groupby(data.group).transform("min")
    slower = np.minimum(data.slower, 1)
    return model, float((score * slower).sum() / (score * score).sum())


def choices(data, model):
    chosen = data.assign(score=-model.predict(data[features_of(data)])).groupby("group").score.idxmin()
    return data.loc[chosen]


def regret_of(chosen):
    return chosen.microseconds / chosen.best - 1


def folds(data):
    groups = np.array(sorted(data.group.unique()), dtype=object)
    np.random.default_rng(0).shuffle(groups)
    return np.array_split(groups, FOLDS)


def judged(data, typical, settings, share=1.0):
    """The choice of each layer by a model that was fitted to this share of the layers in the other parts."""
    parts = []
    for part in folds(data):
        seen = data[~data.group.isin(part)]
        groups = seen.group.unique()
        seen = seen[seen.group.isin(groups[: int(share * len(groups))])]
        parts.append(choices(typical[typical.group.isin(part)], fit(seen, settings)[0]))
    return pd.concat(parts)


def summary(regret):
    return (f"mean {100 * regret.mean():.1f} %, median {100 * regret.median():.1f} %, "
            f"p95 {100 * regret.quantile(0.95):.1f} %, worst {100 * regret.max():.0f} %")


def trees_of(model):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        model.save_model(file.name, format="json")
        saved = json.load(open(file.name, encoding="utf-8"))
    return saved["oblivious_trees"]


def number_of(border):
    if border == float("inf"):
        return "kNever"
    text = f"{border:.6g}"
    return text + ("f" if "." in text or "e" in text else ".f")


def source_of(name, trees, features, factor):
    """The trees as C++. A leaf is in 1/1024 of the binary logarithm of the time."""
    lines = [f"constexpr Tree k{name}[] = {{"]
    for tree in trees:
        splits = [(features[s["float_feature_index"]], s["border"]) for s in tree["splits"]]
        leaves = [round(-value * factor * 1024) for value in tree["leaf_values"]]
        splits += [("log_bytes", float("inf"))] * (DEPTH - len(splits))
        texts = ["{F::%s, %s}" % (feature, number_of(border)) for feature, border in splits]
        lines.append("    {{" + ", ".join(texts) + "},")
        lines.append("     {" + ", ".join(map(str, leaves)) + "}},")
    return "\n".join(lines) + "\n};\n"


HEAD = """// SPDX-License-Identifier: Apache-2.0
// Generated by scripts/fit_plans.py; do not edit. The model of the planner's costs (plan/model.h).
//
// %s
%s// clang-format off
#include "normjit/plan/model.h"

#include <limits>

namespace normjit {
namespace {

using F = Feature;
constexpr float kNever = std::numeric_limits<float>::infinity();

"""

ERRORS = """//
// Regret on layers that the fit has not seen, of the model, and of the plans that were chosen when they were
// measured:
%s
"""

TAIL = """}  // namespace

std::span<const Tree> trees_of(PlanFamily family) noexcept {
  if (family == PlanFamily::channels_first) return kChannelsFirst;
  return family == PlanFamily::gradients ? std::span<const Tree>(kGradients) : kForward;
}

}  // namespace normjit
"""


def curve(data, typical):
    for family, settings in FAMILIES.items():
        own = data[data.family == family]
        for share in (0.25, 0.5, 0.75, 1):
            text = summary(regret_of(judged(own, typical, settings, share)))
            print(f"{family}: {int(share * own.group.nunique() * (FOLDS - 1) / FOLDS)} layers: {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="DATA")
    parser.add_argument("--bench", default=ROOT / "build/normjit-bench", help="the program normjit-bench")
    parser.add_argument("-o", "--output", default=ROOT / "src/normjit/plan/model.cc")
    parser.add_argument("--curve", action="store_true", help="print how the error falls with the data; write nothing")
    parser.add_argument("--no-judge", action="store_true", help="fit only, without errors of unseen layers")
    options = parser.parse_args()
    data, typical = (load(options.bench, options.data, rows) for rows in ("actual", "typical"))
    if options.curve:
        return curve(data, typical)
    errors, body = [], ""
    for family, settings in FAMILIES.items():
        own = data[data.family == family]
        layers = own.group.nunique()
        before = regret_of(own.sort_index().groupby("group").head(1))
        if not options.no_judge:
            text = summary(regret_of(judged(own, typical, settings)))
            errors += [f"//   {family}, {layers} layers: {text}", f"//     before: {summary(before)}"]
            print("\n".join(errors[-2:]), flush=True)
        model, factor = fit(own, settings)
        name = "".join(word.capitalize() for word in family.split("_"))
        body += source_of(name, trees_of(model), features_of(own), factor) + "\n"
    names = ", ".join(pathlib.Path(file).name for file in options.data)
    seeds = ", ".join(map(str, sorted(data.seed.unique())))
    said = f"Of {data.group.nunique()} layers and {len(data)} plans of {names}, drawn with the seeds {seeds}."
    regrets = ERRORS % "\n".join(errors) if errors else ""
    pathlib.Path(options.output).write_text(HEAD % (said, regrets) + body + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
