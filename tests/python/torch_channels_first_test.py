#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Channels first: norm() and layer_norm_2d() of [N, C, ...] against PyTorch's layer_norm of the permuted tensor in f64:
values, layouts, gradients, errors, torch.compile."""
import itertools
import unittest.mock

from torch_support import DTYPES, FAKE, TestCase, device, fake, functional, loose, main, torch

from normjit.torch import NormOutputs, _ctypes_kernel, _formula, _norm, _problem, layer_norm_2d, norm
from torch.fx.experimental.proxy_tensor import make_fx

nn = torch.nn
TEXTS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
OPERANDS = tuple(operand.name for operand in _problem.OPERANDS)
SHAPES = ((2, 8, 5, 6), (3, 16, 7, 7), (2, 31, 9), (1, 8, 3, 4, 5), (4, 8, 1, 1), (2, 1, 3, 3), (1, 129, 1))


def permuted(x, weight=None, bias=None, eps=1e-5):
    """In the type of x, with the gradients of PyTorch."""
    y = functional.layer_norm(x.movedim(1, -1), x.shape[1:2], weight, bias, eps)
    return y.movedim(-1, 1)


def wanted(text, x, in_bias=None, residual=None, weight=None, bias=None):
    """The outputs of a spec without roundings in f64."""
    wide = [None if part is None else part.double() for part in (in_bias, residual, weight, bias)]
    in_bias, residual, weight, bias = wide
    s = x.double()
    spread = (-1,) + (1,) * (x.dim() - 2)
    s = s if in_bias is None else s + in_bias.view(spread)
    s = s + residual if "/add/" in text + "/" else s
    mean = s.mean(1, keepdim=True) if text.startswith("layernorm") else torch.zeros_like(s[:, :1])
    rstd = ((s - mean).square().mean(1, keepdim=True) + 1e-5).rsqrt()
    y = (s - mean) * rstd
    y = y if weight is None else y * weight.view(spread)
    y = y if bias is None else y + bias.view(spread)
    y = functional.gelu(y) if "/gelu" in text else y
    y = y + residual if "/addafter" in text else y
    return {"out": y, "sum": s, "mean": mean, "rstd": rstd}


class ValuesTest(TestCase):
    TAILS = ("", "/wb", "/w/stats", "/add/sum/wb", "/inb/add/sum/wb/gelu/stats", "/addafter/wb")

    def operands(self, text, shape, dtype):
        problem = _problem.problem_of(text)
        return {name: torch.randn(shape if name == "residual" else shape[1:2], device=device).to(dtype)
                for name in problem.inputs}

    def found(self, text, x, **operands):
        found = norm(text, x, **operands)
        return {name: part for name, part in found._asdict().items() if part is not None} if isinstance(
            found, NormOutputs) else {"out": found}

    def cases(self):
        cases = list(itertools.product(("layernorm", "rmsnorm"), self.TAILS, SHAPES, DTYPES))
        for head, tail, shape, dtype in cases if FAKE else self.random.sample(cases, 40):
            text = "{}/cols={}/{}{}/cf".format(head, shape[1], TEXTS[dtype], tail)
            x = torch.randn(shape, device=device).to(dtype)
            yield text, x, self.operands(text, shape, dtype)

    def assert_outputs(self, text, found, right):
        names = ["out"] + ["sum"] * ("/sum" in text)
        names += ["mean"] * ("/stats" in text and text.startswith("layer")) + ["rstd"] * ("/stats" in text)
        self.assertEqual(list(found), names)
        for name, value in found.items():
            self.assertEqual(value.shape, right[name].shape)
            self.assert_close(value, right[name])

    def test_values(self):
        for text, x, operands in self.cases():
            with self.subTest(spec=text, shape=x.shape):
                with self.assert_launches(1):
                    found = self.found(text, x, **operands)
                self.assertTrue(all(part.is_contiguous() for part in found.values()))
                self.assert_outputs(text, found, wanted(text, x, **operands))

    def test_channels_last(self):
        """The kernel without /cf, on the tensors where they are, and results as they are."""
        for text, x, operands in self.cases():
            with self.subTest(spec=text, shape=x.shape):
                def last(part):
                    return part.movedim(1, -1).contiguous().movedim(-1, 1) if part.dim() == x.dim() else part
                moved, given = last(x), {name: last(part) for name, part in operands.items()}
                with self.assert_launches(1):
                    found = self.found(text, moved, **given)
                self.assertTrue(all(part.movedim(1, -1).is_contiguous() for part in found.values()))
                if FAKE:
                    self.assertEqual(fake.spec.endswith("/cf"), x.shape[1] == 1)
                    self.assertEqual(fake.operands[OPERANDS.index("x")], moved.data_ptr())
                self.assert_outputs(text, found, wanted(text, x, **operands))

    def test_the_formula_is_the_kernel(self):
        for text, x, operands in self.cases():
            with self.subTest(spec=text, shape=x.shape):
                inputs = [operands.get(name) for name in _problem.INPUTS]
                found = self.found(text, x, **operands)
                theirs = _formula.formula(_problem.problem_of(text), x, *inputs)
                self.assertEqual([(part.shape, part.dtype) for part in theirs], [(part.shape, part.dtype) for part in found.values()])
                for mine, right in zip(found.values(), theirs):
                    self.assert_close(mine, right, **loose(mine.dtype))

    def test_without_a_compiler_the_results_are_the_same(self):
        """By the same kernel: that without /cf also for planes of one position, whose channels are neighbours in memory."""
        def by_ctypes(text, x, **operands):
            add = lambda text, invariant: _ctypes_kernel.add(_problem.problem_of(text), invariant)  # noqa: E731
            with unittest.mock.patch.multiple(_norm, _number=add, _launch=_ctypes_kernel.launch_problem):
                return self.found(text, x, **operands)
        for (text, x, operands), last in itertools.product(self.cases(), (False, True)):
            x = x.to(memory_format=torch.channels_last) if last and x.dim() == 4 else x
            with self.subTest(spec=text, shape=x.shape, strides=x.stride()):
                found, specs = [], []
                for function in (self.found, by_ctypes):
                    with self.assert_launches(1):
                        found.append(function(text, x, **operands))
                    specs.append(fake.spec if FAKE else "")
                self.assertEqual(specs[0], specs[1])
                self.assertEqual(list(found[0]), list(found[1]))
                for mine, right in zip(*(outputs.values() for outputs in found)):
                    self.assertEqual(mine.stride(), right.stride())
                    self.assertTrue(torch.equal(mine, right))

    def test_empty_inputs_launch_nothing(self):
        for shape in ((0, 8, 3, 3), (2, 8, 0, 3)):
            x = torch.randn(shape, device=device, requires_grad=True)
            with self.assert_launches(0):
                found = norm("layernorm/cols=8/f32/stats/cf", x)
                self.assertEqual((found.out.shape, found.mean.shape), (shape, (shape[0], 1, *shape[2:])))
                found.out.sum().backward()
            self.assertEqual(x.grad.shape, x.shape)

    def test_thin_name(self):
        for dtype, channels_last in itertools.product(DTYPES, (False, True)):
            x = torch.randn(2, 16, 7, 7, device=device).to(dtype)
            x = x.to(memory_format=torch.channels_last) if channels_last else x
            w, b = (torch.randn(16, device=device).to(dtype) for _ in range(2))
            for weight, bias in ((None, None), (w, None), (w, b)):
                with self.assert_launches(1):
                    found = layer_norm_2d(x, weight, bias, 1e-6)
                self.assertEqual(found.is_contiguous(memory_format=torch.channels_last), channels_last)
                wide = [None if part is None else part.double() for part in (weight, bias)]
                self.assert_close(found, permuted(x.double(), *wide, 1e-6))
        with self.assertRaisesRegex(RuntimeError, "a bias needs a weight"):
            layer_norm_2d(x, None, b)


class LayoutTest(TestCase):
    TEXT = "layernorm/cols=8/f32/add/sum/cf"

    def assert_read_in_place(self, **tensors):
        if FAKE:
            for name, tensor in tensors.items():
                self.assertEqual(fake.operands[OPERANDS.index(name)], tensor.data_ptr(), name)

    def test_a_slice_of_channels(self):
        whole = torch.randn(3, 24, 5, 7, device=device)
        x, residual = whole[:, 8:16], torch.randn(3, 20, 5, 7, device=device)[:, 3:11]
        with self.assert_launches(1):
            found = norm(self.TEXT, x, residual=residual)
        self.assert_read_in_place(x=x, residual=residual)
        self.assert_close(found.out, wanted(self.TEXT, x, residual=residual)["out"])

    def test_outputs_that_are_given(self):
        whole = torch.randn(3, 24, 5, 7, device=device)
        x, residual, before = whole[:, 8:16], torch.randn(3, 8, 5, 7, device=device), whole.clone()
        right = wanted(self.TEXT, x, residual=residual)
        found = norm(self.TEXT, x, residual=residual, out=x, sum=residual)
        self.assertTrue(found.out is x and found.sum is residual)
        self.assert_close(x, right["out"])
        self.assert_close(residual, right["sum"])
        self.assertTrue(torch.equal(whole[:, :8], before[:, :8]) and torch.equal(whole[:, 16:], before[:, 16:]))

    def test_outputs_with_channels_last(self):
        x = torch.randn(3, 8, 5, 7, device=device)
        out = torch.empty_like(x, memory_format=torch.channels_last)
        mean = torch.empty(3, 1, 5, 7, device=device)
        found = norm("layernorm/cols=8/f32/stats/cf", x, out=out, mean=mean)
        self.assertTrue(found.out is out and found.mean is mean)
        right = wanted("layernorm/", x)
        for name, value in found._asdict().items():
            if value is not None:
                self.assert_close(value, right[name])
        x = x.to(memory_format=torch.channels_last)
        self.assertIs(norm("layernorm/cols=8/f32/cf", x, out=x), x)
        self.assert_close(x, right["out"])

    def test_a_residual_that_samples_share(self):
        x, shared = torch.randn(3, 8, 5, 7, device=device), torch.randn(8, 5, 7, device=device)
        for residual in (shared, shared[None]):
            found = norm("layernorm/cols=8/f32/add/cf", x, residual=residual)
            self.assert_read_in_place(residual=shared)
            self.assert_close(found, wanted("layernorm/add", x, residual=shared.expand(x.shape))["out"])
        channels = torch.randn(8, 1, 1, device=device)  # is copied
        for given in (x, x.to(memory_format=torch.channels_last)):
            self.assert_close(norm("layernorm/cols=8/f32/add/cf", given, residual=channels),
                              wanted("layernorm/add", x, residual=channels.expand(x.shape))["out"])

    def test_other_layouts_are_copied(self):
        for x in (torch.randn(3, 8, 5, 14, device=device)[..., ::2], torch.randn(3, 8, 7, 5, device=device).transpose(2, 3),
                  torch.randn(3, 16, 5, 7, device=device)[:, ::2], torch.randn(8, 3, 5, 7, device=device).transpose(0, 1),
                  torch.randn(3, 5, 7, 16, device=device)[..., ::2].movedim(-1, 1)):
            found = norm("layernorm/cols=8/f32/cf", x)
            self.assertTrue(found.is_contiguous())
            self.assert_close(found, wanted("layernorm/", x)["out"])

    def test_a_slice_with_channels_last(self):
        x = torch.randn(3, 5, 7, 24, device=device)[..., 8:16].movedim(-1, 1)
        found = norm("layernorm/cols=8/f32/cf", x)
        self.assert_read_in_place(x=x)
        self.assertTrue(found.is_contiguous(memory_format=torch.channels_last))
        self.assert_close(found, wanted("layernorm/", x)["out"])


class ErrorsTest(TestCase):
    def test_operands_that_do_not_fit(self):
        x, w = torch.randn(2, 8, 3, 3, device=device), torch.randn(8, device=device)
        shape = r"\[samples, 8 channels, positions...\]"
        for given, fields, operands, text in (
                (x[:, :4], "", {}, r"x, of shape \[2, 4, 3, 3\], is not " + shape), (x[0, :, 0], "", {}, shape),
                (x.movedim(1, -1), "", {}, shape), (x.view(2, 72), "", {}, shape), (x, "/w", {}, "needs weight"),
                (x, "/w", {"weight": w[:4]}, r"weight has the shape \[4\]"),
                (x, "/w", {"weight": w.view(8, 1, 1)}, r"weight has the shape \[8, 1, 1\]; a row of x has \[8\]"),
                (x, "/add", {"residual": x[:, :4]}, r"\[2, 4, 3, 3\] cannot be expanded to x's \[2, 8, 3, 3\]"),
                (x, "", {"out": x[:1].clone()}, r"out has the shape \[1, 8, 3, 3\]"),
                (x, "", {"out": torch.empty(2, 8, 3, 6, device=device)[..., ::2]}, "cannot be addressed"),
                (x, "/stats", {"mean": torch.empty(2, 3, 3, device=device)}, r"mean has the shape \[2, 3, 3\]"),
                (x, "", {"gate": x}, "has no gate"), (x.half(), "", {}, "x is of torch.float16"),
                (x, "/w:rows", {"weight": x}, "channels first exclude a weight for each row"),
                (x, "/mods", {"mod_scale": x}, "channels first exclude modulation"),
                (x, "/gate", {"gate": x}, "channels first exclude a gate")):
            with self.subTest(fields=fields, text=text), self.assertRaisesRegex(RuntimeError, text), self.assert_launches(0):
                norm("layernorm/cols=8/f32{}/cf".format(fields), given, **operands)
        for function in (lambda: layer_norm_2d(x.view(2, 72)), lambda: layer_norm_2d(x[0, :, 0])):
            with self.assertRaisesRegex(RuntimeError, "positions"):
                function()

    def test_meta_tensors(self):
        x = torch.empty(2, 8, 3, 3, device="meta")
        self.assertEqual(norm("layernorm/cols=8/f32/cf", x).stride(), x.stride())
        x = x.to(memory_format=torch.channels_last)
        self.assertEqual(norm("layernorm/cols=8/f32/cf", x).stride(), x.stride())


class GradientsTest(TestCase):
    def test_gradients_of_any_order(self):
        shapes = {"x": (2, 4, 2, 3), "residual": (2, 4, 2, 3)}
        for tail, last in itertools.product(("", "/inb/add/sum/wb/gelu/stats", "/addafter/w1"), (False, True)):
            text = "layernorm/cols=4/f64/eps=0.1{}/cf".format(tail)
            names = ["x", *_problem.problem_of(text).inputs]
            inputs = [torch.randn(shapes.get(name, (4,)), device=device, dtype=torch.float64) for name in names]
            inputs = [part.to(memory_format=torch.channels_last) if last and part.dim() == 4 else part for part in inputs]

            def function(*given):
                found = norm(text, **dict(zip(names, given)))
                return tuple(part for part in found if part is not None) if isinstance(found, NormOutputs) else found
            with self.subTest(spec=text, last=last):
                inputs = [part.requires_grad_() for part in inputs]
                self.assertTrue(torch.autograd.gradcheck(function, inputs))
                self.assertTrue(torch.autograd.gradgradcheck(function, inputs))

    def test_they_are_those_of_pytorch(self):
        for dtype, last in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            x = torch.randn(2, 16, 7, 7, device=device).to(dtype)
            x = x.to(memory_format=torch.channels_last) if last else x
            inputs = [part.requires_grad_() for part in (x, *(torch.randn(16, device=device).to(dtype) for _ in range(2)))]
            with self.assert_launches(1):
                y = layer_norm_2d(*inputs)
            grad = torch.randn_like(y)
            wide = [part.detach().double().requires_grad_() for part in inputs]
            right = torch.autograd.grad(permuted(*wide, 1e-6), wide, grad.double())
            for ours, theirs in zip(torch.autograd.grad(y, inputs, grad), right):
                self.assertEqual(ours.dtype, dtype)
                self.assert_close(ours, theirs, rtol=6e-2 if dtype == torch.bfloat16 else 1e-4,
                                  atol=6e-1 if dtype == torch.bfloat16 else 1e-4)

    def test_transforms_of_functions(self):
        x, w = torch.randn(5, 2, 8, 3, 3, device=device), torch.randn(8, device=device)
        right = torch.stack([permuted(part.double(), w.double()) for part in x])
        function = lambda part, w: norm("layernorm/cols=8/f32/w/cf", part, weight=w)  # noqa: E731
        with self.assert_launches(0):
            self.assert_close(torch.func.vmap(function, in_dims=(0, None))(x, w), right)
            found = torch.func.vmap(function, in_dims=(1, None), out_dims=1)(x.movedim(0, 1), w)
            self.assert_close(found.movedim(1, 0), right)
            value, moved = torch.func.jvp(lambda part: function(part, w), (x[0],), (x[1],))
            wide, there = torch.func.jvp(lambda part: permuted(part, w.double()), (x[0].double(),), (x[1].double(),))
        self.assert_close(value, wide)
        self.assert_close(moved, there, **loose(torch.float32))


class Block(nn.Module):
    """A block of ConvNeXt with all norms channels first, and a downsampling layer."""

    def __init__(self, columns):
        super().__init__()
        self.depthwise = nn.Conv2d(columns, columns, 7, padding=3, groups=columns)
        self.up, self.down = nn.Conv2d(columns, 4 * columns, 1), nn.Conv2d(4 * columns, columns, 1)
        self.next = nn.Conv2d(columns, 2 * columns, 2, stride=2)
        self.weights = nn.ParameterList([nn.Parameter(1 + torch.randn(columns) / 4) for _ in range(4)])

    def forward(self, x, by):
        w = list(self.weights)
        x = x + self.down(functional.gelu(self.up(by(self.depthwise(x), w[0], w[1]))))
        return self.next(by(x, w[2], w[3]))


class CompilerTest(TestCase):
    def test_the_operators_are_sound(self):
        x, residual, w = (torch.randn(*shape, device=device) for shape in ((2, 8, 3, 3), (2, 8, 3, 3), (8,)))
        given = _problem.in_order(residual=residual, weight=w)
        spec = "layernorm/cols=8/f32/add/sum/w/stats/cf"
        torch.library.opcheck(torch.ops.normjit.norm.default, (spec, x, *given, False))
        torch.library.opcheck(torch.ops.normjit.norm.default, (spec, x.requires_grad_(), *given, True))
        outputs = [torch.empty(*shape, device=device) for shape in ((2, 8, 3, 3), (2, 8, 3, 3), (2, 1, 3, 3), (2, 1, 3, 3))]
        torch.library.opcheck(torch.ops.normjit.norm_out.default, (spec, x.detach(), *given, False, *outputs, *[None] * 4))

    def test_programs_have_the_spec(self):
        graph = make_fx(lambda x: norm("layernorm/cols=8/f32/cf", x))(torch.randn(2, 8, 3, 3, device=device)).graph
        self.assertIn("layernorm/cols=8/f32/cf", [node.args[0] for node in graph.nodes if node.args])

    def test_a_stage(self):
        model = Block(16).to(device)
        x = torch.randn(2, 16, 14, 14, device=device)
        for last in (False, True):
            given = x.to(memory_format=torch.channels_last) if last else x
            with torch.no_grad():
                right = model(given, lambda *inputs: permuted(*inputs, 1e-6))
                with self.assert_launches(2):
                    self.assert_close(model(given, layer_norm_2d), right, **loose(torch.float32))
                compiled = torch.compile(lambda x: model(x, layer_norm_2d), fullgraph=True, dynamic=False)
                with self.assert_launches(2):
                    found = compiled(given)
                self.assert_close(found, right, **loose(torch.float32))

    def test_gradients_of_a_stage(self):
        model = Block(8).to(device)
        x = torch.randn(2, 8, 14, 14, device=device, requires_grad=True)
        inputs = [x, *model.parameters()]
        right = torch.autograd.grad(model(x, lambda *given: permuted(*given, 1e-6)).sin().sum(), inputs)
        compiled = torch.compile(lambda x: model(x, layer_norm_2d), fullgraph=True, dynamic=False)
        for ours, theirs in zip(torch.autograd.grad(compiled(x).sin().sum(), inputs), right):
            self.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)

    def test_dynamic_sizes(self):
        compiled = torch.compile(lambda x: norm("layernorm/cols=8/f32/cf", x), fullgraph=True, dynamic=True)
        for samples, side in ((3, 5), (2, 7), (5, 4)):
            x = torch.randn(samples, 8, side, side, device=device)
            self.assert_close(compiled(x), permuted(x.double()))
        with self.assertRaises(Exception):
            compiled(torch.randn(3, 4, 5, 5, device=device))

    def test_outputs_in_place(self):
        def function(x):
            norm("layernorm/cols=8/f32/cf", x, out=x)
            return x + 1
        for last in (False, True):
            x = torch.randn(2, 8, 3, 3, device=device)
            x = x.to(memory_format=torch.channels_last) if last else x
            right = permuted(x.double())
            self.assert_close(torch.compile(function, fullgraph=True)(x), right + 1)
            self.assert_close(x, right)


if __name__ == "__main__":
    main()
