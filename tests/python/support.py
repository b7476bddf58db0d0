# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: where things are, how a test is skipped, and the fake libnormjit. Import it
before anything of normjit."""
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FAKE = "--fake" in sys.argv  # on the CPU, above a libnormjit that computes there
COMPILER = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
SKIPPED = 77

sys.path.insert(0, os.path.join(ROOT, "python"))
sys.dont_write_bytecode = True


def skip(why):
    print("Skipped: {}".format(why))
    sys.exit(SKIPPED)


def use_fake_library():
    """Builds the fake libnormjit, and names it in NORMJIT_LIBRARY."""
    import fake_library
    if not COMPILER:
        skip("no C++ compiler for the fake libnormjit")
    os.environ["NORMJIT_LIBRARY"] = fake_library.build()
