# SPDX-License-Identifier: Apache-2.0
"""The project of tests/package/consumer with the package of Conan: it links the shared library and the archive."""
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class TestPackage(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeToolchain", "VirtualRunEnv"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder=os.path.join(self.recipe_folder, "..", "..", "..", "tests", "package", "consumer"))
        cmake.build()

    def test(self):
        if can_run(self):
            for library in ("normjit", "normjit_static"):
                self.run(os.path.join(self.cpp.build.bindir, "with_" + library), env="conanrun")
