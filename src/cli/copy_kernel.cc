// SPDX-License-Identifier: Apache-2.0
#include "cli/copy_kernel.h"

#include <cstdint>

#include "normjit/service/default_compiler.h"

namespace normjit::cli {
namespace {

constexpr int kThreads = 512;  // as in the source
constexpr std::size_t kVectorBytes = 16;

}  // namespace

const char* CopyKernel::source() {
  return R"(extern "C" __global__ void __launch_bounds__(512)
normjit_copy(const uint4* from, uint4* to, unsigned long long vectors) {
  const unsigned long long i = blockIdx.x * 512ull + threadIdx.x;
  if (i < vectors) __stcs(to + i, __ldcs(from + i));
}
)";
}

CopyKernel::CopyKernel(const Options& options, const Gpu& gpu, Arch arch) : gpu_(gpu) {
  const std::shared_ptr<Driver> driver = make_cuda_driver();
  const Source text{.text = source(), .kernel = "normjit_copy", .description = "the copy kernel of bench"};
  const Binary binary = make_default_compiler(options, driver)->compile(text, arch).value();
  kernel_ = driver->load(binary.code, text.kernel, gpu.ordinal(), {.threads = kThreads}).value();
}

void CopyKernel::launch(const void* from, void* to, std::size_t bytes, Stream stream) const {
  unsigned long long vectors = bytes / kVectorBytes;
  void* arguments[] = {&from, &to, &vectors};
  const auto blocks = static_cast<std::uint32_t>((vectors + kThreads - 1) / kThreads);
  const int result = kernel_->launch(blocks, {.threads = kThreads}, stream, arguments);
  gpu_.check(static_cast<CUresult>(result), "the launch of the copy kernel");
}

}  // namespace normjit::cli
