#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what libnormjit_onnxruntime.so does on a GPU, on a machine without one.

    NORMJIT_LIBRARY=build/libnormjit.so python3 tests/python/onnx_gpu_path_test.py

The operator for CUDAExecutionProvider is called as ONNX Runtime calls it, with functions of a runtime that are here, above a
libnormjit that computes plain norms on the CPU and a driver that counts (fake_gpu.cc). It needs a compiler, and neither ONNX nor
ONNX Runtime.
"""
import ctypes
import os
import threading
import unittest

from support import COMPILER, HERE, skip

if not COMPILER:
    skip("no C++ compiler for the fakes")

import normjit.onnx  # noqa: E402

try:
    PLUGIN = normjit.onnx.library()
except ImportError as missing:
    skip(str(missing).splitlines()[0])

from normjit import _build, _library  # noqa: E402

# The operator opens libcuda.so.1, which the loader knows by this name from now on, and the same file as its libnormjit.
PATH = _build.build("fake_gpu", [os.path.join(HERE, "fake_gpu.cc")], [_build.header_directory()],
                    ["-std=c++20", "-Wl,-soname,libcuda.so.1"])
GPU = ctypes.CDLL(PATH, ctypes.RTLD_GLOBAL)
if not GPU.fake_open(os.environ.get("NORMJIT_LIBRARY", "libnormjit.so.1").encode()):
    skip("no libnormjit (NORMJIT_LIBRARY)")
os.environ["NORMJIT_LIBRARY"] = PATH
FLOAT, HALF = 1, 10
POINTER, SIZE, INT, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_WORDS = {"next_status", "prepare_status", "current_device", "capturing", "out_of_memory", "capture_mode"}


def fake(name):
    """A variable of the fakes."""
    kind = POINTER if name == "workspace" else ctypes.c_int32 if name in _WORDS else ctypes.c_int64
    return kind.in_dll(GPU, "fake_" + name)


class CustomOp(ctypes.Structure):
    """OrtCustomOp, as of version 18."""
    _fields_ = [("version", ctypes.c_uint32)] + [(name, POINTER) for name in (
        "create", "name", "provider", "input_type", "input_count", "output_type", "output_count", "compute", "destroy",
        "input_kind", "output_kind", "input_memory", "input_least", "input_one_type", "output_least", "output_one_type",
        "create_v2", "compute_v2", "infer", "first", "last", "inplace", "release_inplace", "alias", "release_alias")]


class Tensor:
    """A value, or the type of one: an element, a shape and memory."""

    def __init__(self, element, shape, data=None):
        self.element, self.shape = element, tuple(shape)
        self.data = data
        self.address = None if data is None else ctypes.addressof(data)


class Runtime:
    """As much of ONNX Runtime as the operator sees. Handles are numbers of objects."""

    all = []  # the operator keeps a domain for each, for the life of the process

    def __init__(self, device=0, newest=18):
        self.all.append(self)
        self.device, self.objects, self.operators, self.kept = device, {}, [], []
        self.allocators = self.types = self.infos = 0  # that are not released yet
        self.table = (POINTER * 500)()
        for place, function in self.functions().items():
            self.kept.append(function)
            self.table[place] = ctypes.cast(function, POINTER).value
        get_api = ctypes.CFUNCTYPE(POINTER, ctypes.c_uint32)(
            lambda version: ctypes.addressof(self.table) if version <= newest else None)
        name = ctypes.create_string_buffer("1.{}.0".format(newest).encode())
        get_version = ctypes.CFUNCTYPE(POINTER)(lambda: ctypes.addressof(name))
        self.kept += [get_api, get_version, name]
        self.base = (POINTER * 2)(*(ctypes.cast(function, POINTER).value for function in (get_api, get_version)))

    def handle(self, thing):
        self.objects[id(thing)] = thing
        return id(thing)

    def functions(self):
        def function(body, *arguments, result=POINTER):
            return ctypes.CFUNCTYPE(result, *arguments)(body)

        def put(pointer, kind, value):
            ctypes.cast(pointer, ctypes.POINTER(kind))[0] = value

        def status(code, text):
            return self.handle((code, text.decode()))

        def text_of(text, size, content):
            if text:
                ctypes.memmove(text, content + b"\0", len(content) + 1)
            put(size, SIZE, len(content) + 1)

        def attribute(info, name, text, size):
            node = self.objects[info]
            return text_of(text, size, node.spec.encode()) if name == b"spec" and node.spec else status(1, b"none")

        def type_at(operands):
            def get(info, index, to):
                self.types += 1
                put(to, POINTER, self.handle(operands(self.objects[info])[index]))
            return get

        def dimensions(info, to, rank):
            for i, size in enumerate(self.objects[info].shape):
                ctypes.cast(to, ctypes.POINTER(ctypes.c_int64))[i] = size

        def shape_of(value, to):
            self.infos += 1
            put(to, POINTER, value)

        def sizes_of(value, element, sizes, rank):
            tensor = self.objects[value]
            tensor.sizes = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
            put(element, INT, tensor.element)
            put(sizes, POINTER, ctypes.addressof(tensor.sizes))
            put(rank, SIZE, len(tensor.shape))

        def constant(info, index, is_constant, to):
            tensor = self.objects[info].inputs[index]
            put(is_constant, INT, tensor.data is not None)
            put(to, POINTER, self.handle(tensor))

        def allocator(info, kind, to):
            self.allocators += 1
            put(to, POINTER, 1)

        def output(context, index, dims, rank, to):
            run = self.objects[context]
            shape = tuple(ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64))[i] for i in range(rank))
            size = 1
            for each in shape:
                size *= each
            run.results[index] = Tensor(FLOAT, shape, (ctypes.c_float * max(size, 1))())
            put(to, POINTER, self.handle(run.results[index]))

        def released(name):
            def count(_):
                setattr(self, name, getattr(self, name) - 1)
            return count

        read, made = type_at(lambda node: node.inputs), type_at(lambda node: node.outputs)
        return {
            0: function(status, INT, TEXT), 2: function(lambda s: 0, POINTER), 93: function(lambda s: None, POINTER, result=None),
            26: function(lambda name, to: put(to, POINTER, 1), TEXT, POINTER),
            27: function(lambda domain, op: self.operators.append(CustomOp.from_address(op)), POINTER, POINTER),
            28: function(lambda options, domain: None, POINTER, POINTER),
            51: function(lambda value, to: put(to, POINTER, self.objects[value].address), POINTER, POINTER),
            55: function(lambda kind, to: put(to, POINTER, kind), POINTER, POINTER),
            60: function(lambda info, to: put(to, INT, self.objects[info].element), POINTER, POINTER),
            61: function(lambda info, to: put(to, SIZE, len(self.objects[info].shape)), POINTER, POINTER),
            62: function(dimensions, POINTER, POINTER, SIZE),
            65: function(shape_of, POINTER, POINTER), 99: function(released("infos"), POINTER, result=None),
            72: function(lambda memory, to: put(to, INT, self.device), POINTER, POINTER),
            77: function(lambda allocator, to: put(to, POINTER, 1), POINTER, POINTER),
            87: function(attribute, POINTER, TEXT, POINTER, POINTER),
            90: function(lambda context, index, to: put(to, POINTER, self.handle(self.objects[context].inputs[index])),
                         POINTER, SIZE, POINTER),
            91: function(output, POINTER, SIZE, POINTER, SIZE, POINTER),
            98: function(released("types"), POINTER, result=None), 132: function(released("allocators"), POINTER, result=None),
            193: function(lambda context, to: put(to, POINTER, self.objects[context].stream), POINTER, POINTER),
            230: function(lambda info, to: put(to, SIZE, len(self.objects[info].inputs)), POINTER, POINTER),
            231: function(lambda info, to: put(to, SIZE, len(self.objects[info].outputs)), POINTER, POINTER),
            234: function(read, POINTER, SIZE, POINTER), 235: function(made, POINTER, SIZE, POINTER),
            249: function(constant, POINTER, SIZE, POINTER, POINTER),
            414: function(sizes_of, POINTER, POINTER, POINTER, POINTER),
            244: function(lambda info, text, size: text_of(text, size, b"the node"), POINTER, POINTER, POINTER),
            278: function(allocator, POINTER, INT, POINTER),
        }


class Node:
    def __init__(self, spec, inputs, outputs=((FLOAT, (-1, 8)),)):
        self.spec = spec
        self.inputs, self.outputs = [Tensor(*each) for each in inputs], [Tensor(*each) for each in outputs]


class Run:
    def __init__(self, stream, *inputs):
        self.stream, self.inputs, self.results = stream, inputs, {}


def floats(shape, content):
    return Tensor(FLOAT, shape, (ctypes.c_float * len(content))(*content))


class Kernel:
    """The operator's kernel of a node, for a GPU."""

    def __init__(self, runtime, node):
        self.runtime = runtime
        if not runtime.operators:
            register = ctypes.CDLL(PLUGIN).RegisterCustomOps
            register.restype = POINTER
            assert register(None, runtime.base) is None
        self.op = next(op for op in runtime.operators if ctypes.CFUNCTYPE(TEXT, POINTER)(op.provider)(None))
        kernel = POINTER()
        self.raise_for(ctypes.CFUNCTYPE(POINTER, POINTER, POINTER, POINTER, POINTER)(self.op.create_v2)(
            ctypes.addressof(self.op), ctypes.addressof(runtime.table), runtime.handle(node), ctypes.addressof(kernel)))
        self.kernel = kernel

    def raise_for(self, status):
        if status:
            raise RuntimeError("{}: {}".format(*self.runtime.objects[status]))

    def run(self, run):
        self.raise_for(ctypes.CFUNCTYPE(POINTER, POINTER, POINTER)(self.op.compute_v2)(self.kernel, self.runtime.handle(run)))
        return run

    def destroy(self):
        ctypes.CFUNCTYPE(None, POINTER)(self.op.destroy)(self.kernel)


class OnGpu(unittest.TestCase):
    def setUp(self):
        self.runtime = Runtime()
        for name in ("allocations", "fills", "capturing", "out_of_memory", "capture_mode"):
            fake(name).value = 0
        fake("current_device").value = 0
        fake("workspace_bytes").value = 0
        self.addCleanup(setattr, fake("workspace_bytes"), "value", 0)
        self.addCleanup(setattr, fake("prepare_status"), "value", 0)

    def kernel(self, spec="layernorm/cols=8/f32", inputs=((FLOAT, (-1, 8)),), **options):
        return Kernel(self.runtime, Node(spec, inputs, **options))

    def input(self):
        return floats((2, 8), [float(i) for i in range(16)])

    def test_the_provider_and_the_name(self):
        op = self.kernel().op
        self.assertEqual(ctypes.CFUNCTYPE(TEXT, POINTER)(op.provider)(None), b"CUDAExecutionProvider")
        self.assertEqual(ctypes.CFUNCTYPE(TEXT, POINTER)(op.name)(None), b"Norm")
        self.assertEqual(op.version, 18)

    def test_it_prepares_as_the_kernel_is_made_and_releases_everything(self):
        before = fake("prepares").value
        kernel = self.kernel()
        self.assertEqual(fake("prepares").value, before + 1)
        result = kernel.run(Run(7, self.input())).results[0]
        self.assertAlmostEqual(result.data[0], -1.5275, places=3)
        self.assertEqual(fake("prepares").value, before + 1)
        kernel.destroy()
        self.assertEqual((self.runtime.allocators, self.runtime.types, self.runtime.infos), (0, 0, 0))
        self.assertEqual(fake("allocations").value, 0)

    def test_shapes_are_read_without_a_copy_where_the_runtime_can(self):
        for newest, copies in ((18, 3), (23, 3), (24, 0)):
            self.runtime = Runtime(newest=newest)
            asked = []
            self.runtime.table[65] = ctypes.cast(self.counted(asked, self.runtime.table[65]), POINTER).value
            w = Node("layernorm/cols=8/f32/w", ((FLOAT, (-1, 8)), (FLOAT, (8,))))
            kernel = Kernel(self.runtime, w)
            kernel.run(Run(7, self.input(), floats((8,), [1.0] * 8)))
            w.inputs[1] = floats((8,), [2.0] * 8)  # now a constant, which is looked at once
            kernel = Kernel(self.runtime, w)
            result = kernel.run(Run(7, self.input(), w.inputs[1])).results[0]
            self.assertAlmostEqual(result.data[0], -3.055, places=3)
            self.assertEqual(len(asked), copies + (copies > 0))

    def counted(self, asked, address):
        kind = ctypes.CFUNCTYPE(POINTER, POINTER, POINTER)
        self.runtime.kept.append(kind(lambda value, to: asked.append(value) or kind(address)(value, to)))
        return self.runtime.kept[-1]

    def test_a_constant_of_another_size_is_told_as_the_session_is_made(self):
        with self.assertRaisesRegex(RuntimeError, r"the input weight has the shape \[2\], and 8 elements are needed"):
            self.kernel("layernorm/cols=8/f32/w", ((FLOAT, (-1, 8)), (FLOAT, (2,), (ctypes.c_float * 2)())))

    def test_what_prepare_says_is_told_as_the_session_is_made(self):
        fake("prepare_status").value = _library.NOT_CACHED
        with self.assertRaisesRegex(RuntimeError, r'1: normjit::Norm \(node "the node"\): The fake'):
            self.kernel()
        self.assertEqual((self.runtime.allocators, self.runtime.types, self.runtime.infos), (0, 0, 0))
        self.assertEqual((fake("retained").value, fake("pushed").value), (0, 0))

    def test_what_a_launch_says_is_told(self):
        kernel = self.kernel()
        fake("next_status").value = _library.NOT_READY
        with self.assertRaisesRegex(RuntimeError, r'node "the node"\): The fake was told to refuse. Run the session once with '
                                    "inputs of these shapes before a CUDA graph is captured"):
            kernel.run(Run(7, self.input()))
        kernel.run(Run(7, self.input()))

    def test_a_compile_in_the_background_is_no_mistake(self):
        fake("prepare_status").value = _library.NOT_READY
        self.kernel().run(Run(7, self.input()))

    def test_a_thread_without_a_context_and_another_device(self):
        for current, device in ((-1, 0), (0, 1)):
            with self.subTest(current):
                self.runtime = Runtime(device)
                fake("current_device").value = current
                self.kernel().run(Run(7, self.input()))
                self.assertEqual(fake("current_device").value, current)
                self.assertEqual((fake("retained").value, fake("pushed").value), (0, 0))

    def test_operators_share_a_workspace_for_each_stream_and_device(self):
        fake("workspace_bytes").value = 64
        seen = {}
        kernels = [self.kernel(), self.kernel("rmsnorm/cols=8/f32")]
        for stream in (101, 102, 101, 102):
            for kernel in kernels:
                kernel.run(Run(stream, self.input()))  # the fake looks whether it is zero
                seen.setdefault(stream, set()).add(fake("workspace").value)
        self.assertEqual([len(each) for each in seen.values()], [1, 1])
        self.assertEqual(len(set.union(*seen.values())), 2)
        self.assertEqual((fake("allocations").value, fake("fills").value), (2, 2))
        self.assertEqual(fake("capture_mode").value, 0)  # as it was
        self.runtime = Runtime(1)
        self.kernel().run(Run(101, self.input()))
        self.assertEqual(fake("allocations").value, 3)

    def test_threads_with_streams_of_their_own(self):
        fake("workspace_bytes").value = 64
        kernel, wrong = self.kernel(), []

        def work(stream):
            try:
                for _ in range(50):
                    kernel.run(Run(stream, self.input()))
            except RuntimeError as why:
                wrong.append(why)

        for stream in range(201, 209):  # of which each waits for the last: the mode of the fake is of all threads
            thread = threading.Thread(target=work, args=(stream,))
            thread.start()
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(fake("allocations").value, 8)

    def test_a_capture_needs_a_run_before_it(self):
        fake("workspace_bytes").value = 64
        kernel = self.kernel()
        fake("capturing").value = 1
        with self.assertRaisesRegex(RuntimeError, "Run the session once before the CUDA graph is captured"):
            kernel.run(Run(301, self.input()))
        fake("capturing").value = 0
        kernel.run(Run(301, self.input()))
        fake("capturing").value = 1
        misses = fake("captured_misses").value
        kernel.run(Run(301, self.input()))
        self.assertEqual(fake("captured_misses").value, misses + 1)  # a kernel may be made even then

    def test_no_memory_for_a_workspace(self):
        fake("workspace_bytes").value = 64
        kernel = self.kernel()
        fake("out_of_memory").value = 1
        with self.assertRaisesRegex(RuntimeError, "a workspace of 262144 bytes gave CUDA error 2"):
            kernel.run(Run(401, self.input()))
        self.assertEqual(fake("capture_mode").value, 0)
        fake("out_of_memory").value = 0
        kernel.run(Run(401, self.input()))

    def test_no_rows_launch_nothing_and_zero_the_largest(self):
        kernel = self.kernel("layernorm/cols=8/f32/amax", outputs=((FLOAT, (-1, 8)), (FLOAT, (1,))))
        before = fake("launches").value
        run = kernel.run(Run(7, Tensor(FLOAT, (0, 8), (ctypes.c_float * 1)())))
        self.assertEqual((fake("launches").value, fake("fills").value, run.results[1].data[0]), (before, 1, 0.0))

    def test_types_are_compared_before_anything_happens(self):
        before = fake("prepares").value
        with self.assertRaisesRegex(RuntimeError, "10: .*the input x must be of float, not of float16"):
            self.kernel(inputs=((HALF, (-1, 8)),))
        self.assertEqual(fake("prepares").value, before)


if __name__ == "__main__":
    unittest.main()
