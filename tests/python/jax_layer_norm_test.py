#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of normjit.jax against the formula in NumPy, and against JAX's own derivatives of it.

    NORMJIT_LIBRARY=build/libnormjit.so python3 tests/python/jax_layer_norm_test.py

    python3 tests/python/jax_layer_norm_test.py --fake

They run the kernels; with --fake the very same handlers on the CPU, above a libnormjit that computes there (fake_normjit.cc).
NORMJIT_TEST_SEED=N repeats a run whose seed was N. Without JAX or a GPU they say so in one line and exit with 77.
"""
import contextlib
import ctypes
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.join(HERE, "..", "..", "python")
sys.path.insert(0, PACKAGES)
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
if "--fake" in sys.argv:
    os.environ["JAX_PLATFORMS"] = "cpu"  # also where there is a GPU

def skip(why):
    print("Skipped: {}".format(why))
    sys.exit(77)


try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as missing:
    skip("no JAX here ({})".format(missing))
if not hasattr(jax, "typeof"):
    skip("JAX {} is older than 0.6".format(jax.__version__))

import fake_library  # noqa: E402
from normjit import _library  # noqa: E402
from normjit.jax import _ffi  # noqa: E402
import normjit.jax  # noqa: E402

SEED = int(os.environ.get("NORMJIT_TEST_SEED", random.randrange(10 ** 6)))
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu")
DTYPES = ("float16", "bfloat16", "float32", "float64")
# Of an output's size, or of 1: rounding to the dtype, and some for the sums.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "float64": 1e-11}


def x64():
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


class Fake:
    """The variables of fake_normjit.cc."""

    def __getattr__(self, name):
        return self._variable(name).value

    def __setattr__(self, name, value):
        self._variable(name).value = value

    def _variable(self, name):
        return (ctypes.c_int32 if name.endswith("_status") else ctypes.c_int64).in_dll(_library.load(), "fake_" + name)


def use_the_fake():
    """Puts the fake in libnormjit's place, and the handlers on the CPU platform."""
    os.environ["NORMJIT_LIBRARY"] = fake_library.build()
    handlers = _ffi.open_handlers(os.path.join(HERE, "jax_on_host.cc"))
    jax.ffi.register_ffi_target(_ffi.TARGET, jax.ffi.pycapsule(handlers.normjit_jax_test_execute), platform="cpu")
    jax.ffi.register_ffi_target("normjit_refuse", jax.ffi.pycapsule(handlers.normjit_jax_refuse), platform="cpu")
    _ffi.register, _ffi.workspace_bytes = lambda: None, lambda spec: FAKE.workspace_bytes
    _ffi.gpus, _ffi.context_of = lambda: DEVICES[:1], lambda gpu: contextlib.nullcontext()
    return Fake()


def setUpModule():
    global FAKE, BUILDS, DEVICES
    DEVICES, FAKE = jax.devices("cpu") if "--fake" in sys.argv else _ffi.gpus(), None
    print("NORMJIT_TEST_SEED={}, JAX {}, {}".format(SEED, jax.__version__, DEVICES[0].device_kind), file=sys.stderr)
    if "--fake" in sys.argv:
        BUILDS = tempfile.TemporaryDirectory()
        os.environ["NORMJIT_BUILD_DIR"] = BUILDS.name
        FAKE = use_the_fake()


def activated(z, activation):
    if activation == "relu":
        return np.maximum(z, 0)
    if activation == "gelu":
        return z / 2 * np.vectorize(math.erfc, otypes=[np.float64])(-z / math.sqrt(2))
    if activation == "gelu_tanh":
        return z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z ** 3)))
    return z / (1 + np.exp(-z)) if activation == "silu" else z


def reference(x, weight=None, bias=None, ndim=1, eps=1e-5, activation=None, scale=1.0):
    """In f64, of any arrays."""
    x, weight, bias = [None if array is None else np.asarray(array).astype(np.float64) for array in (x, weight, bias)]
    axes = tuple(range(x.ndim - ndim, x.ndim))
    z = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
    z = z if weight is None else z * weight
    z = z if bias is None else z + bias
    return activated(z, activation) * scale


def formula(x, weight=None, bias=None, eps=1e-5, activation=None, scale=1.0):
    """In jax.numpy, for JAX to differentiate."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    centred = x.astype(wide) - x.astype(wide).mean(-1, keepdims=True)
    z = centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    z = z if weight is None else z * weight.astype(wide)
    z = z if bias is None else z + bias.astype(wide)
    return (applied(activation, z) * scale).astype(x.dtype)


def applied(activation, z):
    return {None: lambda z: z, "relu": jax.nn.relu, "gelu": lambda z: jax.nn.gelu(z, approximate=False),
            "gelu_tanh": jax.nn.gelu, "silu": jax.nn.silu}[activation](z)


def gradient(function, given):
    return jax.jit(jax.grad(function, given))


class Case(unittest.TestCase):
    def setUp(self):
        self.data = np.random.default_rng(SEED)

    def array(self, *shape, dtype="float32"):
        return jnp.asarray(self.data.normal(0.3, 1.5, shape), dtype)

    def layer(self, columns, dtype="float32"):
        return self.array(columns, dtype=dtype), self.array(columns, dtype=dtype)

    def assertClose(self, found, wanted, tolerance=None, message=""):
        found, dtype = np.asarray(found), found.dtype.name
        self.assertEqual(found.shape, np.shape(wanted), message)
        wanted = np.asarray(wanted).astype(np.float64)
        gap = np.abs(found.astype(np.float64) - wanted) / np.maximum(1, np.abs(wanted))
        self.assertLessEqual(gap.max(initial=0), tolerance or TOLERANCE[dtype], "seed {} {}".format(SEED, message))


class Values(Case):
    def test_random_problems(self):
        choose = random.Random(SEED)
        for _ in range(24):
            dtype, ndim = choose.choice(DTYPES[:3]), choose.choice((1, 1, 2, 3))
            shape = [choose.choice((1, 2, 3, 7, 16, 33)) for _ in range(ndim + choose.randrange(3))]
            affine = choose.choice(((0, 0), (1, 0), (1, 1), (0, 1)))
            others = [choose.choice((dtype, "float32", "bfloat16")) for _ in affine]
            layer = [self.array(*shape[-ndim:], dtype=other) if has else None for has, other in zip(affine, others)]
            options = {"eps": choose.choice((1e-5, 1e-3, 0.5)), "activation": choose.choice(ACTIVATIONS),
                       "scale": choose.choice((1.0, -0.5, 3))}
            x = self.array(*shape, dtype=dtype)
            with self.subTest(shape=shape, dtype=dtype, affine=affine, others=others, ndim=ndim, **options):
                y = normjit.jax.layer_norm(x, *layer, normalized_ndim=ndim, **options)
                self.assertEqual(y.dtype, x.dtype)
                self.assertClose(y, reference(x, *layer, ndim=ndim, **options))

    def test_f64(self):
        with x64():
            x, layer = self.array(5, 37, dtype="float64"), self.layer(37, "float64")
            y = normjit.jax.layer_norm(x, *layer, activation="gelu")
            self.assertEqual(y.dtype, np.float64)
            self.assertClose(y, reference(x, *layer, activation="gelu"))
            x, layer = self.array(5, 37), self.layer(37, "float64")  # computed in f64, stored as f32
            self.assertClose(normjit.jax.layer_norm(x, *layer), reference(x, *layer))

    def test_normalized_shape(self):
        x = self.array(3, 4, 5)
        for shape, ndim in ((5, 1), ((5,), 1), ([4, 5], 2), ((3, 4, 5), 3)):
            y = normjit.jax.layer_norm(x, normalized_shape=shape)
            self.assertClose(y, reference(x, ndim=ndim), message=str(shape))

    def test_long_rows_get_a_zeroed_workspace(self):
        if FAKE:
            self.addCleanup(setattr, FAKE, "workspace_bytes", 0)
            FAKE.workspace_bytes = 300
        for columns in (4099, 300_000):
            x, layer = self.array(2, columns), self.layer(columns)
            run = jax.jit(lambda x: normjit.jax.layer_norm(normjit.jax.layer_norm(x, *layer), *layer))
            wanted = reference(reference(x, *layer), *layer)
            for _ in range(3):
                self.assertClose(run(x), wanted)
            found, wanted = [gradient(lambda *arrays: (function(*arrays) ** 2).sum(), (0, 1, 2))(x, *layer)
                             for function in (normjit.jax.layer_norm, formula)]
            for a, b in zip(found, wanted):
                self.assertClose(a, b, 1e-3)

    def test_nothing_to_do(self):
        for shape in ((0, 8), (3, 0), (2, 0, 8)):
            x = self.array(*shape)
            self.assertEqual(normjit.jax.layer_norm(x, *self.layer(shape[-1])).shape, shape)
            grads = gradient(lambda x, w, b: normjit.jax.layer_norm(x, w, b).sum(), (0, 1))(x, *self.layer(shape[-1]))
            self.assertEqual([grad.shape for grad in grads], [shape, shape[-1:]])
            self.assertFalse(np.any(grads[1]))

    def test_numpy_arrays(self):
        x = np.asarray(self.array(3, 8))
        self.assertClose(normjit.jax.layer_norm(x), reference(x))


class Transformations(Case):
    def test_jit_with_other_work_around_it(self):
        x, layer = self.array(6, 48), self.layer(48)
        y = jax.jit(lambda x: 2 * normjit.jax.layer_norm(x + 1, *layer, activation="silu").T)(x)
        self.assertClose(y, 2 * reference(x + 1, *layer, activation="silu").T)

    def test_vmap_makes_rows(self):
        x, layer = self.array(4, 6, 5, 24), self.layer(24)
        for axis in range(3):
            run = jax.vmap(lambda x: normjit.jax.layer_norm(x, *layer), axis, axis)
            self.assertClose(run(x), reference(x, *layer), message="axis {}".format(axis))
        twice = jax.vmap(jax.vmap(lambda x: normjit.jax.layer_norm(x, *layer)))
        self.assertClose(jax.jit(twice)(x), reference(x, *layer))
        # The last axis, too: what is normalized then is another one.
        self.assertClose(jax.vmap(lambda x: normjit.jax.layer_norm(x), 3, 3)(x), np.moveaxis(
            reference(np.moveaxis(np.asarray(x), 3, 0)), 0, 3))
        if FAKE:
            before = FAKE.launches
            jax.vmap(lambda x: normjit.jax.layer_norm(x, *layer))(x)
            self.assertEqual(FAKE.launches - before, 1)

    def test_vmap_over_the_weights(self):
        x, w, b = self.array(3, 5, 24), self.array(3, 24), self.array(3, 24)
        wanted = np.stack([reference(x[i], w[i], b[i]) for i in range(3)])
        self.assertClose(jax.vmap(normjit.jax.layer_norm)(x, w, b), wanted)
        some = jax.vmap(normjit.jax.layer_norm, (None, 0, None))(x[0], w, b[0])
        self.assertClose(some, np.stack([reference(x[0], w[i], b[0]) for i in range(3)]))
        self.assertClose(jax.vmap(normjit.jax.layer_norm, (0, 0))(x, w), np.stack(
            [reference(x[i], w[i]) for i in range(3)]))

    def test_scan(self):
        x, layers = self.array(7, 40), (self.array(5, 40), self.array(5, 40))
        run = jax.jit(lambda x, layers: jax.lax.scan(
            lambda x, layer: (normjit.jax.layer_norm(x, *layer, activation="gelu"), None), x, layers)[0])
        wanted = x
        for w, b in zip(*layers):
            wanted = reference(wanted, w, b, activation="gelu")
        self.assertClose(run(x, layers), wanted, 1e-4)
        self.assertClose(run(x, layers), run(x, layers), 1e-30)  # the same bits again

    def test_while_and_cond(self):
        x = self.array(3, 40)
        run = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: jax.lax.cond(
            x[0, 0] > 1e6, lambda x: x, normjit.jax.layer_norm, x), x))
        self.assertClose(run(x, 3), reference(reference(reference(x))), 1e-4)

    def test_shard_map(self):
        if len(DEVICES) < 2 or not hasattr(jax, "shard_map"):
            self.skipTest("needs two GPUs and JAX 0.7")
        mesh = jax.sharding.Mesh(np.array(DEVICES[:2]), ("rows",))
        rows, all_alike = jax.sharding.PartitionSpec("rows"), jax.sharding.PartitionSpec()
        for columns in (24, 40_000):
            x, layer = self.array(4, columns), self.layer(columns)
            for check in (True, False):
                run = jax.jit(jax.shard_map(lambda x, w, b: normjit.jax.layer_norm(x, w, b), mesh=mesh,
                                            in_specs=(rows, all_alike, all_alike), out_specs=rows, check_vma=check))
                self.assertClose(run(x, *layer), reference(x, *layer))
                grad = gradient(lambda x, w, b: (run(x, w, b) ** 2).sum(), (0, 1, 2))(x, *layer)
                wanted = gradient(lambda x, w, b: (formula(x, w, b) ** 2).sum(), (0, 1, 2))(x, *layer)
                for found, want in zip(grad, wanted):
                    self.assertClose(found, want, 1e-3)

    def test_jit_of_sharded_arrays(self):
        if len(DEVICES) < 2:
            self.skipTest("needs two GPUs")
        mesh = jax.sharding.Mesh(np.array(DEVICES[:2]), ("rows",))
        x, layer = self.array(4, 24), self.layer(24)
        sharded = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows")))
        self.assertClose(jax.jit(normjit.jax.layer_norm)(sharded, *layer), reference(x, *layer))
        found, wanted = [gradient(lambda *arrays: (function(*arrays) ** 2).sum(), (0, 1, 2))(some, *layer)
                         for function, some in ((normjit.jax.layer_norm, sharded), (formula, x))]
        for a, b in zip(found, wanted):
            self.assertClose(a, b, 1e-3)

    def test_second_device(self):
        if len(DEVICES) < 2:
            self.skipTest("needs two GPUs")
        x, w, b = [jax.device_put(array, DEVICES[1]) for array in (self.array(4, 24), *self.layer(24))]
        y = normjit.jax.layer_norm(x, w, b)
        self.assertEqual(y.devices(), {DEVICES[1]})
        self.assertClose(y, reference(x, w, b))

    def test_threads(self):
        x, layer = self.array(9, 40), self.layer(40)
        wanted, results = reference(x, *layer), {}

        def work(name):
            for _ in range(5):
                results[name] = jax.jit(lambda x: normjit.jax.layer_norm(x, *layer))(x)  # each with a trace of its own

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 4)
        for result in results.values():
            self.assertClose(result, wanted)


class Derivatives(Case):
    def test_gradients(self):
        choose = random.Random(SEED)
        for activation in ACTIVATIONS:
            for given in (choose.choice((0, (0,), (0, 1), (1,), (2,), (1, 2))), (0, 1, 2)):
                x, layer, cotangent = self.array(6, 40), self.layer(40), self.array(6, 40)
                options = {"activation": activation, "scale": 0.5, "eps": 1e-3}
                found, wanted = [gradient(lambda *arrays: (function(*arrays, **options) * cotangent).sum(), given)(
                    x, *layer) for function in (normjit.jax.layer_norm, formula)]
                for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
                    self.assertClose(a, b, 2e-4, "{} {}".format(activation, given))

    def test_gradients_have_the_dtypes_of_what_they_are_of(self):
        for dtype, other in (("bfloat16", "float32"), ("float16", "float16"), ("float32", "bfloat16")):
            x, layer = self.array(64, 40, dtype=dtype), self.layer(40, other)
            found, wanted = [gradient(lambda *arrays: function(*arrays).astype(jnp.float32).var(), (0, 1, 2))(
                x, *layer) for function in (normjit.jax.layer_norm, formula)]
            self.assertEqual([grad.dtype.name for grad in found], [dtype, other, other])
            for a, b in zip(found, wanted):
                self.assertClose(a, b, 2e-2)

    def test_without_weight_or_bias(self):
        x, (w, _) = self.array(6, 40), self.layer(40)
        for layer in ((), (w,)):
            found, wanted = [gradient(lambda *arrays: (function(*arrays) ** 3).sum(), tuple(range(1 + len(layer))))(
                x, *layer) for function in (normjit.jax.layer_norm, formula)]
            for a, b in zip(found, wanted):
                self.assertClose(a, b, 2e-4)

    def test_both_modes_and_second_order(self):
        with x64():
            primals, tangents = [[self.array(*shape, dtype="float64") for shape in ((3, 7), (7,), (7,))] for _ in range(2)]

            def derivatives(function):
                def layer(*arrays):
                    return function(*arrays, activation="gelu_tanh", eps=0.1)

                def loss(*arrays):
                    return (layer(*arrays) ** 3).sum()

                def along(*arrays):  # the gradient in one direction
                    return sum((grad * dt).sum() for grad, dt in zip(jax.grad(loss, (0, 1, 2))(*arrays), tangents))

                return jax.jit(lambda *arrays: (jax.jvp(layer, arrays, tuple(tangents)),
                                                jax.grad(along, (0, 1, 2))(*arrays),
                                                jax.jvp(jax.grad(loss), arrays, tuple(tangents))))

            for a, b in zip(*[jax.tree.leaves(derivatives(function)(*primals))
                              for function in (normjit.jax.layer_norm, formula)]):
                self.assertClose(a, b, 1e-9)

    def test_hessian(self):
        with x64():
            x, layer = self.array(2, 5, dtype="float64"), self.layer(5, "float64")
            found, wanted = [jax.jit(jax.hessian(lambda x: (function(x, *layer, eps=0.1) ** 3).sum()))(x)
                             for function in (normjit.jax.layer_norm, formula)]
            self.assertClose(found, wanted, 1e-9)

    def test_under_vmap_scan_and_remat(self):
        x, layers = self.array(4, 6, 40), (self.array(3, 40), self.array(3, 40))

        def network(function):
            def loss(x, layers):
                body = jax.checkpoint(lambda x, layer: (x + function(x, *layer), None))
                return (jax.lax.scan(body, x, layers)[0] ** 2).sum()
            return jax.jit(jax.vmap(jax.grad(loss, (0, 1)), (0, None)))

        for a, b in zip(jax.tree.leaves(network(normjit.jax.layer_norm)(x, layers)),
                        jax.tree.leaves(network(formula)(x, layers))):
            self.assertClose(a, b, 1e-3)

    def test_what_the_forward_pass_keeps(self):
        x, layer = self.array(64, 256, dtype="bfloat16"), self.layer(256, "bfloat16")
        for activation in (None, "gelu"):  # x itself, and the vectors
            _, backward = jax.vjp(lambda *arrays: normjit.jax.layer_norm(*arrays, activation=activation), x, *layer)
            kept = sum(array.nbytes for array in jax.tree.leaves(backward))
            self.assertLess(kept, 1.05 * x.nbytes)


class Errors(Case):
    def refused(self, kind, text, *arrays, **options):
        with self.assertRaisesRegex(kind, re.escape(text)):
            normjit.jax.layer_norm(*arrays, **options)

    def test_wrong_arguments(self):
        x, (w, b) = self.array(4, 8), self.layer(8)
        self.refused(ValueError, "weight has shape (7,); the last axes of x, which are normalized, have shape (8,)", x, w[:7])
        self.refused(ValueError, "bias has shape (1, 8)", x, w, b[None])
        self.refused(ValueError, "normalized_shape is (4,); it must be the last axes of x, which has shape (4, 8)", x,
                     normalized_shape=4)
        self.refused(ValueError, "normalized_shape is (2, 4, 8)", x, normalized_shape=(2, 4, 8))
        self.refused(ValueError, "normalized_shape is ()", x, normalized_shape=())
        self.refused(ValueError, "normalized_ndim is 3; x of shape (4, 8) allows 1 to 2", x, normalized_ndim=3)
        self.refused(ValueError, "normalized_ndim is 1; x of shape ()", jnp.float32(1))
        self.refused(ValueError, "not both", x, normalized_ndim=1, normalized_shape=8)
        self.refused(ValueError, "activation is 'tanh'; use one of None, 'relu'", x, activation="tanh")
        self.refused(ValueError, "eps is -1.0", x, eps=-1)
        self.refused(ValueError, "eps is nan", x, eps=math.nan)
        self.refused(TypeError, "x is int32; layer_norm takes arrays of float16", jnp.arange(8))
        self.refused(TypeError, "weight is int32", x, jnp.arange(8))
        self.refused(TypeError, "x is a list", [1.0, 2.0])

    def test_a_failing_launch_is_an_error_of_jax(self):
        if not FAKE:
            self.skipTest("needs the fake")
        x = self.array(4, 8)
        FAKE.next_status = 506
        with self.assertRaisesRegex(Exception, "RESOURCE_EXHAUSTED: normjit: The fake was told to refuse"):
            normjit.jax.layer_norm(x).block_until_ready()
        self.assertClose(normjit.jax.layer_norm(x), reference(x))

    def test_the_cpu_refuses(self):
        if FAKE:
            call = jax.ffi.ffi_call("normjit_refuse", jax.ShapeDtypeStruct((8,), jnp.float32))
            run = lambda x: call(x, columns=np.int64(8), epsilon=np.float64(1e-5))
        else:
            run = jax.jit(normjit.jax.layer_norm)
        x = jax.device_put(self.array(8), jax.devices("cpu")[0])
        with self.assertRaisesRegex(Exception, "normjit.jax needs an NVIDIA GPU; got platform cpu"):
            jax.block_until_ready(run(x))

    def test_no_gpu_at_all(self):
        program = ("import jax.numpy as jnp, normjit.jax\n"
                   "try:\n  normjit.jax.layer_norm(jnp.ones(8))\n"
                   "except RuntimeError as why: print(why)\n")
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": PACKAGES}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
        self.assertIn("normjit.jax needs an NVIDIA GPU; got platform cpu", done.stdout, done.stderr)


class Handlers(Case):
    def test_prepared_once_and_never_left_to_a_capture(self):
        if not FAKE:
            self.skipTest("needs the fake")
        run = jax.jit(lambda x: normjit.jax.layer_norm(x, eps=0.123))
        before = [FAKE.prepares, FAKE.launches, FAKE.captured_misses]
        for _ in range(5):
            run(self.array(4, 8)).block_until_ready()
        after = [FAKE.prepares, FAKE.launches, FAKE.captured_misses]
        self.assertEqual([b - a for a, b in zip(before, after)], [1, 5, 5])

    def test_command_buffers(self):
        if FAKE:
            self.skipTest("needs a GPU")
        for columns in (40, 100_000):  # without and with a workspace
            x, layer = self.array(7, columns), self.layer(columns)

            def body(x, y):  # six times two commands in a row, of which XLA records a CUDA graph
                for _ in range(6):  # each of which lets a difference shrink
                    y = x + 0.125 * jnp.sin(normjit.jax.layer_norm(y, *layer))
                return y

            run = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, y: body(x, y), x))
            wanted = np.asarray(x)
            for _ in range(12):
                wanted = np.asarray(x) + 0.125 * np.sin(reference(wanted, *layer))
            first = run(x)
            self.assertClose(first, wanted, 1e-4)
            others = [run(x + 0) for _ in range(6)]  # at other addresses, and at the same ones again
            for other in others:
                self.assertTrue(np.array_equal(other, first))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv if argument != "--fake"]
    if arguments == sys.argv:
        try:
            _ffi.gpus()
        except RuntimeError:
            skip("no NVIDIA GPU for JAX here")
    unittest.main(argv=arguments)
