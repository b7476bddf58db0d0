# SPDX-License-Identifier: Apache-2.0
"""python -m normjit.onnx: rewrites an ONNX model so that normjit computes its norms in ONNX Runtime."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Optional

from normjit.onnx._report import Finding

_FAILED = 1  # exit status: something is wrong with the model or a file


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m normjit.onnx", description=(
        "Puts normjit's operator in the place of the norms of an ONNX model: LayerNormalization, RMSNormalization, "
        "SimplifiedLayerNormalization, SkipLayerNormalization, and norms in single steps, with the Add before and the "
        "activation and QuantizeLinear behind them. What it does not serve is left alone. docs/onnx.md has more."))
    parser.add_argument("model", help="the model, an .onnx file")
    parser.add_argument("-o", "--output", metavar="FILE", help="where the rewritten model goes")
    parser.add_argument("--list", action="store_true", help="say of each norm what it becomes, or why it is left alone")
    parser.add_argument("--specs", action="store_true", help="print the specs alone, one a line, for normjit prebuild")
    given = parser.parse_args(arguments)
    if not given.output and not given.list and not given.specs:
        parser.error("name the output (-o), or ask for --list or --specs")
    try:
        return _run(given)
    except (OSError, ValueError, ModuleNotFoundError) as why:
        print("error: {}".format(why), file=sys.stderr)
        return _FAILED


def _run(given: argparse.Namespace) -> int:
    from normjit._require import require
    require("onnx", "the package onnx, to read and write models")
    from normjit.onnx import _files, _rewrite
    model = _files.load(given.model)
    findings = _rewrite.rewrite(model)
    if given.specs:
        print("\n".join(sorted({finding.spec for finding in findings if finding.taken})))
    elif given.list:
        print("\n".join(text_of(finding) for finding in findings))
    if given.output:
        _files.save(model, given.model, given.output)
    if not given.specs:
        print("{}: {} of {} norms".format(given.output or given.model, sum(finding.taken for finding in findings),
                                          len(findings)))
    return 0


def text_of(finding: Finding) -> str:
    """A norm in --list."""
    if not finding.taken:
        return "left   {} ({}): {}".format(finding.name, ", ".join(finding.operators), finding.reason)
    text = "taken  {} ({}): {}".format(finding.name, ", ".join(finding.operators), finding.spec)
    return "\n".join([text] + ["       without {}".format(note) for note in finding.notes])


if __name__ == "__main__":
    sys.exit(main())
