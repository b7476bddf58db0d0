// SPDX-License-Identifier: Apache-2.0
// The kernels against the reference, over all that a spec and a launch can vary.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/gpu.h"
#include "tests/support/random_spec.h"
#include "verify/element.h"

namespace normjit::testing {
namespace {

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64};
// Rows that different strategies serve; which, is the planner's business.
constexpr std::int64_t kWidths[] = {64, 5000, 300001};

using LayerNormGpuTest = GpuTest;

TEST_F(LayerNormGpuTest, ReferenceWorkloads) {
  run({.columns = 4194304, .affine = Affine::weight_bias}, 16);
  run({.columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu}, 4194304);
}

TEST_F(LayerNormGpuTest, EveryDTypeActivationAndAffine) {
  for (const DType dtype : kDTypes)
    for (const Activation activation :
         {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu})
      for (const Affine affine : {Affine::none, Affine::weight, Affine::weight_bias})
        run({.columns = 768,
             .input = dtype,
             .affine = affine,
             .activation = activation,
             .scale = affine == Affine::weight ? -1.7 : 1.0,
             .statistics = affine != Affine::weight},
            57);
}

TEST_F(LayerNormGpuTest, EveryMixOfDTypes) {
  for (const DType input : kDTypes)
    for (const DType output : kDTypes)
      for (const DType weight : kDTypes)
        run({.columns = 1032,
             .input = input,
             .output = output,
             .weight = weight,
             .affine = Affine::weight_bias,
             .activation = Activation::gelu,
             .statistics = true},
            29);
}

TEST_F(LayerNormGpuTest, EveryStrategyInEveryDType) {
  for (const std::int64_t columns : kWidths)
    for (const DType dtype : kDTypes)
      run({.columns = columns, .input = dtype, .affine = Affine::weight_bias, .statistics = true}, 7);
}

// What has no kernel of its own yet; out of the library where that was built with it.
TEST_F(LayerNormGpuTest, TheGenericKernel) {
  const auto run_generic = [&](const NormSpec& spec, std::int64_t rows) {
    SCOPED_TRACE(to_text(spec));
    const Kernel kernel = service().prepare(spec, {.plan = generic_plan()}).value();
    oracle::Problem problem = make(spec, rows, spec.columns + 3, spec.columns + 1);
    GpuProblem on_gpu(problem, {.shift = 1});
    ASSERT_TRUE(kernel.launch(on_gpu.tensors(), nullptr));
    on_gpu.fetch();
    expect_right(problem);
  };
  for (const std::int64_t columns : {1, 33, 1023, 1024, 1025, 9001, 300001})
    for (const DType dtype : kDTypes)
      run_generic({.columns = columns,
                   .input = dtype,
                   .affine = Affine::weight_bias,
                   .activation = Activation::gelu,
                   .statistics = true},
                  29);
  for (const DType input : kDTypes)
    for (const DType output : kDTypes)
      for (const DType weight : kDTypes)
        run_generic({.columns = 2001,
                     .input = input,
                     .output = output,
                     .weight = weight,
                     .affine = Affine::weight,
                     .activation = Activation::silu,
                     .scale = -1.7},
                    5);
}

TEST_F(LayerNormGpuTest, OddWidths) {
  for (const DType dtype : {DType::f16, DType::f32})
    for (const std::int64_t columns : {1, 3, 17, 333, 1023, 4097, 50257})
      for (const std::int64_t rows : {5, 201})
        run({.columns = columns, .input = dtype, .affine = Affine::weight_bias}, rows);
}

TEST_F(LayerNormGpuTest, NoneOneFewAndManyRows) {
  for (const std::int64_t columns : kWidths)
    for (const std::int64_t rows : {0, 1, 2, 31, 131, 132, 133, 400})
      run({.columns = columns, .affine = Affine::weight, .statistics = true}, rows);
}

TEST_F(LayerNormGpuTest, AMillionRowsOfOneColumn) {
  run({.columns = 1, .affine = Affine::weight_bias, .statistics = true}, 1000003);
}

TEST_F(LayerNormGpuTest, NoRowsTouchNothing) {
  const NormSpec spec{.columns = 64, .statistics = true};
  oracle::Problem problem = make(spec, 3);
  GpuProblem on_gpu(problem);
  Tensors tensors = on_gpu.tensors();
  tensors.rows = 0;
  EXPECT_TRUE(service().layer_norm(spec, tensors, nullptr).ok());
  EXPECT_TRUE(service().layer_norm(spec, {}, nullptr).ok());
  EXPECT_TRUE(service().prepare(spec).value().launch(tensors, nullptr));
  on_gpu.fetch();
  for (const oracle::Matrix* output :
       {&problem[Operand::y], &problem[Operand::mean], &problem[Operand::rstd]})
    for (std::size_t i = 0; i < output->bytes(); ++i) ASSERT_EQ(output->data()[i], std::byte{0xff});
}

TEST_F(LayerNormGpuTest, StridedRows) {
  for (const std::int64_t columns : kWidths)
    for (const std::int64_t gap : {1, 2, 64})
      for (const std::int64_t rows : {3, 150}) {
        const NormSpec spec{.columns = columns, .input = DType::f16, .affine = Affine::weight_bias};
        oracle::Problem x_strided = make(spec, rows, columns + gap, kContiguous);
        run(x_strided);
        oracle::Problem y_strided = make(spec, rows, kContiguous, columns + gap);
        run(y_strided);
        oracle::Problem both = make(spec, rows, columns + gap, columns + 2 * gap);
        run(both);
      }
}

TEST_F(LayerNormGpuTest, OneRowReadByAll) {
  for (const std::int64_t columns : kWidths) {
    oracle::Problem problem = make({.columns = columns, .affine = Affine::weight_bias}, 140, 0);
    run(problem);
  }
}

TEST_F(LayerNormGpuTest, OverlappingRowsOfX) {
  for (const std::int64_t columns : kWidths) {
    oracle::Problem problem = make({.columns = columns}, 140, columns / 3);
    run(problem);
  }
}

TEST_F(LayerNormGpuTest, TensorsOffByElements) {
  for (const std::int64_t columns : kWidths)
    for (const DType dtype : kDTypes)
      for (const std::int64_t shift : {1, 2, 4}) {
        oracle::Problem problem =
            make({.columns = columns, .input = dtype, .affine = Affine::weight_bias, .statistics = true}, 9);
        run(problem, {.shift = shift});
      }
}

TEST_F(LayerNormGpuTest, InPlace) {
  for (const std::int64_t columns : kWidths)
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const std::int64_t rows : {3, 200})
        for (const std::int64_t stride : {columns, columns + 8}) {
          oracle::Problem problem =
              make({.columns = columns, .input = dtype, .affine = Affine::weight_bias, .statistics = true},
                   rows, stride, stride);
          run(problem, {.in_place = true});
        }
}

TEST_F(LayerNormGpuTest, InPlaceBetweenTypesOfOneSize) {
  for (const std::int64_t columns : kWidths) {
    oracle::Problem problem = make({.columns = columns, .input = DType::bf16, .output = DType::f16}, 20);
    run(problem, {.in_place = true});
  }
}

// ---- Channels first ----

NormSpec channels_first(std::int64_t columns, DType dtype) {
  return {.columns = columns,
          .input = dtype,
          .affine = Affine::weight_bias,
          .statistics = true,
          .channels_first = true};
}

// Planes of every alignment, one position and one sample among them; widths in one piece and in several.
TEST_F(LayerNormGpuTest, ChannelsFirst) {
  for (const std::int64_t columns : {1, 3, 96, 100, 256, 768, 5000})
    for (const DType dtype : kDTypes)
      for (const std::int64_t plane : {1, 14, 49, 64, 3136})
        for (const std::int64_t samples : {0, 1, 3}) {
          if (columns * plane * samples > 1 << 22) continue;
          oracle::Problem problem =
              make(channels_first(columns, dtype), samples * plane, kContiguous, kContiguous, plane);
          run(problem);
          if (HasFatalFailure()) return;
        }
}

TEST_F(LayerNormGpuTest, ChannelsFirstWithDistantSamplesAndInPlace) {
  for (const std::int64_t columns : {96, 100})
    for (const std::int64_t plane : {49, 64})
      for (const std::int64_t gap : {0, 1, 4, 64}) {
        const NormSpec spec = channels_first(columns, DType::f16);
        const std::int64_t sample = columns * plane;
        oracle::Problem apart = make(spec, 5 * plane, sample + gap, sample + 2 * gap, plane);
        run(apart);
        oracle::Problem in_place = make(spec, 5 * plane, sample + gap, sample + gap, plane);
        run(in_place, {.in_place = true});
        oracle::Problem same = make(spec, 5 * plane, 0, sample, plane);
        run(same);
        oracle::Problem shifted = make(spec, 5 * plane, kContiguous, kContiguous, plane);
        run(shifted, {.shift = 1});
      }
}

TEST_F(LayerNormGpuTest, ChannelsFirstKeepNanInItsPosition) {
  constexpr std::int64_t kPlane = 64, kBad = 70;
  for (const std::int64_t columns : {96, 5000}) {
    oracle::Problem problem =
        make(channels_first(columns, DType::f32), 3 * kPlane, kContiguous, kContiguous, kPlane);
    const double nan = std::nan("");
    oracle::store(DType::f32, problem.row(Operand::x, kBad), (columns - 1) * kPlane, 1, &nan);
    run(problem);
    for (const std::int64_t row : {kBad - 1, kBad, kBad + 1}) {
      double y = 0;
      oracle::load(DType::f32, problem.row(Operand::y, row), 0, 1, &y);
      EXPECT_EQ(std::isnan(y), row == kBad) << row;
    }
  }
}

TEST_F(LayerNormGpuTest, ChannelsFirstOfRandomSpecs) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    SCOPED_TRACE(::testing::Message() << "round " << i);
    Random random(test_seed() * 1000 + i);
    NormSpec spec = random_spec(random, {.most_columns = 6000, .tame = true, .every_norm = true});
    make_channels_first(spec);
    spec = canonical(spec);
    if (spec.columns < 16) spec.epsilon = std::max(spec.epsilon, 1e-5);
    const std::int64_t plane = random.between(1, std::max<std::int64_t>(1, (1 << 18) / spec.columns));
    oracle::Problem problem = make(spec, plane * random.between(0, 3), kContiguous, kContiguous, plane);
    run(problem);
    if (HasFatalFailure()) return;
  }
}

TEST_F(LayerNormGpuTest, RandomSpecsAndLaunches) {
  constexpr std::int64_t kMostElements = 1 << 19;
  for (std::uint64_t i = 0; i < 200; ++i) {
    SCOPED_TRACE(::testing::Message() << "round " << i);
    Random random(test_seed() * 1000 + i);
    NormSpec spec = canonical(random_spec(random, {.most_columns = 1 << 18, .tame = true}));
    // A few equal numbers and no epsilon are 0 / 0, where rounding decides between NaN and anything.
    if (spec.columns < 16) spec.epsilon = std::max(spec.epsilon, 1e-5);
    const std::int64_t rows = random.between(0, std::min<std::int64_t>(400, kMostElements / spec.columns));
    const std::int64_t gaps[] = {0, 0, 1, 4, 8};
    oracle::Problem problem =
        make(spec, rows, spec.columns + random.one_of(gaps), spec.columns + random.one_of(gaps));
    const std::int64_t shifts[] = {0, 0, 1, 2, 8};
    run(problem, {.shift = random.one_of(shifts)});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace normjit::testing
