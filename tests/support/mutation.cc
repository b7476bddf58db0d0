// SPDX-License-Identifier: Apache-2.0
#include "tests/support/mutation.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "normjit/base/text.h"
#include "normjit/codegen/templates.h"

namespace normjit::testing {
namespace {

// A mistake that a human might make: in this file, this text becomes that text.
struct Fault {
  std::string_view name, file, text, becomes;
};

constexpr std::string_view kNumber = "number.cuh", kReduce = "reduce.cuh", kLayout = "layout.cuh",
                           kPlanMath = "plan_math.cuh", kSource = "op/source.cuh",
                           kFunctions = "op/functions.cuh", kStatistics = "op/statistics.cuh",
                           kSink = "op/sink.cuh", kQuantizer = "op/quantizer.cuh",
                           kFragment = "schedule/fragment.cuh", kUnaligned = "schedule/unaligned.cuh",
                           kWorkspace = "schedule/workspace.cuh", kExchange = "schedule/exchange.cuh",
                           kRing = "schedule/ring.cuh", kScalar = "schedule/scalar.cuh",
                           kWarpRows = "schedule/warp_rows.cu", kStagedRows = "schedule/staged_rows.cu",
                           kBlockRow = "schedule/block_row.cu", kPersistentRow = "schedule/persistent_row.cu",
                           kSplitRow = "schedule/split_row.cu", kGeneric = "schedule/generic.cu",
                           kChannelsFirst = "schedule/channels_first.cu", kGradients = "op/gradients.cuh",
                           kDerivatives = "op/derivatives.cuh", kGradientRows = "schedule/gradient_rows.cu",
                           kGradientRing = "schedule/gradient_ring.cu",
                           kGradientColumns = "schedule/gradient_columns.cu";

constexpr Fault kFaults[] = {
    {"f64 is rounded to f32 and again to f16", kNumber, "hw::f32_to_f16(hw::round_to_odd(value))",
     "hw::f32_to_f16(static_cast<float>(value))"},
    {"f64 is rounded to f32 and again to bf16", kNumber, "hw::f32_to_bf16(hw::round_to_odd(value))",
     "hw::f32_to_bf16(static_cast<float>(value))"},
    {"the smallest numbers of 8 bits are rounded like others", kNumber, "size < (kBias + 1) << 23", "false"},
    {"numbers beyond the largest one of 8 bits are others", kNumber, "smaller(code, kLargest)", "code"},
    {"numbers of 8 bits have no sign", kNumber, " | bits >> 24 & 0x80", ""},
    {"ties of 8 bits go up", kNumber, "((1u << (kLost - 1)) - 1) + (size >> kLost & 1)",
     "(1u << (kLost - 1))"},
    {"NaN becomes a number of 8 bits", kNumber, "if (size > 0x7f800000u) return 0x7f;", ""},
    {"numbers of 8 bits change places", kNumber, "to_small_float<T>(first) | to_small_float<T>(second) << 8",
     "to_small_float<T>(second) | to_small_float<T>(first) << 8"},
    {"numbers of 4 bits are 0.5 apart", kNumber, "smaller(smaller(halves, ones), twos)", "halves"},
    {"numbers of 4 bits from 2 on are 1 apart", kNumber, "smaller(smaller(halves, ones), twos)",
     "smaller(halves, ones)"},
    {"numbers beyond the largest one of 4 bits are others", kNumber,
     "smaller(smaller(smaller(halves, ones), twos), bits_of(kZero + 7))",
     "smaller(smaller(halves, ones), twos)"},
    {"numbers of 4 bits have no sign", kNumber, "hw::with_sign_of(4, value)", "4"},
    {"numbers of 4 bits change places", kNumber, "narrow_pair<T>(four[0], value)",
     "narrow_pair<T>(value, four[0])"},
    {"pairs of 8 bits change places", kNumber,
     "narrow_pair<T>(four[0], four[1]), narrow_pair<T>(four[2], four[3])",
     "narrow_pair<T>(four[2], four[3]), narrow_pair<T>(four[0], four[1])"},
    {"a scale of e4m3 that is NaN becomes a number", kNumber, "bits == 0x7f ? 0x7fffffffu : static_cast",
     "static_cast"},

    {"the sum is over half of the lanes", kReduce, "int mask = kWidth / 2; mask > 0; mask /= 2) value",
     "int mask = kWidth / 4; mask > 0; mask /= 2) value"},
    {"only the first of two sums is summed", kReduce, "add_from(x.b, lane_mask)}", "x.b}"},
    {"one warp alone passes on its sum", kReduce, "if (threadIdx.x % kWarp == 0) partial",
     "if (threadIdx.x == 0) partial"},
    {"the warps add up their own sum", kReduce, "partial[threadIdx.x % kWarps]",
     "partial[threadIdx.x / kWarp]"},
    {"the largest is that of half of the lanes", kReduce, "int mask = kWidth / 2; mask > 0; mask /= 2) own",
     "int mask = kWidth / 4; mask > 0; mask /= 2) own"},
    {"the first one is the largest", kReduce, "return a.with(b.magnitude);", "return a;"},
    {"a negative number is never the largest", kReduce, "{hw::larger_magnitude(magnitude, number)}",
     "{hw::max_nan(magnitude, number)}"},
    {"no barrier before the warps' sums are read", kReduce, "hw::block_barrier();", ""},

    {"rows are taken for whole when they are not", kLayout, "kColumns % kSpan == 0", "kColumns % kSpan != 0"},
    {"vectors of a thread lie a vector too close", kLayout, "k * (kThreadsPerRow * kElements)",
     "k * ((kThreadsPerRow - 1) * kElements)"},
    {"vectors of 4 bits lie as far apart as those of 8", kLayout, "kVector / kColumnsIn<T>", "kVector"},
    {"one vector too much at the end of the row", kLayout, "column(k, lane) < cut.body",
     "column(k, lane) < cut.body + kVector"},
    {"one vector is missing at the end of the row", kLayout, "column(k, lane) < cut.body",
     "column(k, lane) + kVector < cut.body"},
    {"elements behind the vectors are those in front", kLayout, "e < head ? e : e + body", "e"},
    {"vectors begin where the row does", kLayout, "(kWidth - past) % kWidth", "0"},

    {"rows have one place", kPlanMath, "stages / (fewest < 1 ? 1 : fewest) + 3", "1"},
    {"slots of persistent rows have one place", kPlanMath, "return 2 * row_depth;", "return 1;"},
    {"chunks in the ring lie too close for rows that begin anywhere", kPlanMath,
     "span + (unaligned ? vector : 0)", "span"},
    {"a quotient is rounded down", kPlanMath, "a / b + (a % b != 0)", "a / b"},
    {"a quotient is rounded up where it is whole", kPlanMath, "a / b + (a % b != 0)", "a / b + 1"},
    {"the ends of a row are a chunk of their own", kPlanMath, "span >= covered ? 1 : ", ""},
    {"rows of a tile lie too close for their place in memory", kPlanMath,
     "ceil_div(columns + wide - 1, wide)", "ceil_div(columns, wide)"},
    {"tiles have room for rows without gaps", kPlanMath, "rows * tile_pitch(columns, 16 / largest) * largest",
     "rows * columns * largest"},
    {"the ring is too short for what is measured first", kPlanMath,
     "group_rows + (split_lag(group_rows, chunks, blocks) + blocks) / chunks + 2", "1"},
    {"the ring is as long as its rows are many", kPlanMath, "kMaxRingRows = 1024", "kMaxRingRows = 4096"},

    {"the residual is not added", kSource, "sum += residual;", ""},
    {"the residual is added twice", kSource, "sum += residual;", "sum += 2 * residual;"},
    {"in_bias is not added", kSource, "sum += in_bias;", ""},
    {"the rounded sum is normalized", kSource, "return narrow<Held>(sum);",
     "return narrow<Held>(widen(narrow<Residual>(sum)));"},
    {"rows of the residual lie as far apart as those of x", kSource, "begin_of(on.residual_rows, row)",
     "begin_of(on.x_rows, row)"},
    {"rows of the sum lie as far apart as those of the residual", kSource, "begin_of(on.sum_rows, row)",
     "begin_of(on.residual_rows, row)"},
    {"all slices have the residual of the first", kSource, "begin_of(on.residual_rows, row) + begin",
     "begin_of(on.residual_rows, row)"},
    {"all slices write the sum at the row's begin", kSource, "begin_of(on.sum_rows, row) + begin",
     "begin_of(on.sum_rows, row)"},
    {"all slices read x at the row's begin", kSource, "begin_of(on.x_rows, row) + begin",
     "begin_of(on.x_rows, row)"},

    {"the gate does not multiply x", kSource, "sum *= gate_factor(gate, gate_table);", ""},
    {"the gate multiplies the residual, too", kSource,
     "if constexpr (kGatesX) sum *= gate_factor(gate, gate_table);\n"
     "  if constexpr (kAddsResidual) sum += residual;",
     "if constexpr (kAddsResidual) sum += residual;\n"
     "  if constexpr (kGatesX) sum *= gate_factor(gate, gate_table);"},
    {"in_bias is added behind the gate", kSource,
     "if constexpr (kHasInBias) sum += in_bias;\n"
     "  if constexpr (kGatesX) sum *= gate_factor(gate, gate_table);",
     "if constexpr (kGatesX) sum *= gate_factor(gate, gate_table);\n"
     "  if constexpr (kHasInBias) sum += in_bias;"},
    {"rows of the gate lie as far apart as those of x", kSource, "begin_of(on.gate_rows, row)",
     "begin_of(on.x_rows, row)"},
    {"all slices have the gate of the first", kSource, "begin_of(on.gate_rows, row) + begin",
     "begin_of(on.gate_rows, row)"},
    {"all slices have the table of the first", kSource, "on.gate_table + begin", "on.gate_table"},
    {"the table is not added to the gate", kFunctions, "kHasGateTable ? gate + table : gate", "gate"},
    {"a gate does not pass tanh", kFunctions, "return tanh_of(v);", "return v;"},
    {"a gate passes silu for sigmoid", kFunctions, "logistic(Acc(1), v *", "logistic(v, v *"},

    {"the variance is that of the sum of squares", kStatistics,
     "centred_sums(elements, mean));\n"
     "    }\n"
     "    const Acc mean_lo = divided(centred.a, own);\n"
     "    return {mean, mean_lo, hw::max_nan(centred.b - centred.a * mean_lo, Acc(0))};",
     "centred_sums(elements, Acc(0)));\n"
     "    }\n"
     "    return {mean, Acc(0), hw::max_nan(centred.b - centred.a * mean, Acc(0))};"},
    {"NaN becomes variance zero", kStatistics, "hw::max_nan(centred.b - centred.a * mean_lo, Acc(0))",
     "(centred.b - centred.a * mean_lo > 0 ? centred.b - centred.a * mean_lo : Acc(0))"},
    {"merged without the distance of the means", kStatistics, "mine[j].m2 + columns[j] * distance * distance",
     "mine[j].m2"},
    {"merged without the weight of the parts", kStatistics, "columns[j] * distance * distance",
     "distance * distance"},
    {"merged without the rest of the means", kStatistics, "(mine[j].mean - base) + mine[j].mean_lo",
     "mine[j].mean - base"},
    {"parts that are joined lie at one place", kStatistics,
     "(b.mean - a.mean) + (b.mean_lo - a.mean_lo), share", "b.mean - a.mean, share"},
    {"paired parts lie at one place", kStatistics, "(b.mean - a.mean) + (b.mean_lo - a.mean_lo);",
     "b.mean - a.mean;"},
    {"paired parts are as heavy as one", kStatistics, "own * mask", "own"},
    {"lanes take only their first part", kStatistics, "(kParts + kWarp - 1) / kWarp", "1"},
    {"the mean between two parts lacks what its rounding lost", kStatistics, "+ lacks) / 2", ") / 2"},
    {"the mean between two parts is the first one's", kStatistics,
     "const Acc mean = a.mean / 2 + b.mean / 2,", "const Acc mean = a.mean,"},
    {"each lane merges around a mean of its own", kStatistics, "const Acc base =\n        median(first, ",
     "const Acc base = mean, none =\n        median(first, "},
    {"epsilon is added outside the root", kStatistics, "hw::rsqrt(m2 * share + epsilon)",
     "hw::rsqrt(m2 * share) + epsilon"},
    {"epsilon is added before the division", kStatistics, "hw::rsqrt(m2 * share + epsilon)",
     "hw::rsqrt((m2 + epsilon) * share)"},
    {"the variance is the unbiased one", kStatistics, "Acc(1) / kColumns", "Acc(1) / (kColumns - 1)"},
    {"the rest of the mean is added", kStatistics, "+ -s.mean_lo * s.rstd", "+ s.mean_lo * s.rstd"},
    {"the rest belongs to another mean", kStatistics, "(row.mean - mean) + row.mean_lo", "row.mean_lo"},
    {"the rest of the mean is forgotten", kStatistics, "+ -s.mean_lo * s.rstd", ""},
    {"chunks lie at one place", kStatistics, "(mean - base) + mean_lo;", "mean_lo;"},
    {"chunks are as heavy as one column", kStatistics, "{own * distance, m2", "{distance, m2"},
    {"chunks are merged without the distance of their means", kStatistics, "m2 + own * distance * distance",
     "m2"},
    {"chunks merge into a mean that lacks its rest", kStatistics, "(base - mean) + mean_lo", "mean_lo"},
    {"the squares of chunks stay around the base", kStatistics, "sums.squares - sums.distances * mean_lo",
     "sums.squares"},
    {"only the first of two wide sums is summed", kStatistics, "add_from(sums.squares, lane_mask)",
     "sums.squares"},
    {"the rms has the mean subtracted", kStatistics,
     "of(const Elements& elements, Acc) {\n"
     "    Chains<Acc> total(-Acc(0));\n"
     "    elements.each([&](Acc value, int i) { total.at[i] += value * value; });",
     "of(const Elements& elements, Acc own) {\n"
     "    const Acc mean = divided(lanes_sum<kWidth>(sum(elements)), own);\n"
     "    Chains<Acc> total(-Acc(0));\n"
     "    elements.each([&](Acc value, int i) { total.at[i] += (value - mean) * (value - mean); });"},
    {"the rms is not divided by the columns", kStatistics, "hw::rsqrt(squares * share + epsilon)",
     "hw::rsqrt(squares + epsilon)"},
    {"epsilon is added outside the root of the squares", kStatistics, "hw::rsqrt(squares * share + epsilon)",
     "hw::rsqrt(squares * share) + epsilon"},
    {"epsilon is added to the squares before the division", kStatistics,
     "hw::rsqrt(squares * share + epsilon)", "hw::rsqrt((squares + epsilon) * share)"},
    {"of two sums of squares only one counts", kStatistics,
     "Acc, const SumOfSquares& b, Acc) {\n    return {a.squares + b.squares};",
     "Acc, const SumOfSquares& b, Acc) {\n    return {a.squares};"},
    {"lanes take only the first part of the squares", kStatistics, "j < Merging<kParts>::kEach; ++j) {",
     "j < 1; ++j) {"},
    {"squares of parts that are not there count", kStatistics,
     "if (kParts % kWidth == 0 || i < kParts) squares", "squares"},
    {"lanes exchange their own squares", kStatistics, "{hw::shuffle_xor(squares, lane_mask)}", "{squares}"},

    {"results are multiplied by the scale of their tensor", kQuantizer, "inverse ? given : 1 / given",
     "inverse ? 1 / given : given"},
    {"an infinite scale makes NaN of all results", kQuantizer, "infinite ? 0 : scale}", "scale}"},
    {"an infinite result makes NaN of the scale", kQuantizer, "is_infinite(fabsf(about)) ? about : ", ""},
    {"the scale of a row is a product", kQuantizer, "hw::fma(-hw::fma(about, by, -number), inverse, about)",
     "about"},
    {"rows of e4m3 are scaled as those of e5m2", kQuantizer,
     "kSame<T, E4M3>   ? 448\n                        : ", ""},
    {"the least scale of whole numbers is another", kQuantizer, "kSame<T, S8> ? 0x1p-23f : ", ""},
    {"the scale of a row of zeros is 0", kQuantizer, "hw::max_nan(over(magnitude, kMost<T>), kLeast)",
     "over(magnitude, kMost<T>)"},
    {"the bound of rows is ignored", kQuantizer,
     "kHasUpperBound ? bounded(largest.magnitude, given.scale) : largest.magnitude", "largest.magnitude"},
    {"the bound of rows is their largest result", kQuantizer, "magnitude > bound ? bound : magnitude",
     "bound"},
    {"NaN is bounded", kQuantizer, "magnitude > bound ? bound : magnitude",
     "magnitude < bound ? magnitude : bound"},
    {"powers of two are rounded down", kQuantizer, "(bits_of(scale) + 0x7fffffu) & 0x7f800000u",
     "bits_of(scale) & 0x7f800000u"},
    {"powers of two are rounded up to the next", kQuantizer, "bits_of(scale) + 0x7fffffu",
     "bits_of(scale) + 0x800000u"},
    {"infinity is NaN in e8m0", kQuantizer, "if (in_e8m0 && bits == 0x7f800000u) bits = 0x7f000000u;", ""},
    {"the largest power of two has no inverse", kQuantizer, "in_e8m0 ? 0x400000u : 0", "0"},
    {"NaN becomes a power of two", kQuantizer, "if (scale != scale) return {scale, scale, 0};", ""},
    {"the scale of a block of zeros is 0", kQuantizer, "hw::max_nan(magnitude, 1e-10f)", "magnitude"},
    {"the scales of blocks lack the global scale", kQuantizer, "given.scale * (magnitude * (1 / most))",
     "magnitude * (1 / most)"},
    {"blocks are divided by what is stored alone", kQuantizer,
     "divided(given.scale, scale, hw::reciprocal(scale))", "hw::reciprocal(scale)"},
    {"zeros are divided by a scale of 0", kQuantizer, "scale == 0 ? 0 : divided", "divided"},
    {"the scales of all blocks are powers of two", kQuantizer,
     "if (format == ScaleFormat::f32) return quantizer_of_scale(scale);", ""},
    {"all scales of a byte are exponents", kQuantizer,
     "if (format == ScaleFormat::e4m3) return narrow<E4M3>(scale).bits & 0x7f;", ""},
    {"results are not divided", kQuantizer, "const float about = y * by.inverse;", "const float about = y;"},
    {"a quotient is that of the product", kQuantizer,
     "return hw::fma(-hw::fma(about, by.divisor, -y), by.inverse, about);", "return about;"},
    {"rows of scales are padded", kQuantizer, "return r * blocks;", "return r * up(blocks, 4);"},
    {"columns of scales are not padded", kQuantizer, "return k * padded_rows();", "return k * rows;"},
    {"words of scales lie a byte apart", kQuantizer, "return r * 4;", "return r;"},
    {"rows of a tile are in order", kQuantizer, "r % 32 * 16 + r % 128 / 32 * 4", "r % 128 * 4"},
    {"tiles lie by columns", kQuantizer, "r / 128 * (padded_blocks() * 128)", "r / 128 * 512"},
    {"columns of words are tiles", kQuantizer,
     "layout == ScaleLayout::packed_columns ? padded_rows() * 4 : 512", "512"},
    {"blocks are not padded", kQuantizer,
     "layout < ScaleLayout::packed_columns ? blocks : static_cast<unsigned>(up(blocks, 4))", "blocks"},
    {"rows and blocks of scales change places", kQuantizer, "place_of_row(r) + place_of_block(k)",
     "place_of_row(k) + place_of_block(static_cast<unsigned>(r))"},
    {"what is beyond the blocks of a row is not zeroed", kQuantizer,
     "scales.store(scales.place(scales.row, k), 0, format);", ";"},
    {"what is beyond the rows is not zeroed", kQuantizer, "if (scales.row + 1 < scales.rows) return;",
     "return;"},
    {"the last row of a tile is zeroed, too", kQuantizer, "scales.row % 128) + 1", "scales.row % 128)"},
    {"the first tiles are padded", kQuantizer, "scales.row / 128 * (padded * 128LL)", "0"},
    {"words are zeroed where bytes begin anywhere", kQuantizer,
     "reinterpret_cast<unsigned long long>(tiles) % 4 == 0", "true"},

    {"rows of a second result lie as far apart as those of y", kSink, "begin_of(on.also_rows, row)",
     "begin_of(on.y_rows, row)"},
    {"all slices write a second result at the row's begin", kSink,
     "on.also + begin_of(on.also_rows, row) + begin", "on.also + begin_of(on.also_rows, row)"},
    {"all slices have the scales of the first one's blocks", kSink, "static_cast<int>(begin / kBlock)", "0"},
    {"rows that are left over are taken in turn, too", kSink, "if (i >= share * kShares) return i;", ""},
    {"rows are taken behind the last of their place", kSink, "if (unit >= share) unit -= share;", ""},
    {"rows in a block are not one unit", kSink, "shared.n / unit) * unit;", "shared.n / unit);"},
    {"the mean is written without its rest", kSink, "s.mean + s.mean_lo;", "s.mean;"},
    {"mean and rstd are written to each other's place", kSink,
     "on.mean[row] = s.mean + s.mean_lo;\n    on.rstd[row] = s.rstd;",
     "on.rstd[row] = s.mean + s.mean_lo;\n    on.mean[row] = s.rstd;"},
    {"weight and bias are swapped", kSink,
     ": parameters.at[0];\n  if constexpr (kHasBias) v += parameters.at[kBiasAt];",
     ": parameters.at[kHasBias];\n  if constexpr (kHasBias) v += parameters.at[0];"},
    {"the bias is added before the weight", kSink, "if constexpr (kHasWeight) v *= kWeightOffset",
     "if constexpr (kHasBias) v += parameters.at[kBiasAt];\n  if constexpr (kHasWeight) v *= kWeightOffset"},
    {"the offset is not added to the weight", kSink, "parameters.at[0] + Acc(1)", "parameters.at[0]"},
    {"the normalized value is not rounded", kSink, "if constexpr (kRoundsNorm) v = widen(narrow<Input>(v));",
     ""},
    {"a residual behind the norm is not added", kSink, "if constexpr (kAddsToResult) v += residual;", ""},
    {"results are not rounded before they are divided", kSink,
     "if constexpr (kRoundsY) v = widen(narrow<Input>(v));", ""},
    {"the scale of a row is not written", kSink, "if constexpr (kScalesRows) on.row_scale[row] = by.scale;",
     ""},
    {"the scale of the modulation is not added to 1", kSink, "scale : scale + Acc(1)", "scale : scale"},
    {"the table is not added to the scale", kSink,
     "kHasScaleTable ? parameters.of_row[0] + parameters.at[kScaleTableAt] :", "false ? 0 :"},
    {"rows of the scale lie as far apart as those of x", kSink, "begin_of(on.mod_scale_rows, row)",
     "begin_of(on.x_rows, row)"},
    {"rows of the shift lie as far apart as those of the scale", kSink, "begin_of(on.mod_shift_rows, row)",
     "begin_of(on.mod_scale_rows, row)"},
    {"every operand of a row is the scale", kSink, "at(columns.of_row[p], k, lane)",
     "at(columns.of_row[0], k, lane)"},
    {"every operand of a row of an element is the scale", kSink, "widen(parameters.of_row[p], i)",
     "widen(parameters.of_row[0], i)"},
    {"the shift stays at the row's begin", kSink, "p < kRowParameters; ++p) there", "p < 1; ++p) there"},
    {"rows of a gate behind the norm lie as far apart as those of y", kSink, "begin_of(on.gate_rows, row)",
     "begin_of(on.y_rows, row)"},
    {"the residual behind the norm passes the gate", kSink, "if constexpr (kGatesResult)\n    v *= gate",
     "v += kAddsToResult ? residual : 0;\n  if constexpr (kGatesResult)\n    v *= gate"},
    {"scaled before the activation", kSink,
     "v = activate<Activation::chosen>(v);\n  if constexpr (kScale<Acc> != Acc(1)) v *= kScale<Acc>;",
     "if constexpr (kScale<Acc> != Acc(1)) v *= kScale<Acc>;\n  v = activate<Activation::chosen>(v);"},
    {"relu of NaN is zero", kFunctions, "hw::max_nan(v, Acc(0))", "(v > 0 ? v : Acc(0))"},
    {"gelu of infinity is NaN", kFunctions, "fabsf(hw::min_nan(v, kEnd))", "fabsf(v)"},
    {"gelu of infinity is NaN in f16", kFunctions, "hw::min_nan(fabsf(v), kEnd), half", "fabsf(v), half"},
    {"slices of 4 bits begin where those of 8 would", kSink, "begin / kColumnsIn<Output>", "begin"},
    {"rows of y lie as far apart as those of x", kSink, "on.y + begin_of(on.y_rows, row)",
     "on.y + begin_of(on.x_rows, row)"},
    {"weight and bias are taken from each other's place", kSink,
     "columns.at[0] = on.weight;\n  if constexpr (kHasBias) columns.at[kBiasAt] = on.bias;",
     "columns.at[kHasBias] = on.weight;\n  if constexpr (kHasBias) columns.at[0] = on.bias;"},
    {"every parameter is the weight", kSink, "at(columns.at[p], k, lane)", "at(columns.at[0], k, lane)"},
    {"every parameter of an element is the weight", kSink, "widen(parameters.at[p], i)",
     "widen(parameters.at[0], i)"},
    {"the bias stays at the row's begin", kSink, "p < kParameters; ++p) there", "p < 1; ++p) there"},
    {"all slices have the parameters of the first", kSink, "columns_of(on, row).from(begin)",
     "columns_of(on, row)"},
    {"all slices write at the row's begin", kSink, "begin_of(on.y_rows, row) + begin",
     "begin_of(on.y_rows, row)"},

    {"a warp without columns divides by them", kFragment, "own > 0 ? own : 1", "own"},
    {"the last warp counts columns that are not there", kFragment,
     "left < 0 ? 0 : left < kWarp * kVector ? left : kWarp * kVector", "left < 0 ? 0 : kWarp * kVector"},
    {"all vectors get the weights of the first", kFragment,
     "early.part[k] = load_parameters(columns, k, lane)",
     "early.part[k] = load_parameters(columns, 0, lane)"},
    {"weights loaded ahead are those of now", kFragment, "load_parameters(columns, k + 1, lane)",
     "load_parameters(columns, k, lane)"},
    {"all vectors get the residual of the first", kSource, "load<kCache>(at(second, k, 0))",
     "load<kCache>(at(second, 0, 0))"},
    {"the sum is written without the residual", kFragment, "stored_sum(fragment.part[k])",
     "load<hw::Cache::keep>(at(first_of(from.x, lane), k, 0))"},
    {"the sum is written without x", kFragment, "stored_sum(fragment.part[k])",
     "load<hw::Cache::keep>(at(first_of(from.residual, lane), k, 0))"},
    {"the sum of the last vector is not written", kFragment,
     "for (int k = 0; k < kPerThread; ++k)\n      if (inside(k, lane, cut)) store",
     "for (int k = 0; k < kPerThread - 1; ++k)\n      if (inside(k, lane, cut)) store"},
    {"the sum is written where there are no columns", kFragment,
     "if (inside(k, lane, cut)) store(at(first, k, 0), stored_sum", "store(at(first, k, 0), stored_sum"},
    {"the largest of a vector is its first", kFragment, "all = all.with(at[i]);", "all = all.with(at[0]);"},
    {"a second result is quantized", kFragment, "if constexpr (kWritesAlso) results.store_as",
     "if constexpr (kWritesAlso) results.over(sink.by).store_as"},
    {"a second result of blocks is quantized", kFragment, "if constexpr (kWritesAlso) held[i].store_as",
     "if constexpr (kWritesAlso) held[i].over(by).store_as"},
    {"a second result of rows with scales is not written", kFragment,
     "if constexpr (kWritesAlso) part.store_as(at(also, k, 0));", ""},
    {"results are rounded to the type of x before they are stored", kFragment, "narrowed.set(i, at[i])",
     "narrowed.set(i, widen(narrow<Input>(at[i])))"},
    {"amax is that of the last vector", kFragment, "largest = larger_of(largest, results.largest())",
     "largest = results.largest()"},
    {"amax is that of what is divided", kFragment, "larger_of(largest, results.largest())",
     "larger_of(largest, results.over(sink.by).largest())"},
    {"the largest result of a lane is that of its last vector", kFragment,
     "largest = larger_of(largest, part.largest())", "largest = part.largest()"},
    {"half of the lanes of a block look for its largest", kFragment, "mask = kBlockLanes / 2;",
     "mask = kBlockLanes / 4;"},
    {"blocks have the largest of the one before", kFragment,
     "largest[i].with(hw::shuffle_xor(largest[i].magnitude, mask))",
     "largest[i].with(hw::shuffle_xor(largest[0].magnitude, mask))"},
    {"blocks are divided by the scale of the one before", kFragment, "quantizer_of_block(largest[i], ",
     "quantizer_of_block(largest[0], "},
    {"only the first block of a row has its scale stored", kFragment, "if (lane % kBlockLanes == 0)",
     "if (lane == 0)"},
    {"lanes without a row write its blocks", kFragment, "if (!works || !inside(own, lane, cut)) continue;",
     "if (!inside(own, lane, cut)) continue;"},
    {"scales of a lane are neighbours", kFragment, "place + own * step", "place + own"},
    {"places of scales are equally far apart in all layouts", kFragment,
     "kApart % 4 == 0 || ScaleLayout::chosen < ScaleLayout::packed_columns", "true"},
    {"blocks of a lane are neighbours", kFragment, "kApart = kThreadsPerRow * kVector / kBlock",
     "kApart = 1"},
    {"all vectors have the results of the first", kFragment, "results.part[kScalesRows ? k : 0].over(by)",
     "results.part[0].over(by)"},

    {"lanes without a row read beyond the last", kWarpRows, "if (works) load<", "load<"},
    {"lanes without a row write it", kWarpRows, "if (works) write(fragment", "write(fragment"},
    {"lanes without a row write results that were held", kWarpRows, "if (works) write(results",
     "write(results"},
    {"lanes without a row leave before the shuffles", kWarpRows, "    const bool works = row < on.rows;",
     "    const bool works = row < on.rows;\n    if (!works) break;"},
    {"lanes without a row read the last one, which its owner may be writing", kWarpRows,
     "if (works) load<hw::Cache::evict_first>(fragment, from",
     "load<hw::Cache::evict_first>(fragment, works ? from : source_of(on, on.rows - 1, 0)"},
    {"only the first row of a block has its statistics written", kWarpRows, "lane == 0) store(statistics",
     "threadIdx.x == 0) store(statistics"},
    {"x is read before the launch in front is done", kWarpRows, "hw::wait_for_previous_launch();", ""},
    {"lanes without a row write its sum", kWarpRows, "if (works) store_sum", "store_sum"},
    {"the sum is not written", kWarpRows, "if (works) store_sum(fragment, from, lane, cut);", ""},
    {"only the first row of a block has its scale written", kWarpRows, "lane == 0) store(by",
     "threadIdx.x == 0) store(by"},
    {"each lane has a scale of its own", kWarpRows, "lanes_largest<kThreadsPerRow>(own)", "own"},
    {"lanes without a row compute its results", kWarpRows, "if (works) own = compute", "own = compute"},
    {"lanes without a row leave before the shuffles of blocks", kWarpRows, "write_blocks(fragment",
     "if (works) write_blocks(fragment"},
    {"lanes without a row pad its scales", kWarpRows, "if (works) pad_scales", "pad_scales"},
    {"scales are not padded", kWarpRows,
     "if (works) pad_scales(sink.scales, ScaleFormat::chosen, lane, kThreadsPerRow);", ""},
    {"amax is not published", kWarpRows,
     "raise_largest(amax, meeting_in(on.workspace).header);\n    hw::block_barrier();",
     "hw::block_barrier();"},
    {"no barrier before a block leaves", kWarpRows,
     "raise_largest(amax, meeting_in(on.workspace).header);\n    hw::block_barrier();",
     "raise_largest(amax, meeting_in(on.workspace).header);"},
    {"every thread of a block leaves", kWarpRows, "if (threadIdx.x == 0) leave_with_amax(on);",
     "leave_with_amax(on);"},

    {"amax is that of one lane of each warp", kWorkspace, "own = lanes_largest<kWarp>(own);", ""},
    {"amax is that of one warp of each block", kWorkspace, "if (threadIdx.x % kWarp == 0) hw::raise",
     "if (threadIdx.x == 0) hw::raise"},
    {"the next launch finds the amax of this one", kWorkspace, "header.largest = 0;", ""},
    {"amax is not rounded as results are", kWorkspace,
     "if constexpr (sizeof(Stored) == 2) return widen(narrow<Stored>(largest));", ""},
    {"every block is the last", kWorkspace, "hw::arrive(&header.finished_blocks) + 1 == gridDim.x",
     "hw::arrive(&header.finished_blocks) + 1 > 0"},
    {"the blocks of this launch count in the next", kWorkspace,
     "store_amax(header, on);\n  header.finished_blocks = 0;", "store_amax(header, on);"},

    {"columns that are not there are read", kGeneric, "(j * kWarp < left ? j * kWarp : 0)", "j * kWarp"},
    {"columns that are not there count", kGeneric, "if (at + j * kWarp < count) act", "act"},
    {"columns that are not there are written", kGeneric, "if (j * kWarp < left) hw::store", "hw::store"},
    {"columns of other lanes are read in place of those that are not there", kGeneric,
     "from + (j * kWarp < left ? j * kWarp : 0)", "from + (j * kWarp < left ? j * kWarp : left - 1)"},
    {"a warp without columns divides by them", kGeneric, "own > 0 ? own : 1", "own"},
    {"no barrier before the parts are merged", kGeneric, "parts[warp] = all;\n    hw::block_barrier();\n",
     "parts[warp] = all;\n"},
    {"each warp has a scale of its own", kGeneric,
     "largest = largest_of_parts<kWarps>([&](int i) { return largest_parts[half + i]; });", ""},
    {"no barrier before the largest results are read", kGeneric,
     "largest_parts[half + warp] = largest;\n        hw::block_barrier();",
     "largest_parts[half + warp] = largest;"},
    {"the sum is written before the largest result is found", kGeneric, "if (of.sum && writes) put",
     "if (of.sum) put"},
    {"results are not rounded before they are divided", kGeneric,
     "if (spec.rounds_y) round_to(v, spec.input);", ""},
    {"rows of e5m2 are scaled as those of e4m3", kGeneric, "return quantizer_of_row<E5M2>(magnitude)",
     "return quantizer_of_row<E4M3>(magnitude)"},
    {"the scale of a row is not written", kGeneric, "if (on.row_scale) on.row_scale[row] = by.scale;", ""},
    {"parts are written while others still read them", kGeneric, "half ^= kWarps;", ""},
    {"a row has a warp too few", kGeneric, "(spec.columns - 1) / (kWarps * unit) + 1",
     "spec.columns / (kWarps * unit)"},
    {"rows of y lie as far apart as those of x", kGeneric, "begin_of(on.y_rows, row)",
     "begin_of(on.x_rows, row)"},
    {"the bias has the dtype of y", kGeneric, "of.bias, spec.weight", "of.bias, spec.output"},
    {"the gate has the dtype of x", kGeneric, "of.gate, spec.modulation", "of.gate, spec.input"},
    {"the table is not added to the gate", kGeneric, "if (of.gate_table) add", "if (false) add"},
    {"the scale of the modulation is not added to 1", kGeneric, "scale[j] + one", "scale[j]"},
    {"the table is not added to the scale", kGeneric, "if (of.mod_scale_table) add", "if (false) add"},
    {"the shift is not added", kGeneric, "v[j] += shift[j];", "v[j] += 0;"},
    {"the table is not added to the shift", kGeneric, "if (of.mod_shift_table) add", "if (false) add"},
    {"rows of the shift lie as far apart as those of the scale", kGeneric, "begin_of(on.mod_shift_rows, row)",
     "begin_of(on.mod_scale_rows, row)"},
    {"all parts of a row get the weights of the first", kGeneric,
     "weight_begin(begin_of(on.weight_rows, row) + begin)", "weight_begin(begin_of(on.weight_rows, row))"},
    {"silu is taken for relu", kGeneric, "activation == Activation::relu", "activation == Activation::silu"},
    {"statistics are written where there are none", kGeneric, "if (on.rstd) ", ""},
    {"x is read before the launch in front is done", kGeneric, "hw::wait_for_previous_launch();", ""},
    {"a chunk of a warp that is not full counts as a full one", kGeneric, "part.widened(own, base)",
     "part.widened(kSpan, base)"},
    {"each chunk has a base of its own", kGeneric, "if (done == 0) base", "base"},
    {"blocks of all warps are those of the first", kGeneric, "begin + at - lane, left);",
     "at - lane, left);"},
    {"blocks are cut by warps", kGeneric, "spec.block > 0 ? kTake * kWarp : kWarp", "kWarp"},
    {"a block has no more columns than a warp", kGeneric, "if (spec.block > apart * kWarp)", "if (false)"},
    {"a block has no fewer columns than a warp", kGeneric,
     "spec.block < kWarp ? lanes_largest<kWarp / 2>(largest[j]) : ", ""},
    {"every lane stores the scale of its block", kGeneric,
     "j * kWarp < left && (own & (spec.block - 1)) == 0", "j * kWarp < left"},
    {"lanes without columns leave before the shuffles", kGeneric, "if (left <= 0 && spec.block == 0) break;",
     "if (left <= 0) break;"},
    {"scales are not padded", kGeneric, "pad_last_scales(scales_of(on, spec, row), spec.scale_format);", ";"},
    {"every warp pads the scales", kGeneric, "if (kQuantizes && spec.block > 0 && begin == 0)",
     "if (kQuantizes && spec.block > 0)"},
    {"the global scale is ignored", kGeneric,
     "if (on.global_scale) given.scale = hw::load<hw::Cache::keep, float>(on.global_scale);", ""},
    {"the bound of rows is ignored", kGeneric,
     "if (on.upper_bound) largest.magnitude = bounded(largest.magnitude, on.upper_bound[0]);", ""},
    {"a second result is not written", kGeneric,
     "if (of.also) put(v, of.also, spec.also, begin_of(on.also_rows, row) + begin + at, left, 1);", ""},
    {"a second result has the dtype of y", kGeneric, "put(v, of.also, spec.also,",
     "put(v, of.also, spec.output,"},
    {"rows of a second result lie as far apart as those of y", kGeneric, "begin_of(on.also_rows, row)",
     "begin_of(on.y_rows, row)"},
    {"all warps write a second result at the row's begin", kGeneric,
     "begin_of(on.also_rows, row) + begin + at", "begin_of(on.also_rows, row) + at"},
    {"the largest result is that of the last elements", kGeneric,
     "if (!writes || on.amax) largest = larger_of(largest, largest_of(v));",
     "if (!writes || on.amax) largest = largest_of(v);"},
    {"the two of a byte change places in the generic kernel", kGeneric, "own | next << 4", "next | own << 4"},
    {"rows of 4 bits begin where those of 8 would", kGeneric, "<< pairs", "<< 0"},
    {"blocks of 4 bits have scales for 8", kGeneric, "dtype == DType::e2m1 ? kMost<E2M1>",
     "dtype == DType::e2m1 ? kMost<S8>"},
    {"amax is not found", kGeneric, "if (!writes || on.amax) largest", "if (!writes) largest"},
    {"amax is not published", kGeneric,
     "if (on.amax) raise_largest(largest, meeting_in(on.workspace).header);", ""},
    {"no barrier before a block leaves", kGeneric,
     "hw::block_barrier();\n  if (threadIdx.x == 0 && leaves_last(header))",
     "if (threadIdx.x == 0 && leaves_last(header))"},
    {"amax is not rounded as results are", kGeneric, "round_to(all, spec.output);", ""},
    {"the blocks of this launch count in the next", kGeneric, "header.finished_blocks = 0;", ""},

    {"columns are neighbours with channels first, too", kGeneric, "spec.channels_first ? on.x_rows.n : 1",
     "1"},
    {"columns of a part begin as if they were neighbours", kGeneric,
     "x_begin(begin_of(on.x_rows, row) + begin * step)", "x_begin(begin_of(on.x_rows, row) + begin)"},
    {"y is written as if columns were neighbours", kGeneric, "of.y_begin + at * of.step, left, of.step",
     "of.y_begin + at, left, 1"},

    {"samples follow each other without their channels", kChannelsFirst, "begin_of(rows, row)", "row"},
    {"channels of a thread are neighbours", kChannelsFirst, "kThreadsPerRow * rows.n}", "rows.n}"},
    {"lanes without a row read beyond the last", kChannelsFirst,
     "if (works) load<hw::Cache::evict_first>(slab, on, row, all);",
     "load<hw::Cache::evict_first>(slab, on, row, all);"},
    {"lanes without a row write it", kChannelsFirst,
     "if (works) write(slab, of_rows, on, row, all, shared, by);",
     "write(slab, of_rows, on, row, all, shared, by);"},
    {"lanes without a row leave before the barriers", kChannelsFirst,
     "    const bool works = row < on.rows;\n",
     "    const bool works = row < on.rows;\n    if (!works) break;\n"},
    {"a thread without channels divides by them", kChannelsFirst, "own > 0 ? own : 1", "own"},
    {"all threads count as many channels", kChannelsFirst, "kThreadsPerRow - 1u - i", "kThreadsPerRow - 1u"},
    {"no barrier before the parts are merged", kChannelsFirst,
     "parts[d * kPitch + i * kAcross + across] = own[i];\n    hw::block_barrier();",
     "parts[d * kPitch + i * kAcross + across] = own[i];"},
    {"no barrier before the merged statistics are read", kChannelsFirst,
     "    hw::block_barrier();\n#pragma unroll\n    for (int i = 0; i < kVector; ++i) of_rows",
     "#pragma unroll\n    for (int i = 0; i < kVector; ++i) of_rows"},
    {"all positions of a lane have the statistics of its first", kChannelsFirst,
     "of_rows[i] = of_tile[i * kAcross + across];", "of_rows[i] = of_tile[across];"},
    {"statistics are written for neighbouring lanes", kChannelsFirst, "p % kAcross * kVector + p / kAcross",
     "p"},
    {"statistics of lanes without a row are written", kChannelsFirst, "if (writes && row < on.rows) store",
     "if (writes) store"},
    {"all channels have the parameters of the first", kChannelsFirst,
     "own[p][i] = hw::load<hw::Cache::keep, Weight>(columns.at[p] + channel)",
     "own[p][i] = hw::load<hw::Cache::keep, Weight>(columns.at[p])"},
    {"every parameter is the weight", kChannelsFirst,
     "own[p][i] = hw::load<hw::Cache::keep, Weight>(columns.at[p]",
     "own[p][i] = hw::load<hw::Cache::keep, Weight>(columns.at[0]"},
    {"all channels have the parameters of the first in pieces", kChannelsFirst,
     ": hw::load<hw::Cache::keep, Weight>(columns.at[p] + channel)",
     ": hw::load<hw::Cache::keep, Weight>(columns.at[p])"},
    {"all parameters are shared in one place", kChannelsFirst, "shared[p * kColumns + channel] = own",
     "shared[channel] = own"},
    {"parameters are read before all threads have brought them", kChannelsFirst,
     "if constexpr (kThreadsPerRow == 1) hw::block_barrier();", ""},
    {"parameters loaded ahead are those of now", kChannelsFirst, "piece.channel(k + 1)", "piece.channel(k)"},
    {"pieces have the parameters of the first", kChannelsFirst, "return begin + column(k, d);",
     "return column(k, d);"},
    {"each piece has a base of its own", kChannelsFirst, "if (begin == 0) base[i]", "base[i]"},
    {"a piece that is not full counts as a full one", kChannelsFirst, "part.widened(piece.own(), base[i])",
     "part.widened(kPerThread, base[i])"},
    {"the sum is written while the residual is still to be read", kChannelsFirst,
     "if (works) load<hw::Cache::keep>(slab, on, row, piece);",
     "if (works) load<hw::Cache::keep>(slab, on, row, piece);\n"
     "        if (works) store_sum(slab, on, row, piece);"},
    {"the sum is not written", kChannelsFirst, "if (works) store_sum(slab, on, row, all);", ""},
    {"in_bias is that of the first channel", kChannelsFirst, "on.in_bias + piece.channel(k)", "on.in_bias"},
    {"the residual has the distances of x", kChannelsFirst,
     "load_slab<kCache>(residual, walk_of(on.residual, on.residual_rows,",
     "load_slab<kCache>(residual, walk_of(on.residual, on.x_rows,"},
    {"rows of y lie as far apart as those of x", kChannelsFirst, "walk_of(on.y, on.y_rows,",
     "walk_of(on.y, on.x_rows,"},
    {"x is read before the launch in front is done", kChannelsFirst, "hw::wait_for_previous_launch();", ""},

    {"no barrier before a tile is read", kStagedRows, "count, second); });\n    hw::warp_barrier();",
     "count, second); });"},
    {"no barrier before y stands where x did", kStagedRows,
     "hw::warp_barrier();  // before y stands where x did", ""},
    {"no barrier before results are put", kStagedRows, "hw::warp_barrier();\n    put(to, out);",
     "put(to, out);"},
    {"no barrier before the next tile comes", kStagedRows,
     "hw::warp_barrier();  // before the next tile comes", ""},
    {"the last tile is taken for a whole one", kStagedRows, "is_contiguous(where)) && rows == kRows",
     "is_contiguous(where))"},
    {"rows with gaps are taken for one run", kStagedRows, "kRows == 1 || is_contiguous(where)", "true"},
    {"y begins where x does", kStagedRows, "out + to.place(row_of(g))", "out + from.place(row_of(g))"},
    {"lanes without a row read what no lane wrote", kStagedRows,
     "row_of(g) < count ? row_of(g) : count - 1;\n      const Residual*",
     "row_of(g);\n      const Residual*"},
    {"warps of a block have one tile", kStagedRows, "tiles + warp * kTiles * kTileBytes", "tiles"},
    {"rows of y lie as far apart as those of x", kStagedRows, "tile_of(on.y, on.y_rows,",
     "tile_of(on.y, on.x_rows,"},
    {"statistics of lanes without a row are written", kStagedRows,
     "if (row_of(g) < count && lane == 0) store(statistics", "if (lane == 0) store(statistics"},
    {"the weights are those of the first column", kStagedRows,
     "parameters = load_parameters(columns, k, lane)", "parameters = load_parameters(columns, 0, 0)"},
    {"all rows of a lane have one scale", kStagedRows, "parameters, added, by[g])",
     "parameters, added, by[0])"},
    {"scales of lanes without a row are written", kStagedRows, "if (row_of(g) < count && lane == 0) store(by",
     "if (lane == 0) store(by"},
    {"each lane has a scale of its own", kStagedRows, "lanes_largest<kThreadsPerRow>(own)", "own"},
    {"the largest result is that of another row's parameters", kStagedRows,
     "held[g].largest(statistics[g], columns_of(on, first + r)", "held[g].largest(statistics[g], columns"},
    {"the residual is not waited for", kStagedRows, "fetch_residual(on, first, count, second);", ""},
    {"single elements at the end of a run are lost", kStagedRows, "if (edge < cut.edges()) to[",
     "if (edge < cut.head) to["},
    {"x is read before the launch in front is done", kStagedRows, "hw::wait_for_previous_launch();", ""},

    {"only the first warp stores its statistics", kBlockRow, "if (lane % kWarp == 0) parts[",
     "if (lane == 0) parts["},
    {"only the first warp stores its largest result", kBlockRow, "if (lane % kWarp == 0) parts_of_row",
     "if (lane == 0) parts_of_row"},
    {"each lane has a largest result of its own", kBlockRow,
     "const Largest of_warp = lanes_largest<kWarp>(\n          compute(results, fragment, "
     "own.around(statistics), early, added, sink, lane, cut));",
     "const Largest of_warp =\n          compute(results, fragment, own.around(statistics), early, added, "
     "sink, lane, cut);"},
    {"no barrier before the warps' largest results are read", kBlockRow,
     "parts_of_row[warp].largest = of_warp;\n        hw::block_barrier();",
     "parts_of_row[warp].largest = of_warp;"},
    {"the largest results of a cluster are not waited for", kBlockRow,
     "hw::barrier_wait(arrived + 2 + place, turn / 2 % 2);", ""},
    {"the barriers of largest results have no turns", kBlockRow, "arrived + 2 + place, turn / 2 % 2",
     "arrived + 2 + place, 0"},
    {"all warps of a slice leave their largest results in one place", kBlockRow,
     "parts_of_row + slice * kWarps + warp", "parts_of_row + slice * kWarps"},
    {"all slices leave their largest results in one place", kBlockRow, "parts_of_row + slice * kWarps + warp",
     "parts_of_row + warp"},
    {"each slice has a scale of its own", kBlockRow, "largest = gather_largest<2>(on.workspace, tag);", ""},
    {"largest results have the tag of the statistics", kBlockRow,
     "++tag;\n          if (lane == 0) publish_part<2>(on.workspace, tag, largest,",
     "if (lane == 0) publish_part<2>(on.workspace, tag, largest,"},
    {"the largest result of the row before is read", kBlockRow,
     "largest_of_row[0] = largest;\n        }\n        hw::block_barrier();",
     "largest_of_row[0] = largest;\n        }"},
    {"every slice stores the scale", kBlockRow, "if (lane == 0 && slice == 0) store(by",
     "if (lane == 0) store(by"},
    {"results of all slices are of the first one's columns", kBlockRow, "sink_of(on, row, begin, by)",
     "sink_of(on, row, 0, by)"},
    {"amax is not published", kBlockRow,
     "raise_largest(amax, meeting_in(on.workspace).header);\n    hw::block_barrier();",
     "hw::block_barrier();"},
    {"no barrier before a block leaves", kBlockRow,
     "raise_largest(amax, meeting_in(on.workspace).header);\n    hw::block_barrier();",
     "raise_largest(amax, meeting_in(on.workspace).header);"},
    {"every thread of a block leaves", kBlockRow, "if (lane == 0) leave_with_amax(on);",
     "leave_with_amax(on);"},
    {"every slice pads the scales", kBlockRow, "if (slice == 0) pad_scales", "pad_scales"},
    {"scales are not padded", kBlockRow,
     "if (slice == 0) pad_scales(sink.scales, ScaleFormat::chosen, lane, kThreads);", ";"},
    {"no barrier before the warps' statistics are read", kBlockRow,
     "parts[half + warp].statistics = own;\n      hw::block_barrier();",
     "parts[half + warp].statistics = own;"},
    {"no barrier before the statistics of the row are read", kBlockRow,
     "hw::block_barrier();\n      all = whole[0];", "all = whole[0];"},
    {"the halves of the shared memory do not take turns", kBlockRow, "place = turn % 2", "place = 0"},
    {"statistics of the block's number, not of the row's", kBlockRow, "store(statistics, on, row)",
     "store(statistics, on, blockIdx.x / kBlocksPerRow)"},
    {"every slice stores the statistics", kBlockRow, "if (lane == 0 && slice == 0) store(statistics",
     "if (lane == 0) store(statistics"},
    {"the parts of a cluster are not waited for", kBlockRow,
     "hw::barrier_wait(arrived + place, turn / 2 % 2);", ""},
    {"the barriers of a cluster have no turns", kBlockRow, "arrived + place, turn / 2 % 2",
     "arrived + place, 0"},
    {"a block of a cluster is written to before it has begun", kBlockRow,
     "if (i < teams) hw::cluster_entered();", ""},
    {"all warps of a slice leave their statistics in one place", kBlockRow,
     "half + slice * kWarps + warp, arrived", "half + slice * kWarps, arrived"},
    {"all slices of a cluster have as many columns", kBlockRow,
     "cut_of(from.x, columns_of_slice(i / kWarps))", "cut"},
    {"a warp's statistics are published before they are merged", kBlockRow, "tag, all, slice);",
     "tag, own, slice);"},
    {"the tag stays from row to row", kBlockRow,
     "++tag;\n        if (lane == 0) publish_part<2>(on.workspace, tag, all,",
     "if (lane == 0) publish_part<2>(on.workspace, tag, all,"},
    {"teams take the rows of the next", kBlockRow, "i = blockIdx.x / kBlocksPerRow; i",
     "i = blockIdx.x / kBlocksPerRow + 1; i"},
    {"all slices begin at the first column", kBlockRow, "static_cast<long long>(slice) * kSpan, teams",
     "0, teams"},
    {"x is read before the launch in front is done", kBlockRow,
     "hw::wait_for_previous_launch();\n    const Source", "const Source"},
    {"early parameters of all slices are those of the first", kBlockRow,
     "columns_of(on, row).from(begin), lane, {", "columns_of(on, row), lane, {"},
    {"the sum is not written", kBlockRow, "    store_sum(fragment, from, lane, cut);\n", ""},
    {"only the first slice writes the sum", kBlockRow, "    store_sum(", "    if (slice == 0) store_sum("},

    {"parts of the row before are gathered", kExchange, "/ kWarp, tag, parts);", "/ kWarp, tag - 1, parts);"},
    {"the next launch begins with a tag of this one", kExchange, "kTagsOfRow = kScalesRows ? 2 : 1",
     "kTagsOfRow = 1"},
    {"slots have one place", kExchange, "tag % kRowDepth * gridDim.x", "0 * gridDim.x"},
    {"places of slots lie too close", kExchange, "tag % kRowDepth * gridDim.x", "tag % kRowDepth"},
    {"slots are those of the first team", kExchange, "blockIdx.x / kBlocksPerRow * kBlocksPerRow;", "0;"},
    {"the next launch begins with the tags of this one", kExchange,
     "{0, 0, tag + static_cast<unsigned>(most - own) * kTagsOfRow, 0, 0}", "{}"},
    {"blocks that share rows write no amax", kExchange, "if constexpr (kWritesAmax) store_amax(header, on);",
     ""},
    {"the next launch begins with the tags of the last team", kExchange,
     "tag + static_cast<unsigned>(most - own) * kTagsOfRow", "tag"},
    {"the last slice has columns that are not there", kLayout,
     "left < 0 ? 0 : left < kSpan ? static_cast<int>(left) : kSpan", "left < 0 ? 0 : kSpan"},

    {"the ring is filled before it is read", kRing, "hw::barrier_wait(ring.freed + at.index, at.phase ^ 1);",
     ""},
    {"chunks are read before they are there", kRing, "hw::barrier_wait(filled + at.index, at.phase);", ""},
    {"chunks are freed before the whole warp has read them", kRing,
     "hw::warp_barrier();\n    if (threadIdx.x % kWarp == 0) hw::barrier_arrive_after",
     "if (threadIdx.x % kWarp == 0) hw::barrier_arrive_after"},
    {"the phase of a ring stays", kRing, "index = 0, phase ^= 1", "index = 0"},
    {"all slices have as many chunks", kRing, "(kChunks - slice + kBlocksPerRow - 1) / kBlocksPerRow",
     "kOwn"},
    {"the first slices have more chunks, not the last", kRing,
     "(slice >= kBlocksPerRow - kChunks % kBlocksPerRow)", "(slice < kChunks % kBlocksPerRow)"},
    {"one slice too few has a chunk more", kRing, "slice >= kBlocksPerRow - kChunks % kBlocksPerRow",
     "slice > kBlocksPerRow - kChunks % kBlocksPerRow"},
    {"slices begin as if none in front had a chunk more", kRing, "(more > 0 ? more : 0)", "0"},
    {"slices begin as if they had no chunk more themselves", kRing,
     "slice - (kBlocksPerRow - kChunks % kBlocksPerRow)",
     "slice + 1 - (kBlocksPerRow - kChunks % kBlocksPerRow)"},
    {"the last slice counts as whole chunks", kRing,
     "slice == (kUnaligned ? kBlocksPerRow - 1 : (kChunks - 1) % kBlocksPerRow)", "false"},
    {"the last chunk is looked for where slices take chunks in turn", kRing,
     "(kUnaligned ? kBlocksPerRow - 1 : (kChunks - 1) % kBlocksPerRow)", "(kChunks - 1) % kBlocksPerRow"},
    {"chunks bring more than is there", kRing, "left < kSpan ? static_cast<int>(left) : kSpan", "kSpan"},
    {"slices take neighbouring chunks", kRing, "(kUnaligned ? 1 : kBlocksPerRow)", "1"},
    {"slices of rows that begin anywhere take chunks in turn", kRing, "(kUnaligned ? 1 : kBlocksPerRow)",
     "kBlocksPerRow"},
    {"the ends of a slice are not brought", kRing,
     "if (own_end >= begin && own_end < begin + count) ring.chunk(at)[past + own_end - begin] = end;", ""},
    {"an end is brought to all chunks", kRing, "if (own_end >= begin && own_end < begin + count) ring",
     "if (own_end >= 0) ring"},
    {"two lanes bring an end of a slice that has hardly any columns", kRing, "i < tail && column >= head",
     "i < tail"},
    {"ends are brought as if the row began aligned", kRing, "[past + own_end - begin]", "[own_end - begin]"},
    {"ends are those of the row before", kRing, "load_end(x_of(row + teams),", "load_end(x_of(row),"},
    {"ends are those of the row behind", kRing, "const Input end = next_end;",
     "const Input& end = next_end;"},
    {"the end behind is brought from in front", kRing, "columns - tail + i;", "i;"},
    {"columns behind a slice are brought from in front of the first whole vector", kRing,
     "i < head && i < columns", "i < head"},
    {"ends are announced before all of them are there", kRing, "hw::warp_barrier();\n        if (lane > 0)",
     "if (lane > 0)"},
    {"every lane of the feeding warp announces a chunk", kRing, "if (lane > 0) continue;", ""},
    {"a first vector that another slice shares is copied", kRing, "c == 0 && past > 0 ? 1 : 0", "0"},
    {"the first vector of every chunk is left to single elements", kRing, "c == 0 && past > 0", "past > 0"},
    {"a last vector that another slice shares is copied", kRing, "(behind < whole ? behind : whole) - first",
     "behind - first"},
    {"a vector that two chunks share is copied for the second alone", kRing,
     "(past + count + kVector - 1) / kVector", "(past + count) / kVector"},
    {"the first vector is left out, but as many are copied", kRing,
     "(behind < whole ? behind : whole) - first", "behind < whole ? behind : whole"},
    {"vectors go to places as if none were left out", kRing, "ring.chunk(at) + first * kVector",
     "ring.chunk(at)"},
    {"chunks are copied from where the row begins, not its first vector", kRing, "from - past + begin",
     "from + begin"},
    {"fewer bytes are awaited than come", kRing, "(ring.filled + at.index, bytes + others);",
     "(ring.filled + at.index, 16);"},
    {"consumers take x before its sum stands", kRing, "(kKeepsSum ? summed : filled) + at.index",
     "filled + at.index"},
    {"a residual comes before the one in its place is added", kRing,
     "if constexpr (kKeepsSum) hw::barrier_wait(ring.added + at.residual.index, at.residual.phase ^ 1);", ""},
    {"the sum stands before all lanes have written it", kRing, "to the same place\n    hw::warp_barrier();",
     "to the same place"},

    {"lanes without an element read behind the last", kScalar, "has(i) ? i * kOf : count - 1 - lane",
     "i * kOf"},
    {"lanes without an element read as far behind the last as they are", kScalar,
     "i * kOf : count - 1 - lane", "i * kOf : count - 1"},
    {"a lane without an element takes part", kScalar, "if (own.has(first + i)) take(", "take("},
    {"a lane without an element counts one", kScalar, "columns += own.has(first + i);", "++columns;"},
    {"elements taken later are those taken first", kScalar, "lane + offset(first + i)", "lane + offset(i)"},
    {"measured as if the row began aligned", kScalar, "const Input* chunk = ring.wait(at) + past;",
     "const Input* chunk = ring.wait(at);"},
    {"a row of one chunk is measured as if it began aligned", kScalar,
     "take<kOfRow>(values, ring.wait(at) + past,", "take<kOfRow>(values, ring.wait(at),"},
    {"normalized as if the row began aligned", kScalar, "take<kEach>(x, ring.wait(at) + past,",
     "take<kEach>(x, ring.wait(at),"},
    {"y begins as far behind an aligned place as x", kScalar, "= sink.y + c * kSpan + own.lane;",
     "= sink.y + past + c * kSpan + own.lane;"},
    {"a chunk is freed whenever a part of it is measured", kScalar,
     "      seen += columns;\n    }\n  ring.leave(at, loaded, zero);",
     "      seen += columns;\n      ring.leave(at, loaded, zero);\n    }"},
    {"a row of one chunk is freed before it is measured", kScalar,
     "own.template take<kOfRow>(values, ring.wait(at) + past, 0, loaded);\n"
     "  ring.leave(at, loaded, zero);",
     "const Input* const from = ring.wait(at) + past;\n"
     "  ring.leave(at, loaded, zero);\n"
     "  own.template take<kOfRow>(values, from, 0, loaded);"},
    {"a chunk is freed before it is taken", kScalar,
     "own.template take<kEach>(x, ring.wait(at) + past, 0, loaded);\n    ring.leave(at, loaded, zero);",
     "const Input* const from = ring.wait(at) + past;\n"
     "    ring.leave(at, loaded, zero);\n"
     "    own.template take<kEach>(x, from, 0, loaded);"},
    {"all columns of a warp count where it measures a row at once", kScalar,
     "own, 0}, Acc(columns > 0 ? columns : 1)", "own, 0}, Acc(kOfRow * kWarp)"},
    {"the last chunk of a slice is applied as a whole one", kScalar,
     "columns_of_part(part.slice) - c * kSpan;", "kSpan;"},
    {"the weights of the first chunk are kept for all", kScalar, "ask(kept[c], c)", "ask(kept[c], 0)"},
    {"all chunks have the weights kept for the first", kScalar, "kept[kKeeps ? c : 0]", "kept[0]"},
    {"weights of the chunk before are asked for, one by one", kScalar, "ask(kept[0], c + 1)",
     "ask(kept[0], c)"},
    {"weights are asked for before those of now are taken", kScalar, "const Kept now = kept",
     "const Kept& now = kept"},
    {"the first chunk has the weights of the last", kScalar, "if constexpr (!kKeeps) ask(kept[0], 0);", ""},
    {"all weights of a chunk are those of its lane's first", kScalar, "columns.at[p] + from + own.offset(i)",
     "columns.at[p] + from"},
    {"all chunks have the weights of the slice's first", kScalar, "const int from = c * kSpan + own.lane;",
     "const int from = own.lane;"},
    {"all slices have the parameters of the first", kScalar, "columns(of_row.from(part.begin(0)))",
     "columns(of_row)"},

    {"the ring is freed by those who apply alone", kPersistentRow, "4 + kThreadsPerRow / kWarp",
     "kThreadsPerRow / kWarp"},
    {"the ring is freed by those who measure alone", kPersistentRow, "4 + kThreadsPerRow / kWarp", "4"},
    {"the sum stands when one warp has written its part", kPersistentRow, "barrier_init(summed + i, 4)",
     "barrier_init(summed + i, 1)"},
    {"the residual is added when one warp has its part", kPersistentRow, "barrier_init(added + i, 4)",
     "barrier_init(added + i, 1)"},
    {"the first chunk is not measured", kPersistentRow, "all = Statistics::merge(all,",
     "if (seen > 0) all = Statistics::merge(all,"},
    {"all chunks weigh as much as the first", kPersistentRow, "seen, of_chunk, Acc(own)",
     "Acc(own), of_chunk, Acc(own)"},
    {"the last chunk of a slice counts as a whole one", kPersistentRow, "left < kWarp ? left : kWarp;",
     "kWarp;"},
    {"columns of a row that begins anywhere are dealt in vectors", kPersistentRow,
     "kDealt = kUnaligned ? 1 : kVector", "kDealt = kVector"},
    {"statistics are merged before all warps have measured", kPersistentRow, "barrier_init(measured + i, 4)",
     "barrier_init(measured + i, 1)"},
    {"statistics are merged before they stand", kPersistentRow,
     "hw::barrier_wait(ready + state.index, state.phase);\n    return", "return"},
    {"rows are written before their statistics stand", kPersistentRow,
     "hw::barrier_wait(ready + state.index, state.phase);\n      const Source", "const Source"},
    {"statistics are announced before they are written", kPersistentRow,
     "known[state.index] = statistics;\n      hw::barrier_arrive(ready + state.index);",
     "hw::barrier_arrive(ready + state.index);\n      known[state.index] = statistics;"},
    {"every slice stores the statistics", kPersistentRow, "if (part.slice == 0) store", "store"},
    {"weights of the chunk before are asked for", kPersistentRow, "ask(c + kAsked, k)", "ask(c, k)"},
    {"weights of the first chunk are held for all", kPersistentRow, "held[p][c * kPerThread + k] = load",
     "held[p][k] = load"},
    {"one lane alone brings the ends of slices", kPersistentRow, "kUnaligned ? warp == 0 : threadIdx.x == 0",
     "threadIdx.x == 0"},
    {"all slices write at the row's begin", kPersistentRow, "sink_of(on, row, part.begin(0), by)",
     "sink_of(on, row, 0, by)"},
    {"x is read before the launch in front is done", kPersistentRow, "hw::wait_for_previous_launch();", ""},
    {"all slices have the parameters of the first", kPersistentRow, "columns(of_row.from(part.begin(0)))",
     "columns(of_row)"},
    {"parameters that are not held are the first one", kPersistentRow,
     "to.at[p] = load<hw::Cache::evict_last>(columns.at[p]",
     "to.at[p] = load<hw::Cache::evict_last>(columns.at[0]"},

    {"no barrier before staged elements are read", kUnaligned, "= fragment.edge[i];\n  lanes_barrier();",
     "= fragment.edge[i];"},
    {"no barrier before staged elements are written over", kUnaligned,
     "  lanes_barrier();\n#pragma unroll\n  for (int j", "#pragma unroll\n  for (int j"},
    {"no barrier before results are read", kUnaligned, "= done[j].at[i];\n  lanes_barrier();",
     "= done[j].at[i];"},
    {"no barrier before the next row is staged", kUnaligned,
     "out[to.edge(edge_of(i, lane))]);\n  lanes_barrier();", "out[to.edge(edge_of(i, lane))]);"},
    {"the last element of y is lost", kUnaligned, "edge_of(i, lane) < to.edges()",
     "edge_of(i, lane) + 1 < to.edges()"},
    {"the last element of x is lost", kUnaligned, "edge_of(i, lane) < cut.edges()",
     "edge_of(i, lane) + 1 < cut.edges()"},
    {"y is cut like x", kUnaligned, "const Cut to = cut_of(y, cut.count);", "const Cut to = cut;"},
    {"a bias that is not aligned to two is read in twos", kUnaligned, "p < kParameters; ++p)\n      together",
     "p < kHasWeight; ++p)\n      together"},
    {"a weight that is not aligned to two is read in twos", kUnaligned,
     "p = 0; p < kParameters; ++p)\n      together", "p = 1; p < kParameters; ++p)\n      together"},

    {"a row of the ring is used again while others need it", kSplitRow,
     "if (turn > 0) hw::wait_until(&w.ring[slot].applied, turn * kChunks);", ""},
    {"only the first turn of the ring is waited for", kSplitRow, "turn * kChunks);  // the ring row is free",
     "kChunks);"},
    {"statistics of a chunk are published before they are written", kSplitRow,
     "w.chunks[slot * kChunks + chunk].statistics = all;\n"
     "  return hw::arrive(&w.ring[slot].measured) + 1 == (turn + 1) * kChunks;",
     "const bool last = hw::arrive(&w.ring[slot].measured) + 1 == (turn + 1) * kChunks;\n"
     "  w.chunks[slot * kChunks + chunk].statistics = all;\n"
     "  return last;"},
    {"a row is complete at its first turn only", kSplitRow, "(turn + 1) * kChunks;", "kChunks;"},
    {"statistics are published before they are written", kSplitRow,
     "w.known[slot].statistics = statistics;\n    hw::arrive(&w.ring[slot].ready);",
     "hw::arrive(&w.ring[slot].ready);\n    w.known[slot].statistics = statistics;"},
    {"the last chunk counts as a whole one", kSplitRow, "widened(columns_of_chunk(i), base)",
     "widened(kSpan, base)"},
    {"a ticket is taken twice", kSplitRow, "claimed[half] = next;",
     "claimed[half] = hw::take_ticket(&w.header->next_ticket);"},
    {"a ticket is worked on twice", kSplitRow,
     "next = hw::take_ticket(&w.header->next_ticket);\n"
     "    }\n"
     "    hw::block_barrier();\n"
     "    if (completes",
     "}\n    hw::block_barrier();\n    if (completes"},
    {"the statistics of the wrong half are published", kSplitRow, "parts + (half ^ 1) * kWarps",
     "parts + half * kWarps"},
    {"the halves of the shared memory do not take turns", kSplitRow, "half ^= 1", "half ^= 0"},
    {"the batch is whole when rows are left over", kSplitRow,
     "on.rows - row < kBatch ? static_cast<int>(on.rows - row) : kBatch", "kBatch"},
    {"the statistics are read before they stand", kSplitRow,
     "hw::wait_until(&w.ring[slot].ready, w.turn(row + lane) + 1);", ""},
    {"the ring row is given back before it is read", kSplitRow,
     "statistics[lane] = w.known[slot].statistics;\n"
     "        hw::arrive(&w.ring[slot].applied);  // this block needs the ring row no more",
     "hw::arrive(&w.ring[slot].applied);\n        statistics[lane] = w.known[slot].statistics;"},
    {"all rows of a batch are normalized like the first", kSplitRow, "statistics[i], early",
     "statistics[0], early"},
    {"all rows of a batch are the first", kSplitRow, "source_of(on, row + i, begin)",
     "source_of(on, row, begin)"},
    {"the counters of the ring are not reset", kSplitRow, "w.ring[i] = {};", ";"},
    {"the tickets are not reset", kSplitRow,
     "if (first) w.header->next_ticket = w.header->finished_blocks = 0;", ""},
    {"statistics take more room than the workspace has", kSplitRow, "struct alignas(16) ChunkStatistics",
     "struct alignas(64) ChunkStatistics"},
    {"other kernels' counters are written to", kSplitRow, "KnownRow*>(meeting + 1)",
     "KnownRow*>(w.ring + w.ring_rows)"},
    {"the counter of tags is reset", kSplitRow, "w.header->next_ticket = w.header->finished_blocks = 0;",
     "*w.header = {};"},
    {"chunks of rows of a batch are cut like the first", kSplitRow, "cut_of(from_row.x, cut.count)", "cut"},
    {"x is read before the launch in front is done", kSplitRow, "hw::wait_for_previous_launch();", ""},
    {"each thread has another chunk's mean as its base", kSplitRow, "chunks[0].statistics.centre()",
     "chunks[threadIdx.x % kChunks].statistics.centre()"},
    {"all rows of a batch are written to the first", kSplitRow, "added, sink_of(on, row + i, begin, by)",
     "added, sink_of(on, row, begin, by)"},
    {"early parameters of all chunks are those of the first", kSplitRow, "columns_of(on, row).from(begin)",
     "columns_of(on, row)"},
    {"a sum that is not exact is read again", kSplitRow,
     "if (now) load<hw::Cache::evict_first>(fragment, from, lane, cut);", ""},

    {"the products of a part are not moved to the row's mean", kGradients, "sums.gd + sums.g * apart",
     "sums.gd"},
    {"the squares of a part are not moved to the row's mean", kGradients,
     "sums.squares + apart * (2 * sums.distances + own * apart)", "sums.squares"},
    {"the products keep the distance of the mean from its part's", kGradients, "gd -= sums.g * s.mean_lo;",
     ""},
    {"dx has no mean of g", kGradients, "hw::fma(g_of_element, statistics.rstd, -g)",
     "g_of_element * statistics.rstd"},
    {"dx has no mean of g * n", kGradients, "return hw::fma(-n, gn,", "return hw::fma(-n, 0 * gn,"},
    {"the mean of g * n is not normalized", kGradients, "s.rstd * (s.rstd * (gd * kShare))",
     "s.rstd * (gd * kShare)"},
    {"dsum is not added", kGradients, "if constexpr (kAddsDsum) v += widen(dsum, i);", ""},
    {"1 is not added to the weight", kGradients, "kWeightOffset ? weight + Acc(1) : weight", "weight"},
    {"dx is of dy without the weight", kGradients, "row.dx(weights.times(da, k, i), n)", "row.dx(da, n)"},
    {"dweight is of dy alone", kGradients, "of[0][e] += da * n;", "of[0][e] += da;"},
    {"dbias is added to dweight", kGradients, "of[kWritesDweight][e] += da;", "of[0][e] += da;"},
    {"the gate does not multiply what is normalized", kGradients,
     "return widen(x, i) * through<GateFunction::chosen>(widen(gate, i));", "return widen(x, i);"},
    {"the gate does not multiply what arrives", kGradients,
     "return widen(dy, i) * through<GateFunction::chosen>(widen(gate, i));", "return widen(dy, i);"},
    {"rows of the gate lie as far apart as those of x", kGradients, "on.gate + begin_of(on.gate_rows, row)",
     "on.gate + begin_of(on.x_rows, row)"},
    {"rows of dgate lie as far apart as those of dx", kGradients, "begin_of(on.dgate_rows, number)",
     "begin_of(on.dx_rows, number)"},
    {"dx is that of the product with the gate", kGradients, "v *= of_gate.factor;", ""},
    {"dgate has no x", kGradients, "narrow<Mod>(v * widen(x, i) * of_gate.slope)",
     "narrow<Mod>(v * of_gate.slope)"},
    {"dgate has no slope", kGradients, "weights.argument(n, k, i) * of_gate.slope)",
     "weights.argument(n, k, i))"},
    {"the slope of sigmoid is that of silu", kDerivatives, "return {s, s * (Acc(1) - s)};",
     "return {s, logistic_derivative(v, s, Acc(1))};"},
    {"the slope of tanh is 1", kDerivatives, "return {t, Acc(1) - t * t};", "return {t, Acc(1)};"},
    {"the argument of the activation has no bias", kGradients,
     "return weighted + widen(bias[kNeedsBias ? k : 0], i);", "return weighted;"},
    {"the argument of the activation has no weight", kGradients, "const Acc weighted = times(n, k, i);",
     "const Acc weighted = n;"},
    {"dy is not scaled", kGradients, "if constexpr (kScale<Acc> != Acc(1)) dy *= kScale<Acc>;", ""},
    {"the sums of g * n are moved to another mean", kGradients, "kWeighs ? sums.gd : sums.gd", "sums.gd"},
    {"behind an activation the mean of g * n is normalized twice", kGradients,
     "s.rstd * (sums.gd * kShare)};", "s.rstd * (s.rstd * (sums.gd * kShare))};"},
    {"behind an activation g is weighed as dy", kGradients, "const Acc g = weights.times(da, k, i);",
     "const Acc g = weights.times(widen(dy, i), k, i);"},
    {"the derivative of gelu at v is that at -v", kDerivatives, "v < 0 ? lower : 1.0f - lower", "lower"},
    {"infinities are multiplied by zero", kDerivatives, "hw::max_nan(hw::min_nan(v, 1000.0f), -1000.0f)",
     "v"},
    {"the derivative of relu is that of NaN, too", kDerivatives, ": v <= 0 ? Acc(0) : v;", ": Acc(0);"},
    {"statistics are merged before all warps have measured", kGradientRows,
     "exchanged->measured[warp] = measured;\n    hw::block_barrier();",
     "exchanged->measured[warp] = measured;"},
    {"sums of g are added before all warps have weighed", kGradientRows,
     "exchanged->weighed[warp].of = weighed;\n    hw::block_barrier();",
     "exchanged->weighed[warp].of = weighed;"},
    {"the part of the last block is left out", kGradients, "part = share; part < parts;",
     "part = share; part + 1 < parts;"},
    {"parts are added before all are there", kGradients,
     "across[threadIdx.x / kWarp * kLanes + of_group] = total;\n    hw::block_barrier();",
     "across[threadIdx.x / kWarp * kLanes + of_group] = total;"},
    {"the next launch finds a counter that is not zero", kGradients,
     "header.next_ticket = header.finished_blocks = 0;", "header.next_ticket = 0;"},
    {"sums over rows are those of half of the rows of a warp", kGradientRows,
     "int mask = kThreadsPerRow; mask < kWarp; mask *= 2) sums[e]",
     "int mask = 2 * kThreadsPerRow; mask < kWarp; mask *= 2) sums[e]"},
    {"lanes beyond the last row write", kGradientRows, "const bool works = kRows == 1 || row < on.rows;",
     "const bool works = true;"},
    {"what warps have measured of a row is overwritten by the next", kGradientRows, "half ^= kWarps;", ""},
    {"blocks add the parts before they have met", kGradients, "wait_for_meeting(header, number);", ""},
    {"the block with the last rows adds the parts", kGradients, "is_last[0] = leaves_last(meeting.header);",
     "is_last[0] = blockIdx.x + 1 == gridDim.x;"},
    {"a block leaves before all of it has written", kGradients,
     "hw::block_barrier();\n    if (threadIdx.x == 0) is_last[0]", "if (threadIdx.x == 0) is_last[0]"},
    {"x is read before the launch in front is done", kGradientRows, "hw::wait_for_previous_launch();", ""},
    {"a place is filled again while the row before is written", kGradientRing,
     "ring.fill(turn.before<kLag + 1>(), on, row + (kStages - kLag - 1) * teams, begin, count);",
     "ring.fill(turn.before<kLag>(), on, row + (kStages - kLag) * teams, begin, count);"},
    {"rows are read before they have arrived", kGradientRing,
     "} else if (measures) {\n      hw::barrier_wait(filled + turn.place, turn.phase);",
     "} else if (measures) {"},
    {"rows behind an activation are read before they have arrived", kGradientRing,
     "if (measures) {\n      hw::barrier_wait(filled + turn.place, turn.phase);\n      PlacePart part = "
     "part_at(turn.place);\n      first",
     "if (measures) {\n      PlacePart part = part_at(turn.place);\n      first"},
    {"a row is weighed with the statistics of none", kGradientRing,
     "if (i > 0) all = kInCluster ? merge_slices(i - 1) : merge_parts(i - 1);", ""},
    {"a row is written with the statistics of the next", kGradientRing,
     "gradient_of(measured, exchanged.sums)", "gradient_of(statistics_of(exchanged), exchanged.sums)"},
    {"the phase of a place does not flip", kGradientRing, "place = 0, phase ^= 1;", "place = 0;"},
    {"a row is written before the block has measured it", kGradientRing,
     "hw::block_barrier();\n    // All have", "// All have"},
    {"the slices of a row are merged before they have arrived", kGradientRing,
     "hw::barrier_wait(arrived + i % kSliceDepth, i / kSliceDepth % 2);", ""},
    {"two parts of a row are kept", kGradientRing, "kPartDepth = 3", "kPartDepth = 2"},
    {"two slices of a row are kept", kGradientRing, "kSliceDepth = 4", "kSliceDepth = 2"},
    {"each block of a cluster has the whole row's columns", kGradientRing,
     "[&](int s) { return columns_of_slice(s); }", "[&](int s) { return kSpan; }"},
    {"the sums of a slice are those of the first", kGradientRing, "s, teams, team) + begin",
     "s, teams, team)"},
    {"x is read before the launch in front is done", kGradientRing, "hw::wait_for_previous_launch();", ""},
    {"a batch is written before all of it is measured", kGradientColumns,
     "wait_for_meeting(*w.header, batch);", ""},
    {"blocks add the parts before they have met", kGradientColumns, "meet_and_add(on, *w.header, steps,",
     "meet_and_add(on, *w.header, 0,"},
    {"a batch is weighed with the sums of g, which are not there yet", kGradientColumns,
     "share_out<false>(w, batch, rows, share, gradients);",
     "share_out<true>(w, batch, rows, share, gradients);"},
    {"sums of g are added before all warps have weighed", kGradientColumns,
     "weighed[half + lane / kWarp].of = own;\n      hw::block_barrier();",
     "weighed[half + lane / kWarp].of = own;"},
    {"what is measured of a batch is overwritten by the next", kGradientColumns,
     "batch % kBatches * kGroupRows + row", "row"},
    {"the first batch does not begin the sums", kGradientColumns, "share, chunk, sums, batch == 0)",
     "share, chunk, sums, false)"},
    {"blocks that share columns have all rows each", kGradientColumns,
     "row < rows; row += share.sharing) {\n        const", "row < rows; ++row) {\n        const"},
    {"blocks that share columns weigh all rows each", kGradientColumns,
     "row < rows; row += share.sharing) {\n      const", "row < rows; ++row) {\n      const"},
    {"a chunk's sums keep its own mean", kGradientColumns, "part.mean - base);", "0.0);"},
    {"the last chunk counts as whole", kGradientColumns, "of.distances}, columns_of_chunk(i),",
     "of.distances}, kSpan,"},
    {"what warps have measured of a chunk is overwritten by the next", kGradientColumns,
     "half ^= kWarps;\n  }\n}\n\n// The columns", "}\n}\n\n// The columns"},
    {"what warps have weighed of a row is overwritten by the next", kGradientColumns,
     "half ^= kWarps;\n    }\n  }", "}\n  }"},
    {"x is read before the launch in front is done", kGradientColumns, "hw::wait_for_previous_launch();", ""},
};

// ---- Automatic mutants ----

enum class Kind { word, number, symbol, skipped };
struct Token {
  Kind kind;
  std::size_t at, length;
};

constexpr std::string_view kSymbols[] = {  // the longer first
    "<<=", ">>=", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=",
    "&&",  "||",  "+=", "-=", "*=", "/=", "%=", "^=", "|=", "&=", "::"};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\n'; }

class Mutator {
 public:
  Mutator(std::string_view file, std::string_view text) : file_(file), text_(text) { scan(); }

  std::vector<Mutant> all() {
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const Token& token = tokens_[i];
      if (token.kind == Kind::word && is(i, "hw") && is(i + 1, "::")) primitive(i);
      if (token.kind == Kind::number) number(i);
      if (token.kind == Kind::symbol && binary(token)) operators(i);
      if (token.kind == Kind::symbol && unary(i)) replace(token, "");
    }
    return std::move(mutants_);
  }

 private:
  // A token is a word, a number, or an operator. What is left alone ends up as one skipped token.
  void scan() {
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t length = length_at(at);
      if (!is_blank(text_[at])) tokens_.push_back({kind_at(at), at, length});
      at += length;
    }
  }

  bool starts(std::size_t at, std::string_view what) const { return text_.substr(at, what.size()) == what; }
  bool skipped(std::size_t at) const {
    return starts(at, "//") || text_[at] == '#' || starts(at, "static_assert");
  }

  Kind kind_at(std::size_t at) const {
    if (skipped(at)) return Kind::skipped;
    return is_digit(text_[at]) ? Kind::number : is_word(text_[at]) ? Kind::word : Kind::symbol;
  }

  std::size_t length_at(std::size_t at) const {
    if (starts(at, "static_assert")) return text_.find(';', at) - at;
    if (skipped(at)) return std::min(text_.find('\n', at), text_.size()) - at;
    if (is_word(text_[at])) {
      std::size_t end = at;
      const auto more = [&](char c) { return is_word(c) || (is_digit(text_[at]) && c == '.'); };
      while (end < text_.size() && more(text_[end])) ++end;
      return end - at;
    }
    for (const std::string_view symbol : kSymbols)
      if (starts(at, symbol)) return symbol.size();
    return 1;
  }

  std::string_view text_of(const Token& token) const { return text_.substr(token.at, token.length); }
  bool is(std::size_t i, std::string_view what) const {
    return i < tokens_.size() && text_of(tokens_[i]) == what;
  }

  // hw::NAME(...): `i` is at hw.
  void primitive(std::size_t i) {
    constexpr std::array kOrdering = {"block_barrier",
                                      "warp_barrier",
                                      "arrive",
                                      "wait_until",
                                      "cluster_enter",
                                      "cluster_entered",
                                      "send",
                                      "publish",
                                      "gather",
                                      "copies_commit",
                                      "copies_wait",
                                      "barrier_init",
                                      "barriers_ready",
                                      "barrier_wait",
                                      "barrier_arrive",
                                      "barrier_arrive_after",
                                      "barrier_arrive_expect",
                                      "bulk_load",
                                      "wait_for_previous_launch"};
    const Token& name = tokens_[i + 2];
    if (std::find(kOrdering.begin(), kOrdering.end(), text_of(name)) == kOrdering.end()) return;
    if (is(i + 2, "arrive")) replace(name, "take_ticket");
    const std::size_t begin = tokens_[i].at, end = text_.find(';', begin);
    const bool statement = i == 0 || is(i - 1, ";") || is(i - 1, "{") || is(i - 1, "}") || is(i - 1, ")");
    if (statement) replace({Kind::word, begin, end - begin}, "(void)0");
  }

  // A number, at i.
  void number(std::size_t i) {
    const Token& token = tokens_[i];
    const std::string_view digits = text_of(token);
    if (digits.find('.') != std::string_view::npos) return replace(token, concat({"1.01f * ", digits}));
    const auto value = normjit::number<long long>(digits);
    if (!value) return;
    const auto added = [&](std::size_t sign) {
      return (is(sign, "+") || is(sign, "-")) && binary(tokens_[sign]);
    };
    if (*value == 0 || added(i - 1) || added(i + 1)) replace(token, shortest(*value + 1));
    if (*value != 0) replace(token, shortest(*value - 1));
  }

  bool binary(const Token& token) const {
    const std::size_t end = token.at + token.length;
    return token.at > 0 && is_blank(text_[token.at - 1]) && end < text_.size() && is_blank(text_[end]);
  }

  void operators(std::size_t i) {
    static constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
        {"<", "<="},  {"<=", "<"},  {">", ">="},  {">=", ">"}, {"==", "!="}, {"!=", "=="},
        {"&&", "||"}, {"||", "&&"}, {"+", "-"},   {"-", "+"},  {"*", "/"},   {"/", "*"},
        {"%", "/"},   {"<<", ">>"}, {">>", "<<"}, {"&", "|"},  {"^", "|"},   {"+=", "-="},
        {"-=", "+="}, {"*=", "/="}, {"/=", "*="}, {"^=", "|="}};
    if (is(i - 1, "template")) return;
    for (const auto& [from, to] : kChanges)
      if (is(i, from)) replace(tokens_[i], to);
  }

  // A minus, or a !, in front of an operand.
  bool unary(std::size_t i) const {
    if (is(i, "!")) return true;
    if (i == 0 || !is(i, "-") || is_blank(text_[tokens_[i].at + 1])) return false;
    const Token& before = tokens_[i - 1];
    return before.kind == Kind::symbol && !is(i - 1, ")") && !is(i - 1, "]");
  }

  void replace(const Token& token, std::string_view with) {
    std::size_t begin = text_.rfind('\n', token.at);
    begin = text_.find_first_not_of(' ', begin == std::string_view::npos ? 0 : begin + 1);
    const std::size_t behind = token.at + token.length, end = text_.find('\n', behind);
    const std::string_view line = text_.substr(begin, end - begin);
    const std::string becomes =
        concat({text_.substr(begin, token.at - begin), with, text_.substr(behind, end - behind)});
    mutants_.push_back({.file = std::string(file_),
                        .at = token.at,
                        .length = token.length,
                        .replacement = std::string(with),
                        .line = std::string(line),
                        .becomes = becomes,
                        .nth = ++seen_[concat({line, "\n", becomes})],
                        .fault = {}});
  }

  const std::string_view file_, text_;
  std::vector<Token> tokens_;
  std::vector<Mutant> mutants_;
  std::map<std::string, int> seen_;
};

std::size_t occurrences(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

std::string to_text(const Mutant& mutant) {
  if (!mutant.fault.empty()) return concat({mutant.file, ": ", mutant.fault});
  return concat({mutant.file, ": '", mutant.line, "' -> '", mutant.becomes, "'",
                 mutant.nth == 1 ? "" : concat({", occurrence ", shortest(mutant.nth)})});
}

std::vector<std::string> mutated_files() {
  std::vector<std::string> files;
  for (const EmbeddedFile& file : embedded_templates())
    if (file.name != "spec.cuh.in" && file.name != "hw.cuh") files.emplace_back(file.name);
  return files;
}

Result<std::vector<Mutant>> planted_faults() {
  std::vector<Mutant> mutants;
  for (const Fault& fault : kFaults) {
    const auto found = find_template("", fault.file);
    if (!found) return found.error();
    const std::string_view text = found->view();
    if (occurrences(text, fault.text) != 1)
      return Error{Code::BadTemplate,
                   concat({fault.file, ": the text of the planted fault '", fault.name,
                           "' must occur exactly once; it occurs ", shortest(occurrences(text, fault.text)),
                           " times. Plant the fault into what the file says now."})};
    mutants.push_back({.file = std::string(fault.file),
                       .at = text.find(fault.text),
                       .length = fault.text.size(),
                       .replacement = std::string(fault.becomes),
                       .line = {},
                       .becomes = {},
                       .fault = std::string(fault.name)});
  }
  return mutants;
}

std::vector<Mutant> automatic_mutants(std::string_view file, std::string_view text) {
  return Mutator(file, text).all();
}

Source mutated(const Source& source, const Mutant& mutant) {
  const std::string begin = concat({"#line 1 \"", mutant.file, "\"\n"});
  Source changed = source;
  changed.text.replace(source.text.find(begin) + begin.size() + mutant.at, mutant.length, mutant.replacement);
  return changed;
}

}  // namespace normjit::testing
