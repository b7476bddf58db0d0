// The library itself, and the names of statuses.
#include "normjit/c_api.h"
#include "normjit/result.h"

uint32_t normjit_abi_version() { return NORMJIT_ABI_VERSION; }
const char* normjit_version() { return NORMJIT_VERSION; }

// Of literals, which end with a 0.
const char* normjit_status_name(normjit_status status) {
  return normjit::code_name(static_cast<normjit::Code>(status)).data();
}
const char* normjit_status_message(normjit_status status) {
  return normjit::Status{static_cast<normjit::Code>(status)}.message();
}

#define NORMJIT_SAME(name, code) \
  static_assert(NORMJIT_##name == static_cast<normjit_status>(normjit::Code::code))
NORMJIT_SAME(OK, Ok);
NORMJIT_SAME(BAD_RANK, BadRank);
NORMJIT_SAME(BAD_DIMENSION, BadDimension);
NORMJIT_SAME(TOO_MANY_COLUMNS, TooManyColumns);
NORMJIT_SAME(BAD_DTYPE, BadDType);
NORMJIT_SAME(BAD_EPSILON, BadEpsilon);
NORMJIT_SAME(BAD_AFFINE, BadAffine);
NORMJIT_SAME(BAD_ACTIVATION, BadActivation);
NORMJIT_SAME(BAD_SCALE, BadScale);
NORMJIT_SAME(BAD_SPEC_TEXT, BadSpecText);
NORMJIT_SAME(EMPTY_KERNEL, EmptyKernel);
NORMJIT_SAME(NULL_POINTER, NullPointer);
NORMJIT_SAME(UNEXPECTED_POINTER, UnexpectedPointer);
NORMJIT_SAME(MISALIGNED, Misaligned);
NORMJIT_SAME(BAD_ROWS, BadRows);
NORMJIT_SAME(BAD_STRIDE, BadStride);
NORMJIT_SAME(WORKSPACE_REQUIRED, WorkspaceRequired);
NORMJIT_SAME(WRONG_DEVICE, WrongDevice);
NORMJIT_SAME(OUT_OF_BOUNDS, OutOfBounds);
NORMJIT_SAME(OVERLAP, Overlap);
NORMJIT_SAME(UNKNOWN_ARCH, UnknownArch);
NORMJIT_SAME(ILLEGAL_PLAN, IllegalPlan);
NORMJIT_SAME(BAD_TEMPLATE, BadTemplate);
NORMJIT_SAME(NO_COMPILER, NoCompiler);
NORMJIT_SAME(COMPILE_FAILED, CompileFailed);
NORMJIT_SAME(COMPILER_TOO_OLD, CompilerTooOld);
NORMJIT_SAME(NO_DRIVER, NoDriver);
NORMJIT_SAME(DRIVER_TOO_OLD, DriverTooOld);
NORMJIT_SAME(NO_DEVICE, NoDevice);
NORMJIT_SAME(NO_CONTEXT, NoContext);
NORMJIT_SAME(LOAD_FAILED, LoadFailed);
NORMJIT_SAME(DRIVER_ERROR, DriverError);
NORMJIT_SAME(OUT_OF_MEMORY, OutOfMemory);
NORMJIT_SAME(NOT_RESIDENT, NotResident);
NORMJIT_SAME(FORKED_AFTER_CUDA_INIT, ForkedAfterCudaInit);
NORMJIT_SAME(CACHE_IO, CacheIo);
NORMJIT_SAME(BAD_ARGUMENT, BadArgument);
NORMJIT_SAME(NOT_CACHED, NotCached);
NORMJIT_SAME(NOT_READY, NotReady);
#undef NORMJIT_SAME
