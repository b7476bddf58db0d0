// SPDX-License-Identifier: Apache-2.0
#include "tests/support/conformance_host.h"

#include "normjit/base/text.h"
#include "simt/launch.h"

namespace normjit::testing {

HostRun run_on_host(const ConformanceKernel& kernel, const simt::HostKernel& compiled, std::uint64_t seed) {
  HostRun result{.y = Bytes(kernel.y_bytes, 0xcc), .trouble = {}};
  Bytes workspace(kernel.workspace_bytes);
  std::vector<simt::Buffer> buffers = {{.begin = kernel.x.data(), .bytes = kernel.x.size(), .name = "x"},
                                       {.begin = result.y.data(),
                                        .bytes = result.y.size(),
                                        .name = "y",
                                        .writable = true,
                                        .initialized = false,
                                        .element = 1}};
  if (!workspace.empty())
    buffers.push_back(
        {.begin = workspace.data(), .bytes = workspace.size(), .name = "workspace", .writable = true});
  ConformanceOperands operands{kernel.rows, workspace.data(), kernel.x.data(), result.y.data()};
  void* arguments[] = {&operands};
  const auto diagnosis = simt::run(compiled, {.blocks = kernel.blocks,
                                              .shape = kernel.shape,
                                              .arguments = arguments,
                                              .buffers = buffers,
                                              .seed = seed});
  if (diagnosis) result.trouble = concat({name(diagnosis->fault), ": ", diagnosis->message});
  return result;
}

}  // namespace normjit::testing
