// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "bench/suite.h"
#include "cli/dice.h"
#include "cli/measure.h"
#include "normjit/base/text.h"

namespace normjit::bench {

using namespace cli;

namespace {

constexpr std::int64_t kMB = 1'000'000;

struct Line {
  const char* spec;
  std::int64_t rows;
};

// Rows are chosen to move 64-540 MB where nothing else is said, and are often odd numbers.
constexpr Line kLines[] = {
    // The reference workloads.
    {"layernorm/cols=4194304/f32/wb", 16},
    {"layernorm/cols=4194304/bf16/wb", 16},
    {"layernorm/cols=64/f32/wb/gelu", 4194304},
    // Ordinary widths.
    {"layernorm/cols=16/f32/wb", 2097152},
    {"layernorm/cols=64/f32/wb", 4194304},
    {"layernorm/cols=256/f32/wb", 131072},
    {"layernorm/cols=1024/f32/wb", 32768},
    {"layernorm/cols=4096/f32/wb", 8192},
    {"layernorm/cols=12288/f32/wb", 3001},
    {"layernorm/cols=16384/f32/wb", 1999},
    {"layernorm/cols=32/bf16/wb", 2097153},
    {"layernorm/cols=128/bf16/wb", 1000003},
    {"layernorm/cols=768/bf16/wb", 100003},
    {"layernorm/cols=1024/bf16/wb", 65536},
    {"layernorm/cols=4096/bf16/wb", 16384},
    {"layernorm/cols=8192/bf16/wb", 8192},
    {"layernorm/cols=16384/bf16/wb", 4097},
    {"layernorm/cols=64/f16/wb", 1048577},
    {"layernorm/cols=1024/f16/wb", 65536},
    {"layernorm/cols=5120/f16/wb", 9001},
    {"layernorm/cols=16384/f16/wb", 3000},
    {"layernorm/cols=64/f64/wb", 262144},
    {"layernorm/cols=1024/f64/wb", 16384},
    {"layernorm/cols=4096/f64/wb", 4099},
    {"layernorm/cols=16384/f64/wb", 1024},
    {"layernorm/cols=4096/f32", 8192},
    {"layernorm/cols=2048/bf16/w", 32768},
    {"layernorm/cols=4096/bf16/w=f32/wb", 16384},
    {"layernorm/cols=1024/f16/out=f32/w=f32/wb", 32768},
    {"layernorm/cols=2048/f32/wb/stats", 16385},
    // Ordinary widths, 8-64 MB.
    {"layernorm/cols=768/f16/wb", 8191},
    {"layernorm/cols=1024/bf16/wb", 8192},
    {"layernorm/cols=4096/f32/wb", 1024},
    {"layernorm/cols=8192/bf16/wb", 513},
    // Long rows: more than 256 MB, then 64-256 MB.
    {"layernorm/cols=32768/f32/wb", 2048},
    {"layernorm/cols=65536/f32/wb", 2048},
    {"layernorm/cols=262144/f32/wb", 512},
    {"layernorm/cols=1048576/f32/wb", 133},
    {"layernorm/cols=32768/bf16/wb", 4096},
    {"layernorm/cols=131072/bf16/wb", 1025},
    {"layernorm/cols=1048576/bf16/wb", 200},
    {"layernorm/cols=20480/f16/wb", 8192},
    {"layernorm/cols=32768/f64/wb", 1024},
    {"layernorm/cols=131072/f64/wb", 257},
    {"layernorm/cols=24576/f32/wb", 1023},
    {"layernorm/cols=65536/bf16/wb", 512},
    {"layernorm/cols=262144/f16/wb", 150},
    // Odd widths.
    {"layernorm/cols=17/f32/wb", 2000003},
    {"layernorm/cols=1023/f32/wb", 32768},
    {"layernorm/cols=100003/f32/wb", 500},
    {"layernorm/cols=333/bf16/wb", 200001},
    {"layernorm/cols=50257/bf16/wb", 1024},
    {"layernorm/cols=1000001/bf16/wb", 150},
    {"layernorm/cols=1023/f16/wb", 65536},
    {"layernorm/cols=4097/f16/wb", 16384},
    {"layernorm/cols=1001/f64/wb", 16385},
    // Few rows.
    {"layernorm/cols=65536/f32/wb", 131},
    {"layernorm/cols=1048576/f32/wb", 32},
    {"layernorm/cols=5800000/f32/wb", 4},
    {"layernorm/cols=16777216/f32/wb", 2},
    {"layernorm/cols=67108864/f32/wb", 1},
    {"layernorm/cols=262144/bf16/wb", 128},
    {"layernorm/cols=11000000/bf16/wb", 5},
    {"layernorm/cols=16777216/bf16/wb", 4},
    {"layernorm/cols=1000003/f16/wb", 33},
    {"layernorm/cols=1048576/f64/wb", 16},
    // Decode: one token to a small batch.
    {"layernorm/cols=4096/f16/wb", 1},
    {"layernorm/cols=16384/f16/wb", 1},
    {"layernorm/cols=8192/bf16/wb", 8},
    {"layernorm/cols=4096/bf16/wb", 32},
    {"layernorm/cols=5120/f16/wb", 128},
    {"layernorm/cols=16384/bf16/wb", 256},
    // Activation and scale; each has its plain case above.
    {"layernorm/cols=64/f32/wb/silu", 4194304},
    {"layernorm/cols=4096/f32/wb/gelu", 8192},
    {"layernorm/cols=65536/f32/wb/relu", 2048},
    {"layernorm/cols=128/bf16/wb/gelu", 1000003},
    {"layernorm/cols=4096/bf16/wb/gelu_tanh/scale=0.5", 16384},
    {"layernorm/cols=1024/f16/wb/gelu/scale=2", 65536},
    {"layernorm/cols=1024/f64/wb/gelu", 16384},
};

// The fused norms that are measured: those in front of each half of a transformer's layer, RMS and LayerNorm;
// RMS alone; and Gemma's, whose residual is added behind the norm.
struct FusedForm {
  const char* norm;
  const char* fields;
};
constexpr FusedForm kFusedForms[] = {
    {"rmsnorm", "add/sum/w"}, {"layernorm", "add/sum/wb"}, {"rmsnorm", "w"}, {"rmsnorm", "addafter/w1"}};
constexpr std::int64_t kFusedWidths[] = {768,  1024, 1280, 1536, 2048, 2560, 3072,
                                         4096, 5120, 6144, 7168, 8192, 16384};
constexpr int kDrawnWidths = 6;  // multiples of 8

// Results of 8 and 4 bits.
constexpr FusedForm kQuantizedForms[] = {{"rmsnorm", "out=e4m3/w/q=tensor"},
                                         {"rmsnorm", "out=e4m3/w/q=row"},
                                         {"rmsnorm", "out=e4m3/w/q=128:cols"},
                                         {"rmsnorm", "out=e4m3/w/q=64"},
                                         {"rmsnorm", "out=e4m3/w/q=32:e8m0:sw"},
                                         {"rmsnorm", "out=e2m1/w/q=16:e4m3:sw"},
                                         {"rmsnorm", "out=e2m1/w/q=32:e8m0"},
                                         {"rmsnorm", "out=e5m2/w/q=tensor"},
                                         {"rmsnorm", "out=s8/w/q=row"},
                                         {"rmsnorm", "out=e4m3/add/sum/w/q=tensor"},
                                         {"rmsnorm", "out=e4m3/add/sum/w/q=row"},
                                         {"rmsnorm", "out=e4m3/add/sum/w/q=128:cols"},
                                         {"rmsnorm", "out=e2m1/add/sum/w/q=16:e4m3:sw/also=bf16"},
                                         {"rmsnorm", "out=e4m3/w/q=tensor/also=bf16/amax"},
                                         {"layernorm", "out=s8/wb/q=row"}};
constexpr std::int64_t kQuantizedWidths[] = {768, 1536, 4096, 5120, 7168, 8192, 16384};
constexpr std::int64_t kQuantizedElements = 32 << 20;  // of a matrix; 101 MB move of x and a result
constexpr std::int64_t kFusedElements = 20 << 20;      // of a matrix; 84 MB move of RMS alone in 16 bits

// Channels first: the stems of ConvNeXt and SAM's neck at large batches, and small launches.
struct ImageLine {
  std::int64_t samples, channels, height;  // which is the width, too
};
constexpr ImageLine kImages[] = {{256, 96, 56}, {64, 256, 128}, {32, 96, 56}, {32, 768, 7}, {2, 256, 64}};

NormSpec random_spec(Dice& dice) {
  constexpr DType kTypes[] = {DType::bf16, DType::bf16, DType::bf16, DType::f32, DType::f32,
                              DType::f32,  DType::f16,  DType::f16,  DType::f64};
  constexpr Affine kAffines[] = {Affine::none,        Affine::weight,      Affine::weight_bias,
                                 Affine::weight_bias, Affine::weight_bias, Affine::weight_bias};
  NormSpec spec{.columns = dice.by_octave(16, 16)};
  spec.input = dice.one_of(kTypes);
  spec.output = spec.input;
  spec.weight = size_of(spec.input) == 2 && dice.roll(4) == 0 ? DType::f32 : spec.input;
  spec.affine = dice.one_of(kAffines);
  const std::int64_t vector = 16 / size_of(spec.input);
  spec.columns = dice.roll(2) == 0 ? spec.columns / vector * vector : spec.columns | 1;
  return canonical(spec);
}

}  // namespace

std::vector<SuiteCase> fixed_cases() {
  std::vector<SuiteCase> cases;
  for (const Line& line : kLines) cases.push_back({parse_spec(line.spec).value(), line.rows});
  return cases;
}

std::vector<SuiteCase> channels_first_cases() {
  std::vector<SuiteCase> cases;
  for (const auto& [samples, channels, height] : kImages)
    for (const char* dtype : {"f32", "f16"}) {
      const std::string text =
          concat({"layernorm/cols=", std::to_string(channels), "/", dtype, "/eps=1e-6/wb/cf"});
      cases.push_back({parse_spec(text).value(), samples * height * height});
      cases.back().use.plane = height * height;
    }
  return cases;
}

std::vector<SuiteCase> random_cases(std::uint64_t seed, int count) {
  Dice dice(seed);
  std::vector<SuiteCase> cases;
  for (int i = 0; i < count; ++i) {
    const NormSpec spec = random_spec(dice);
    cases.push_back({spec, rows_that_move(spec, dice.by_octave(8 * kMB, 6)), /*drawn=*/true});
  }
  return cases;
}

std::vector<SuiteCase> fused_cases(std::uint64_t seed) {
  std::vector<SuiteCase> cases;
  const auto add = [&](const FusedForm& form, std::int64_t columns, const char* dtype, std::int64_t rows) {
    const std::string text =
        concat({form.norm, "/cols=", std::to_string(columns), "/", dtype, "/", form.fields});
    cases.push_back({parse_spec(text).value(), rows});
  };
  const auto rows_of = [](std::int64_t columns) { return (kFusedElements + columns - 1) / columns; };

  Dice dice(seed);
  std::vector<std::int64_t> widths(std::begin(kFusedWidths), std::end(kFusedWidths));
  while (std::ssize(widths) < std::ssize(kFusedWidths) + kDrawnWidths) {
    const std::int64_t columns = 8 * dice.by_octave(kFusedWidths[0] / 8, 4);  // 768 to 12,280
    if (std::ranges::count(widths, columns) == 0) widths.push_back(columns);
  }
  for (const FusedForm& form : kFusedForms)
    for (const char* dtype : {"bf16", "f16", "f32"}) {
      for (std::size_t i = 0; i < widths.size(); ++i) {
        add(form, widths[i], dtype, rows_of(widths[i]));
        cases.back().drawn = i >= std::size(kFusedWidths);
      }
    }
  for (const FusedForm& form : kFusedForms)
    for (const char* dtype : {"bf16", "f32"})
      for (const std::int64_t columns : {333, 1023, 4097}) add(form, columns, dtype, rows_of(columns));
  for (const FusedForm& form : kFusedForms)
    for (const std::int64_t rows : {1, 8, 64, 256})
      for (const bool overlap : {false, true}) {
        add(form, 4096, "bf16", rows);
        cases.back().use.overlap = overlap;
      }
  for (const char* fields : {"add/wb", "add/sum/wb"}) {
    add({"layernorm", fields}, 65536, "f32", 2048);
    add({"layernorm", fields}, 4194304, "f32", 16);
  }
  // Adaptive norms of 32 samples of 1024 tokens, alone, behind gate and residual, and with a scale and shift
  // of each token; gated norms of heads and of Mamba-2's rows; and a few rows of each.
  const auto modulated = [&](const FusedForm& form, std::int64_t columns, std::int64_t rows,
                             std::int64_t sample) {
    add(form, columns, "bf16", rows);
    cases.back().use.sample = sample;
  };
  for (const std::int64_t columns : {1152, 3072})
    for (const char* fields : {"mod", "gate/add/sum/mod"})
      for (const std::int64_t sample : {1024, 1}) modulated({"layernorm", fields}, columns, 32768, sample);
  modulated({"rmsnorm", "gateafter:silu/w"}, 128, 65536, 1);
  modulated({"rmsnorm", "gate:silu/w"}, 4096, 16384, 1);
  for (const std::int64_t rows : {8, 64, 256}) {
    modulated({"layernorm", "mod"}, 3072, rows, rows);
    modulated({"rmsnorm", "gate:silu/w"}, 4096, rows, 1);
  }
  return cases;
}

std::vector<SuiteCase> quantized_cases(std::uint64_t seed) {
  std::vector<SuiteCase> cases;
  const auto add = [&](const FusedForm& form, std::int64_t columns, std::int64_t rows, bool drawn) {
    const std::string text = concat({form.norm, "/cols=", std::to_string(columns), "/bf16/", form.fields});
    cases.push_back({parse_spec(text).value(), rows, drawn});
  };
  Dice dice(seed);
  const std::int64_t drawn = 128 * dice.by_octave(8, 4);  // 1024 to 16,256, of whole blocks
  for (const FusedForm& form : kQuantizedForms) {
    for (const std::int64_t columns : kQuantizedWidths)
      add(form, columns, (kQuantizedElements + columns - 1) / columns, false);
    add(form, drawn, (kQuantizedElements + drawn - 1) / drawn, true);
    for (const std::int64_t rows : {1, 8, 64, 256}) add(form, 4096, rows, false);
  }
  return cases;
}

std::vector<SuiteCase> only(Regime regime, const std::vector<SuiteCase>& cases) {
  const auto wanted = [&](const SuiteCase& one) {
    return one.regime() == regime || std::any_of(cases.begin(), cases.end(), [&](const SuiteCase& other) {
             return other.regime() == regime && other.target().kind == Target::Kind::of_plain &&
                    other.rows == one.rows && plain(other.spec) == one.spec;
           });
  };
  std::vector<SuiteCase> chosen;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(chosen), wanted);
  return chosen;
}

}  // namespace normjit::bench
