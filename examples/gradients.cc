// SPDX-License-Identifier: Apache-2.0
// RMSNorm of x + residual as training has it: the forward, which writes the sum, and then all gradients in
// one kernel. Compares them with sums in double on the CPU.
#include <normjit/normjit.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "device.h"

namespace {

constexpr std::int64_t kRows = 64, kColumns = 1024;

// Numbers between -1 and 1.
std::vector<float> numbers(std::int64_t count, unsigned seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / (1u << 23) - 1;
  }
  return values;
}

// The largest distance of what the kernels wrote from the formula.
double error_of(const std::vector<float>& sum, const std::vector<float>& weight, const std::vector<float>& dy,
                const std::vector<float>& dsum, const std::vector<float>& dx,
                const std::vector<float>& dweight) {
  double largest = 0;
  std::vector<double> of_weight(kColumns);
  for (std::size_t row = 0; row < kRows * kColumns; row += kColumns) {
    double squares = 0, along = 0;
    for (std::size_t i = 0; i < kColumns; ++i) {
      squares += static_cast<double>(sum[row + i]) * sum[row + i];
      along += static_cast<double>(dy[row + i]) * weight[i] * sum[row + i];
    }
    const double rstd = 1 / std::sqrt(squares / kColumns + 1e-5), mean_gn = along * rstd / kColumns;
    for (std::size_t i = 0; i < kColumns; ++i) {
      const double n = sum[row + i] * rstd, g = static_cast<double>(dy[row + i]) * weight[i];
      of_weight[i] += dy[row + i] * n;
      largest = std::max(largest, std::abs(rstd * (g - n * mean_gn) + dsum[row + i] - dx[row + i]));
    }
  }
  for (std::size_t i = 0; i < kColumns; ++i) largest = std::max(largest, std::abs(of_weight[i] - dweight[i]));
  return largest;
}

}  // namespace

int main() {
  Device gpu;
  if (!gpu.present()) {
    std::puts("gradients needs an NVIDIA GPU and its driver; here is none.");
    return 77;
  }
  constexpr std::int64_t kElements = kRows * kColumns;
  const std::vector<float> host_weight = numbers(kColumns, 1), host_dy = numbers(kElements, 2),
                           host_dsum = numbers(kElements, 3);
  const float *x = gpu.upload(numbers(kElements, 4)), *residual = gpu.upload(numbers(kElements, 5)),
              *weight = gpu.upload(host_weight);
  const float *dy = gpu.upload(host_dy), *dsum = gpu.upload(host_dsum);
  float *y = gpu.upload(numbers(kElements, 6)), *sum = gpu.upload(numbers(kElements, 7));
  float *dx = gpu.upload(numbers(kElements, 8)), *dweight = gpu.upload(numbers(kColumns, 9));

  normjit::Service service;
  const normjit::NormSpec forward{.norm = normjit::Norm::rms,
                                  .columns = kColumns,
                                  .residual = normjit::Residual::before,
                                  .sum = true,
                                  .affine = normjit::Affine::weight};
  const normjit::NormSpec backward{.norm = normjit::Norm::rms,
                                   .backward = true,
                                   .columns = kColumns,
                                   .dsum = true,
                                   .affine = normjit::Affine::weight};
  const auto bytes = service.workspace_bytes(backward);
  if (!bytes) {
    std::fprintf(stderr, "%s\n", bytes.error().message.c_str());
    return 1;
  }
  void* const workspace = gpu.upload(std::vector<float>(*bytes / sizeof(float)));  // zeroed once

  auto done = service.norm(
      forward, {.x = x, .y = y, .weight = weight, .rows = kRows, .residual = residual, .sum = sum},
      /*stream=*/nullptr);
  if (done)
    done = service.norm(backward,
                        {.x = sum,
                         .weight = weight,
                         .rows = kRows,
                         .workspace = workspace,
                         .dy = dy,
                         .dsum = dsum,
                         .dx = dx,
                         .dweight = dweight},
                        /*stream=*/nullptr);
  if (!done) {
    std::fprintf(stderr, "%s\n", done.error().message.c_str());
    return 1;
  }

  const double error = error_of(gpu.download(sum, kElements), host_weight, host_dy, host_dsum,
                                gpu.download(dx, kElements), gpu.download(dweight, kColumns));
  std::printf("%s: largest error %.1e\n", normjit::to_text(backward).c_str(), error);
  return error < 1e-4 ? 0 : 1;
}
