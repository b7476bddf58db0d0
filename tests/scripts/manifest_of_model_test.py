#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/manifest_of_model.py, on tiny models that they write byte by byte.

    python3 tests/scripts/manifest_of_model_test.py

With NORMJIT_TOOL the tool reads what the script has written. The tests of ONNX need the package onnx.
"""
import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
import unittest

import support

WITHOUT_ONNX = importlib.util.find_spec("onnx") is None
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "manifest_of_model.py")

# --- Writing safetensors: tensors is {name: (dtype, shape)}; there is no data behind the header.


def norm(name, columns, dtype="F32"):
    return {name + ".weight": (dtype, [columns]), name + ".bias": (dtype, [columns])}


def safetensors(tensors):
    header = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text


# --- Writing protobuf.


def varint(value):
    value &= 2 ** 64 - 1
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def field(number, value):
    """A float, an integer, or bytes or text (which messages are, too)."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(number, values):
    return b"".join(field(number, value) for value in values)


FLOAT, FLOAT16, DOUBLE = 1, 10, 11


def initializer(name, shape, dtype=FLOAT, packed=False):
    dims = field(1, b"".join(map(varint, shape))) if packed else fields(1, shape)
    return dims + field(2, dtype) + field(8, name)


def value_info(name, shape, dtype=FLOAT):
    """A dimension that is text is a parameter."""
    dims = [field(1, field(2 if isinstance(size, str) else 1, size)) for size in shape]
    return field(1, name) + field(2, field(1, field(1, dtype) + field(2, b"".join(dims))))


def attribute(name, value):
    return field(1, name) + field(2 if isinstance(value, float) else 3, value)


def node(operator, inputs, outputs, attributes=(), name="", domain=""):
    return (fields(1, inputs) + fields(2, outputs) + field(3, name) + field(4, operator) + fields(5, attributes) +
            field(7, domain))


def layer_norm(scale="scale", bias="bias", out="y", name="", x="x", **attributes):
    inputs = [x, scale] + ([bias] if bias is not None else [])
    return node("LayerNormalization", inputs, [out], [attribute(*each) for each in attributes.items()], name)


def graph(nodes, initializers=(), values=(), inputs=()):
    return fields(1, nodes) + fields(5, initializers) + fields(11, inputs) + fields(13, values)


def model(main, functions=()):
    return field(1, 8) + field(7, main) + fields(25, functions)


class ManifestOfModel(support.InAFolder):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, check=False)

    def specs(self, *arguments):
        """The specs of the manifest, and the summary."""
        done = self.run_script(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        manifest = json.loads(done.stdout)
        self.assertEqual(manifest["normjit_manifest"], 1)
        specs = [entry["spec"] for entry in manifest["specs"]]
        self.check_with_tool(done.stdout, specs)
        return specs, done.stderr

    def check_with_tool(self, manifest, specs):
        if "NORMJIT_TOOL" not in os.environ:
            return
        done = subprocess.run([os.environ["NORMJIT_TOOL"], "prebuild", "--manifest", "-", "--arch", "sm_90", "--dry-run", "--json"],
                              input=manifest, stdout=subprocess.PIPE, universal_newlines=True, check=True,
                              env={**os.environ, "NORMJIT_CACHE_DIR": os.path.join(self.folder, "cache")})
        self.assertEqual({each["spec"] for each in json.loads(done.stdout)["results"]}, set(specs))

    def refused(self, *arguments):
        """The message of a run that must end with status 2, and without a traceback."""
        done = self.run_script(*arguments)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def of_tensors(self, tensors, config=None, *arguments):
        if config is not None:
            self.put("config.json", config)
        return self.specs(self.put("model.safetensors", safetensors(tensors)), *arguments)

    def of_graph(self, *arguments, **parts):
        return self.specs(self.put("model.onnx", model(graph(*arguments, **parts))))


class Safetensors(ManifestOfModel):
    def test_layers_of_one_spec_are_one_entry(self):
        specs, summary = self.of_tensors({**norm("h.0.ln_1", 768), **norm("h.0.ln_2", 768), "wte.weight": ("F32", [9, 768])},
                                         {"layer_norm_epsilon": 1e-5})
        self.assertEqual(specs, ["layernorm/cols=768/f32/eps=1e-05/wb"])
        self.assertIn("2 norms, 1 specs", summary)
        self.assertIn("2 x, such as h.0.ln_1", summary)

    def test_gamma_and_beta_are_weight_and_bias(self):
        specs, _ = self.of_tensors({"e.LayerNorm.gamma": ("F32", [768]), "e.LayerNorm.beta": ("F32", [768])},
                                   {"layer_norm_eps": 1e-12})
        self.assertEqual(specs, ["layernorm/cols=768/f32/eps=1e-12/wb"])

    def test_dtypes_are_the_tensors_or_those_asked_for(self):
        tensors = {**norm("norm1", 64, "BF16"), **norm("norm2", 64, "F16")}
        config = {"layer_norm_eps": 1e-6}
        self.assertEqual(self.of_tensors(tensors, config)[0],
                         ["layernorm/cols=64/bf16/eps=1e-06/wb", "layernorm/cols=64/f16/eps=1e-06/wb"])
        self.assertEqual(self.of_tensors(tensors, config, "--dtype", "f32,f16")[0],
                         ["layernorm/cols=64/f32/eps=1e-06/wb", "layernorm/cols=64/f16/eps=1e-06/wb"])

    def test_eps_goes_before_the_config_and_numbers_are_canonical(self):
        for given, written in (("0.001", "0.001"), ("0.0001", "1e-04"), ("1e-6", "1e-06"), ("0", "0"), ("0.000125", "0.000125")):
            specs, _ = self.of_tensors(norm("norm", 8), {"layer_norm_eps": 1e-12}, "--eps", given)
            self.assertEqual(specs, ["layernorm/cols=8/f32/eps={}/wb".format(written)])

    def test_shards(self):
        self.put("a.safetensors", safetensors(norm("ln_1", 64)))
        self.put("b.safetensors", safetensors({"ln_2.weight": ("F16", [32])}))
        self.put("c.safetensors", safetensors({"ln_2.bias": ("F16", [32])}))
        index = {"weight_map": {"ln_1.weight": "a.safetensors", "ln_1.bias": "a.safetensors",
                                "ln_2.weight": "b.safetensors", "ln_2.bias": "c.safetensors"}}
        specs, _ = self.specs(self.put("model.safetensors.index.json", index), "--eps", "1e-5")
        self.assertEqual(specs, ["layernorm/cols=64/f32/eps=1e-05/wb", "layernorm/cols=32/f16/eps=1e-05/wb"])

    def test_shards_lie_beside_the_index(self):
        for shard in ("../a.safetensors", "/etc/passwd", "model.safetensors.index.json", ""):
            index = self.put("model.safetensors.index.json", {"weight_map": {"x": shard}})
            self.assertIn("not a .safetensors file beside it", self.refused(index))
        self.assertIn("gone.safetensors", self.refused(self.put("model.safetensors.index.json",
                                                                {"weight_map": {"x": "gone.safetensors"}})))

    def test_nested_configs_speak_of_their_part(self):
        config = {"text_config": {"layer_norm_eps": 1e-5}, "vision_config": {"layer_norm_eps": 1e-6}, "layer_norm_eps": 1e-12,
                  "decoder": {"layer_norm_epsilon": 0.25, "encoder": {}}, "encoder": {"layer_norm_epsilon": 0.5}}
        names = {"text_model.final_layer_norm": "1e-05", "vision_model.pre_layrnorm": "1e-06", "fusion.norm": "1e-12",
                 "model.vision_tower.post_layernorm": "1e-06", "decoder.h.ln_f": "0.25", "encoder.norm": "0.5"}
        for name, epsilon in names.items():
            self.assertEqual(self.of_tensors(norm(name, 8), config)[0], ["layernorm/cols=8/f32/eps={}/wb".format(epsilon)], name)

    def test_a_silent_config_asks_for_eps(self):
        path = self.put("model.safetensors", safetensors(norm("encoder.layer_norm", 8)))
        self.assertIn("--eps", self.refused(path))
        self.put("config.json", {"vision_config": {}, "layer_norm_eps": 1e-5})
        path = self.put("model.safetensors", safetensors(norm("vision_model.layer_norm", 8)))
        self.assertIn("vision_model.layer_norm", self.refused(path))

    def test_epsilons_that_the_code_fixes(self):
        self.assertEqual(self.of_tensors(norm("model.encoder.layer_norm", 8), {"model_type": "whisper"})[0],
                         ["layernorm/cols=8/f32/eps=1e-05/wb"])
        convnext = {**norm("convnext.encoder.stages.0.layers.0.layernorm", 8), **norm("convnext.layernorm", 8)}
        self.assertEqual(self.of_tensors(convnext, {"model_type": "convnext", "layer_norm_eps": 1e-12})[0],
                         ["layernorm/cols=8/f32/eps=1e-06/wb", "layernorm/cols=8/f32/eps=1e-12/wb"])

    def test_other_norms_are_skipped(self):
        others = {
            **norm("layer1.norm", 8), "layer1.norm.running_mean": ("F32", [8]), **norm("bn1", 8), **norm("stage.batch_norm", 8),
            **norm("down_blocks.0.resnets.0.norm1", 8), **norm("conv_norm_out", 8), **norm("mid_block.attentions.0.group_norm", 8),
            **norm("down_blocks.0.attentions.0.norm", 8), **norm("decoder.up.1.block.0.norm2", 8), **norm("decoder.norm_out", 8),
            **norm("trunk.instance_norm", 8), **norm("stem.1", 8),
        }
        layer = norm("down_blocks.0.attentions.0.transformer_blocks.0.norm1", 320)
        specs, summary = self.of_tensors({**others, **layer}, {"_class_name": "UNet2DConditionModel", "norm_eps": 1e-6})
        self.assertEqual(specs, ["layernorm/cols=320/f32/eps=1e-05/wb"])
        self.assertIn("3 x, such as layer1.norm: a BatchNorm", summary)
        self.assertIn("6 x, such as down_blocks.0.resnets.0.norm1: a GroupNorm", summary)
        self.assertIn("1 x trunk.instance_norm: an InstanceNorm", summary)
        self.assertIn("1 x stem.1: weight and bias of a norm whose name does not say which", summary)

    def test_the_first_norm_of_wav2vec2_is_as_its_config_says(self):
        layer = norm("feature_extractor.conv_layers.0.layer_norm", 512)
        self.assertEqual(len(self.of_tensors(layer, {"layer_norm_eps": 1e-5, "feat_extract_norm": "layer"})[0]), 1)
        self.put("config.json", {"layer_norm_eps": 1e-5, "feat_extract_norm": "group"})
        self.assertEqual(self.run_script(os.path.join(self.folder, "model.safetensors")).returncode, 1)

    def test_weights_without_bias_are_layer_norms_of_models_known_for_it(self):
        self.assertEqual(self.of_tensors({"norm_f.weight": ("BF16", [4096])}, {"model_type": "mpt", "layer_norm_epsilon": 1e-5})[0],
                         ["layernorm/cols=4096/bf16/eps=1e-05/w"])

    def test_other_weights_without_bias_are_rms_norms_as_their_model_computes_them(self):
        tensors = {"model.norm.weight": ("BF16", [4096]), "model.layers.0.input_layernorm.weight": ("BF16", [4096]),
                   "model.layers.0.self_attn.q_norm.weight": ("F32", [128])}
        for model_type, ends in (("llama", ("round=norm/w", "w")), ("qwen3", ("round=norm/w", "w")), ("gemma3_text", ("w1", "w1")),
                                 ("olmo2", ("w", "w"))):
            specs, _ = self.of_tensors(tensors, {"model_type": model_type, "rms_norm_eps": 1e-6})
            self.assertEqual(specs, ["rmsnorm/cols=4096/bf16/eps=1e-06/" + ends[0], "rmsnorm/cols=128/f32/eps=1e-06/" + ends[1]])
        nested = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "rms_norm_eps": 1e-6},
                  "vision_config": {"model_type": "siglip_vision_model", "layer_norm_eps": 1e-5}}
        both = {"text_model.norm.weight": ("BF16", [64]), **norm("vision_model.layer_norm1", 32, "BF16")}
        self.assertEqual(self.of_tensors(both, nested)[0],
                         ["rmsnorm/cols=64/bf16/eps=1e-06/w1", "layernorm/cols=32/bf16/eps=1e-05/wb"])

    def test_an_rms_norm_without_epsilon_is_skipped(self):
        path = self.put("model.safetensors", safetensors({"model.norm.weight": ("F32", [8])}))
        done = self.run_script(path)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("1 x model.norm: a weight without bias, so an RMSNorm, and nothing says its epsilon", done.stderr)
        self.assertIn("No norm found", done.stderr)
        self.assertEqual(self.specs(path, "--eps", "1e-5")[0], ["rmsnorm/cols=8/f32/eps=1e-05/w"])

    def test_residuals_that_a_runtime_fuses(self):
        specs, _ = self.of_tensors({"norm.weight": ("BF16", [64])}, {"rms_norm_eps": 1e-5}, "--residual", "add/sum",
                                   "--residual", "inb/add", "--dtype", "f16,f32")
        self.assertEqual(specs, ["rmsnorm/cols=64/{}/eps=1e-05/{}".format(dtype, end)
                                 for dtype, rounds in (("f16", "round=norm/"), ("f32", ""))
                                 for end in (rounds + "w", "add/sum/" + rounds + "w", "inb/add/" + rounds + "w")])
        self.assertIn("invalid choice", self.refused(os.path.join(self.folder, "model.safetensors"), "--residual", "sum"))

    def test_layers_without_weights_come_from_the_config_or_by_hand(self):
        config = {"_class_name": "SD3Transformer2DModel", "num_attention_heads": 24, "attention_head_dim": 64}
        self.assertEqual(self.of_tensors({"proj.weight": ("F16", [4, 4])}, config)[0], ["layernorm/cols=1536/f16/eps=1e-06"])
        extra = "layernorm/cols=8/f16/eps=1e-06"
        self.assertEqual(self.of_tensors({}, {}, "--extra", extra, "--extra", extra)[0], [extra])

    def test_tensors_that_cannot_be_layers_are_skipped(self):
        tensors = {**norm("a.norm", 8, "F8_E4M3"), "b.norm.weight": ("F32", [8]), "b.norm.bias": ("F16", [8]), **norm("c.norm", 0),
                   **norm("d.norm", 2 ** 31), **norm("e.norm", 8)}
        specs, summary = self.of_tensors(tensors, {"layer_norm_eps": 1e-5})
        self.assertEqual(specs, ["layernorm/cols=8/f32/eps=1e-05/wb"])
        for reason in ("F8_E4M3", "differ in dtype", "2 x, such as c.norm: normjit takes 1 to 2147483647 columns"):
            self.assertIn(reason, summary)

    def test_names_are_printed_safely(self):
        specs, summary = self.of_tensors(norm("\x1b[2J\ud800.norm", 8), {"layer_norm_eps": 1e-5})
        self.assertEqual(len(specs), 1)
        self.assertNotIn("\x1b", summary)

    def test_damaged_files(self):
        whole = safetensors(norm("norm", 8))
        for data in (b"", whole[:7], whole[:-1], struct.pack("<Q", 2 ** 63) + whole[8:], struct.pack("<Q", 0) + whole[8:],
                     struct.pack("<Q", 4) + b"null", struct.pack("<Q", 3) + b"{x}", struct.pack("<Q", 2) + b"\xff\xfe",
                     struct.pack("<Q", 100_000) + b"[" * 100_000, safetensors({"x": ("F32", [-1])}), safetensors({"x": (3, [1])}),
                     struct.pack("<Q", 8) + b'{"x": 1}'):
            self.assertIn("model.safetensors", self.refused(self.put("model.safetensors", data), "--eps", "1e-5"))

    def test_bad_configs(self):
        path = self.put("model.safetensors", safetensors(norm("norm", 8)))
        for config in (b"{", b"[]", b'{"layer_norm_eps": NaN}', b'{"layer_norm_eps": "1e-5"}', b'{"layer_norm_eps": -1}',
                       b'{"a":' * 50_000, b'{"layer_norm_eps": 1' + b"0" * 5000 + b"}"):
            self.put("config.json", config)
            self.refused(path)
        self.assertIn("no-such.json", self.refused(path, "--config", "no-such.json"))

    def test_usage(self):
        path = self.put("model.safetensors", safetensors(norm("norm", 8)))
        self.assertIn("f31", self.refused(path, "--dtype", "f32,f31"))
        self.assertIn("--eps", self.refused(path, "--eps", "nan"))
        self.assertIn("layernorm/", self.refused(path, "--extra", "cols=8"))
        self.assertIn("is not a file", self.refused(self.folder))
        self.assertIn("ends in none of", self.refused(self.put("model.bin", b"")))
        self.refused(path, "--eps", "1e-5", "-o", os.path.join(self.folder, "none", "x.json"))

    def test_output_goes_to_a_file(self):
        output = os.path.join(self.folder, "layers.json")
        done = self.run_script(self.put("model.safetensors", safetensors(norm("norm", 8))), "--eps", "1e-5", "-o", output)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        with open(output, encoding="ascii") as file:
            self.assertEqual(json.load(file)["specs"], [{"spec": "layernorm/cols=8/f32/eps=1e-05/wb", "comment": "1 x norm"}])


class WithoutOnnx(ManifestOfModel):
    @unittest.skipUnless(WITHOUT_ONNX, "the package onnx is here")
    def test_says_what_to_install(self):
        error = self.refused(self.put("model.onnx", model(graph([layer_norm()]))))
        self.assertIn("pip install onnx", error)
        self.assertEqual(error.count("\n"), 1)


@unittest.skipIf(WITHOUT_ONNX, "no package onnx")
class Onnx(ManifestOfModel):
    WEIGHTS = (initializer("scale", [64]), initializer("bias", [64], packed=True))

    def test_defaults_and_epsilons(self):
        specs, _ = self.of_graph([layer_norm(), layer_norm(epsilon=1e-12), layer_norm(bias=None, epsilon=1e-6),
                                  layer_norm(bias="", epsilon=0.0)], self.WEIGHTS)
        self.assertEqual(specs, ["layernorm/cols=64/f32/eps=1e-05/wb", "layernorm/cols=64/f32/eps=1e-12/wb",
                                 "layernorm/cols=64/f32/eps=1e-06/w", "layernorm/cols=64/f32/eps=0/w"])

    def test_an_epsilon_in_f64_is_the_f32_that_the_file_has(self):
        specs, _ = self.of_graph([layer_norm(epsilon=1e-5)], [initializer("scale", [64], DOUBLE), initializer("bias", [64], DOUBLE)])
        self.assertEqual(specs, ["layernorm/cols=64/f64/eps=9.999999747378752e-06/wb"])

    def test_axis_may_leave_several_dimensions(self):
        weights = [initializer("scale", [16, 64]), initializer("bias", [16, 64])]
        expected = ["layernorm/cols=1024/f32/eps=1e-05/wb"]
        self.assertEqual(self.of_graph([layer_norm(axis=-2)], weights)[0], expected)
        self.assertEqual(self.of_graph([layer_norm(axis=1)], weights, inputs=[value_info("x", ["n", 16, "c"])])[0], expected)

    def test_what_is_broadcast_or_not_known_is_skipped(self):
        values = [value_info("x", ["n", 16, 64])]
        nodes = [layer_norm(), layer_norm(axis=-2, name="b"), layer_norm(axis=1, name="c"), layer_norm(scale="one", name="d"),
                 layer_norm(bias="one", name="e"), layer_norm(axis=3, name="f"), layer_norm(scale="absent", name="g"),
                 layer_norm(x="other", axis=2, name="h"), layer_norm(x="other", axis=-2 ** 63, name="i"),
                 layer_norm(epsilon=-1.0, name="j"), layer_norm(epsilon=3.4028e38, name="k"), layer_norm(bias="half", name="l")]
        weights = [*self.WEIGHTS, initializer("one", [1]), initializer("half", [64], FLOAT16)]
        specs, summary = self.of_graph(nodes, weights, values)
        self.assertEqual(specs, ["layernorm/cols=64/f32/eps=1e-05/wb"])
        for reason in ("5 x, such as b: its Scale or B is broadcast", "1 x f: its axis is not", "1 x g: the shape of its Scale",
                       "1 x h: its axis counts from the front", "2 x, such as j: its epsilon", "1 x l: its Scale and B differ in dtype"):
            self.assertIn(reason, summary)

    def test_dtypes_of_input_weights_and_output(self):
        values = [value_info("x", ["n", 64], FLOAT16), value_info("y", ["n", 64], FLOAT)]
        self.assertEqual(self.of_graph([layer_norm(), layer_norm(out="z")], self.WEIGHTS, values)[0],
                         ["layernorm/cols=64/f16/out=f32/w=f32/eps=1e-05/wb", "layernorm/cols=64/f16/w=f32/eps=1e-05/wb"])

    def test_further_outputs_are_statistics(self):
        nodes = [node("LayerNormalization", ["x", "scale"], ["y", "", "rstd"])]
        self.assertEqual(self.of_graph(nodes, self.WEIGHTS)[0], ["layernorm/cols=64/f32/eps=1e-05/w/stats"])

    def test_weights_may_be_constants_or_shared(self):
        constant = node("Constant", [], ["c"], [field(1, "value") + field(5, initializer("", [32]))])
        nodes = [constant, node("Identity", ["c"], ["d"]), layer_norm(scale="d", bias="c")]
        self.assertEqual(self.of_graph(nodes)[0], ["layernorm/cols=32/f32/eps=1e-05/wb"])

    def test_subgraphs_see_the_tensors_around_them(self):
        inner = graph([layer_norm(scale="own", bias=None), layer_norm(epsilon=1e-6)], [initializer("own", [8])])
        branch = node("If", ["c"], ["y"], [field(1, "then_branch") + field(6, inner)])
        self.assertEqual(self.of_graph([branch, layer_norm(scale="own", bias=None), layer_norm()], self.WEIGHTS)[0],
                         ["layernorm/cols=8/f32/eps=1e-05/w", "layernorm/cols=64/f32/eps=1e-06/wb", "layernorm/cols=64/f32/eps=1e-05/wb"])

    def test_other_operators_are_named(self):
        nodes = [layer_norm(), node("EmbedLayerNormalization", ["x", "x", "scale"], ["s"], domain="com.microsoft", name="embed")]
        specs, summary = self.of_graph(nodes, self.WEIGHTS)
        self.assertEqual(len(specs), 1)
        self.assertIn("1 x embed: EmbedLayerNormalization is another operation", summary)

    def test_rms_norms(self):
        nodes = [node("RMSNormalization", ["x", "scale"], ["r"], [attribute("epsilon", 1e-6)]),
                 node("SimplifiedLayerNormalization", ["x", "scale"], ["s", "rstd"])]
        self.assertEqual(self.of_graph(nodes, [initializer("scale", [64], FLOAT16)])[0],
                         ["rmsnorm/cols=64/f16/eps=1e-06/round=norm/w", "rmsnorm/cols=64/f16/eps=1e-05/w/stats"])

    def test_residuals_that_are_fused(self):
        def skip(operator, inputs, outputs, *attributes):
            return node(operator, inputs, outputs, attributes, domain="com.microsoft")

        nodes = [skip("SkipLayerNormalization", ["x", "r", "scale"], ["a"]),
                 skip("SkipLayerNormalization", ["x", "r", "scale", "bias", "bias"], ["b", "", "", "sum"], attribute("epsilon", 1e-5)),
                 skip("SkipLayerNormalization", ["x", "r", "scale", "", "bias"], ["c", "mean", "rstd"]),
                 skip("SkipSimplifiedLayerNormalization", ["x", "r", "scale"], ["d", "", "", "sum"], attribute("epsilon", 1e-6)),
                 skip("SkipSimplifiedLayerNormalization", ["x", "r", "scale", "bias"], ["e"], attribute("epsilon", 1e-6))]
        self.assertEqual(self.of_graph(nodes, self.WEIGHTS)[0],
                         ["layernorm/cols=64/f32/eps=1e-12/add/w", "layernorm/cols=64/f32/eps=1e-05/inb/add/sum/wb",
                          "layernorm/cols=64/f32/eps=1e-12/inb/add/w/stats", "rmsnorm/cols=64/f32/eps=1e-06/add/sum/w",
                          "rmsnorm/cols=64/f32/eps=1e-06/inb/add/w"])

    def test_a_layer_norm_in_single_steps_is_told(self):
        steps = [node("ReduceMean", ["x"], ["mean"]), node("Sub", ["x", "mean"], ["d"]), node("Cast", ["d"], ["d32"]),
                 node("Pow", ["d32", "two"], ["dd"]), node("ReduceMean", ["dd"], ["var"]), node("Add", ["var", "eps"], ["ve"]),
                 node("Sqrt", ["ve"], ["sd"], name="root"), node("Div", ["d", "sd"], ["n"])]
        rms = [node("Pow", ["x", "two"], ["xx"]), node("ReduceMean", ["xx"], ["ms"]), node("Add", ["ms", "eps"], ["me"]),
               node("Sqrt", ["me"], ["rms"], name="rms")]
        _, summary = self.of_graph([layer_norm(), *steps, *rms], self.WEIGHTS)
        self.assertIn("skipped 1 x root: a LayerNorm in single steps", summary)

    def test_functions_have_no_shapes(self):
        function = field(1, "Block") + field(7, layer_norm())
        done = self.run_script(self.put("model.onnx", model(graph([]), [function])))
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 x Block: in a function", done.stderr)

    def test_options_of_safetensors_are_refused(self):
        path = self.put("model.onnx", model(graph([layer_norm()], self.WEIGHTS)))
        self.assertIn("--config and --eps are for safetensors", self.refused(path, "--eps", "1e-5"))

    def test_damaged_files(self):
        whole = model(graph([layer_norm()], self.WEIGHTS))
        deep = graph([layer_norm()])
        for _ in range(60):
            deep = graph([node("If", ["c"], ["y"], [field(1, "then_branch") + field(6, deep)])])
        for data in (b"", whole[:-1], b"\xff" * 11, field(7, 1), varint(7 << 3 | 2) + varint(2 ** 63), varint(7 << 3 | 3), model(deep),
                     b'{"not": "protobuf"}', field(8, b"")):
            self.assertIn("is not an ONNX model, or damaged", self.refused(self.put("model.onnx", data)))

    def test_any_damage_ends_in_an_answer(self):
        seed = int(os.environ.get("NORMJIT_TEST_SEED", "1"))
        choose = random.Random(seed)
        whole = model(graph([layer_norm(axis=-1, epsilon=1e-5)], self.WEIGHTS, [value_info("x", ["n", 64])]))
        for _ in range(30):
            data = bytearray(whole)
            for _ in range(3):
                data[choose.randrange(len(data))] = choose.randrange(256)
            done = self.run_script(self.put("model.onnx", bytes(data)))
            self.assertIn(done.returncode, (0, 1, 2), "seed {}: {}".format(seed, data))
            self.assertNotIn("Traceback", done.stderr, "seed {}: {}".format(seed, data))


if __name__ == "__main__":
    unittest.main()
