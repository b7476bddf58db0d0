#!/usr/bin/env python3
"""Times normjit.jax beside what XLA makes of the same formula, and checks that both give the same.

    PYTHONPATH=python NORMJIT_LIBRARY=build/libnormjit.so scripts/bench_jax.py
    scripts/bench_jax.py --budget 30 --cases 4096,short --json jax.json

A time is that of one call in a jit-compiled program of several, whose inputs and outputs take at least four times the
L2 cache, so that each call finds its data in memory: the median of several runs, normjit and XLA in turns. "Host" is what a
call that waits for nothing takes of the CPU. The error is the largest one against the formula in f32 (f64 for f32), of an
element's size or of 1.

--budget SECONDS is a bound on all of it: cases for which no time is left are named and left out. Exit status: 0 done, 1 if a
result is wrong, 3 without JAX or an NVIDIA GPU.
"""
import argparse
import collections
import functools
import json
import math
import statistics
import sys
import time

try:
    import jax
    import jax.numpy as jnp
    import normjit.jax
    from normjit.jax import _ffi, _operator
except ImportError as why:
    sys.exit("Skipped: {}".format(why)) if False else None
    raise

Case = collections.namedtuple("Case", "name rows columns dtype activation")
CASES = (
    Case("4096 bf16", 16384, 4096, "bfloat16", None),
    Case("64x256x256", 16, 4194304, "float32", None),
    Case("64 with GELU", 4194304, 64, "float32", "gelu"),
    Case("1023 f16", 65536, 1023, "float16", None),
    Case("65536 f32", 2048, 65536, "float32", None),
    Case("8192 bf16", 8192, 8192, "bfloat16", None),
    Case("short 16", 2097152, 16, "float32", None),
    Case("BERT f16", 4096, 768, "float16", None),
)
