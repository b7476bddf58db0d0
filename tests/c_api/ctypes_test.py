# SPDX-License-Identifier: Apache-2.0
"""ctypes_test.py nvrtc|gpu: the C interface by ctypes, with nothing but Python.

nvrtc needs a compiler, for a prebuild into an empty folder; gpu also a GPU, on whose memory it launches, and compares
with a reference in pure Python. Each says "Skipped: ..." on one line where it lacks what it needs. NORMJIT_LIBRARY is the
shared library.
"""
import ctypes
import json
import math
import os
import random
import struct
import sys
import tempfile
import unittest
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p

OK, BAD_SPEC_TEXT, BAD_ARGUMENT, NOT_CACHED, NOT_READY = 0, 108, 700, 800, 801
BAD_DTYPE, WRONG_DEVICE = 103, 207
F32, WEIGHT_BIAS, GELU, YES = 3, 3, 3, 1


class Sized(ctypes.Structure):
    def __init__(self, **members):
        super().__init__(**dict({"struct_size": ctypes.sizeof(self)}, **members))


class Spec(Sized):
    """As an older header of the same ABI version has it: without gate and modulation, and so Tensors."""
    _fields_ = [("struct_size", c_size_t), ("columns", c_int64), ("epsilon", c_double), ("scale", c_double)] + [
        (name, c_int32) for name in ("norm", "input", "output", "weight", "residual", "sum", "affine", "activation", "statistics",
                                 "residual_type", "in_bias", "rounding", "weight_offset", "affine_rows")]


class Options(Sized):
    _fields_ = ([("struct_size", c_size_t)] + [(name, c_int32) for name in ("ignore_environment", "mode", "shared_cache", "exact_toolchain",
                                                                            "batch_invariant", "reserved")] +
                [("cache_directory", c_char_p), ("layers", c_char_p), ("max_cache_bytes", c_int64)] +
                [(name, c_char_p) for name in ("miss_log", "compiler_path", "cuda_home", "template_directory")] +
                [(name, c_void_p) for name in ("log", "log_user", "on_event", "event_user")])


class Rows(ctypes.Structure):
    _fields_ = [("pointer", c_void_p), ("n", c_int64), ("outer", c_int64), ("inner", c_int64)]

    def __init__(self, pointer=None):
        super().__init__(pointer, 1, -1, 0)


class Tensors(Sized):
    _fields_ = ([("struct_size", c_size_t)] + [(name, Rows) for name in ("x", "y", "weight", "bias")] +
                [("mean", c_void_p), ("rstd", c_void_p), ("rows", c_int64), ("workspace", c_void_p), ("residual", Rows),
                 ("sum", Rows), ("in_bias", c_void_p)])


class KernelSet(Sized):
    _fields_ = [("struct_size", c_size_t), ("specs", POINTER(c_char_p)), ("spec_count", c_size_t),
                ("archs", POINTER(c_char_p)), ("arch_count", c_size_t)]


def opened():
    library = ctypes.CDLL(os.environ["NORMJIT_LIBRARY"])
    text = POINTER(c_void_p)  # of a char *, which normjit_free takes back
    signatures = {
        "normjit_abi_version": (c_uint32,),
        "normjit_version": (c_char_p,),
        "normjit_status_name": (c_char_p, c_int32),
        "normjit_status_message": (c_char_p, c_int32),
        "normjit_free": (None, c_void_p),
        "normjit_columns_of": (c_int32, POINTER(c_int64), c_size_t, POINTER(c_int64), text),
        "normjit_spec_parse": (c_int32, c_char_p, POINTER(Spec), text),
        "normjit_spec_text": (c_int32, POINTER(Spec), text, text),
        "normjit_service_create": (c_int32, POINTER(Options), POINTER(c_void_p), text),
        "normjit_service_destroy": (None, c_void_p),
        "normjit_norm": (c_int32, c_void_p, POINTER(Spec), POINTER(Tensors), c_void_p, c_void_p, text),
        "normjit_prepare": (c_int32, c_void_p, POINTER(Spec), c_void_p, POINTER(c_void_p), text),
        "normjit_kernel_launch": (c_int32, c_void_p, POINTER(Tensors), c_void_p, c_void_p),
        "normjit_kernel_check": (c_int32, c_void_p, POINTER(Tensors), text),
        "normjit_kernel_describe": (c_int32, c_void_p, text, text),
        "normjit_kernel_release": (None, c_void_p),
        "normjit_counters": (c_int32, c_void_p, text, text),
        "normjit_environment": (c_int32, c_void_p, text, text),
        "normjit_prebuild": (c_int32, c_void_p, POINTER(KernelSet), c_int32, c_int32, c_void_p, c_void_p, text, text),
        "normjit_entries": (c_int32, c_void_p, text, text),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


NORMJIT = opened()


def taken(text):
    """The text behind a char *, which is given back."""
    value = None if text.value is None else ctypes.string_at(text).decode()
    NORMJIT.normjit_free(text)
    return value


class Error(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def call(name, *arguments):
    """Calls what takes `char **error` last."""
    error = c_void_p()
    status = getattr(NORMJIT, name)(*arguments, byref(error))
    message = taken(error)
    if status != OK:
        raise Error(status, message)


def report(name, *arguments):
    text = c_void_p()
    call(name, *arguments, byref(text))
    return json.loads(taken(text))


class Service:
    def __init__(self, **options):
        self.handle = c_void_p()
        call("normjit_service_create", byref(Options(ignore_environment=YES, **options)), byref(self.handle))

    def __enter__(self):
        return self.handle

    def __exit__(self, *exception):
        NORMJIT.normjit_service_destroy(self.handle)


class CApi(unittest.TestCase):
    def fails(self, status, words, name, *arguments):
        with self.assertRaises(Error) as raised:
            call(name, *arguments)
        self.assertEqual(raised.exception.status, status)
        self.assertIn(words, str(raised.exception))


class Nvrtc(CApi):
    def test_versions_and_names(self):
        self.assertEqual(NORMJIT.normjit_abi_version(), 1)
        self.assertRegex(NORMJIT.normjit_version().decode(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(NORMJIT.normjit_status_name(NOT_READY), b"NotReady")
        self.assertIn(b"capture", NORMJIT.normjit_status_message(NOT_READY))

    def test_specs(self):
        spec = Spec()
        call("normjit_spec_parse", b"layernorm/shape=8x8/bf16/out=f32/wb/gelu", byref(spec))
        self.assertEqual((spec.columns, spec.input, spec.output, spec.affine, spec.activation, spec.epsilon),
                         (64, 2, F32, WEIGHT_BIAS, GELU, 1e-5))
        text = c_void_p()
        call("normjit_spec_text", byref(spec), byref(text))
        self.assertEqual(taken(text), "layernorm/cols=64/bf16/out=f32/eps=1e-05/wb/gelu")
        columns = c_int64()
        call("normjit_columns_of", (c_int64 * 3)(64, 256, 256), 3, byref(columns))
        self.assertEqual(columns.value, 4194304)

    def test_errors(self):
        spec = Spec(columns=64, scale=1)
        self.fails(BAD_SPEC_TEXT, "spec", "normjit_spec_parse", b"nonsense", byref(spec))
        self.fails(BAD_ARGUMENT, "spec is NULL", "normjit_spec_text", None, None)
        spec.input = 77
        self.fails(BAD_DTYPE, "input is 77", "normjit_spec_text", byref(spec), None)
        spec.struct_size = 3
        self.fails(BAD_ARGUMENT, "struct_size of normjit_spec is 3", "normjit_spec_text", byref(spec), None)
        self.assertEqual(NORMJIT.normjit_kernel_launch(None, None, None, None), BAD_ARGUMENT)

    def test_prebuild(self):
        specs, archs = (c_char_p * 1)(b"layernorm/cols=64/f32/wb"), (c_char_p * 2)(b"sm_90", b"sm_80")
        wanted = KernelSet(specs=specs, spec_count=1, archs=archs, arch_count=2)
        seen = []

        @ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_char_p, c_int32, c_int32)
        def progress(user, spec, outcome, done, total):
            seen.append((spec, outcome, done, total))

        with tempfile.TemporaryDirectory() as folder:
            with Service(cache_directory=folder.encode()) as service:
                if not report("normjit_environment", service)["compiler"]["path"]:
                    raise unittest.SkipTest("there is no NVRTC to prebuild with")
                built = report("normjit_prebuild", service, byref(wanted), 1, 0, ctypes.cast(progress, c_void_p), None)
                self.assertEqual((built["failed"], built["compiled"]), (0, built["requested"]))
                self.assertEqual([s[2] for s in seen], list(range(1, built["requested"] + 1)))
                self.assertEqual({s[:2] for s in seen}, {(b"layernorm/cols=64/f32/eps=1e-05/wb", b"compiled")})
                self.assertEqual(report("normjit_counters", service)["compiles"], built["requested"])
                self.assertEqual(len(report("normjit_entries", service)["entries"]), built["requested"])
            with Service(cache_directory=folder.encode()) as service:
                again = report("normjit_prebuild", service, byref(wanted), 1, 0, None, None)
                self.assertEqual(again["cached"], built["requested"])
                self.assertEqual(report("normjit_counters", service)["compiles"], 0)


class Cuda:
    """Device 0 in its primary context, and memory there."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context = c_void_p()
        self.blocks = []
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", byref(self.context), c_int32(0))
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result != 0:
            raise OSError("{}: {}".format(name, result))

    def floats(self, values):
        address = c_void_p()
        self("cuMemAlloc_v2", byref(address), c_size_t(4 * len(values)))
        self.blocks.append(address)
        self("cuMemcpyHtoD_v2", address, struct.pack("{}f".format(len(values)), *values), c_size_t(4 * len(values)))
        return address

    def fetched(self, address, count):
        data = ctypes.create_string_buffer(4 * count)
        self("cuCtxSynchronize")
        self("cuMemcpyDtoH_v2", data, address, c_size_t(4 * count))
        return struct.unpack("{}f".format(count), data.raw)

    def close(self):
        for address in self.blocks:
            self("cuMemFree_v2", address)
        self("cuCtxSetCurrent", None)
        self("cuDevicePrimaryCtxRelease_v2", c_int32(0))


def reference(x, weight, bias, epsilon):
    """A row after LayerNorm and exact GELU, in float64."""
    mean = math.fsum(x) / len(x)
    rstd = 1 / math.sqrt(math.fsum((v - mean) ** 2 for v in x) / len(x) + epsilon)
    normalized = [(v - mean) * rstd * w + b for v, w, b in zip(x, weight, bias)]
    return [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in normalized]


class Gpu(CApi):
    ROWS, COLUMNS = 13, 768

    @classmethod
    def setUpClass(cls):
        try:
            cls.cuda = Cuda()
        except OSError as error:
            raise unittest.SkipTest("there is no GPU: {}".format(error))
        choose = random.Random(int(os.environ.get("NORMJIT_TEST_SEED", "1")))
        f32 = struct.Struct("f")
        cls.x, cls.weight, cls.bias = ([f32.unpack(f32.pack(choose.gauss(0.5, 2)))[0] for _ in range(count)]
                                       for count in (cls.ROWS * cls.COLUMNS, cls.COLUMNS, cls.COLUMNS))

    @classmethod
    def tearDownClass(cls):
        cls.cuda.close()

    def setUp(self):
        count = self.ROWS * self.COLUMNS
        self.y = self.cuda.floats([math.nan] * count)
        self.tensors = Tensors(x=Rows(self.cuda.floats(self.x)), y=Rows(self.y), weight=Rows(self.cuda.floats(self.weight)),
                               bias=Rows(self.cuda.floats(self.bias)), rows=self.ROWS)
        self.spec = Spec(columns=self.COLUMNS, epsilon=1e-5, scale=1, input=F32, affine=WEIGHT_BIAS, activation=GELU)

    def expect_right(self):
        got = self.cuda.fetched(self.y, self.ROWS * self.COLUMNS)
        for row in range(self.ROWS):
            at = slice(row * self.COLUMNS, (row + 1) * self.COLUMNS)
            for column, (value, expected) in enumerate(zip(got[at], reference(self.x[at], self.weight, self.bias, 1e-5))):
                self.assertTrue(abs(value - expected) <= 1e-5 * (1 + abs(expected)),
                                "row {}, column {}: {} instead of {}".format(row, column, value, expected))

    def test_one_call(self):
        with Service() as service:
            call("normjit_norm", service, byref(self.spec), byref(self.tensors), None, None)
            self.expect_right()
            counters = report("normjit_counters", service)
            self.assertGreater(counters["loads"], 0)

    def test_prepared(self):
        with Service() as service:
            kernel = c_void_p()
            call("normjit_prepare", service, byref(self.spec), None, byref(kernel))
        try:  # it outlives its service
            facts = report("normjit_kernel_describe", kernel)
            self.assertEqual(facts["spec"], "layernorm/cols=768/f32/eps=1e-05/wb/gelu")
            self.assertEqual(facts["device"], 0)
            call("normjit_kernel_check", kernel, byref(self.tensors))
            self.assertEqual(NORMJIT.normjit_kernel_launch(kernel, byref(self.tensors), None, None), OK)
            self.expect_right()
        finally:
            NORMJIT.normjit_kernel_release(kernel)

    def test_memory_of_the_host_is_refused(self):
        host = ctypes.create_string_buffer(4 * self.ROWS * self.COLUMNS + 16)
        self.tensors.x = (ctypes.addressof(host) + 15) // 16 * 16
        with Service() as service:
            self.fails(WRONG_DEVICE, "x ", "normjit_norm", service, byref(self.spec), byref(self.tensors), None, None)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("nvrtc", "gpu"):
        sys.exit(__doc__)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase({"nvrtc": Nvrtc, "gpu": Gpu}[sys.argv.pop(1)])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    for _, reason in result.skipped:
        print("Skipped: {}".format(reason))
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
