# SPDX-License-Identifier: Apache-2.0
"""Fused norms of other projects, as scripts/bench_peers.py times them. Each is optional.

A peer is what `import` finds, also in a folder and its subfolders. Of four a library in DIR/lib serves in place of the
package, so that its kernels can be built without the rest of it:

    vllm_norm.so    a PyTorch library vllm_norm with the operators rms_norm(out, x, weight, eps) and
                    fused_add_rms_norm(x, residual, weight, eps)
    apex_ln.so      Apex's extension fused_layer_norm_cuda
    fi_norm.so      C: fi_rmsnorm(y, x, weight, int rows, int columns, float eps, int pdl, int half, stream) and
                    fi_fused_add_rmsnorm(x, residual, weight, the same), over FlashInfer's launchers
    te_norm.so      C: long te_fwd(void* tensors[10], long rows, long columns, float eps, int sm_count, stream) over
                    Transformer Engine's forward kernels, bf16. Tensors: x, weight, bias, y, mean, rstd, three that are null
                    here, workspace; without a workspace it returns the bytes of one, negative without a kernel, and with
                    one 0 for success

`form_of` names the norms that peers have: rms; add_rms and add_layer, which also write the sum.
"""
import ctypes
import importlib
import importlib.util
import sys
from pathlib import Path

NAMES = ("liger", "flash-attn", "vllm", "flashinfer", "te", "apex", "quack")
COMPILED = ("liger", "flash-attn", "quack")  # when they are first called


def form_of(spec):
    """"rms", "add_rms", "add_layer", or None: of fields() of a spec text."""
    if len({spec[key] for key in ("in", "out", "w", "res")}) != 1 or spec["offset"] or spec["affine_rows"] or spec["inb"]:
        return None
    if spec["gate"] or spec["modulation"] or spec["cf"]:
        return None
    if spec["round"] or spec["stats"] or spec["activation"] or spec["scale"] != 1.0:
        return None
    return {("rmsnorm", "", False, "w"): "rms", ("rmsnorm", "add", True, "w"): "add_rms",
            ("layernorm", "add", True, "wb"): "add_layer"}.get((spec["norm"], spec["residual"], spec["sum"], spec["affine"]))


class Function:
    """y, or y and the sum, of inputs by name."""

    def __init__(self, call, in_place=False):
        self.call, self.in_place = call, in_place  # in place: it overwrites x and the residual

    def __call__(self, x, weight, residual=None, bias=None):
        return self.call(x, weight, residual, bias)


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


class FlashInfer:
    def __init__(self, folder):
        path = library(folder, "fi_norm.so")
        self.c = ctypes.CDLL(str(path)) if path else None
        self.package = None if path else importlib.import_module("flashinfer.norm")

    def function(self, form, spec, overlap):
        eps = spec["eps"]
        if spec["in"] not in ("f16", "bf16") or form == "add_layer":
            return None

        def c(name, x, *tensors):
            arguments = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
            arguments += [ctypes.c_int(x.shape[0]), ctypes.c_int(x.shape[1]), ctypes.c_float(eps), ctypes.c_int(overlap),
                          ctypes.c_int(spec["in"] == "f16"), stream()]
            if getattr(self.c, name)(*arguments) != 0:
                raise RuntimeError(f"{name} failed")

        def norm(x, w, r, b):
            if self.package:
                return (self.package.rmsnorm(x, w, eps, enable_pdl=overlap),)
            y = x.new_empty(x.shape)
            c("fi_rmsnorm", x, y, x, w)
            return (y,)

        def add(x, w, r, b):
            if self.package:
                self.package.fused_add_rmsnorm(x, r, w, eps, enable_pdl=overlap)
            else:
                c("fi_fused_add_rmsnorm", x, x, r, w)
            return x, r
        return Function(norm) if form == "rms" else Function(add, in_place=True)


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
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count

        def run(tensors, x):
            pointers = (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))
            return self.forward(pointers, ctypes.c_long(x.shape[0]), ctypes.c_long(columns), ctypes.c_float(eps),
                                ctypes.c_int(sms), stream())

        def norm(x, w, r, b):
            y, rstd = x.new_empty(x.shape), torch.empty(x.shape[0], device=x.device)
            tensors = [x, w, None, y, None, rstd, None, None, None, None]
            size = run(tensors, x)
            if size < 0:
                raise RuntimeError("there is no kernel for this width")
            tensors[-1] = torch.empty(max(1, size), dtype=torch.uint8, device=x.device)
            if run(tensors, x) != 0:
                raise RuntimeError("te_fwd failed")
            return (y,)
        return Function(norm)


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
