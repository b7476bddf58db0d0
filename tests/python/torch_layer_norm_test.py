# SPDX-License-Identifier: Apache-2.0
"""normjit.torch beside PyTorch: values, dtypes, shapes, strides, errors, gradients, autocast, modules."""
import copy
import functools
import io
import itertools
import pickle
import unittest.mock

from torch_support import (ACTIVATIONS, DTYPES, FAKE, TestCase, ThroughPython, _operator, check_mixed, device, fake, functional, loose, main,
                           mixed, parameters, reference, torch)

from normjit.torch import LayerNorm, _rules, layer_norm, replace_layer_norm
from torch.testing._internal.two_tensor import TwoTensor

nn = torch.nn


class ValuesTest(TestCase):
    def any_layout(self, shape, dtype):
        """Random values of this shape, in one of many layouts."""
        kind = self.random.choice(("plain", "columns of more", "rows of more", "every second", "transposed", "expanded",
                                   "unaligned"))
        make = lambda *sizes: torch.randn(*sizes, device=device).to(dtype)  # noqa: E731
        if kind == "columns of more":
            return make(*shape[:-1], shape[-1] + 3)[..., 1:-2]
        if kind == "rows of more" and len(shape) > 1:
            return make(shape[0] + 2, *shape[1:])[1:-1]
        if kind == "every second":
            return make(*shape[:-1], 2 * shape[-1])[..., ::2]
        if kind == "transposed" and len(shape) > 1:
            return make(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
        if kind == "expanded" and len(shape) > 1:
            return make(1, *shape[1:]).expand(shape)
        if kind == "unaligned":
            return make(1 + torch.Size(shape).numel())[1:].view(shape)
        return make(*shape)

    def test_random_layers_are_those_of_pytorch(self):
        for _ in range(200 if FAKE else 40):  # on a GPU each compiles a kernel
            dtype = self.random.choice(DTYPES)
            shape = [self.random.choice((1, 2, 3, 5, 8, 31, 64)) for _ in range(self.random.randint(1, 4))]
            normalized = tuple(shape[self.random.randrange(len(shape)):])
            x = self.any_layout(shape, dtype)
            weight, bias = parameters(normalized, dtype)
            weight, bias = self.random.choice(((None, None), (weight, None), (weight, bias)))
            options = {"activation": self.random.choice(ACTIVATIONS), "scale": self.random.choice((1.0, -0.5, 0.0))}
            eps = self.random.choice((1e-5, 1e-12, 0.25))
            if torch.Size(normalized).numel() < 5:
                eps = 0.25  # the variance may be next to nothing, and the result then mostly rounding
            with self.subTest(shape=shape, normalized=normalized, stride=x.stride(), dtype=dtype, eps=eps, **options,
                              parameters=(weight is not None) + (bias is not None)):
                with self.assert_launches(1):
                    y = layer_norm(x, normalized, weight, bias, eps, **options)
                theirs = functional.layer_norm(x, normalized, weight, bias, eps)
                self.assertEqual((y.dtype, y.shape, y.device, y.is_contiguous()),
                                 (theirs.dtype, theirs.shape, theirs.device, True))
                self.assert_close(y, reference(x, normalized, weight, bias, eps, **options))

    def test_weights_in_any_layout(self):
        x = torch.randn(4, 6, 8, device=device)
        weight, bias = parameters((6, 8))
        for way in (lambda p: p.t().contiguous().t(), lambda p: torch.stack((p, p), -1)[..., 0],
                    lambda p: p[:1].expand(6, 8)):
            self.assert_close(layer_norm(x, (6, 8), way(weight), way(bias)), reference(x, (6, 8), way(weight), way(bias)))

    def test_rows_at_a_distance_are_read_where_they_are(self):
        for x in (torch.randn(6, 5, 40, device=device)[:, :, :32], torch.randn(6, 5, 32, device=device)[::2, 1],
                  torch.randn(1, 32, device=device).expand(7, 32)):
            self.assert_close(layer_norm(x, (32,)), reference(x, (32,)))
            if FAKE:
                self.assertEqual(fake.row_stride, x.stride(-2))
        heads = torch.randn(2, 5, 6 * 16, device=device)[..., 16:64].view(2, 5, 3, 16)
        self.assert_close(layer_norm(heads, (16,)), reference(heads, (16,)))
        if FAKE:
            self.assertEqual(fake.operands[0], heads.data_ptr())

    def test_empty_inputs_launch_nothing(self):
        for shape, normalized in (((0, 8), (8,)), ((3, 0, 8), (8,)), ((0, 2, 8), (2, 8))):
            x = torch.randn(shape, device=device, requires_grad=True)
            weight, bias = parameters(normalized, requires_grad=True)
            with self.assert_launches(0):
                y = layer_norm(x, normalized, weight, bias, activation="gelu")
            self.assertEqual(y.shape, x.shape)
            with self.assert_launches(0):
                y.sum().backward()
            self.assertEqual(x.grad.shape, x.shape)
            self.assertEqual(weight.grad.abs().sum().item(), 0)

    def test_many_dimensions(self):
        x = torch.randn(2, 1, 2, 1, 2, 1, 2, 1, 2, 4, device=device)
        self.assert_close(layer_norm(x, x.shape[-9:]), reference(x, x.shape[-9:]))
        self.assert_close(layer_norm(x, (4,)), reference(x, (4,)))

    def test_a_list_or_a_size_is_a_shape(self):
        x = torch.randn(3, 4, 8, device=device)
        for shape in ([4, 8], torch.Size((4, 8))):
            self.assert_close(layer_norm(x, shape), reference(x, (4, 8)))

    def test_a_bias_without_a_weight_is_pytorchs_to_compute(self):
        x, bias = torch.randn(3, 8, device=device), torch.randn(8, device=device)
        with self.assert_launches(0):
            self.assert_close(layer_norm(x, (8,), None, bias, activation="relu"),
                              reference(x, (8,), None, bias, activation="relu"))


    def test_an_epsilon_that_only_pytorch_takes(self):
        operators = torch.ops.normjit
        for eps in (-1e-3, -1e9, float("inf"), float("nan")):
            x, (weight, bias) = torch.randn(3, 8, device=device), parameters((8,))
            norm = LayerNorm(8, eps, activation="gelu", device=device)
            patched = replace_layer_norm(nn.LayerNorm(8, eps, device=device))
            wanted = functional.layer_norm(x, (8,), weight, bias, eps)
            close = functools.partial(torch.testing.assert_close, equal_nan=True)
            with self.assert_launches(0):
                close(layer_norm(x, (8,), weight, bias, eps), wanted)
                close(layer_norm(x, (8,), weight, bias, eps, activation="relu", scale=0.5), 0.5 * wanted.relu())
                close(norm(x), functional.gelu(functional.layer_norm(x, (8,), eps=eps)))
                close(patched(x), functional.layer_norm(x, (8,), eps=eps))
                close(operators.layer_norm(x, 1, weight, bias, eps), wanted)
                close(operators.layer_norm(x, 1, weight, bias, eps, 2, 0.5), 0.5 * wanted.relu())
                close(operators.layer_norm(x, 1, weight, bias, eps, 1, 1.0, torch.bfloat16), wanted.bfloat16())
                close(operators.layer_norm_with_gradients(x, 1, weight, bias, eps), wanted)

    def test_gradients_with_an_epsilon_that_only_pytorch_takes(self):
        x, (weight, bias) = torch.randn(3, 8, device=device), parameters((8,))
        inputs = [part.requires_grad_() for part in (x, weight, bias)]
        wanted = torch.autograd.grad(functional.layer_norm(x, (8,), weight, bias, -1e-3).sin().sum(), inputs)
        for y in (layer_norm(x, (8,), weight, bias, -1e-3),
                  torch.ops.normjit.layer_norm_with_gradients(x, 1, weight, bias, -1e-3)):
            for ours, theirs in zip(torch.autograd.grad(y.sin().sum(), inputs), wanted):
                self.assert_close(ours, theirs, **loose(torch.float32))

    def test_a_stream_keeps_its_workspace(self):
        if not FAKE:
            self.skipTest("the fake tells")
        self.addCleanup(setattr, fake, "workspace_bytes", 0)
        fake.workspace_bytes = 1000
        seen = []
        for columns in (1001, 1002, 1001):  # none that a test before has asked for
            layer_norm(torch.randn(2, columns), (columns,))
            seen.append(fake.workspace)
        self.assertEqual(len(set(seen)), 1)
        self.assertNotIn(seen[0], (None, 0))
        fake.workspace_bytes = 1 << 20
        layer_norm(torch.randn(2, 1003), (1003,))
        self.assertNotEqual(fake.workspace, seen[0])

    def test_a_nested_tensor_is_pytorchs_to_compute(self):
        parts, (weight, bias) = [torch.randn(n, 8, device=device) for n in (2, 5)], parameters((8,))
        for layout in (torch.strided, torch.jagged):
            x = torch.nested.nested_tensor(parts, layout=layout)
            with self.assert_launches(0):
                found = layer_norm(x, (8,), weight, bias)
            for ours, part in zip(found.unbind(), parts):
                self.assert_close(ours, reference(part, (8,), weight, bias))


    def test_a_wrapper_of_tensors_is_pytorchs_to_compute(self):
        x, (weight, bias) = torch.randn(3, 8, device=device), parameters((8,))
        wrapped = [TwoTensor(part, 2 * part) for part in (x, weight, bias)]
        for inputs in (wrapped, (x, *wrapped[1:])):
            with self.assert_launches(0):
                found = layer_norm(inputs[0], (8,), *inputs[1:], activation="relu")
            self.assert_close(found.a, reference(x, (8,), weight, bias, activation="relu"))
            wanted = functional.relu(functional.layer_norm(inputs[0], (8,), *inputs[1:]))
            self.assert_close(found.b, wanted.b)

    def test_a_distributed_tensor_is_pytorchs_to_compute(self):
        if not FAKE or not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            self.skipTest("takes gloo, and a mesh of the CPU")
        from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        mesh = init_device_mesh("cpu", (1,))
        x, (weight, bias) = torch.randn(4, 8, requires_grad=True), parameters((8,))
        distributed = [distribute_tensor(part, mesh, [placement])
                       for part, placement in ((x, Shard(0)), (weight, Replicate()), (bias, Replicate()))]
        with self.assert_launches(0):
            y = layer_norm(distributed[0], (8,), *distributed[1:], activation="gelu")
        self.assertIsInstance(y, DTensor)
        self.assert_close(y.to_local(), reference(x, (8,), weight, bias, activation="gelu"))
        norm = replace_layer_norm(nn.LayerNorm(8))
        norm.weight, norm.bias = (nn.Parameter(part) for part in distributed[1:])
        self.assert_close(norm(distributed[0]).to_local(), reference(x, (8,), weight, bias))


class ErrorsTest(TestCase):
    def test_errors_of_shapes_are_pytorchs(self):
        x, weight = torch.randn(3, 8, device=device), torch.randn(8, device=device)
        for arguments in ((x, (7,)), (x, ()), (x, (2, 3, 8)), (x, (7,), weight), (x, (8,), weight[:4]), (x, (8,), None, weight[:4]),
                          (torch.tensor(1.0, device=device), (1,)), (torch.tensor(1.0, device=device), ()),
                          (x, (8,), weight, weight.view(1, 8)), (3, (8,)), (None, (8,)), (x, (8,), 3),
                          (x.to_sparse(), (8,))):
            with self.subTest(arguments=[getattr(a, "shape", a) for a in arguments]):
                self.assert_same_error(lambda: layer_norm(*arguments), lambda: functional.layer_norm(*arguments))

    def test_dtypes_do_not_mix(self):
        x, weight = torch.randn(3, 8, device=device), torch.randn(8, device=device)
        for arguments in ((x.half(), (8,), weight), (x.half(), (8,), weight.half(), weight), (x.double(), (8,), weight)):
            with self.assertRaisesRegex(RuntimeError, "expected scalar type (Half|Double) but found Float"):
                layer_norm(*arguments)
        for x in (torch.ones(3, 8, device=device, dtype=torch.int64), torch.ones(3, 8, device=device, dtype=torch.cfloat)):
            with self.assertRaisesRegex(RuntimeError, "not implemented for"):
                layer_norm(x, (8,))

    def test_devices_do_not_mix(self):
        elsewhere = torch.device("meta" if FAKE else "cpu")
        x, weight = torch.randn(3, 8, device=device), torch.ones(8, device=elsewhere)
        with self.assertRaisesRegex(RuntimeError, "(?s)Expected all tensors to be on the same device, but .*(weight|device)"):
            layer_norm(x, (8,), weight)

    def test_an_activation_is_one_of_a_few(self):
        for bad in ("tanh", 3, []):
            with self.assertRaisesRegex(ValueError, "activation must be None, 'relu'"):
                layer_norm(torch.randn(3, 8, device=device), (8,), activation=bad)
            with self.assertRaisesRegex(ValueError, "activation must be None, 'relu'"):
                LayerNorm(8, activation=bad)

    def test_what_libnormjit_says_reaches_the_caller(self):
        if not FAKE:
            with self.assertRaisesRegex(RuntimeError, "activation is 99"):
                torch.ops.normjit.layer_norm(torch.randn(3, 8, device=device), 1, None, None, 1e-5, 99)
            return
        for status, text in ((700, "^The fake was told to refuse.$"), (801, "Call the layer once .* before the capture begins")):
            fake.next_status = status
            with self.assertRaisesRegex(RuntimeError, text):
                layer_norm(torch.randn(3, 8), (8,))


class GradientsTest(TestCase):
    def gradients(self, y, inputs, grad):
        return torch.autograd.grad(y, inputs, grad)

    def test_gradients_are_those_of_pytorch(self):
        for dtype in DTYPES:
            for activation, scale in ((None, 1.0), *((activation, 0.5) for activation in ACTIVATIONS)):
                x = torch.randn(5, 3, 16, device=device).to(dtype).requires_grad_()
                inputs = (x, *parameters((16,), dtype, requires_grad=True))
                y = layer_norm(x, (16,), *inputs[1:], activation=activation, scale=scale)
                grad = torch.randn_like(y)
                wide = [part.detach().double().requires_grad_() for part in inputs]
                wanted = self.gradients(reference(wide[0], (16,), *wide[1:], activation=activation, scale=scale), wide, grad.double())
                for found, right in zip(self.gradients(y, inputs, grad), wanted):
                    self.assertEqual(found.dtype, dtype)
                    self.assert_close(found, right, **loose(dtype))

    def test_gradients_of_weights_that_are_wider_than_x(self):
        for dtype, (rows, columns) in itertools.product((torch.float16, torch.bfloat16),
                                                        ((1, 1), (3, 7), (1023, 33), (4099, 5))):
            x, weight, bias, grad = mixed(dtype, rows, columns)
            y = torch.ops.normjit.layer_norm_with_gradients(x, 1, weight, bias, 1e-5, 1, 1.0, dtype)
            check_mixed(self, y, (x, weight, bias), grad)
            y = _rules.differentiable(x, 1, weight, bias, 1e-5, 1, 1.0, dtype)
            check_mixed(self, y, (x, weight, bias), grad)

    def test_only_what_is_asked_for_gets_a_gradient(self):
        for asked, activation in itertools.product(((0,), (1,), (2,), (0, 2), (1, 2)), (None, "silu")):
            inputs = [torch.randn(5, 16, device=device), *parameters((16,))]
            for i in asked:
                inputs[i].requires_grad_()
            layer_norm(inputs[0], (16,), *inputs[1:], activation=activation).sum().backward()
            self.assertEqual([i for i in range(3) if inputs[i].grad is not None], list(asked))

    def test_without_a_bias_or_a_weight(self):
        for given, cast in itertools.product((0, 1), (False, True)):
            inputs = [torch.randn(5, 16, device=device, requires_grad=True), *parameters((16,), requires_grad=True)[:given]]
            with torch.autocast(device.type, torch.bfloat16, enabled=cast):
                y = layer_norm(inputs[0], (16,), *inputs[1:])
            grad = torch.randn_like(y)
            wide = [part.detach().double().requires_grad_() for part in inputs]
            wanted = self.gradients(reference(wide[0], (16,), *wide[1:]), wide, grad.double())
            for found, right in zip(self.gradients(y, inputs, grad), wanted):
                self.assert_close(found, right, **loose(torch.float32))

    def test_what_was_changed_since_is_noticed(self):
        x, weight = torch.randn(5, 16, device=device), torch.ones(16, device=device, requires_grad=True)
        y = layer_norm(x, (16,), weight)
        x.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.sum().backward()
        with self.assertRaisesRegex(RuntimeError, "backward through the graph a second time"):
            y = layer_norm(x, (16,), weight).sum()
            y.backward()
            y.backward()

    def test_saved_tensors_can_be_packed(self):
        packed, norm = [], LayerNorm(16, device=device)
        x = torch.randn(5, 16, device=device, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t.cpu(), lambda t: t.to(device)):
            y = norm(x)
        self.assertEqual(packed, [x.shape, norm.weight.shape])
        wanted = torch.autograd.grad(norm(x).sin().sum(), x)[0]
        self.assert_close(torch.autograd.grad(y.sin().sum(), x)[0], wanted)

    def test_first_and_second_derivatives_are_those_of_differences(self):
        x = torch.randn(2, 2, 5, device=device, dtype=torch.float64, requires_grad=True)
        for shape in ((5,), (2, 5)):
            weight, bias = parameters(shape, torch.float64, requires_grad=True)
            for activation, scale in ((None, 1.0), (None, 1.5), ("gelu", 1.5), ("silu", 1.5)):
                def f(*inputs):
                    return layer_norm(inputs[0], shape, *inputs[1:], activation=activation, scale=scale)
                self.assertTrue(torch.autograd.gradcheck(f, (x, weight, bias)))
                self.assertTrue(torch.autograd.gradgradcheck(f, (x, weight, bias)))
                with torch.autocast(device.type, torch.bfloat16):
                    self.assertTrue(torch.autograd.gradgradcheck(f, (x, weight, bias)))
            self.assertTrue(torch.autograd.gradgradcheck(lambda x: layer_norm(x, shape), (x,)))

    def test_forward_mode_is_pytorchs_to_compute(self):
        x, tangent = torch.randn(3, 8, device=device), torch.randn(3, 8, device=device)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, tangent)
            with self.assert_launches(0):
                y = layer_norm(dual, (8,), activation="gelu")
            found = torch.autograd.forward_ad.unpack_dual(y).tangent
            wanted = torch.autograd.forward_ad.unpack_dual(functional.gelu(functional.layer_norm(dual, (8,)))).tangent
        self.assert_close(found, wanted, **loose(torch.float32))

    def test_without_gradients_there_is_no_node(self):
        x, (weight, bias) = torch.randn(3, 8, device=device), parameters((8,), requires_grad=True)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                self.assertFalse(layer_norm(x, (8,), weight, bias).requires_grad)
        self.assertIsNone(layer_norm(x, (8,), weight.detach(), bias.detach()).grad_fn)
        self.assertIsNotNone(layer_norm(x, (8,), weight, bias.detach()).grad_fn)

    def test_recomputed_in_a_checkpoint(self):
        norm = LayerNorm(8, device=device)
        x = torch.randn(3, 8, device=device, requires_grad=True)
        torch.utils.checkpoint.checkpoint(lambda v: norm(v).sin(), x, use_reentrant=False).sum().backward()
        again = x.detach().clone().requires_grad_()
        norm(again).sin().sum().backward()
        self.assert_close(x.grad, again.grad)


class FunctionTest(TestCase):
    """The function in C++ that plain calls take."""

    def setUp(self):
        super().setUp()
        _rules.native_differentiable()
        if _operator.function is None:
            self.skipTest("not compiled, or without Python's headers")

    def test_computes_what_is_plain(self):
        x, (weight, bias) = torch.randn(3, 4, 8, device=device), parameters((4, 8), requires_grad=True)
        for given in ((x, (4, 8), weight, bias), (x, (4, 8), nn.Parameter(weight), None), (x[:, ::2], (8,), None, None),
                      (x.clone().requires_grad_(), torch.Size((8,)), None, None)):
            with self.assert_launches(1):
                y = _operator.function(*given, 1e-5)
            self.assert_close(y, reference(*given))
            self.assertEqual(y.requires_grad, any(getattr(part, "requires_grad", False) for part in given))
            if y.requires_grad:
                self.assertEqual(type(y.grad_fn).__name__, "CppFunction")
            with torch.no_grad():
                self.assertFalse(_operator.function(*given, 1e-5).requires_grad)

    def test_errors_are_those_of_the_operator(self):
        x, (weight, bias) = torch.randn(3, 8, device=device), parameters((8,))
        for given in ((x, (8,), weight[:4], None), (x.half(), (8,), weight, bias), (x.long(), (8,), None, None)):
            self.assert_same_error(lambda: _operator.function(*given, 1e-5),
                                   lambda: torch.ops.normjit.layer_norm(given[0], 1, *given[2:], 1e-5))

    def test_leaves_all_else_alone(self):
        x, (weight, bias) = torch.randn(3, 8, device=device), parameters((8,))
        call, said = _operator.function, []
        plain = (x, (8,), weight, bias, 1e-5)

        def leaves(*given):
            with self.assert_launches(0):
                said.append(call(*given))
            return given[0]
        wrapped = [TwoTensor(part, part) for part in (x, weight, bias)]
        others = (plain[:4], (*plain[:4], 1), (None, *plain[1:]), (3, *plain[1:]), (x, [8], *plain[2:]), (x, (), *plain[2:]),
                  (x, (7,), *plain[2:]), (x, (2**70,), *plain[2:]), (x, ("8",), *plain[2:]), (x, (1, 3, 8), *plain[2:]),
                  (x, (8,), None, bias, 1e-5), (x, (8,), 3, bias, 1e-5), (*plain[:4], -1.0), (*plain[:4], float("nan")),
                  (wrapped[0], *plain[1:]), (x, (8,), wrapped[1], bias, 1e-5), (x.to_sparse(), *plain[1:]),
                  (x.to("meta"), *plain[1:]), (torch.nested.nested_tensor([x]), *plain[1:]))
        for given in others:
            leaves(*given)
        torch.vmap(lambda x: leaves(x, *plain[1:]))(x[None])
        torch.func.grad(lambda x: leaves(x, *plain[1:]).sum())(x)
        torch.func.functionalize(lambda x: leaves(x, *plain[1:]))(x)
        torch.jit.trace(lambda x: leaves(x, *plain[1:]), (x,), check_trace=False)
        with torch._subclasses.FakeTensorMode() as mode:
            leaves(mode.from_tensor(x), *plain[1:])
        with torch.autograd.forward_ad.dual_level():
            leaves(torch.autograd.forward_ad.make_dual(x, x), *plain[1:])
        with torch.overrides.BaseTorchFunctionMode():
            leaves(*plain)
        with torch.autocast(device.type, torch.bfloat16):
            leaves(*plain)
        self.assertEqual(said, [None] * (len(others) + 8))


class AutocastTest(TestCase):
    def test_answers_in_f32(self):
        for amp in (torch.float16, torch.bfloat16):
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                for weights in (torch.float32, torch.float16, torch.bfloat16):
                    x = torch.randn(5, 16, device=device).to(dtype).requires_grad_()
                    inputs = (x, *parameters((16,), weights, requires_grad=True))
                    with torch.autocast(device.type, amp):
                        with self.assert_launches(1):
                            y = layer_norm(x, (16,), *inputs[1:])
                        if not FAKE:
                            self.assertEqual(functional.layer_norm(x, (16,), *inputs[1:]).dtype, y.dtype)
                    self.assertEqual(y.dtype, torch.float32)
                    self.assert_close(y, reference(x, (16,), *inputs[1:]))
                    grad = torch.randn_like(y)
                    wide = [part.detach().double().requires_grad_() for part in inputs]
                    wanted = torch.autograd.grad(reference(wide[0], (16,), *wide[1:]), wide, grad.double())
                    for found, part, right in zip(torch.autograd.grad(y, inputs, grad), inputs, wanted):
                        self.assertEqual(found.dtype, part.dtype)
                        self.assert_close(found, right, **loose(part.dtype))

    def test_f64_stays_f64(self):
        with torch.autocast(device.type, torch.bfloat16):
            self.assertEqual(layer_norm(torch.randn(5, 16, device=device, dtype=torch.float64), (16,)).dtype, torch.float64)

    def test_weight_and_bias_may_differ(self):
        x, (weight, bias) = torch.randn(5, 16, device=device).half(), parameters((16,))
        with torch.autocast(device.type, torch.float16):
            y = layer_norm(x, (16,), weight.half(), bias)
        self.assert_close(y, reference(x, (16,), weight.half(), bias))

    def test_an_activation_is_in_f32_too(self):
        x, (weight, bias) = torch.randn(5, 16, device=device).bfloat16().requires_grad_(), parameters((16,))
        with torch.autocast(device.type, torch.bfloat16):
            y = layer_norm(x, (16,), weight.bfloat16(), bias, activation="gelu")
        self.assert_close(y, reference(x, (16,), weight.bfloat16(), bias, activation="gelu"))
        y.sum().backward()
        self.assertEqual(x.grad.dtype, torch.bfloat16)


class GradientsThroughPythonTest(ThroughPython, GradientsTest):
    pass


class AutocastThroughPythonTest(ThroughPython, AutocastTest):
    pass


class ModuleTest(TestCase):
    def test_takes_what_torch_nn_layernorm_takes(self):
        for arguments, options in (((8,), {}), (([4, 8],), {"eps": 1e-3}), (((8,), 1e-6, False), {}), ((8, 1e-5, True, False), {}),
                                   ((8,), {"bias": False, "dtype": torch.float64})):
            theirs = nn.LayerNorm(*arguments, device=device, **options)
            ours = LayerNorm(*arguments, device=device, **options)
            self.assertEqual(repr(ours), repr(theirs))
            self.assertEqual({k: (v.shape, v.dtype) for k, v in ours.state_dict().items()},
                             {k: (v.shape, v.dtype) for k, v in theirs.state_dict().items()})
            with torch.no_grad():
                for parameter in theirs.parameters():
                    parameter.normal_()
            ours.load_state_dict(theirs.state_dict())
            x = torch.randn(3, *theirs.normalized_shape, device=device, dtype=options.get("dtype"))
            with self.assert_launches(1):
                y = ours(x)
            self.assert_close(y, theirs(x).detach(), **loose(y.dtype))
            ours.reset_parameters()
            self.assertTrue(all((p == (n == "weight")).all() for n, p in ours.named_parameters()))

    def test_says_what_follows(self):
        self.assertIn("activation='gelu', scale=0.5", repr(LayerNorm(8, activation="gelu", scale=0.5)))
        x = torch.randn(3, 8, device=device)
        self.assert_close(LayerNorm(8, device=device, activation="gelu", scale=0.5)(x).detach(),
                          reference(x, (8,), activation="gelu", scale=0.5))

    def test_can_be_copied_and_stored(self):
        norm = LayerNorm(8, activation="silu", scale=2.0, device=device)
        file = io.BytesIO()
        torch.save(norm, file)
        file.seek(0)
        x = torch.randn(3, 8, device=device)
        for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm)), torch.load(file, weights_only=False)):
            self.assert_close(other(x), norm(x))
            self.assertEqual(repr(other), repr(norm))

    def test_elsewhere_it_is_pytorchs(self):
        norm = LayerNorm(8, activation="gelu", scale=0.5, device="meta")
        self.assertEqual(norm(torch.randn(3, 8, device="meta")).shape, (3, 8))
        if not FAKE:
            x = torch.randn(3, 8, requires_grad=True)
            with self.assert_launches(0):
                y = LayerNorm(8, activation="gelu", scale=0.5)(x)
                y.sum().backward()
            self.assert_close(y, reference(x, (8,), activation="gelu", scale=0.5), **loose(torch.float32))

    def test_a_parametrized_weight(self):
        norm = LayerNorm(8, device=device)

        class Doubled(nn.Module):
            def forward(self, weight):
                return 2 * weight
        nn.utils.parametrize.register_parametrization(norm, "weight", Doubled())
        x = torch.randn(3, 8, device=device)
        self.assert_close(norm(x), reference(x, (8,), norm.weight, norm.bias))


class Named(nn.LayerNorm):
    """A subclass that computes what its base computes."""

    def name(self):
        return "named"


class Other(nn.LayerNorm):
    """A subclass that computes something else."""

    def forward(self, x):
        return super().forward(x) + 1


class ReplaceTest(TestCase):
    def model(self):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
                             Named(8, eps=1e-3), Other(8)).to(device).eval()

    def test_every_layernorm_of_a_model(self):
        model = self.model()
        before, state = dict(model.named_modules()), model.state_dict()
        seen = []
        model[1].register_forward_hook(lambda *_: seen.append(1))
        model[1].train()
        x = torch.randn(3, 5, 8, device=device, requires_grad=True)
        wanted = model(x)
        self.assertIs(replace_layer_norm(model), model)
        self.assertEqual([type(m) is LayerNorm for m in (model[1], model[2].norm1, model[2].norm2)], [True] * 3)
        self.assertIsInstance(model[3], (LayerNorm, Named))
        self.assertEqual(model[3].name(), "named")
        self.assertIs(type(model[4]), Other)
        for name, module in model.named_modules():
            self.assertIs(module, before[name])
        for name, value in model.state_dict().items():
            self.assertEqual(value.data_ptr(), state[name].data_ptr())
        self.assertTrue(model[1].training)
        with self.assert_launches(4):
            found = model(x)
        self.assertEqual(len(seen), 2)
        self.assert_close(found, wanted, **loose(torch.float32))
        self.assertIs(replace_layer_norm(model), model)
        self.assert_close(model(x), wanted, **loose(torch.float32))

    def test_what_was_replaced_can_be_copied_and_stored(self):
        model = replace_layer_norm(self.model())
        x = torch.randn(3, 5, 8, device=device, requires_grad=True)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with self.assert_launches(4):
                y = other(x)
            self.assert_close(y, model(x))
            self.assertIsInstance(other[3], Named)
            self.assertIsInstance(other[3], LayerNorm)

    def test_a_layernorm_itself(self):
        self.assertIs(type(replace_layer_norm(nn.LayerNorm(8))), LayerNorm)


if __name__ == "__main__":
    main()
