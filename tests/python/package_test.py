#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the package normjit itself, which needs no framework, and a library only for add_layer (NORMJIT_LIBRARY).

    python3 tests/python/package_test.py
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# The pack without an entry.
EMPTY_PACK = b"normjit-pack 1\nchecksum: 70166cd02e3ed770e89ff4c51bd30a14\nentries: 0\n\n"

# Importing these fails, as where they are not installed; their distributions keep their metadata.
WITHOUT = """
import sys
for name in ("torch", "jax", "onnx"):
    sys.modules.pop(name, None)
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "jax", "onnx"):
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Missing())
"""


class PackageTest(unittest.TestCase):
    def run_with_library(self, code, **environment):
        """The same with libnormjit and a cache of its own; skips where there is none."""
        if not os.environ.get("NORMJIT_LIBRARY"):
            self.skipTest("NORMJIT_LIBRARY names no libnormjit")
        with tempfile.TemporaryDirectory() as folder:
            return self.run_python(code, NORMJIT_CACHE_DIR=folder, NORMJIT_LAYERS="", **{"NORMJIT_TRUST": "", **environment})

    def run_python(self, code, *paths, **environment):
        """Of an interpreter with the package, and these folders, on its path: (exit status, stdout, stderr)."""
        path = os.pathsep.join([os.path.join(ROOT, "python"), *paths])
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": path, **environment})
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

    def test_constants_have_the_values_of_c(self):
        with open(os.path.join(ROOT, "src", "normjit", "c_api.h")) as file:
            header = file.read()
        in_c = {name: int(value) for name, value in re.findall(r"\bNORMJIT_([A-Z0-9_]+) = (\d+)", header)}
        for name, value, shift in re.findall(r"^#define NORMJIT_(\w+) (?:\(\(size_t\))?(\d+)(?: << (\d+)\))?$", header, re.M):
            in_c[name] = int(value) << int(shift or 0)
        status, out, err = self.run_python("import json; from normjit import _library; print(json.dumps({name: value for name, "
                                           "value in vars(_library).items() if name.isupper() and isinstance(value, int)}))")
        self.assertEqual((status, err), (0, ""))
        constants = json.loads(out)
        self.assertTrue({"ABI_VERSION", "WORKSPACE_ZEROED", "NO_COMPILER"} <= constants.keys())
        self.assertEqual(constants, {name: in_c.get(name) for name in constants})

    def test_the_bytes_of_a_pack_are_a_layer_of_every_service(self):
        code = '''
import json, normjit
from normjit import _library
normjit.add_layer({!r})
for invariant in (False, True):
    report = json.loads(_library.text_of("normjit_environment", _library.service(invariant)))
    print(report["layers"])
'''.format(EMPTY_PACK)
        layer = "[{'path': 'memory layer 1', 'entries': 0, 'error': ''}]\n"
        self.assertEqual(self.run_with_library(code), (0, 2 * layer, ""))

    def test_other_bytes_are_refused(self):
        for pack, error in [(b"", "RuntimeError: .*not a valid pack"), (EMPTY_PACK[:-1], "RuntimeError: .*not a valid pack"),
                            ("text", "TypeError: pack must be bytes, not str")]:
            code = '''
import json, normjit
from normjit import _library
try:
    normjit.add_layer({!r})
except (RuntimeError, TypeError) as error:
    print([kind.__name__ for kind in type(error).__mro__ if not kind.__module__.startswith("normjit")][0] + ":", error)
print(json.loads(_library.text_of("normjit_environment", _library.service()))["layers"])
'''.format(pack)
            status, out, err = self.run_with_library(code)
            self.assertEqual((status, err), (0, ""))
            self.assertRegex(out, "^" + error)
            self.assertTrue(out.endswith("\n[]\n"), out)

    def test_with_trusted_keys_a_pack_needs_a_signature(self):
        key = "RWRCSwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        for signature, error in [(None, "is not signed"), ("no signature", "is not trusted")]:
            status, _, err = self.run_with_library("import normjit; normjit.add_layer({!r}, {!r})".format(
                EMPTY_PACK, signature), NORMJIT_TRUST=key)
            self.assertNotEqual(status, 0)
            self.assertIn(error, err.splitlines()[-1])

    def test_the_counters_are_a_page_of_metrics(self):
        status, out, err = self.run_with_library("import normjit; print(normjit.prometheus({'model': 'b\"ert'}), end='')")
        self.assertEqual((status, err), (0, ""))
        self.assertIn('\nnormjit_hits_total{model="b\\"ert",tier="disk"} 0\n', out)
        status, _, err = self.run_with_library("import normjit; normjit.prometheus({'my model': ''})")
        self.assertNotEqual(status, 0)
        self.assertIn("label 'my model'", err.splitlines()[-1])

    def test_a_missing_framework_is_named_with_the_way_out(self):
        for name, use, hint in [("torch", "", "pip install 'normjit[torch]'"), ("jax", "", "pip install 'normjit[jax]'"),
                                ("onnx", ".rewrite(None)", "pip install 'normjit[onnx]'")]:
            status, _, err = self.run_python(WITHOUT + "import normjit.{0}; normjit.{0}{1}".format(name, use))
            self.assertNotEqual(status, 0)
            self.assertIn("ModuleNotFoundError: normjit.{} needs ".format(name), err.splitlines()[-1])
            self.assertIn(hint, err.splitlines()[-1])

    def test_the_import_loads_nothing(self):
        code = "import sys; before = set(sys.modules); import normjit; print(set(sys.modules) - before)"
        self.assertEqual(self.run_python(code), (0, "{'normjit'}\n", ""))


if __name__ == "__main__":
    unittest.main()
