// SPDX-License-Identifier: Apache-2.0
// One layer normalization on a GPU. The first run compiles the kernel, later ones find it in the cache.
#include <normjit/normjit.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "device.h"

int main() {
  Device gpu;
  if (!gpu.present()) {
    std::puts("quickstart needs an NVIDIA GPU and its driver; here is none.");
    return 77;
  }
  const std::int64_t rows = 16, columns = 4096;
  std::vector<float> input(rows * columns);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i % 1000);
  const float* x = gpu.upload(input);
  const float* weight = gpu.upload(std::vector<float>(columns, 1.0f));
  const float* bias = gpu.upload(std::vector<float>(columns, 0.5f));
  float* y = gpu.upload(std::vector<float>(rows * columns));

  normjit::Service service;  // one per process
  const normjit::NormSpec spec{.columns = columns, .affine = normjit::Affine::weight_bias};
  const auto done = service.norm(spec, {.x = x, .y = y, .weight = weight, .bias = bias, .rows = rows},
                                 /*stream=*/nullptr);
  if (!done) {
    std::fprintf(stderr, "%s\n", done.error().message.c_str());
    return 1;
  }

  double sum = 0, squares = 0;  // of the first row, whose mean is the bias now and whose deviation the weight
  for (const float value : gpu.download(y, columns)) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const double mean = sum / columns, deviation = std::sqrt(squares / columns - mean * mean);
  std::printf("%s: mean %.3f, deviation %.3f\n", normjit::to_text(spec).c_str(), mean, deviation);
  return std::abs(mean - 0.5) < 1e-3 && std::abs(deviation - 1) < 1e-3 ? 0 : 1;
}
