# SPDX-License-Identifier: Apache-2.0
"""Files of `normjit tune --random`, as text or compressed with xz (NAME.xz), as those of src/normjit/plan/measured."""

import contextlib
import lzma
import pathlib
import tempfile


def text_of(path):
    """ValueError where a file is no UTF-8, or named .xz and not compressed with xz."""
    path = pathlib.Path(path)
    if path.suffix != ".xz":
        return path.read_text(encoding="utf-8")
    try:
        return lzma.decompress(path.read_bytes()).decode("utf-8")
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from None


@contextlib.contextmanager
def as_text_file(path):
    """The name of a file with the text, as normjit-bench reads it."""
    if pathlib.Path(path).suffix != ".xz":
        yield str(path)
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write(text_of(path))
        file.flush()
        yield file.name
