#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mypy --strict, of the package and of programs that use it.

    python3 tests/python/types_test.py

The parts for PyTorch, JAX and ONNX are checked where these are installed. Without mypy it says so in one line and exits with 77.
"""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / "python"

PROGRAMS = {"normjit": """
import normjit

normjit.add_layer(b"")
normjit.add_layer(b"", "signature")
normjit.add_layer(b"", signature=None)
page: str = normjit.prometheus({"model": "bert"})
normjit.add_layer("")  # wrong
normjit.add_layer(b"", b"signature")  # wrong
normjit.prometheus({"rank": 3})  # wrong
""", "torch": """
import torch
from normjit.torch import (LayerNorm, RMSNorm, add_rms_norm, add_rms_norm_quant, layer_norm, replace_layer_norm, replace_norms,
                           rms_norm, rms_norm_quant)

class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = LayerNorm(8, eps=1e-6, activation="gelu", scale=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x)
        return layer_norm(y, (8,), self.norm.weight, None, 1e-6, activation="relu")

def sums(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    y, s = add_rms_norm(x, residual, RMSNorm(8).weight, 1e-6, rounding="sum")
    return rms_norm(y + s, (8,), activation="silu")

def narrow(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y: torch.Tensor = rms_norm_quant(x, (8,), dtype=torch.int8, scale=scale)
    y, s, scales = add_rms_norm_quant(x, y, rounding="sum+norm+y")
    y, s = add_rms_norm_quant(x, s, scale=scale, inverse_scale=True)
    y, s, scales, also = add_rms_norm_quant(x, s, block=32, scale_layout="sw", also=torch.bfloat16)
    y, also = rms_norm_quant(x, (8,), scale=scale, also=torch.float16)
    y, scales, also = rms_norm_quant(x, (8,), upper_bound=scale, also=torch.float32)
    y, scales = rms_norm_quant(x, (8,), block=16, scale_format="e4m3", global_scale=scale)
    return rms_norm_quant(s, (8,))

model: Model = replace_layer_norm(replace_norms(Model(), fuse=True))
layer_norm([1.0], (8,))  # wrong
layer_norm(torch.ones(8), 8)  # wrong
layer_norm(torch.ones(8), (8,), activation=3)  # wrong
LayerNorm("8")  # wrong
replace_layer_norm(torch.ones(8))  # wrong
add_rms_norm(torch.ones(8))  # wrong
rms_norm(torch.ones(8), (8,), eps="1")  # wrong
rms_norm_quant(torch.ones(8), (8,)).sum()  # wrong
rms_norm_quant(torch.ones(8), (8,), block="32")  # wrong
rms_norm_quant(torch.ones(8), (8,), block=32, scale=torch.ones(1))  # wrong
""", "jax": """
import jax
import jax.numpy as jnp
from normjit.jax import NormOutputs, add_layer_norm, add_rms_norm, layer_norm, norm, rms_norm

def loss(x: jax.Array, weight: jax.Array) -> jax.Array:
    y, total = add_rms_norm(x, x, weight, rounding="sum")
    y, total = add_layer_norm(rms_norm(y, weight, weight_offset=True), total, weight, weight)
    results = norm("layernorm/cols=8/f32/w/stats", y, weight=weight)
    norm("layernorm/cols=16/f32/out=e4m3/q=16:e4m3", y, global_scale=weight)
    if isinstance(results, NormOutputs):
        y = results.out
    return jnp.sum(layer_norm(y, weight, normalized_shape=(8,), activation="gelu", eps=1e-6))

add_rms_norm(jnp.ones(8))  # wrong
norm("rmsnorm/cols=8/f32", jnp.ones(8), gates=jnp.ones(8))  # wrong
layer_norm(jnp.ones(8), normalized_ndim="1")  # wrong
layer_norm([1.0])  # wrong
layer_norm(jnp.ones(8)).nothing()  # wrong
""", "onnx": """
import onnx
import normjit.onnx

def specs(model: onnx.ModelProto) -> list[str]:
    return [finding.spec for finding in normjit.onnx.rewrite(model) if finding.taken]

path: str = normjit.onnx.library()
normjit.onnx.rewrite("model.onnx")  # wrong
normjit.onnx.library(path)  # wrong
normjit.onnx.rewrite(onnx.ModelProto()).taken  # wrong
"""}


def skip(why):
    print("Skipped: {}".format(why))
    sys.exit(77)


def is_installed(name):
    return importlib.util.find_spec(name) is not None


def mypy(*paths):
    """What it says, without the last line."""
    cache = os.path.join(os.environ.get("NORMJIT_BUILD_DIR", SCRATCH.name), "mypy")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, *map(str, paths)],
                          capture_output=True, text=True, check=False, cwd=SCRATCH.name,
                          env={**os.environ, "MYPYPATH": str(PYTHON)})
    if done.returncode not in (0, 1):
        raise AssertionError("mypy failed:\n{}{}".format(done.stdout, done.stderr))
    return done.stdout.splitlines()[:-1]


class TypesTest(unittest.TestCase):
    def test_the_package(self):
        parts = [path for path in sorted((PYTHON / "normjit").rglob("*.py"))
                 if path.parent.name == "normjit" or is_installed(path.parent.name)]
        self.assertEqual(mypy(*parts), [])

    def check_program(self, name):
        if name != "normjit" and not is_installed(name):
            self.skipTest("no {} here".format(name))
        path = os.path.join(SCRATCH.name, "{}_program.py".format(name))
        with open(path, "w") as file:
            file.write(PROGRAMS[name])
        said = [int(re.match(r"[^:]*:(\d+): error:", line).group(1)) for line in mypy(path) if ": note:" not in line]
        wrong = [i for i, line in enumerate(PROGRAMS[name].splitlines(), 1) if line.endswith("# wrong")]
        self.assertEqual(said, wrong)

    def test_a_program_without_a_framework(self):
        self.check_program("normjit")

    def test_a_program_for_pytorch(self):
        self.check_program("torch")

    def test_a_program_for_jax(self):
        self.check_program("jax")

    def test_a_program_for_onnx(self):
        self.check_program("onnx")


if __name__ == "__main__":
    if not is_installed("mypy"):
        skip("no mypy here")
    SCRATCH = tempfile.TemporaryDirectory()
    unittest.main()
