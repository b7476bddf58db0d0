# SPDX-License-Identifier: Apache-2.0
"""normjit.torch under torch.compile, torch.export, torch.func, tracing and fake tensors."""
import io
import itertools
import os
import unittest.mock
import warnings

from torch_support import (ACTIVATIONS, TestCase, _operator, device, functional, loose, main, check_mixed,
                           mixed, mixed_reference, parameters, reference, torch)

from normjit.torch import LayerNorm, _functional, _rules, layer_norm, replace_layer_norm

nn = torch.nn
operators = torch.ops.normjit


def compiled(function, **options):
    """Without graph breaks."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)  # inductor takes long


class OperatorTest(TestCase):
    def samples(self):
        x = torch.randn(4, 3, 16, device=device)
        weight, bias = parameters((16,), requires_grad=True)
        yield (x, 1, weight, bias, 1e-5)
        yield (x.clone().requires_grad_(), 1, weight, None, 1e-5, 3, 0.5)
        yield (x.clone().requires_grad_(), 1, weight, bias, -1e-7)
        yield (x[:, :, ::2], 2, None, None, 1e-5)
        yield (x.transpose(0, 1), 1, weight, bias, 1e-5, 1, 1.0, torch.float64)
        yield (x.bfloat16().requires_grad_(), 1, weight, bias, 1e-5, 1, 1.0, torch.bfloat16)
        yield (x[:0], 1, weight, bias, 1e-5)

    def test_keeps_every_rule_of_pytorch(self):
        """All of opcheck's tests, of every operator that is registered and every sample that it takes."""
        names = set(_operator.SCHEMAS)
        if _rules.native_differentiable() is None:
            names.remove("layer_norm_differentiable")  # it has no kernel
        for name, sample in itertools.product(sorted(names), self.samples()):
            operator = getattr(operators, name).default
            if len(sample) <= len(operator._schema.arguments):
                with self.subTest(operator=name, sample=[getattr(a, "shape", a) for a in sample]), \
                        warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # only one of them has a gradient of its own
                    found = torch.library.opcheck(operator, sample)
                    self.assertEqual(set(found.values()), {"SUCCESS"})
                    self.assertGreaterEqual(len(found), 4)

    def test_every_operator_is_listed(self):
        registered = {schema.name.split("::")[1] for schema in torch._C._jit_get_all_schemas()
                      if schema.name.startswith("normjit::")}
        of_specs = {"_launch", "norm", "norm_out", "norm_outputs"}  # torch_norm_test.py checks them
        self.assertEqual(registered, {*_operator.SCHEMAS, *_operator.GRADIENT_SCHEMAS, *of_specs})

    def test_fake_tensors_have_the_same_errors(self):
        x, weight = torch.randn(3, 8, device=device), torch.randn(4, device=device)
        for arguments in ((x, 1, weight, None, 1e-5), (x, 3, None, None, 1e-5), (x, 0, None, None, 1e-5),
                          (x, 1, None, weight, 1e-5), (x.long(), 1, None, None, 1e-5),
                          (x, 1, torch.ones(8, device=device).double(), None, 1e-5),
                          (x, 1, None, None, 1e-5, 1, 1.0, torch.int32)):
            with self.assertRaises(RuntimeError) as real:
                operators.layer_norm(*arguments)
            with torch._subclasses.FakeTensorMode() as mode, self.assertRaises(RuntimeError) as pretended:
                operators.layer_norm(*[mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments])
            self.assertIn(str(real.exception), str(pretended.exception))

    def test_the_place_on_a_gpu_is_known_without_one(self):
        with torch._subclasses.FakeTensorMode():
            x = torch.empty_strided((4, 6, 16), (1, 4, 24), device="cuda")
            y = layer_norm(x, (16,), torch.ones(16, device="cuda"), activation="gelu")
        self.assertEqual((y.device.type, y.stride(), y.dtype), ("cuda", (96, 16, 1), torch.float32))


class LeftToTheCompilerTest(TestCase):
    def check(self, kernels, columns, dtype=torch.float32, **arguments):
        """So many kernels of normjit are in a compiled program, and its result and gradients are right."""
        weight, bias = parameters((columns,), dtype=dtype, requires_grad=True)
        x = torch.randn(3, columns, device=device, dtype=dtype, requires_grad=True)

        def f(x):
            return 2 * layer_norm(x + 1, (columns,), weight, bias, **arguments)
        fast = compiled(f)
        with self.assert_launches(kernels):
            y = fast(x)
        wanted = f(x)
        self.assertEqual((y.dtype, y.stride()), (wanted.dtype, wanted.stride()))
        self.assert_close(y, wanted, **loose(dtype))
        if dtype != torch.float32 and kernels == 0:
            return  # PyTorch's backward on the CPU takes no mean of another type than x
        grad = torch.randn_like(y)
        for ours, theirs in zip(torch.autograd.grad(y, (x, weight, bias), grad),
                                torch.autograd.grad(wanted, (x, weight, bias), grad)):
            self.assert_close(ours, theirs, **loose(dtype))

    def test_rows_that_it_fuses(self):
        for columns, dtype in ((64, torch.float32), (16384, torch.float32), (32768, torch.bfloat16)):
            self.check(0, columns, dtype)
        self.check(0, 64, scale=0.5)

    def test_rows_of_several_dimensions(self):
        x, (weight, bias) = torch.randn(3, 4, 16, device=device), parameters((4, 16))
        f = compiled(lambda x: layer_norm(x, (4, 16), weight, bias))
        with self.assert_launches(0):
            self.assert_close(f(x), reference(x, (4, 16), weight, bias), **loose(torch.float32))

    def test_rows_that_it_does_not(self):
        for columns, dtype in ((16388, torch.float32), (32776, torch.bfloat16), (63, torch.float32), (68, torch.float16)):
            self.check(1, columns, dtype)
        self.check(1, 64, activation="relu")

    def test_when_asked_for_kernels(self):
        with unittest.mock.patch.object(_functional, "FUSED_BYTES", 0):
            self.check(1, 64)
        with unittest.mock.patch.dict(os.environ, NORMJIT_TORCH_COMPILE="kernel"):
            self.assertEqual(_functional.fused_bytes(), 0)
        with unittest.mock.patch.dict(os.environ, NORMJIT_TORCH_COMPILE=""):
            self.assertEqual(_functional.fused_bytes(), 65536)

    def test_without_a_compiler(self):
        norm, x = LayerNorm(64, device=device), torch.randn(3, 64, device=device)
        with self.assert_launches(1):
            norm(x)

    def test_an_exported_program_has_the_operator(self):
        for strict in (False, True):
            program = torch.export.export(LayerNorm(64, device=device), (torch.randn(3, 64, device=device),), strict=strict)
            self.assertIn("normjit.layer_norm", str(program.graph))

    def test_columns_that_are_not_known(self):
        f = compiled(lambda x: layer_norm(x, x.shape[-1:]), dynamic=True)
        for shape in ((4, 16), (7, 16), (9, 24), (2, 17), (2, 40), (2, 20000)):
            x = torch.randn(shape, device=device)
            self.assert_close(f(x), reference(x, shape[-1:]))


class CompileTest(TestCase):
    def setUp(self):
        super().setUp()
        patch = unittest.mock.patch.object(_functional, "FUSED_BYTES", 0)  # the operator is what is tested here
        patch.start()
        self.addCleanup(patch.stop)

    def test_is_what_it_is_without(self):
        for activation in ACTIVATIONS:
            def f(x, weight, bias):
                return 2 * layer_norm(x.sin(), (16,), weight, bias, activation=activation, scale=0.5)
            x, (weight, bias) = torch.randn(4, 3, 16, device=device), parameters((16,))
            self.assert_close(compiled(f)(x, weight, bias), f(x, weight, bias), **loose(torch.float32))

    def test_gradients(self):
        norm = LayerNorm(16, device=device, activation="gelu", scale=0.5)
        x = torch.randn(4, 3, 16, device=device, requires_grad=True)
        inputs = (x, norm.weight, norm.bias)
        wanted = torch.autograd.grad(norm(x.sin()).cos().sum(), inputs)
        found = torch.autograd.grad(compiled(lambda x: norm(x.sin()).cos().sum())(x), inputs)
        for ours, theirs in zip(found, wanted):
            self.assert_close(ours, theirs, **loose(torch.float32))

    def test_any_number_of_rows_and_columns(self):
        f = compiled(lambda x: layer_norm(x, x.shape[-1:]), dynamic=True)
        for shape in ((4, 16), (7, 16), (9, 24), (2, 40)):
            x = torch.randn(shape, device=device)
            self.assert_close(f(x), reference(x, shape[-1:]))

    def test_under_autocast(self):
        norm = LayerNorm(16, device=device)

        def f(x):
            with torch.autocast(device.type, torch.bfloat16):
                return norm(x) + 1
        x = torch.randn(4, 16, device=device).bfloat16()
        y = compiled(f)(x)
        self.assertEqual(y.dtype, torch.float32)
        self.assert_close(y, f(x), **loose(torch.float32))

    def test_an_epsilon_that_only_pytorch_takes(self):
        x, (weight, bias) = torch.randn(4, 16, device=device), parameters((16,))
        f = compiled(lambda x: layer_norm(x, (16,), weight, bias, -1e-3))
        with self.assert_launches(0):
            self.assert_close(f(x), reference(x, (16,), weight, bias, -1e-3), **loose(torch.float32))

    def test_gradients_of_weights_that_are_wider_than_x(self):
        x, weight, bias, grad = mixed(torch.bfloat16, rows=1023, columns=33)
        f = compiled(lambda x, weight, bias: operators.layer_norm_with_gradients(
            x, 1, weight, bias, 1e-5, 1, 1.0, torch.bfloat16))
        check_mixed(self, f(x, weight, bias), (x, weight, bias), grad)

    def test_views_of_rows(self):
        f = lambda x: layer_norm(x[:, 3:19].transpose(0, 1).contiguous().transpose(0, 1), (16,))  # noqa: E731
        x = torch.randn(8, 32, device=device)
        self.assert_close(compiled(f)(x), f(x))

    def test_a_model(self):
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), 2,
                                      enable_nested_tensor=False).to(device)
        x = torch.randn(2, 5, 16, device=device)
        wanted = model(x)
        replace_layer_norm(model)
        with self.assert_launches(4):
            self.assert_close(model(x), wanted, **loose(torch.float32))
        fast = compiled(model)
        fast(x)
        with self.assert_launches(4):
            found = fast(x)
        self.assert_close(found, wanted, **loose(torch.float32))
        found.sum().backward()
        self.assertTrue(all(p.grad is not None for p in model.parameters()))

    def test_an_error_of_shapes(self):
        with self.assertRaisesRegex(Exception, r"Given normalized_shape=\[8\]"):
            compiled(lambda x: layer_norm(x, (8,)))(torch.randn(3, 16, device=device))

    def test_inductor(self):
        norm = LayerNorm(16, activation="silu", device=device)
        x = torch.randn(4, 3, 16, device=device, requires_grad=True)
        torch._dynamo.reset()
        f = torch.compile(lambda x: norm(x.sin()) * 2, fullgraph=True)
        with self.assert_launches(1):
            found = f(x)
        wanted = norm(x.sin()) * 2
        self.assert_close(found, wanted, **loose(torch.float32))
        grad = torch.randn_like(found)
        self.assert_close(torch.autograd.grad(found, x, grad)[0], torch.autograd.grad(wanted, x, grad)[0],
                          **loose(torch.float32))


class FunctionalTransformsTest(TestCase):
    def test_vmap(self):
        x, (weight, bias) = torch.randn(6, 4, 16, device=device), parameters((16,))
        many = torch.randn(6, 16, device=device)
        for arguments, in_dims in (((x, weight, bias), (0, None, None)), ((x, weight, bias), (1, None, None)),
                                   ((x, many, bias), (0, 0, None)), ((x, many.t(), many), (0, 1, 0)),
                                   ((x[0], many, None), (None, 0, None)), ((x, None, None), (0, None, None))):
            def f(x, weight, bias):
                return layer_norm(x, (16,), weight, bias, activation="gelu", scale=0.5)

            def g(x, weight, bias):
                return functional.gelu(functional.layer_norm(x, (16,), weight, bias)) * 0.5
            self.assert_close(torch.vmap(f, in_dims)(*arguments), torch.vmap(g, in_dims)(*arguments), **loose(torch.float32))

    def test_vmap_of_samples_is_one_launch(self):
        x, (weight, bias) = torch.randn(6, 4, 16, device=device), parameters((16,))
        with self.assert_launches(1):
            torch.vmap(lambda x: layer_norm(x, (16,), weight, bias))(x)

    def test_grad_and_vmap_of_grad(self):
        x, (weight, bias) = torch.randn(6, 4, 16, device=device), parameters((16,))

        def loss(norm):
            return lambda weight, x: norm(x, (16,), weight, bias).sin().sum()
        for transform in (lambda f: torch.func.grad(f)(weight, x), lambda f: torch.func.grad(f, 1)(weight, x),
                          lambda f: torch.vmap(torch.func.grad(f), (None, 0))(weight, x)):
            self.assert_close(transform(loss(layer_norm)), transform(loss(functional.layer_norm)), **loose(torch.float32))

    def test_gradients_of_weights_that_are_wider_than_x(self):
        x, weight, bias, grad = (part.detach() for part in mixed(torch.bfloat16, rows=1023, columns=33))

        def loss(weight, bias, x, grad):
            y = _rules.differentiable(x, 1, weight, bias, 1e-5, 1, 1.0, torch.bfloat16)
            return (y.float() * grad).sum()
        gradient = torch.func.grad(loss, (0, 1))
        _, wanted_weight, wanted_bias = mixed_reference((x, weight, bias), grad)
        each = torch.vmap(gradient, (None, None, 0, 0))(weight, bias, x, grad)
        for found in (gradient(weight, bias, x, grad), [part.sum(0) for part in each]):
            for ours, right in zip(found, (wanted_weight, wanted_bias)):
                self.assertEqual(ours.dtype, torch.float32)
                self.assert_close(ours, right, rtol=1e-4, atol=1e-3)

    def test_jvp(self):
        x, tangent = torch.randn(4, 16, device=device), torch.randn(4, 16, device=device)
        found, wanted = (torch.func.jvp(lambda x: norm(x, (16,)), (x,), (tangent,))
                         for norm in (layer_norm, functional.layer_norm))
        self.assert_close(found[1], wanted[1], **loose(torch.float32))

    def test_a_call_of_a_module_with_other_parameters(self):
        norm, x = LayerNorm(16, device=device), torch.randn(4, 16, device=device)
        weight, bias = parameters((16,))
        found = torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,))
        self.assert_close(found, reference(x, (16,), weight, bias))


class ExportTest(TestCase):
    def test_export(self):
        norm = LayerNorm(16, device=device, activation="gelu").eval()
        x = torch.randn(4, 16, device=device)
        rows = torch.export.Dim("rows", min=2)
        with torch.no_grad():
            program = torch.export.export(norm, (x,), dynamic_shapes=({0: rows},))
        self.assertIn("normjit.layer_norm.default", str(program.graph))
        other = torch.randn(9, 16, device=device)
        self.assert_close(program.module()(other), norm(other))

    def test_trace(self):
        norm, x = LayerNorm(16, device=device).eval().requires_grad_(False), torch.randn(4, 16, device=device)
        file = io.BytesIO()
        torch.jit.save(torch.jit.trace(norm, (x,)), file)
        file.seek(0)
        self.assert_close(torch.jit.load(file)(x), norm(x))

    def test_a_script_calls_back(self):
        norm, x = LayerNorm(16, device=device), torch.randn(4, 16, device=device)
        self.assert_close(torch.jit.script(nn.Sequential(norm, nn.ReLU()))(x), norm(x).relu())


if __name__ == "__main__":
    main()
