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
NORMJIT_SAME(BAD_SPEC_TEXT, BadSpecText);
NORMJIT_SAME(MISALIGNED, Misaligned);
NORMJIT_SAME(WORKSPACE_REQUIRED, WorkspaceRequired);
NORMJIT_SAME(WRONG_DEVICE, WrongDevice);
NORMJIT_SAME(NO_COMPILER, NoCompiler);
NORMJIT_SAME(NO_DRIVER, NoDriver);
NORMJIT_SAME(NO_DEVICE, NoDevice);
NORMJIT_SAME(NO_CONTEXT, NoContext);
NORMJIT_SAME(DRIVER_ERROR, DriverError);
NORMJIT_SAME(OUT_OF_MEMORY, OutOfMemory);
NORMJIT_SAME(BAD_ARGUMENT, BadArgument);
NORMJIT_SAME(NOT_CACHED, NotCached);
NORMJIT_SAME(NOT_READY, NotReady);
#undef NORMJIT_SAME
