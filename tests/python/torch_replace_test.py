#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""replace_norms: which modules it replaces, with what, and that they compute what they did."""
import copy
import importlib
import pickle
import unittest.mock

from torch_support import FAKE, TestCase, device, fake, loose, main, torch

from normjit.torch import LayerNorm, RMSNorm, _functional, replace_layer_norm, replace_norms

nn = torch.nn


class LlamaLikeRMSNorm(nn.Module):
    """As transformers has it for Llama, Qwen and Mistral."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon)).to(input_dtype)


class GemmaLikeRMSNorm(nn.Module):
    """As transformers has it for Gemma."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).type_as(x)


class OlmoLikeRMSNorm(LlamaLikeRMSNorm):
    """As transformers has it for OLMo 2: the product is rounded once."""

    def forward(self, x):
        h = x.float()
        return (self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))).to(x.dtype)


class OddRMSNorm(LlamaLikeRMSNorm):
    """Something else."""

    def forward(self, x):
        return 1.01 * super().forward(x)


class GatedRMSNorm(LlamaLikeRMSNorm):
    def forward(self, x, gate):
        return super().forward(x) * gate


class ImageLayerNorm(nn.LayerNorm):
    """As transformers has it for ConvNeXt and SAM."""

    def __init__(self, size, data_format="channels_first", **options):
        super().__init__(size, eps=1e-6, **options)
        self.data_format = data_format

    def forward(self, x):
        if self.data_format == "channels_first":
            return super().forward(x.movedim(1, -1)).movedim(-1, 1)
        return super().forward(x)


class PlainLayerNorm2d(nn.LayerNorm):
    """As torchvision and timm have it."""

    def forward(self, x):
        return nn.functional.layer_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.bias, self.eps).movedim(-1, 1)


def steps(self, x):
    centred = x - x.mean(1, keepdim=True)
    root = torch.sqrt(centred.square().mean(1, keepdim=True) + self.eps)
    return self.weight[:, None, None] * (centred / root) + self.bias[:, None, None]


class StepsLayerNorm(nn.Module):
    """As ConvNeXt has it: rounds between its steps."""

    def __init__(self, size, data_format="channels_first"):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.eps, self.data_format, self.normalized_shape = 1e-6, data_format, (size,)

    def forward(self, x):
        if self.data_format == "channels_first":
            return steps(self, x)
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class StepsLayerNorm2d(nn.Module):
    """As the first SAM has it."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size)), 1e-6
    forward = steps


class WrongLayerNorm2d(StepsLayerNorm2d):
    """Epsilon is added to the root."""

    def forward(self, x):
        centred = x - x.mean(1, keepdim=True)
        root = torch.sqrt(centred.square().mean(1, keepdim=True)) + self.eps
        return self.weight[:, None, None] * (centred / root) + self.bias[:, None, None]


class UnbiasedLayerNorm2d(StepsLayerNorm2d):
    def forward(self, x):
        root = torch.sqrt(x.var(1, keepdim=True) + self.eps)
        return self.weight[:, None, None] * ((x - x.mean(1, keepdim=True)) / root) + self.bias[:, None, None]


def parts():
    return {"llama": LlamaLikeRMSNorm, "gemma": GemmaLikeRMSNorm, "olmo": OlmoLikeRMSNorm}


TAILS = {"llama": ["round=norm", "w"], "gemma": ["w1"], "olmo": ["w"]}


class WeightsTestCase(TestCase):
    def random_weights(self, module):
        with torch.no_grad():
            for part in module.parameters():
                part.add_(torch.randn_like(part) / 4)
        return module


class ReplaceTest(WeightsTestCase):
    def test_modules_of_pytorch(self):
        model = nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8), nn.RMSNorm(8, eps=1e-3), nn.RMSNorm(8, elementwise_affine=False),
                              nn.Sequential(nn.LayerNorm(8, bias=False)), nn.Linear(8, 8)).to(device)
        self.random_weights(model)
        x = torch.randn(3, 8, device=device)
        right, objects, state = model(x), list(model.modules()), list(model.state_dict())
        for replace in (replace_norms, replace_layer_norm, replace_norms):  # the second and third find nothing to do
            self.assertIs(replace(model), model)
            self.assertEqual([type(m) for m in list(model)[:4]], [LayerNorm, RMSNorm, RMSNorm, RMSNorm])
        self.assertEqual(list(map(id, model.modules())), list(map(id, objects)))
        self.assertEqual(list(model.state_dict()), state)
        with self.assert_launches(5):
            self.assert_close(model(x), right, **loose(torch.float32))

    def test_the_epsilon_of_none(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            module = nn.RMSNorm(8, device=device, dtype=dtype)
            x = (torch.randn(3, 8, device=device) / 4096).to(dtype)
            right = nn.functional.rms_norm(x.double(), (8,), eps=torch.finfo(
                torch.float64 if dtype == torch.float64 else torch.float32).eps)
            theirs = module(x)
            with self.assert_launches(1):
                found = replace_norms(module)(x)
            self.assert_close(found, right)
            self.assert_close(found, theirs, **loose(dtype))

    def test_modules_like_those_of_transformers(self):
        for name, kind in parts().items():
            for dtype, weight_dtype in ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32),
                                        (torch.float32, torch.float32), (torch.float16, torch.float16)):
                with self.subTest(name=name, dtype=dtype, weight=weight_dtype):
                    module = self.random_weights(kind(64)).to(device, weight_dtype)
                    x = torch.randn(5, 3, 64, device=device).to(dtype)
                    right = module(x)
                    self.assertIs(replace_norms(module), module)
                    self.assertIsInstance(module, kind)
                    with self.assert_launches(1):
                        found = module(x)
                    self.assertEqual(found.dtype, right.dtype)
                    if FAKE and dtype != torch.float32:
                        fields = fake.spec.split("/")
                        tail = [field for field in fields if not field.startswith(("eps=", "out=", "w=f32"))][3:]
                        self.assertEqual(tail, TAILS[name])
                        self.assertIn("eps=1e-06", fields)
                    same = (found == right).double().mean().item()
                    self.assertGreater(same, 0.99 if found.dtype != torch.float32 else 0.0)
                    self.assert_close(found, right, **loose(dtype))

    def test_gradients(self):
        module = self.random_weights(LlamaLikeRMSNorm(16)).to(device)
        x = torch.randn(4, 16, device=device, requires_grad=True)
        inputs = [x, module.weight]
        right = torch.autograd.grad(module(x).sin().sum(), inputs)
        for ours, theirs in zip(torch.autograd.grad(replace_norms(module)(x).sin().sum(), inputs), right):
            self.assert_close(ours, theirs, **loose(torch.float32))

    def test_what_is_left_alone(self):
        class Own(nn.LayerNorm):
            def forward(self, x):
                return 2 * super().forward(x)

        class OwnRMSNorm(nn.RMSNorm):
            def forward(self, x):
                return 2 * super().forward(x)
        two = LlamaLikeRMSNorm(8)
        two.bias = nn.Parameter(torch.ones(8))
        patched = LlamaLikeRMSNorm(8)
        patched.forward = lambda x: x
        for module in (Own(8), OwnRMSNorm(8), OddRMSNorm(8), GatedRMSNorm(8), two, patched, nn.Linear(8, 8)):
            kind = type(module)
            self.assertIs(type(replace_norms(module)), kind)

    def test_other_tensors_take_the_modules_own_forward(self):
        module = replace_norms(self.random_weights(GemmaLikeRMSNorm(8)))
        x = torch.randn(3, 8, device="meta" if FAKE else "cpu")
        with self.assert_launches(0):
            found = module.to(x.device)(x)
        self.assertEqual((found.shape, found.device), (x.shape, x.device))

    def test_copies_and_pickles(self):
        for kind in (LlamaLikeRMSNorm, GemmaLikeRMSNorm, nn.RMSNorm):
            module = replace_norms(self.random_weights(kind(16)).to(device))
            x = torch.randn(3, 16, device=device)
            right = module(x)
            for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
                self.assertIs(type(made), type(module))
                with self.assert_launches(1):
                    self.assertTrue(torch.equal(made(x), right))

    def test_under_the_compiler(self):
        module = self.random_weights(LlamaLikeRMSNorm(64)).to(device)
        x = torch.randn(5, 64, device=device)
        right = module(x)
        with self.assert_launches(0):  # short rows stay Inductor's
            found = torch.compile(replace_norms(module), fullgraph=True)(x)
        self.assert_close(found, right, **loose(torch.float32))

    def test_classes_of_transformers(self):
        tails = {"llama.modeling_llama.LlamaRMSNorm": TAILS["llama"], "mistral.modeling_mistral.MistralRMSNorm": TAILS["llama"],
                 "qwen2.modeling_qwen2.Qwen2RMSNorm": TAILS["llama"], "qwen3.modeling_qwen3.Qwen3RMSNorm": TAILS["llama"],
                 "gemma.modeling_gemma.GemmaRMSNorm": TAILS["gemma"], "gemma2.modeling_gemma2.Gemma2RMSNorm": TAILS["gemma"],
                 "olmo2.modeling_olmo2.Olmo2RMSNorm": TAILS["olmo"]}
        for path, tail in tails.items():
            module_name, _, name = path.rpartition(".")
            try:
                kind = getattr(importlib.import_module("transformers.models." + module_name), name)
            except ImportError as missing:
                self.skipTest("no transformers here ({})".format(missing))
            module = self.random_weights(kind(64)).to(device, torch.bfloat16)
            x = torch.randn(5, 64, device=device).bfloat16()
            right = module(x)
            with self.subTest(path=path), self.assert_launches(1):
                found = replace_norms(module)(x)
                self.assertGreater((found == right).double().mean().item(), 0.99)
                if FAKE:
                    self.assertEqual(fake.spec.split("/")[4:], tail)

    def test_models_of_transformers(self):
        try:
            from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM
        except ImportError as missing:
            self.skipTest("no transformers here ({})".format(missing))
        size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "vocab_size": 128, "head_dim": 16}
        for model, norms in ((LlamaForCausalLM(LlamaConfig(**size)), 5), (Gemma2ForCausalLM(Gemma2Config(**size)), 9)):
            for dtype in (torch.float32,) if FAKE else (torch.float32, torch.bfloat16):
                self.random_weights(model)
                original = copy.deepcopy(model).to(device, dtype).eval()
                tokens = torch.randint(128, (2, 7), device=device)
                with torch.no_grad(), self.subTest(model=type(model).__name__, dtype=dtype):
                    right = original(tokens).logits
                    replaced = replace_norms(copy.deepcopy(original))
                    with self.assert_launches(norms):
                        found = replaced(tokens).logits
                    error = (found.double() - right.double()).norm() / right.double().norm()
                    self.assertLess(error.item(), 1e-5 if dtype == torch.float32 else 2e-2)


class ImagesTest(WeightsTestCase):
    """LayerNorms of images."""

    def check(self, module, dtype, launches, columns=16, first=True):
        """A module's results before and after, for both memory formats."""
        module = self.random_weights(module).to(device, dtype)
        kind = type(module)
        x = torch.randn(2, columns, 7, 7, device=device).to(dtype)
        right = [module(given) for given in self.formats(x, first)]
        replace_norms(replace_norms(module))
        self.assertIsInstance(module, kind)
        for given, theirs in zip(self.formats(x, first), right):
            with self.assert_launches(launches):
                found = module(given)
            self.assertEqual((found.shape, found.dtype), (theirs.shape, dtype))
            if columns > 1:  # convolutions behind it take their layout from it
                self.assertEqual(found.stride(), theirs.stride())
            self.assertGreater((found == theirs).double().mean().item(), 0.99 if dtype.itemsize == 2 else 0.0)
            self.assert_close(found, theirs, **loose(dtype))

    def formats(self, x, first):
        both = x, x.to(memory_format=torch.channels_last)
        return both if first else [part.movedim(1, -1) for part in both]

    def test_what_is_replaced(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            narrow = dtype.itemsize == 2
            for module, launches, first in (
                    (ImageLayerNorm(16), 1, True), (ImageLayerNorm(16, "channels_last"), 1, False),
                    (ImageLayerNorm(16, bias=False), 1, True), (ImageLayerNorm(16, elementwise_affine=False), 1, True),
                    (PlainLayerNorm2d(16), 1, True), (StepsLayerNorm(16), 0 if narrow else 1, True),
                    (StepsLayerNorm(16, "channels_last"), 1, False), (StepsLayerNorm2d(16), 0 if narrow else 1, True)):
                with self.subTest(module=module, dtype=dtype):
                    self.check(module, dtype, launches, first=first)

    def test_sizes_like_those_of_the_trial(self):
        for columns in (1, 3, 5):
            for module in (ImageLayerNorm(columns), PlainLayerNorm2d(columns), StepsLayerNorm(columns)):
                with self.subTest(module=module):
                    self.check(module, torch.float32, 1, columns)

    def test_what_is_left_alone(self):
        class OwnLayerNorm2d(nn.LayerNorm):
            def forward(self, x):
                return 2 * nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        for module in (WrongLayerNorm2d(16), UnbiasedLayerNorm2d(16), OwnLayerNorm2d(16)):
            kind = type(module)
            self.assertIs(type(replace_norms(module)), kind)

    def test_what_takes_the_modules_own_forward(self):
        module = replace_norms(self.random_weights(PlainLayerNorm2d(8)).to(device))
        x = torch.randn(2, 8, 3, 3, device=device)
        with self.assert_launches(0):
            self.assertEqual(module(torch.randn(2, 8, 3, 3, 3, device=device)).dim(), 5)
            with torch.autocast(x.device.type, torch.bfloat16):
                module(x.bfloat16())
            with self.assertRaisesRegex(RuntimeError, "normalized_shape"):
                module(x[:, :4])

    def test_copies_and_pickles(self):
        for module in (ImageLayerNorm(16), StepsLayerNorm(16, "channels_last"), StepsLayerNorm2d(16)):
            module = replace_norms(self.random_weights(module).to(device))
            x = torch.randn(2, 16, 3, 16, device=device)
            right = module(x)
            for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
                self.assertIs(type(made), type(module))
                with self.assert_launches(1):
                    self.assertTrue(torch.equal(made(x), right))

    def test_gradients(self):
        for module in (PlainLayerNorm2d(16), StepsLayerNorm(16)):
            module = self.random_weights(module).to(device)
            inputs = [torch.randn(2, 16, 5, 5, device=device, requires_grad=True), module.weight, module.bias]
            right = torch.autograd.grad(module(inputs[0]).sin().sum(), inputs)
            for ours, theirs in zip(torch.autograd.grad(replace_norms(module)(inputs[0]).sin().sum(), inputs), right):
                self.assert_close(ours, theirs, **loose(torch.float32))

    def test_under_the_compiler(self):
        x = torch.randn(2, 64, 7, 7, device=device)
        for bytes_, launches in ((1 << 16, 0), (0, 1)):  # short rows stay Inductor's; NORMJIT_TORCH_COMPILE=kernel
            torch.compiler.reset()
            module = self.random_weights(ImageLayerNorm(64)).to(device)
            right = module(x)
            with unittest.mock.patch.object(_functional, "FUSED_BYTES", bytes_), self.assert_launches(launches):
                found = torch.compile(replace_norms(module), fullgraph=True)(x)
            self.assert_close(found, right, **loose(torch.float32))

    def test_classes_of_other_projects(self):
        tried = 0
        for path, launches in (("transformers.models.convnext.modeling_convnext.ConvNextLayerNorm", 1),
                               ("transformers.models.convnextv2.modeling_convnextv2.ConvNextV2LayerNorm", 1),
                               ("transformers.models.sam.modeling_sam.SamLayerNorm", 1),
                               ("transformers.models.sam2.modeling_sam2.Sam2LayerNorm", 1),
                               ("transformers.models.eomt.modeling_eomt.EomtLayerNorm2d", 1),
                               ("transformers.models.vitdet.modeling_vitdet.VitDetLayerNorm", 0),
                               ("torchvision.models.convnext.LayerNorm2d", 1), ("timm.layers.norm.LayerNorm2d", 1)):
            module_name, _, name = path.rpartition(".")
            try:
                kind = getattr(importlib.import_module(module_name), name)
            except ImportError:
                continue
            tried += 1
            options = {"data_format": "channels_first"} if path.startswith("transformers") and "2d" not in name else {}
            options = {} if "VitDet" in name else options
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(path=path, dtype=dtype):
                    self.check(kind(64, eps=1e-6, **options), dtype, launches if dtype.itemsize == 2 else 1, 64)
        if not tried:
            self.skipTest("no transformers, torchvision or timm here")

    def test_a_model_of_transformers(self):
        try:
            from transformers import ConvNextConfig, ConvNextModel
        except ImportError as missing:
            self.skipTest("no transformers here ({})".format(missing))
        model = ConvNextModel(ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], image_size=64))
        for dtype in (torch.float32,) if FAKE else (torch.float32, torch.bfloat16):
            self.random_weights(model)
            original = copy.deepcopy(model).to(device, dtype).eval()
            x = torch.randn(2, 3, 64, 64, device=device).to(dtype)
            with torch.no_grad(), self.subTest(dtype=dtype):
                right = original(x).last_hidden_state
                replaced = replace_norms(copy.deepcopy(original))
                with self.assert_launches(10):  # 4 of channels first, 5 of blocks, and the last one
                    found = replaced(x).last_hidden_state
                error = (found.double() - right.double()).norm() / right.double().norm()
                self.assertLess(error.item(), 1e-5 if dtype == torch.float32 else 2e-2)


if __name__ == "__main__":
    main()
