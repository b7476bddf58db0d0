# SPDX-License-Identifier: Apache-2.0
"""Builds the fake libnormjit of the tests without a GPU: fake_normjit.cc, with the library's own specs and the
elements of the reference."""
import glob
import os

from normjit import _build

HERE = os.path.dirname(os.path.abspath(__file__))
_SOURCES = ("spec/spec.cc", "spec/spec_text.cc", "base/result.cc", "c_api/call.cc", "service/packed_tensors.cc",
            "../verify/element.cc", "../verify/reference.cc", "../verify/gradients.cc", "../verify/problem.cc")


def build():
    """Its path. Raises _build.BuildError."""
    root = os.path.join(HERE, "..", "..", "src")
    headers = sorted(glob.glob(os.path.join(root, "normjit", "**", "*.h"), recursive=True))
    headers += [os.path.join(root, "verify", name) for name in ("element.h", "gradients.h", "problem.h", "reference.h")]
    sources = [os.path.join(HERE, "fake_normjit.cc")] + [os.path.join(root, "normjit", name) for name in _SOURCES]
    return _build.build("fake_normjit", [*headers, *sources], [root, os.path.join(root, "..", "templates")],
                        ["-std=c++20", '-DNORMJIT_VERSION="0.0.0"'])
