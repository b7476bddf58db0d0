// SPDX-License-Identifier: Apache-2.0
// What to compute: one normalization, without the number of rows.
//
//   s = x + residual                                        (s = x without a residual)
//   y = scale * activation((s - mean) * rstd * weight + bias)
//
//   layer: mean of s,    rstd = 1 / sqrt(variance of s + epsilon)
//   rms:   mean = 0,     rstd = 1 / sqrt(mean of s * s + epsilon)
//
// with mean and (biased) variance over each row of `columns` elements. s is not rounded before it is
// normalized. The number of rows and the distance between them are arguments of the launch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "normjit/result.h"

namespace normjit {

// Element types. f16 is IEEE binary16, bf16 the upper half of an f32.
enum class DType : std::uint8_t { f16, bf16, f32, f64 };

// The affine parameters: vectors of `columns` elements.
enum class Affine : std::uint8_t { none, weight, weight_bias };

// The statistics of a row: mean and variance, or the root of the mean square alone.
enum class Norm : std::uint8_t { layer, rms };

// Where a second tensor of x's shape is added: nowhere, or to x before the norm.
enum class Residual : std::uint8_t { none, before };

// Applied to the value after norm and affine. gelu is exact (erf), gelu_tanh its tanh approximation, silu is
// v / (1 + exp(-v)). As in PyTorch, relu keeps NaN.
enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh, silu };

// As in spec texts; "?" for a value outside the enumeration.
NORMJIT_API std::string_view name(Norm) noexcept;        // "layernorm", "rmsnorm"
NORMJIT_API std::string_view name(DType) noexcept;       // "f16", "bf16", "f32", "f64"
NORMJIT_API std::string_view name(Residual) noexcept;    // "none", "add"
NORMJIT_API std::string_view name(Affine) noexcept;      // "none", "w", "wb"
NORMJIT_API std::string_view name(Activation) noexcept;  // "none", "relu", ...
NORMJIT_API int size_of(DType) noexcept;                 // bytes an element

// A plain value: copy it, compare it, build it with designated initializers. The defaults of `output` and
// `weight` follow the members before them, so NormSpec{.columns = 64, .input = DType::f16} is f16
// throughout.
struct NormSpec {
  Norm norm = Norm::layer;
  std::int64_t columns = 0;  // elements a row, 1 .. 2^31 - 1
  DType input = DType::f32;  // of x
  DType output = input;      // of y
  DType weight = input;      // of weight and bias; no meaning without them
  double epsilon = 1e-5;     // inside the root; >= 0, finite in the compute type
  Residual residual = Residual::none;
  bool sum = false;  // also write x + residual, rounded to the input dtype; needs a residual
  Affine affine = Affine::none;
  Activation activation = Activation::none;
  double scale = 1.0;       // multiplies the result; finite in the compute type
  bool statistics = false;  // also write mean and rstd of each row; for rms, rstd alone

  // Equal to the bit: epsilon and scale compare by representation.
  NORMJIT_API friend bool operator==(const NormSpec&, const NormSpec&) noexcept;
};

using LayerNormSpec = NormSpec;  // the name of 0.1

// The columns of a PyTorch-style normalized_shape: the product of 1 to 8 dimensions, each >= 1.
// Errors: BadRank, BadDimension, TooManyColumns.
NORMJIT_API Result<std::int64_t> columns_of(std::span<const std::int64_t> normalized_shape);

// Ok, or the first mistake in the order of the members: BadArgument (norm, residual), BadDimension,
// TooManyColumns, BadDType, BadEpsilon, BadAffine, BadActivation, BadScale. Then BadCombination: a sum
// without a residual; rms or a residual with rows of more than 16,384 columns, which this version does not
// serve.
NORMJIT_API Result<void> validate(const NormSpec& spec);

// The same norm with every meaningless member set to its default: the weight dtype without weights, the sign
// of a zero epsilon. Every cache and comparison inside normjit works on canonical specs.
NORMJIT_API NormSpec canonical(const NormSpec& spec) noexcept;

// The canonical text of a valid spec, safe to paste into a shell:
//   layernorm|rmsnorm/cols=N/IN[/out=T][/w=T]/eps=E[/add][/sum][/w|/wb][/ACTIVATION][/scale=S][/stats]
// add: a residual before the norm. sum: x + residual is also written. Defaults are left out; numbers are the
// shortest decimals that read back to the same bits. parse_spec(to_text(spec)) == canonical(spec).
NORMJIT_API std::string to_text(const NormSpec& spec);

// Reads a spec text. After the norm the fields may come in any order, each at most once; `shape=64x256x256`
// may replace `cols=`. Every field but that one has a default. The result is canonical and valid. Errors:
// BadSpecText, and those of columns_of and validate.
NORMJIT_API Result<NormSpec> parse_spec(std::string_view text);

// The type in which a spec is computed, also that of mean and rstd: f64 if one of its tensors is f64, else
// f32.
NORMJIT_API DType compute_type(const NormSpec& spec) noexcept;

}  // namespace normjit
