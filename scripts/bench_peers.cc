// SPDX-License-Identifier: Apache-2.0
// The half of bench_peers.py in C++: normjit's kernels and its copies as functions that ctypes can call, on
// the CUDA context and the streams of the process that loads this.
//
// A function that fails returns null or a number other than 0; error() then says why. Everything else is as
// Service and Kernel have it. One thread only.
#include <cstdint>
#include <string>
#include <vector>

#include "cli/copy.h"
#include "cli/gpu.h"
#include "normjit/service.h"
#include "normjit/spec/operands.h"

namespace {

using namespace normjit;

struct Bench {
  explicit Bench(int device)
      : gpu(device), service(options), copies(options, gpu, service.device(device).value()) {}

  const Options options = Options::from_environment();
  const cli::Gpu gpu;
  Service service;
  cli::Copies copies;
};

struct PeerKernel {
  Kernel kernel;
  std::string plan;
};

// The copies of a spec, in each shape.
struct PeerCopies {
  const std::vector<cli::CopyKernel>& kernels;
  cli::CopyLayout layout;
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

// `sample` rows share a row of gate, scale and shift; with channels first `plane` rows are a sample.
NORMJIT_PEERS PeerKernel* normjit_peers_prepare(Bench* bench, const char* spec, std::int64_t rows,
                                                std::int64_t sample, std::int64_t plane) {
  return guarded<PeerKernel*>(nullptr, [&] {
    PrepareOptions options{.device = bench->gpu.ordinal(), .rows_hint = rows};
    options.grouped_rows = sample > 1;
    options.plane = plane;
    Kernel kernel = bench->service.prepare(parse_spec(spec).value(), options).value();
    std::string plan = to_text(kernel.plan());
    return new PeerKernel{std::move(kernel), std::move(plan)};
  });
}

NORMJIT_PEERS void normjit_peers_release(PeerKernel* kernel) { delete kernel; }

NORMJIT_PEERS const char* normjit_peers_plan(const PeerKernel* kernel) { return kernel->plan.c_str(); }

NORMJIT_PEERS std::int64_t normjit_peers_workspace_bytes(const PeerKernel* kernel) {
  return static_cast<std::int64_t>(kernel->kernel.workspace_bytes());
}

// The names of the operands in the order of `pointers`, separated by spaces.
NORMJIT_PEERS const char* normjit_peers_operands() {
  static const std::string names = [] {
    std::string text;
    for (const OperandRow& row : kOperands) text += (text.empty() ? "" : " ") + std::string(row.name);
    return text;
  }();
  return names.c_str();
}

// `pointers` has one for each operand, null where the spec has none. `overlap`: LaunchOptions.
NORMJIT_PEERS int normjit_peers_launch(const PeerKernel* kernel, const void* const* pointers,
                                       std::int64_t rows, std::int64_t sample, std::int64_t plane,
                                       void* workspace, int overlap, void* stream) {
  Tensors tensors{.rows = rows, .workspace = workspace};
  tensors.plane = plane;
  const std::int64_t columns = kernel->kernel.spec().columns;
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    if (pointers[i] == nullptr) continue;
    if (sample > 1 && may_be_of_samples(kOperands[i]))
      set(tensors, kOperands[i], InputRows(pointers[i], sample, columns, 0));
    else
      set(tensors, kOperands[i], pointers[i]);
  }
  const Status status =
      kernel->kernel.launch(tensors, static_cast<Stream>(stream), {.overlap_previous = overlap != 0});
  if (!status) last_error = status.message();
  return status ? 0 : 1;
}

// Copies that move so many bytes in the streams of a spec.
NORMJIT_PEERS PeerCopies* normjit_peers_copies(Bench* bench, const char* spec, std::int64_t bytes,
                                               int overlap) {
  return guarded<PeerCopies*>(nullptr, [&] {
    const cli::CopyStreams streams = cli::copy_streams(parse_spec(spec).value());
    return new PeerCopies{bench->copies.of(streams, overlap != 0), cli::CopyLayout(streams, bytes)};
  });
}

NORMJIT_PEERS void normjit_peers_release_copies(PeerCopies* copies) { delete copies; }

NORMJIT_PEERS int normjit_peers_copy_shapes(const PeerCopies* copies) {
  return static_cast<int>(copies->kernels.size());
}

// Of device memory that one copy takes.
NORMJIT_PEERS std::int64_t normjit_peers_copy_bytes(const PeerCopies* copies) {
  return static_cast<std::int64_t>(copies->layout.bytes);
}

NORMJIT_PEERS int normjit_peers_copy(const PeerCopies* copies, int shape, void* memory, void* stream) {
  return guarded(1, [&] {
    copies->kernels.at(static_cast<std::size_t>(shape))
        .launch(memory, copies->layout, static_cast<Stream>(stream));
    return 0;
  });
}
