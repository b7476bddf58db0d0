// SPDX-License-Identifier: Apache-2.0
// Runs a program that AOTInductor has made (export.py) in C++ alone, without libpython: two threads at once,
// on a GPU each on a stream of its own, and compares with PyTorch's own operators.
//
//   main libnormjit_torch.so model.pt2
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

namespace {

constexpr std::int64_t kColumns = 256;

// Whether a run of the program gives what PyTorch computes, for so many rows.
bool is_right(torch::inductor::AOTIModelPackageLoader& program, at::Device device, std::int64_t rows) {
  std::optional<c10::StreamGuard> on_stream;
  void* stream = nullptr;
  if (!device.is_cpu()) {
    const c10::Stream own = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
    on_stream.emplace(own);
    stream = own.native_handle();
  }
  const at::Tensor x = at::sin(at::arange(rows * kColumns, at::TensorOptions(device).dtype(at::kFloat)))
                           .reshape({rows, kColumns});
  const std::vector<at::Tensor> found = program.run({x}, stream);

  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor total = 0.5 * at::gelu(at::layer_norm(wide, {kColumns})) + wide;
  const at::Tensor y = total * at::rsqrt(at::mean(total * total, {-1}, /*keepdim=*/true) + 1e-5);
  const bool right = found.size() == 2 && at::allclose(found[0].to(at::kDouble), y, 1e-4, 1e-4) &&
                     at::allclose(found[1].to(at::kDouble), total, 1e-4, 1e-4);
  std::printf("%lld rows on %s: %s\n", static_cast<long long>(rows), device.str().c_str(),
              right ? "right" : "WRONG");
  return right;
}

}  // namespace

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was printed is there, whatever happens later
  if (argc != 3) {
    std::fprintf(stderr, "main libnormjit_torch.so model.pt2\n");
    return 2;
  }
  void* const operators = dlopen(argv[1], RTLD_NOW);  // registers them
  if (operators == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto error = reinterpret_cast<const char* (*)()>(dlsym(operators, "normjit_torch_error"));
  if (error == nullptr) {
    std::fprintf(stderr, "%s is no libnormjit_torch.so\n", argv[1]);
    return 1;
  }
  if (const char* const why = error()) {
    std::fprintf(stderr, "%s\n", why);
    return 1;
  }
  if (dlsym(RTLD_DEFAULT, "Py_Initialize") != nullptr) {
    std::fprintf(stderr, "libpython is here, which this program does without\n");
    return 1;
  }
  const bool has_gpu =
      c10::impl::hasDeviceGuardImpl(at::kCUDA) && c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() > 0;
  const auto type = has_gpu ? at::kCUDA : at::kCPU;
  const at::Device device(type, type == at::kCUDA ? 0 : -1);
  torch::inductor::AOTIModelPackageLoader program(argv[2], "model", /*run_single_threaded=*/false,
                                                  /*num_runners=*/2);
  std::atomic<bool> right = is_right(program, device, 2);
  std::vector<std::thread> threads;
  for (const std::int64_t rows : {100, 1000})
    threads.emplace_back([&, rows] {
      try {
        for (int i = 0; i < 10; ++i)
          if (!is_right(program, device, rows + i)) right = false;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        right = false;
      }
    });
  for (std::thread& thread : threads) thread.join();
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
