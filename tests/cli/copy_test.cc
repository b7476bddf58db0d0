// SPDX-License-Identifier: Apache-2.0
// The streams and the layout of the copy that kernels are compared with.
#include "cli/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <set>

#include "cli/measure.h"

namespace normjit::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

CopyStreams streams_of(const char* spec) { return copy_streams(parse_spec(spec).value()); }

TEST(Copy, HasAStreamForEachMatrix) {
  const CopyStreams plain = streams_of("layernorm/cols=4096/bf16/wb/stats");
  EXPECT_THAT(plain.reads, ElementsAre(1));
  EXPECT_THAT(plain.writes, ElementsAre(1));
  const CopyStreams fused = streams_of("rmsnorm/cols=4096/bf16/inb/add/sum/w");
  EXPECT_THAT(fused.reads, ElementsAre(1, 1));
  EXPECT_THAT(fused.writes, ElementsAre(1, 1));
  EXPECT_THAT(streams_of("rmsnorm/cols=4096/bf16/addafter/w1").writes, ElementsAre(1));
  EXPECT_THAT(streams_of("rmsnorm/cols=4096/f32/w:rows").reads, ElementsAre(1, 1));
}

TEST(Copy, StreamsAreAsWideAsTheirElements) {
  const CopyStreams residual = streams_of("rmsnorm/cols=4096/bf16/res=f32/add/sum/w");
  EXPECT_THAT(residual.reads, ElementsAre(1, 2));
  EXPECT_THAT(residual.writes, ElementsAre(1, 2));
  const CopyStreams narrow = streams_of("layernorm/cols=4096/f64/out=f16");
  EXPECT_THAT(narrow.reads, ElementsAre(4));
  EXPECT_THAT(narrow.writes, ElementsAre(1));
}

// The sums over rows of gradients, without dx, are no matrix.
TEST(Copy, MayWriteNothing) {
  const CopyStreams sums = streams_of("rmsnorm_bwd/cols=4096/f32/out=bf16/w/need=dw");
  EXPECT_THAT(sums.reads, ElementsAre(2, 1));
  EXPECT_THAT(sums.writes, ElementsAre());
  const std::string text = copy_source(sums, kCopyShapes[0], false);
  EXPECT_THAT(text, HasSubstr("__stcs")) << "or the loads would be left out";
}

TEST(Copy, MovesTheBytesOfTheCase) {
  for (const char* text : {"layernorm/cols=4096/bf16/wb", "rmsnorm/cols=5120/f16/add/sum/w",
                           "rmsnorm/cols=1023/bf16/res=f32/add/sum/w", "layernorm/cols=77/f64/out=f16"}) {
    const NormSpec spec = parse_spec(text).value();
    const CopyStreams streams = copy_streams(spec);
    const std::int64_t bytes = bytes_moved(spec, 1000);
    const CopyLayout layout(streams, bytes);
    const std::int64_t moved = layout.smallest * streams.parts();
    EXPECT_LE(moved, bytes) << text;
    EXPECT_GT(moved, bytes - 16 * streams.parts()) << text;
    EXPECT_EQ(layout.smallest % 16, 0) << text;
  }
}

TEST(Copy, StreamsLieApart) {
  const CopyLayout layout({.reads = {1, 2}, .writes = {1}}, 4 * 272);
  EXPECT_EQ(layout.smallest, 272);
  EXPECT_THAT(layout.at, ElementsAre(0, 512, 512 + 768));
  EXPECT_EQ(layout.bytes, 512u + 768 + 512);
  const CopyLayout least({.reads = {1}, .writes = {1}}, 1);
  EXPECT_EQ(least.smallest, 16) << "one vector at least";
}

TEST(Copy, EveryShapeHasATextOfItsOwn) {
  std::set<std::string> names, texts;
  for (const CopyShape& shape : kCopyShapes) {
    names.insert(to_text(shape));
    texts.insert(copy_source({.reads = {1}, .writes = {1}}, shape, false) + to_text(shape));
    EXPECT_LE(shape.threads, 1024);
  }
  EXPECT_EQ(names.size(), std::size(kCopyShapes));
  EXPECT_EQ(texts.size(), std::size(kCopyShapes));
}

TEST(Copy, OnlyOverlappingLaunchesWaitForTheOneBefore) {
  const CopyStreams streams{.reads = {1}, .writes = {1}};
  EXPECT_THAT(copy_source(streams, kCopyShapes[0], true), HasSubstr("griddepcontrol.wait"));
  EXPECT_THAT(copy_source(streams, kCopyShapes[0], false), Not(HasSubstr("griddepcontrol")));
}

}  // namespace
}  // namespace normjit::cli
