// SPDX-License-Identifier: Apache-2.0
// What normjit does, as ranges and marks of NVTX: Nsight Systems shows them on the line of each thread,
// beside the calls of CUDA. Fills a cache, which needs no GPU:
//
//   nsys profile --trace=nvtx,cuda example_nvtx [DIRECTORY]
#include <normjit/normjit.h>

#include <cstdio>
#include <string>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace {

// A range for what takes time, a mark for what does not. Begin and end come on one thread, as NVTX needs.
void trace(const normjit::Event& event) {
  using Phase = normjit::Event::Phase;
  if (event.phase == Phase::end) {
    nvtxRangePop();
    return;
  }
  std::string text = "normjit " + std::string(name(event.kind)) + " ";
  text.append(event.spec).append(" ").append(event.arch);
  if (event.phase == Phase::begin)
    nvtxRangePushA(text.c_str());
  else
    nvtxMarkA(text.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  normjit::Options options = normjit::Options::from_environment();
  options.cache_directory = argc > 1 ? argv[1] : "";
  options.on_event = trace;
  normjit::Service service(options);
  if (const normjit::Environment found = service.environment(); !found.compiler_error.empty()) {
    std::printf("nvtx needs NVRTC: %s\n", found.compiler_error.c_str());
    return 77;
  }
  const normjit::NormSpec specs[] = {{.columns = 64}, {.columns = 1024, .affine = normjit::Affine::weight}};
  const normjit::DeviceProfile device = normjit::DeviceProfile::of({90}).value();
  const auto report = service.prebuild(specs, {&device, 1}, {.jobs = 2});
  if (!report) {
    std::fprintf(stderr, "%s\n", report.error().message.c_str());
    return 1;
  }
  std::printf("%d kernels: %d compiled, %d failed\n", report->requested, report->compiled, report->failed);
  return report->failed == 0 ? 0 : 1;
}
#else
int main() {
  std::puts("nvtx was built without the header nvtx3/nvToolsExt.h, which CUDA toolkits have.");
  return 77;
}
#endif
