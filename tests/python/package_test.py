#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the package normjit itself, which needs no framework and no library.

    python3 tests/python/package_test.py
"""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Importing these fails, as where they are not installed; their distributions keep their metadata.
WITHOUT = """
import sys
for name in ("torch", "jax"):
    sys.modules.pop(name, None)
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "jax"):
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Missing())
"""


class PackageTest(unittest.TestCase):
    def run_python(self, code, *paths):
        """Of an interpreter with the package, and these folders, on its path: (exit status, stdout, stderr)."""
        path = os.pathsep.join([os.path.join(ROOT, "python"), *paths])
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": path})
        return done.returncode, done.stdout, done.stderr

    def test_the_version_is_that_of_the_installed_package(self):
        with tempfile.TemporaryDirectory() as site:
            info = os.path.join(site, "normjit-12.34.dist-info")
            os.mkdir(info)
            with open(os.path.join(info, "METADATA"), "w") as file:
                file.write("Metadata-Version: 2.1\nName: normjit\nVersion: 12.34\n")
            self.assertEqual(self.run_python("import normjit; print(normjit.__version__)", site),
                             (0, "12.34\n", ""))

    def test_without_an_installation_there_is_none(self):
        status, _, err = self.run_python("import normjit; normjit.__version__")
        self.assertNotEqual(status, 0)
        self.assertIn("AttributeError: normjit has a __version__ once it is installed", err)

    def test_it_has_no_other_attributes(self):
        status, _, err = self.run_python("import normjit; normjit.nothing")
        self.assertNotEqual(status, 0)
        self.assertIn("AttributeError: module 'normjit' has no attribute 'nothing'", err)

    def test_a_missing_framework_is_named_with_the_way_out(self):
        for name, hint in [("torch", "pip install 'normjit[torch]'"), ("jax", "pip install 'normjit[jax]'")]:
            status, _, err = self.run_python(WITHOUT + "import normjit." + name)
            self.assertNotEqual(status, 0)
            self.assertIn("ModuleNotFoundError: normjit.{} needs ".format(name), err.splitlines()[-1])
            self.assertIn(hint, err.splitlines()[-1])

    def test_the_import_loads_nothing(self):
        code = "import sys; before = set(sys.modules); import normjit; print(set(sys.modules) - before)"
        self.assertEqual(self.run_python(code), (0, "{'normjit'}\n", ""))


if __name__ == "__main__":
    unittest.main()
