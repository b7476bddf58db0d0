// SPDX-License-Identifier: Apache-2.0
// The handlers of normjit.jax for JAX's CPU platform, in tests: the same code, but that there is no stream.
#include <cstring>

#include "../../python/normjit/jax/norm.cc"

namespace {

int host_zero(void* memory, std::size_t bytes, void*) {
  std::memset(memory, 0, bytes);
  return 0;
}

ffi::Error execute_on_host(ffi::RemainingArgs arguments, ffi::RemainingRets results, Spec spec) {
  Call call;
  ffi::Error bad = read(arguments, results, spec, call);
  if (bad.failure()) return bad;
  // XLA leaves the initialize stage out on the CPU.
  bad = prepare(call, /*device=*/0);
  return bad.failure() ? bad : launch(call, nullptr, &host_zero);
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(normjit_jax_test_execute, execute_on_host, with_operands(ffi::Ffi::Bind()),
                              {ffi::Traits::kCmdBufferCompatible});
#pragma GCC visibility pop
