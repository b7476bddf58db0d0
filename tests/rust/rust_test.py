#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""normjit-sys: compiled without warnings by the rustc of Debian 12 or a newer one, its declarations compared with
normjit/c_api.h, and its calls made.

    rust_test.py nvrtc     # with a stand-in for libcuda in LD_LIBRARY_PATH
    rust_test.py gpu       # the example, on a GPU

NORMJIT_LIBRARY names the library, CC the C compiler. Without rustc it says so in one line and exits with 77.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADER = os.path.join(ROOT, "src", "normjit", "c_api.h")


def run(*command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode not in (0, 77):
        raise AssertionError("{} exits with {}:\n{}{}".format(command[0], done.returncode, done.stdout, done.stderr))
    return done


def compiled(source):
    """A program above the crate."""
    program = os.path.join(FOLDER, os.path.basename(source)[:-3])
    run(RUSTC, "--edition", "2021", "-D", "warnings", "--extern", "normjit_sys=" + CRATE, "-o", program,
        os.path.join(ROOT, source))
    return program


class Declarations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(HEADER) as file:
            cls.header = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        lines = run(compiled("tests/rust/interface.rs"), "layout").stdout.splitlines()
        cls.rust = {kind: sorted(line.split(" ", 1)[1] for line in lines if line.startswith(kind + " "))
                    for kind in ("structure", "member", "constant", "function")}

    def structures(self):
        """The members of each structure that the header defines."""
        found = {}
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", self.header, re.S):
            found[name] = re.findall(r"(\w+);", body)
        return found

    def from_c(self, lines):
        """What a C program prints that has such lines and sees the header."""
        source, program = os.path.join(FOLDER, "c.c"), os.path.join(FOLDER, "c")
        with open(source, "w") as file:
            file.write("#include <stdio.h>\n#include <normjit/c_api.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
        run(os.environ.get("CC", "cc"), "-std=c11", "-I", os.path.join(ROOT, "src"), source, "-o", program)
        return sorted(run(program).stdout.splitlines())

    def test_structures_have_the_sizes_of_c(self):
        names = self.structures()
        self.assertGreater(len(names), 8)
        self.assertEqual(self.rust["structure"], self.from_c('printf("{0} %zu\\n", sizeof({0}));'.format(name) for name in names))

    def test_members_lie_where_c_has_them(self):
        lines = ['printf("{0}.{1} %zu %zu\\n", offsetof({0}, {1}), sizeof((({0}*)0)->{1}));'.format(name, member)
                 for name, members in self.structures().items() for member in members]
        self.assertGreater(len(lines), 120)
        self.assertEqual(self.rust["member"], self.from_c(lines))

    def test_constants_have_the_values_of_c(self):
        names = re.findall(r"\b(NORMJIT_[A-Z0-9_]+) = \d+", self.header) + ["NORMJIT_ABI_VERSION", "NORMJIT_WORKSPACE_ZEROED"]
        self.assertGreater(len(names), 120)
        self.assertEqual(self.rust["constant"], self.from_c('printf("{0} %d\\n", (int){0});'.format(name) for name in names))

    def test_the_version_is_that_of_the_library(self):
        versions = []
        for path, pattern in [("CMakeLists.txt", r"project\(normjit VERSION ([\d.]+)"), ("rust/Cargo.toml", r'^version = "([\d.]+)"')]:
            with open(os.path.join(ROOT, path)) as file:
                versions.append(re.search(pattern, file.read(), re.M).group(1))
        self.assertEqual(versions[0], versions[1])

    def test_no_function_is_missing(self):
        names = re.findall(r"^NORMJIT_C_EXPORT [\w *]*?(normjit_\w+)\(", self.header, re.M)
        self.assertGreater(len(names), 30)
        self.assertEqual(self.rust["function"], sorted(names))


class Calls(unittest.TestCase):
    def test_of_the_library(self):
        with tempfile.TemporaryDirectory() as cache:
            run(compiled("tests/rust/interface.rs"), "calls", cache)

    def test_the_example_is_compiled(self):
        compiled("examples/rust_norm.rs")

    def test_an_older_library_is_refused(self):
        """One that lacks a function is an error with its name, not a crash."""
        source, library = os.path.join(FOLDER, "old.c"), os.path.join(FOLDER, "libold.so")
        with open(source, "w") as file:
            file.write("unsigned normjit_abi_version(void) { return 1; }\n")
        run(os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o", library)
        with self.assertRaisesRegex(AssertionError, "libold.so has no normjit_version: it is older than this crate"):
            run(compiled("tests/rust/interface.rs"), "calls", FOLDER, NORMJIT_LIBRARY=library)


if __name__ == "__main__":
    # Debian's first: a newer one takes everything that it takes.
    RUSTC = os.environ.get("RUSTC") or next(filter(shutil.which, ["/usr/bin/rustc", "rustc"]), None)
    if not RUSTC:
        print("Skipped: no rustc here (Debian: rustc)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as FOLDER:
        CRATE = os.path.join(FOLDER, "libnormjit_sys.rlib")
        run(RUSTC, "--edition", "2021", "-D", "warnings", "--crate-type", "rlib", "--crate-name", "normjit_sys", "-o", CRATE,
            os.path.join(ROOT, "rust", "src", "lib.rs"))
        if sys.argv.pop() == "gpu":
            done = run(compiled("examples/rust_norm.rs"))
            print(done.stdout)
            sys.exit(done.returncode)
        unittest.main()
