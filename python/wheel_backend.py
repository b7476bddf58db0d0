# SPDX-License-Identifier: Apache-2.0
"""What pip runs to build the wheel: scikit-build-core, with the CUDA headers and NVRTC from pip where there is no toolkit.

A toolkit is taken from CUDA_HOME, CUDA_PATH or /usr/local/cuda, if it has both. NVRTC compiles the generic kernels, which
become part of the library.
"""
import glob
import importlib.util
import os

from scikit_build_core import build as _backend
from scikit_build_core.build import (  # noqa: F401
    build_sdist, get_requires_for_build_sdist, prepare_metadata_for_build_wheel)

_WHEELS = ["nvidia-cuda-runtime==13.0.*", "nvidia-cuda-nvrtc==13.0.*"]


def get_requires_for_build_wheel(config_settings=None):
    wheels = [] if _has_toolkit() else _WHEELS
    return _backend.get_requires_for_build_wheel(config_settings) + wheels


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if not _has_toolkit():
        config_settings = {**_from_wheels(), **(config_settings or {})}
    return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def _has_toolkit():
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return any(
        all(glob.glob(os.path.join(home, *path)) for path in
            (("include", "cuda.h"), ("include", "nvrtc.h"), ("lib*", "libnvrtc.so.1[23]")))
        for home in homes if home)


def _from_wheels():
    """The settings for CMake; NVRTC is found by the program that CMake runs."""
    folders = importlib.util.find_spec("nvidia").submodule_search_locations
    cuda = next(path for path in (os.path.join(folder, "cu13") for folder in folders) if os.path.isdir(path))
    os.environ.setdefault("NORMJIT_NVRTC_PATH", os.path.join(cuda, "lib", "libnvrtc.so.13"))
    include = os.path.join(cuda, "include")
    return {"cmake.define.NORMJIT_CUDA_INCLUDE": include, "cmake.define.NORMJIT_NVRTC_INCLUDE": include}
