// SPDX-License-Identifier: Apache-2.0
#include "verify/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "verify/element.h"

namespace normjit::oracle {
namespace {

RowInputs inputs_at(const void* x, const void* weight = nullptr, const void* bias = nullptr) {
  RowInputs inputs{};
  inputs[Operand::x] = x;
  inputs[Operand::weight] = weight;
  inputs[Operand::bias] = bias;
  return inputs;
}

std::vector<double> values_of(const NormSpec& spec, const void* x, const void* weight, const void* bias) {
  std::vector<ReferenceValue> values(static_cast<std::size_t>(spec.columns));
  const RowInputs inputs = inputs_at(x, weight, bias);
  reference_values(spec, inputs, row_statistics(spec, inputs), 0, spec.columns, values.data());
  std::vector<double> result;
  for (const ReferenceValue& value : values) result.push_back(value.value);
  return result;
}

TEST(Reference, HandComputed) {
  const float x[] = {1, 2, 3, 6};  // mean 3, variance 14/4
  const NormSpec spec{.columns = 4, .epsilon = 0.5, .affine = Affine::weight_bias, .scale = 2};
  const RowStatistics statistics = row_statistics(spec, inputs_at(x));
  EXPECT_EQ(statistics.mean, 3);
  EXPECT_EQ(statistics.rstd, 0.5);  // 1 / sqrt(3.5 + 0.5)
  const float weight[] = {1, 2, 4, -1}, bias[] = {0, 1, 5, 0.5};
  EXPECT_EQ(values_of(spec, x, weight, bias), (std::vector<double>{-2, 0, 10, -2}));
}

TEST(Reference, RmsByHand) {
  const float x[] = {1, 2, 3, 6};  // mean square 50/4
  const NormSpec spec{.norm = Norm::rms, .columns = 4, .epsilon = 3.5, .affine = Affine::weight};
  const float weight[] = {4, 2, 4, -2};
  const RowStatistics statistics = row_statistics(spec, inputs_at(x));
  EXPECT_EQ(statistics.mean, 0);
  EXPECT_EQ(statistics.rstd, 0.25);  // 1 / sqrt(12.5 + 3.5)
  EXPECT_EQ(values_of(spec, x, weight, nullptr), (std::vector<double>{1, 1, 3, -3}));
}

TEST(Reference, AResidualIsAddedInFrontOfTheNorm) {
  const float x[] = {0, -1, 1, 2}, residual[] = {1, 3, 2, 4};  // sums 1, 2, 3, 6 as in HandComputed
  const NormSpec spec{.columns = 4, .epsilon = 0.5, .residual = Residual::before, .sum = true, .scale = 2};
  RowInputs inputs = inputs_at(x);
  inputs[Operand::residual] = residual;
  EXPECT_EQ(row_statistics(spec, inputs).mean, 3);
  EXPECT_EQ(row_statistics(spec, inputs).rstd, 0.5);
  double sums[2];
  reference_sums(spec, inputs, 2, 2, sums);
  EXPECT_EQ(sums[0], 3);
  EXPECT_EQ(sums[1], 6);
  ReferenceValue values[4];
  reference_values(spec, inputs, row_statistics(spec, inputs), 0, 4, values);
  EXPECT_EQ(values[0].value, -2);
  EXPECT_EQ(values[3].value, 3);
  EXPECT_EQ(values[3].magnitude, 3);     // 2 * |6 - 3| * 0.5, of the sum
  EXPECT_EQ(values[3].offset, 2 * 1.5);  // 2 * |mean of the sums| * rstd
}

// 2048 + 1 is no f16: the statistics and y are those of 2049 all the same.
TEST(Reference, TheSumIsNotRoundedBeforeTheNorm) {
  const double values[] = {2048, 2048}, one[] = {1, -1};
  std::uint16_t x[2], residual[2];
  store(DType::f16, x, 0, 2, values);
  store(DType::f16, residual, 0, 2, one);
  const NormSpec spec{
      .norm = Norm::layer, .columns = 2, .input = DType::f16, .epsilon = 0, .residual = Residual::before};
  RowInputs inputs = inputs_at(x);
  inputs[Operand::residual] = residual;
  EXPECT_EQ(row_statistics(spec, inputs).mean, 2048);
  EXPECT_EQ(row_statistics(spec, inputs).rstd, 1);
}

TEST(Reference, OneColumnIsItsBias) {
  const double x = 123.25, weight = 7, bias = -2;
  const NormSpec spec{.columns = 1, .input = DType::f64, .affine = Affine::weight_bias};
  EXPECT_EQ(values_of(spec, &x, &weight, &bias), std::vector<double>{-2});
}

TEST(Reference, ActivationsAtKnownPoints) {
  EXPECT_EQ(activate(Activation::none, -1.5), -1.5);
  EXPECT_EQ(activate(Activation::relu, -1.5), 0);
  EXPECT_EQ(activate(Activation::relu, 1.5), 1.5);
  EXPECT_TRUE(std::isnan(activate(Activation::relu, std::nan(""))));
  EXPECT_NEAR(activate(Activation::gelu, 1), 0.84134474606854294859, 2e-16);
  EXPECT_NEAR(activate(Activation::gelu, -1), -0.15865525393145705141, 2e-16);
  EXPECT_NEAR(activate(Activation::gelu_tanh, 1), 0.84119199060827676, 1e-15);
  EXPECT_NEAR(activate(Activation::gelu_tanh, -1), -0.15880800939172324, 1e-15);
  EXPECT_NEAR(activate(Activation::silu, 1), 0.73105857863000487926, 2e-16);
  EXPECT_NEAR(activate(Activation::silu, -1), -0.26894142136999512075, 2e-16);
  for (const Activation each : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    EXPECT_EQ(activate(each, 0), 0);
    EXPECT_EQ(activate(each, 100), 100);
    EXPECT_LE(std::fabs(activate(each, -100)), 1e-40);
  }
}

// The definitions by their textbook forms, where those are well conditioned.
TEST(Reference, ActivationsAgreeWithTheirDefinitions) {
  for (double v = -3; v <= 3; v += 0.125) {
    const double u = std::sqrt(2 / M_PI) * (v + 0.044715 * std::pow(v, 3));
    EXPECT_NEAR(activate(Activation::gelu, v), v / 2 * (1 + std::erf(v / std::sqrt(2))), 1e-15);
    EXPECT_NEAR(activate(Activation::gelu_tanh, v), v / 2 * (1 + std::tanh(u)), 1e-15);
    EXPECT_NEAR(activate(Activation::silu, v), v / (1 + std::exp(-v)), 1e-15);
  }
}

struct Naive {
  long double mean = 0, rstd = 0;
};
Naive naive(const std::vector<double>& x, double epsilon) {
  Naive result;
  for (const double value : x) result.mean += value;
  result.mean /= static_cast<long double>(x.size());
  long double squares = 0;
  for (const double value : x) squares += (value - result.mean) * (value - result.mean);
  result.rstd = 1 / std::sqrt(squares / static_cast<long double>(x.size()) + epsilon);
  return result;
}

// Every dtype and odd lengths, around the batches in which rows are read.
TEST(Reference, AgreesWithANaiveLongDoubleFormula) {
  std::mt19937 random(1);
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (const std::int64_t columns : {1, 2, 17, 1023, 1024, 1025, 5000}) {
      std::vector<double> x(static_cast<std::size_t>(columns));
      for (double& value : x) value = rounded(dtype, static_cast<double>(random() % 2000) / 300 - 3);
      std::vector<double> storage(x.size());
      store(dtype, storage.data(), 0, columns, x.data());

      const NormSpec spec{.columns = columns, .input = dtype, .epsilon = 1e-3};
      const RowStatistics statistics = row_statistics(spec, inputs_at(storage.data()));
      const Naive expected = naive(x, spec.epsilon);
      EXPECT_NEAR(statistics.mean, static_cast<double>(expected.mean), 1e-15);
      EXPECT_NEAR(statistics.rstd / static_cast<double>(expected.rstd), 1, 1e-15);
      const std::vector<double> values = values_of(spec, storage.data(), nullptr, nullptr);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(values[i], static_cast<double>((x[i] - expected.mean) * expected.rstd), 1e-14);
      }
    }
  }
}

// At this offset E[x^2] - mean^2 in double keeps no digit of the variance.
TEST(Reference, LargeOffsetsKeepTheirVariance) {
  std::vector<double> x(4096);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1e9 + (i % 2 == 0 ? 0.5 : -0.5);
  const NormSpec spec{.columns = 4096, .input = DType::f64, .epsilon = 0};
  EXPECT_EQ(row_statistics(spec, inputs_at(x.data())).mean, 1e9);
  EXPECT_EQ(row_statistics(spec, inputs_at(x.data())).rstd, 2);
}

TEST(Reference, LongRowsLoseNothing) {
  std::vector<double> x(1 << 20, 0.1);
  const NormSpec spec{.columns = 1 << 20, .input = DType::f64, .epsilon = 1};
  EXPECT_EQ(row_statistics(spec, inputs_at(x.data())).mean, 0.1);
  EXPECT_EQ(row_statistics(spec, inputs_at(x.data())).rstd, 1);
}

TEST(Reference, NaNAndInfinityMakeTheRowNaN) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const float x[] = {1, bad, 2};
    const NormSpec spec{.columns = 3};
    for (const double value : values_of(spec, x, nullptr, nullptr)) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Reference, MagnitudeMeasuresTheTerms) {
  const float x[] = {-1, 1}, weight[] = {100, 1}, bias[] = {100, 0};
  const NormSpec spec{.columns = 2, .epsilon = 0, .affine = Affine::weight_bias, .scale = -3};
  ReferenceValue values[2];
  const RowInputs inputs = inputs_at(x, weight, bias);
  reference_values(spec, inputs, row_statistics(spec, inputs), 0, 2, values);
  EXPECT_EQ(values[0].value, 0);  // 100 * -1 + 100
  EXPECT_EQ(values[0].magnitude, 600);
  EXPECT_EQ(values[1].value, -3);
  EXPECT_EQ(values[1].magnitude, 3);
}

// Where a kernel rounds the normalized value to the other side, an activation stretches that distance.
TEST(Reference, AnActivationIsInTheUnitOfARounding) {
  constexpr int kCount = 2048;
  std::vector<double> values;
  for (double value = -8; values.size() < kCount; value += 0x1p-7) values.push_back(value);
  std::vector<std::uint16_t> x(values.size());
  store(DType::f16, x.data(), 0, kCount, values.data());
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    const NormSpec spec{.columns = kCount,
                        .input = DType::f16,
                        .output = DType::f32,
                        .rounding = Rounding::norm,
                        .activation = activation,
                        .scale = -2};
    std::vector<ReferenceValue> found(values.size());
    reference_values(spec, inputs_at(x.data()), {.mean = 0, .rstd = 1}, 0, kCount, found.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double unit = unit_in_last_place(DType::f16, values[i]);
      for (const double other : {values[i] - unit, values[i] + unit})
        EXPECT_GE(found[i].unit * (1 + 1e-9), std::fabs(2 * activate(activation, other) + found[i].value))
            << values[i];
      EXPECT_LE(found[i].unit, 2 * 1.13 * unit * (1 + 1e-9));
    }
  }
}

// ---- Results of 8 bits ----

NormSpec of_8_bits(DType output, Quantization quantization, Rounding rounding = Rounding::none) {
  return {.columns = 4,
          .input = DType::bf16,
          .output = output,
          .rounding = rounding,
          .quantization = quantization};
}

TEST(Quantized, ByHand) {
  const NormSpec plain = of_8_bits(DType::e4m3, Quantization::none);
  EXPECT_EQ(quantized(plain, 17, 1), 16) << "a tie";
  EXPECT_EQ(quantized(plain, 19, 1), 20) << "a tie";
  EXPECT_EQ(quantized(plain, -1e9, 1), -448);
  NormSpec tensor = of_8_bits(DType::s8, Quantization::tensor);
  EXPECT_EQ(quantized(tensor, 5, 2), 2) << "2.5";
  EXPECT_EQ(quantized(tensor, 5, 0.01), 127);
  tensor.inverse_scale = true;
  EXPECT_EQ(quantized(tensor, 5, 2), 10);
  const NormSpec row = of_8_bits(DType::e5m2, Quantization::row);
  EXPECT_EQ(quantized(row, 3, 0.5), 6);
  EXPECT_TRUE(std::isnan(quantized(row, std::nan(""), 1)));
  EXPECT_EQ(quantized(of_8_bits(DType::s8, Quantization::row), std::nan(""), std::nan("")), 0);
}

TEST(Quantized, RoundsTheResultFirst) {
  const double y = 1 + 0x1p-8 + 0x1p-12;  // to bf16: 1 + 2^-7
  NormSpec spec = of_8_bits(DType::s8, Quantization::tensor);
  EXPECT_EQ(quantized(spec, y, 1 / 100.0), 100);
  spec.rounding = Rounding::y;
  EXPECT_EQ(quantized(spec, y, 1 / 100.0), 101);
}

// In the middle between two numbers of a type, where an error of one unit shows.
float tie_of(DType output) { return output == DType::e4m3 ? 2.125f : output == DType::e5m2 ? 2.25f : 2.5f; }

// 1 / 3 in f32 times 3 * 2.5 is not 7.5 / 3: a row of s8 is multiplied, others are divided.
TEST(Quantized, MultipliesOrDividesAsItSays) {
  for (const DType output : {DType::e4m3, DType::e5m2, DType::s8}) {
    const NormSpec spec = of_8_bits(output, Quantization::row);
    int differ = 0;
    for (int i = 1; i < 2000; ++i) {
      const float scale = static_cast<float>(i) / 700, y = tie_of(output) * scale;
      const double divided = rounded(output, y / scale), multiplied = rounded(output, y * (1 / scale));
      differ += divided != multiplied;
      EXPECT_EQ(quantized(spec, y, scale), output == DType::s8 ? multiplied : divided) << i;
    }
    EXPECT_GT(differ, 0) << name(output);
  }
}

// ---- Scales ----

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Largest, IsOfMagnitudesUpToAnError) {
  Largest largest;
  largest.add(-254, 0.5);
  largest.add(250, 1);
  EXPECT_EQ(largest.exact, 254);
  EXPECT_EQ(largest.least, 253.5);
  EXPECT_EQ(largest.most, 254.5);
  largest.add(0.25, 300);
  EXPECT_EQ(largest.least, 253.5);
  EXPECT_EQ(largest.most, 300.25);
  largest.add(1, kInfinity);
  EXPECT_EQ(largest.most, 300.25) << "bounds nothing";
  Largest all;
  all.add(260, 1);
  all.add(largest);
  EXPECT_EQ(all.exact, 260);
  EXPECT_EQ(all.least, 259);
  EXPECT_EQ(all.most, 300.25);
  largest.add(std::nan(""), 0);
  largest.add(400, 0);
  all.add(largest);
  all.add(500, 0);
  for (const double value : {all.least, all.exact, all.most}) EXPECT_TRUE(std::isnan(value));
}

TEST(Scale, OfARowHasAFloor) {
  const NormSpec s8 = of_8_bits(DType::s8, Quantization::row);
  EXPECT_EQ(scale_for(s8, 254, 1), 2);
  EXPECT_EQ(scale_for(s8, 1, 1), 1.0f / 127);
  EXPECT_EQ(scale_for(s8, 0, 1), 0x1p-23);
  const NormSpec e4m3 = of_8_bits(DType::e4m3, Quantization::row);
  EXPECT_EQ(scale_for(e4m3, 0, 1), 1.0f / (512 * 448));
  EXPECT_EQ(scale_for(e4m3, kInfinity, 1), kInfinity);
  EXPECT_TRUE(std::isnan(scale_for(e4m3, std::nan(""), 1)));
}

TEST(Scale, OfARowHasAnUpperBound) {
  NormSpec spec = of_8_bits(DType::e4m3, Quantization::row);
  EXPECT_EQ(scale_for(spec, 896, 448), 2) << "without one";
  spec.upper_bound = true;
  EXPECT_EQ(scale_for(spec, 896, 448), 1);
  EXPECT_EQ(scale_for(spec, 448, 896), 1);
  EXPECT_EQ(scale_for(spec, kInfinity, 448), 1);
  EXPECT_EQ(scale_for(spec, 448, 0), 1.0f / (512 * 448)) << "the floor is above it";
  EXPECT_EQ(scale_for(spec, 448, -1), 1.0f / (512 * 448));
  EXPECT_TRUE(std::isnan(scale_for(spec, std::nan(""), 448)));
  EXPECT_EQ(scale_for(spec, 896, std::nan("")), 2) << "a bound that is NaN bounds nothing";
}

TEST(Scale, IsOfRoundedResults) {
  const double y = 449.75;  // to bf16: 450
  NormSpec spec = of_8_bits(DType::e4m3, Quantization::row);
  EXPECT_EQ(scale_for(spec, y, 1), 449.75f / 448);
  spec.rounding = Rounding::y;
  EXPECT_EQ(scale_for(spec, y, 1), 450.0f / 448);
  spec.quantization = Quantization::block_128;
  EXPECT_EQ(scale_for(spec, y, 1), 450.0f / 448);
}

NormSpec of_blocks(DType output, ScaleFormat format) {
  const bool with_global = format == ScaleFormat::e4m3;
  return {.columns = 128,
          .output = output,
          .quantization = with_global ? Quantization::block_16 : Quantization::block_128,
          .scale_format = format};
}

TEST(Scale, OfABlockInF32) {
  for (const auto& [output, range] :
       {std::pair{DType::e4m3, 448.0f}, {DType::e5m2, 57344.0f}, {DType::s8, 127.0f}}) {
    const NormSpec spec = of_blocks(output, ScaleFormat::f32);
    EXPECT_EQ(scale_for(spec, 3, 1), 3.0f / range);
    EXPECT_EQ(scale_for(spec, 0, 1), 1e-10f / range);
    EXPECT_EQ(scale_for(spec, 0.9e-10, 1), 1e-10f / range);
    EXPECT_EQ(scale_for(spec, 1.5e-10, 1), 1.5e-10f / range);
    EXPECT_EQ(scale_for(spec, kInfinity, 1), kInfinity);
    EXPECT_TRUE(std::isnan(scale_for(spec, std::nan(""), 1)));
  }
}

TEST(Scale, OfABlockIsRoundedUpToAPowerOfTwo) {
  for (const ScaleFormat format : {ScaleFormat::power_of_two, ScaleFormat::e8m0}) {
    const NormSpec spec = of_blocks(DType::e4m3, format);
    EXPECT_EQ(scale_for(spec, 448, 1), 1) << "it is one";
    EXPECT_EQ(scale_for(spec, std::nextafter(448.0f, 449.0f), 1), 2);
    EXPECT_EQ(scale_for(spec, 3, 1), 0x1p-7) << "1 / 149";
    EXPECT_EQ(scale_for(spec, 0, 1), 0x1p-42) << "1e-10 / 448 is 2^-42.03";
    EXPECT_TRUE(std::isnan(scale_for(spec, std::nan(""), 1)));
    const NormSpec s8 = of_blocks(DType::s8, format);
    EXPECT_EQ(scale_for(s8, std::numeric_limits<float>::max(), 1), 0x1p122);
  }
  EXPECT_EQ(scale_for(of_blocks(DType::e4m3, ScaleFormat::power_of_two), kInfinity, 1), kInfinity);
  EXPECT_EQ(scale_for(of_blocks(DType::e4m3, ScaleFormat::e8m0), kInfinity, 1), 0x1p127);
}

TEST(Scale, OfABlockIn4Bits) {
  NormSpec spec = of_blocks(DType::e2m1, ScaleFormat::e4m3);
  EXPECT_EQ(scale_for(spec, 6, 2), 2);
  EXPECT_EQ(scale_for(spec, 3, 448), 224);
  EXPECT_EQ(scale_for(spec, 6, 1e6), 448);
  EXPECT_EQ(quantized(spec, 3, 1.25), 4) << "3.75";
  EXPECT_EQ(quantized(spec, 3, 0), 0);
  EXPECT_EQ(quantized(spec, 3, std::nan("")), 6) << "there is no NaN";
  spec.scale_format = ScaleFormat::e8m0;
  EXPECT_EQ(scale_for(spec, 6, 1), 1);
  EXPECT_EQ(scale_for(spec, 6.5, 1), 2);
  EXPECT_EQ(scale_for(spec, 0, 1), 0x1p-35) << "1e-10 / 6 is 2^-35.8";
  EXPECT_EQ(quantized(spec, 5, 4), 1) << "1.25, a tie";
}

TEST(Scale, OfABlockInE4m3IsTimesTheGlobalOne) {
  const NormSpec spec = of_blocks(DType::e4m3, ScaleFormat::e4m3);
  EXPECT_EQ(scale_for(spec, 448, 2), 2);
  EXPECT_EQ(scale_for(spec, 448, 17), 16) << "a tie";
  EXPECT_EQ(scale_for(spec, 448, 0x1p-9), 0x1p-9) << "the least";
  EXPECT_EQ(scale_for(spec, 448, 0x1p-11), 0);
  EXPECT_EQ(scale_for(spec, 0, 1e30), 0) << "no floor";
  EXPECT_EQ(scale_for(spec, 448, 1e6), 448);
  EXPECT_EQ(scale_for(spec, kInfinity, 1), 448);
  EXPECT_TRUE(std::isnan(scale_for(spec, std::nan(""), 1)));
  EXPECT_TRUE(std::isnan(scale_for(spec, 0, kInfinity)));
  EXPECT_EQ(factor_of(2, 3), 1.5);
  EXPECT_EQ(factor_of(0, 3), 0);
  EXPECT_EQ(factor_of(448, 1), 1.0f / 448);
  EXPECT_TRUE(std::isnan(factor_of(std::nan(""), 3)));
}

// Each product is rounded: what is rounded once, or divided, sometimes becomes another scale.
TEST(Scale, OfABlockInE4m3IsRoundedTwice) {
  int divided_differs = 0, at_once_differs = 0;
  for (const DType output : {DType::e4m3, DType::e5m2, DType::s8}) {
    const NormSpec spec = of_blocks(output, ScaleFormat::e4m3);
    const auto range = static_cast<float>(largest_quantized(output));
    const float inverse = 1 / range;
    for (int i = 0; i < 20000; ++i) {
      // Beside the middle between two scales, where it shows.
      const float largest = 1 + static_cast<float>(i) / 7000, global = 17 / (largest * inverse);
      const float product = largest * inverse, stored = global * product;
      EXPECT_EQ(scale_for(spec, largest, global), rounded(DType::e4m3, stored)) << largest;
      divided_differs += rounded(DType::e4m3, global * (largest / range)) != rounded(DType::e4m3, stored);
      at_once_differs +=
          rounded(DType::e4m3, static_cast<double>(global) * largest / range) != rounded(DType::e4m3, stored);
    }
  }
  EXPECT_GT(divided_differs, 0);
  EXPECT_GT(at_once_differs, 0);
}

TEST(Quantized, OfBlocksMultipliesOrDividesAsItSays) {
  for (const DType output : {DType::e4m3, DType::e5m2, DType::s8}) {
    int differ = 0;
    for (int i = 1; i < 2000; ++i) {
      const float scale = static_cast<float>(i) / 700, y = tie_of(output) * scale;
      const double divided = rounded(output, y / scale), by_inverse = rounded(output, y * (1 / scale));
      differ += divided != by_inverse;
      EXPECT_EQ(quantized(of_blocks(output, ScaleFormat::f32), y, scale),
                output == DType::s8 ? by_inverse : divided)
          << i;
      EXPECT_EQ(quantized(of_blocks(output, ScaleFormat::e4m3), y, scale), rounded(output, y * scale)) << i;
      for (const ScaleFormat format : {ScaleFormat::power_of_two, ScaleFormat::e8m0}) {
        EXPECT_EQ(quantized(of_blocks(output, format), y, 0x1p-3), rounded(output, y * 8)) << i;
        EXPECT_EQ(quantized(of_blocks(output, format), y, scale), by_inverse) << i;
      }
    }
    EXPECT_GT(differ, 0) << name(output);
  }
}

TEST(Quantized, OfBlocksWithoutAFiniteScale) {
  for (const DType output : {DType::e4m3, DType::e5m2, DType::s8}) {
    const auto is_nan = [&](double value) { return output == DType::s8 ? value == 0 : std::isnan(value); };
    for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::power_of_two}) {
      EXPECT_EQ(quantized(of_blocks(output, format), 1e38, kInfinity), 0);
      EXPECT_TRUE(is_nan(quantized(of_blocks(output, format), kInfinity, kInfinity)));
      EXPECT_TRUE(is_nan(quantized(of_blocks(output, format), 1, std::nan(""))));
    }
    const double range = rounded(output, 1e300);
    const NormSpec e8m0 = of_blocks(output, ScaleFormat::e8m0);
    EXPECT_EQ(quantized(e8m0, 0x1p127, 0x1p127), 1) << "the inverse is below the normal numbers";
    EXPECT_EQ(quantized(e8m0, kInfinity, 0x1p127), range);
    EXPECT_TRUE(is_nan(quantized(e8m0, 1, std::nan(""))));
    const NormSpec e4m3 = of_blocks(output, ScaleFormat::e4m3);
    EXPECT_EQ(quantized(e4m3, 3, 0), 0);
    EXPECT_TRUE(is_nan(quantized(e4m3, 3, std::nan(""))));
  }
}

}  // namespace
}  // namespace normjit::oracle
