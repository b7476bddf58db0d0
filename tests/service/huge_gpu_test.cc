// SPDX-License-Identifier: Apache-2.0
// Tensors beyond 2^32 elements: every offset needs 64 bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"
#include "tests/support/random_spec.h"

namespace normjit::testing {
namespace {

class HugeGpuTest : public GpuTest {
 protected:
  // x repeats `period` random rows. An odd period makes a row differ from that at any power of two rows from
  // it, so an offset that lost its upper bits is found. Compares the rows at the edges and some others.
  void run_huge(const NormSpec& spec, std::int64_t rows, std::int64_t period) {
    const std::size_t x_row = static_cast<std::size_t>(spec.columns) * size_of(spec.input);
    const std::size_t y_row = static_cast<std::size_t>(spec.columns) * size_of(spec.output);
    const std::size_t x_bytes = static_cast<std::size_t>(rows) * x_row;
    const std::size_t y_bytes = static_cast<std::size_t>(rows) * y_row;
    ASSERT_GT(rows * spec.columns, std::int64_t{1} << 32);
    std::size_t free = 0, total = 0;
    must(CUDA(cuMemGetInfo)(&free, &total), "cuMemGetInfo");
    if (free < x_bytes + y_bytes + (std::size_t{1} << 30)) GTEST_SKIP() << "needs 18 GB of GPU memory";

    const oracle::Problem block = make(spec, period);
    DeviceMemory x(x_bytes), y(y_bytes);
    x.upload(block[Operand::x].data(), block[Operand::x].bytes());
    for (std::size_t done = block[Operand::x].bytes(); done < x_bytes;) {
      const std::size_t bytes = std::min(done, x_bytes - done);
      must(CUDA(cuMemcpyDtoD)(x.address() + done, x.address(), bytes), "cuMemcpyDtoD");
      done += bytes;
    }
    y.fill(0xff);
    must(CUDA(cuCtxSynchronize)(), "the copies");

    const Tensors tensors{.x = x.data(), .y = y.data(), .rows = rows, .workspace = workspace(spec)};
    const GpuStream stream;
    const auto launched = service().layer_norm(spec, tensors, stream);
    ASSERT_TRUE(launched.ok()) << launched.error().message;
    stream.synchronize();

    std::set<std::int64_t> checked = {0, rows - 1};
    for (const int bits : {31, 32})  // bytes and elements
      for (const std::int64_t unit : {std::int64_t{1}, static_cast<std::int64_t>(x_row) / spec.columns}) {
        const std::int64_t edge = (std::int64_t{1} << bits) / (spec.columns * unit);
        for (const std::int64_t row : {edge - 1, edge, edge + 1})
          if (row < rows) checked.insert(row);
      }
    Random random(test_seed());
    while (checked.size() < 80) checked.insert(random.between(0, rows - 1));

    oracle::Problem sample = oracle::make_problem(spec, static_cast<std::int64_t>(checked.size())).value();
    std::int64_t i = 0;
    for (const std::int64_t row : checked) {
      std::memcpy(sample[Operand::x].row(i), block[Operand::x].row(row % period), x_row);
      y.download(sample[Operand::y].row(i), y_row, static_cast<std::size_t>(row) * y_row);
      ++i;
    }
    expect_right(sample);
    EXPECT_TRUE(x.canaries_live());
    EXPECT_TRUE(y.canaries_live());
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
