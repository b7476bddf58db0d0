// SPDX-License-Identifier: Apache-2.0
#include "cli/layers.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>

#include "cli/dice.h"
#include "cli/table.h"
#include "normjit/base/text.h"
#include "normjit/spec/valid.h"

namespace normjit::cli {
namespace {

// ---- Layers ----

enum class Kind : std::uint8_t {
  plain,
  rms,
  add,
  activation,
  modulation,
  gate,
  quantized,
  gradients,
  planes
};

constexpr std::int64_t kMB = 1'000'000;

// The extra matrices that a kind has, on top of an affine norm.
void decorate(NormSpec& spec, Kind kind, Dice& dice) {
  constexpr Activation kActivations[] = {Activation::gelu, Activation::gelu_tanh, Activation::silu,
                                         Activation::relu};
  constexpr Quantization kScales[] = {Quantization::tensor, Quantization::row, Quantization::block_128};
  if (kind == Kind::rms || (kind != Kind::plain && dice.roll(2) == 0)) spec.norm = Norm::rms;
  if (kind == Kind::activation) spec.activation = dice.one_of(kActivations);
  if (kind == Kind::add || (kind == Kind::quantized && dice.roll(2) == 0)) {
    spec.residual = Residual::before;
    spec.sum = dice.roll(4) > 0;
  }
  if (kind == Kind::modulation) {
    spec.modulation = dice.roll(3) > 0 ? Modulation::scale_shift : Modulation::scale;
    spec.affine = Affine::none;
  }
  if (kind == Kind::gate) {
    spec.gate = dice.roll(2) == 0 ? Gate::before : Gate::after;
    spec.gate_function = GateFunction::silu;
  }
  if (kind == Kind::quantized) {
    spec.output = dice.roll(3) > 0 ? DType::e4m3 : DType::s8;
    spec.quantization = dice.one_of(kScales);
    if (spec.quantization == Quantization::block_128) spec.columns = (spec.columns + 127) / 128 * 128;
  }
  if (kind == Kind::gradients) {
    spec.backward = true;
    spec.dsum = dice.roll(3) == 0;
  }
  spec.channels_first = kind == Kind::planes;
}

NormSpec random_spec(Kind kind, Dice& dice) {
  constexpr DType kTypes[] = {DType::bf16, DType::bf16, DType::bf16, DType::bf16, DType::f16, DType::f16,
                              DType::f32,  DType::f32,  DType::f32,  DType::f32,  DType::f64};
  constexpr Affine kAffines[] = {Affine::none,        Affine::weight,      Affine::weight_bias,
                                 Affine::weight_bias, Affine::weight_bias, Affine::weight_bias};
  // Most widths are those of models; some are longer than any of them.
  const bool is_long = kind != Kind::planes && dice.roll(12) == 0;
  NormSpec spec{.columns = is_long                ? dice.by_octave(65536, 6)
                           : kind == Kind::planes ? dice.by_octave(16, 7)
                                                  : dice.by_octave(16, 12)};
  const std::int64_t divisor = dice.roll(4);  // a quarter of any width, the others of whole vectors
  if (divisor > 0) spec.columns = (spec.columns + 7) / 8 * 8;
  if (divisor == 3) spec.columns = (spec.columns + 63) / 64 * 64;
  spec.input = dice.one_of(kTypes);
  if (kind == Kind::quantized && spec.input == DType::f64) spec.input = DType::bf16;
  spec.output = spec.residual_type = spec.modulation_type = spec.input;
  const bool mixed = size_of(spec.input) == 2 && dice.roll(4) == 0;
  spec.weight = spec.gradient_type = mixed ? DType::f32 : spec.input;
  spec.affine = dice.one_of(kAffines);
  decorate(spec, kind, dice);
  return canonical(spec);
}

Layer random_layer(Dice& dice) {
  constexpr Kind kKinds[] = {Kind::plain,     Kind::plain,     Kind::plain,     Kind::plain,
                             Kind::plain,     Kind::plain,     Kind::rms,       Kind::rms,
                             Kind::add,       Kind::add,       Kind::add,       Kind::activation,
                             Kind::gate,      Kind::quantized, Kind::quantized, Kind::modulation,
                             Kind::gradients, Kind::gradients, Kind::gradients, Kind::planes};
  constexpr std::int64_t kSamples[] = {1, 64, 256, 1024}, kEdges[] = {7, 14, 16, 28, 56, 64, 112, 128};
  const Kind kind = dice.one_of(kKinds);
  Layer layer{.spec = random_spec(kind, dice), .use = {}};
  const NormSpec& spec = layer.spec;
  // An eighth has a row or a few, an eighth as many as multiprocessors, the others 1 to 256 MB.
  const std::int64_t form = dice.roll(8);
  layer.rows = form == 0   ? 1 + dice.roll(8)
               : form == 1 ? 1 + dice.roll(131)
                           : rows_that_move(spec, dice.by_octave(kMB, 8));
  layer.rows = std::min(layer.rows, rows_that_move(spec, 512 * kMB));
  if (kind == Kind::modulation) {
    layer.use.sample = std::min(dice.one_of(kSamples), layer.rows);
    layer.rows -= layer.rows % layer.use.sample;
  }
  if (kind == Kind::planes) {
    const std::int64_t edge = dice.one_of(kEdges);
    layer.use.plane = edge * edge;
    layer.rows = std::max<std::int64_t>(1, layer.rows / layer.use.plane) * layer.use.plane;
  }
  return layer;
}

// ---- The file ----

// The fields of a plan's text, in the order of their words, of which so many are always there.
constexpr std::string_view kFields[] = {"threads",    "threads_per_row", "vector",         "per_thread",
                                        "group_rows", "blocks_per_sm",   "blocks_per_row", "exchange",
                                        "unaligned",  "stages"};
constexpr std::size_t kAlways = 6;

std::array<std::string, std::size(kFields)> words_of(const Plan& plan) {
  return {shortest(plan.threads),        shortest(plan.threads_per_row),   shortest(plan.vector),
          shortest(plan.per_thread),     shortest(plan.group_rows),        shortest(plan.blocks_per_sm),
          shortest(plan.blocks_per_row), std::string(name(plan.exchange)), plan.unaligned ? "1" : "0",
          shortest(plan.stages)};
}

std::string line_of(const MeasuredPlan& measured) {
  const auto words = words_of(measured.plan), usual = words_of({});
  std::size_t count = words.size();
  while (count > kAlways && words[count - 1] == usual[count - 1]) --count;
  std::string text(name(measured.plan.strategy));
  for (std::size_t i = 0; i < count; ++i) text += " " + words[i];
  return text + concat({" : ", fixed(measured.microseconds, 3), " ", shortest(measured.registers), " ",
                        shortest(measured.spill_bytes), "\n"});
}

std::optional<MeasuredPlan> parse_plan_line(const std::vector<std::string_view>& words) {
  const auto colon = static_cast<std::size_t>(std::find(words.begin(), words.end(), ":") - words.begin());
  if (words.size() != colon + 4 || colon < 1 + kAlways || colon > 1 + std::size(kFields)) return {};
  std::string text(words[0]);
  for (std::size_t i = 0; i + 1 < colon; ++i) text += concat({" ", kFields[i], "=", words[1 + i]});
  const auto plan = parse_plan(text);
  const auto microseconds = number<double>(words[colon + 1]);
  const auto registers = number<int>(words[colon + 2]), spills = number<int>(words[colon + 3]);
  if (!plan.ok() || !microseconds || !registers || !spills) return {};
  return MeasuredPlan{*plan, *microseconds, *registers, *spills};
}

// The number behind "NAME=".
template <class T>
std::optional<T> value_of(std::string_view word, std::string_view name) {
  if (word.substr(0, name.size()) != name || word.substr(name.size(), 1) != "=") return {};
  return number<T>(word.substr(name.size() + 1));
}

std::optional<MeasuredLayer> parse_layer_line(const std::vector<std::string_view>& words) {
  constexpr std::size_t kWords = 8;
  if (words.size() != kWords) return {};
  const auto index = number<int>(words[1]);
  const auto spec = parse_spec(words[2]);
  const auto rows = value_of<std::int64_t>(words[3], "rows"),
             sample = value_of<std::int64_t>(words[4], "sample"),
             plane = value_of<std::int64_t>(words[5], "plane");
  const auto alignment = value_of<int>(words[6], "align");
  const auto copy = value_of<double>(words[7], "copy");
  if (!index || !spec.ok() || !rows || !sample || !plane || !alignment || !copy) return {};
  MeasuredLayer layer;
  layer.index = *index;
  layer.layer = {.spec = *spec, .rows = *rows, .use = {.sample = *sample, .plane = *plane}};
  layer.alignment = static_cast<Alignment>(*alignment);
  layer.copy_microseconds = *copy;
  return layer;
}

}  // namespace

std::vector<Layer> random_layers(std::uint64_t seed, int count) {
  Dice dice(seed);
  std::vector<Layer> layers;
  while (static_cast<int>(layers.size()) < count) {
    Layer layer = random_layer(dice);
    if (validate(layer.spec)) layers.push_back(std::move(layer));
  }
  return layers;
}

std::string lines_of(const MeasuredLayer& layer) {
  std::string text = concat(
      {"layer ", shortest(layer.index), " ", to_text(layer.layer.spec), " rows=", shortest(layer.layer.rows),
       " sample=", shortest(layer.layer.use.sample), " plane=", shortest(layer.layer.use.plane), " align=",
       shortest(static_cast<int>(layer.alignment)), " copy=", fixed(layer.copy_microseconds, 3), "\n"});
  for (const MeasuredPlan& plan : layer.plans) text += line_of(plan);
  return text + "end\n";
}

std::string text_of(const std::vector<MeasuredLayer>& layers) {
  std::string text, gpu;
  std::uint64_t seed = 0;
  for (const MeasuredLayer& layer : layers) {
    if (layer.gpu != gpu || text.empty()) text += "gpu " + (gpu = layer.gpu) + "\n";
    if (layer.seed != seed || text.find('\n') == text.size() - 1)
      text += "seed " + shortest(seed = layer.seed) + "\n";
    text += lines_of(layer);
  }
  return text;
}

Result<std::vector<MeasuredLayer>> parse_layers(const std::string& text) {
  std::vector<MeasuredLayer> layers;
  std::optional<MeasuredLayer> open;
  std::string gpu;
  std::uint64_t seed = 0;
  int line_number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++line_number;
    if (line.empty() || line.front() == '#') continue;
    const std::vector<std::string_view> words = split(line, ' ');
    bool understood = true;
    if (words[0] == "gpu") {
      gpu = line.substr(std::min<std::size_t>(line.size(), 4));
    } else if (words[0] == "seed" && words.size() == 2 && number<std::uint64_t>(words[1])) {
      seed = *number<std::uint64_t>(words[1]);
    } else if (words[0] == "layer") {
      open = parse_layer_line(words);
      understood = open.has_value();
      if (open) open->gpu = gpu, open->seed = seed;
    } else if (words[0] == "end" && open) {
      layers.push_back(*std::move(open));
      open.reset();
    } else if (std::optional<MeasuredPlan> plan = parse_plan_line(words); plan && open) {
      open->plans.push_back(*plan);
    } else {
      understood = false;
    }
    if (!understood)
      return Error{Code::BadArgument, concat({"line ", shortest(line_number),
                                              " of the layers is not understood: '", line, "'"})};
  }
  return layers;
}

}  // namespace normjit::cli
