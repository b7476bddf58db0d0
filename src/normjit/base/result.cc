// SPDX-License-Identifier: Apache-2.0
#include "normjit/result.h"

#include <algorithm>
#include <iterator>

#include "normjit/base/text.h"

namespace normjit {
namespace {

struct Row {
  Code code;
  std::string_view name;
  const char* message;  // of a Status: what it means and what to do
};

#define NORMJIT_ROW(code, message) \
  { Code::code, #code, message }
constexpr Row kRows[] = {
    NORMJIT_ROW(Ok, "Success."),

    NORMJIT_ROW(BadRank, "A normalized_shape has 1 to 8 dimensions."),
    NORMJIT_ROW(BadDimension, "A dimension is zero or negative: every one must be at least 1."),
    NORMJIT_ROW(TooManyColumns, "A row has more than 2^31 - 1 elements: normalize a smaller shape."),
    NORMJIT_ROW(BadDType,
                "A dtype is not one of f16, bf16, f32, f64, or for the output e4m3, e5m2, s8, e2m1."),
    NORMJIT_ROW(BadEpsilon, "Epsilon is negative, infinite or NaN: give a finite number >= 0."),
    NORMJIT_ROW(BadAffine, "The affine parameters are not one of none, weight, weight_bias."),
    NORMJIT_ROW(BadActivation, "The activation is not one of none, relu, gelu, gelu_tanh, silu."),
    NORMJIT_ROW(BadScale, "The scale is infinite or NaN: give a finite number."),
    NORMJIT_ROW(BadSpecText, "The text is not a spec: write it as layernorm/cols=64/f32/eps=1e-05/wb."),
    NORMJIT_ROW(BadCombination,
                "Fields of the spec do not go together: the message of validate() names them."),

    NORMJIT_ROW(EmptyKernel, "The Kernel is empty: launch one that Service::prepare returned."),
    NORMJIT_ROW(NullPointer,
                "A tensor that the spec needs is null: give x, y and all others that the spec has."),
    NORMJIT_ROW(UnexpectedPointer,
                "A tensor is given that the spec does not have: leave it null, or prepare a spec with it."),
    NORMJIT_ROW(Misaligned,
                "A pointer or row stride is less aligned than its dtype or than the kernel was prepared for: "
                "prepare with the pointer_alignment and row strides of these tensors."),
    NORMJIT_ROW(BadRows, "The number of rows is negative: give 0 or more."),
    NORMJIT_ROW(
        BadStride,
        "A row stride is negative, smaller than the columns of an output, or reaches past 64 bits, "
        "or the rows are no groups of n; or dmod_scale and dmod_shift are not shared by the same rows as "
        "mod_scale and mod_shift; with channels first, n is above 1, inner is not 0, or samples are closer "
        "than columns * plane: give distances in elements, or kContiguous."),
    NORMJIT_ROW(WorkspaceRequired,
                "This kernel needs a workspace: give Kernel::workspace_bytes() bytes of device memory, "
                "16-byte aligned and zeroed once, in Tensors::workspace."),
    NORMJIT_ROW(WrongDevice,
                "A tensor, the stream or the kernel belongs to another device: prepare the kernel for the "
                "device of the tensors."),
    NORMJIT_ROW(OutOfBounds,
                "A tensor reaches past the end of its allocation: check the rows and the row strides."),
    NORMJIT_ROW(Overlap,
                "An output overlaps another operand: give it memory of its own, or, where it may be in "
                "place, the pointer, row stride and element size of that input."),
    NORMJIT_ROW(
        BadPlane,
        "A spec with channels first (/cf) needs the positions of a sample in Tensors::plane, at least 1, "
        "and rows that are whole planes; any other spec needs plane 0."),

    NORMJIT_ROW(UnknownArch, "The GPU architecture is unknown, or the compiler cannot serve it."),
    NORMJIT_ROW(IllegalPlan, "The plan breaks a limit of the spec or of the device."),
    NORMJIT_ROW(BadTemplate, "A template file or one of its placeholders is missing, unknown or unused."),

    NORMJIT_ROW(NoCompiler, "libnvrtc was not found: install CUDA 12.0 or newer, or set NORMJIT_NVRTC_PATH."),
    NORMJIT_ROW(CompileFailed, "The compiler rejected the kernel: Service::prepare returns its log."),
    NORMJIT_ROW(CompilerTooOld, "NVRTC is older than 12.0: install a newer one."),

    NORMJIT_ROW(NoDriver, "libcuda.so.1 was not found: install the NVIDIA driver (R525 or newer)."),
    NORMJIT_ROW(DriverTooOld, "The NVIDIA driver is older than CUDA 12.0: install R525 or newer."),
    NORMJIT_ROW(NoDevice, "The driver sees no GPU, or not the one asked for: check CUDA_VISIBLE_DEVICES."),
    NORMJIT_ROW(NoContext,
                "The calling thread has no current CUDA context: make one current, or name a device."),
    NORMJIT_ROW(LoadFailed, "The driver refused a freshly compiled kernel."),
    NORMJIT_ROW(DriverError,
                "The CUDA driver failed: Status::driver_result (normjit_launch_options.driver_result) is its "
                "CUresult."),
    NORMJIT_ROW(OutOfMemory, "The device, or this process, is out of memory."),
    NORMJIT_ROW(NotResident,
                "The blocks that share a row must run together, and the device, or the share of it that this "
                "process has, has no room for them: use Service::norm, which then takes another plan by "
                "itself, or give a plan without an exchange in PrepareOptions::plan."),
    NORMJIT_ROW(ForkedAfterCudaInit,
                "CUDA was initialised before this process was forked, and serves its parent only: fork "
                "before the first CUDA call, or start workers by exec (spawn)."),

    NORMJIT_ROW(CacheIo, "The cache directory could not be read or written."),
    NORMJIT_ROW(
        Untrusted,
        "A signature is missing or wrong, or of a key that is not trusted: take what is signed from its "
        "maker again, or add the key to those that are trusted (NORMJIT_TRUST)."),

    NORMJIT_ROW(NotCached,
                "No cache has the kernel, and the service compiles nothing (cached-only mode, or frozen): "
                "prebuild it."),
    NORMJIT_ROW(NotReady,
                "The stream is being captured and the kernel is not ready: prepare it before the capture, or "
                "set LaunchOptions::miss_in_capture. The capture goes on."),

    NORMJIT_ROW(BadArgument, "An option or argument is outside its documented range."),
};
#undef NORMJIT_ROW

const Row* find(Code code) noexcept {
  const Row* row = std::ranges::find(kRows, code, &Row::code);
  return row != std::end(kRows) ? row : nullptr;
}

}  // namespace

std::string_view code_name(Code code) noexcept {
  const Row* row = find(code);
  return row != nullptr ? row->name : "Unknown";
}

Exception::Exception(const Error& error)
    : std::runtime_error(concat({code_name(error.code), ": ", error.message})), code_(error.code) {}

const char* Status::message() const noexcept {
  const Row* row = find(code);
  return row != nullptr ? row->message : "An error code that this version of normjit does not know.";
}

namespace detail {

void raise(const Error& error) { throw Exception(error); }

}  // namespace detail
}  // namespace normjit
