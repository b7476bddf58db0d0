// SPDX-License-Identifier: Apache-2.0
// The half of bench_peers.py in C++: normjit's kernels and its copy as functions that ctypes can call, on the
// CUDA context and the streams of the process that loads this.
//
// A function that fails returns null or a number other than 0; error() then says why. Everything else is as
// Service and Kernel have it. One thread only.
#include <cstdint>
#include <string>

#include "cli/gpu.h"
#include "normjit/service.h"

namespace {

using namespace normjit;

struct Bench {
  explicit Bench(int device)
      : gpu(device), service(options), copy(options, gpu, service.device(device).value().arch) {}

  const Options options = Options::from_environment();
  const cli::Gpu gpu;
  Service service;
  const cli::CopyKernel copy;
};

struct PeerKernel {
  Kernel kernel;
  std::string plan;
};

std::string last_error;

// What `make` returns; where it throws, `failed`.
template <class Value, class Make>
Value guarded(Value failed, const Make& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    last_error = error.what();
    return failed;
  }
}

}  // namespace

#define NORMJIT_PEERS extern "C" __attribute__((visibility("default")))

NORMJIT_PEERS const char* normjit_peers_error() { return last_error.c_str(); }

NORMJIT_PEERS Bench* normjit_peers_open(int device) {
  return guarded<Bench*>(nullptr, [&] { return new Bench(device); });
}

NORMJIT_PEERS PeerKernel* normjit_peers_prepare(Bench* bench, const char* spec, std::int64_t rows) {
  return guarded<PeerKernel*>(nullptr, [&] {
    Kernel kernel =
        bench->service.prepare(parse_spec(spec).value(), {.device = bench->gpu.ordinal(), .rows_hint = rows})
            .value();
    std::string plan = to_text(kernel.plan());
    return new PeerKernel{std::move(kernel), std::move(plan)};
  });
}

NORMJIT_PEERS void normjit_peers_release(PeerKernel* kernel) { delete kernel; }

NORMJIT_PEERS const char* normjit_peers_plan(const PeerKernel* kernel) { return kernel->plan.c_str(); }

NORMJIT_PEERS std::int64_t normjit_peers_workspace_bytes(const PeerKernel* kernel) {
  return static_cast<std::int64_t>(kernel->kernel.workspace_bytes());
}

NORMJIT_PEERS int normjit_peers_launch(const PeerKernel* kernel, const void* x, void* y, const void* weight,
                                       const void* bias, void* mean, void* rstd, std::int64_t rows,
                                       void* workspace, void* stream) {
  const Tensors tensors{.x = x,
                        .y = y,
                        .weight = weight,
                        .bias = bias,
                        .mean = mean,
                        .rstd = rstd,
                        .rows = rows,
                        .workspace = workspace};
  const Status status = kernel->kernel.launch(tensors, static_cast<Stream>(stream));
  if (!status) last_error = status.message();
  return status ? 0 : 1;
}

NORMJIT_PEERS int normjit_peers_copy(const Bench* bench, const void* from, void* to, std::int64_t bytes,
                                     void* stream) {
  return guarded(1, [&] {
    bench->copy.launch(from, to, static_cast<std::size_t>(bytes), static_cast<Stream>(stream));
    return 0;
  });
}
