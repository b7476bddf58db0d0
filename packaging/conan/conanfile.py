# SPDX-License-Identifier: Apache-2.0
"""The Conan 2 package: the shared library and the archive, headers, and the tool.

  conan create packaging/conan --build=missing [-o normjit/*:with_tool=False]

Its dependencies are headers, which it takes from the system (apt-get, where Conan may call it: see
tools.system.package_manager:mode). The CUDA headers and NVRTC are those in CUDA_HOME, else in /usr/local/cuda. Users find
the package by its own CMake and pkg-config files, as an installed one: normjit::normjit and normjit::normjit_static.
"""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load
from conan.tools.system.package_manager import Apt


class Normjit(ConanFile):
    name = "normjit"
    description = "LayerNorm and RMSNorm kernels for NVIDIA GPUs, generated at run time"
    license = "Apache-2.0"
    topics = ("cuda", "layernorm", "rmsnorm", "nvrtc", "jit")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_tool": [True, False]}
    default_options = {"with_tool": True}

    def _project(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._project(), "CMakeLists.txt"))
        self.version = re.search(r"project\(normjit VERSION ([0-9.]+)", text).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "NOTICE", "src/*", "templates/*", "cache/manifests/*", "packaging/*",
                        "scripts/embed_files.cmake", "scripts/pack_generic.cc", "scripts/bench_peers.cc"):
            copy(self, pattern, src=self._project(), dst=self.export_sources_folder)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("normjit runs on Linux only")
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def system_requirements(self):
        packages = ["libspdlog-dev", "libxxhash-dev"]
        if self.options.with_tool:
            packages += ["libcli11-dev", "nlohmann-json3-dev"]
        Apt(self).install(packages, update=True, check=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["NORMJIT_BUILD_TOOL"] = bool(self.options.with_tool)
        toolchain.cache_variables["NORMJIT_BUILD_TESTS"] = False
        toolchain.cache_variables["NORMJIT_BUILD_PLUGINS"] = False  # their client libraries are packages of the system
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="normjit_installable")

    def package(self):
        CMake(self).install()
        for name in ("LICENSE", "NOTICE"):
            copy(self, name, src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.libs = ["normjit"]
        self.cpp_info.builddirs = ["lib/cmake/normjit"]
        self.cpp_info.set_property("cmake_find_mode", "none")  # its own files
