// SPDX-License-Identifier: Apache-2.0
// What to compute: one normalization, without the number of rows.
//
//   s = (x + in_bias) * g + residual                        (Gate::before, Residual::before; what it has)
//   s = [s]                                                 (Rounding::sum)
//   n = (s - mean) * rstd
//   n = [n]                                                 (Rounding::norm)
//   a = n * (weight + offset) + bias                        (offset: 1 with weight_offset, else 0)
//   a = a * (mod_scale + one) + mod_shift                   (one: 0 with plain_modulation, else 1)
//   y = scale * activation(a) * g                           (Gate::after)
//   y = residual + y                                        (Residual::after)
//   y = [y]                                                 (Rounding::y)
//   y = y / d, in 8 or 4 bits                               (Quantization; d of the tensor, a row or a block)
//
//   g = gate_function(gate + gate_table); mod_scale and mod_shift have a table added to them, too
//
//   layer: mean of s,    rstd = 1 / sqrt(variance of s + epsilon)
//   rms:   mean = 0,     rstd = 1 / sqrt(mean of s * s + epsilon)
//
//   backward: the gradients of y = scale * activation(m) * g, m = a * (offset + mod_scale) + mod_shift and
//   a = n * (weight + offset) + bias, from dy, that of y, and dsum, that of s; m is a without a modulation:
//   s = x * g                                                 (Gate::before)
//   d = dy * scale * activation'(m) * g                       (g: Gate::after)
//   dmod_scale = d * a, dmod_shift = d                        (Modulation; or their sums over groups of rows)
//   da = d * (offset + mod_scale)                             (Modulation; else da = d)
//   dgate = dy * scale * a * g'                               (Gate::after), the gradient of the gate
//   h = da * (weight + offset)
//   ds = rstd * (h - mean of h - n * mean of h * n) + dsum    (rms: without the mean of h), that of s
//   dx = ds * g, dgate = ds * x * g'                          (Gate::before; else dx = ds)
//   dweight = sum of da * n over all rows, dbias = sum of da
//   and of these what `need` says
//
// with mean and (biased) variance over each row of `columns` elements. Everything is computed in
// compute_type(), and rounded only where it is stored and where `rounding` says so. The number of rows and
// the distance between them are arguments of the launch. With channels_first the columns are the channels of
// NCHW, and the rows its positions. docs/algebra.md has the texts of other projects' norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/result.h"

namespace normjit {

// Element types. f16 is IEEE binary16, bf16 the upper half of an f32. For the output alone, of 8 bits: e4m3
// (4 bits of exponent, 3 of mantissa, no infinities, up to 448), e5m2 (an f16 without its lower half, up to
// 57344), and s8 (whole numbers from -128 to 127); of 4 bits: e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
// negatives). An element of e2m1 is a byte with two neighbouring columns, the even one in its lower half, so
// that a row has columns / 2 elements. Results beyond the largest number become it; NaN stays NaN, is 0 in s8
// and 6 in e2m1. e8m0 is for scales alone: the exponent of a power of two (ScaleFormat).
enum class DType : std::uint8_t { f16, bf16, f32, f64, e4m3, e5m2, s8, e2m1, e8m0 };

// The affine parameters: vectors of `columns` elements, or one for each row (NormSpec::affine_rows).
enum class Affine : std::uint8_t { none, weight, weight_bias };

// The statistics of a row: mean and variance, or the root of the mean square alone.
enum class Norm : std::uint8_t { layer, rms };

// Where a row of factors, the gate, multiplies: nowhere, x before the norm, or the result behind it.
enum class Gate : std::uint8_t { none, before, after };

// What a gate passes before it multiplies.
enum class GateFunction : std::uint8_t { none, silu, sigmoid, tanh };

// A scale of each row behind the affine, or a scale and a shift: adaptive norms.
enum class Modulation : std::uint8_t { none, scale, scale_shift };

// Where a second tensor of x's shape is added: nowhere, to x before the norm, or to the result behind it.
enum class Residual : std::uint8_t { none, before, after };

// What is rounded besides the outputs, so that a fused kernel has the bits of unfused ones: the sum in front
// of the norm, to the residual type; the normalized value in front of the affine, and the result in front of
// a quantization, to the input type.
enum class Rounding : std::uint8_t { none, sum, norm, sum_norm, y, sum_y, norm_y, sum_norm_y };

// What the result is divided by before it is rounded to 8 or 4 bits: nothing; a number that the caller gives
// (tensor_scale); or a number that the kernel finds and writes, for each row (row_scale), or for each block
// of 16 to 128 neighbouring columns of a row (block_scale). It is the largest magnitude of the row or block
// over the largest number of the output type (448, 57344, 127, 6). Of a row it is at least 1 / 512 of that
// number's inverse, and for s8 the f32 epsilon, 2^-23; of a block the magnitude counts as 1e-10 at least.
enum class Quantization : std::uint8_t { none, tensor, row, block_16, block_32, block_64, block_128 };

// How the scale of a block is stored: in f32; rounded up to a power of two, in f32 or as its exponent in a
// byte (e8m0: 2^(byte - 127), 255 is NaN); or times global_scale in e4m3. The block is divided by what is
// stored, which is over global_scale where there is one.
enum class ScaleFormat : std::uint8_t { f32, power_of_two, e8m0, e4m3 };

// Where the scale of block k of row r lies among those of all `rows` rows, K for each. R4 and R128 are the
// rows up to a multiple of 4 and of 128, K4 likewise; what is beyond the rows and K is written as zero.
//   rows            [rows, K]
//   columns         [K, R4]: the scales of a column of blocks are neighbours
//   packed_columns  [K4 / 4, R4] words of four bytes: block k in byte k % 4 of word (k / 4, r)
//   swizzled        [R128 / 128, K4 / 4] tiles of 512 bytes; block k of row r is byte
//                   r % 32 * 16 + r % 128 / 32 * 4 + k % 4 of tile (r / 128, k / 4)
enum class ScaleLayout : std::uint8_t { rows, columns, packed_columns, swizzled };

// A second result besides one that is quantized: y before the quantization, rounded to this type.
enum class Also : std::uint8_t { none, f16, bf16, f32 };

// Which gradients are written: dx, dweight and dbias as the affine has them, or some of these. dx stands for
// the gradients of all that each row has: for dgate, dmod_scale and dmod_shift, too.
enum class Need : std::uint8_t { all, dx, dx_dweight, dx_dbias, dweight_dbias, dweight, dbias };

// Applied to the value after norm and affine. gelu is exact (erf), gelu_tanh its tanh approximation, silu is
// v / (1 + exp(-v)). As in PyTorch, relu keeps NaN.
enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh, silu };

// As in spec texts; "?" for a value outside the enumeration.
NORMJIT_API std::string_view name(Norm) noexcept;          // "layernorm", "rmsnorm"
NORMJIT_API std::string_view name(DType) noexcept;         // "f16", "bf16", ..., "e2m1"
NORMJIT_API std::string_view name(Gate) noexcept;          // "none", "gate", "gateafter"
NORMJIT_API std::string_view name(GateFunction) noexcept;  // "none", "silu", "sigmoid", "tanh"
NORMJIT_API std::string_view name(Modulation) noexcept;    // "none", "mods", "mod"
NORMJIT_API std::string_view name(Residual) noexcept;      // "none", "add", "addafter"
NORMJIT_API std::string_view name(Rounding) noexcept;      // "none", "sum", "norm", "sum+norm", "y", ...
NORMJIT_API std::string_view name(Quantization) noexcept;  // "none", "tensor", "row", "16", ..., "128"
NORMJIT_API std::string_view name(ScaleFormat) noexcept;   // "f32", "p2", "e8m0", "e4m3"
NORMJIT_API std::string_view name(ScaleLayout) noexcept;   // "rows", "cols", "cols4", "sw"
NORMJIT_API std::string_view name(Also) noexcept;          // "none", "f16", "bf16", "f32"
NORMJIT_API std::string_view name(Affine) noexcept;        // "none", "w", "wb"
NORMJIT_API std::string_view name(Need) noexcept;          // "all", "dx", "dx+dw", ..., "db"
NORMJIT_API std::string_view name(Activation) noexcept;    // "none", "relu", ...
// Bytes of an element; of e2m1 of two columns.
constexpr int size_of(DType dtype) noexcept {
  constexpr int kSizes[] = {2, 2, 4, 8, 1, 1, 1, 1, 1};  // in the order of DType
  const auto index = static_cast<std::size_t>(dtype);
  return index < std::size(kSizes) ? kSizes[index] : 0;
}

// A plain value: copy it, compare it, build it with designated initializers. The defaults of the other dtypes
// follow `input`, so NormSpec{.columns = 64, .input = DType::f16} is f16 throughout.
struct NormSpec {
  Norm norm = Norm::layer;
  bool backward = false;     // the gradients of such a norm; x is what it normalized, its sum if it had one
  std::int64_t columns = 0;  // elements a row, 1 .. 2^31 - 1
  DType input = DType::f32;  // of x
  DType output = input;      // of y and dy
  DType weight = input;      // of weight, bias, in_bias and the tables; no meaning without them
  DType gradient_type = input;    // of dweight and dbias; no meaning without them
  DType residual_type = input;    // of residual, sum and dsum; no meaning without them
  DType modulation_type = input;  // of gate, mod_scale, mod_shift, their gradients; no meaning without them
  double epsilon = 1e-5;          // inside the root; >= 0, finite in the compute type
  bool in_bias = false;           // a vector of `columns` elements that is added to x
  Gate gate = Gate::none;
  GateFunction gate_function = GateFunction::none;
  bool gate_table = false;  // a vector of `columns` elements that is added to each row of the gate
  Residual residual = Residual::none;
  bool sum = false;   // also write s, rounded to residual_type
  bool dsum = false;  // backward: a gradient of the written sum is added to dx; no meaning in a forward
  Rounding rounding = Rounding::none;
  Affine affine = Affine::none;
  bool weight_offset = false;  // the weight is added to 1; no meaning without one
  bool affine_rows = false;    // a weight and a bias for each row; no meaning without them
  Modulation modulation = Modulation::none;
  bool plain_modulation = false;  // 1 is not added to the scale of the modulation
  bool modulation_table = false;  // vectors that are added to each row of the scale, and of the shift
  Activation activation = Activation::none;
  double scale = 1.0;  // multiplies the result; finite in the compute type
  Quantization quantization = Quantization::none;
  bool inverse_scale = false;  // tensor_scale is 1 / d; no meaning without it
  bool upper_bound = false;    // the magnitude of a row counts as upper_bound at most; by row alone
  ScaleFormat scale_format = ScaleFormat::f32;   // of blocks; no meaning without them
  ScaleLayout scale_layout = ScaleLayout::rows;  // likewise
  Also also = Also::none;
  bool amax = false;  // also write the largest magnitude of the result in front of its quantization
  // Also write mean and rstd of each row; for rms, rstd alone. Backward: they are given, as the forward wrote
  // them, and not computed again from x.
  bool statistics = false;
  // x, residual, y and sum are [samples, columns, Tensors::plane], and each position of a plane is a row.
  bool channels_first = false;
  Need need = Need::all;  // backward: which gradients are written; no meaning in a forward

  // Equal to the bit: epsilon and scale compare by representation.
  NORMJIT_API friend bool operator==(const NormSpec&, const NormSpec&) noexcept;
};

using LayerNormSpec = NormSpec;  // the name of 0.1

// The columns of a PyTorch-style normalized_shape: the product of 1 to 8 dimensions, each >= 1.
// Errors: BadRank, BadDimension, TooManyColumns.
NORMJIT_API Result<std::int64_t> columns_of(std::span<const std::int64_t> normalized_shape);

// The dimensions of block_scale for so many rows, padding included, in elements of its ScaleFormat, as its
// ScaleLayout has them: [rows, K], [K, R4], [K4 / 4, R4, 4] or [R128 / 128, K4 / 4, 512]. None if the spec,
// which must be valid, has no scales of blocks.
// Error: BadRows if rows is negative.
NORMJIT_API Result<std::vector<std::int64_t>> block_scale_shape(const NormSpec& spec, std::int64_t rows);

// Ok, or the first mistake in the order of the members: BadArgument (norm, gate, residual, rounding,
// modulation, quantization, scale_format, scale_layout, also, need), BadDimension, TooManyColumns, BadDType,
// BadEpsilon, BadAffine, BadActivation, BadScale. Then BadCombination, if
//   sum             there is neither in_bias, a gate nor a residual before the norm, and residual_type is the
//                   input
//   rounding        of the sum: there is none of these before the norm, or residual_type is neither of 16
//                   bits nor the compute type; of the norm: there is neither affine nor modulation, or the
//                   input is neither; of y: there is no quantization, or the input is neither
//   output          of 8 or 4 bits: the spec is computed in f64; s8: there is no quantization; e2m1: there
//                   are no blocks of 16 or 32 columns
//   quantization    the output is not of 8 or 4 bits; a block does not divide the columns
//   upper_bound     the output is not e4m3
//   scale_format    16 columns: neither e8m0 nor e4m3; 32: not e8m0; 64 and 128: e4m3
//   scale_layout    packed_columns: the format is not e8m0; swizzled: it is neither e8m0 nor e4m3
//   also            there is no quantization
//   amax            there is quantization by row or block, or the spec is computed in f64
//   activation      there is a gate behind the norm
//   backward        the spec has anything but norm, columns, types of 16 to 64 bits, epsilon, gate,
//                   gate_function, affine, weight_offset, modulation, plain_modulation, modulation_table,
//                   activation, scale, statistics, dsum and need; there is a gate and modulation
//   need            the affine has none of the gradients that are needed; there is dsum, and dx is not needed
//   channels_first  there is affine_rows, a gate, modulation, quantization by row or block, also or amax
NORMJIT_API Result<void> validate(const NormSpec& spec);

// The same norm with every meaningless member set to its default: the weight dtype without weights, a
// rounding to the compute type, the sign of a zero epsilon, a need of what the affine does not have. Every
// cache and comparison inside normjit works on canonical specs.
NORMJIT_API NormSpec canonical(const NormSpec& spec) noexcept;

// The canonical text of a valid spec, safe to paste into a shell:
//   layernorm|rmsnorm[_bwd]/cols=N/IN[/out=T][/w=T][/dw=T][/res=T][/mod=T]/eps=E[/inb]
//     [/gate|/gateafter, each also with :FUNCTION and :table][/add|/addafter][/sum][/dsum][/round=sum+norm+y]
//     [/w|/wb|/w1|/wb1, each also with :rows][/mod|/mods|/mod0|/mods0, each also with :table][/ACTIVATION]
//     [/scale=S][/q=tensor[:inv]|/q=row[:ub]|/q=16|32|64|128[:FORMAT][:LAYOUT]]
//     [/also=T][/amax][/stats][/cf][/need=dx+dw|dx+db|dw+db|dx|dw|db]
// _bwd: backward. dw: gradient_type. inb: in_bias. gate, gateafter, add, addafter: a gate or a residual
// before or behind the norm. sum: s is also written. 1: the weight is added to 1. rows: affine_rows. mod:
// modulation by scale and shift, mods: by a scale alone; 0: plain_modulation. table: gate_table or
// modulation_table. q: quantization; inv: inverse_scale; ub: upper_bound; FORMAT: p2, e8m0 or e4m3; LAYOUT:
// cols, cols4 or sw. cf: channels_first. need: the gradients that are written. Defaults are left out; numbers
// are the shortest decimals that read back to the same bits. parse_spec(to_text(spec)) == canonical(spec).
NORMJIT_API std::string to_text(const NormSpec& spec);

// Reads a spec text. After the norm the fields may come in any order, each at most once; `shape=64x256x256`
// may replace `cols=`. Every field but that one has a default. The result is canonical and valid. Errors:
// BadSpecText, and those of columns_of and validate.
NORMJIT_API Result<NormSpec> parse_spec(std::string_view text);

// The type in which a spec is computed, also that of mean and rstd: f64 if one of its tensors is f64, else
// f32.
NORMJIT_API DType compute_type(const NormSpec& spec) noexcept;

}  // namespace normjit
