// SPDX-License-Identifier: Apache-2.0
// Offsets and row numbers beyond 32 bits, in memory that is mapped but for the most part never touched: only
// the blocks at the end of the grid run.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "normjit/codegen/generator.h"
#include "normjit/service/prepared.h"
#include "simt/launch.h"
#include "verify/check.h"
#include "verify/element.h"

namespace normjit::testing {
namespace {

// Zeros that take memory only where they are written.
class Sparse {
 public:
  explicit Sparse(std::uint64_t bytes) : bytes_(bytes) {
    mapped_ =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Sparse() {
    if (ok()) munmap(mapped_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  bool ok() const { return mapped_ != MAP_FAILED; }
  std::byte* at(std::uint64_t byte) const { return static_cast<std::byte*>(mapped_) + byte; }

 private:
  std::uint64_t bytes_;
  void* mapped_;
};

struct Huge {
  const char* name;
  Strategy strategy;
  std::int64_t columns, rows, stride;
  std::uint32_t first_block, run_blocks;  // 0 of them: all
  std::vector<std::int64_t> looked_at;    // rows
};

Plan plan_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::warp_rows:
    case Strategy::staged_rows:
      return {strategy, 128, 1, 1, 1, 1, 1};
    case Strategy::block_row:
      return {strategy, 128, 128, 1, 1, 1, 1};
    case Strategy::persistent_row:
      return {.strategy = strategy,
              .threads = 512,
              .threads_per_row = 256,
              .vector = 8,
              .per_thread = 1,
              .stages = 2};
    case Strategy::generic:  // a warp has rows of up to 32 columns
      return {strategy, 64, 32, 1, 1};
    case Strategy::channels_first:  // of other specs
    case Strategy::gradient_rows:
    case Strategy::gradient_ring:
    case Strategy::gradient_columns:
    case Strategy::split_row:
      break;
  }
  return {Strategy::split_row, 64, 64, 1, 1, 4, 1};
}

void PrintTo(const Huge& huge, std::ostream* to) { *to << huge.name; }

class HugeRows : public ::testing::TestWithParam<Huge> {};

TEST_P(HugeRows, AreFoundAndComputed) {
  const Huge& huge = GetParam();
  const NormSpec spec{.columns = huge.columns, .input = DType::f16};
  DeviceProfile device = DeviceProfile::of({.number = 90}).value();
  device.sm_count = 2;
  const Plan plan = plan_of(huge.strategy);
  ASSERT_TRUE(check(plan, spec, device).ok()) << check(plan, spec, device).error().message;
  const auto source = generate(canonical(spec), plan, device.arch, "");
  ASSERT_TRUE(source.ok());
  const auto kernels = simt::HostCompiler::find().value().compile({&*source, 1}, simt::Checks::none);
  ASSERT_TRUE(kernels.ok()) << kernels.error().message;

  const auto offset = [&](std::int64_t row) { return static_cast<std::uint64_t>(row * huge.stride) * 2; };
  const Sparse x(offset(huge.rows)), y(offset(huge.rows)), workspace(workspace_bytes(plan, spec, device) + 1);
  if (!x.ok() || !y.ok()) GTEST_SKIP() << "This machine does not map " << offset(huge.rows) << " bytes.";
  std::vector<double> values(static_cast<std::size_t>(huge.columns));
  for (const std::int64_t row : huge.looked_at) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>((row + static_cast<std::int64_t>(i) * 37) % 101) / 16;
    oracle::store(DType::f16, x.at(offset(row)), 0, huge.columns, values.data());
  }

  const Tensors tensors{.x = strided(static_cast<const void*>(x.at(0)), huge.stride),
                        .y = strided(y.at(0), huge.stride),
                        .rows = huge.rows,
                        .workspace = workspace.at(0)};
  OperandBlock block = block_of(plan, spec, tensors);
  RuntimeSpec runtime_spec(spec);
  void* arguments[] = {&block, &runtime_spec};
  const auto wrong = simt::run(
      kernels->at(0), {.blocks = static_cast<std::uint32_t>(grid_blocks(plan, spec, device, huge.rows)),
                       .shape = launch_shape(plan, spec),
                       .arguments = arguments,
                       .buffers = {},
                       .seed = 5,
                       .first_block = huge.first_block,
                       .run_blocks = huge.run_blocks});
  ASSERT_FALSE(wrong) << wrong->message;
  std::vector<oracle::ReferenceValue> expected(values.size());
  for (const std::int64_t row : huge.looked_at) {
    oracle::RowInputs inputs{};
    inputs[Operand::x] = x.at(offset(row));
    oracle::reference_values(spec, inputs, oracle::row_statistics(spec, inputs), 0, huge.columns,
                             expected.data());
    oracle::load(DType::f16, y.at(offset(row)), 0, huge.columns, values.data());
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], expected[i].value, oracle::tolerance(spec, expected[i]))
          << "row " << row << ", column " << i;
  }
}

constexpr std::int64_t kTwoTo31 = std::int64_t{1} << 31;
constexpr std::int64_t kTwoTo32 = std::int64_t{1} << 32;

INSTANTIATE_TEST_SUITE_P(
    Host, HugeRows,
    ::testing::Values(
        // Offsets in elements and in bytes pass 2^31 and 2^32.
        Huge{"strides_packed", Strategy::warp_rows, 1, 4, kTwoTo31 - 1, 0, 0, {0, 1, 2, 3}},
        Huge{"strides_resident", Strategy::block_row, 100, 4, kTwoTo31 - 1, 0, 0, {0, 1, 2, 3}},
        Huge{"strides_split_row", Strategy::split_row, 300, 6, kTwoTo31 - 1, 0, 0, {0, 1, 2, 3, 4, 5}},
        Huge{"strides_streamed", Strategy::persistent_row, 104, 4, kTwoTo31 - 8, 0, 0, {0, 1, 2, 3}},
        Huge{"strides_generic_warps", Strategy::generic, 3, 4, kTwoTo31 - 1, 0, 0, {0, 1, 2, 3}},
        Huge{"strides_generic_blocks", Strategy::generic, 100, 4, kTwoTo31 - 1, 0, 0, {0, 1, 2, 3}},
        // 128 rows a block, so the last of 2^25 + 1 blocks has the rows from 2^32 on.
        Huge{"strides_tiled", Strategy::staged_rows, 1, 4, kTwoTo31 - 1, 0, 0, {0, 1, 2, 3}},
        Huge{"rows_packed", Strategy::warp_rows, 1, kTwoTo32 + 5, 1, 1 << 25, 1, {kTwoTo32, kTwoTo32 + 4}},
        // More rows than a grid has blocks: the first blocks go round a second time.
        Huge{"rows_resident",
             Strategy::block_row,
             100,
             kTwoTo31 + 1,
             100,
             0,
             2,
             {0, 1, kTwoTo31 - 1, kTwoTo31}},
        Huge{"rows_generic_warps",
             Strategy::generic,
             1,
             kTwoTo32 + 3,
             1,
             0,
             3,
             {0, kTwoTo32 - 2, kTwoTo32 + 2}},
        Huge{"rows_generic_blocks",
             Strategy::generic,
             100,
             kTwoTo31 + 1,
             100,
             0,
             2,
             {0, 1, kTwoTo31 - 1, kTwoTo31}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace normjit::testing
