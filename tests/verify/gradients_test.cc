// SPDX-License-Identifier: Apache-2.0
#include "verify/gradients.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/spec/tables.h"
#include "normjit/spec/valid.h"
#include "tests/support/matrix_elements.h"
#include "verify/check.h"
#include "verify/element.h"

namespace normjit::oracle {
namespace {

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
constexpr OperandSet kDxInPlace = set_of(Operand::dx);

RowInputs inputs_at(const void* x, const void* dy, const void* weight = nullptr, const void* dsum = nullptr) {
  RowInputs inputs{};
  inputs[Operand::x] = x;
  inputs[Operand::dy] = dy;
  inputs[Operand::weight] = weight;
  inputs[Operand::dsum] = dsum;
  return inputs;
}

std::vector<GradientValue> dx_of(const NormSpec& spec, const RowInputs& inputs) {
  std::vector<GradientValue> all(static_cast<std::size_t>(spec.columns));
  reference_dx(spec, inputs, row_gradients(spec, inputs), 0, spec.columns, all.data());
  return all;
}
std::vector<GradientValue> dgate_of(const NormSpec& spec, const RowInputs& inputs) {
  std::vector<GradientValue> dx(static_cast<std::size_t>(spec.columns)), all(dx);
  reference_dx(spec, inputs, row_gradients(spec, inputs), 0, spec.columns, dx.data(), all.data());
  return all;
}
std::vector<double> values_of(const std::vector<GradientValue>& gradients) {
  std::vector<double> values;
  for (const GradientValue& each : gradients) values.push_back(each.value);
  return values;
}

// A problem with the right outputs, as a perfect kernel leaves them.
Problem solved(const NormSpec& spec, std::int64_t rows, const RowLayouts& layouts = {},
               OperandSet in_place = 0) {
  Problem problem = make_problem(spec, rows, layouts, in_place).value();
  fill(problem, 1);
  for (std::int64_t row = 0; row < rows && writes_dx(spec); ++row) {
    const std::vector<double> values = values_of(dx_of(spec, inputs_of(problem, row)));
    store(spec.input, problem[Operand::dx].row(row), 0, spec.columns, values.data());
    if (spec.gate == Gate::none) continue;
    const std::vector<double> of_gate = values_of(dgate_of(spec, inputs_of(problem, row)));
    store(spec.modulation_type, problem[Operand::dgate].row(row), 0, spec.columns, of_gate.data());
  }
  const ColumnGradients sums = column_gradients(problem);
  if (!sums.weight.empty())
    store(spec.gradient_type, problem[Operand::dweight].data(), 0, spec.columns,
          values_of(sums.weight).data());
  if (!sums.bias.empty())
    store(spec.gradient_type, problem[Operand::dbias].data(), 0, spec.columns, values_of(sums.bias).data());
  return problem;
}

TEST(ReferenceGradients, OfALayerNormByHand) {
  const float x[] = {1, 2, 3, 6};  // mean 3, variance 14/4; n is -1, -0.5, 0, 1.5
  const float dy[] = {1, 2, 2, -1}, weight[] = {2, 1, 2, 4}, dsum[] = {2, 0, -8, 0};
  NormSpec spec{.backward = true, .columns = 4, .epsilon = 0.5, .affine = Affine::weight};
  const RowGradients row = row_gradients(spec, inputs_at(x, dy, weight));
  EXPECT_EQ(row.statistics.rstd, 0.5);  // 1 / sqrt(3.5 + 0.5)
  EXPECT_EQ(row.mean_g, 1);             // of 2, 2, 4, -4
  EXPECT_EQ(row.mean_gn, -2.25);        // of -2, -1, 0, -6
  const std::vector<GradientValue> dx = dx_of(spec, inputs_at(x, dy, weight));
  EXPECT_EQ(values_of(dx), (std::vector<double>{-0.625, -0.0625, 1.5, -0.8125}));
  EXPECT_EQ(dx[0].magnitude, 0.5 * (2 + 3 + 3.5));  // |n| is 1 at least
  EXPECT_EQ(dx[0].offset, 0.5 * 1.5 * (2.25 + 3));  // mean * rstd is 1.5
  EXPECT_EQ(dx[3].offset, 0.5 * 1.5 * (2.25 + 1.5 * 3));
  EXPECT_EQ(dx[0].offset_squared, 0.5 * 1.5 * 1.5 * 3);
  EXPECT_EQ(dx[0].share, 3 * dx[0].magnitude);

  spec.weight_offset = spec.dsum = true;
  const float less[] = {1, 0, 1, 3};
  const std::vector<GradientValue> more = dx_of(spec, inputs_at(x, dy, less, dsum));
  EXPECT_EQ(values_of(more), (std::vector<double>{1.375, -0.0625, -6.5, -0.8125}));
  EXPECT_EQ(more[2].magnitude, 0.5 * (4 + 3 + 3.5) + 8);
  EXPECT_EQ(more[2].share, 3 * 0.5 * (4 + 3 + 3.5)) << "no rstd is in dsum";
}

// They are taken as they are, whatever those of x are.
TEST(ReferenceGradients, OfGivenStatisticsByHand) {
  const float x[] = {1, 2, 3, 6}, dy[] = {1, 2, 2, -1}, mean = 2, rstd = 0.5;  // n is -0.5, 0, 0.5, 2
  NormSpec spec{.backward = true, .columns = 4, .statistics = true};
  RowInputs inputs = inputs_at(x, dy);
  inputs[Operand::saved_mean] = &mean, inputs[Operand::saved_rstd] = &rstd;
  const RowGradients row = row_gradients(spec, inputs);
  EXPECT_EQ(row.statistics.mean, 2);
  EXPECT_EQ(row.statistics.rstd, 0.5);
  EXPECT_EQ(row.mean_g, 1);
  EXPECT_EQ(row.mean_gn, -0.375);  // of -0.5, 0, 1, -2
  EXPECT_EQ(values_of(dx_of(spec, inputs)), (std::vector<double>{-0.09375, 0.5, 0.59375, -0.625}));
  spec.norm = Norm::rms;
  EXPECT_EQ(row_gradients(spec, inputs).statistics.mean, 0) << "it has none";
}

TEST(ReferenceGradients, OfAnRmsNormByHand) {
  const float x[] = {1, 2, 3, 6}, dy[] = {4, 2, 0, 0};  // n is 0.25, 0.5, 0.75, 1.5
  const NormSpec spec{.norm = Norm::rms, .backward = true, .columns = 4, .epsilon = 3.5};
  const std::vector<GradientValue> dx = dx_of(spec, inputs_at(x, dy));
  EXPECT_EQ(values_of(dx), (std::vector<double>{0.96875, 0.4375, -0.09375, -0.1875}));
  EXPECT_EQ(dx[0].offset, 0) << "it has no mean";
}

// What y and the sum of a spec contribute to a loss of which dy and dsum are the gradients.
double loss(const NormSpec& forward, const Problem& problem) {
  std::vector<ReferenceValue> y(static_cast<std::size_t>(forward.columns));
  double sum = 0;
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    RowInputs inputs = inputs_of(problem, row);
    // Without an activation dbias is the gradient at a bias of 0, as anywhere.
    const std::vector<double> bias(y.size(), 0);
    if (forward.affine == Affine::weight_bias && problem[Operand::bias].empty())
      inputs[Operand::bias] = bias.data();
    reference_values(forward, inputs, row_statistics(forward, inputs), 0, forward.columns, y.data());
    for (std::int64_t i = 0; i < forward.columns; ++i) {
      sum += get(problem[Operand::dy], row, i) * y[static_cast<std::size_t>(i)].value;
      if (!problem.spec.dsum) continue;
      double s;
      reference_sums(forward, inputs, i, 1, &s);
      sum += get(problem[Operand::dsum], row, i) * s;
    }
  }
  return sum;
}
// By how much the loss grows with an element.
double slope(const NormSpec& forward, Problem& problem, Operand operand, std::int64_t row,
             std::int64_t column) {
  constexpr double kStep = 1e-5;
  const double before = get(problem[operand], row, column);
  set(problem[operand], row, column, before + kStep);
  const double above = loss(forward, problem);
  set(problem[operand], row, column, before - kStep);
  const double below = loss(forward, problem);
  set(problem[operand], row, column, before);
  return (above - below) / (2 * kStep);
}

TEST(ReferenceGradients, AreTheSlopesOfTheForward) {
  for (const auto& activation : kActivations)
    for (const Norm norm : {Norm::layer, Norm::rms})
      for (const Affine affine : {Affine::none, Affine::weight, Affine::weight_bias})
        for (const bool more : {false, true}) {
          const NormSpec spec = canonical({.norm = norm,
                                           .backward = true,
                                           .columns = 7,
                                           .input = DType::f64,
                                           .epsilon = 1e-2,
                                           .dsum = more,
                                           .affine = affine,
                                           .weight_offset = more,
                                           .activation = activation.value,
                                           .scale = more ? -0.75 : 1});
          SCOPED_TRACE(to_text(spec));
          NormSpec forward = spec;
          forward.backward = forward.dsum = false;
          Problem problem = make_problem(spec, 3).value();
          fill(problem, 5);
          for (std::int64_t row = 0; row < 3; ++row) {
            const std::vector<GradientValue> dx = dx_of(spec, inputs_of(problem, row));
            for (std::int64_t i = 0; i < 7; ++i)
              EXPECT_NEAR(dx[static_cast<std::size_t>(i)].value, slope(forward, problem, Operand::x, row, i),
                          1e-7);
          }
          const ColumnGradients sums = column_gradients(problem);
          ASSERT_EQ(sums.weight.size(), affine == Affine::none ? 0u : 7u);
          ASSERT_EQ(sums.bias.size(), affine == Affine::weight_bias ? 7u : 0u);
          for (std::size_t i = 0; i < sums.weight.size(); ++i)
            EXPECT_NEAR(sums.weight[i].value,
                        slope(forward, problem, Operand::weight, 0, static_cast<std::int64_t>(i)), 1e-7);
          for (std::size_t i = 0; i < sums.bias.size(); ++i) {
            double slopes = 0;  // y grows as its bias
            for (std::int64_t row = 0; row < 3; ++row)
              slopes += spec.scale * get(problem[Operand::dy], row, static_cast<std::int64_t>(i));
            if (spec.activation == Activation::none) {
              EXPECT_NEAR(sums.bias[i].value, slopes, 1e-14);
            } else {
              EXPECT_NEAR(sums.bias[i].value,
                          slope(forward, problem, Operand::bias, 0, static_cast<std::int64_t>(i)), 1e-7);
            }
          }
        }
}

TEST(ReferenceGradients, OfGatesAreTheSlopesOfTheForward) {
  for (const Gate gate : {Gate::before, Gate::after})
    for (const auto& function : kGateFunctions)
      for (const Norm norm : {Norm::layer, Norm::rms})
        for (const bool more : {false, true}) {
          const NormSpec spec =
              canonical({.norm = norm,
                         .backward = true,
                         .columns = 7,
                         .input = DType::f64,
                         .epsilon = 1e-2,
                         .gate = gate,
                         .gate_function = function.value,
                         .dsum = more,
                         .affine = more ? Affine::weight_bias : Affine::none,
                         .activation = more && gate == Gate::before ? Activation::silu : Activation::none,
                         .scale = more ? -0.75 : 1});
          SCOPED_TRACE(to_text(spec));
          NormSpec forward = spec;
          forward.backward = forward.dsum = false;
          Problem problem = make_problem(spec, 3).value();
          fill(problem, 5);
          for (std::int64_t row = 0; row < 3; ++row) {
            const std::vector<GradientValue> dx = dx_of(spec, inputs_of(problem, row)),
                                             dgate = dgate_of(spec, inputs_of(problem, row));
            for (std::int64_t i = 0; i < 7; ++i) {
              const auto at = static_cast<std::size_t>(i);
              EXPECT_NEAR(dx[at].value, slope(forward, problem, Operand::x, row, i), 1e-7);
              EXPECT_NEAR(dgate[at].value, slope(forward, problem, Operand::gate, row, i), 1e-7);
              EXPECT_GE(dgate[at].magnitude, std::fabs(dgate[at].value));
            }
          }
          const ColumnGradients sums = column_gradients(problem);
          for (std::size_t i = 0; i < sums.weight.size(); ++i) {
            const auto column = static_cast<std::int64_t>(i);
            EXPECT_NEAR(sums.weight[i].value, slope(forward, problem, Operand::weight, 0, column), 1e-7);
            if (problem[Operand::bias].empty()) continue;
            EXPECT_NEAR(sums.bias[i].value, slope(forward, problem, Operand::bias, 0, column), 1e-7);
          }
        }
}

TEST(ReferenceGradients, OfModulationsAreTheSlopesOfTheForward) {
  for (const Modulation modulation : {Modulation::scale, Modulation::scale_shift})
    for (const bool plain : {false, true})
      for (const bool table : {false, true})
        for (const Activation activation : {Activation::none, Activation::silu})
          for (const bool more : {false, true}) {
            const NormSpec spec = canonical({.norm = more ? Norm::rms : Norm::layer,
                                             .backward = true,
                                             .columns = 7,
                                             .input = DType::f64,
                                             .epsilon = 1e-2,
                                             .affine = more ? Affine::weight_bias : Affine::none,
                                             .modulation = modulation,
                                             .plain_modulation = plain,
                                             .modulation_table = table,
                                             .activation = activation,
                                             .scale = more ? -0.75 : 1});
            SCOPED_TRACE(to_text(spec));
            NormSpec forward = spec;
            forward.backward = false;
            // Rows 0 and 1 share scale and shift, and so do rows 2 and 3.
            const RowLayout of_two(2, 7, 0);
            Problem problem = make_problem(spec, 4,
                                           {{Operand::mod_scale, of_two},
                                            {Operand::mod_shift, of_two},
                                            {Operand::dmod_scale, of_two},
                                            {Operand::dmod_shift, of_two}})
                                  .value();
            fill(problem, 5);
            const bool shifts = modulation == Modulation::scale_shift;
            for (std::int64_t group = 0; group < 4; group += 2) {
              const std::vector<ModulationGradient> sums = group_gradients(problem, group, 2);
              for (std::int64_t i = 0; i < 7; ++i) {
                const auto& [scale, shift] = sums[static_cast<std::size_t>(i)];
                EXPECT_NEAR(scale.value, slope(forward, problem, Operand::mod_scale, group, i), 1e-7);
                EXPECT_GE(scale.magnitude, std::fabs(scale.value));
                EXPECT_GE(shift.magnitude, std::fabs(shift.value));
                if (!shifts) continue;
                double slopes = 0;  // y grows as its shift
                for (std::int64_t row = group; row < group + 2; ++row)
                  slopes += spec.scale * get(problem[Operand::dy], row, i);
                if (activation != Activation::none)
                  slopes = slope(forward, problem, Operand::mod_shift, group, i);
                EXPECT_NEAR(shift.value, slopes, 1e-7);
              }
            }
            for (std::int64_t row = 0; row < 4; ++row) {
              const std::vector<GradientValue> dx = dx_of(spec, inputs_of(problem, row));
              for (std::int64_t i = 0; i < 7; ++i)
                EXPECT_NEAR(dx[static_cast<std::size_t>(i)].value,
                            slope(forward, problem, Operand::x, row, i), 1e-7);
            }
            const ColumnGradients sums = column_gradients(problem);
            for (std::size_t i = 0; i < sums.weight.size(); ++i)
              EXPECT_NEAR(sums.weight[i].value,
                          slope(forward, problem, Operand::weight, 0, static_cast<std::int64_t>(i)), 1e-7);
          }
}

TEST(ReferenceGradients, AreThoseThatAreNeeded) {
  for (const auto& need : kNeeds) {
    const NormSpec spec{.backward = true, .columns = 7, .affine = Affine::weight_bias, .need = need.value};
    const ColumnGradients sums = column_gradients(solved(spec, 3));
    EXPECT_EQ(sums.weight.size(), writes_dweight(spec) ? 7u : 0u) << need.name;
    EXPECT_EQ(sums.bias.size(), writes_dbias(spec) ? 7u : 0u) << need.name;
  }
}

TEST(CheckOfGradients, IsOfThoseThatAreNeeded) {
  for (const auto& need : kNeeds)
    for (const auto& gate : kGates) {
      const NormSpec spec = canonical({.backward = true,
                                       .columns = 33,
                                       .gate = gate.value,
                                       .gate_function = GateFunction::silu,
                                       .affine = Affine::weight_bias,
                                       .need = need.value});
      SCOPED_TRACE(to_text(spec));
      Problem problem = solved(spec, 50);
      const CheckReport report = check(problem, kAll);
      EXPECT_TRUE(report.ok());
      EXPECT_EQ(report[Operand::dx].values, writes_dx(spec) ? 50 * 33 : 0);
      EXPECT_EQ(report[Operand::dgate].values, writes_dx(spec) && gate.value != Gate::none ? 50 * 33 : 0);
      EXPECT_EQ(report[Operand::dweight].values, writes_dweight(spec) ? 33 : 0);
      EXPECT_EQ(report[Operand::dbias].values, writes_dbias(spec) ? 33 : 0);
      if (report[Operand::dgate].values == 0) continue;
      set(problem[Operand::dgate], 7, 5, get(problem[Operand::dgate], 7, 5) + 0.01);
      EXPECT_EQ(check(problem, kAll)[Operand::dgate].wrong, 1);
    }
}

TEST(ReferenceGradients, SlopesOfActivationsAreRightEverywhere) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kStep = 1e-6;
  for (const auto& [activation, name, constant] : kActivations) {
    SCOPED_TRACE(std::string(name));
    for (double v = -12.0625; v < 13; v += 0.125) {
      const double slope = (activate(activation, v + kStep) - activate(activation, v - kStep)) / (2 * kStep);
      EXPECT_NEAR(activation_slope(activation, v), slope, 1e-8) << v;
    }
    if (activation == Activation::none) continue;
    for (const double large : {50.0, 800.0, 1e5, 1e200, kInfinity}) {
      EXPECT_EQ(activation_slope(activation, large), 1) << large;
      EXPECT_NEAR(activation_slope(activation, -large), 0, 1e-19) << large;
    }
    EXPECT_TRUE(std::isnan(activation_slope(activation, std::nan(""))));
  }
  EXPECT_EQ(activation_slope(Activation::relu, 0), 0);
  EXPECT_NEAR(activation_slope(Activation::gelu, -6) / -3.5468709454e-8, 1, 1e-9) << "no cancellation there";
}

// Where the rounding of the argument of relu decides, both slopes are right.
TEST(CheckOfGradients, AcceptsBothSlopesOfReluAtZero) {
  const NormSpec spec{.norm = Norm::rms,
                      .backward = true,
                      .columns = 2,
                      .epsilon = 0.5,
                      .affine = Affine::weight_bias,
                      .activation = Activation::relu};
  const float x[] = {1, 2}, dy[] = {3, 4}, weight[] = {1, 1};
  const double n = 1 / std::sqrt(3.0);
  for (const bool near : {false, true}) {
    const float bias[] = {static_cast<float>(near ? -n : -0.9 * n), 0};
    RowInputs inputs = inputs_at(x, dy, weight);
    inputs[Operand::bias] = bias;
    const std::vector<GradientValue> dx = dx_of(spec, inputs);
    EXPECT_EQ(dx[0].jump > 0, near);
    EXPECT_EQ(dx[1].jump > 0, near) << "by the means";
    EXPECT_EQ(tolerance(spec, DType::f32, dx[0]) > 0.1, near);
  }
}

// Around the batches in which columns are read and the pieces in which rows are.
TEST(ReferenceGradients, SumsCoverAllRowsAndColumns) {
  const struct {
    std::int64_t rows, columns;
  } sizes[] = {{1, 1}, {63, 3}, {64, 1024}, {65, 1025}, {300, 1030}, {9000, 2}, {2, 70'000}};
  for (const auto& [rows, columns] : sizes) {
    SCOPED_TRACE(concat({shortest(rows), " x ", shortest(columns)}));
    const NormSpec spec{.backward = true, .columns = columns, .affine = Affine::weight_bias};
    Problem problem = make_problem(spec, rows).value();
    fill(problem, 3);
    std::vector<double> shares, weight(static_cast<std::size_t>(columns)), bias(weight), offset(weight),
        share(weight), size(weight);
    for (std::int64_t row = 0; row < rows; ++row) {
      const RowStatistics statistics = row_statistics(spec, inputs_of(problem, row));
      shares.push_back(row % 3 == 0 ? 0.25 : 0);
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double dy = get(problem[Operand::dy], row, i);
        const double n = (get(problem[Operand::x], row, i) - statistics.mean) * statistics.rstd;
        weight[at] += dy * n;
        bias[at] += dy;
        size[at] += std::fabs(dy);
        offset[at] += std::fabs(dy * statistics.mean * statistics.rstd);
        share[at] += shares.back() * std::fabs(dy * n);
      }
    }
    const ColumnGradients sums = column_gradients(problem, shares);
    ASSERT_EQ(sums.weight.size(), weight.size());
    ASSERT_EQ(sums.bias.size(), weight.size());
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const double close = 1e-12 * size[i];
      ASSERT_NEAR(sums.weight[i].value, weight[i], close) << i;
      ASSERT_NEAR(sums.weight[i].offset, offset[i], close * 4) << i;
      ASSERT_NEAR(sums.weight[i].share, share[i], close) << i;
      ASSERT_GE(sums.weight[i].magnitude, size[i] * (1 - 1e-12)) << i;
      ASSERT_NEAR(sums.bias[i].value, bias[i], close) << i;
      ASSERT_NEAR(sums.bias[i].magnitude, size[i], close) << i;
    }
  }
}

TEST(ReferenceGradients, TheirToleranceGrowsWithTermsThatCancel) {
  const NormSpec spec{.backward = true, .columns = 8},
      wide{.backward = true, .columns = 8, .output = DType::f64};
  EXPECT_EQ(tolerance(spec, DType::f32, {.value = 1, .magnitude = 3}), 1e-5 * 3 + 0x1p-150);
  EXPECT_EQ(tolerance(wide, DType::f64, {.value = 1, .magnitude = 3}), 1e-12 * 3);
  EXPECT_EQ(tolerance(spec, DType::bf16, {.value = 1, .magnitude = 3}), 0x1p-7);
  EXPECT_DOUBLE_EQ(tolerance(spec, DType::bf16, {.value = 1, .magnitude = 1e5}), 0x1p-8 + 0.4);
  EXPECT_EQ(tolerance(spec, DType::f32, {.offset = 1e7}), 2e-7 * 1e7 + 0x1p-150);
  EXPECT_DOUBLE_EQ(tolerance(spec, DType::f32, {.offset_squared = 1e14}), 4);
  EXPECT_DOUBLE_EQ(tolerance(wide, DType::f32, {.offset = 1e16}), 4);
}

TEST(CheckOfGradients, AcceptsRightOnesOfEveryDType) {
  for (const DType input : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const DType gradient : {input, DType::f32, DType::bf16})
      for (const Affine affine : {Affine::none, Affine::weight, Affine::weight_bias}) {
        const NormSpec spec{.backward = true,
                            .columns = 33,
                            .input = input,
                            .gradient_type = gradient,
                            .dsum = true,
                            .affine = affine};
        const CheckReport report = check(solved(canonical(spec), 50), kAll);
        EXPECT_TRUE(report.ok()) << to_text(spec);
        EXPECT_EQ(report.rows, 50);
        EXPECT_EQ(report[Operand::dx].values, 50 * 33);
        EXPECT_EQ(report[Operand::dweight].values, affine == Affine::none ? 0 : 33);
        EXPECT_EQ(report[Operand::dbias].values, affine == Affine::weight_bias ? 33 : 0);
        EXPECT_EQ(report[Operand::y].values, 0);
      }
}

// One value at a time, by a little less than it may, and by a little more.
TEST(CheckOfGradients, RefusesWhatIsBeyondTheTolerance) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const NormSpec spec{
        .backward = true, .columns = 40, .input = dtype, .dsum = true, .affine = Affine::weight_bias};
    Problem problem = solved(spec, 6);
    for (const Operand output : {Operand::dx, Operand::dweight, Operand::dbias}) {
      SCOPED_TRACE(std::string(name(dtype)) + " " + std::string(name(output)));
      const bool is_dx = output == Operand::dx;
      const std::int64_t row = is_dx ? 2 : 0, column = 17;
      const ColumnGradients sums = column_gradients(problem);
      const GradientValue exact = is_dx                        ? dx_of(spec, inputs_of(problem, row))[17]
                                  : output == Operand::dweight ? sums.weight[17]
                                                               : sums.bias[17];
      const double by = tolerance(spec, dtype, exact);
      const double right = get(problem[output], row, column);
      for (const double sign : {-1, 1}) {
        set(problem[output], row, column, exact.value + sign * 0.97 * by);
        EXPECT_TRUE(check(problem, kAll).ok());
        set(problem[output], row, column, exact.value + sign * 1.03 * by);
        const CheckReport report = check(problem, kAll);
        EXPECT_FALSE(report.ok());
        EXPECT_EQ(report[output].wrong, 1);
        EXPECT_EQ(report[output].first_wrong.row, row);
        EXPECT_EQ(report[output].first_wrong.column, column);
      }
      set(problem[output], row, column, right);
    }
    EXPECT_TRUE(check(problem, kAll).ok());
  }
}

TEST(CheckOfGradients, OneUnitOf16BitsIsTheLeastTolerance) {
  const NormSpec spec{.backward = true, .columns = 40, .input = DType::bf16, .affine = Affine::weight_bias};
  Problem problem = solved(spec, 6);
  for (const Operand output : {Operand::dx, Operand::dweight, Operand::dbias}) {
    const double right = get(problem[output], 0, 5), unit = unit_in_last_place(DType::bf16, right);
    set(problem[output], 0, 5, right + 2 * unit);
    EXPECT_EQ(check(problem, kAll)[output].wrong, 1) << name(output);
    set(problem[output], 0, 5, right);
  }
  EXPECT_TRUE(check(problem, kAll).ok());
}

TEST(CheckOfGradients, NoticesAMissingSummand) {
  const NormSpec spec{.backward = true, .columns = 64, .dsum = true, .affine = Affine::weight_bias};
  Problem problem = solved(spec, 9);
  for (std::int64_t i = 0; i < spec.columns; ++i)
    set(problem[Operand::dx], 8, i, get(problem[Operand::dx], 8, i) - get(problem[Operand::dsum], 8, i));
  EXPECT_EQ(check(problem, kAll)[Operand::dx].wrong, 64) << "dsum";

  // The sums are those of rows of which dx is not compared, too.
  problem = solved(spec, 9);
  const RowStatistics statistics = row_statistics(spec, inputs_of(problem, 4));
  for (std::int64_t i = 0; i < spec.columns; ++i) {
    const double n = (get(problem[Operand::x], 4, i) - statistics.mean) * statistics.rstd;
    const double dy = get(problem[Operand::dy], 4, i);
    set(problem[Operand::dweight], 0, i, get(problem[Operand::dweight], 0, i) - dy * n);
    set(problem[Operand::dbias], 0, i, get(problem[Operand::dbias], 0, i) - dy);
  }
  const CheckReport report = check(problem, 2);
  EXPECT_EQ(report[Operand::dx].values, 2 * 64);
  EXPECT_EQ(report[Operand::dx].wrong, 0);
  EXPECT_GT(report[Operand::dweight].wrong, 60);
  EXPECT_GT(report[Operand::dbias].wrong, 60);
}

TEST(CheckOfGradients, CountsWhatIsWrittenBetweenRows) {
  const NormSpec spec{.backward = true, .columns = 8, .affine = Affine::weight};
  for (const bool in_place : {false, true}) {
    Problem problem =
        solved(spec, 5, {{in_place ? Operand::dy : Operand::dx, 11}}, in_place ? kDxInPlace : 0);
    EXPECT_EQ(problem[Operand::dx].row_stride(), 11);
    EXPECT_TRUE(check(problem, kAll).ok()) << in_place;
    set(problem[Operand::dx], 3, 9, 0);
    const CheckReport report = check(problem, kAll);
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(report.overwritten, 4) << in_place;
  }
}

TEST(CheckOfGradients, DxIsDyOnlyWhereElementsAreOfOneSize) {
  NormSpec spec{.backward = true, .columns = 8, .input = DType::bf16, .output = DType::f16};
  Problem problem = make_problem(spec, 4, {}, kDxInPlace).value();
  fill(problem, 2);
  const Tensors tensors = tensors_of(problem);
  EXPECT_EQ(tensors.dy.pointer, tensors.dx.pointer);
  EXPECT_EQ(get(problem[Operand::dx], 3, 7), [&] {
    double value;
    load(DType::bf16, problem[Operand::dy].row(3), 7, 1, &value);
    return value;
  }()) << "dy is there";
  spec.output = DType::f32;
  EXPECT_EQ(make_problem(spec, 4, {}, kDxInPlace).code(), Code::Overlap);
}

// Which NaN or infinity comes out is the business of the order of additions; a number is wrong.
TEST(CheckOfGradients, AnyNonFiniteValueIsRightWhereNoNumberIs) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const NormSpec spec{.backward = true, .columns = 8, .affine = Affine::weight_bias};
  for (const Operand spoiled : {Operand::x, Operand::dy})
    for (const double bad : {std::nan(""), kInfinity, -kInfinity}) {
      Problem problem = make_problem(spec, 4).value();
      fill(problem, 1);
      set(problem[spoiled], 2, 3, bad);
      for (std::int64_t row = 0; row < 4; ++row)
        store(spec.input, problem[Operand::dx].row(row), 0, 8,
              values_of(dx_of(spec, inputs_of(problem, row))).data());
      const ColumnGradients sums = column_gradients(problem);
      store(DType::f32, problem[Operand::dweight].data(), 0, 8, values_of(sums.weight).data());
      store(DType::f32, problem[Operand::dbias].data(), 0, 8, values_of(sums.bias).data());
      EXPECT_TRUE(check(problem, kAll).ok());
      for (std::int64_t i = 0; i < 8; ++i) {
        EXPECT_TRUE(std::isfinite(get(problem[Operand::dx], 1, i)));
        EXPECT_FALSE(std::isfinite(get(problem[Operand::dx], 2, i)));
        EXPECT_EQ(std::isfinite(get(problem[Operand::dweight], 0, i)), spoiled == Operand::dy && i != 3);
        EXPECT_EQ(std::isfinite(get(problem[Operand::dbias], 0, i)), spoiled == Operand::x || i != 3);
      }
      for (const double other : {std::nan(""), kInfinity, -kInfinity}) {
        set(problem[Operand::dx], 2, 5, other);
        set(problem[Operand::dweight], 0, 3, other);
        EXPECT_TRUE(check(problem, kAll).ok());
      }
      set(problem[Operand::dx], 2, 5, 1);
      set(problem[Operand::dweight], 0, 3, 1);
      const CheckReport report = check(problem, kAll);
      EXPECT_EQ(report[Operand::dx].wrong, 1);
      EXPECT_EQ(report[Operand::dweight].wrong, 1);
      set(problem[Operand::dx], 1, 5, kInfinity);
      EXPECT_EQ(check(problem, kAll)[Operand::dx].wrong, 2) << "of a row of numbers";
    }
}

// 65,520 is where f16 ends: on which side of it a result falls is decided by errors below the tolerance.
TEST(CheckOfGradients, AnInfinityIsRightBesideTheLargestNumber) {
  const NormSpec spec{.norm = Norm::rms, .backward = true, .columns = 1, .input = DType::f16, .dsum = true};
  Problem problem = solved(spec, 1);
  set(problem[Operand::dy], 0, 0, 0);
  const auto wrong_at = [&](double dsum) {
    set(problem[Operand::dsum], 0, 0, dsum);
    set(problem[Operand::dx], 0, 0, std::numeric_limits<double>::infinity());
    return check(problem, kAll)[Operand::dx].wrong;
  };
  EXPECT_EQ(wrong_at(65504), 0) << "the next number is none";
  EXPECT_EQ(wrong_at(65400), 1);
}

TEST(CheckOfGradients, AnUncertainRstdAddsToTheTolerance) {
  const NormSpec spec{.backward = true, .columns = 32, .affine = Affine::weight_bias};
  Problem problem = solved(spec, 5);
  // As if rstd of every row were larger by so much.
  constexpr double kShare = 1e-3;
  for (std::int64_t row = 0; row < 5; ++row) {
    const RowInputs inputs = inputs_of(problem, row);
    RowGradients larger = row_gradients(spec, inputs);
    larger.statistics.rstd *= 1 + kShare;
    larger.mean_gn *= 1 + kShare;
    std::vector<GradientValue> dx(32);
    reference_dx(spec, inputs, larger, 0, 32, dx.data());
    store(DType::f32, problem[Operand::dx].row(row), 0, 32, values_of(dx).data());
  }
  for (std::int64_t i = 0; i < 32; ++i)
    set(problem[Operand::dweight], 0, i, get(problem[Operand::dweight], 0, i) * (1 + kShare));

  const auto wrong_with = [&](double share, Operand output) {
    int wrong = 0;
    const Compared compared = [&](Operand of, const Deviation& value) {
      wrong += of == output && value.error > value.tolerance;
    };
    for (std::int64_t row = 0; row < 5; ++row) compare_row_gradients(problem, row, share, compared);
    compare_column_gradients(problem, std::vector<double>(5, share), compared);
    return wrong;
  };
  EXPECT_EQ(wrong_with(1.01 * kShare, Operand::dx), 0);
  EXPECT_EQ(wrong_with(1.01 * kShare, Operand::dweight), 0);
  EXPECT_GT(wrong_with(0, Operand::dx), 100);
  EXPECT_GT(wrong_with(0, Operand::dweight), 20);
  EXPECT_EQ(wrong_with(0, Operand::dbias), 0);
}

TEST(CheckOfGradients, NoRowsHaveNothingToCompare) {
  const NormSpec spec{.backward = true, .columns = 8, .affine = Affine::weight_bias};
  Problem problem = make_problem(spec, 0).value();
  fill(problem, 1);
  EXPECT_TRUE(check(problem, kAll).ok());
  EXPECT_EQ(check(problem, kAll)[Operand::dweight].values, 0);
}

}  // namespace
}  // namespace normjit::oracle
