#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""normjit.torch.norm and the names over it: values of every kind of spec, the bits of other projects' formulas, layouts,
outputs that are given, errors, gradients, torch.compile."""
import itertools

from torch_support import DTYPES, FAKE, TestCase, device, fake, functional, loose, main, tolerance, torch

from normjit.torch import (NormOutputs, RMSNorm, _ctypes_kernel, _formula, _norm, _problem, add_layer_norm, add_rms_norm,
                           add_rms_norm_quant, gate_residual_modulate, gated_rms_norm, layer_norm, modulated_layer_norm, norm,
                           rms_norm, rms_norm_quant)
from torch.fx.experimental.proxy_tensor import make_fx

in_order = _problem.in_order
TEXTS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
PAIRS, E2M1 = torch.float4_e2m1fn_x2, torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
OPERANDS = tuple(operand.name for operand in _problem.OPERANDS)


def rounded(value, dtype):
    return value.to(dtype).double()


def wanted(spec, x, in_bias=None, residual=None, weight=None, bias=None):
    """The outputs of a spec, by name, in f64 with the roundings that it declares and no others."""
    head, *fields = spec.split("/")
    keys = dict(field.split("=") for field in fields if "=" in field)
    types = {text: dtype for dtype, text in TEXTS.items()}
    s = x.double()
    for part in (in_bias, residual if "add" in fields else None):
        s = s if part is None else s + part.double()
    rounding = keys.get("round", "")
    sum_type = types[keys["res"]] if "res" in keys else x.dtype
    if "sum" in rounding:
        s = rounded(s, sum_type)
    mean = s.mean(-1, keepdim=True) if head == "layernorm" else torch.zeros_like(s[..., :1])
    rstd = ((s - mean).square().mean(-1, keepdim=True) + float(keys["eps"])).rsqrt()
    y = (s - mean) * rstd
    if "norm" in rounding:
        y = rounded(y, x.dtype)
    if weight is not None:
        y = y * (weight.double() + (1 if any(field[:3] in ("w1", "wb1", "w1:") for field in fields) else 0))
    if bias is not None:
        y = y + bias.double()
    for name, activation in (("relu", functional.relu), ("gelu", functional.gelu), ("silu", functional.silu),
                             ("gelu_tanh", lambda v: functional.gelu(v, approximate="tanh"))):
        y = activation(y) if name in fields else y
    y = y * float(keys.get("scale", 1))
    if "addafter" in fields:
        y = y + residual.double()
    return {"out": y, "sum": s, "mean": mean, "rstd": rstd}


def patterned(rows, columns, step, dtype):
    """Values of 8 bits, the same in every run."""
    count = torch.arange(rows * columns, device=device)
    return ((count * step % 251 - 125) / 32).reshape(rows, columns).to(dtype)


class ValuesTest(TestCase):
    def random_spec(self, columns):
        """A text, and which operands it has."""
        choose = self.random.choice
        dtype, head = choose(DTYPES), choose(("layernorm", "rmsnorm"))
        wide = torch.float64 in (dtype,)
        weight_dtype, residual_dtype = choose((dtype, torch.float32)), choose((dtype, torch.float32))
        if wide:
            weight_dtype = residual_dtype = dtype
        place = choose(("", "/add", "/addafter"))
        in_bias = choose((False, False, True))
        affine = choose(("", "/w", "/wb", "/w1", "/wb1", "/w:rows", "/wb:rows"))
        before = in_bias or place == "/add"
        text = "{}/cols={}/{}/eps={}".format(head, columns, TEXTS[dtype], choose(("1e-05", "0.25")))
        if affine or in_bias:
            text += "/w=" + TEXTS[weight_dtype]
        has_sum = before and choose((False, True))
        has_type = bool(place) or has_sum
        residual_dtype = residual_dtype if has_type else dtype
        text += "/res=" + TEXTS[residual_dtype] if has_type else ""
        text += ("/inb" if in_bias else "") + place + ("/sum" if has_sum else "")
        narrow = (torch.float16, torch.bfloat16)
        rounds = [name for name, may in (("sum", before and residual_dtype in narrow), ("norm", affine and dtype in narrow))
                  if may and choose((False, True))]
        text += "/round=" + "+".join(rounds) if rounds else ""
        text += affine + choose(("", "/relu", "/gelu", "/gelu_tanh", "/silu")) + choose(("", "/scale=-0.5"))
        text += choose(("", "/stats"))
        return text, dtype, weight_dtype, residual_dtype, in_bias, bool(place), affine

    def test_random_specs_are_those_of_f64(self):
        for _ in range(300 if FAKE else 40):  # on a GPU each compiles a kernel
            columns = self.random.choice((8, 31, 64, 129))
            text, dtype, weight_dtype, residual_dtype, in_bias, residual, affine = self.random_spec(columns)
            rows = self.random.choice(((3,), (2, 5), (2, 3, 4)))
            make = lambda *shape, of: torch.randn(*shape, device=device).to(of)  # noqa: E731
            vectors = rows if affine.endswith(":rows") else ()
            operands = {"in_bias": make(columns, of=weight_dtype) if in_bias else None,
                        "residual": make(*rows, columns, of=residual_dtype) if residual else None,
                        "weight": make(*vectors, columns, of=weight_dtype) if affine else None,
                        "bias": make(*vectors, columns, of=weight_dtype) if "b" in affine else None}
            x = make(*rows, columns, of=dtype)
            with self.subTest(spec=text, rows=rows):
                with self.assert_launches(1):
                    found = norm(text, x, **operands)
                outputs = found._asdict() if isinstance(found, NormOutputs) else {"out": found}
                right = wanted(text, x, **operands)
                for name, value in outputs.items():
                    written = {"sum": "/sum" in text, "rstd": "/stats" in text,
                               "mean": "/stats" in text and text.startswith("layer"), "out": True}
                    self.assertEqual(value is not None, written.get(name, False), name)
                    if value is not None:
                        self.assertTrue(value.is_contiguous())
                        # A rounding in the middle may go the other way, and what follows makes it larger.
                        limits = loose(value.dtype) if "round" in text else tolerance(value.dtype)
                        self.assert_close(value, right[name], **limits)

    def test_the_formula_is_the_kernel(self):
        for _ in range(100 if FAKE else 20):
            columns = self.random.choice((8, 64))
            text, dtype, weight_dtype, residual_dtype, in_bias, residual, affine = self.random_spec(columns)
            make = lambda *shape, of: torch.randn(*shape, device=device).to(of)  # noqa: E731
            operands = {"in_bias": make(columns, of=weight_dtype) if in_bias else None,
                        "residual": make(3, columns, of=residual_dtype) if residual else None,
                        "weight": make(3, columns, of=weight_dtype) if affine else None,
                        "bias": make(3, columns, of=weight_dtype) if "b" in affine else None}
            if affine and not affine.endswith(":rows"):
                operands.update({name: operands[name][0] for name in ("weight", "bias") if operands[name] is not None})
            x = make(3, columns, of=dtype)
            with self.subTest(spec=text):
                theirs = _formula.formula(_problem.problem_of(text), x, *map(operands.get, _problem.INPUTS))
                ours = norm(text, x, **operands)
                ours = [part for part in ours if part is not None] if isinstance(ours, NormOutputs) else [ours]
                self.assertEqual([(part.dtype, part.shape) for part in ours], [(part.dtype, part.shape) for part in theirs])
                for mine, right in zip(ours, theirs):
                    self.assert_close(mine, right, **loose(mine.dtype))

    def test_without_a_compiler_the_results_are_the_same(self):
        for _ in range(100 if FAKE else 20):
            columns = self.random.choice((8, 31))
            text, dtype, weight_dtype, residual_dtype, in_bias, residual, affine = self.random_spec(columns)
            make = lambda *shape, of: self.any_layout(torch.randn(*shape, device=device).to(of))  # noqa: E731
            vectors = (3,) if affine.endswith(":rows") else ()
            x = make(2, 4, 3, columns, of=dtype)
            named = {"in_bias": make(columns, of=weight_dtype) if in_bias else None,
                     "residual": make(4, 3, columns, of=residual_dtype) if residual else None,
                     "weight": make(*vectors, columns, of=weight_dtype) if affine else None,
                     "bias": make(*vectors, columns, of=weight_dtype) if "b" in affine else None}
            operands = (x, *map(named.get, _problem.INPUTS))
            with self.subTest(spec=text, strides=[part if part is None else part.stride() for part in operands]):
                number = _ctypes_kernel.add(_problem.problem_of(text), False)
                for _ in range(2):  # a plan that is made, and one that is found
                    with self.assert_launches(1):
                        theirs = _ctypes_kernel.launch_problem(number, *operands, *[None] * len(_problem.OUTPUTS))
                    found = norm(text, x, **dict(zip(_problem.INPUTS, operands[1:])))
                    ours = found if isinstance(found, NormOutputs) else (found, *[None] * (len(_problem.OUTPUTS) - 1))
                    for mine, right in zip(ours, theirs):
                        self.assertEqual(mine is None, right is None)
                        self.assertTrue(mine is None or torch.equal(mine, right))

    def any_layout(self, tensor):
        """The same values, rows at a distance, in groups, or where they cannot be read in place."""
        padded = torch.cat((tensor, tensor), -1)[..., :tensor.shape[-1]]
        spread = torch.stack((tensor, tensor), -1)[..., 0]
        groups = torch.cat((tensor, tensor))[:tensor.shape[0]] if tensor.dim() < 3 else torch.cat((tensor, tensor), -2)[..., :3, :]
        return self.random.choice((tensor, padded, spread, groups))

    def test_rows_of_several_dimensions(self):
        x, w = torch.randn(3, 4, 8, device=device), torch.randn(4, 8, device=device)
        found = norm("rmsnorm/cols=32/f32/w", x, weight=w)
        self.assert_close(found, wanted("rmsnorm/cols=32/f32/eps=1e-05/w", x.view(3, 32), weight=w.view(32))["out"].view(3, 4, 8))
        self.assert_close(norm("rmsnorm/cols=32/f32/w", x, weight=w.view(32)), found)

    def test_empty_inputs_launch_nothing(self):
        x = torch.randn(0, 8, device=device, requires_grad=True)
        with self.assert_launches(0):
            found = norm("layernorm/cols=8/f32/stats", x)
            self.assertEqual((found.out.shape, found.mean.shape), ((0, 8), (0, 1)))
            found.out.sum().backward()
        self.assertEqual(x.grad.shape, x.shape)

    def test_a_kernel_with_a_workspace(self):
        if not FAKE:
            self.skipTest("the fake tells")
        self.addCleanup(setattr, fake, "workspace_bytes", 0)
        fake.workspace_bytes = 1000
        x = torch.randn(2, 1001)  # a width that no test before has asked for
        self.assert_close(norm("rmsnorm/cols=1001/f32", x), wanted("rmsnorm/cols=1001/f32/eps=1e-05", x)["out"])
        self.assertNotIn(fake.workspace, (None, 0))


# ---- Formulas of other projects, with their roundings, on tensors of 16 bits. All sums are in f32. `near` is about 1, and
# stands for an error of the statistics.

def normalized(s, eps, near):
    return s * (torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + eps) * near)


def llama(x, w, eps, near=1.0):  # transformers; Qwen and Mistral are the same
    return w * normalized(x.float(), eps, near).to(x.dtype)


def gemma(x, w, eps, near=1.0):  # transformers
    return (normalized(x.float(), eps, near) * (1.0 + w.float())).type_as(x)


def vllm(x, residual, w, eps, near=1.0):  # its CUDA kernel: the sum is rounded, and its rounded values are measured
    s = x + residual
    return (normalized(s.float(), eps, near) * w.float()).to(x.dtype), s


def unrounded(x, residual, w, eps, near=1.0):  # FlashInfer and SGLang: the sum in f32 is measured, and stored rounded
    s = x.float() + residual.float()
    return (normalized(s, eps, near) * w.float()).to(x.dtype), s.to(x.dtype)


def liger(x, residual, w, eps, near=1.0):  # fused_add_rms_norm, casting mode "llama"
    s = x + residual
    return llama(s, w, eps, near), s


def liger_gemma(x, residual, w, eps, near=1.0):  # casting mode "gemma", offset 1
    s = x + residual
    return gemma(s, w, eps, near), s


class BitsTest(TestCase):
    """The results of formulas, bit by bit; each with the spec that has its roundings. f32 and f64 statistics differ in
    the last bits of f32, which turns the rounding of one value in some thousands."""
    SHAPE = 48, 512
    ALONE = {"/round=norm/w": llama, "/w1": gemma}
    SUMS = {"/round=sum/w": vllm, "/w": unrounded, "/round=sum+norm/w": liger, "/round=sum/w1": liger_gemma}

    def operands(self, dtype):
        rows, columns = self.SHAPE
        return (patterned(rows, columns, 7919, dtype), patterned(rows, columns, 4241, dtype) / 4,
                (patterned(1, columns, 31, dtype) / 4 + 1)[0])

    def assert_bits(self, found, formula):
        """formula(near): the result; near 1 - 2^-21 and 1 + 2^-21 bound it."""
        right = formula(1.0)
        self.assertEqual(found.dtype, right.dtype)
        same = found == right
        self.assertGreater(same.double().mean(), 0.999)
        for near in (1 - 2.0 ** -21, 1 + 2.0 ** -21):
            same |= found == formula(near)
        self.assertTrue(same.all())

    def test_norms(self):
        for dtype in (torch.float16, torch.bfloat16):
            x, _, w = self.operands(dtype)
            for tail, formula in self.ALONE.items():
                with self.subTest(tail=tail, dtype=dtype):
                    found = norm("rmsnorm/cols={}/{}/eps=1e-06{}".format(self.SHAPE[1], TEXTS[dtype], tail), x, weight=w)
                    self.assert_bits(found, lambda near: formula(x, w, 1e-6, near))
                    spec = _problem.problem_of("rmsnorm/cols={}/{}/eps=1e-06{}".format(self.SHAPE[1], TEXTS[dtype], tail))
                    self.assert_bits(_formula.formula(spec, x, *in_order(weight=w))[0],
                                     lambda near: formula(x, w, 1e-6, near))

    def test_norms_of_sums(self):
        for dtype in (torch.float16, torch.bfloat16):
            x, residual, w = self.operands(dtype)
            for tail, formula in self.SUMS.items():
                spec = "rmsnorm/cols={}/{}/eps=1e-06/add/sum{}".format(self.SHAPE[1], TEXTS[dtype], tail)
                rounding, _, weight = tail.rpartition("/")
                for found in (norm(spec, x, residual=residual, weight=w)[:2],
                              _formula.formula(_problem.problem_of(spec), x, *in_order(residual=residual, weight=w)),
                              add_rms_norm(x, residual, w, 1e-6, rounding=rounding[7:] or None, weight_offset=weight == "w1")):
                    with self.subTest(tail=tail, dtype=dtype):
                        self.assert_bits(found[0], lambda near: formula(x, residual, w, 1e-6, near)[0])
                        self.assertTrue(torch.equal(found[1], formula(x, residual, w, 1e-6)[1]))

    def test_the_formulas_differ(self):
        x, residual, w = self.operands(torch.bfloat16)
        for formulas, operands in ((self.ALONE, (x, w)), (self.SUMS, (x, residual, w))):
            for first, second in itertools.combinations(formulas.values(), 2):
                results = [formula(*operands, 1e-6) for formula in (first, second)]
                first, second = (part if torch.is_tensor(part) else part[0] for part in results)
                self.assertGreater((first != second).double().mean(), 0.02)


class LayoutTest(TestCase):
    def assert_read_in_place(self, **tensors):
        if FAKE:
            for name, tensor in tensors.items():
                self.assertEqual(fake.operands[OPERANDS.index(name)], tensor.data_ptr(), name)

    def test_heads_of_a_projection(self):
        qkv = torch.randn(2, 5, 6 * 16, device=device)
        q = qkv[..., 16:64].view(2, 5, 3, 16)
        w = torch.randn(16, device=device)
        found = norm("rmsnorm/cols=16/f32/w", q, weight=w)
        self.assert_read_in_place(x=q, weight=w)
        self.assert_close(found, wanted("rmsnorm/cols=16/f32/eps=1e-05/w", q, weight=w)["out"])

    def test_heads_in_place(self):
        qkv = torch.randn(2, 5, 6 * 16, device=device)
        q, before = qkv[..., 16:64].view(2, 5, 3, 16), qkv.clone()
        right = wanted("rmsnorm/cols=16/f32/eps=1e-05", q)["out"]
        self.assertIs(norm("rmsnorm/cols=16/f32", q, out=q), q)
        self.assert_close(qkv[..., 16:64].reshape(2, 5, 3, 16), right)
        self.assertTrue(torch.equal(qkv[..., :16], before[..., :16]) and torch.equal(qkv[..., 64:], before[..., 64:]))

    def test_weights_of_each_head(self):
        x, w, b = (torch.randn(*shape, device=device) for shape in ((2, 5, 3, 16), (3, 16), (3, 16)))
        found = norm("layernorm/cols=16/f32/wb:rows", x, weight=w, bias=b)
        self.assert_read_in_place(x=x, weight=w, bias=b)
        self.assert_close(found, wanted("layernorm/cols=16/f32/eps=1e-05/wb:rows", x, weight=w, bias=b)["out"])

    def test_a_residual_that_a_batch_shares(self):
        x, residual = torch.randn(3, 5, 16, device=device), torch.randn(5, 16, device=device)
        for shape in ((5, 16), (1, 5, 16)):
            found = norm("layernorm/cols=16/f32/add", x, residual=residual.view(shape))
            self.assert_read_in_place(residual=residual)
            self.assert_close(found, wanted("layernorm/cols=16/f32/eps=1e-05/add", x, residual=residual)["out"])

    def test_other_layouts_are_copied(self):
        for x in (torch.randn(2, 16, 5, device=device).transpose(1, 2), torch.randn(2, 3, 4, 32, device=device)[:, :2, ::2, :16],
                  torch.randn(4, 32, device=device)[:, ::2]):
            w = torch.randn(32, device=device)[::2]
            found = norm("rmsnorm/cols=16/f32/w", x, weight=w)
            self.assertTrue(found.is_contiguous())
            self.assert_close(found, wanted("rmsnorm/cols=16/f32/eps=1e-05/w", x, weight=w)["out"])

    def test_addresses_are_those_of_the_rows(self):
        base = torch.arange(4 * 6 * 8 * 10)
        for x in (base.view(4, 6, 80)[:, 1:4, :10], base.view(4, 48, 10)[::2], base.view(24, 8, 10)[:, 2:5],
                  base.view(4, 6, 8, 10)[:, :, 3], base.view(192, 10)[:1], base[:10].expand(3, 7, 10),
                  base.view(4, 6, 8, 10)[:, None, 0]):
            outer, n, inner = _problem.rows_at(x, 1)
            rows = x.reshape(-1, 10)
            for r in range(rows.shape[0]):
                self.assertEqual(x.storage_offset() + r // n * outer + r % n * inner, rows[r, 0])
        self.assertIsNone(_problem.rows_at(base.view(4, 6, 8, 10)[::2, ::2, ::3], 1))
        self.assertIsNone(_problem.rows_at(base.view(192, 10)[:, ::2], 1))

    def test_outputs_that_are_given(self):
        spec = "layernorm/cols=16/f32/add/sum/stats"
        x, residual = torch.randn(3, 16, device=device), torch.randn(3, 16, device=device)
        right = wanted(spec.replace("f32", "f32/eps=1e-05"), x, residual=residual)
        out, mean = torch.empty(3, 32, device=device)[:, :16], torch.empty(3, 1, device=device)
        found = norm(spec, x, residual=residual, out=out, mean=mean)
        self.assertTrue(found.out is out and found.mean is mean)
        for name in right:
            self.assert_close(getattr(found, name), right[name])
        found = norm(spec, x, residual=residual, out=x, sum=residual)  # as serving runtimes do
        self.assert_close(x, right["out"])
        self.assert_close(residual, right["sum"])
        self.assertTrue(found.out is x and found.sum is residual)

    def test_batch_invariance(self):
        x = torch.randn(3, 16, device=device)
        for asked in (True, False):
            self.assert_close(norm("rmsnorm/cols=16/f32", x, batch_invariant=asked),
                              wanted("rmsnorm/cols=16/f32/eps=1e-05", x)["out"])
            if FAKE:
                self.assertEqual(fake.batch_invariant, asked)
        if not FAKE:
            w = torch.randn(4096, device=device)
            many = torch.randn(4096, 4096, device=device)
            every = norm("rmsnorm/cols=4096/f32/w", many, weight=w, batch_invariant=True)
            for rows in (1, 7, 300):
                few = norm("rmsnorm/cols=4096/f32/w", many[:rows], weight=w, batch_invariant=True)
                self.assertTrue(torch.equal(few, every[:rows]))


class ErrorsTest(TestCase):
    def test_operands_that_do_not_fit(self):
        x, w = torch.randn(3, 8, device=device), torch.randn(8, device=device)
        for spec, operands, text in (
                ("rmsnorm/cols=8/f32/w", {}, "needs weight"),
                ("rmsnorm/cols=8/f32", {"weight": w}, "has no weight, but one is given"),
                ("rmsnorm/cols=8/f32/add", {"weight": w}, "needs residual"),
                ("rmsnorm/cols=7/f32", {}, r"of shape \[3, 8\], are no row of 7"),
                ("rmsnorm/cols=8/f16", {}, "x is of torch.float32; the spec says torch.float16"),
                ("rmsnorm/cols=8/f32/w", {"weight": w.half()}, "weight is of torch.float16"),
                ("rmsnorm/cols=8/f32/w", {"weight": w[:4]}, r"weight has the shape \[4\]; a row of x has \[8\]"),
                ("rmsnorm/cols=8/f32/add", {"residual": x[:2]}, r"\[2, 8\] cannot be expanded to x's \[3, 8\]"),
                ("rmsnorm/cols=8/f32/w:rows", {"weight": x.expand(2, 3, 8)}, "cannot be expanded"),
                ("rmsnorm/cols=8/f32/w", {"weight": w.to("meta")}, "weight is on meta"),
                ("rmsnorm/cols=8/f32", {"out": x[:2].clone()}, r"out has the shape \[2, 8\]"),
                ("rmsnorm/cols=8/f32", {"out": x.half()}, "out is of torch.float16"),
                ("rmsnorm/cols=8/f32", {"sum": x.clone()}, "has no sum"),
                ("rmsnorm/cols=8/f32", {"out": torch.empty(8, 3, device=device).t()}, "cannot be addressed"),
                ("layernorm/cols=8/f32/stats", {"mean": torch.empty(6, 1, device=device)[::2]}, "mean is not contiguous"),
                ("layernorm/cols=8/f32/stats", {"rstd": torch.empty(3, device=device)}, r"rstd has the shape \[3\]"),
                ("rmsnorm/cols=8/f32/nothing", {}, "nothing"), ("rmsnorm/cols=8/f32/sum", {}, "sum")):
            with self.subTest(spec=spec), self.assertRaisesRegex(RuntimeError, text), self.assert_launches(0):
                norm(spec, x, **operands)

    def test_outputs_that_are_given_have_no_gradient(self):
        x = torch.randn(3, 8, device=device, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "outputs that are given have no gradient"):
            norm("rmsnorm/cols=8/f32", x, out=torch.empty(3, 8, device=device))
        with torch.no_grad():
            norm("rmsnorm/cols=8/f32", x, out=torch.empty(3, 8, device=device))

    def test_operators_name_outputs_that_are_missing(self):
        x = torch.randn(3, 8, device=device)
        with self.assertRaisesRegex(RuntimeError, "the spec writes rstd"), self.assert_launches(0):
            torch.ops.normjit.norm_out("rmsnorm/cols=8/f32/stats", x, *in_order(), False, x, *[None] * 7)

    def test_out_of_memory_is_called_so(self):
        """For the copy of an input, and for a result."""
        x, w = torch.randn(1, device=device).expand(1 << 32, 1 << 20), torch.randn(1 << 20, device=device)
        scattered = torch.randn(1, 1, 2, device=device).expand(1 << 32, 1 << 20, 2)[..., 0]
        rows = torch.randn(1, 1 << 20, device=device).expand(1 << 32, 1 << 20)
        for given in (x, scattered, rows):
            for function in (lambda: norm("rmsnorm/cols=1048576/f32/w", given, weight=w),
                             lambda: norm("rmsnorm/cols=1048576/f32/add/w", rows, residual=given, weight=w),
                             lambda: layer_norm(given, (1 << 20,), w)):
                with self.assertRaisesRegex(RuntimeError, "^CUDA out of memory|can't allocate memory" if FAKE else
                                            "^CUDA out of memory"), self.assert_launches(0):
                    function()

    def test_what_libnormjit_says_reaches_the_caller(self):
        if not FAKE:
            self.skipTest("the fake is told")
        fake.next_status = 801
        with self.assertRaisesRegex(RuntimeError, "Call the layer once .* before the capture begins"):
            norm("rmsnorm/cols=8/f32", torch.randn(3, 8))


class GatesTest(TestCase):
    """Gates and modulations against the formula in f64, values and gradients."""
    SPECS = ("layernorm/cols={}/{}/mod", "layernorm/cols={}/{}/wb/mods0:table/silu", "rmsnorm/cols={}/{}/gateafter:tanh:table/addafter/w",
             "layernorm/cols={}/{}/inb/gate:table/add/sum/mod:table", "rmsnorm/cols={}/{}/gate:silu/sum/w/mods",
             "rmsnorm/cols={}/{}/gateafter:sigmoid", "rmsnorm/cols={}/{}/gateafter")

    @staticmethod
    def plain(text, g):
        of = lambda name: g[name] + g[name + "_table"] if name + "_table" in g else g[name]  # noqa: E731
        function = next((getattr(torch, name) if name != "silu" else torch.nn.functional.silu
                         for name in ("silu", "tanh", "sigmoid") if ":" + name in text), lambda z: z)
        s = g["x"] + g["in_bias"] if "in_bias" in g else g["x"]
        s = s * function(of("gate")) if "/gate:" in text else s
        s = s + g["residual"] if "/add/" in text else s
        centred = s - s.mean(-1, keepdim=True) if text.startswith("layernorm") else s
        y = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        y = y * g.get("weight", 1) + g.get("bias", 0)
        if "mod_scale" in g:
            y = y * (of("mod_scale") + ("mods0" not in text))
        y = y + of("mod_shift") if "mod_shift" in g else y
        y = torch.nn.functional.silu(y) if text.endswith("/silu") else y
        y = y * function(of("gate")) if "gateafter" in text else y
        y = y + g["residual"] if "addafter" in text else y
        return (y, s) if "/sum" in text else (y,)

    def operands(self, text, dtype, samples):
        problem = _problem.problem_of(text)
        shapes = {"x": (2, 3, problem.columns), "residual": (2, 3, problem.columns),
                  **dict.fromkeys(("gate", "mod_scale", "mod_shift"), (*samples, problem.columns))}
        return {name: torch.randn(shapes.get(name, (problem.columns,)), device=device, dtype=dtype)
                for name in ("x", *problem.inputs)}

    def found(self, text, given):
        found = norm(text, **given)
        return tuple(part for part in found if part is not None) if isinstance(found, NormOutputs) else (found,)

    def test_values(self):
        for spec, dtype, samples in itertools.product(self.SPECS, (torch.bfloat16, torch.float32),
                                                      ((2, 1), (2, 3), (1, 3), (3,), ())):
            text = spec.format(64, TEXTS[dtype])
            with self.subTest(spec=text, samples=samples):
                given = self.operands(text, dtype, samples)
                with self.assert_launches(1):
                    found = self.found(text, given)
                right = self.plain(text, {name: part.double() for name, part in given.items()})
                self.assertEqual(len(found), len(right))
                for value, exact in zip(found, right):
                    self.assert_close(value, exact, **loose(dtype))

    def test_gradients_are_those_of_the_formula(self):
        for spec, samples in itertools.product(self.SPECS, ((2, 1), (2, 3))):
            text = spec.format(6, "f64")
            with self.subTest(spec=text, samples=samples):
                given = self.operands(text, torch.float64, samples)
                given = {name: part.requires_grad_() for name, part in given.items()}
                grads = [torch.autograd.grad(sum((part * part).sum() for part in outputs(text, given)), list(given.values()))
                         for outputs in (self.found, self.plain)]
                for name, mine, right in zip(given, *grads):
                    self.assert_close(mine, right, rtol=1e-9, atol=1e-9)

    def test_without_a_compiler_the_results_are_the_same(self):
        for spec in self.SPECS:
            text = spec.format(64, "f32")
            given = self.operands(text, torch.float32, (2, 1))
            number = _ctypes_kernel.add(_problem.problem_of(text), False)
            with self.subTest(spec=text), self.assert_launches(1):
                theirs = _ctypes_kernel.launch_problem(number, given["x"], *map(given.get, _problem.INPUTS), *[None] * len(_problem.OUTPUTS))
            for mine, other in zip(self.found(text, given), (part for part in theirs if part is not None)):
                self.assertEqual(mine.tolist(), other.tolist())

    def test_chunks_of_a_projection_are_read_where_they_are(self):
        x = torch.randn(2, 3, 64, device=device)
        chunks = torch.randn(2, 1, 6 * 64, device=device).chunk(6, dim=-1)
        norm("layernorm/cols=64/mod", x, mod_scale=chunks[4], mod_shift=chunks[2])
        if FAKE:
            self.assertEqual(fake.operands[OPERANDS.index("mod_scale")], chunks[4].data_ptr())
            self.assertEqual(fake.operands[OPERANDS.index("mod_shift")], chunks[2].data_ptr())

    def test_thin_names(self):
        x, residual = torch.randn(2, 2, 3, 64, device=device)
        gate, scale, shift = torch.randn(3, 2, 1, 64, device=device)
        w, b = torch.randn(2, 64, device=device)
        modulated = torch.nn.functional.layer_norm(x, (64,), w, b, 1e-6) * (1 + scale) + shift
        self.assert_close(modulated_layer_norm(x, scale, shift, w, b), modulated, **loose(torch.float32))
        bare = torch.nn.functional.layer_norm(x, (64,), eps=1e-6) * (1 + scale)
        self.assert_close(modulated_layer_norm(x, scale), bare, **loose(torch.float32))
        silu = torch.nn.functional.silu(gate)
        self.assert_close(gated_rms_norm(x, gate, w), torch.nn.functional.rms_norm(x, (64,), w, 1e-5) * silu,
                          **loose(torch.float32))
        self.assert_close(gated_rms_norm(x, gate, w, norm_before_gate=False),
                          torch.nn.functional.rms_norm(x * silu, (64,), w, 1e-5), **loose(torch.float32))
        y, s = gate_residual_modulate(x, gate, residual, scale, shift)
        self.assert_close(s, x * gate + residual, **loose(torch.float32))
        self.assert_close(y, torch.nn.functional.layer_norm(x * gate + residual, (64,), eps=1e-6) * (1 + scale) + shift,
                          **loose(torch.float32))
        with self.assertRaisesRegex(RuntimeError, "scale, shift are of several types"):
            modulated_layer_norm(x, scale, shift.double())
        with self.assertRaisesRegex(RuntimeError, "not implemented for torch.int64"):
            modulated_layer_norm(x, scale.long(), shift)

    def test_programs_have_no_graph_break(self):
        x, residual = torch.randn(2, 2, 3, 64, device=device)
        gate, scale, shift = torch.randn(3, 2, 1, 64, device=device)

        def block(x, gate, residual, scale, shift):
            y, s = gate_residual_modulate(x, gate, residual, scale, shift)
            return gated_rms_norm(y, gate) + modulated_layer_norm(s, scale, shift)
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        self.assert_close(compiled(x, gate, residual, scale, shift), block(x, gate, residual, scale, shift),
                          **loose(torch.float32))


class EightBitsTest(TestCase):
    """Results of 8 bits, byte by byte: rows of 1 and -1 without an epsilon are their own norms, so that y is the weight."""
    TYPES = {torch.float8_e4m3fn: ("e4m3", 448.0), torch.float8_e5m2: ("e5m2", 57344.0), torch.int8: ("s8", 127.0)}
    COLUMNS = 512

    def nearest(self, value, dtype):
        """The bytes of an f32 tensor: the nearest number of the type's table, of two the even one."""
        if dtype == torch.int8:
            numbers, wide = torch.arange(-128.0, 128.0, dtype=torch.float64), value.cpu().double().nan_to_num(0.0)
            codes = torch.arange(-128, 128)
        else:
            numbers = E2M1 if dtype == PAIRS else torch.arange(128, dtype=torch.uint8).view(dtype).double()
            numbers, wide = numbers[numbers.isfinite()], value.cpu().double().abs()
            codes = torch.arange(len(numbers))
        wide = wide.clamp(numbers[0], numbers[-1])
        high = torch.searchsorted(numbers, wide).clamp(max=len(numbers) - 1)
        low = (high - 1).clamp(min=0)
        below, above = wide - numbers[low], numbers[high] - wide
        at = torch.where((below < above) | (below == above) & (codes[low] % 2 == 0), low, high)
        sign = value.cpu().signbit().long() << (3 if dtype == PAIRS else 7)
        found = codes[at] if dtype == torch.int8 else codes[at] | sign
        return torch.where(value.cpu().isnan(), 7 if dtype == PAIRS else -1, found % 256)  # -1: any NaN

    def bytes_of(self, y):
        """One for each column."""
        found = y.cpu().view(torch.uint8).long()
        if y.dtype == PAIRS:
            return torch.stack((found & 15, found >> 4), -1).flatten(-2)
        return found if y.dtype == torch.int8 else torch.where(y.cpu().float().isnan(), -1, found)

    def right(self, y, dtype, form, given):
        """The bytes and the scales of the rows of y, in f32."""
        largest, scales = self.TYPES[dtype][1], None
        if form.startswith("/q=tensor"):
            y = y * (given if form.endswith(":inv") else torch.ones_like(given) / given)
        elif form == "/q=row":
            floor = torch.tensor(2.0 ** -23 if dtype == torch.int8 else 1 / (512 * largest))
            scales = torch.maximum(y.abs().amax(-1, keepdim=True) / torch.tensor([largest]), floor)
            y = y * (torch.ones_like(scales) / scales) if dtype == torch.int8 else y / scales
        y = torch.where(y.isnan(), 0.0, y) if dtype == torch.int8 else y
        return self.nearest(y, dtype), scales

    def specs(self):
        for dtype, form, rounding in itertools.product(self.TYPES, ("", "/q=tensor", "/q=tensor:inv", "/q=row"), ("", "/round=y")):
            if form or not (rounding or dtype == torch.int8):
                text = "rmsnorm/cols={}/bf16/out={}/w=f32/eps=0{}/w{}"
                yield dtype, form, rounding, text.format(self.COLUMNS, self.TYPES[dtype][0], rounding, form)

    def by_all(self, text, **given):
        """The outputs of the operator, of the one by ctypes, and of the formula."""
        problem = _problem.problem_of(text)
        operands = (given["x"], *map(given.get, _problem.INPUTS))
        with self.assert_launches(1):
            found = norm(text, **given)
        yield [part for part in found if part is not None] if isinstance(found, NormOutputs) else [found]
        number = _ctypes_kernel.add(problem, False)
        for _ in range(2):
            made = _ctypes_kernel.launch_problem(number, *operands, *[None] * len(_problem.OUTPUTS))
            yield [part for part in made if part is not None]
        yield _formula.formula(problem, *operands)

    def test_bytes(self):
        signs = (torch.randint(0, 2, (4, self.COLUMNS)) * 2 - 1).float()
        w = torch.randn(self.COLUMNS) * 2.0 ** torch.randint(-14, 12, (self.COLUMNS,))
        w[::5] = torch.arange(-51.0, 52.0) / 2 ** 3  # many of them halfway between two numbers
        w[1], w[2], w[3] = 0.0, -0.0, 1e6
        for dtype, form, rounding, text in self.specs():
            given = torch.tensor([0.37])
            y = signs * w
            y = y.bfloat16().float() if rounding else y
            right, scales = self.right(y, dtype, form, given)
            operands = {"x": signs.bfloat16(), "weight": w, "tensor_scale": given if "tensor" in form else None}
            operands = {name: part.to(device) for name, part in operands.items() if part is not None}
            for at, found in enumerate(self.by_all(text, **operands)):
                with self.subTest(spec=text, by=at):
                    self.assertEqual((found[0].dtype, found[0].shape), (dtype, signs.shape))
                    self.assertEqual(self.bytes_of(found[0]).tolist(), right.tolist())
                    self.assertEqual(len(found), 1 + (scales is not None))
                    if scales is not None:
                        self.assertEqual((found[1].dtype, found[1].shape), (torch.float32, (4, 1)))
                        self.assertEqual(found[1].tolist(), scales.tolist())

    def test_rows_of_zeros_and_what_is_not_finite(self):
        x = torch.ones(5, 8, device=device)
        x[0], x[1, 3], x[4] = 0.0, torch.nan, -0.0
        w = torch.ones(8, device=device)
        w[5] = torch.inf
        for dtype, (name, largest) in self.TYPES.items():
            floor = 2.0 ** -23 if dtype == torch.int8 else 1 / (512 * largest)
            for found in self.by_all("rmsnorm/cols=8/f32/out={}/q=row".format(name), x=x):
                self.assertEqual(self.bytes_of(found[0])[0].tolist(), [0] * 8)
                self.assertEqual(found[0][4].float().tolist(), [0.0] * 8)
                if dtype != torch.int8:
                    self.assertTrue(found[0][4].float().signbit().all())
                self.assertEqual(found[1][::4].flatten().tolist(), torch.tensor([floor] * 2).tolist())
                self.assertTrue(found[1][1].isnan().all() and found[1][2:4].isfinite().all())
                self.assertEqual(self.bytes_of(found[0])[1].tolist(), [0 if dtype == torch.int8 else -1] * 8)
                self.assertEqual(found[0][2:4].float().tolist(), [[largest] * 8] * 2)
            given = torch.ones((), device=device)
            text = "rmsnorm/cols=8/f32/out={}/eps=0/w/q=tensor".format(name)
            for found in self.by_all(text, x=x[2:4] * torch.tensor([[1.0], [-1.0]], device=device), weight=w, tensor_scale=given):
                least = -128.0 if dtype == torch.int8 else -largest
                self.assertEqual(found[0].float().tolist(), [[1.0] * 5 + [largest] + [1.0] * 2, [-1.0] * 5 + [least] + [-1.0] * 2])

    def test_outputs_that_are_given(self):
        x = torch.randn(3, 2, 64, device=device).bfloat16()
        text = "rmsnorm/cols=64/bf16/out=s8/q=row"
        right = norm(text, x)
        out = torch.zeros(3, 2, 128, device=device, dtype=torch.int8)[..., :64]
        scales = torch.empty(3, 2, 1, device=device)
        found = norm(text, x, out=out, row_scale=scales)
        self.assertTrue(found.out is out and found.row_scale is scales)
        self.assertTrue(torch.equal(out, right.out) and torch.equal(scales, right.row_scale))

    def test_the_names(self):
        x, residual = torch.randn(2, 2, 3, 64, device=device).bfloat16()
        w, t = torch.randn(64, device=device).bfloat16(), torch.full((1,), 0.05, device=device)
        for dtype, (name, _) in self.TYPES.items():
            for rounding in (None, "norm+y"):
                tail = "/w/round=" + rounding if rounding else "/w"
                head = "rmsnorm/cols=64/bf16/eps=1e-06/out=" + name
                right = norm(head + tail + "/q=row", x, weight=w)
                y, scales = rms_norm_quant(x, (64,), w, 1e-6, dtype=dtype, rounding=rounding)
                self.assertEqual((y.dtype, scales.dtype, scales.shape), (dtype, torch.float32, (2, 3)))
                self.assertTrue(torch.equal(self.bytes_of(y), self.bytes_of(right.out)) and torch.equal(scales, right.row_scale[..., 0]))
                for inverse in (False, True):
                    right = norm(head + tail + "/q=tensor" + ":inv" * inverse, x, weight=w, tensor_scale=t)
                    y = rms_norm_quant(x, (64,), w, 1e-6, dtype=dtype, scale=t, inverse_scale=inverse, rounding=rounding)
                    self.assertEqual(self.bytes_of(y).tolist(), self.bytes_of(right).tolist())
                right = norm(head + tail + "/add/sum/q=row", x, residual=residual, weight=w)
                y, s, scales = add_rms_norm_quant(x, residual, w, 1e-6, dtype=dtype, rounding=rounding)
                self.assertTrue(torch.equal(self.bytes_of(y), self.bytes_of(right.out)) and torch.equal(s, right.sum))
                self.assertTrue(torch.equal(scales, right.row_scale[..., 0]))
                found, s = add_rms_norm_quant(x, residual, w, 1e-6, dtype=dtype, scale=t, rounding=rounding)
                self.assertEqual((found.dtype, s.dtype), (dtype, torch.bfloat16))
        y, scales = rms_norm_quant(x, (3, 64))
        self.assertEqual((y.dtype, scales.shape), (torch.float8_e4m3fn, (2,)))
        y = y.float() * scales[:, None, None]
        self.assert_close(y, functional.rms_norm(x.double(), (3, 64)), rtol=2.0 ** -4, atol=2.0 ** -7)

    def test_what_does_not_fit(self):
        x, t = torch.randn(3, 8, device=device), torch.ones(1, device=device)
        spec = "rmsnorm/cols=8/f32/out=e4m3/q="
        for text, call in (
                ("needs tensor_scale", lambda: norm(spec + "tensor", x)),
                ("has no tensor_scale", lambda: norm(spec + "row", x, tensor_scale=t)),
                (r"tensor_scale has the shape \[2\]; it must be one number", lambda: norm(spec + "tensor", x, tensor_scale=t.expand(2))),
                ("tensor_scale is of torch.float16", lambda: norm(spec + "tensor", x, tensor_scale=t.half())),
                ("out is of torch.int8; the spec says torch.float8_e4m3fn", lambda: norm(spec + "row", x, out=x.to(torch.int8))),
                (r"row_scale has the shape \[3\]", lambda: norm(spec + "row", x, row_scale=torch.empty(3, device=device))),
                ("x is of torch.int8", lambda: norm(spec + "row", x.to(torch.int8))),
                ("dtype is torch.float16; it must be one of torch.float8_e4m3fn, ", lambda: rms_norm_quant(x, (8,), dtype=torch.float16)),
                (r"are no row of shape \[4\]", lambda: rms_norm_quant(x, (4,))),
                ("inverse_scale needs a scale", lambda: add_rms_norm_quant(x, x, inverse_scale=True)),
                ("computed in f64", lambda: rms_norm_quant(x.double(), (8,)))):
            with self.subTest(text=text), self.assertRaisesRegex(RuntimeError, text), self.assert_launches(0):
                call()

    def test_there_is_no_gradient(self):
        x, w = torch.randn(3, 8, device=device), torch.nn.Parameter(torch.ones(8, device=device))
        for call in (lambda: rms_norm_quant(x, (8,), w), lambda: add_rms_norm_quant(x, x, w, dtype=torch.int8),
                     lambda: norm("rmsnorm/cols=8/f32/out=e4m3/w", x, weight=w)):
            with self.assertRaisesRegex(RuntimeError, "8 and 4 bits have no gradient"):
                call()
            with torch.no_grad():
                call()

    def test_programs(self):
        x, residual = torch.randn(2, 5, 64, device=device)
        w, t = torch.randn(64, device=device), torch.full((1,), 0.05, device=device)

        def function(x, residual, w, t):
            y, s, scales = add_rms_norm_quant(x, residual, w)
            return y, scales, rms_norm_quant(s, (64,), w, dtype=torch.int8, scale=t)
        right = function(x, residual, w, t)
        for backend, dynamic in (("aot_eager", False), ("aot_eager", True), ("inductor", False)):
            with self.subTest(backend=backend, dynamic=dynamic), self.assert_launches(2):
                found = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)(x, residual, w, t)
                for ours, theirs in zip(found, right):
                    self.assertEqual(ours.dtype, theirs.dtype)
                    self.assertTrue(torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8)))
            torch.compiler.reset()
        spec, given = "rmsnorm/cols=64/f32/out=s8/add/sum/w/q=row", in_order(residual=residual, weight=w)
        torch.library.opcheck(torch.ops.normjit.norm.default, (spec, x, *given, False))

    def test_by_pytorch(self):
        """Where the kernel cannot run."""
        x, t = torch.randn(4, 3, 64, device=device), torch.full((1,), 0.05, device=device)
        with self.assert_launches(0):
            found = torch.func.vmap(lambda part: norm("rmsnorm/cols=64/f32/out=s8/q=tensor", part, tensor_scale=t))(x)
        near = (found.int() - norm("rmsnorm/cols=64/f32/out=s8/q=tensor", x, tensor_scale=t).int()).abs()
        self.assertLessEqual(near.max(), 1)
        made = norm("rmsnorm/cols=64/f32/out=e5m2/q=row", x.to("meta"))
        self.assertEqual((made.out.dtype, made.row_scale.shape), (torch.float8_e5m2, (4, 3, 1)))


class BlocksTest(EightBitsTest):
    """Scales of blocks in every format and layout, a bound of rows, the result in front of its quantization, and the largest
    magnitude, byte by byte."""
    TYPES = {**EightBitsTest.TYPES, PAIRS: ("e2m1", 6.0)}
    COLUMNS = 384
    ROWS = (3, 43)  # 129: more than a tile of the layout sw

    def forms(self):
        formats = {16: ("e8m0", "e4m3"), 32: ("e8m0",), 64: ("f32", "p2", "e8m0"), 128: ("f32", "p2", "e8m0")}
        for block, some in formats.items():
            for form in some:
                for layout in ("rows", "cols") + ("cols4",) * (form == "e8m0") + ("sw",) * (form in ("e8m0", "e4m3")):
                    yield block, form, layout

    def text_of(self, block, *parts):
        return "{}".format(block) + "".join(":" + part for part in parts if part not in ("f32", "rows"))

    def quantized(self, y, dtype, block, form, given):
        """The bytes and the scales of the blocks, [..., K], in f32."""
        largest, one = torch.tensor(self.TYPES[dtype][1]), torch.ones(())
        parts = y.reshape(*y.shape[:-1], -1, block)
        most = parts.abs().amax(-1)
        if form == "e4m3":
            scales = self.numbers(self.nearest(given * (most * (one / largest)), torch.float8_e4m3fn), torch.float8_e4m3fn)
            parts = parts * torch.where(scales == 0, torch.zeros(()), given / scales).unsqueeze(-1)
        else:
            scales = torch.where(most.isnan(), most, torch.maximum(most, torch.tensor(1e-10))) / largest
            if form != "f32":
                mantissa, exponent = torch.frexp(scales)
                up = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())
                scales = torch.where(scales.isfinite(), up, scales)
            divides = form == "f32" and dtype != torch.int8
            parts = parts / scales[..., None] if divides else parts * (one / scales)[..., None]
        return self.nearest(parts.reshape(y.shape), dtype), scales

    def numbers(self, codes, dtype):
        """f32 of bytes that nearest() gives."""
        if dtype == PAIRS:
            return E2M1[codes & 7].float() * (1 - (codes >> 3) * 2)
        return torch.where(codes < 0, 0x7f, codes).to(torch.uint8).view(dtype).float()

    def laid_out(self, scales, layout, dtype):
        """What is stored, [..., K] in f32, one by one; all that is not written is 0 in every byte."""
        rows, blocks = scales.shape[:-1].numel(), scales.shape[-1]
        up = lambda number, to: -(-number // to) * to  # noqa: E731
        shape = {"rows": scales.shape, "cols": (blocks, up(rows, 4)), "cols4": (up(blocks, 4) // 4, up(rows, 4), 4),
                 "sw": (up(rows, 128) // 128, up(blocks, 4) // 4, 512)}[layout]
        stored = torch.zeros(shape, dtype=torch.uint8 if dtype != torch.float32 else torch.int32)
        r, k = torch.arange(rows)[:, None], torch.arange(blocks)[None]
        scales = scales.reshape(rows, blocks)
        at = {"rows": r * blocks + k, "cols": k * up(rows, 4) + r, "cols4": (k // 4 * up(rows, 4) + r) * 4 + k % 4,
              "sw": (r // 128 * (up(blocks, 4) // 4) + k // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + k % 4}[layout]
        if dtype == torch.float8_e8m0fnu:
            bits = torch.where(scales.isnan(), 255, torch.frexp(scales)[1] - 1 + 127).to(torch.uint8)
        else:
            bits = scales.to(dtype).view(stored.dtype)
        stored.view(-1)[at.flatten()] = bits.flatten()
        return stored.view(torch.int32).squeeze(-1) if layout == "cols4" else stored.view(dtype)

    def rows_and_weight(self):
        signs = (torch.randint(0, 2, (*self.ROWS, self.COLUMNS)) * 2 - 1).float()
        w = torch.randn(self.COLUMNS) * 2.0 ** torch.randint(-14, 12, (self.COLUMNS // 16,)).repeat_interleave(16)
        w[:16], w[16], w[17], w[32:48] = 0.0, 448.0, 448 * 127.0, 1e-12
        w[48:64], w[64:80] = torch.arange(16.0) * 448 / 4096, 2.0 ** -9
        w[96:128] = (torch.arange(32.0) - 8) / 4  # up to 6 with scales of 1, halfway between numbers of 4 bits
        return signs, w

    def test_bytes(self):
        all_signs, w = self.rows_and_weight()
        given = torch.tensor([3.7])
        stored = {"e8m0": torch.float8_e8m0fnu, "e4m3": torch.float8_e4m3fn}
        for dtype, (block, form, layout), rounding in itertools.product(self.TYPES, self.forms(), ("", "/round=y")):
            if (layout != "rows" and rounding) or (dtype == torch.float8_e5m2 and layout == "cols") or (
                    dtype == PAIRS and block > 32):
                continue
            text = "rmsnorm/cols={}/bf16/out={}/w=f32/eps=0{}/w/q={}/also=f32".format(
                self.COLUMNS, self.TYPES[dtype][0], rounding, self.text_of(block, form, layout))
            signs = all_signs if layout == "sw" else all_signs[:, :3]
            y = (signs * w).bfloat16().float() if rounding else signs * w
            right, scales = self.quantized(y, dtype, block, form, given)
            right_scales = self.laid_out(scales, layout, stored.get(form, torch.float32))
            operands = {"x": signs.bfloat16().to(device), "weight": w.to(device)}
            if form == "e4m3":
                operands["global_scale"] = given.to(device)
            for at, (out, also, block_scale) in enumerate(self.by_all(text, **operands)):
                with self.subTest(spec=text, by=at):
                    self.assertEqual((out.dtype, block_scale.dtype, block_scale.shape),
                                     (dtype, right_scales.dtype, right_scales.shape))
                    self.assertTrue(out.is_contiguous())
                    self.assertTrue(torch.equal(self.bytes_of(out), right))
                    self.assertTrue(torch.equal(also.cpu(), y))
                    self.assertTrue(torch.equal(block_scale.cpu().view(torch.uint8), right_scales.view(torch.uint8)))
                    self.assertTrue(block_scale.is_contiguous())

    def test_rows_of_zeros_and_what_is_not_finite(self):
        x = torch.ones(4, 64, device=device)
        x[0], x[1, 3] = 0.0, torch.nan
        w = torch.ones(64, device=device)
        w[40] = torch.inf
        for dtype, (name, largest) in self.TYPES.items():
            for form in ("e8m0", "e4m3"):
                text, ones = "rmsnorm/cols=64/f32/out={}/w/q=16:{}".format(name, form), torch.ones_like(w)
                given = {"global_scale": torch.full((), 100.0, device=device)} if form == "e4m3" else {}
                for at, (out, scales) in enumerate(self.by_all(text, x=x, weight=ones, **given)):
                    with self.subTest(spec=text, by=at):
                        self.assertEqual(self.bytes_of(out)[0].tolist(), [0] * 64)
                        self.assertTrue(scales[1].float().isnan().all() and scales[2:].float().isfinite().all())
                        self.assertEqual(self.bytes_of(out)[1].tolist(), [{torch.int8: 0, PAIRS: 7}.get(dtype, -1)] * 64)
                for at, (out, scales) in enumerate(self.by_all(text + "/eps=0", x=x[2:], weight=w, **given)):
                    with self.subTest(spec=text, by=at, infinite=True):
                        self.assertEqual(scales[:, 2].float().tolist(), [2.0 ** 127 if form == "e8m0" else 448.0] * 2)
                        self.assertEqual(self.numbers(self.bytes_of(out), dtype)[:, 40].tolist(), [largest] * 2)

    def test_bounds_of_rows(self):
        signs, w = self.rows_and_weight()
        for bound in (1e-3, 30.0, 1e9):
            bound = torch.tensor(bound)
            most = torch.minimum(w.abs().max(), bound) / 448
            scale = torch.maximum(most, torch.tensor(1 / (512 * 448.0)))
            text = "rmsnorm/cols={}/bf16/out=e4m3/w=f32/eps=0/w/q=row:ub".format(self.COLUMNS)
            operands = {"x": signs.bfloat16().to(device), "weight": w.to(device), "upper_bound": bound.to(device)}
            for at, (out, row_scale) in enumerate(self.by_all(text, **operands)):
                with self.subTest(bound=bound, by=at):
                    self.assertEqual(row_scale.shape, (*self.ROWS, 1))
                    self.assertTrue((row_scale.cpu() == scale).all())
                    self.assertTrue(torch.equal(self.bytes_of(out), self.nearest(signs * w / scale, torch.float8_e4m3fn)))

    def test_the_largest_magnitude(self):
        signs, w = self.rows_and_weight()
        t = torch.tensor(0.37)
        for text, dtype in (("/out=e4m3/w/q=tensor", None), ("/out=s8/round=y/w/q=tensor:inv", torch.bfloat16),
                            ("/out=e5m2/w", None), ("/out=f32/w", None), ("/out=f16/w", torch.float16), ("/w", torch.bfloat16)):
            for amount, right in ((1.0, w.abs().max()), (torch.nan, torch.tensor(torch.nan))):
                weight = w.clone()
                weight[100] = weight[100] * amount
                right = right if dtype is None else right.to(dtype).float()
                text_ = "rmsnorm/cols={}/bf16/w=f32/eps=0/amax{}".format(self.COLUMNS, text)
                operands = {"x": signs.bfloat16().to(device), "weight": weight.to(device)}
                if "q=tensor" in text:
                    operands["tensor_scale"] = t.to(device)
                for at, (_, amax) in enumerate(self.by_all(text_, **operands)):
                    with self.subTest(spec=text_, by=at, right=right):
                        self.assertEqual((amax.dtype, amax.shape), (torch.float32, ()))
                        self.assertTrue(amax.cpu() == right or amax.isnan() and right.isnan())

    def test_outputs_that_are_given(self):
        x = torch.randn(130, 2, 64, device=device).bfloat16()
        for layout, shape, dtype in (("e8m0", (130, 2, 2), torch.float8_e8m0fnu), ("e8m0:cols", (2, 260), torch.float8_e8m0fnu),
                                     ("e8m0:cols4", (1, 260), torch.int32), ("e8m0:sw", (3, 1, 512), torch.float8_e8m0fnu)):
            text = "rmsnorm/cols=64/bf16/out=e4m3/q=32:{}/also=bf16".format(layout)
            right = norm(text, x)
            scales = torch.full((*shape, dtype.itemsize), 7, device=device, dtype=torch.uint8).view(dtype).squeeze(-1)
            also = torch.zeros(130, 2, 128, device=device, dtype=torch.bfloat16)[..., :64]
            with self.assert_launches(1):
                found = norm(text, x, block_scale=scales, also=also)
            self.assertTrue(found.block_scale is scales and found.also is also)
            self.assertTrue(torch.equal(also, right.also))
            self.assertTrue(torch.equal(scales.view(torch.uint8), right.block_scale.view(torch.uint8)))
        signs, text = x.sign(), "rmsnorm/cols=64/bf16/eps=0/out=e2m1/q=32:e8m0"
        out = torch.zeros(130, 2, 64, device=device, dtype=torch.uint8).view(PAIRS)
        with self.assert_launches(1):
            found = norm(text, signs, out=out[..., :32])
        self.assertTrue(torch.equal(self.bytes_of(out[..., :32]), self.bytes_of(norm(text, signs).out)))
        self.assertFalse(out[..., 32:].view(torch.uint8).any())
        again = torch.zeros_like(out.view(torch.uint8)).view(PAIRS)
        outputs = [again[..., :32] if name == "out" else found.block_scale if name == "block_scale" else None
                   for name in _problem.OUTPUTS]
        _norm._by_pytorch_out(text, signs, *in_order(), False, *outputs)
        self.assertTrue(torch.equal(self.bytes_of(again), self.bytes_of(out)))
        amax = torch.zeros(1, device=device)  # or no dimensions
        found = norm("rmsnorm/cols=64/bf16/amax", x, amax=amax)
        self.assertTrue(found.amax is amax and amax == found.out.float().abs().max())

    def test_empty_inputs_launch_nothing(self):
        x = torch.empty(0, 3, 64, device=device)
        with self.assert_launches(0):
            for layout, shape in (("rows", (0, 3, 2)), ("cols", (2, 0)), ("cols4", (1, 0)), ("sw", (0, 1, 512))):
                text = "rmsnorm/cols=64/f32/out=e4m3/q=" + self.text_of(32, "e8m0", layout)
                self.assertEqual([found[1].shape for found in self.by_all(text, x=x)], [shape] * 4)
            amax = torch.ones((), device=device)
            self.assertEqual(norm("rmsnorm/cols=64/f32/amax", x, amax=amax).amax, 0)
            self.assertEqual([found[1].item() for found in self.by_all("rmsnorm/cols=64/f32/amax", x=x)], [0.0] * 4)

    def by_all(self, text, **given):
        if given["x"].numel() != 0:
            yield from super().by_all(text, **given)
            return
        problem = _problem.problem_of(text)
        operands = (given["x"], *map(given.get, _problem.INPUTS))
        yield [part for part in norm(text, **given) if part is not None]
        made = _ctypes_kernel.launch_problem(_ctypes_kernel.add(problem, False), *operands, *[None] * len(_problem.OUTPUTS))
        yield [part for part in made if part is not None]
        yield _formula.formula(problem, *operands)
        yield [part for part in torch.ops.normjit.norm(text, *operands, False)]

    def test_the_names(self):
        x, residual = torch.randn(2, 2, 3, 128, device=device).bfloat16()
        w, t = torch.randn(128, device=device).bfloat16(), torch.full((1,), 50.0, device=device)
        head = "rmsnorm/cols=128/bf16/eps=1e-06/out="
        bits = lambda tensors: [part.contiguous().view(torch.uint8).tolist() for part in tensors]  # noqa: E731
        for text, keys in (("e4m3/w/q=128", {"block": 128}),
                           ("s8/w/q=64:p2:cols", {"block": 64, "scale_format": "p2", "scale_layout": "cols"}),
                           ("e5m2/w/q=32:e8m0", {"block": 32}), ("e4m3/w/q=32:e8m0:sw", {"block": 32, "scale_layout": "sw"}),
                           ("e4m3/w/q=16:e4m3:sw", {"block": 16, "global_scale": t, "scale_layout": "sw"}),
                           ("e2m1/w/q=16:e4m3:sw", {"block": 16, "global_scale": t, "scale_layout": "sw"}),
                           ("e2m1/w/q=32:e8m0/round=norm+y", {"block": 32, "rounding": "norm+y"}),
                           ("e4m3/w/q=128:e8m0:cols4/round=norm+y",
                            {"block": 128, "scale_format": "e8m0", "scale_layout": "cols4", "rounding": "norm+y"}),
                           ("e4m3/w/q=row:ub", {"upper_bound": t})):
            inputs = {"global_scale": keys.get("global_scale"), "upper_bound": keys.get("upper_bound")}
            keys["dtype"] = {name: dtype for dtype, (name, _) in self.TYPES.items()}[text.split("/")[0]]
            with self.subTest(spec=text):
                for also in (None, torch.float32):
                    right = norm(head + text + ("" if also is None else "/also=f32"), x, weight=w, **inputs)
                    right_scales = right.block_scale if "block" in keys else right.row_scale[..., 0]
                    self.assertEqual(bits(rms_norm_quant(x, (128,), w, 1e-6, also=also, **keys)),
                                     bits((right.out, right_scales) + (() if also is None else (right.also,))))
                right = norm(head + text + "/also=bf16/add/sum", x, residual=residual, weight=w, **inputs)
                right_scales = right.block_scale if "block" in keys else right.row_scale[..., 0]
                found = add_rms_norm_quant(x, residual, w, 1e-6, also=torch.bfloat16, **keys)
                self.assertEqual(bits(found), bits((right.out, right.sum, right_scales, right.also)))
                self.assertEqual(bits(add_rms_norm_quant(x, residual, w, 1e-6, **keys)), bits(found[:3]))
        found = rms_norm_quant(x, (128,), w, 1e-6, scale=t, also=torch.float16)
        right = norm(head + "e4m3/w/q=tensor/also=f16", x, weight=w, tensor_scale=t)
        self.assertEqual(bits(found), bits((right.out, right.also)))
        self.assertEqual(len(add_rms_norm_quant(x, residual, w, scale=t, also=torch.float16)), 3)
        y, scales = rms_norm_quant(x, (3, 128), block=128)
        self.assertEqual((y.shape, scales.shape), ((2, 3, 128), (2, 3)))
        text, signs = "rmsnorm/cols=384/bf16/eps=0/out=e2m1/q=32:e8m0", x.sign().reshape(2, 384)
        right = norm(text, signs)
        for columns in ((3, 128), (128, 3)):  # of which the last need not be even
            for found in self.by_all(text, x=signs.reshape(2, *columns)):
                self.assertEqual((found[0].shape, found[1].shape), ((2, 192), (2, 12)))
                self.assertEqual(bits(found), bits((right.out, right.block_scale)))

    def test_what_does_not_fit(self):
        x, t = torch.randn(3, 64, device=device), torch.ones(1, device=device)
        spec = "rmsnorm/cols=64/f32/out=e4m3/q="
        for text, call in (
                ("needs upper_bound", lambda: norm(spec + "row:ub", x)),
                ("has no upper_bound", lambda: norm(spec + "row", x, upper_bound=t)),
                ("needs global_scale", lambda: norm(spec + "16:e4m3", x)),
                ("global_scale is of torch.float16", lambda: norm(spec + "16:e4m3", x, global_scale=t.half())),
                ("has no also", lambda: norm(spec + "row", x, also=torch.empty_like(x))),
                (r"block_scale has the shape \[3\]; it must be \[3, 1\]",
                 lambda: norm(spec + "64", x, block_scale=x[:, 0].contiguous())),
                (r"block_scale has the shape \[3, 2\]; it must be \[2, 4\]",
                 lambda: norm(spec + "32:e8m0:cols", x, block_scale=torch.empty(3, 2, device=device).to(torch.float8_e8m0fnu))),
                ("block_scale is of torch.float32; the spec says torch.int32",
                 lambda: norm(spec + "32:e8m0:cols4", x, block_scale=torch.empty(1, 4, device=device))),
                ("block_scale is of torch.uint8; the spec says torch.float8_e8m0fnu",
                 lambda: norm(spec + "32:e8m0", x, block_scale=torch.empty(3, 2, device=device, dtype=torch.uint8))),
                ("block_scale is not contiguous",
                 lambda: norm(spec + "64:cols", x, block_scale=torch.empty(1, 8, device=device)[:, ::2])),
                (r"amax has the shape \[2\]; it must be one number",
                 lambda: norm("rmsnorm/cols=64/f32/amax", x, amax=torch.empty(2, device=device))),
                (r"out has the shape \[3, 64\]; it must be \[3, 32\]",
                 lambda: norm("rmsnorm/cols=64/f32/out=e2m1/q=32:e8m0", x, out=torch.empty(3, 64, device=device, dtype=PAIRS))),
                (r"the rows of out, with strides \[64, 2\]", lambda: norm(
                    "rmsnorm/cols=64/f32/out=e2m1/q=32:e8m0", x, out=torch.empty(3, 64, device=device, dtype=PAIRS)[:, ::2])),
                ("e2m1 needs a scale for each block of 16 or 32", lambda: rms_norm_quant(x, (64,), dtype=PAIRS)),
                ("block is 48; it must be one of 16, 32, 64, 128", lambda: rms_norm_quant(x, (64,), block=48)),
                ("leave out scale, or block", lambda: rms_norm_quant(x, (64,), block=64, scale=t)),
                ("scale_layout needs blocks", lambda: rms_norm_quant(x, (64,), scale_layout="cols")),
                ("global_scale needs blocks", lambda: add_rms_norm_quant(x, x, global_scale=t)),
                ("scale_format is 'f16'; it must be one of 'f32', 'p2', ",
                 lambda: rms_norm_quant(x, (64,), block=64, scale_format="f16")),
                ("of 32 e8m0", lambda: rms_norm_quant(x, (64,), block=32, scale_format="f32")),
                ("blocks of 128 columns do not divide rows of 64", lambda: rms_norm_quant(x, (64,), block=128)),
                ("upper_bound is of scales for each row", lambda: rms_norm_quant(x, (64,), block=64, upper_bound=t)),
                ("upper_bound is of scales for each row", lambda: add_rms_norm_quant(x, x, scale=t, upper_bound=t)),
                ("also is torch.float64; it must be torch.float16, ", lambda: rms_norm_quant(x, (64,), also=torch.float64)),
                ("needs global_scale", lambda: rms_norm_quant(x, (64,), block=16))):
            with self.subTest(text=text), self.assertRaisesRegex(RuntimeError, text), self.assert_launches(0):
                call()

    def test_there_is_no_gradient(self):
        x = torch.randn(3, 64, device=device, requires_grad=True)
        for keys in ({"block": 64}, {"also": torch.float32}, {"block": 32, "dtype": PAIRS}):
            with self.assertRaisesRegex(RuntimeError, "8 and 4 bits have no gradient"):
                rms_norm_quant(x, (64,), **keys)
            with torch.no_grad():
                self.assertFalse(any(part.requires_grad for part in rms_norm_quant(x, (64,), **keys)))

    def test_programs(self):
        x, residual = torch.randn(2, 5, 64, device=device)
        w, t = torch.randn(64, device=device), torch.full((1,), 50.0, device=device)

        def function(x, residual, w, t):
            y, s, scales, also = add_rms_norm_quant(x, residual, w, block=32, scale_layout="cols4", also=torch.bfloat16)
            blocks = rms_norm_quant(s, (64,), w, block=16, global_scale=t, scale_layout="sw")
            rows = rms_norm_quant(s, (64,), block=64, scale_format="p2")
            bounded, amax = rms_norm_quant(s, (64,), upper_bound=t), norm("rmsnorm/cols=64/f32/amax", s).amax
            pairs = rms_norm_quant(s, (64,), w, dtype=PAIRS, block=16, global_scale=t)
            return y, scales, also, *blocks, *rows, *bounded, amax, *pairs
        right = function(x, residual, w, t)
        for backend, dynamic in (("aot_eager", False), ("aot_eager", True), ("inductor", False)):
            with self.subTest(backend=backend, dynamic=dynamic), self.assert_launches(6):
                compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
                for ours, theirs in zip(compiled(x, residual, w, t), right):
                    self.assertEqual((ours.dtype, ours.shape), (theirs.dtype, theirs.shape))
                    self.assertTrue(torch.equal(ours.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8)))
            torch.compiler.reset()
        for spec, given in (("rmsnorm/cols=64/f32/out=s8/add/sum/w/q=32:e8m0:sw/also=f16", in_order(residual=residual, weight=w)),
                            ("rmsnorm/cols=64/f32/out=e4m3/q=16:e4m3:cols", in_order(global_scale=t)),
                            ("rmsnorm/cols=64/f32/out=e4m3/q=tensor/also=f32/amax", in_order(tensor_scale=t))):
            torch.library.opcheck(torch.ops.normjit.norm.default, (spec, x, *given, False))
        spec = "rmsnorm/cols=64/f32/out=e2m1/q=16:e4m3:sw"  # whose results PyTorch 2.9 cannot compare
        torch.library.opcheck(torch.ops.normjit.norm.default, (spec, x, *in_order(global_scale=t), False),
                              test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))

    def test_by_pytorch(self):
        """Where the kernel cannot run: each sample has scales of its own."""
        try:
            torch.func.vmap(lambda part: part.view(torch.int32))(torch.ones(2, 3, device=device))
        except RuntimeError as error:
            self.skipTest("this PyTorch: {}".format(error))
        x = torch.randn(4, 3, 64, device=device)
        forms = (("rows", (4, 3, 2)), ("cols", (4, 2, 4)), ("cols4", (4, 1, 4)), ("sw", (4, 1, 1, 512)))
        for (name, columns), (layout, shape) in itertools.product((("e4m3", 64), ("e2m1", 32)), forms):
            text = "rmsnorm/cols=64/f32/out={}/q={}".format(name, self.text_of(32, "e8m0", layout))
            with self.assert_launches(0):
                out, found = torch.func.vmap(lambda part: (norm(text, part).out, norm(text, part).block_scale))(x)
                made = norm(text, x[0].to("meta"))
            self.assertEqual((out.shape, found.shape), ((4, 3, columns), shape))
            self.assertEqual((made.block_scale.shape, made.block_scale.dtype), (shape[1:], found.dtype))
            self.assertEqual((made.out.shape, made.out.dtype), (out.shape[1:], out.dtype))
            right = norm(text, x[1])
            self.assertTrue(torch.equal(found[1].view(torch.uint8), right.block_scale.view(torch.uint8)))
            self.assertGreater((self.bytes_of(out[1]) == self.bytes_of(right.out)).float().mean(), 0.95)

    def test_amax_by_pytorch(self):
        """Each sample has one of its own."""
        x = torch.randn(4, 3, 64, device=device)
        with self.assert_launches(0):
            found = torch.func.vmap(lambda part: norm("rmsnorm/cols=64/f32/amax", part).amax)(x)
        self.assert_close(found, functional.rms_norm(x, (64,), eps=1e-5).abs().amax((1, 2)))


class GradientsTest(TestCase):
    SPECS = ("rmsnorm/cols=6/f64/eps=0.1/w", "layernorm/cols=6/f64/eps=0.1/inb/add/sum/wb/stats",
             "layernorm/cols=6/f64/eps=0.1/addafter/wb1/gelu/scale=0.5", "rmsnorm/cols=6/f64/eps=0.1/add/wb:rows/stats",
             "rmsnorm/cols=6/f64/eps=0.1/add/sum/w1/silu", "layernorm/cols=6/f64/eps=0.1")

    def function_of(self, spec):
        problem = _problem.problem_of(spec)
        shapes = {"in_bias": (6,), "residual": (4, 6), "weight": (4, 6) if problem.affine_rows else (6,)}
        shapes["bias"] = shapes["weight"]
        names = problem.inputs
        inputs = [torch.randn(3, 4, 6, device=device, dtype=torch.float64, requires_grad=True)]
        inputs += [torch.randn(shapes[name], device=device, dtype=torch.float64, requires_grad=True) for name in names]

        def function(x, *operands):
            found = norm(spec, x, **dict(zip(names, operands)))
            return tuple(part for part in found if part is not None) if isinstance(found, NormOutputs) else found
        return function, inputs

    def test_gradients_of_any_order(self):
        for spec in self.SPECS:
            with self.subTest(spec=spec):
                function, inputs = self.function_of(spec)
                self.assertTrue(torch.autograd.gradcheck(function, inputs))
                self.assertTrue(torch.autograd.gradgradcheck(function, inputs))

    def test_without_gradients_a_parameter_is_a_tensor(self):
        x, w = torch.randn(3, 8, device=device), torch.nn.Parameter(torch.randn(8, device=device))
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found = norm("rmsnorm/cols=8/f32/w", x, weight=w)
            self.assertFalse(found.requires_grad)
            self.assert_close(found, wanted("rmsnorm/cols=8/f32/eps=1e-05/w", x, weight=w.detach())["out"])

    def test_inputs_that_need_none(self):
        x, w = torch.randn(3, 8, device=device), torch.randn(8, device=device, requires_grad=True)
        found = norm("rmsnorm/cols=8/f32/w", x, weight=w)
        found.sum().backward()
        self.assert_close(w.grad, wanted("rmsnorm/cols=8/f32/eps=1e-05", x)["out"].sum(0), **loose(torch.float32))
        self.assertIsNone(x.grad)

    def test_a_rounding_passes_gradients_on(self):
        x, w = torch.randn(4, 64, device=device).bfloat16(), torch.randn(64, device=device).bfloat16()
        inputs = [part.requires_grad_() for part in (x, w)]
        found = torch.autograd.grad(norm("rmsnorm/cols=64/bf16/round=norm/w", x, weight=w).float().sin().sum(), inputs)
        wide = [part.detach().double().requires_grad_() for part in inputs]
        right = torch.autograd.grad(wanted("rmsnorm/cols=64/bf16/eps=1e-05/w", wide[0], weight=wide[1])["out"].sin().sum(), wide)
        for ours, theirs in zip(found, right):
            self.assertEqual(ours.dtype, torch.bfloat16)
            self.assert_close(ours, theirs, rtol=6e-2, atol=1e-1)

    def test_transforms_of_functions(self):
        x, w = torch.randn(5, 3, 8, device=device), torch.randn(8, device=device)
        with self.assert_launches(0):
            found = torch.func.vmap(lambda part: norm("rmsnorm/cols=8/f32/w", part, weight=w))(x)
        self.assert_close(found, wanted("rmsnorm/cols=8/f32/eps=1e-05/w", x, weight=w)["out"])


    def test_the_largest_magnitude_has_none(self):
        """And gradients of the result are those without it."""
        x, w = torch.randn(4, 8, device=device, requires_grad=True), torch.randn(8, device=device, requires_grad=True)
        for dtype, form in ((torch.float32, "f32"), (torch.bfloat16, "f32/out=bf16")):
            spec = "rmsnorm/cols=8/{}/w".format(form)
            with self.assert_launches(1):
                found = norm(spec + "/amax", x, weight=w)
            self.assertEqual((found.out.dtype, found.amax.shape, found.amax.dtype), (dtype, (), torch.float32))
            self.assertEqual(found.amax, found.out.float().abs().max())
            self.assertTrue(found.out.requires_grad and not found.amax.requires_grad)
            right = torch.autograd.grad(norm(spec, x, weight=w).float().sin().sum(), (x, w))
            for ours, theirs in zip(torch.autograd.grad(found.out.float().sin().sum(), (x, w)), right):
                self.assertTrue(torch.equal(ours, theirs))
        torch.library.opcheck(torch.ops.normjit.norm.default, ("rmsnorm/cols=8/f32/w/amax", x, *in_order(weight=w), False))

    def test_tensors_of_16_bits(self):
        """Also where PyTorch's fused kernels compute the gradients."""
        for dtype in (torch.float16, torch.bfloat16):
            for tail in ("/w", "/round=norm/w", "/w1", "/add/sum/round=sum/w", "/add/sum/w", "/add/sum/round=sum+norm/w",
                         "/add/round=sum/w/silu"):
                spec = "rmsnorm/cols=64/{}/eps=1e-05{}".format(TEXTS[dtype], tail)
                x, residual = (torch.randn(6, 64, device=device).to(dtype) for _ in range(2))
                w = torch.randn(64, device=device).to(dtype)
                names = ["residual", "weight"] if "add" in tail else ["weight"]
                inputs = [x, residual, w] if "add" in tail else [x, w]
                inputs = [part.requires_grad_() for part in inputs]
                with self.subTest(spec=spec):
                    y = norm(spec, inputs[0], **dict(zip(names, inputs[1:])))
                    y = y.out if isinstance(y, NormOutputs) else y
                    grad = torch.randn_like(y)
                    wide = [part.detach().double().requires_grad_() for part in inputs]
                    right = wanted(spec.replace("/round=sum+norm", "").replace("/round=sum", "").replace("/round=norm", ""),
                                   wide[0], **dict(zip(names, wide[1:])))["out"]
                    found = torch.autograd.grad(y, inputs, grad)
                    for ours, theirs in zip(found, torch.autograd.grad(right, wide, grad.double())):
                        self.assertEqual(ours.dtype, dtype)
                        self.assert_close(ours, theirs, rtol=6e-2, atol=8e-2)


class CompilerTest(TestCase):
    def test_the_operators_are_sound(self):
        x, residual, w = (torch.randn(*shape, device=device) for shape in ((3, 8), (3, 8), (8,)))
        operators, given = torch.ops.normjit, in_order(residual=residual, weight=w)
        spec = "layernorm/cols=8/f32/add/sum/w/stats"
        torch.library.opcheck(operators.norm.default, (spec, x, *given, False))
        torch.library.opcheck(operators.norm.default, (spec, x.requires_grad_(), *given, True))
        x = x.detach()
        outputs = [torch.empty(*shape, device=device) for shape in ((3, 8), (3, 8), (3, 1), (3, 1))]
        torch.library.opcheck(operators.norm_out.default, (spec, x, *given, False, *outputs, *[None] * 4))
        torch.library.opcheck(operators.norm_outputs.default, (spec, x, [True, False, True, True]),
                              test_utils=("test_schema", "test_autograd_registration"))  # what is there has no value

    def test_one_graph(self):
        def function(x, residual, w):
            y, s = add_rms_norm(x, residual, w, activation="silu")
            return norm("layernorm/cols=64/f32/stats", y).rstd + s
        inputs = [torch.randn(*shape, device=device, requires_grad=True) for shape in ((5, 64), (5, 64), (64,))]
        compiled = torch.compile(function, fullgraph=True, dynamic=False)
        with self.assert_launches(2):
            y = compiled(*inputs)
        right = function(*inputs)
        self.assert_close(y, right, **loose(torch.float32))
        for ours, theirs in zip(torch.autograd.grad(y.sin().sum(), inputs), torch.autograd.grad(right.sin().sum(), inputs)):
            self.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)

    def test_programs_have_the_spec(self):
        """And no number of this process."""
        x = torch.randn(3, 8, device=device)
        function = lambda x: norm("rmsnorm/cols=8/f32", x)  # noqa: E731
        with self.assert_launches(1):
            graph = make_fx(function)(x).graph
        self.assertIn(torch.ops.normjit.norm.default, [node.target for node in graph.nodes])
        self.assertIn("normjit::norm", [node.kind() for node in torch.jit.trace(function, x).graph.nodes()])

    def test_dynamic_columns(self):
        compiled = torch.compile(lambda x, residual: add_rms_norm(x, residual, scale=0.5), fullgraph=True, dynamic=True)
        for columns in (16, 24):
            x, residual = torch.randn(2, 3, columns, device=device)
            for found, right in zip(compiled(x, residual), add_rms_norm(x, residual, scale=0.5)):
                self.assert_close(found, right)

    def test_dynamic_rows(self):
        compiled = torch.compile(lambda x: norm("rmsnorm/cols=64/f32", x), fullgraph=True, dynamic=True)
        for rows in (3, 5, 17):
            x = torch.randn(rows, 2, 64, device=device)
            self.assert_close(compiled(x), wanted("rmsnorm/cols=64/f32/eps=1e-05", x)["out"])

    def test_outputs_in_place(self):
        def function(x, residual):
            norm("rmsnorm/cols=64/f32/add/sum", x, residual=residual, out=x, sum=residual)
            return x + 1
        x, residual = torch.randn(4, 64, device=device), torch.randn(4, 64, device=device)
        right = wanted("rmsnorm/cols=64/f32/eps=1e-05/add/sum", x, residual=residual)
        found = torch.compile(function, fullgraph=True)(x, residual)
        self.assert_close(found, right["out"] + 1)
        self.assert_close(x, right["out"])
        self.assert_close(residual, right["sum"])

    def test_a_cuda_graph(self):
        if FAKE:
            self.skipTest("needs a GPU")
        x, w = torch.randn(64, 4096, device=device).bfloat16(), torch.randn(4096, device=device).bfloat16()
        residual = torch.randn_like(x)
        run = lambda: add_rms_norm(x, residual, w)  # noqa: E731
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y, s = run()
        x.copy_(torch.randn_like(x))
        graph.replay()
        right = wanted("rmsnorm/cols=4096/bf16/eps=1e-05/add/w", x, residual=residual, weight=w)
        self.assert_close(y, right["out"])
        self.assert_close(s, right["sum"])


class LongRowsTest(TestCase):
    """Rows that several blocks share, which takes a workspace."""
    COLUMNS = 1 << 20
    SPEC = "rmsnorm/cols={}/f32/add/sum".format(COLUMNS)

    def setUp(self):
        super().setUp()
        if FAKE:
            self.skipTest("needs a GPU")

    def right(self, x, residual):
        return wanted(self.SPEC.replace("f32", "f32/eps=1e-05"), x, residual=residual)

    def test_each_stream_has_a_workspace(self):
        xs = [torch.randn(4, self.COLUMNS, device=device) + i for i in range(4)]
        streams = [torch.cuda.Stream() for _ in xs]
        torch.cuda.synchronize()
        found = [[] for _ in xs]
        for _ in range(5):
            for x, results, stream in zip(xs, found, streams):
                with torch.cuda.stream(stream):
                    results.append(norm(self.SPEC, x, residual=xs[0]))
        torch.cuda.synchronize()
        for x, results in zip(xs, found):
            right = self.right(x, xs[0])
            for outputs in results:
                self.assert_close(outputs.out, right["out"])
                self.assert_close(outputs.sum, right["sum"])

    def test_a_graph(self):
        x, residual = torch.randn(4, self.COLUMNS, device=device), torch.randn(4, self.COLUMNS, device=device)
        norm(self.SPEC, x, residual=residual)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = norm(self.SPEC, x, residual=residual)
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            graph.replay()
            self.assert_close(outputs.out, self.right(x, residual)["out"])


class NamesTest(TestCase):
    def test_rms_norm_is_pytorchs(self):
        for dtype, eps in itertools.product(DTYPES, (None, 1e-3)):
            x, w = torch.randn(4, 2, 32, device=device).to(dtype) / 1024, torch.randn(32, device=device).to(dtype)
            for shape, weight in (((32,), w), ((32,), None), ((2, 32), w.expand(2, 32))):
                with self.assert_launches(1):
                    found = rms_norm(x, shape, weight, eps)
                wide = eps if eps is not None else torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
                right = functional.rms_norm(x.double(), shape, None if weight is None else weight.double(), wide)
                self.assertEqual((found.dtype, found.shape), (dtype, x.shape))
                self.assert_close(found, right)
                self.assert_close(found, functional.rms_norm(x, shape, weight, eps), **loose(dtype))

    def test_a_weight_of_another_type(self):
        x, w = torch.randn(4, 32, device=device).bfloat16(), torch.randn(32, device=device)
        with self.assert_launches(1):
            found = rms_norm(x, (32,), w)
        self.assertEqual(found.dtype, functional.rms_norm(x, (32,), w).dtype)
        self.assert_close(found, functional.rms_norm(x.double(), (32,), w.double(), 2.0 ** -23))

    def test_what_is_left_to_pytorch(self):
        x, w = torch.randn(3, 8, device=device), torch.randn(8, device=device)
        for arguments in ((x, (7,)), (x, ()), (x, (8,), w[:4]), (x, (2, 3, 8))):
            self.assert_same_error(lambda: rms_norm(*arguments), lambda: functional.rms_norm(*arguments))
        with self.assert_launches(0), torch.autocast(x.device.type, torch.bfloat16):
            found, right = rms_norm(x.bfloat16(), (8,), w), functional.rms_norm(x.bfloat16(), (8,), w)
            self.assertEqual(found.dtype, right.dtype)
            self.assert_close(found, right)

    def test_short_rows_are_left_to_the_compiler(self):
        x, w = torch.randn(3, 64, device=device), torch.randn(64, device=device)
        with self.assert_launches(0):
            found = torch.compile(lambda x, w: rms_norm(x, (64,), w), fullgraph=True)(x, w)
        self.assert_close(found, functional.rms_norm(x.double(), (64,), w.double(), 2.0 ** -23))

    def test_activation_and_scale(self):
        x, w = torch.randn(3, 64, device=device), torch.randn(64, device=device)
        found = rms_norm(x, (64,), w, 1e-6, activation="silu", scale=0.5)
        self.assert_close(found, 0.5 * functional.silu(functional.rms_norm(x.double(), (64,), w.double(), 1e-6)))
        with self.assertRaisesRegex(ValueError, "activation must be"):
            rms_norm(x, (64,), w, activation="tanh")

    def test_sums(self):
        x, w, b, in_bias = torch.randn(3, 64, device=device), *torch.randn(3, 64, device=device)
        residual = torch.randn(3, 64, device=device)
        y, s = add_layer_norm(x, residual, w, b, in_bias=in_bias)
        total = x.double() + residual.double() + in_bias.double()
        self.assert_close(s, total)
        self.assert_close(y, functional.layer_norm(total, (64,), w.double(), b.double()))
        y, s = add_rms_norm(x.bfloat16(), residual)
        self.assertEqual((y.dtype, s.dtype), (torch.bfloat16, torch.float32))
        total = x.bfloat16().double() + residual.double()
        self.assert_close(s, total)
        self.assert_close(y, functional.rms_norm(total, (64,), eps=1e-5))
        with self.assertRaisesRegex(RuntimeError, "not implemented for torch.int64"):
            add_rms_norm(x.long(), residual)

    def test_the_module(self):
        ours = RMSNorm(32, eps=1e-6, device=device, activation="relu", scale=2.0)
        x = torch.randn(4, 32, device=device)
        with self.assert_launches(1):
            self.assert_close(ours(x), 2 * functional.relu(functional.rms_norm(x.double(), (32,), eps=1e-6)))
        self.assertIn("activation='relu', scale=2.0", repr(ours))
        self.assertEqual(list(ours.state_dict()), ["weight"])


if __name__ == "__main__":
    main()
