#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `normjit run` with torch.nn.functional.layer_norm on the same inputs. scripts/bench_peers.py times them.

    scripts/compare_with_pytorch.py [--tool build/normjit]

Makes inputs with PyTorch (torch.rand, seeded), saves them as .npy, runs them through `normjit run` and compares
the output with layer_norm (and activation and scale) on the GPU, within atol 1e-5 for f32; f64 1e-12; 16-bit one unit in the last
place. Exit status 1 if any case is off.
Needs PyTorch, NumPy and a GPU.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
ACTIVATIONS = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu,
}


def fields(spec):
    """The parts of a spec text that matter here."""
    found = {"affine": "", "activation": None, "scale": 1.0, "eps": 1e-5}
    for field in spec.split("/")[1:]:
        key, equals, value = field.partition("=")
        if equals:
            found[key] = value if key in ("out", "w") else float(value)
        elif key in TYPES:
            found["in"] = key
        elif key in ("w", "wb"):
            found["affine"] = key
        elif key in ACTIVATIONS:
            found["activation"] = ACTIVATIONS[key]
    found["cols"] = int(found["cols"])
    found.setdefault("out", found["in"])
    weight = found["w"] if "w" in found else found["in"]
    found["w"] = weight
    return found


def reference(spec, x, weight, bias, dtype):
    """PyTorch's own result, in `dtype` arithmetic."""
    to = lambda t: None if t is None else t.to(dtype)
    y = F.layer_norm(to(x), (spec["cols"],), to(weight), to(bias), spec["eps"])
    if spec["activation"]:
        y = spec["activation"](y)
    return y * spec["scale"] if spec["scale"] != 1.0 else y


def save(path, tensor):
    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    numpy.save(path, bits.cpu().numpy())


def load(path, dtype):
    array = torch.from_numpy(numpy.load(path))
    return array.view(torch.bfloat16) if dtype == torch.bfloat16 else array


def make(spec, rows, seed):
    torch.manual_seed(seed)
    kind = dict(device="cuda", dtype=torch.float64 if spec["in"] == "f64" else torch.float32)
    x = torch.rand(rows, spec["cols"], **kind).to(TYPES[spec["in"]])
    weight = torch.rand(spec["cols"], **kind).to(TYPES[spec["w"]]) if spec["affine"] else None
    bias = torch.rand(spec["cols"], **kind).to(TYPES[spec["w"]]) if spec["affine"] == "wb" else None
    return x, weight, bias


def check_case(tool, text, rows, seed, folder, run=subprocess.run):
    spec = fields(text)
    x, weight, bias = make(spec, rows, seed)
    command = [tool, "run", text, "--rows", str(rows), "--out", folder / "y.npy", "--repeat", "0"]
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is not None:
            save(folder / f"{name}.npy", tensor)
            command += [f"--{name}", folder / f"{name}.npy"]
    done = run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        return f"normjit run exited with {done.returncode}: {done.stderr.strip()}"
    out = TYPES[spec["out"]]
    y = load(folder / "y.npy", out).cuda().reshape(rows, spec["cols"])
    # Wide types against PyTorch in that very type, 16-bit ones against PyTorch in f32, rounded once.
    arithmetic = torch.float64 if "f64" in (spec["in"], spec["out"], spec["w"]) else torch.float32
    want = reference(spec, x, weight, bias, arithmetic)
    error = (y.to(arithmetic) - want).abs()
    if out in (torch.float16, torch.bfloat16):
        step = torch.finfo(out).eps
        allowed = torch.maximum(want.abs() * step, torch.full_like(want, 1e-5 if out == torch.float32 else 2e-6))
    else:
        allowed = torch.full_like(want, 1e-12 if arithmetic == torch.float64 and out == torch.float64 else 1e-5)
    worst = error.max().item() if rows else 0.0
    if not bool((error <= allowed).all()):
        return f"off by {worst:.3g}"
    print(f"  ok  {text:58} rows {rows:>8}  largest difference {worst:.2e}")
    return ""


CASES = [
    ("layernorm/cols=4194304/f32/eps=1e-05/wb", 16), ("layernorm/cols=64/f32/eps=1e-05/wb/gelu", 4194304),
    ("layernorm/cols=64/f32/eps=1e-05/wb/gelu/scale=0.5", 65536),
    *[(f"layernorm/cols={n}/{t}/eps=1e-05/wb", 100) for n in (1, 3, 17, 333, 1023, 4097, 50257) for t in ("f16", "f32")],
    *[(f"layernorm/cols=4096/{t}/eps=1e-05/wb/{a}", 300) for t in TYPES for a in ACTIVATIONS],
    *[(f"layernorm/cols={n}/{t}/eps=1e-05/wb", 7) for n in (768, 16384, 65536, 1048576) for t in TYPES],
    ("layernorm/cols=1024/f16/out=f32/eps=1e-05/wb", 64), ("layernorm/cols=1024/f32/out=f16/eps=1e-05/wb", 64),
    ("layernorm/cols=1024/bf16/w=f32/eps=1e-05/wb", 64), ("layernorm/cols=1024/f32/out=f64/eps=1e-05/w", 64),
    ("layernorm/cols=768/f32/eps=1e-12", 1), ("layernorm/cols=768/f32/eps=1e-12/w", 1),
]


def check(tool):
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed, (text, rows) in enumerate(CASES):
            problem = check_case(tool, text, rows, seed, Path(folder))
            if problem:
                failures += 1
                print(f"  OFF {text:58} rows {rows:>8}  {problem}")
    print(f"{len(CASES)} cases, {failures} off")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=str(Path(__file__).resolve().parent.parent / "build" / "normjit"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU that PyTorch can use", file=sys.stderr)
        return 3
    return check(arguments.tool)


if __name__ == "__main__":
    sys.exit(main())
