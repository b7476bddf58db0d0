// SPDX-License-Identifier: Apache-2.0
// The random layers that the planner is measured on, and the file that keeps the times.
#include "cli/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "normjit/plan/footprint.h"

namespace normjit::cli {
namespace {

using ::testing::HasSubstr;

TEST(RandomLayers, AreTheSameForASeedWhateverTheirNumber) {
  const std::vector<Layer> some = random_layers(7, 20), more = random_layers(7, 50);
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_EQ(some[i].spec, more[i].spec);
    EXPECT_EQ(some[i].rows, more[i].rows);
  }
  EXPECT_FALSE(random_layers(8, 1).front().spec == some.front().spec);
}

TEST(RandomLayers, AreValidAndOfAllKinds) {
  int gradients = 0, planes = 0, quantized = 0, sums = 0, gates = 0, modulated = 0, activations = 0;
  std::set<DType> types;
  const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  std::set<RowsRegime> regimes;
  for (const Layer& layer : random_layers(1, 400)) {
    SCOPED_TRACE(to_text(layer.spec));
    EXPECT_TRUE(validate(layer.spec).ok());
    EXPECT_NO_THROW(check_use(layer.spec, layer.rows, layer.use));
    EXPECT_LE(bytes_moved(layer.spec, layer.rows, layer.use.sample), std::int64_t{1} << 30);
    types.insert(layer.spec.input);
    regimes.insert(regime_of(layer.spec, layer.rows, device));
    gradients += layer.spec.backward;
    planes += layer.spec.channels_first;
    quantized += is_narrow(layer.spec.output);
    sums += layer.spec.residual != Residual::none;
    gates += layer.spec.gate != Gate::none;
    modulated += layer.spec.modulation != Modulation::none;
    activations += layer.spec.activation != Activation::none;
  }
  EXPECT_EQ(types.size(), 4u);
  EXPECT_EQ(regimes.size(), kRowsRegimes.size());
  for (const int count : {gradients, planes, quantized, sums, gates, modulated, activations})
    EXPECT_GT(count, 5);
}

MeasuredLayer layer_of(std::uint64_t seed, int index) {
  MeasuredLayer layer;
  layer.gpu = "NVIDIA H100 (sm_90, 132 SMs)";
  layer.seed = seed;
  layer.index = index;
  layer.layer = {.spec = parse_spec("layernorm/cols=1024/bf16/mod").value(),
                 .rows = 512,
                 .use = {.sample = 256, .plane = 0}};
  layer.alignment = Alignment::four;
  layer.copy_microseconds = 2.125;
  layer.plans.push_back({.plan = {.strategy = Strategy::block_row,
                                  .threads = 64,
                                  .threads_per_row = 64,
                                  .vector = 8,
                                  .per_thread = 1,
                                  .blocks_per_sm = 3,
                                  .blocks_per_row = 2,
                                  .exchange = Exchange::cluster},
                         .microseconds = 3.5,
                         .registers = 40,
                         .spill_bytes = 0});
  layer.plans.push_back({.plan = {.strategy = Strategy::persistent_row,
                                  .threads = 512,
                                  .threads_per_row = 256,
                                  .vector = 8,
                                  .per_thread = 2,
                                  .unaligned = true,
                                  .stages = 28},
                         .microseconds = 7.25});
  return layer;
}

TEST(MeasuredLayers, ReadBackAsTheyWereWritten) {
  const std::vector<MeasuredLayer> written = {layer_of(3, 0), layer_of(3, 4), layer_of(5, 0)};
  const std::string text = text_of(written);
  const auto read = parse_layers(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->size(), written.size());
  for (std::size_t i = 0; i < written.size(); ++i) {
    const MeasuredLayer &was = written[i], &is = (*read)[i];
    EXPECT_EQ(is.gpu, was.gpu);
    EXPECT_EQ(is.seed, was.seed);
    EXPECT_EQ(is.index, was.index);
    EXPECT_EQ(is.layer.spec, was.layer.spec);
    EXPECT_EQ(is.layer.rows, was.layer.rows);
    EXPECT_EQ(is.layer.use.sample, was.layer.use.sample);
    EXPECT_EQ(is.alignment, was.alignment);
    EXPECT_EQ(is.copy_microseconds, was.copy_microseconds);
    ASSERT_EQ(is.plans.size(), was.plans.size());
    for (std::size_t k = 0; k < was.plans.size(); ++k) {
      EXPECT_EQ(is.plans[k].plan, was.plans[k].plan) << to_text(is.plans[k].plan);
      EXPECT_EQ(is.plans[k].microseconds, was.plans[k].microseconds);
      EXPECT_EQ(is.plans[k].registers, was.plans[k].registers);
      EXPECT_EQ(is.plans[k].spill_bytes, was.plans[k].spill_bytes);
    }
  }
  EXPECT_EQ(text_of(*read), text);
  EXPECT_THAT(text, HasSubstr("\nblock_row 64 64 8 1 1 3 2 cluster : 3.500 40 0\n"));
  EXPECT_THAT(text, HasSubstr("\npersistent_row 512 256 8 2 1 1 1 none 1 28 : 7.250 -1 -1\n"));
}

TEST(MeasuredLayers, OneWithoutAnEndDoesNotCount) {
  std::string text = text_of({layer_of(3, 0), layer_of(3, 1)});
  text.resize(text.rfind("end"));
  const auto read = parse_layers(text);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->size(), 1u);
}

TEST(MeasuredLayers, ALineThatIsNotUnderstoodIsNamed) {
  const std::string whole = text_of({layer_of(3, 0)});
  for (const char* line : {"nonsense", "end", "seed x", "layer 1 layernorm/cols=8/f32 rows=1"}) {
    const auto read = parse_layers(whole + line + "\n");
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_EQ(read.code(), Code::BadArgument);
    EXPECT_THAT(read.error().message, HasSubstr("line 7"));
    EXPECT_THAT(read.error().message, HasSubstr(line));
  }
}

TEST(MeasuredLayers, APlanHasItsFieldsAndThreeNumbers) {
  const std::string whole = text_of({layer_of(3, 0)}), open = whole.substr(0, whole.rfind("end"));
  for (const char* line :
       {"block_row 64 64 8 1 1 3 : 3.5 40 0", "block_row 64 64 8 1 1 3 2 cluster 1 4 : 3.5 40 0"}) {
    const auto read = parse_layers(open + line + "\nend\n");
    ASSERT_TRUE(read.ok()) << line << ": " << read.error().message;
    EXPECT_EQ(read->front().plans.size(), 3u);
  }
  for (const char* line :
       {"block_row 64 64 8 1 1 3 2 cluster : 3.5 40", "block_row 64 64 8 1 1 : 3.5 40 0", ": 3.5 40 0",
        "block_row 64 64 8 1 1 3 2 cluster 1 4 0 : 3.5 40 0", "block_row 64 64 8 1 1 3 : : 3.5 40 0",
        "block_row 64 64 8 1 1 3 2 cluster 0 0 3.5 40 0"}) {
    const auto read = parse_layers(open + line + "\nend\n");
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_THAT(read.error().message, HasSubstr("line 6"));
    EXPECT_THAT(read.error().message, HasSubstr(line));
  }
}

}  // namespace
}  // namespace normjit::cli
