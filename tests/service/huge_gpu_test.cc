// SPDX-License-Identifier: Apache-2.0
// Tensors beyond 2^32 elements: every offset needs 64 bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"
#include "tests/support/random_spec.h"

namespace normjit::testing {
namespace {

class HugeGpuTest : public GpuTest {
 protected:
  // Matrices that are read repeat `period` random rows. An odd period makes a row differ from that at any
  // power of two rows from it, so an offset that lost its upper bits is found. Compares the rows at the edges
  // and some others.
  void run_huge(const NormSpec& spec, std::int64_t rows, std::int64_t period) {
    ASSERT_GT(rows * spec.columns, std::int64_t{1} << 32);
    const oracle::Problem block = make(spec, period);
    const auto row_bytes = [&](const OperandRow& row) {
      return static_cast<std::size_t>(spec.columns) * size_of(row.dtype(spec));
    };
    std::size_t free = 0, total = 0, needed = std::size_t{1} << 30;
    for (const OperandRow& row : kOperands)
      if (row.present(spec)) needed += static_cast<std::size_t>(rows) * row_bytes(row);
    must(CUDA(cuMemGetInfo)(&free, &total), "cuMemGetInfo");
    if (free < needed) GTEST_SKIP() << "needs " << (needed >> 30) << " GiB of GPU memory";

    Tensors tensors{.rows = rows, .workspace = workspace(spec)};
    PerOperand<std::optional<DeviceMemory>> memory;
    for (const OperandRow& row : kOperands) {
      if (!row.present(spec)) continue;
      const oracle::Matrix& own = block[row.operand];
      const std::size_t bytes =
          is_matrix(row, spec) ? static_cast<std::size_t>(rows) * row_bytes(row) : own.bytes();
      DeviceMemory& on_gpu = memory[row.operand].emplace(bytes);
      set(tensors, row, on_gpu.data());
      if (row.output) {
        on_gpu.fill(0xff);
        continue;
      }
      on_gpu.upload(own.data(), own.bytes());
      for (std::size_t done = own.bytes(); done < bytes;) {
        const std::size_t piece = std::min(done, bytes - done);
        must(CUDA(cuMemcpyDtoD)(on_gpu.address() + done, on_gpu.address(), piece), "cuMemcpyDtoD");
        done += piece;
      }
    }
    must(CUDA(cuCtxSynchronize)(), "the copies");
    const GpuStream stream;
    const auto launched = service().norm(spec, tensors, stream);
    ASSERT_TRUE(launched.ok()) << launched.error().message;
    stream.synchronize();

    std::set<std::int64_t> checked = {0, rows - 1};
    for (const int bits : {31, 32})  // bytes and elements
      for (const std::int64_t unit : {1, size_of(spec.input)}) {
        const std::int64_t edge = (std::int64_t{1} << bits) / (spec.columns * unit);
        for (const std::int64_t row : {edge - 1, edge, edge + 1})
          if (row < rows) checked.insert(row);
      }
    Random random(test_seed());
    while (checked.size() < 80) checked.insert(random.between(0, rows - 1));

    oracle::Problem sample = oracle::make_problem(spec, static_cast<std::int64_t>(checked.size())).value();
    for (const OperandRow& row : kOperands) {
      if (!row.present(spec)) continue;
      oracle::Matrix& to = sample[row.operand];
      if (!is_matrix(row, spec)) {
        std::memcpy(to.data(), block[row.operand].data(), to.bytes());
        continue;
      }
      std::int64_t i = 0;
      for (const std::int64_t from : checked) {
        if (row.output)
          memory[row.operand]->download(to.row(i), to.row_bytes(),
                                        static_cast<std::size_t>(from) * to.row_bytes());
        else
          std::memcpy(to.row(i), block[row.operand].row(from % period), to.row_bytes());
        ++i;
      }
      EXPECT_TRUE(memory[row.operand]->canaries_live()) << row.name;
    }
    expect_right(sample);
  }
};

TEST_F(HugeGpuTest, RowsOf65536) {
  for (const DType dtype : {DType::f16, DType::bf16})
    run_huge({.columns = 65536, .input = dtype}, 65537, 257);
}

TEST_F(HugeGpuTest, ShortRows) {
  run_huge({.columns = 64, .input = DType::f16}, (std::int64_t{1} << 26) + 3, 257);
}

TEST_F(HugeGpuTest, LongRows) { run_huge({.columns = 1 << 20, .input = DType::bf16}, (1 << 12) + 1, 17); }

// Four streams, each of more than 2^32 elements.
TEST_F(HugeGpuTest, SumsOfRows) {
  run_huge({.norm = Norm::rms,
            .columns = 4096,
            .input = DType::bf16,
            .residual = Residual::before,
            .sum = true,
            .affine = Affine::weight},
           (std::int64_t{1} << 20) + 5, 257);
}

// A scale and a shift for each row.
TEST_F(HugeGpuTest, ModulatedRows) {
  run_huge({.columns = 3072, .input = DType::bf16, .modulation = Modulation::scale_shift},
           (std::int64_t{1} << 32) / 3072 + 5, 257);
}

// Few rows, far apart: the stride alone exceeds 2^32 bytes.
TEST_F(HugeGpuTest, FarApartRows) {
  constexpr std::int64_t kColumns = 1000, kRows = 3, kStride = (std::int64_t{1} << 31) + 8;
  const NormSpec spec{.columns = kColumns, .input = DType::f16};
  const std::size_t bytes = ((kRows - 1) * kStride + kColumns) * 2;
  oracle::Problem problem = make(spec, kRows);
  DeviceMemory x(bytes), y(problem[Operand::y].bytes());
  for (std::int64_t row = 0; row < kRows; ++row)
    must(CUDA(cuMemcpyHtoD)(x.address() + row * kStride * 2, problem[Operand::x].row(row),
                            problem[Operand::x].row_bytes()),
         "cuMemcpyHtoD");
  y.fill(0xff);
  must(CUDA(cuCtxSynchronize)(), "the copies");
  const GpuStream stream;
  const auto launched = service().layer_norm(
      spec, {.x = strided(static_cast<const void*>(x.data()), kStride), .y = y.data(), .rows = kRows},
      stream);
  ASSERT_TRUE(launched.ok()) << launched.error().message;
  stream.synchronize();
  y.download(problem[Operand::y].data(), problem[Operand::y].bytes());
  expect_right(problem);
}

}  // namespace
}  // namespace normjit::testing
