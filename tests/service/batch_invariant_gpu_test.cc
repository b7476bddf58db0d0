// SPDX-License-Identifier: Apache-2.0
// Options::batch_invariant on a GPU: the bits of a row are the same whatever the number of rows, and wherever
// among them it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"

namespace normjit::testing {
namespace {

struct Layer {
  NormSpec spec;
  std::int64_t rows;  // the most; long rows are copied in minutes
};

// From rows in a part of a warp to rows that all blocks share.
const Layer kLayers[] = {
    {{.columns = 64, .affine = Affine::weight_bias, .statistics = true}, 10'000},
    {{.norm = Norm::rms, .columns = 39, .input = DType::bf16, .affine = Affine::weight}, 10'000},
    {{.norm = Norm::rms,
      .columns = 768,
      .input = DType::bf16,
      .residual = Residual::before,
      .sum = true,
      .affine = Affine::weight},
     10'000},
    {{.norm = Norm::rms,
      .columns = 4096,
      .input = DType::bf16,
      .residual = Residual::before,
      .sum = true,
      .affine = Affine::weight},
     10'000},
    {{.columns = 5001, .input = DType::f16, .affine = Affine::weight_bias, .activation = Activation::gelu},
     2000},
    {{.columns = 16'384, .residual = Residual::after, .affine = Affine::weight_bias}, 1000},
    {{.columns = 65'536, .residual = Residual::before, .sum = true, .affine = Affine::weight_bias}, 300},
    {{.norm = Norm::rms, .columns = 1'000'003, .input = DType::bf16, .affine = Affine::weight}, 40},
};

class BatchInvariantGpuTest : public GpuTest {
 protected:
  static Service invariant() {
    Options chosen = options("");
    chosen.batch_invariant = true;
    return Service(chosen);
  }
};

// The bytes of a row of each output that the spec has.
std::vector<std::byte> row_bytes(const oracle::Problem& problem, std::int64_t row) {
  std::vector<std::byte> bytes;
  for (const Operand output : {Operand::y, Operand::sum, Operand::mean, Operand::rstd})
    if (const oracle::Matrix& matrix = problem[output]; !matrix.empty())
      bytes.insert(bytes.end(), matrix.row(row), matrix.row(row) + matrix.row_bytes());
  return bytes;
}

void poison_outputs(oracle::Problem& problem) {
  for (const Operand output : {Operand::y, Operand::sum, Operand::mean, Operand::rstd})
    if (!problem[output].empty()) problem[output].poison();
}

TEST_F(BatchInvariantGpuTest, ARowsBitsDoNotDependOnTheNumberOfRows) {
  Service service = invariant();
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(to_text(layer.spec));
    oracle::Problem problem = make(layer.spec, layer.rows);
    GpuProblem on_gpu(problem);
    DeviceMemory workspace(service.prepare(layer.spec).value().workspace_bytes());
    workspace.fill(0);
    const auto run = [&](std::int64_t rows) {
      poison_outputs(problem);
      on_gpu.upload();
      Tensors tensors = on_gpu.tensors();
      tensors.rows = rows;
      tensors.workspace = workspace.data();
      const auto done = service.norm(layer.spec, tensors, nullptr);
      ASSERT_TRUE(done.ok()) << done.error().message;
      on_gpu.fetch();
    };
    run(layer.rows);
    expect_right(problem);
    std::vector<std::vector<std::byte>> expected;
    for (std::int64_t row = 0; row < layer.rows; ++row) expected.push_back(row_bytes(problem, row));

    for (std::int64_t rows : {1, 2, 3, 7, 8, 9, 31, 64, 131, 133, 264, 1000, 1057, 4096, 9999}) {
      if (rows >= layer.rows) break;
      run(rows);
      std::int64_t different = 0;
      for (std::int64_t row = 0; row < rows; ++row) different += row_bytes(problem, row) != expected[row];
      EXPECT_EQ(different, 0) << "of " << rows << " rows";
    }
  }
}

// The others that it is normalized with are not the same either.
TEST_F(BatchInvariantGpuTest, ARowsBitsDoNotDependOnItsPlace) {
  Service service = invariant();
  for (const Layer& layer : kLayers) {
    SCOPED_TRACE(to_text(layer.spec));
    const std::int64_t rows = std::min<std::int64_t>(layer.rows, 200), other = 13;
    oracle::Problem problem = make(layer.spec, rows), moved = make(layer.spec, rows);
    for (const Operand input : {Operand::x, Operand::residual})
      if (!problem[input].empty())
        for (std::int64_t row = 0; row < rows; ++row)
          std::memcpy(moved[input].row((row + other) % rows), problem[input].row(row),
                      problem[input].row_bytes());
    for (const Operand vector : {Operand::weight, Operand::bias})
      if (!problem[vector].empty())
        std::memcpy(moved[vector].data(), problem[vector].data(), problem[vector].bytes());
    DeviceMemory workspace(service.prepare(layer.spec).value().workspace_bytes());
    workspace.fill(0);
    for (oracle::Problem* each : {&problem, &moved}) {
      GpuProblem on_gpu(*each);
      Tensors tensors = on_gpu.tensors();
      tensors.workspace = workspace.data();
      const auto done = service.norm(layer.spec, tensors, nullptr);
      ASSERT_TRUE(done.ok()) << done.error().message;
      on_gpu.fetch();
    }
    for (std::int64_t row = 0; row < rows; ++row)
      ASSERT_EQ(row_bytes(moved, (row + other) % rows), row_bytes(problem, row)) << "row " << row;
  }
}

}  // namespace
}  // namespace normjit::testing
