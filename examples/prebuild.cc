// SPDX-License-Identifier: Apache-2.0
// Fills a cache on a machine without a GPU: the kernels of two layers for two architectures. Ship the
// directory and point NORMJIT_CACHE_DIR at it, and the target machine needs no compiler.
//
//   example_prebuild [DIRECTORY]
#include <normjit/normjit.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  normjit::Options options = normjit::Options::from_environment();
  options.cache_directory = argc > 1 ? argv[1] : "prebuilt-kernels";
  normjit::Service service(options);
  if (const normjit::Environment found = service.environment(); !found.compiler_error.empty()) {
    std::printf("prebuild needs NVRTC: %s\n", found.compiler_error.c_str());
    return 77;
  }

  const normjit::NormSpec specs[] = {
      {.columns = 4096, .input = normjit::DType::bf16, .affine = normjit::Affine::weight},
      normjit::parse_spec("layernorm/shape=64x64/f16/wb/gelu").value(),
  };
  const normjit::DeviceProfile devices[] = {
      normjit::DeviceProfile::of({80}).value(),
      normjit::DeviceProfile::of({90}).value(),
  };
  const auto report = service.prebuild(specs, devices);
  if (!report) {
    std::fprintf(stderr, "%s\n", report.error().message.c_str());
    return 1;
  }
  for (const normjit::KernelReport& kernel : report->results) {
    std::printf("%-8s %5.0f ms  %s  %s  %s\n", std::string(name(kernel.outcome)).c_str(), kernel.milliseconds,
                kernel.arch.name().c_str(), to_text(kernel.spec).c_str(), to_text(kernel.plan).c_str());
    if (!kernel.error.empty()) std::fprintf(stderr, "%s\n", kernel.error.c_str());
  }
  std::printf("%d kernels: %d compiled, %d already there, %d failed; %.1f s\n", report->requested,
              report->compiled, report->cached, report->failed, report->seconds);
  return report->failed == 0 ? 0 : 1;
}
