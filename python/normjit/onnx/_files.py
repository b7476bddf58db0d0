# SPDX-License-Identifier: Apache-2.0
"""Models on disk. Weights in files beside a model are not read."""
from __future__ import annotations

import os
import shutil
import tempfile

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped, unused-ignore]


def load(path: str) -> onnx.ModelProto:
    """Without external data. Raises OSError, and ValueError for what is not a model."""
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as why:
        raise ValueError("{} is not an ONNX model, or damaged: {}".format(path, why)) from why
    if not model.HasField("graph"):
        raise ValueError("{} is not an ONNX model: it has no graph".format(path))
    return model


def save(model: onnx.ModelProto, source: str, path: str) -> None:
    """Writes a model that was loaded from `source`, and checks it: then `path` is there as a whole, else it stays as it was.
    Files with external data are copied where the folder is another one. Raises OSError and ValueError."""
    folder, origin = os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.abspath(source))
    if not os.path.samefile(folder, origin):
        for name in sorted(external_files(model)):
            _bring(os.path.join(origin, name), os.path.join(folder, name))
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".onnx")
    os.close(handle)
    try:
        onnx.save_model(model, temporary)
        onnx.checker.check_model(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except (onnx.checker.ValidationError, EncodeError) as why:
        raise ValueError("{} was not written: the rewritten model does not pass onnx.checker: {}".format(path, why)) from why
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def external_files(model: onnx.ModelProto) -> set[str]:
    """The names of files with external data, relative to the model's folder."""
    tensors = list(model.graph.initializer)
    tensors += [attribute.t for node in model.graph.node for attribute in node.attribute if attribute.HasField("t")]
    return {entry.value for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL
            for entry in tensor.external_data if entry.key == "location"}


def _bring(source: str, target: str) -> None:
    if os.path.exists(target):
        if os.path.samefile(source, target):
            return
        raise ValueError("{} is there already, and the model needs {} under this name: write it into an empty folder".format(
            target, source))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)  # a hard link would be refused by onnx.checker


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
