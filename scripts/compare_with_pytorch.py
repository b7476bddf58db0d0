#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `normjit run` with PyTorch on the same inputs. scripts/bench_peers.py times them.

    scripts/compare_with_pytorch.py [--tool build/normjit] [--seed N] [--specs 6] [--only layernorm|projects] [--host]

First torch.nn.functional.layer_norm: makes inputs with PyTorch (torch.rand, seeded), saves them as .npy, runs them through
`normjit run` and compares the output with layer_norm (and activation and scale), within atol 1e-5 for f32; f64 1e-12;
16-bit one unit in the last place.

Then the norms of other projects: for each one its formula in PyTorch, with its roundings, and the spec that stands for it, at
random widths, rows and types. A table has the largest difference in units of the last place (of 1/64, where the value is
smaller) and the share of the values that have the same bits. Allowed: no difference of a sum; one unit of y in 16 bits, two
where the normalized value is rounded too; 16 units in f32, 2048 where terms cancel (LayerNorm, a residual behind the norm).
Of results of 8 and 4 bits the unit is a step of the type; allowed is one, in 1 % of the values. Their scales may be one unit
off, or 16 where f32 is not rounded in front of them; a largest value that is rounded the other way is told apart
(eight_bits.py). Bytes beyond the scales are zero.

Exit status 1 if any case is off. Needs PyTorch, NumPy and a GPU; with --host the kernels run on the CPU.
"""
import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F

import eight_bits

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
OUTPUTS = {**TYPES, **eight_bits.TYPES}
ACTIVATIONS = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu,
}


def fields(spec):
    """The parts of a spec text."""
    norm, *texts = spec.split("/")
    found = {"norm": norm, "affine": "", "offset": 0, "affine_rows": False, "activation": None, "scale": 1.0, "eps": 1e-5,
             "inb": False, "gate": "", "gate_function": "", "gate_table": False, "residual": "", "sum": False, "round": (),
             "modulation": "", "plain_modulation": False, "modulation_table": False, "q": "", "block": 0,
             "scale_format": "f32", "scale_layout": "rows", "inverse": False, "upper_bound": False, "also": "", "amax": False,
             "stats": False, "cf": False}
    for field in texts:
        key, equals, value = field.partition("=")
        affine, *options = field.split(":")
        if key == "round":
            found["round"] = tuple(value.split("+"))
        elif key == "q":
            kind, *options = value.split(":")
            found.update(q="block" if kind.isdigit() else kind, block=int(kind) if kind.isdigit() else 0,
                         inverse="inv" in options, upper_bound="ub" in options,
                         scale_format=next((option for option in options if option in eight_bits.FORMATS), "f32"),
                         scale_layout=next((option for option in options if option in eight_bits.LAYOUTS), "rows"))
        elif equals:
            found[key] = value if key in ("out", "w", "res", "mod", "also") else float(value)
        elif key in TYPES:
            found["in"] = key
        elif affine in ("w", "wb", "w1", "wb1"):
            found.update(affine=affine.rstrip("1"), offset=int(affine.endswith("1")), affine_rows="rows" in options)
        elif affine in ("gate", "gateafter"):
            function = next((option for option in options if option != "table"), "")
            found.update(gate=affine, gate_function=function, gate_table="table" in options)
        elif affine in ("mod", "mods", "mod0", "mods0"):
            found.update(modulation=affine.rstrip("0"), plain_modulation=affine.endswith("0"),
                         modulation_table="table" in options)
        elif key in ("add", "addafter"):
            found["residual"] = key
        elif key in ("inb", "sum", "amax", "stats", "cf"):
            found[key] = True
        elif key in ACTIVATIONS:
            found["activation"] = ACTIVATIONS[key]
        else:
            raise ValueError(f"{spec}: {field} is unknown")
    found["cols"] = int(found["cols"])
    for key in ("out", "w", "res", "mod"):
        found.setdefault(key, found["in"])
    return found


def matrix_of(spec, rows, plane=0):
    """The shape of x: with channels first [samples, columns, plane]."""
    return (rows // plane, spec["cols"], plane) if spec["cf"] else (rows, spec["cols"])


def inputs_of(spec, rows, sample=1, plane=0):
    """The shape and dtype of each input of a spec, by name. `sample` rows share a row of gate, scale and shift."""
    matrix, vector, shared = matrix_of(spec, rows, plane), (spec["cols"],), (rows // sample, spec["cols"])
    affine = matrix if spec["affine_rows"] else vector
    found = {"x": (matrix, TYPES[spec["in"]])}
    if spec["inb"]:
        found["in_bias"] = (vector, TYPES[spec["w"]])
    if spec["gate"]:
        found["gate"] = (shared, TYPES[spec["mod"]])
        if spec["gate_table"]:
            found["gate_table"] = (vector, TYPES[spec["w"]])
    if spec["residual"]:
        found["residual"] = (matrix, TYPES[spec["res"]])
    if spec["affine"]:
        found["weight"] = (affine, TYPES[spec["w"]])
    if spec["affine"] == "wb":
        found["bias"] = (affine, TYPES[spec["w"]])
    for name in {"mod": ("mod_scale", "mod_shift"), "mods": ("mod_scale",)}.get(spec["modulation"], ()):
        found[name] = (shared, TYPES[spec["mod"]])
        if spec["modulation_table"]:
            found[name + "_table"] = (vector, TYPES[spec["w"]])
    if spec["q"] == "tensor":
        found["tensor_scale"] = ((1,), torch.float32)
    if spec["upper_bound"]:
        found["upper_bound"] = ((1,), torch.float32)
    if spec["scale_format"] == "e4m3":
        found["global_scale"] = ((1,), torch.float32)
    return found


def outputs_of(spec, rows, plane=0):
    """The shape and dtype of each output of a spec, by name."""
    matrix = matrix_of(spec, rows, plane)
    found = {"y": ((rows, spec["cols"] // 2) if spec["out"] == "e2m1" else matrix, OUTPUTS[spec["out"]])}
    if spec["sum"]:
        found["sum"] = (matrix, TYPES[spec["res"]])
    if spec["stats"]:
        wide = torch.float64 if "f64" in (spec["in"], spec["out"], spec["w"], spec["res"], spec["mod"]) else torch.float32
        found.update({name: ((rows,), wide) for name in ("mean", "rstd") if name == "rstd" or spec["norm"] == "layernorm"})
    if spec["also"]:
        found["also"] = (matrix, TYPES[spec["also"]])
    if spec["q"] == "row":
        found["row_scale"] = ((rows,), torch.float32)
    if spec["q"] == "block":
        stored = torch.uint8 if spec["scale_format"] in ("e8m0", "e4m3") else torch.float32
        found["block_scale"] = (eight_bits.scale_shape(spec, rows), stored)
    if spec["amax"]:
        found["amax"] = ((), torch.float32)
    return found


def reference(spec, inputs, dtype):
    """{"y": ..., "sum": ...} of inputs by name, in `dtype` arithmetic; the sum is in its own type, and a result of 8 or 4 bits
    with what belongs to it, which follow from f32. PyTorch's own layer_norm where it computes the same."""
    t = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    shape = t["x"].shape
    if spec["cf"]:
        t = {name: tensor.transpose(1, 2) if tensor.shape == shape else tensor for name, tensor in t.items()}
    shared = [name for name in ("gate", "mod_scale", "mod_shift") if name in t and t[name].shape != shape]
    if shared:  # as models have it: [samples, tokens, columns]
        samples = t[shared[0]].shape[0]
        t = {name: tensor[:, None] if name in shared else tensor.view(samples, -1, shape[1]) if tensor.shape == shape else tensor
             for name, tensor in t.items()}
    weight, bias = t.get("weight"), t.get("bias")
    s = t["x"]
    if spec["inb"]:
        s = s + t["in_bias"]
    gate = gate_of(spec, t) if spec["gate"] else None
    if spec["gate"] == "gate":
        s = s * gate
    if spec["residual"] == "add":
        s = s + t["residual"]
    found = {"sum": s.to(TYPES[spec["res"]])} if spec["sum"] else {}
    if "sum" in spec["round"]:
        s = s.to(TYPES[spec["res"]]).to(dtype)
    if spec["norm"] == "layernorm" and not (spec["offset"] or spec["affine_rows"] or "norm" in spec["round"]):
        y = F.layer_norm(s, (spec["cols"],), weight, bias, spec["eps"])
    else:
        if spec["norm"] == "layernorm":
            s = s - s.mean(-1, keepdim=True)
        y = rms(s, spec["eps"])
        if "norm" in spec["round"]:
            y = y.to(TYPES[spec["in"]]).to(dtype)
        if weight is not None:
            y = y * (weight + spec["offset"])
        if bias is not None:
            y = y + bias
    if spec["modulation"]:
        factor = added(t, "mod_scale")
        y = y * (factor if spec["plain_modulation"] else 1 + factor)
        if "mod_shift" in t:
            y = y + added(t, "mod_shift")
    if spec["activation"]:
        y = spec["activation"](y)
    if spec["scale"] != 1.0:
        y = y * spec["scale"]
    if spec["gate"] == "gateafter":
        y = y * gate
    found["y"] = t["residual"] + y if spec["residual"] == "addafter" else y
    if spec["cf"]:
        found = {name: tensor.transpose(1, 2) for name, tensor in found.items()}
    found = {name: tensor.reshape(shape) for name, tensor in found.items()}
    if spec["out"] in eight_bits.TYPES:
        y = found["y"].to(TYPES[spec["in"]]) if "y" in spec["round"] else found["y"]
        found.update(eight_bits.quantized(spec, y.float(), inputs))
    return found


def added(t, name):
    """A row operand with its table."""
    return t[name] + t[name + "_table"] if name + "_table" in t else t[name]


def gate_of(spec, t):
    functions = {"": lambda v: v, "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}
    return functions[spec["gate_function"]](added(t, "gate"))


def rms(v, eps):
    return v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)


def save(path, tensor):
    """bf16 as the bits, in uint16; fp8 in uint8."""
    if tensor.dtype == torch.bfloat16:
        numpy.save(path, tensor.cpu().view(torch.int16).numpy().view(numpy.uint16))
    elif tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        numpy.save(path, tensor.cpu().view(torch.uint8).numpy())
    else:
        numpy.save(path, tensor.cpu().numpy())


def load(path, dtype):
    array = numpy.load(path)
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(array).view(dtype)


def make(spec, rows, seed, device, draw=torch.rand):
    torch.manual_seed(seed)
    kind = dict(device=device, dtype=torch.float64 if spec["in"] == "f64" else torch.float32)
    made = {name: draw(*shape, **kind).to(dtype) for name, (shape, dtype) in inputs_of(spec, rows).items()}
    if "tensor_scale" in made:  # so that a few results are beyond the largest number
        scale = 0.005 + 0.01 * made["tensor_scale"].abs()
        made["tensor_scale"] = 1 / scale if spec["inverse"] else scale
    if "upper_bound" in made:
        made["upper_bound"] = 1 + made["upper_bound"].abs()
    if "global_scale" in made:  # the same of scales, and those of the first block are 0
        made["global_scale"] = 300 + 200 * made["global_scale"].abs()
        made["weight"][:spec["block"]] = 1e-7
    return made


def run_tool(tool, text, rows, inputs, folder, run=subprocess.run):
    """The outputs of `normjit run` by name, or the reason why there are none."""
    spec, device = fields(text), inputs["x"].device
    outputs = outputs_of(spec, rows)
    command = [tool, "run", text, "--rows", rows]
    command += ["--repeat", "0"] if device.type == "cuda" else ["--device", "host"]
    for name in outputs:
        command += ["--out" if name == "y" else f"--{name}-out".replace("_", "-"), folder / f"{name}.npy"]
    for name, tensor in inputs.items():
        save(folder / f"{name}.npy", tensor)
        command += ["--" + name.replace("_", "-"), folder / f"{name}.npy"]
    done = run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        return f"normjit run exited with {done.returncode}: {done.stderr.strip()}"
    return {name: load(folder / f"{name}.npy", dtype).to(device).reshape(shape) for name, (shape, dtype) in outputs.items()}


def check_case(tool, text, rows, seed, folder, device):
    spec = fields(text)
    inputs = make(spec, rows, seed, device)
    got = run_tool(tool, text, rows, inputs, folder)
    if isinstance(got, str):
        return got
    out, y = TYPES[spec["out"]], got["y"]
    # Wide types against PyTorch in that very type, 16-bit ones against PyTorch in f32, rounded once.
    arithmetic = torch.float64 if "f64" in (spec["in"], spec["out"], spec["w"]) else torch.float32
    want = reference(spec, inputs, arithmetic)["y"]
    error = (y.to(arithmetic) - want).abs()
    if out in (torch.float16, torch.bfloat16):
        step = torch.finfo(out).eps
        allowed = torch.maximum(want.abs() * step, torch.full_like(want, 2e-6))
    else:
        allowed = torch.full_like(want, 1e-12 if arithmetic == torch.float64 and out == torch.float64 else 1e-5)
    worst = error.max().item() if rows else 0.0
    if not bool((error <= allowed).all()):
        return f"off by {worst:.3g}"
    print(f"  ok  {text:58} rows {rows:>8}  largest difference {worst:.2e}")
    return ""


# --- Other projects: what they compute, rounding where they round. `t` has the inputs of the spec by name.

def after_add(norm, kept):
    """The norm of x + residual. `kept`: of the sum as it is stored; else of the sum before that."""
    def formula(t, eps):
        s = t["x"].float() + t["residual"].float()
        stored = s.to(t["residual"].dtype)
        return {"y": norm(stored.float() if kept else s, t, eps), "sum": stored}
    return formula


def of_x(norm):
    return lambda t, eps: {"y": norm(t["x"].float(), t, eps)}


def once(s, t, eps):  # rounded at the end
    return (rms(s, eps) * t["weight"].float()).to(t["x"].dtype)


def twice(s, t, eps):  # in front of the weight, and behind it
    return rms(s, eps).to(t["x"].dtype) * t["weight"]


def gemma(s, t, eps):
    return (rms(s, eps) * (1.0 + t["weight"].float())).to(t["x"].dtype)


def gemma_add_after(t, eps):
    y = rms(t["x"].float(), eps) * (1.0 + t["weight"].float())
    return {"y": (t["residual"].float() + y).to(t["x"].dtype)}


def skip_layer_norm(t, eps):
    s = t["x"].float() + t["in_bias"].float() + t["residual"].float()
    y = F.layer_norm(s, (s.shape[-1],), t["weight"].float(), t["bias"].float(), eps)
    return {"y": y.to(t["x"].dtype), "sum": s.to(t["x"].dtype)}


# --- The same in 8 bits. The scales of blocks are [rows, blocks] in f32.

def unrounded(s, t, eps):
    return rms(s, eps) * t["weight"].float()


def layer_norm(t, eps, offset=0):
    x = t["x"].float()
    return {"y": F.layer_norm(x, (x.shape[-1],), offset + t["weight"].float(), t["bias"].float(), eps)}


def rounded_layer_norm(t, eps):
    return {"y": layer_norm(t, eps)["y"].to(t["x"].dtype)}


def over(v, number):
    """A quotient: by a number PyTorch multiplies with its inverse."""
    return v / torch.full_like(v, number)


def by_tensor(formula):  # vLLM, FlashInfer
    def quantized(t, eps):
        found = formula(t, eps)
        return {**found, "y": eight_bits.nearest(found["y"].float() * (1.0 / t["tensor_scale"]), "e4m3")}
    return quantized


def delayed(formula):  # Transformer Engine: the scale is the inverse
    def quantized(t, eps):
        y = formula(t, eps)["y"]
        return {"y": eight_bits.nearest(y * t["tensor_scale"], "e4m3"), "amax": y.abs().amax()}
    return quantized


def by_token(formula, out):  # vLLM: e4m3 is divided, whole numbers are multiplied by the inverse
    def quantized(t, eps):
        found = formula(t, eps)
        y = found["y"].float()
        largest = y.abs().amax(-1, keepdim=True)
        if "upper_bound" in t:
            largest = torch.minimum(largest, t["upper_bound"])
        scale = over(largest, 448.0).clamp(min=1 / (512 * 448)) if out == "e4m3" else over(largest, 127.0).clamp(min=2.0 ** -23)
        q = eight_bits.nearest(y / scale if out == "e4m3" else y * (1.0 / scale), out)
        return {**found, "y": q, "row_scale": scale.squeeze(-1)}
    return quantized


def by_token_of_trt(formula):
    def quantized(t, eps):
        y = formula(t, eps)["y"].float()
        largest = y.abs().amax(-1, keepdim=True).clamp(min=1e-6)
        q = eight_bits.nearest(y * (torch.full_like(largest, 127.0) / largest), "s8")
        return {"y": q, "row_scale": over(largest, 127.0).squeeze(-1)}
    return quantized


def in_blocks(formula, block, scale_of, out="e4m3", divides=False):
    def quantized(t, eps):
        found = formula(t, eps)
        y = found["y"].float()
        blocks = y.view(len(y), -1, block)
        scale = scale_of(blocks.abs().amax(-1))
        q = blocks / scale[..., None] if divides else blocks * (1.0 / scale)[..., None]
        return {**found, "y": eight_bits.nearest(q.view(y.shape), out), "block_scale": scale}
    return quantized


def group_of_vllm(largest):
    return over(largest, 448.0).clamp(min=1 / (512 * 448))


def group_of_vllm_s8(largest):
    return over(largest, 127.0).clamp(min=2.0 ** -23)


def group_of_deepseek(largest):
    return over(largest.clamp(min=1e-10), 448.0)


def power_of_deepseek(largest):
    return torch.exp2(torch.ceil(torch.log2(group_of_deepseek(largest))))


# --- The same in 4 bits. FlashInfer and TensorRT-LLM have approximate reciprocals of 6 and of scales, exact ones here. Neither
# has a floor. FlashInfer does not write what is beyond the scales, and reads those of e4m3 below 2^-6 as other numbers. aiter's
# MXFP4 is missing: its powers of two are half as large where the largest is 1.5 to 1.75 times a power of two.

def after_add_of_flashinfer(t, eps):
    """The mean square is that of the sum before it is stored, and the stored sum is normalized."""
    s = t["x"].float() + t["residual"].float()
    stored = s.to(t["residual"].dtype)
    rstd = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    return {"y": stored.float() * rstd * t["weight"].float(), "sum": stored}


def with_itself(formula):
    """y is an output, too. Its type there is that of x; here it is bf16 for every x."""
    def both(t, eps):
        found = formula(t, eps)
        return {**found, "also": found["y"].to(torch.bfloat16)}
    return both


def nvfp4(formula, scale_of, factor_of):
    def quantized(t, eps):
        found, given = formula(t, eps), t["global_scale"]
        y = found["y"].float()
        blocks = y.view(len(y), -1, 16)
        scale = eight_bits.nearest(scale_of(blocks.abs().amax(-1), given), "e4m3").float()
        factor = factor_of(scale, given).masked_fill(scale == 0, 0.0)
        q = (blocks * factor[..., None]).view(y.shape)
        return {**found, "y": eight_bits.nearest(q, "e2m1"), "block_scale": scale}
    return quantized


def nvfp4_of_flashinfer(formula):
    return nvfp4(formula, lambda largest, given: given * largest * (1 / 6), lambda scale, given: 1.0 / scale * given)


def nvfp4_of_trt(formula):  # some of its kernels have no factor of 0: zeros become 6
    return nvfp4(formula, lambda largest, given: given * (largest * (1 / 6)), lambda scale, given: 1.0 / (scale * (1.0 / given)))


def power_of_flashinfer(largest):
    return torch.exp2(torch.ceil(torch.log2(largest * (1 / 6))))


PROJECTS = [
    ("vLLM fused_add_rms_norm", "rmsnorm", "add/sum/round=sum/w", after_add(once, kept=True)),
    ("vLLM, older", "rmsnorm", "add/sum/round=sum+norm/w", after_add(twice, kept=True)),
    ("vLLM rms_norm, native", "rmsnorm", "round=norm/w", of_x(twice)),
    ("FlashInfer rmsnorm", "rmsnorm", "w", of_x(once)),
    ("FlashInfer fused_add_rmsnorm", "rmsnorm", "add/sum/w", after_add(once, kept=False)),
    ("FlashInfer gemma_fused_add", "rmsnorm", "add/sum/w1", after_add(gemma, kept=False)),
    ("Liger fused add, llama", "rmsnorm", "add/sum/round=sum+norm/w", after_add(twice, kept=True)),
    ("Liger fused add, gemma", "rmsnorm", "add/sum/round=sum/w1", after_add(gemma, kept=True)),
    ("flash-attn, residual in f32", "rmsnorm", "res=f32/add/sum/w", after_add(once, kept=False)),
    ("HF Llama", "rmsnorm", "round=norm/w", of_x(twice)),
    ("HF Gemma", "rmsnorm", "w1", of_x(gemma)),
    ("Gemma, residual behind", "rmsnorm", "addafter/w1", gemma_add_after),
    ("ORT SkipLayerNormalization", "layernorm", "inb/add/sum/wb", skip_layer_norm),
    ("vLLM rms_norm_static_fp8", "rmsnorm", "out=e4m3/round=y/w/q=tensor", by_tensor(of_x(once))),
    ("the same, older", "rmsnorm", "out=e4m3/round=norm+y/w/q=tensor", by_tensor(of_x(twice))),
    ("vLLM fused_add, static fp8", "rmsnorm", "out=e4m3/add/sum/round=sum+y/w/q=tensor", by_tensor(after_add(once, kept=True))),
    ("the same, older", "rmsnorm", "out=e4m3/add/sum/round=sum+norm+y/w/q=tensor", by_tensor(after_add(twice, kept=True))),
    ("vLLM dynamic_per_token, e4m3", "rmsnorm", "out=e4m3/round=norm+y/w/q=row", by_token(of_x(twice), "e4m3")),
    ("with its upper bound", "rmsnorm", "out=e4m3/round=norm+y/w/q=row:ub", by_token(of_x(twice), "e4m3")),
    ("with a residual", "rmsnorm", "out=e4m3/add/sum/round=norm+y/w/q=row", by_token(after_add(twice, kept=False), "e4m3")),
    ("vLLM dynamic_per_token, s8", "rmsnorm", "out=s8/add/sum/round=norm+y/w/q=row", by_token(after_add(twice, kept=False), "s8")),
    ("vLLM per_block, 128", "rmsnorm", "out=e4m3/add/sum/round=norm+y/w/q=128",
     in_blocks(after_add(twice, kept=False), 128, group_of_vllm)),
    ("vLLM per_block, 64, transposed", "rmsnorm", "out=e4m3/round=norm+y/w/q=64:cols", in_blocks(of_x(twice), 64, group_of_vllm)),
    ("vLLM per_block, s8", "rmsnorm", "out=s8/round=norm+y/w/q=128", in_blocks(of_x(twice), 128, group_of_vllm_s8, "s8")),
    ("FlashInfer rmsnorm_quant", "rmsnorm", "out=e4m3/w/q=tensor", by_tensor(of_x(unrounded))),
    ("FlashInfer fused_add_quant", "rmsnorm", "out=e4m3/add/sum/w/q=tensor", by_tensor(after_add(unrounded, kept=False))),
    ("FlashInfer layernorm_quant", "layernorm", "out=e4m3/w=f32/round=y/wb/q=tensor", by_tensor(rounded_layer_norm)),
    ("TE rmsnorm, delayed scaling", "rmsnorm", "out=e4m3/w/q=tensor:inv/amax", delayed(of_x(unrounded))),
    ("TE layernorm, zero-centred", "layernorm", "out=e4m3/wb1/q=tensor:inv/amax", delayed(lambda t, eps: layer_norm(t, eps, 1))),
    ("TensorRT-LLM, per token", "layernorm", "out=s8/round=y/wb/q=row", by_token_of_trt(rounded_layer_norm)),
    ("DeepSeek act_quant", "rmsnorm", "out=e4m3/round=norm+y/w/q=128",
     in_blocks(of_x(twice), 128, group_of_deepseek, divides=True)),
    ("per_token_group, ue8m0", "rmsnorm", "out=e4m3/add/sum/round=sum+norm+y/w/q=128:p2:cols",
     in_blocks(after_add(twice, kept=True), 128, power_of_deepseek, divides=True)),
    ("the same, packed for DeepGEMM", "rmsnorm", "out=e4m3/round=norm+y/w/q=128:e8m0:cols4",
     in_blocks(of_x(twice), 128, power_of_deepseek, divides=True)),
    # FlashInfer rounds the product of x and weight to 16 bits in front of rstd, which no spec does: not here.
    ("FlashInfer rmsnorm_fp4quant", "rmsnorm", "out=e2m1/w/q=16:e4m3", nvfp4_of_flashinfer(of_x(unrounded))),
    ("the same, MXFP4", "rmsnorm", "out=e2m1/w/q=32:e8m0", in_blocks(of_x(unrounded), 32, power_of_flashinfer, "e2m1")),
    ("FlashInfer add_rmsnorm_fp4quant", "rmsnorm", "out=e2m1/add/sum/round=sum/w/q=16:e4m3:sw",
     nvfp4_of_flashinfer(after_add_of_flashinfer)),
    ("the same, MXFP4", "rmsnorm", "out=e2m1/add/sum/round=sum/w/q=32:e8m0:sw",
     in_blocks(after_add_of_flashinfer, 32, power_of_flashinfer, "e2m1")),
    ("TensorRT-LLM fused_add, NVFP4", "rmsnorm", "out=e2m1/add/sum/round=y/w/q=16:e4m3:sw/also=bf16",
     nvfp4_of_trt(with_itself(after_add(once, kept=False)))),
    ("the same behind all-reduce", "rmsnorm", "out=e2m1/add/sum/round=sum+y/w/q=16:e4m3:sw/also=bf16",
     nvfp4_of_trt(with_itself(after_add(once, kept=True)))),
]


def ulps(got, want):
    """The largest difference in units of the last place, of 1/64 where the value is smaller; and how many bits are the same."""
    step = torch.finfo(want.dtype).eps
    exact = want.double()
    unit = step * torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=1 / 64))))
    off = (got.double() - exact).abs() / unit
    off = torch.where(torch.isnan(off), torch.full_like(off, float("inf")), off)
    return off.max().item(), int((got == want).sum())


def allowed_ulps(spec):
    if spec["out"] == "f32":
        cancels = spec["norm"] == "layernorm" or spec["residual"] == "addafter"
        return 2048 if cancels else 16
    return 2 if "norm" in spec["round"] else 1


def allowed_of_scales(spec):
    return 1 if "y" in spec["round"] and spec["in"] != "f32" else 16


def in_storage(spec, scales):
    """The scales of blocks as the spec stores them."""
    if spec["scale_format"] == "e8m0":
        scales = (scales.view(torch.int32) >> 23).to(torch.uint8)
    elif spec["scale_format"] == "e4m3":
        scales = eight_bits.nearest(scales, "e4m3").view(torch.uint8)
    return eight_bits.laid_out(spec, scales)


def zero_beyond(spec, scales, rows):
    return torch.equal(scales, eight_bits.laid_out(spec, eight_bits.by_rows(spec, scales, rows)))


def compare_outputs(spec, got, want, rows):
    """({"y", "sum", "scale": (largest difference, how many of the same bits, of how many)}, what is wrong)."""
    found, wrong = {}, []
    if spec["out"] in eight_bits.TYPES:
        if "block_scale" in want:
            want = {**want, "block_scale": in_storage(spec, want["block_scale"])}
        all_of = eight_bits.differences(spec, got, want, rows, allowed_of_scales(spec))
        found["y"] = all_of.steps, all_of.same, all_of.elements
        if all_of.scales:
            found["scale"] = all_of.scale_steps, all_of.same_scales, all_of.scales
        if not all_of.within:
            wrong.append(f"y or its scales are off: {all_of}")
        elif "block_scale" in want and not zero_beyond(spec, got["block_scale"], rows):
            wrong.append("what is beyond the scales is not zero")
    for name in ("y", "sum", "also", "amax"):
        if name in want and name not in found:
            off, same = ulps(got[name], want[name])
            if name in ("y", "sum"):
                found[name] = off, same, want[name].numel()
            if off > {"y": allowed_ulps(spec), "sum": 0, "also": allowed_ulps(spec), "amax": 16}[name]:
                wrong.append(f"{name} is off by {off:.3g} ulps")
    return found, wrong


def random_use(norm, rest, dice):
    """A spec of this form, and rows."""
    octave = 1 << dice.randrange(4, 14)
    columns = octave + dice.randrange(octave)
    block = fields(f"{norm}/cols=1/f32/{rest}")["block"]
    if block:
        columns = -(-columns // block) * block
    elif dice.random() < 0.5:
        columns = columns // 8 * 8
    return (f"{norm}/cols={columns}/{dice.choice(('bf16', 'bf16', 'f16', 'f32'))}/eps={dice.choice(('1e-05', '1e-06'))}/{rest}",
            dice.randrange(1, 65))


def check_projects(tool, specs, seed, device):
    """Prints the table; returns the number of specs that are off."""
    dice, failures = random.Random(seed), 0
    print(f"seed {seed}; largest difference in ulps, values with the same bits")
    cells = " ".join(f"{name:>8} {'same':>8}" for name in ("y ulps", "sum ulps", "scale"))
    print(f"{'project':31} {'spec':62} {'specs':>5} {'values':>9} {cells}")
    for project, norm, rest, formula in PROJECTS:
        worst, same, values = {}, {}, {}
        with tempfile.TemporaryDirectory() as folder:
            for number in range(specs):
                text, rows = random_use(norm, rest, dice)
                spec = fields(text)
                inputs = make(spec, rows, seed + number, device, torch.randn)
                got = run_tool(tool, text, rows, inputs, Path(folder))
                if isinstance(got, str):
                    failures += 1
                    print(f"  OFF {text} rows {rows}: {got}")
                    continue
                found, wrong = compare_outputs(spec, got, formula(inputs, spec["eps"]), rows)
                for name, (off, equal, count) in found.items():
                    worst[name] = max(worst.get(name, 0.0), off)
                    same[name] = same.get(name, 0) + equal
                    values[name] = values.get(name, 0) + count
                for what in wrong:
                    failures += 1
                    print(f"  OFF {text} rows {rows}: {what}")
        cells = [f"{worst[name]:8.2f} {same[name] / values[name]:8.2%}" if name in worst else " " * 17
                 for name in ("y", "sum", "scale")]
        print(f"{project:31} {norm + '/' + rest:62} {specs:5} {values.get('y', 0):9} {' '.join(cells)}".rstrip(), flush=True)
    print(f"{specs * len(PROJECTS)} specs of other projects, {failures} off")
    return failures


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


def check(tool, device):
    """The number of cases that are off."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed, (text, rows) in enumerate(CASES):
            problem = check_case(tool, text, rows, seed, Path(folder), device)
            if problem:
                failures += 1
                print(f"  OFF {text:58} rows {rows:>8}  {problem}")
    print(f"{len(CASES)} cases, {failures} off")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=str(Path(__file__).resolve().parent.parent / "build" / "normjit"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="of the random specs")
    parser.add_argument("--specs", type=int, default=6, help="random specs of each project")
    parser.add_argument("--only", choices=("layernorm", "projects"))
    parser.add_argument("--host", action="store_true", help="run the kernels on the CPU")
    arguments = parser.parse_args()
    if not arguments.host and not torch.cuda.is_available():
        print("no GPU that PyTorch can use; with --host the kernels run on the CPU", file=sys.stderr)
        return 3
    device, failures = "cpu" if arguments.host else "cuda", 0
    if arguments.only != "projects":
        failures += check(arguments.tool, device)
    if arguments.only != "layernorm":
        failures += check_projects(arguments.tool, arguments.specs, arguments.seed, device)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
