// SPDX-License-Identifier: Apache-2.0
// One Service for all GPUs of the machine: a thread for each, all at once, and a host that listens to what
// happens.
#include <normjit/normjit.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device.h"

namespace {

constexpr normjit::NormSpec kSpec{.columns = 4096, .activation = normjit::Activation::relu};
constexpr std::int64_t kRows = 1000;

// Whether this GPU gives what it should. The GPU's context is current on this thread and no other.
bool is_right(normjit::Service& service, int ordinal) {
  Device gpu(ordinal);
  if (!gpu.present()) return false;
  std::vector<float> input(kRows * kSpec.columns);  // every row 0, 1, ..., 4095
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i % kSpec.columns);
  const float* x = gpu.upload(input);
  float* y = gpu.upload(std::vector<float>(input.size(), -1.0f));

  const auto kernel = service.prepare(kSpec, {.rows_hint = kRows});  // for the current context's GPU
  if (!kernel) {
    std::fprintf(stderr, "GPU %d: %s\n", ordinal, kernel.error().message.c_str());
    return false;
  }
  const normjit::Status status = kernel->launch({.x = x, .y = y, .rows = kRows}, /*stream=*/nullptr);
  if (!status) {
    std::fprintf(stderr, "GPU %d: %s\n", ordinal, status.message());
    return false;
  }
  const std::vector<float> found = gpu.download(y, input.size());
  const double mean = (kSpec.columns - 1) / 2.0, deviation = std::sqrt((std::pow(kSpec.columns, 2) - 1) / 12);
  bool right = true;
  for (std::size_t i = 0; i < found.size(); ++i)
    right = right && std::abs(found[i] - std::max(0.0, (input[i] - mean) / deviation)) < 1e-4;
  std::printf("GPU %d, %s: %s\n", ordinal, kernel->device().text().c_str(), right ? "right" : "WRONG");
  return right;
}

}  // namespace

int main() {
  normjit::Options options = normjit::Options::from_environment();
  options.log = [](normjit::LogLevel level, std::string_view text) {  // from any thread
    if (level >= normjit::LogLevel::warn) std::fprintf(stderr, "normjit: %s\n", std::string(text).c_str());
  };
  options.on_event = [](const normjit::Event& event) {
    std::printf("%s %s for %s, %.1f ms\n", std::string(name(event.kind)).c_str(),
                std::string(event.spec).c_str(), std::string(event.arch).c_str(), event.milliseconds);
  };
  normjit::Service service(options);
  const normjit::Environment found = service.environment();
  if (found.devices.empty()) {
    std::printf("all_gpus needs an NVIDIA GPU: %s\n", found.driver_error.c_str());
    return 77;
  }

  std::atomic<bool> right = true;
  std::vector<std::thread> threads;
  for (const auto& device : found.devices)
    threads.emplace_back([&, ordinal = device.ordinal] {
      if (!is_right(service, ordinal)) right = false;
    });
  for (std::thread& thread : threads) thread.join();

  std::printf("%s\n", to_json(service.counters()).c_str());
  return right ? 0 : 1;
}
