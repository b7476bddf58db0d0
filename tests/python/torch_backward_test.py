#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gradients of normjit.torch by backward kernels: values, which norms have one, what is asked of it, and what PyTorch
computes instead."""
import functools
import itertools
import unittest
import unittest.mock

from torch_support import (ACTIVATIONS, DTYPES, FAKE, TestCase, ThroughPython, activated, device, fake, functional, loose, main,
                           parameters, reference, torch)

from normjit import _library
from normjit.torch import (LayerNorm, NormOutputs, RMSNorm, _functional, _gradients, _operator, _problem, add_layer_norm, add_rms_norm,
                           gate_residual_modulate, gated_rms_norm, layer_norm, modulated_layer_norm, norm, replace_norms, rms_norm)
from torch.utils.checkpoint import checkpoint

TEXTS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
TYPES = {text: dtype for dtype, text in TEXTS.items()}
GATES = {"": lambda gate: gate, "silu": functional.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}


def function_of(spec, columns, rows=(5, 3), dtype=None):
    """The norm of a spec as a function of tensors, which are given, too; and the same in f64 by PyTorch's operators."""
    head, *fields = spec.split("/")
    keys = dict(field.split("=") for field in fields if "=" in field)
    own = next(TYPES[field] for field in fields if field in TYPES)
    affine = [field for field in fields if field.rstrip("1") in ("w", "wb")]
    sizes = {"x": (*rows, columns)}
    gate = next((field for field in fields if field.startswith("gate")), "")
    types = {"x": own, "residual": TYPES.get(keys.get("res"), own), "weight": TYPES.get(keys.get("w"), own),
             "gate": TYPES.get(keys.get("mod"), own)}
    modulation, _, table = next((field for field in fields if field.startswith("mod") and "=" not in field), "").partition(":")
    types.update(mod_scale=types["gate"], mod_shift=types["gate"], bias=types["weight"], mod_scale_table=types["weight"],
                 mod_shift_table=types["weight"])
    if gate:
        sizes["gate"] = (*rows, columns)
    for part in ("mod_scale",) * bool(modulation) + ("mod_shift",) * (modulation in ("mod", "mod0")):
        sizes[part] = (*rows[:1], *(1,) * len(rows[1:]), columns)  # of samples
        if table:
            sizes[part + "_table"] = (columns,)
    if "add" in fields:
        sizes["residual"] = (*rows, columns)
    if affine:
        sizes["weight"] = (columns,)
        if affine[0].startswith("wb"):
            sizes["bias"] = (columns,)
    names = list(sizes)
    tensors = [torch.randn(sizes[name], device=device).to(types[name]).requires_grad_() for name in names]

    def function(x, *rest):
        found = norm(spec, x, **dict(zip(names[1:], rest)))
        return [found.out, found.sum] if isinstance(found, NormOutputs) else [found]

    def right(*wide):
        given = dict(zip(names, wide))
        factor = GATES[gate.partition(":")[2]](given["gate"]) if gate else 1
        s = given["x"] * factor if gate.partition(":")[0] == "gate" else given["x"]
        s = s + given["residual"] if "residual" in given else s
        if "sum" in fields:  # the gradients read it as it was written: an argument of relu may be 0 only there
            s = s + (s.to(types["residual"]).double() - s).detach()
        centred = s - s.mean(-1, keepdim=True) if head == "layernorm" else s
        y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + float(keys.get("eps", 1e-5)))
        if affine:
            y = y * (given["weight"] + (1 if affine[0].endswith("1") else 0)) + given.get("bias", 0)
        if modulation:
            y = y * ((0 if "0" in modulation else 1) + given["mod_scale"] + given.get("mod_scale_table", 0))
            y = y + given.get("mod_shift", 0) + given.get("mod_shift_table", 0)
        y = float(keys.get("scale", 1)) * activated(y, next((field for field in fields if field in ACTIVATIONS), None))
        y = y * factor if gate.startswith("gateafter") else y
        return [y, s] if "sum" in fields else [y]
    return function, right, tensors


class KernelTest(TestCase):
    """One launch for all gradients, which are those of the formula in f64."""

    def check(self, spec, backward, columns=64, rows=(5, 3), **limits):
        function, right, tensors = function_of(spec, columns, rows)
        with self.subTest(spec=spec):
            with self.assert_launches(1):
                outputs = function(*tensors)
            grads = [torch.randn_like(y) for y in outputs]
            with self.assert_launches(1):
                found = torch.autograd.grad(outputs, tensors, grads)
            if FAKE:
                self.assertEqual(fake.spec, backward)
            wide = [part.detach().double().requires_grad_() for part in tensors]
            expected = torch.autograd.grad(right(*wide), wide, [grad.double() for grad in grads])
            for ours, theirs, part in zip(found, expected, tensors):
                self.assertEqual((ours.dtype, ours.shape), (part.dtype, part.shape))
                self.assert_close(ours, theirs, **limits or loose(part.dtype))

    def test_every_type(self):
        for dtype in DTYPES:
            name = TEXTS[dtype]
            limits = {"rtol": 6e-2, "atol": 8e-2} if dtype in (torch.float16, torch.bfloat16) else {}
            for head in ("layernorm", "rmsnorm"):
                for tail in ("", "/w", "/wb", "/w1", "/wb1"):
                    self.check("{}/cols=64/{}/eps=0.001{}".format(head, name, tail),
                               "{}_bwd/cols=64/{}/eps=0.001{}".format(head, name, tail), **limits)
                self.check("{}/cols=64/{}/add/sum/wb".format(head, name),
                           "{}_bwd/cols=64/{}/eps=1e-05/dsum/wb".format(head, name), **limits)

    def test_gates(self):
        tails = itertools.cycle(("", "/w", "/wb", "/w1", "/wb1/scale=-0.5"))
        for dtype, head, gate in itertools.product(
                DTYPES, ("layernorm", "rmsnorm"),
                ("gate", "gate:silu", "gate:tanh", "gateafter", "gateafter:silu", "gateafter:sigmoid")):
            tail = next(tails)
            fields = "/cols=64/{}/eps=0.5/{}{}".format(TEXTS[dtype], gate, tail)
            self.check(head + fields, head + "_bwd" + fields,
                       **({} if dtype.itemsize > 2 else {"rtol": 0.1, "atol": 0.1}))

    def test_gates_of_sums_and_other_types(self):
        limits = {"rtol": 0.1, "atol": 0.1}
        for spec, backward in (
                ("rmsnorm/cols=64/bf16/gateafter:silu/add/sum/w", "rmsnorm_bwd/cols=64/bf16/eps=1e-05/gateafter:silu/dsum/w"),
                ("rmsnorm/cols=64/bf16/gate:silu/sum/w", "rmsnorm_bwd/cols=64/bf16/eps=1e-05/gate:silu/dsum/w"),
                ("layernorm/cols=64/bf16/gate:silu/wb/gelu", "layernorm_bwd/cols=64/bf16/eps=1e-05/gate:silu/wb/gelu"),
                ("rmsnorm/cols=64/bf16/w=f32/mod=f32/gateafter:silu/w",
                 "rmsnorm_bwd/cols=64/bf16/w=f32/dw=f32/mod=f32/eps=1e-05/gateafter:silu/w")):
            self.check(spec, backward, **limits)

    def test_modulations(self):
        tails = itertools.cycle(("", "/w", "/wb", "/w1", "/wb1", "/add/sum/wb"))
        rows = itertools.cycle(((5, 3), (1, 4), (4,), (2, 3, 2), (3, 1), ()))
        for dtype, head, modulation, behind in itertools.product(
                DTYPES, ("layernorm", "rmsnorm"), ("mod", "mods", "mod0", "mods0"), ("", "/gelu/scale=-0.5")):
            tail = next(tails)
            for shape in (next(rows), next(rows)):
                self.check("{}/cols=64/{}/eps=0.5{}/{}{}".format(head, TEXTS[dtype], tail, modulation, behind),
                           "{}_bwd/cols=64/{}/eps=0.5{}{}/{}{}".format(head, TEXTS[dtype], "/dsum" * ("/sum" in tail),
                                                                       tail.replace("/add/sum", ""), modulation, behind),
                           rows=shape, **({} if dtype.itemsize > 2 else {"rtol": 0.1, "atol": 0.2}))

    def test_modulations_of_other_types_and_with_tables(self):
        """A table is added to the vectors of samples in front of the kernel, in f32 at least."""
        limits = {"rtol": 0.1, "atol": 0.2}
        for spec, backward in (
                ("layernorm/cols=64/bf16/mod=f32/mod", "layernorm_bwd/cols=64/bf16/mod=f32/eps=1e-05/mod"),
                ("layernorm/cols=64/bf16/out=f32/mod=f16/w/mods",
                 "layernorm_bwd/cols=64/bf16/out=f32/mod=f16/eps=1e-05/w/mods"),
                ("layernorm/cols=64/bf16/w=f32/add/sum/mod:table", "layernorm_bwd/cols=64/bf16/mod=f32/eps=1e-05/dsum/mod"),
                ("rmsnorm/cols=64/bf16/round=norm/w/mods0:table", "rmsnorm_bwd/cols=64/bf16/mod=f32/eps=1e-05/w/mods0"),
                ("layernorm/cols=64/f64/wb/mod:table/silu", "layernorm_bwd/cols=64/f64/eps=1e-05/wb/mod/silu")):
            self.check(spec, backward, **limits)

    def test_gated_rms_norm(self):
        x, gate = (torch.randn(5, 64, device=device, requires_grad=True) for _ in range(2))
        w, = parameters((64,), requires_grad=True)[:1]
        for options, right in (
                ({}, lambda: functional.rms_norm(x, (64,), w, 1e-5) * functional.silu(gate)),
                ({"norm_before_gate": False}, lambda: functional.rms_norm(x * functional.silu(gate), (64,), w, 1e-5))):
            for inputs in ((x, gate, w), (x, gate), (gate,), (w,), (x, w)):
                for part in (x, gate, w):
                    part.requires_grad_(any(part is one for one in inputs))
                with self.assert_launches(2):
                    found = torch.autograd.grad(gated_rms_norm(x, gate, w, **options).sin().sum(), inputs)
                if FAKE:
                    need = "" if w.requires_grad and (x.requires_grad or gate.requires_grad) else \
                        "/need=dw" if w.requires_grad else "/need=dx"
                    self.assertEqual(fake.spec, "rmsnorm_bwd/cols=64/f32/eps=1e-05/gate{}:silu/w{}".format(
                        "" if options else "after", need))
                for ours, theirs in zip(found, torch.autograd.grad(right().sin().sum(), inputs)):
                    self.assert_close(ours, theirs, **loose(torch.float32))

    def test_a_written_product_alone(self):
        """Of x * gate, without a gradient at the result."""
        x, gate = (torch.randn(5, 64, device=device, requires_grad=True) for _ in range(2))
        product = norm("rmsnorm/cols=64/f32/gate:silu/sum", x, gate=gate).sum
        found = torch.autograd.grad(product.sin().sum(), (x, gate))
        for ours, theirs in zip(found, torch.autograd.grad((x * functional.silu(gate)).sin().sum(), (x, gate))):
            self.assert_close(ours, theirs, **loose(torch.float32))

    def test_activations_and_scales(self):
        """They read a bias, whether its gradient is asked for or not."""
        tails = itertools.cycle(("", "/w", "/wb", "/w1", "/wb1", "/add/sum/wb"))
        widths = itertools.cycle(((64, (5, 3)), (37, (9,)), (1, (4,)), (130, (2, 1, 3)), (257, ())))
        for dtype, head, activation, scale in itertools.product(
                DTYPES, ("layernorm", "rmsnorm"), ACTIVATIONS, ("", "/scale=0.5", "/scale=-3")):
            if not activation and not scale:
                continue
            tail, (columns, rows), behind = next(tails), next(widths), "/" + activation if activation else ""
            self.check("{}/cols={}/{}/eps=0.5{}{}{}".format(head, columns, TEXTS[dtype], tail, behind, scale),
                       "{}_bwd/cols={}/{}/eps=0.5{}{}{}{}".format(
                           head, columns, TEXTS[dtype], "/dsum" * ("/sum" in tail), tail.replace("/add/sum", ""), behind, scale),
                       columns, rows, **{torch.float16: {"rtol": 6e-2, "atol": 8e-2}, torch.bfloat16: {"rtol": 0.1, "atol": 0.1}}.get(
                           dtype, loose(dtype)))

    def test_mixed_types(self):
        limits = {"rtol": 6e-2, "atol": 8e-2}
        for spec, backward in (
                ("rmsnorm/cols=64/bf16/w=f32/w", "rmsnorm_bwd/cols=64/bf16/w=f32/dw=f32/eps=1e-05/w"),
                ("layernorm/cols=64/f32/out=f16/wb", "layernorm_bwd/cols=64/f32/out=f16/eps=1e-05/wb"),
                ("rmsnorm/cols=64/bf16/res=f32/add/sum/w", "rmsnorm_bwd/cols=64/f32/out=bf16/w=bf16/dw=bf16/eps=1e-05/dsum/w"),
                ("rmsnorm/cols=64/bf16/res=f32/sum/w", "rmsnorm_bwd/cols=64/bf16/res=f32/eps=1e-05/dsum/w"),
                ("rmsnorm/cols=64/bf16/add/sum/round=sum+norm/w", "rmsnorm_bwd/cols=64/bf16/eps=1e-05/dsum/w"),
                ("layernorm/cols=64/bf16/w=f32/wb/gelu", "layernorm_bwd/cols=64/bf16/w=f32/dw=f32/eps=1e-05/wb/gelu"),
                ("layernorm/cols=64/f16/out=f32/wb/silu/scale=0.5", "layernorm_bwd/cols=64/f16/out=f32/eps=1e-05/wb/silu/scale=0.5"),
                ("rmsnorm/cols=64/bf16/res=f32/add/sum/wb/gelu_tanh",
                 "rmsnorm_bwd/cols=64/f32/out=bf16/w=bf16/dw=bf16/eps=1e-05/dsum/wb/gelu_tanh")):
            self.check(spec, backward, **limits)

    def test_names(self):
        x, residual = (torch.randn(5, 64, device=device, requires_grad=True) for _ in range(2))
        w, b = parameters((64,), requires_grad=True)
        for function, right, inputs in (
                (lambda: rms_norm(x, (64,), w, 1e-5), lambda: functional.rms_norm(x, (64,), w, 1e-5), (x, w)),
                (lambda: add_rms_norm(x, residual, w, 1e-5)[0], lambda: functional.rms_norm(x + residual, (64,), w, 1e-5),
                 (x, residual, w)),
                (lambda: add_layer_norm(x, residual, w, b)[0], lambda: functional.layer_norm(x + residual, (64,), w, b),
                 (x, residual, w, b)),
                (lambda: rms_norm(x, (64,), w, 1e-5, activation="gelu", scale=0.5),
                 lambda: 0.5 * functional.gelu(functional.rms_norm(x, (64,), w, 1e-5)), (x, w)),
                (lambda: add_rms_norm(x, residual, w, 1e-5, activation="relu")[0],
                 lambda: functional.rms_norm(x + residual, (64,), w, 1e-5).relu(), (x, residual, w)),
                (lambda: add_layer_norm(x, residual, w, b, activation="silu", scale=2.0)[0],
                 lambda: 2 * functional.silu(functional.layer_norm(x + residual, (64,), w, b)), (x, residual, w, b))):
            with self.assert_launches(2):
                found = torch.autograd.grad(function().sin().sum(), inputs)
            for ours, theirs in zip(found, torch.autograd.grad(right().sin().sum(), inputs)):
                self.assert_close(ours, theirs, **loose(torch.float32))

    def test_modules_with_an_activation(self):
        for norm, right in ((LayerNorm(64, activation="gelu", scale=0.5), torch.nn.LayerNorm(64)),
                            (RMSNorm(64, activation="gelu", scale=0.5), torch.nn.RMSNorm(64))):
            x, norm, right = torch.randn(5, 64, device=device, requires_grad=True), norm.to(device), right.to(device)
            with self.assert_launches(2):
                found = torch.autograd.grad(norm(x).sin().sum(), (x, *norm.parameters()))
            wanted = torch.autograd.grad((0.5 * functional.gelu(right(x))).sin().sum(), (x, *right.parameters()))
            for ours, theirs in zip(found, wanted):
                self.assert_close(ours, theirs, **loose(torch.float32))

    def test_modules(self):
        model = torch.nn.Sequential(RMSNorm(64), torch.nn.Linear(64, 64), torch.nn.RMSNorm(64)).to(device)
        x = torch.randn(5, 64, device=device)
        model[0] = torch.nn.RMSNorm(64).to(device)
        right = torch.autograd.grad(model(x).sin().sum(), list(model.parameters()))
        replace_norms(model)
        with self.assert_launches(4):
            found = torch.autograd.grad(model(x).sin().sum(), list(model.parameters()))
        for ours, theirs in zip(found, right):
            self.assert_close(ours, theirs, **loose(torch.float32))

    def test_layouts(self):
        """Rows are read where they are; what has no such address is copied."""
        whole, w = torch.randn(7, 6, 3, 8, device=device), parameters((8,), requires_grad=True)[0]
        for x in (whole[:, :4, 1], whole.permute(2, 1, 0, 3), whole[..., 0].reshape(7, 6, 3).expand(8, 7, 6, 3).permute(1, 2, 3, 0)):
            x = x.detach().requires_grad_()
            for grad in (torch.ones((), device=device).expand(x.shape), torch.randn(x.shape[::-1], device=device).permute(
                    *reversed(range(x.dim())))):
                for activation in (None, "silu"):
                    with self.assert_launches(2):
                        found = torch.autograd.grad(norm("layernorm/cols=8/f32/w" + ("/silu" if activation else ""), x, weight=w),
                                                    (x, w), grad)
                    right = torch.autograd.grad(activated(functional.layer_norm(x, (8,), w), activation), (x, w), grad)
                    for ours, theirs in zip(found, right):
                        self.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)

    def test_rows_of_several_dimensions(self):
        x, w = torch.randn(3, 4, 6, device=device, requires_grad=True), torch.randn(24, device=device, requires_grad=True)
        b = torch.randn(4, 6, device=device).t().contiguous().t().requires_grad_()  # no contiguous row
        for activation in (None, "gelu"):
            with self.assert_launches(2):
                found = torch.autograd.grad(norm("rmsnorm/cols=24/f32/wb" + ("/gelu" if activation else ""), x, weight=w,
                                                 bias=b).sin().sum(), (x, w, b))
            right = activated(functional.rms_norm(x, (4, 6), w.reshape(4, 6), 1e-5) + b, activation)
            for ours, theirs in zip(found, torch.autograd.grad(right.sin().sum(), (x, w, b))):
                self.assertEqual(ours.shape, theirs.shape)
                self.assert_close(ours, theirs, **loose(torch.float32))

    def test_no_rows(self):
        for tail in ("", "/gelu/scale=0.5"):
            x, (w, b) = torch.randn(0, 8, device=device, requires_grad=True), parameters((8,), requires_grad=True)
            with self.assert_launches(0):
                norm("layernorm/cols=8/f32/wb" + tail, x, weight=w, bias=b).sum().backward()
            self.assertEqual((x.grad.shape, w.grad.tolist(), b.grad.tolist()), (x.shape, [0.0] * 8, [0.0] * 8))

    def test_batch_invariance_is_that_of_the_call(self):
        x = torch.randn(3, 8, device=device, requires_grad=True)
        for invariant in (True, False):
            norm("rmsnorm/cols=8/f32", x, batch_invariant=invariant).sum().backward()
            if FAKE:
                self.assertEqual((fake.spec, bool(fake.batch_invariant)), ("rmsnorm_bwd/cols=8/f32/eps=1e-05", invariant))


class ModulatedTest(TestCase):
    """modulated_layer_norm: which rows share a scale and a shift, and where these are."""

    def check(self, x, scale, shift, w=None, b=None, launches=1, backward=None):
        inputs = [part for part in (x, scale, shift, w, b) if part is not None and part.requires_grad]
        y = modulated_layer_norm(x, scale, shift, w, b)
        right = functional.layer_norm(x, x.shape[-1:], w, b, 1e-6) * (1 + scale) + (0 if shift is None else shift)
        grad = torch.randn_like(y)
        with self.assert_launches(launches):
            found = torch.autograd.grad(y, inputs, grad)
        if FAKE and backward is not None:
            self.assertEqual(fake.spec, backward)
        for ours, theirs in zip(found, torch.autograd.grad(right, inputs, grad)):
            self.assertEqual((ours.dtype, ours.shape), (theirs.dtype, theirs.shape))
            self.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)

    def make(self, *shape):
        return torch.randn(shape, device=device, requires_grad=True)

    def test_rows_that_share_one(self):
        for rows, shared in (((2, 3), ((2, 1, 8), (2, 3, 8), (1, 1, 8), (1, 8), (8,))), ((1, 3), ((1, 3, 8), (3, 8), (1, 8))),
                             ((2, 3, 4), ((2, 1, 1, 8), (2, 3, 1, 8), (3, 1, 8), (4, 8), (8,))), ((2, 1, 4), ((2, 1, 1, 8), (1, 1, 8))),
                             ((5,), ((8,), (5, 8))), ((1,), ((8,), (1, 8))), ((), ((8,),))):
            for shape in shared:
                with self.subTest(rows=rows, shape=shape):
                    there = (1,) * (len(rows) + 1 - len(shape)) + shape
                    kinds = [size == 1 for size, of_x in zip(there, rows) if of_x != 1]
                    launches = int(kinds == sorted(kinds))  # else rows that lie apart share one, which is PyTorch's to sum
                    self.check(self.make(*rows, 8), self.make(*shape), self.make(*shape), launches=launches)
                    self.check(self.make(*rows, 8), self.make(*shape), None, *parameters((8,), requires_grad=True), launches=launches)

    def test_what_no_groups_of_rows_share(self):
        x = self.make(2, 3, 8)
        for scale, shift in (((2, 1, 8), (8,)), ((2, 3, 8), (2, 1, 8)), ((1, 3, 8), (1, 3, 8)), ((2, 1, 1), (2, 1, 1)),
                             ((2, 1, 8), (2, 3, 1))):
            self.check(x, self.make(*scale), self.make(*shift), launches=0)

    def test_parts_of_a_projection(self):
        """They are read where they are."""
        x, projected = self.make(2, 3, 8), self.make(2, 6 * 8)
        shift, scale = projected[:, None].chunk(6, dim=-1)[2:4]
        y = modulated_layer_norm(x, scale, shift)
        grad = torch.randn_like(y)
        with self.assert_launches(1):
            found = torch.autograd.grad(y, (x, projected), grad)
        if FAKE and _operator.kind == "compiled":
            self.assertIn(scale.data_ptr(), fake.operands[:])
        right = functional.layer_norm(x, (8,), None, None, 1e-6) * (1 + scale) + shift
        for ours, theirs in zip(found, torch.autograd.grad(right, (x, projected), grad)):
            self.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)

    def test_layouts(self):
        """What has no address is copied; an expanded row that is asked for a gradient of each is one."""
        whole, row = torch.randn(3, 4, 2, 5, 8, device=device), torch.randn(2, 1, 8, device=device)
        for x, part in (((4, 3, 2, 8), whole.transpose(0, 1)[..., 0, :]), ((3, 2, 4, 8), whole[:, :1, :, 0].transpose(1, 2)),
                        ((3, 4, 6, 8), whole[:, :, :1, 0]), ((3, 4, 8), whole[:, :, 0, 0]),
                        ((4, 3, 5, 8), whole.transpose(0, 1)[:, :, :1, 0]), ((3, 8), torch.randn(8, 3, device=device).t()), ((2, 3, 8), row.expand(2, 3, 8)),
                        ((4, 2, 3, 8), row.expand(4, 2, 1, 8)), ((2, 3, 8), row[:1].expand(2, 1, 8)), ((2, 3, 8), row[:1].expand(2, 3, 8)),
                        ((2, 3, 8), row[..., :1].expand(2, 1, 8))):
            with self.subTest(x=x, shape=part.shape, stride=part.stride()):
                self.check(self.make(*x), part.detach().requires_grad_(), part.detach().requires_grad_())

    def test_of_some_inputs(self):
        names = "x", "scale", "shift", "w", "b"
        for asked, need in ((("x",), "/need=dx"), (("scale",), "/need=dx"), (("shift",), "/need=dx"), (("w",), "/need=dw"),
                            (("b",), "/need=db"), (("w", "b"), "/need=dw+db"), (("scale", "w"), "/need=dx+dw"), (names, "")):
            inputs = dict(zip(names, (self.make(2, 3, 8), self.make(2, 1, 8), self.make(2, 1, 8), *parameters((8,), requires_grad=True))))
            for name, part in inputs.items():
                part.requires_grad_(name in asked)
            affine = "w" if need == "/need=dw" else "wb"
            self.check(*inputs.values(), backward="layernorm_bwd/cols=8/f32/eps=1e-06/{}/mod{}".format(affine, need))

    def test_rows_that_no_block_holds(self):
        self.check(self.make(2, 3, 8192), self.make(2, 1, 8192), self.make(2, 1, 8192))

    def test_no_rows(self):
        for rows in ((0, 3), (2, 0)):
            x, scale, shift, w = self.make(*rows, 8), self.make(rows[0], 1, 8), self.make(rows[0], 1, 8), self.make(8)
            with self.assert_launches(0):
                modulated_layer_norm(x, scale, shift, w).sum().backward()
            for part in (scale, shift, w):
                self.assertEqual(part.grad.tolist(), torch.zeros_like(part).tolist())

    def test_what_is_kept(self):
        x, scale, shift = self.make(2, 3, 8), self.make(2, 1, 8), self.make(2, 1, 8)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part.data_ptr()) or part, lambda part: part):
            modulated_layer_norm(x, scale, shift)
        self.assertEqual(kept, [x.data_ptr(), scale.data_ptr(), shift.data_ptr()])

    def test_checkpoints_and_autocast(self):
        x, scale, shift = self.make(2, 3, 8), self.make(2, 1, 8), self.make(2, 1, 8)
        function = lambda x: modulated_layer_norm(x.sin(), scale, shift).cos()  # noqa: E731
        right = torch.autograd.grad(function(x).sum(), (x, scale, shift))
        y = checkpoint(function, x, use_reentrant=False)
        with self.assert_launches(2), torch.autocast(device.type, torch.bfloat16):
            found = torch.autograd.grad(y.sum(), (x, scale, shift))
        for ours, theirs in zip(found, right):
            self.assert_close(ours, theirs)


def needed(affine, of_x, of_weight, of_bias):
    """What the text of a backward spec says of that."""
    there = {"dx": True, "dw": "w" in affine, "db": "wb" in affine}
    asked = {"dx": of_x, "dw": of_weight, "db": of_bias}
    need = [name for name in there if there[name] and asked[name]]
    return "" if len(need) == sum(there.values()) else "/need=" + "+".join(need)


class AskedTest(TestCase):
    """Gradients of some inputs, from those of some outputs."""

    SPEC, AFTER, ACTIVATION = "layernorm/cols=8/f32/add/sum/wb", "", None

    def tensors(self, *without):
        names = {"x": (3, 8), "residual": (3, 8), "weight": (8,), "bias": (8,)}
        return {name: torch.randn(shape, device=device, requires_grad=name not in without) for name, shape in names.items()}

    def check(self, given, outputs, backward, launches=1, need=""):
        x, *rest = given.values()
        names = [name for name, part in given.items() if part.requires_grad]
        found = norm(self.SPEC + self.AFTER, x, **dict(zip(list(given)[1:], rest)))
        s = given["x"] + given["residual"]
        right = {"out": activated(functional.layer_norm(s, (8,), given["weight"], given["bias"]), self.ACTIVATION), "sum": s}
        grads = [torch.randn(3, 8, device=device) for _ in outputs]
        inputs = [given[name] for name in names]
        with self.assert_launches(launches):
            ours = torch.autograd.grad([getattr(found, name) for name in outputs], inputs, grads, allow_unused=True)
        if FAKE and launches:
            self.assertEqual(fake.spec, backward + self.AFTER + need)
        theirs = torch.autograd.grad([right[name] for name in outputs], inputs, grads, allow_unused=True)
        for mine, wanted in zip(ours, theirs):
            self.assertEqual(mine is None, wanted is None)
            if wanted is not None:
                self.assert_close(mine, wanted, **loose(torch.float32))

    def test_of_some_outputs(self):
        self.check(self.tensors(), ["out", "sum"], "layernorm_bwd/cols=8/f32/eps=1e-05/dsum/wb")
        self.check(self.tensors(), ["out"], "layernorm_bwd/cols=8/f32/eps=1e-05/wb")
        self.check(self.tensors(), ["sum"], None, launches=0)

    def test_of_some_inputs(self):
        for without, affine in ((("x", "residual"), "wb"), (("x",), "wb"), (("bias",), "w"), (("weight",), "wb"),
                                (("weight", "bias"), "w"), (("x", "residual", "bias"), "w")):
            affine = "wb" if self.ACTIVATION else affine  # of which a bias is an argument
            tensors = self.tensors(*without)
            need = needed(affine, tensors["x"].requires_grad or tensors["residual"].requires_grad,
                          tensors["weight"].requires_grad, tensors["bias"].requires_grad)
            self.check(tensors, ["out"], "layernorm_bwd/cols=8/f32/eps=1e-05/" + affine, need=need)

    def test_gradients_of_leaves_share_no_memory(self):
        given = self.tensors()
        x, residual, w, b = given.values()
        norm(self.SPEC + self.AFTER, x, residual=residual, weight=w, bias=b).out.sin().sum().backward()
        self.assertNotEqual(x.grad.data_ptr(), residual.grad.data_ptr())

    def test_no_more_than_the_sum_is_kept(self):
        """x and residual are not needed for gradients, and may be written."""
        x, residual, w = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((3, 8), (3, 8), (8,)))
        changed = x * 1
        y, s, *_ = norm("rmsnorm/cols=8/f32/add/sum/w", changed, residual=residual, weight=w)
        changed.zero_()
        right = torch.autograd.grad(functional.rms_norm(x + residual, (8,), w, 1e-5).sin().sum(), (x, residual, w))
        for ours, theirs in zip(torch.autograd.grad(y.sin().sum(), (x, residual, w)), right):
            self.assert_close(ours, theirs, **loose(torch.float32))
        y, s, *_ = norm("rmsnorm/cols=8/f32/add/sum/w", x, residual=residual, weight=w)
        s.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.sum().backward()


class AskedBehindAnActivationTest(AskedTest):
    AFTER, ACTIVATION = "/silu", "silu"


def samples_of_operator():
    """Arguments of normjit::norm_backward."""
    def make(*shape, dtype=torch.float32):
        return torch.randn(*shape, device=device).to(dtype)

    def call(x, dims, weight, bias, dy, dsum, eps, activation, scale, layer, weight_offset, of_bias, batch_invariant, gate=None,
             place="none", function=None, of_x=True, of_weight=True, mod_scale=None, mod_shift=None, plain=False):
        return (x, dims, weight, bias, dy, dsum, gate, mod_scale, mod_shift, eps, activation, scale, _library.GATES[place],
                _library.GATE_FUNCTIONS[function], plain, layer, weight_offset, of_x, of_weight, of_bias, batch_invariant)
    half = torch.bfloat16
    none, relu, gelu, gelu_tanh, silu = (_library.ACTIVATIONS[name] for name in ACTIVATIONS)
    yield call(make(5, 8), 1, make(8), None, make(5, 8), None, 1e-5, none, 1.0, True, False, True, False)
    yield call(make(5, 8), 1, make(8), make(8), make(5, 8), make(5, 8), 1e-5, none, -0.5, False, True, True, True)
    yield call(make(5, 4, 8), 2, make(4, 8, dtype=half), None, make(5, 4, 8), None, 1e-5, silu, 1.0, True, True, False, False)
    yield call(make(5, 4, 8, dtype=half), 2, make(32), make(4, 8), make(5, 4, 8), None, 0.5, gelu, 2.0, False, False, True, False)
    yield call(make(5, 8, dtype=half), 1, None, None, make(8, 5, dtype=half).t(), make(5, 8), 1e-5, none, 1.0, True, False, False, False)
    yield call(make(8, 5).t(), 1, None, None, make(1, 8).expand(5, 8), None, 1e-5, gelu_tanh, 1.0, False, False, False, False)
    yield call(make(5, 8), 1, make(8), make(8), make(5, 8), None, 1e-5, relu, 1.0, True, False, False, False)  # reads its bias alone
    yield call(make(5, 8), 1, make(8), make(16)[::2], make(5, 8), None, 1e-5, gelu, 1.0, True, False, True, False)
    yield call(make(0, 8), 1, make(8), make(8), make(0, 8), None, 1e-5, gelu, 1.0, True, False, True, False)
    yield call(make(5, 8), 1, make(8), make(8), make(5, 8), None, -1e-3, silu, 0.5, True, False, True, False)  # no epsilon of a spec
    common = 1e-5, none, 0.5, True, False
    yield call(make(5, 8), 1, make(8), None, make(5, 8), make(5, 8), *common, False, False, make(5, 8), "gate", "silu")
    yield call(make(5, 8), 1, make(8), make(8), make(5, 8), None, *common, True, False, make(5, 8, dtype=half), "gateafter", "tanh")
    yield call(make(5, 8), 1, make(8), make(8), make(5, 8), None, *common, True, False, make(5, 8), "gateafter", "sigmoid",
               of_x=False, of_weight=False)
    yield call(make(5, 8), 1, make(8), None, make(5, 8), None, *common, False, False, of_weight=False)
    yield call(make(5, 8), 1, make(8), None, make(5, 8), make(5, 8), *common, False, False, of_x=False)
    yield call(make(5, 8), 1, None, None, make(5, 8), None, *common, False, False, of_x=False)  # nothing is left
    yield call(make(0, 8), 1, make(8), None, make(0, 8), None, *common, False, False, make(0, 8), "gate", "silu")
    x = make(2, 3, 8)
    yield call(x, 1, make(8), make(8), x, None, *common, True, False, mod_scale=make(2, 1, 8), mod_shift=make(2, 1, 8))
    yield call(x, 1, None, None, x, x, 1e-5, gelu, 0.5, False, False, False, True, mod_scale=make(8), mod_shift=make(8), plain=True)
    yield call(x, 1, None, None, x, None, 1e-5, none, 1.0, True, False, False, False, mod_scale=make(2, 3, 8, dtype=half),
               mod_shift=make(2, 3, 8, dtype=half))
    yield call(x, 2, make(24), make(24), x, None, 1e-5, gelu, 1.0, True, True, False, False, mod_scale=make(2, 3, 8), plain=True)
    yield call(x, 1, make(8), None, x, None, *common, False, False, of_x=False, mod_scale=make(2, 1, 8))
    yield call(make(2, 0, 8), 1, make(8), make(8), make(2, 0, 8), None, *common, True, False, mod_scale=make(2, 1, 8))


class ApartTest(TestCase):
    """What stands in front of a written sum has its gradients from that of the sum, which is the kernel's."""

    def check(self, spec, backward, function="", outputs=("out", "sum"), without=(), **shapes):
        tensors = {name: torch.randn(shape, device=device, requires_grad=name not in without) for name, shape in shapes.items()}
        asked = [part for part in tensors.values() if part.requires_grad]
        found = norm("layernorm/cols=8/f32" + spec, **tensors)
        s = tensors["x"] + tensors.get("in_bias", 0)
        if "gate" in tensors:
            s = s * GATES[function](tensors["gate"] + tensors.get("gate_table", 0))
        s = s + tensors.get("residual", 0)
        y = functional.layer_norm(s, (8,), tensors.get("weight"), tensors.get("bias"))
        y = y * (1 + tensors.get("mod_scale", 0)) + tensors.get("mod_shift", 0)
        right = {"out": y, "sum": s}
        grads = [torch.randn_like(s) for _ in outputs]
        with self.assert_launches(int("out" in outputs)):
            ours = torch.autograd.grad([getattr(found, name) for name in outputs], asked, grads, allow_unused=True)
        if FAKE and "out" in outputs:
            self.assertEqual(fake.spec, "layernorm_bwd/cols=8/f32/eps=1e-05" + backward)
        theirs = torch.autograd.grad([right[name] for name in outputs], asked, grads, allow_unused=True)
        for mine, wanted in zip(ours, theirs):
            self.assertEqual(mine is None, wanted is None)
            if wanted is not None:
                self.assertEqual((mine.dtype, mine.shape), (wanted.dtype, wanted.shape))
                self.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)

    def test_of_sums(self):
        x = residual = gate = (2, 3, 8)
        sample, row = (2, 1, 8), (8,)
        self.check("/inb/add/sum/wb", "/dsum/wb", x=x, in_bias=row, residual=residual, weight=row, bias=row)
        self.check("/inb/sum/w", "/dsum/w", x=x, in_bias=row, weight=row)
        for function in GATES:
            text = "/gate" + ":" * bool(function) + function
            self.check(text + "/add/sum/w", "/dsum/w", function, x=x, gate=gate, residual=residual, weight=row)
            self.check(text + ":table/sum", "/dsum", function, x=x, gate=sample, gate_table=row)
            self.check(text + ":table/inb/add/sum/mod", "/dsum/mod", function, x=x, in_bias=row, gate=sample, gate_table=row,
                       residual=(3, 8), mod_scale=sample, mod_shift=sample)
        self.check("/gate:silu/sum/mods", "/dsum/mods", "silu", x=x, gate=gate, mod_scale=sample)
        self.check("/gate:silu/sum", "/dsum", "silu", x=x, gate=sample)
        self.check("/gate:silu/sum", "/gate:silu/dsum", "silu", x=x, gate=gate)  # the kernel has both

    def test_of_some_outputs_and_inputs(self):
        shapes = {"x": (2, 3, 8), "in_bias": (8,), "gate": (2, 1, 8), "gate_table": (8,), "residual": (2, 3, 8), "weight": (8,)}
        for outputs, behind in ((("out",), "/w"), (("sum",), None), (("out", "sum"), "/dsum/w")):
            self.check("/inb/gate:tanh:table/add/sum/w", behind, "tanh", outputs, **shapes)
        for without, need in ((("x",), ""), (("gate", "gate_table"), ""), (("weight",), "/need=dx"),
                              (("x", "in_bias", "gate", "gate_table", "residual"), "/need=dw")):
            self.check("/inb/gate:tanh:table/add/sum/w", "/w" + need, "tanh", ("out",), without, **shapes)

    def test_gate_residual_modulate(self):
        def right(x, gate, residual, scale, shift):
            s = x * gate + residual
            return functional.layer_norm(s, (8,), None, None, 1e-6) * (1 + scale) + shift, s
        inputs = [torch.randn(shape, device=device, requires_grad=True)
                  for shape in ((2, 3, 8), (2, 1, 8), (2, 3, 8), (2, 1, 8), (2, 1, 8))]
        with self.assert_launches(2):
            y, s = gate_residual_modulate(*inputs)
            found = torch.autograd.grad((y.sin() + s).sum(), inputs)
        y, s = right(*inputs)
        for ours, theirs in zip(found, torch.autograd.grad((y.sin() + s).sum(), inputs)):
            self.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        with self.assert_launches(2):
            y, s = gate_residual_modulate(*[part.to(torch.bfloat16) for part in inputs])
            rounded = torch.autograd.grad((y.sin() + s).sum(), inputs)
        for ours, theirs in zip(rounded, found):
            self.assert_close(ours, theirs, rtol=0.1, atol=0.2)

    def test_no_more_than_it_takes_is_kept(self):
        x, residual, row = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((3, 8), (3, 8), (8,)))
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part.data_ptr()) or part, lambda part: part):
            made = norm("rmsnorm/cols=8/f32/inb/add/sum", x, in_bias=row, residual=residual)
        self.assertEqual(kept, [made.sum.data_ptr()])

    def test_gradients_of_any_order(self):
        inputs = [torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True)
                  for shape in ((2, 2, 6), (2, 1, 6), (2, 6), (2, 1, 6), (6,), (6,))]

        def function(x, gate, residual, scale, table, in_bias):
            return tuple(norm("layernorm/cols=6/f64/inb/gate:silu:table/add/sum/mods", x, in_bias=in_bias, gate=gate, gate_table=table,
                              residual=residual, mod_scale=scale)[:2])
        self.assertTrue(torch.autograd.gradcheck(function, inputs))
        self.assertTrue(torch.autograd.gradgradcheck(function, inputs))

    def test_a_residual_that_is_expanded(self):
        x, residual = torch.randn(2, 3, 8, device=device, requires_grad=True), torch.randn(3, 8, device=device, requires_grad=True)
        y, s, *_ = norm("rmsnorm/cols=8/f32/add/sum", x, residual=residual)
        with self.assert_launches(1):
            found = torch.autograd.grad((y.sin() + s).sum(), (x, residual))
        right = x + residual
        right = torch.autograd.grad((functional.rms_norm(right, (8,), None, 1e-5).sin() + right).sum(), (x, residual))
        for ours, theirs in zip(found, right):
            self.assert_close(ours, theirs, **loose(torch.float32))


class FormulaTest(TestCase):
    """What has no kernel, or must not take it."""

    def test_other_norms(self):
        x, part, w = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((3, 8), (3, 8), (8,)))
        for tail, given in (("/w/gelu/stats", {}), ("/w/stats", {}), ("/addafter/w", {"residual": part}),
                            ("/add/w", {"residual": part}), ("/gate/add/w", {"gate": part, "residual": part}),
                            ("/gateafter:table/w", {"gate": part, "gate_table": w}),
                            ("/gateafter/w/mods", {"gate": part, "mod_scale": part}), ("/inb/w", {"in_bias": w}), ("/gate:table/w", {"gate": part, "gate_table": w}),
                            ("/gate/w/mods", {"gate": part, "mod_scale": part})):
            with self.subTest(tail=tail):
                found = norm("layernorm/cols=8/f32" + tail, x, weight=w, **given)
                found = found.out if isinstance(found, NormOutputs) else found
                with self.assert_launches(0):
                    found.sin().sum().backward()
        with self.assert_launches(1):  # the forward
            norm("layernorm/cols=8/f32/w:rows", x, weight=part).sum().backward()
        image = torch.randn(2, 8, 3, 3, device=device, requires_grad=True)
        with self.assert_launches(1):
            norm("layernorm/cols=8/f32/w/cf", image, weight=w).sum().backward()

    def test_a_gate_that_is_expanded(self):
        x, gate = torch.randn(2, 3, 8, device=device, requires_grad=True), torch.randn(3, 8, device=device, requires_grad=True)
        with self.assert_launches(1):
            found = torch.autograd.grad(norm("rmsnorm/cols=8/f32/gate:silu", x, gate=gate).sin().sum(), (x, gate))
        right = functional.rms_norm(x * functional.silu(gate), (8,), eps=1e-5).sin().sum()
        for ours, theirs in zip(found, torch.autograd.grad(right, (x, gate))):
            self.assert_close(ours, theirs, **loose(torch.float32))

    def test_gradients_of_any_order(self):
        for spec in ("layernorm/cols=6/f64", "layernorm/cols=6/f64/wb", "rmsnorm/cols=6/f64/w1", "rmsnorm/cols=6/f64/add/sum/w",
                     "layernorm/cols=6/f64/add/sum/wb1", "rmsnorm/cols=6/f64/w=f64/add/sum/round=sum/wb",
                     "layernorm/cols=6/f64/wb/gelu", "rmsnorm/cols=6/f64/add/sum/wb1/silu/scale=0.5", "layernorm/cols=6/f64/gelu_tanh",
                     "layernorm/cols=6/f64/wb/relu/scale=-3", "rmsnorm/cols=6/f64/w/scale=2",
                     "layernorm/cols=6/f64/mod", "rmsnorm/cols=6/f64/wb1/mods0:table/gelu", "layernorm/cols=6/f64/add/sum/w/mod"):
            with self.subTest(spec=spec):
                function, _, tensors = function_of(spec, 6, rows=(3,))
                self.assertTrue(torch.autograd.gradcheck(lambda *given: tuple(function(*given)), tensors))
                self.assertTrue(torch.autograd.gradgradcheck(lambda *given: tuple(function(*given)), tensors))
                grads = [torch.randn_like(y, requires_grad=True) for y in function(*tensors)]
                outputs = function(*tensors)
                with self.assert_launches(0):
                    torch.autograd.grad(outputs, tensors, grads, create_graph=True)

    def test_pytorch_computes_what_the_kernel_does(self):
        for arguments in samples_of_operator():
            with self.subTest(arguments=[getattr(part, "shape", part) for part in arguments]):
                of_x, of_weight, of_bias = arguments[17:20]
                needed = of_x or arguments[2] is not None and (of_weight or of_bias)
                with self.assert_launches(int(arguments[0].numel() != 0 and arguments[9] > 0 and needed)):
                    found = _gradients.apply(*arguments)
                for ours, theirs in zip(found, _gradients.by_pytorch(*arguments)):
                    self.assertEqual((ours.dtype, ours.shape, ours.stride()), (theirs.dtype, theirs.shape, theirs.stride()))
                    self.assert_close(ours, theirs, **loose(ours.dtype))

    def test_torch_func(self):
        x, w = torch.randn(3, 8, device=device), torch.randn(8, device=device)
        with self.assert_launches(0):
            found = torch.func.grad(lambda x: norm("rmsnorm/cols=8/f32/w", x, weight=w).sin().sum())(x)
        right = torch.func.grad(lambda x: functional.rms_norm(x, (8,), w, 1e-5).sin().sum())(x)
        self.assert_close(found, right, **loose(torch.float32))

    def test_batched_gradients(self):
        x = torch.randn(3, 8, device=device, requires_grad=True)
        y, grads = norm("rmsnorm/cols=8/f32", x), torch.randn(4, 3, 8, device=device)
        found = torch.autograd.grad(y, x, grads, is_grads_batched=True)[0]
        right = torch.autograd.grad(functional.rms_norm(x, (8,), None, 1e-5), x, grads, is_grads_batched=True)[0]
        self.assert_close(found, right, **loose(torch.float32))

    @unittest.skipUnless(FAKE, "asks the fake to refuse")
    def test_where_there_is_no_kernel(self):
        """As in services that work from caches only. Other refusals are errors."""
        x, w = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((3, 8), (8,)))
        for status in (_library.NO_COMPILER, _library.NOT_CACHED, _library.NOT_READY):
            y = norm("rmsnorm/cols=8/f32/w", x, weight=w)
            fake.next_status = status
            found = torch.autograd.grad(y.sin().sum(), (x, w))
            right = torch.autograd.grad(functional.rms_norm(x, (8,), w, 1e-5).sin().sum(), (x, w))
            for ours, theirs in zip(found, right):
                self.assert_close(ours, theirs, **loose(torch.float32))
        y = norm("rmsnorm/cols=8/f32/w", x, weight=w)
        fake.next_status = 506  # out of memory
        with self.assertRaisesRegex(RuntimeError, "told to refuse"):
            y.sum().backward()


class LayerNormTest(TestCase):
    """layer_norm and LayerNorm."""

    def check(self, function, right, inputs, backward=None, launches=1, **limits):
        """Gradients of a function of some of the inputs, which are those in f64; the launches of the backward alone."""
        asked = [part for part in inputs if part is not None and part.requires_grad]
        y = function(*inputs)
        grad = torch.randn_like(y)
        with self.assert_launches(launches):
            found = torch.autograd.grad(y, asked, grad)
        if FAKE and backward is not None:
            self.assertEqual(fake.spec, backward)
        wide = [None if part is None else part.detach().double().requires_grad_(part.requires_grad) for part in inputs]
        expected = torch.autograd.grad(right(*wide), [part for part in wide if part is not None and part.requires_grad],
                                       grad.double())
        for ours, theirs, part in zip(found, expected, asked):
            self.assertEqual((ours.dtype, ours.shape, ours.is_contiguous()), (part.dtype, part.shape, True))
            self.assert_close(ours, theirs, **limits or loose(part.dtype))

    def inputs(self, dtype=torch.float32, affine=torch.float32, weights=2, rows=(5, 3), columns=64):
        given = [torch.randn(*rows, columns, device=device).to(dtype).requires_grad_(),
                 *parameters((columns,), affine, requires_grad=True)]
        return [part if i <= weights else None for i, part in enumerate(given)]

    def plain(self, x, w, b, **options):
        return layer_norm(x, (64,), w, b, **options)

    def right(self, x, w, b, **options):
        return reference(x, (64,), w, b, **options)

    def test_every_type(self):
        for dtype in DTYPES:
            for weights, affine in enumerate(("", "/w", "/wb")):
                self.check(self.plain, self.right, self.inputs(dtype, dtype, weights),
                           "layernorm_bwd/cols=64/{}/eps=1e-05{}".format(TEXTS[dtype], affine), rtol=6e-2, atol=8e-2)

    def test_of_some_inputs(self):
        for without, affine in (((0,), "wb"), ((1,), "wb"), ((2,), "w"), ((1, 2), "w"), ((0, 2), "w"), ((0, 1), "wb")):
            inputs = self.inputs()
            for i in without:
                inputs[i].requires_grad_(False)
            need = needed(affine, *[part.requires_grad for part in inputs])
            self.check(self.plain, self.right, inputs, "layernorm_bwd/cols=64/f32/eps=1e-05/" + affine + need)

    def test_autocast(self):
        def plain(x, w, b):
            with torch.autocast(device.type, torch.bfloat16):
                return self.plain(x, w, b)
        for dtype, affine, backward in (
                (torch.bfloat16, torch.bfloat16, "layernorm_bwd/cols=64/bf16/out=f32/eps=1e-05/wb"),
                (torch.bfloat16, torch.float32, "layernorm_bwd/cols=64/bf16/out=f32/w=f32/dw=f32/eps=1e-05/wb"),
                (torch.float32, torch.float16, "layernorm_bwd/cols=64/f32/w=f16/dw=f16/eps=1e-05/wb"),
                (torch.float64, torch.float64, "layernorm_bwd/cols=64/f64/eps=1e-05/wb")):
            self.check(plain, self.right, self.inputs(dtype, affine), backward)
        inputs = self.inputs(torch.float16, torch.float16)
        inputs[2] = inputs[2].detach().float().requires_grad_()  # a bias of another type than the weight
        self.check(plain, self.right, inputs, "layernorm_bwd/cols=64/f16/out=f32/w=f32/dw=f32/eps=1e-05/wb")

    def test_a_backward_under_autocast(self):
        inputs = self.inputs()
        y = self.plain(*inputs)
        right = torch.autograd.grad(functional.layer_norm(inputs[0], (64,), *inputs[1:]).sin().sum(), inputs)
        with torch.autocast(device.type, torch.bfloat16), self.assert_launches(1):
            found = torch.autograd.grad(y.sin().sum(), inputs)
        for ours, theirs in zip(found, right):
            self.assert_close(ours, theirs, **loose(torch.float32))

    def test_activations_and_scales(self):
        for dtype, (activation, weights) in itertools.product(DTYPES, zip(ACTIVATIONS, (2, 2, 0, 1, 2))):
            options = {"activation": activation, "scale": 1.0 if weights == 1 else 0.5}
            behind = ("/" + activation if activation else "") + ("" if weights == 1 else "/scale=0.5")
            self.check(lambda *given: self.plain(*given, **options), lambda *given: self.right(*given, **options),
                       self.inputs(dtype, dtype, weights),
                       "layernorm_bwd/cols=64/{}/eps=1e-05{}".format(TEXTS[dtype], ("", "/w", "/wb")[weights]) + behind,
                       **({} if dtype.itemsize > 2 else {"rtol": 6e-2, "atol": 8e-2}))

    def test_of_some_inputs_behind_an_activation(self):
        """A bias is an argument of all gradients."""
        for without in ((0,), (1,), (2,), (1, 2), (0, 2), (0, 1)):
            inputs = self.inputs()
            for i in without:
                inputs[i].requires_grad_(False)
            self.check(lambda *given: self.plain(*given, activation="gelu"), lambda *given: self.right(*given, activation="gelu"),
                       inputs, "layernorm_bwd/cols=64/f32/eps=1e-05/wb/gelu" + needed("wb", *[part.requires_grad for part in inputs]))

    def test_an_activation_under_autocast(self):
        def plain(x, w, b):
            with torch.autocast(device.type, torch.bfloat16):
                return self.plain(x, w, b, activation="silu", scale=0.5)
        for dtype, affine, bias, types in ((torch.bfloat16, torch.bfloat16, torch.bfloat16, "bf16/out=f32"),
                                           (torch.float16, torch.float16, torch.float32, "f16/out=f32/w=f32/dw=f32"),
                                           (torch.float32, torch.float32, torch.bfloat16, "f32")):
            inputs = self.inputs(dtype, affine)
            inputs[2] = inputs[2].detach().to(bias).requires_grad_()
            self.check(plain, lambda *given: self.right(*given, activation="silu", scale=0.5), inputs,
                       "layernorm_bwd/cols=64/{}/eps=1e-05/wb/silu/scale=0.5".format(types))

    def test_layouts(self):
        """Rows are read where they are; what has no such address is copied."""
        whole, (w, b) = torch.randn(7, 6, 3, 8, device=device), parameters((8,), requires_grad=True)
        for x in (whole[:, :4, 1], whole.permute(2, 1, 0, 3), whole[:1, :, 0].expand(7, 6, 8), whole[..., ::2].repeat(1, 1, 1, 2)):
            x = x.detach().requires_grad_()
            for grad in (torch.ones((), device=device).expand(x.shape), torch.randn(x.shape[::-1], device=device).permute(
                    *reversed(range(x.dim()))), torch.randn(*x.shape[:-1], 11, device=device)[..., 3:]):
                y = layer_norm(x, (8,), w, b)
                with self.assert_launches(1):
                    found = torch.autograd.grad(y, (x, w, b), grad)
                right = torch.autograd.grad(functional.layer_norm(x, (8,), w, b), (x, w, b), grad)
                for ours, theirs in zip(found, right):
                    self.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)

    def test_rows_of_several_dimensions(self):
        w, b = (part.reshape(1, 8, 8).detach().requires_grad_() for part in parameters((64,)))
        x = torch.randn(5, 1, 8, 8, device=device, requires_grad=True)
        self.check(lambda *given: layer_norm(given[0], (1, 8, 8), *given[1:]),
                   lambda *given: reference(given[0], (1, 8, 8), *given[1:]), [x, w, b])
        w = w.detach().transpose(1, 2).requires_grad_()  # no contiguous row; its gradient is one
        self.check(lambda *given: layer_norm(given[0], (1, 8, 8), *given[1:]),
                   lambda *given: reference(given[0], (1, 8, 8), *given[1:]), [x, w, b])

    def test_no_rows_and_no_columns(self):
        for shape in ((0, 8), (3, 0)):
            x = torch.randn(shape, device=device, requires_grad=True)
            w, b = parameters(shape[1:], requires_grad=True)
            with self.assert_launches(0):
                layer_norm(x, shape[1:], w, b).sum().backward()
            self.assertEqual(x.grad.shape, x.shape)
            self.assertEqual((w.grad.tolist(), b.grad.tolist()), ([0.0] * shape[1],) * 2)

    def test_no_more_than_x_and_the_weight_are_kept(self):
        x, w, b = self.inputs()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part.data_ptr()) or part, lambda part: part):
            y = self.plain(x, w, b)
        self.assertEqual(kept, [x.data_ptr(), w.data_ptr()])
        with torch.no_grad():
            b.zero_()
        y.sum().backward()
        del kept[:]
        with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part.data_ptr()) or part, lambda part: part):
            self.plain(x, w, b, activation="gelu")
        self.assertEqual(kept, [x.data_ptr(), w.data_ptr(), b.data_ptr()])

    def test_gradients_of_any_order(self):
        inputs = self.inputs(torch.float64, torch.float64, rows=(2,), columns=6)
        for count in (1, 2, 3):
            def function(*given):
                return layer_norm(given[0], (6,), *given[1:])
            self.assertTrue(torch.autograd.gradcheck(function, inputs[:count]))
            self.assertTrue(torch.autograd.gradgradcheck(function, inputs[:count]))
            y = function(*inputs[:count])
            with self.assert_launches(0):
                torch.autograd.grad(y.sin().sum(), inputs[:count], create_graph=True)

    def test_batched_gradients(self):
        x, w, b = inputs = self.inputs()
        grads = torch.randn(4, *x.shape, device=device)
        found, right = (torch.autograd.grad(y, inputs, grads, is_grads_batched=True)
                        for y in (self.plain(*inputs), functional.layer_norm(x, (64,), w, b)))
        for ours, theirs in zip(found, right):
            self.assert_close(ours, theirs, **loose(torch.float32))
        found = torch.autograd.functional.jacobian(lambda x: self.plain(x, w, b), x[0], vectorize=True)
        right = torch.autograd.functional.jacobian(lambda x: functional.layer_norm(x, (64,), w, b), x[0])
        self.assert_close(found, right, **loose(torch.float32))

    def test_torch_func(self):
        x, w, b = (part.detach() for part in self.inputs())
        with self.assert_launches(1):  # the forward
            found = torch.func.grad(lambda *given: self.plain(*given).sin().sum(), (0, 1, 2))(x, w, b)
        right = torch.func.grad(lambda x, w, b: functional.layer_norm(x, (64,), w, b).sin().sum(), (0, 1, 2))(x, w, b)
        for ours, theirs in zip(found, right):
            self.assert_close(ours, theirs, **loose(torch.float32))

    @unittest.skipUnless(FAKE, "asks the fake to refuse")
    def test_where_there_is_no_kernel(self):
        for status, options in itertools.product((_library.NO_COMPILER, _library.NOT_CACHED, _library.NOT_READY),
                                                 ({}, {"activation": "silu", "scale": 0.5})):
            def refused(*given):
                y = self.plain(*given, **options)
                fake.next_status = status
                return y
            right = functools.partial(self.right, **options)
            self.check(refused, right, self.inputs())
            self.check(refused, right, self.inputs(torch.bfloat16, torch.bfloat16), rtol=6e-2, atol=8e-2)
        y = self.plain(*self.inputs())
        fake.next_status = 506  # out of memory
        with self.assertRaisesRegex(RuntimeError, "told to refuse"):
            y.sum().backward()

    def test_checkpoints(self):
        inputs = self.inputs()
        for activation, reentrant in itertools.product((None, "gelu"), (False, True)):
            plain = functools.partial(self.plain, activation=activation)
            right = torch.autograd.grad(plain(inputs[0].sin(), *inputs[1:]).cos().sum(), inputs)
            for part in inputs:
                part.grad = None
            y = checkpoint(lambda x: plain(x.sin(), *inputs[1:]).cos(), inputs[0], use_reentrant=reentrant)
            with self.assert_launches(2):
                y.sum().backward()
            for part, theirs in zip(inputs, right):
                self.assert_close(part.grad, theirs)

    def test_one_step_of_an_optimizer(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)).to(device)
        x = torch.randn(16, 8, device=device)
        right = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        replace_norms(model)
        with self.assert_launches(2):
            model(x).square().mean().backward()
        for part, theirs in zip(model.parameters(), right):
            self.assert_close(part.grad, theirs, **loose(torch.float32))
        torch.optim.AdamW(model.parameters(), fused=True).step()


class LayerNormThroughPythonTest(ThroughPython, LayerNormTest):
    pass


class ProgramsTest(TestCase):
    def test_the_operators_are_sound(self):
        for arguments in samples_of_operator():
            for operator in (_gradients.apply, torch.ops.normjit.norm_backward_by_pytorch.default):
                torch.library.opcheck(operator, arguments)

    def test_operands_that_do_not_fit(self):
        x, w, gelu = torch.randn(3, 8, device=device), torch.randn(8, device=device), _library.ACTIVATIONS["gelu"]
        for given in ((x, 3, w, w, x), (x, 0, w, w, x), (x, 1, w[:4], w, x), (x, 1, w, w, x[:2]), (x, 1, w, w, x[0]),
                      (x, 1, w.long(), w, x), (x.long(), 1, w, w, x), (x, 1, w, w, x.to("meta")), (x, 1, w, w[:4], x),
                      (x, 1, w, w.half(), x), (x, 1, None, w, x), (x, 1, w, None, x)):
            rest = None, None, None, None, 1e-5, gelu, 1.0, 1, 1, False, True, False, True, True, True, False
            with self.assertRaisesRegex(RuntimeError, "normjit::norm_backward: .*(does not fit|must be)") as real:
                _gradients.apply(*given, *rest)
            with self.assertRaises(RuntimeError) as pretended, torch._subclasses.FakeTensorMode() as mode:
                _gradients.apply(*[mode.from_tensor(part) if isinstance(part, torch.Tensor) else part for part in given], *rest)
            if given[4].device == x.device:
                self.assertIn(str(real.exception), str(pretended.exception))
        for gate, place in ((x[:2], 2), (x.long(), 3), (None, 2), (x, 1), (x, 4)):
            with self.assertRaisesRegex(RuntimeError, "normjit::norm_backward: .*(does not fit|must be)"):
                _gradients.apply(x, 1, w, w, x, None, gate, None, None, 1e-5, 1, 1.0, place, 1, False, True, False, True, True,
                                 True, False)
        for gate, scale, shift in ((x, x, None), (None, x[:2], None), (None, x.long(), None), (None, x[None], None), (None, None, x),
                                   (None, x, x.half()), (None, x, x[:2]), (None, x.to("meta"), None)):
            place = 1 if gate is None else 2
            with self.assertRaisesRegex(RuntimeError, "normjit::norm_backward: mod_s.* does not fit"):
                _gradients.apply(x, 1, w, w, x, None, gate, scale, shift, 1e-5, 1, 1.0, place, 1, False, True, False, True, True,
                                 True, False)

    def test_one_graph(self):
        def function(x, residual, w):
            y, s = add_rms_norm(x, residual, w)
            return (y.sin() + s).sum()

        def activated(x, residual, w):
            y, s = add_layer_norm(x, residual, w, w, activation="gelu", scale=0.5)
            return (y.sin() + s).sum()

        def modulated(x, residual, w):
            return modulated_layer_norm(x, residual, w).sin().sum()
        inputs = [torch.randn(*shape, device=device, requires_grad=True) for shape in ((5, 64), (5, 64), (64,))]
        shared = [torch.randn(*shape, device=device, requires_grad=True) for shape in ((5, 3, 64), (5, 1, 64), (5, 1, 64))]
        for function, backend, inputs in ((function, "aot_eager", inputs), (activated, "aot_eager", inputs),
                                          (activated, "inductor", inputs), (modulated, "aot_eager", shared),
                                          (modulated, "inductor", shared)):
            torch.compiler.reset()
            right = torch.autograd.grad(function(*inputs), inputs)
            compiled = torch.compile(function, fullgraph=True, backend=backend)
            with self.assert_launches(2):
                found = torch.autograd.grad(compiled(*inputs), inputs)
            for ours, theirs in zip(found, right):
                self.assert_close(ours, theirs, **loose(torch.float32))

    def test_layer_norm_in_one_graph(self):
        model = torch.nn.Sequential(LayerNorm(64), torch.nn.Linear(64, 64),
                                    LayerNorm(64, bias=False, activation="silu", scale=0.5)).to(device)
        inputs = [torch.randn(5, 64, device=device, requires_grad=True), *model.parameters()]
        right = torch.autograd.grad(model(inputs[0]).sin().sum(), inputs)
        with unittest.mock.patch.object(_functional, "FUSED_BYTES", 0):
            for backend, dynamic in (("aot_eager", False), ("aot_eager", True), ("inductor", False)):
                torch.compiler.reset()
                compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
                with self.assert_launches(2):
                    y = compiled(inputs[0])
                with self.assert_launches(2):
                    found = torch.autograd.grad(y.sin().sum(), inputs)
                for ours, theirs in zip(found, right):
                    self.assert_close(ours, theirs, **loose(torch.float32))

    def test_columns_that_are_not_known(self):
        with unittest.mock.patch.object(_functional, "FUSED_BYTES", 0):
            torch.compiler.reset()
            compiled = torch.compile(lambda x: layer_norm(x, x.shape[-1:]), fullgraph=True, backend="aot_eager", dynamic=True)
            for shape in ((4, 16), (7, 24), (2, 40)):
                x = torch.randn(shape, device=device, requires_grad=True)
                with self.assert_launches(2):
                    found = torch.autograd.grad(compiled(x).sin().sum(), x)[0]
                right = torch.autograd.grad(functional.layer_norm(x, shape[-1:]).sin().sum(), x)[0]
                self.assert_close(found, right, **loose(torch.float32))

    def test_checkpoints(self):
        x, w = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((5, 64), (64,)))
        function = lambda x: norm("rmsnorm/cols=64/f32/w", x.sin(), weight=w).cos()  # noqa: E731
        right = torch.autograd.grad(function(x).sum(), (x, w))
        for reentrant in (False, True):
            y = checkpoint(function, x, use_reentrant=reentrant)
            if reentrant:  # which gives gradients to backward() alone
                x.grad = w.grad = None
                y.sum().backward()
                found = x.grad, w.grad
            else:
                found = torch.autograd.grad(y.sum(), (x, w))
            for ours, theirs in zip(found, right):
                self.assert_close(ours, theirs)

    def test_specs_of_gradients_are_refused(self):
        x = torch.randn(3, 8, device=device)
        for call in (lambda: norm("rmsnorm_bwd/cols=8/f32", x),
                     lambda: norm("rmsnorm_bwd/cols=8/f32", x, out=torch.empty_like(x)),
                     lambda: torch.ops.normjit.norm("layernorm_bwd/cols=8/f32/w", x, *_problem.in_order(weight=x[0]), False)):
            with self.assert_launches(0), self.assertRaisesRegex(RuntimeError, "_bwd/.* is the spec of gradients"):
                call()


if __name__ == "__main__":
    main()
