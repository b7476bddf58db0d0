# SPDX-License-Identifier: Apache-2.0
"""Fused norms of other projects, as scripts/bench_peers.py times them. Each is optional.

A peer is what `import` finds, also in a folder and its subfolders. Of four a library in DIR/lib serves in place of the
package, so that its kernels can be built without the rest of it:

    vllm_norm.so    a PyTorch library vllm_norm with the operators of vLLM's _C, under its names: rms_norm(out, x, weight,
                    eps), fused_add_rms_norm(x, residual, weight, eps), and those with static_fp8_quant, dynamic_per_token_quant
                    and per_block_quant
    apex_ln.so      Apex's extension fused_layer_norm_cuda
    fi_norm.so      C: fi_rmsnorm(y, x, weight, int rows, int columns, float eps, int pdl, int half, stream) and
                    fi_fused_add_rmsnorm(x, residual, weight, the same), over FlashInfer's launchers; for e4m3
                    fi_rmsnorm_quant(y, x, weight, scale, the same) and fi_fused_add_rmsnorm_quant(y, x, residual, weight,
                    scale, the same); fi_layernorm_int8_dynamic(y, scales, x, weight, bias, int rows, int columns, float eps,
                    stream), bf16 with a weight and a bias in f32
    te_norm.so      C: long te_fwd(void* tensors[10], long rows, long columns, float eps, int sm_count, stream) over
                    Transformer Engine's forward kernels, bf16. Tensors: x, weight, bias, y, mean, rstd, for e4m3 scale (a
                    factor), its inverse and amax, workspace; without a workspace it returns the bytes of one, negative
                    without a kernel, and with one 0 for success

`form_of` names the norms that peers have: rms; add_rms and add_layer, which also write the sum; and layer, in 8 bits alone.
A peer has function() for a form, or None, and quantized() for one in 8 bits.
"""
import ctypes
import importlib
import importlib.util
import sys
from pathlib import Path

NAMES = ("liger", "flash-attn", "vllm", "flashinfer", "te", "apex", "quack")
COMPILED = ("liger", "flash-attn", "quack")  # when they are first called


def form_of(spec):
    """"rms", "add_rms", "add_layer", "layer", or None: of fields() of a spec text."""
    types = {spec[key] for key in ("in", "w", "res") + (() if spec["q"] else ("out",))}
    if len(types) != 1 or spec["offset"] or spec["affine_rows"] or spec["inb"]:
        return None
    if spec["gate"] or spec["modulation"] or spec["cf"] or spec["also"] or spec["amax"]:
        return None
    if spec["round"] or spec["stats"] or spec["activation"] or spec["scale"] != 1.0:
        return None
    forms = {("rmsnorm", "", False, "w"): "rms", ("rmsnorm", "add", True, "w"): "add_rms",
             ("layernorm", "add", True, "wb"): "add_layer"}
    if spec["q"]:
        forms["layernorm", "", False, "wb"] = "layer"
    return forms.get((spec["norm"], spec["residual"], spec["sum"], spec["affine"]))


def function_of(peer, spec, overlap):
    """A peer's Function for a spec, or None."""
    form = form_of(spec)
    if form is None:
        return None
    if not spec["q"]:
        return peer.function(form, spec, overlap)
    return peer.quantized(form, spec, overlap) if hasattr(peer, "quantized") else None


class Function:
    """y, or y and the sum, of inputs by name; behind them the scales that it finds for 8 bits."""

    def __init__(self, call, in_place=False, prepare=dict):
        self.call, self.in_place = call, in_place  # in place: it overwrites x and the residual
        self.prepare = prepare  # makes of the inputs what it takes, before any time is measured

    def __call__(self, x, weight, residual=None, bias=None, tensor_scale=None):
        return self.call(x, weight, residual, bias, *(() if tensor_scale is None else (tensor_scale,)))


class Liger:
    def __init__(self, folder):
        self.norm = importlib.import_module("liger_kernel.ops.rms_norm")
        self.add = importlib.import_module("liger_kernel.ops.fused_add_rms_norm")

    def function(self, form, spec, overlap):
        eps = spec["eps"]
        if form == "rms":
            return Function(lambda x, w, r, b: self.norm.rms_norm_forward(x, w, eps, 0.0, "llama", None)[:1])
        if form == "add_rms":
            return Function(lambda x, w, r, b: self.add.fused_add_rms_norm_forward(x, r, w, eps, 0.0, "llama")[:2])
        return None


class FlashAttn:
    def __init__(self, folder):
        self.forward = importlib.import_module("flash_attn.ops.triton.layer_norm")._layer_norm_fwd

    def function(self, form, spec, overlap):
        def call(x, w, r, b):
            found = self.forward(x, w, b, spec["eps"], residual=r, is_rms_norm=form != "add_layer")
            return (found[0],) if r is None else (found[0], found[4])
        return Function(call)


class Vllm:
    def __init__(self, folder):
        import torch
        path = library(folder, "vllm_norm.so")
        if path:
            torch.ops.load_library(str(path))
            self.operators = torch.ops.vllm_norm
        else:
            importlib.import_module("vllm._C")
            self.operators = torch.ops._C

    def function(self, form, spec, overlap):
        eps = spec["eps"]

        def norm(x, w, r, b):
            y = x.new_empty(x.shape)
            self.operators.rms_norm(y, x, w, eps)
            return (y,)

        def add(x, w, r, b):
            self.operators.fused_add_rms_norm(x, r, w, eps)
            return x, r
        return {"rms": Function(norm), "add_rms": Function(add, in_place=True)}.get(form)

    def quantized(self, form, spec, overlap):
        import torch
        eps, out = spec["eps"], {"e4m3": torch.float8_e4m3fn, "s8": torch.int8}.get(spec["out"])
        if form not in ("rms", "add_rms") or out is None:
            return None

        def tensor(x, w, r, b, scale):
            y = torch.empty(x.shape, dtype=out, device=x.device)
            if r is None:
                self.operators.rms_norm_static_fp8_quant(y, x, w, scale, eps)
                return (y,)
            self.operators.fused_add_rms_norm_static_fp8_quant(y, x, r, w, scale, eps)
            return y, r

        def row(x, w, r, b):
            y, scales = torch.empty(x.shape, dtype=out, device=x.device), torch.empty(len(x), 1, device=x.device)
            self.operators.rms_norm_dynamic_per_token_quant(y, x, w, scales, eps, None, r)
            return (y, scales) if r is None else (y, r, scales)

        def block(x, w, r, b):
            y, count = torch.empty(x.shape, dtype=out, device=x.device), spec["cols"] // spec["block"]
            columns = spec["scale_layout"] == "cols"
            stored = torch.empty((count, -(-len(x) // 4) * 4) if columns else (len(x), count), device=x.device)
            scales = stored.t()[:len(x)] if columns else stored
            self.operators.rms_norm_per_block_quant(y, x, w, scales, eps, None, r, spec["block"], columns)
            return (y, stored) if r is None else (y, r, stored)
        if spec["q"] == "tensor" and spec["out"] == "e4m3" and not spec["inverse"]:
            return Function(tensor, in_place=form == "add_rms")
        if spec["q"] == "row" and not spec["upper_bound"]:
            return Function(row, in_place=form == "add_rms")
        if spec["block"] in (64, 128) and spec["scale_format"] == "f32" and spec["scale_layout"] in ("rows", "cols"):
            return Function(block, in_place=form == "add_rms")
        return None


class FlashInfer:
    def __init__(self, folder):
        path = library(folder, "fi_norm.so")
        self.c = ctypes.CDLL(str(path)) if path else None
        self.package = None if path else importlib.import_module("flashinfer.norm")

    def function(self, form, spec, overlap):
        eps = spec["eps"]
        if spec["in"] not in ("f16", "bf16") or form == "add_layer":
            return None

        def norm(x, w, r, b):
            if self.package:
                return (self.package.rmsnorm(x, w, eps, enable_pdl=overlap),)
            y = x.new_empty(x.shape)
            self.launch("fi_rmsnorm", spec, overlap, y, x, w)
            return (y,)

        def add(x, w, r, b):
            if self.package:
                self.package.fused_add_rmsnorm(x, r, w, eps, enable_pdl=overlap)
            else:
                self.launch("fi_fused_add_rmsnorm", spec, overlap, x, r, w)
            return x, r
        return Function(norm) if form == "rms" else Function(add, in_place=True)

    def launch(self, name, spec, overlap, *tensors, options=True):
        """A function in C. The first tensor has the rows; options: it has those behind eps."""
        arguments = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        arguments += [ctypes.c_int(size) for size in tensors[0].shape] + [ctypes.c_float(spec["eps"])]
        arguments += [ctypes.c_int(overlap), ctypes.c_int(spec["in"] == "f16")] if options else []
        if getattr(self.c, name)(*arguments, stream()) != 0:
            raise RuntimeError(f"{name} failed")

    def quantized(self, form, spec, overlap):
        import torch
        eps, what = spec["eps"], (form, spec["out"], spec["q"])

        def tensor(x, w, r, b, scale):
            y = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
            sums = () if r is None else (r,)
            name = "rmsnorm_quant" if r is None else "fused_add_rmsnorm_quant"
            if self.package:
                getattr(self.package, name)(y, x, *sums, w, scale, eps, enable_pdl=overlap)
            else:
                self.launch("fi_" + name, spec, overlap, y, x, *sums, w, scale)
            return y, *sums

        def layer(x, w, r, b):
            y, scales = torch.empty(x.shape, dtype=torch.int8, device=x.device), torch.empty(len(x), device=x.device)
            self.launch("fi_layernorm_int8_dynamic", spec, overlap, y, scales, x, w, b, options=False)
            return y, scales
        if spec["in"] not in ("f16", "bf16") or spec["inverse"] or spec["upper_bound"]:
            return None
        if what == ("layer", "s8", "row") and spec["in"] == "bf16" and self.c:
            return Function(layer, prepare=lambda t: {**t, "weight": t["weight"].float(), "bias": t["bias"].float()})
        if what in (("rms", "e4m3", "tensor"), ("add_rms", "e4m3", "tensor")):
            return Function(tensor, in_place=form == "add_rms")
        return None


class TransformerEngine:
    def __init__(self, folder):
        path = library(folder, "te_norm.so")
        self.forward = None
        if path:
            self.forward = ctypes.CDLL(str(path)).te_fwd
            self.forward.restype = ctypes.c_long
        else:
            self.package = importlib.import_module("transformer_engine.pytorch")

    def function(self, form, spec, overlap):
        import torch
        if form != "rms" or (self.forward and spec["in"] != "bf16"):
            return None
        eps, columns = spec["eps"], spec["cols"]
        if not self.forward:
            modules = {}

            def module(x, w, r, b):
                if w.data_ptr() not in modules:
                    made = self.package.RMSNorm(columns, eps=eps, params_dtype=x.dtype, device=x.device)
                    made.weight.data = w
                    modules[w.data_ptr()] = made
                return (modules[w.data_ptr()](x),)
            return Function(module)
        return Function(self.norm(spec))

    def norm(self, spec):
        """te_fwd with a result of x's type, or with a factor in e4m3."""
        import torch
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        besides = []

        def run(tensors, x):
            pointers = (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))
            return self.forward(pointers, ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]), ctypes.c_float(spec["eps"]),
                                ctypes.c_int(sms), stream())

        def norm(x, w, r, b, factor=None):
            y = torch.empty(x.shape, dtype=x.dtype if factor is None else torch.float8_e4m3fn, device=x.device)
            if factor is not None and not besides:  # the inverse and amax, which are no output here
                besides.extend(torch.zeros(2, 1, device=x.device))
            rstd = torch.empty(len(x), device=x.device)
            tensors = [x, w, None, y, None, rstd, factor, *(besides or (None, None)), None]
            size = run(tensors, x)
            if size < 0:
                raise RuntimeError("there is no kernel for this width")
            tensors[-1] = torch.empty(max(1, size), dtype=torch.uint8, device=x.device)
            if run(tensors, x) != 0:
                raise RuntimeError("te_fwd failed")
            return (y,)
        return norm

    def quantized(self, form, spec, overlap):
        if not self.forward or (form, spec["in"], spec["out"], spec["q"]) != ("rms", "bf16", "e4m3", "tensor"):
            return None
        if spec["inverse"]:
            return Function(self.norm(spec))
        return Function(self.norm(spec), prepare=lambda t: {**t, "tensor_scale": t["tensor_scale"].reciprocal()})


class Apex:
    def __init__(self, folder):
        path = library(folder, "apex_ln.so")
        if path:
            found = importlib.util.spec_from_file_location("apex_ln", path)
            self.extension = importlib.util.module_from_spec(found)
            found.loader.exec_module(self.extension)
        else:
            self.extension = importlib.import_module("fused_layer_norm_cuda")

    def function(self, form, spec, overlap):
        if form != "rms":
            return None
        return Function(lambda x, w, r, b: self.extension.rms_forward_affine(x, [spec["cols"]], w, spec["eps"])[:1])


class Quack:
    def __init__(self, folder):
        self.module = importlib.import_module("quack.rmsnorm")

    def function(self, form, spec, overlap):
        eps = spec["eps"]

        def layer(x, w, r, b):
            y, s = x.new_empty(x.shape), x.new_empty(x.shape)
            self.module._rmsnorm_fwd(x, w, y, b, None, None, r, s, eps, True)
            return y, s
        if form == "add_layer":
            return Function(layer)
        return Function(lambda x, w, r, b: self.module.rmsnorm_fwd(x, w, residual=r, eps=eps)[:1 if r is None else 2])


PEERS = dict(zip(NAMES, (Liger, FlashAttn, Vllm, FlashInfer, TransformerEngine, Apex, Quack)))


def stream():
    import torch
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def library(folder, name):
    """The path of DIR/lib/name, or None."""
    path = Path(folder) / "lib" / name if folder else None
    return path if path and path.exists() else None


def load(folder, names, quiet=False):
    """The peers of these names that can be loaded. Says once which ones cannot, and why."""
    if folder:
        folder = Path(folder).resolve()
        for path in (folder, *sorted(child for child in folder.glob("*") if child.is_dir())):
            if str(path) not in sys.path:
                sys.path.append(str(path))
    found, missing = {}, []
    for name in names:
        try:
            found[name] = PEERS[name](folder)
        except Exception as error:  # an import runs foreign code
            missing.append(f"{name} ({type(error).__name__}: {' '.join(str(error).split())[:120]})")
    if missing and not quiet:
        print("not timed, for they cannot be loaded: " + "; ".join(missing), file=sys.stderr, flush=True)
    return found
