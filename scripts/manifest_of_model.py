#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a manifest for `normjit prebuild` of the LayerNorms and RMSNorms of a model, from a safetensors file or an ONNX one.

    scripts/manifest_of_model.py model.safetensors [--config config.json] [--dtype f16,bf16] [--eps 1e-5] [-o layers.json]
    scripts/manifest_of_model.py model.safetensors.index.json
    scripts/manifest_of_model.py model.onnx

Weights are never used. A safetensors file needs nothing but Python. It has no operations, so there a LayerNorm is a vector
called weight and one called bias, under a name that says norm or ln and does not look like another norm; an RMSNorm is such a
weight without bias. Its epsilon is in the config.json beside it, and its input is taken to have the dtype of its weights.
The model_type in the config says what transformers does with an RMSNorm's weight: Gemma adds it to 1, and most others round
the normalized value before they multiply (/round=norm). A runtime that fuses the residual asks for other kernels: --residual.
An ONNX file needs the package onnx, but no external data. There a norm is a node: LayerNormalization, RMSNormalization, or one
that ONNX Runtime puts in their place, with the residual where that is fused.

stdout or -o gets the manifest, stderr a summary of what was found, skipped, and why. Read it: a name is only a name.
Exit status: 0 done, 1 no norm found, 2 usage, or a file that cannot be read or written.
"""
import argparse
import collections
import json
import os
import sys

from model_layers import DTYPES, BadModel, spec_text, with_dtype
from model_onnx import read_onnx
from model_safetensors import read_json, read_safetensors


def dtype_list(text):
    dtypes = text.split(",")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise argparse.ArgumentTypeError("{!r} is no dtype; use {}".format(dtype, ", ".join(DTYPES)))
    return dtypes


def epsilon(text):
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("{} is not from 0 to 1".format(text))
    return value


def extra_spec(text):
    if not text.startswith(("layernorm/", "rmsnorm/")):
        raise argparse.ArgumentTypeError("{!r} does not begin with layernorm/ or rmsnorm/".format(text))
    return text


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="*.safetensors, *.safetensors.index.json or *.onnx")
    parser.add_argument("--config", help="the model's config.json; else the one beside a safetensors file")
    parser.add_argument("--eps", type=epsilon, help="the epsilon of all layers of a safetensors file")
    parser.add_argument("--dtype", type=dtype_list, help="dtypes to take instead of the model's, such as f16,bf16")
    parser.add_argument("--residual", choices=("add", "add/sum", "inb/add", "inb/add/sum"), action="append", default=[],
                        help="also each norm with a residual in front of it, of which the sum may be written; repeatable")
    parser.add_argument("--extra", type=extra_spec, action="append", default=[], metavar="SPEC", help="a further layer, as a spec")
    parser.add_argument("-o", "--output", help="where the manifest goes; else stdout")
    options = parser.parse_args()
    if options.model.endswith(".onnx") and (options.config or options.eps is not None):
        parser.error("--config and --eps are for safetensors files: an ONNX model says its epsilons itself")
    return options


def config_of(options):
    """The config that was named, or the one beside the model, or none."""
    path = options.config or os.path.join(os.path.dirname(options.model), "config.json")
    return read_json(path) if options.config or os.path.exists(path) else {}


def findings_of(options):
    if not os.path.isfile(options.model):
        raise BadModel("{} is not a file".format(options.model))
    if options.model.endswith(".onnx"):
        return read_onnx(options.model)
    if options.model.endswith((".safetensors", ".safetensors.index.json")):
        return read_safetensors(options.model, config_of(options), options.eps)
    raise BadModel("{} ends in none of .safetensors, .safetensors.index.json and .onnx".format(options.model))


def layers_by_spec(findings, dtypes, residuals=()):
    """The names of the layers of each spec, with the dtypes and residuals asked for."""
    specs = collections.OrderedDict()
    for layer, names in findings.layers.items():
        for each in [with_dtype(layer, dtype) for dtype in dtypes] if dtypes else [layer]:
            specs.setdefault(spec_text(each), []).extend(names)
            for before in residuals if not layer.before else ():
                specs.setdefault(spec_text(each._replace(before=before)), []).extend(names)
    return specs


def printable(text):
    """Names come out of the file, whoever made it."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text[:100])


def such_as(names):
    """How many, and one of them."""
    name = printable(names[0])
    return "{} x {}".format(len(names), name) if len(names) == 1 else "{} x, such as {}".format(len(names), name)


def manifest_of(model, specs, extra):
    entries = [{"spec": spec, "comment": such_as(names)} for spec, names in specs.items()]
    entries += [{"spec": spec, "comment": "--extra"} for spec in dict.fromkeys(extra) if spec not in specs]
    return {"normjit_manifest": 1, "comment": "the norms of " + printable(os.path.basename(model)), "specs": entries}


def summarise(model, specs, findings):
    print("{}: {} norms, {} specs".format(model, sum(map(len, findings.layers.values())), len(specs)), file=sys.stderr)
    for spec, names in specs.items():
        print("  {}: {}".format(spec, such_as(names)), file=sys.stderr)
    for reason, names in findings.skipped.items():
        print("  skipped {}: {}".format(such_as(names), reason), file=sys.stderr)


def write(manifest, output):
    text = json.dumps(manifest, indent=2) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    with open(output, "w", encoding="ascii") as file:
        file.write(text)


def main():
    options = arguments()
    try:
        findings = findings_of(options)
        specs = layers_by_spec(findings, options.dtype, options.residual)
        summarise(options.model, specs, findings)
        manifest = manifest_of(options.model, specs, options.extra)
        if not manifest["specs"]:
            print("No norm found, so no manifest.", file=sys.stderr)
            return 1
        write(manifest, options.output)
    except (BadModel, OSError) as error:
        print("manifest_of_model.py: {}".format(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
