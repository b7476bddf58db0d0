# SPDX-License-Identifier: Apache-2.0
"""What the readers of models (model_safetensors.py, model_onnx.py) find, and how it is written as a spec."""
import collections
import decimal

# dtypes are named as in specs; affine is "", "w" or "wb", or "w1" where the weight is added to 1; norm is "layernorm" or
# "rmsnorm"; `before` has the fields of what is added to the input, such as "inb/add/sum". rounds: the normalized value is
# rounded to the input's dtype before the weight.
Layer = collections.namedtuple("Layer", "columns input output weight epsilon affine statistics norm before rounds",
                               defaults=("layernorm", "", False))

DTYPES = ("f16", "bf16", "f32", "f64")


class BadModel(Exception):
    """A file that cannot be read, or does not say enough. The message says what to do."""


class NotTaken(Exception):
    """Why one layer is not in the manifest."""


class Findings:
    """Layers and what was skipped, each with the names under which the model has it."""

    def __init__(self):
        self.layers = collections.OrderedDict()
        self.skipped = collections.OrderedDict()

    def add(self, name, find):
        """Adds the layer that `find()` answers, or the reason why there is none."""
        try:
            layer = find()
            if not 1 <= layer.columns < 2 ** 31:
                raise NotTaken("normjit takes 1 to 2147483647 columns")
            self.layers.setdefault(layer, []).append(name)
        except NotTaken as reason:
            self.skip(name, str(reason))

    def skip(self, name, reason):
        self.skipped.setdefault(reason, []).append(name)


def with_dtype(layer, dtype):
    return layer._replace(input=dtype, output=dtype, weight=dtype)


def shortest(value):
    """The shortest decimal that reads back to the same bits, in the way of C++'s std::to_chars."""
    number = decimal.Decimal(repr(value + 0.0)).normalize()
    digits = "".join(map(str, number.as_tuple().digits))
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    scientific = "{}{}e{:+03d}".format(digits[0], fraction, number.adjusted())
    fixed = format(number, "f")
    return fixed if len(fixed) <= len(scientific) else scientific


def spec_text(layer):
    """The canonical text of the layer."""
    text = "{}/cols={}/{}".format(layer.norm, layer.columns, layer.input)
    if layer.output != layer.input:
        text += "/out=" + layer.output
    if (layer.affine or "inb" in layer.before) and layer.weight != layer.input:
        text += "/w=" + layer.weight
    text += "/eps=" + shortest(layer.epsilon)
    if layer.before:
        text += "/" + layer.before
    if layer.rounds and layer.input in ("f16", "bf16") and "f64" not in (layer.output, layer.weight):
        text += "/round=norm"
    if layer.affine:
        text += "/" + layer.affine
    return text + ("/stats" if layer.statistics else "")
