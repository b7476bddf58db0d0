// SPDX-License-Identifier: Apache-2.0
// The copy that kernels are compared with: it reads and writes all of its streams, and nothing beside them.
#include "cli/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/measure.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"

namespace normjit::testing {
namespace {

using Words = std::vector<std::uint32_t>;
constexpr std::uint32_t kPoison = 0xa5a5a5a5;

class CopyGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    gpu_.emplace(0);
    copies_.emplace(Options::from_environment(), *gpu_, service().device().value());
  }

  // What lies in the part behind two copies, the second of which may overlap the first.
  Words copied(const cli::CopyKernel& copy, const cli::CopyLayout& layout, const Words& before) {
    DeviceMemory part(layout.bytes);
    part.upload(before.data(), layout.bytes);
    must(CUDA(cuCtxSynchronize)(), "the upload");
    const GpuStream stream;
    copy.launch(part.data(), layout, stream);
    copy.launch(part.data(), layout, stream);
    stream.synchronize();
    EXPECT_TRUE(part.canaries_live());
    Words after(before.size());
    part.download(after.data(), layout.bytes);
    return after;
  }

  const cli::Gpu& gpu() const { return *gpu_; }
  cli::Copies& copies() { return *copies_; }

 private:
  std::optional<cli::Gpu> gpu_;
  std::optional<cli::Copies> copies_;
};

// Sizes that end within a block, and one that takes several rounds of the walking grid on a GPU of up to 280
// multiprocessors.
constexpr std::int64_t kSizes[] = {16, 48, 16 * 511, 16 * 4097, 16 * 600'001};

TEST_F(CopyGpuTest, EachOutputIsTheSumOfTheInputs) {
  for (const bool overlap : {false, true})
    for (const cli::CopyStreams& streams :
         {cli::CopyStreams{{1}, {1}}, cli::CopyStreams{{1, 1}, {1}}, cli::CopyStreams{{1, 1}, {1, 1}},
          cli::CopyStreams{{1, 1, 1, 1}, {1, 1}}})
      for (const cli::CopyKernel& copy : copies().of(streams, overlap))
        for (const std::int64_t size : kSizes) {
          const cli::CopyLayout layout(streams, size * streams.parts());
          ASSERT_EQ(layout.smallest, size);
          Words before(layout.bytes / 4, kPoison);
          const std::size_t words = static_cast<std::size_t>(size) / 4, inputs = streams.reads.size();
          for (std::size_t i = 0; i < inputs; ++i)
            std::iota(before.begin() + layout.at[i] / 4, before.begin() + layout.at[i] / 4 + words,
                      static_cast<std::uint32_t>(1'000'003 * (i + 1)));
          Words expected = before;
          for (std::size_t o = inputs; o < layout.at.size(); ++o)
            for (std::size_t word = 0; word < words; ++word) {
              std::uint32_t sum = 0;
              for (std::size_t i = 0; i < inputs; ++i) sum += before[layout.at[i] / 4 + word];
              expected[layout.at[o] / 4 + word] = sum;
            }
          EXPECT_TRUE(copied(copy, layout, before) == expected)
              << to_text(copy.shape()) << ", " << size << " bytes, overlap " << overlap;
        }
}

// Of streams of several widths whole chunks are compared: in the last one fewer inputs may be added.
TEST_F(CopyGpuTest, WiderStreamsAreReadAndWrittenWhole) {
  for (const cli::CopyStreams& streams :
       {cli::CopyStreams{{1, 2}, {1, 2}}, cli::CopyStreams{{4}, {1}}, cli::CopyStreams{{1}, {2}}})
    for (const cli::CopyKernel& copy : copies().of(streams)) {
      const std::int64_t size = 16 * 1024 * 300;
      const cli::CopyLayout layout(streams, size * streams.parts());
      Words before(layout.bytes / 4, kPoison);
      std::uint32_t sum = 0;
      for (std::size_t i = 0; i < streams.reads.size(); ++i) {
        const auto value = static_cast<std::uint32_t>(3 + 10 * i);
        sum += value * static_cast<std::uint32_t>(streams.reads[i]);
        std::fill_n(before.begin() + layout.at[i] / 4, size / 4 * streams.reads[i], value);
      }
      Words expected = before;
      for (std::size_t o = 0; o < streams.writes.size(); ++o)
        std::fill_n(expected.begin() + layout.at[streams.reads.size() + o] / 4, size / 4 * streams.writes[o],
                    sum);
      EXPECT_TRUE(copied(copy, layout, before) == expected) << to_text(copy.shape());
    }
}

TEST_F(CopyGpuTest, AMeasurementNamesTheShapeThatItTook) {
  const NormSpec spec = parse_spec("rmsnorm/cols=4096/bf16/add/sum/w").value();
  std::set<std::string> shapes;
  for (const cli::CopyShape& shape : cli::kCopyShapes) shapes.insert(to_text(shape));
  for (const bool overlap : {false, true}) {
    const cli::BenchReport report =
        cli::measure(service(), gpu(), copies(), spec, 512, 3, {.overlap = overlap});
    EXPECT_GT(report.copy.median, 0);
    EXPECT_GT(report.kernel.median, 0);
    EXPECT_EQ(report.use.overlap, overlap);
    EXPECT_TRUE(shapes.contains(to_text(report.copy_shape))) << to_text(report.copy_shape);
  }
}

}  // namespace
}  // namespace normjit::testing
