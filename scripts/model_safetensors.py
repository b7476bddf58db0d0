# SPDX-License-Identifier: Apache-2.0
"""Finds the LayerNorms and RMSNorms of a safetensors file, or of a sharded one, by the names and shapes in its header and the config beside it."""
import collections
import json
import os
import re
import struct

from model_layers import BadModel, Findings, Layer, NotTaken

Tensor = collections.namedtuple("Tensor", "dtype shape")

DTYPES = {"F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64"}
LONGEST_HEADER = 100_000_000  # the bound of the format's own library

EPSILON_KEYS = ("layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon", "norm_epsilon", "norm_eps")
RMS_EPSILON_KEYS = ("rms_norm_eps", "rms_norm_epsilon", *EPSILON_KEYS)

# Epsilons that a model's code fixes, whatever its config says: the model, a pattern of layers, the epsilon.
FIXED_EPSILONS = (
    ("UNet2DConditionModel", r"\.transformer_blocks\.", 1e-5),  # its norm_eps is that of the GroupNorms
    ("convnext|convnextv2", r"(^|\.)(embeddings|encoder)\.", 1e-6),  # its layer_norm_eps is that of the last one
    ("whisper|bart|mbart|pegasus|marian|opt", "", 1e-5),
    ("distilbert", "", 1e-12),
)

# Models whose LayerNorms have a weight and no bias, by model_type; in all others that is an RMSNorm.
WITHOUT_BIAS = ("cohere", "cohere2", "modernbert", "mpt")

# Models whose RMSNorms add the weight to 1, and models whose RMSNorms multiply by the weight in f32, as torch.nn.RMSNorm
# does. In all others the normalized value is rounded before the weight, as in LlamaRMSNorm of transformers.
WEIGHT_ADDED_TO_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "paligemma", "qwen3_next", "recurrent_gemma", "t5gemma")
WEIGHT_IN_F32 = ("flex_olmo", "gpt_oss", "olmo2", "olmo3")

# Models with LayerNorms without weight and bias, by model_type, _class_name or norm_type: their epsilons.
WEIGHTLESS = {
    "ada_norm_zero": (1e-6, 1e-5),  # DiT in diffusers
    "ada_norm_single": (1e-6,),  # PixArt
    "SD3Transformer2DModel": (1e-6,),
    "FluxTransformer2DModel": (1e-6,),
    "olmo": (1e-5,),
}

# What the last part of a norm's name looks like, and the names of norms that are not LayerNorms.
NORM = r"norm|(^|_)ln(_|\d|$)"
BATCH_NORM = r"batch_?norm|(^|[._])bn\d*$"
GROUP_NORM = (r"group_?norm|(^|[._])gn\d*$|(^|\.)resnets\.|conv_norm_out$|"
              r"(^|\.)(encoder|decoder)\.((down|up|mid)\.|norm_out$)")  # the last line: the VAE of latent diffusion
INSTANCE_NORM = r"instance_?norm"


def parse_json(data, path):
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadModel("{} is not JSON: {}".format(path, error))
    if not isinstance(value, dict):
        raise BadModel("{} is not a JSON object".format(path))
    return value


def read_json(path):
    with open(path, "rb") as file:
        return parse_json(file.read(), path)


def tensor_of(entry):
    """Of an entry of the header; None if it is not one."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or not isinstance(entry.get("shape"), list):
        return None
    if not all(type(size) is int and size >= 0 for size in entry["shape"]):
        return None
    return Tensor(entry["dtype"], tuple(entry["shape"]))


def read_header(path):
    """The tensors of one file by name. It begins with the length of the header (8 bytes, little endian) and the header, JSON."""
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size - 8
        length = struct.unpack("<Q", file.read(8))[0] if left >= 0 else 0
        if not 2 <= length <= min(left, LONGEST_HEADER):
            raise BadModel("{} is not a safetensors file, or cut short: a header of {} bytes in a file of {}".format(
                path, length, left + 8))
        header = parse_json(file.read(length), path + "'s header")
    header.pop("__metadata__", None)
    tensors = {name: tensor_of(entry) for name, entry in header.items()}
    for name, tensor in tensors.items():
        if tensor is None:
            raise BadModel("{}: the header's entry {!r} has no dtype and shape".format(path, name))
    return tensors


def read_shards(path):
    """The tensors of all files that the index names. They must lie beside it."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise BadModel("{} has no weight_map of tensors to files".format(path))
    tensors = {}
    for shard in sorted(set(weight_map.values())):
        if shard != os.path.basename(shard) or not shard.endswith(".safetensors"):
            raise BadModel("{} names {!r}, which is not a .safetensors file beside it".format(path, shard))
        tensors.update(read_header(os.path.join(os.path.dirname(path), shard)))
    return tensors


def scope(config, name):
    """The part of a nested config that speaks of this tensor: text_config of text_model.*, decoder of decoder.*"""
    for part in name.split("."):
        for key, inner in config.items():
            stem = key[:-len("_config")] if key.endswith("_config") else key
            if isinstance(inner, dict) and (part == stem or part.startswith(stem + "_")):
                config = inner
                break
    return config


def is_model(config, *kinds):
    return config.get("model_type") in kinds or config.get("_class_name") in kinds


def epsilon_of(config, name, keys=EPSILON_KEYS):
    """What the config, or the model's code, says of this layer; None if it is silent."""
    config = scope(config, name)
    for models, layers, epsilon in FIXED_EPSILONS:
        if is_model(config, *models.split("|")) and re.search(layers, name):
            return epsilon
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise BadModel("the config's {} is {!r}, not a number from 0 to 1; give --eps".format(key, value))
        return float(value)
    return None


def other_norm(name, tensors, config):
    """What a norm with weight and bias is if not a LayerNorm, else None."""
    parent, _, last = name.rpartition(".")
    if name + ".running_mean" in tensors or re.search(BATCH_NORM, name, re.I):
        return "a BatchNorm"
    if re.search(GROUP_NORM, name, re.I):
        return "a GroupNorm"
    if last == "norm" and any(other.startswith(parent + ".transformer_blocks.") for other in tensors):
        return "a GroupNorm"  # at the entry of diffusers' Transformer2DModel
    if config.get("feat_extract_norm") == "group" and name.endswith("conv_layers.0.layer_norm"):
        return "a GroupNorm"  # wav2vec 2.0
    if re.search(INSTANCE_NORM, name, re.I):
        return "an InstanceNorm"
    if not re.search(NORM, last, re.I):
        return "weight and bias of a norm whose name does not say which; if it is a LayerNorm, add --extra SPEC"
    return None


def layer_of(name, weight, bias, tensors, config, epsilon):
    other = other_norm(name, tensors, config)
    if bias is not None and other:
        raise NotTaken(other)
    is_rms = bias is None and not is_model(scope(config, name), *WITHOUT_BIAS)
    if bias is not None and bias.dtype != weight.dtype:
        raise NotTaken("its weight and bias differ in dtype")
    if weight.dtype not in DTYPES:
        raise NotTaken("its dtype is {}; normjit has f16, bf16, f32 and f64".format(weight.dtype))
    epsilon = epsilon_of(config, name, RMS_EPSILON_KEYS if is_rms else EPSILON_KEYS) if epsilon is None else epsilon
    if epsilon is None and is_rms:
        raise NotTaken("a weight without bias, so an RMSNorm, and nothing says its epsilon; give --config or --eps")
    if epsilon is None:
        raise BadModel("nothing says the epsilon of {}: no config.json beside the file, or none of {} in it; give --config or --eps".format(
            name, ", ".join(EPSILON_KEYS)))
    dtype = DTYPES[weight.dtype]
    layer = Layer(weight.shape[0], dtype, dtype, dtype, epsilon, "wb" if bias else "w", statistics=False)
    return rms_layer(layer, scope(config, name)) if is_rms else layer


def rms_layer(layer, config):
    """The RMSNorm of these columns, as the class of the model computes it."""
    if is_model(config, *WEIGHT_ADDED_TO_ONE):
        return layer._replace(norm="rmsnorm", affine="w1")
    return layer._replace(norm="rmsnorm", rounds=not is_model(config, *WEIGHT_IN_F32))


def candidates(tensors):
    """Name, weight and bias (or None) of what may be a norm: vectors called weight or, in old files, gamma."""
    for full, weight in tensors.items():
        name, _, last = full.rpartition(".")
        if last not in ("weight", "gamma") or len(weight.shape) != 1:
            continue
        bias = tensors.get(name + (".bias" if last == "weight" else ".beta"))
        bias = bias if bias and bias.shape == weight.shape else None
        if bias or re.search(NORM, name.rpartition(".")[2], re.I):
            yield name, weight, bias


def weightless_layers(tensors, config):
    """The LayerNorms of which a header has nothing, of the models known to have such."""
    kinds = [config.get(key) for key in ("norm_type", "_class_name", "model_type")]
    epsilons = next((WEIGHTLESS[kind] for kind in kinds if isinstance(kind, str) and kind in WEIGHTLESS), ())
    width = [config.get(key) for key in ("num_attention_heads", "attention_head_dim")]
    columns = config.get("hidden_size")
    if all(type(value) is int for value in width):
        columns = width[0] * width[1]
    dtypes = collections.Counter(DTYPES[tensor.dtype] for tensor in tensors.values() if tensor.dtype in DTYPES)
    if type(columns) is not int or not dtypes:
        return []
    dtype = dtypes.most_common(1)[0][0]
    return [Layer(columns, dtype, dtype, dtype, epsilon, "", statistics=False) for epsilon in epsilons]


def read_safetensors(path, config, epsilon):
    """`config` is a parsed config.json, or {}; `epsilon` goes before what it says, None if it shall say."""
    findings = Findings()
    tensors = read_shards(path) if path.endswith(".json") else read_header(path)
    for name, weight, bias in candidates(tensors):
        findings.add(name, lambda: layer_of(name, weight, bias, tensors, config, epsilon))
    for layer in weightless_layers(tensors, config):
        findings.add("a layer without weight and bias, from the config", lambda: layer)
    return findings
