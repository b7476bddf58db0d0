// SPDX-License-Identifier: Apache-2.0
// What a launch packs is what the kernel's text declares: struct Operands of the rendered spec.cuh, word for
// word.
#include "normjit/service/packed_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/codegen/generator.h"
#include "normjit/plan.h"
#include "normjit/service/prepared.h"
#include "normjit/spec/tables.h"

namespace normjit::testing {
namespace {

using ::testing::ElementsAre;

const Plan kPlan{
    .strategy = Strategy::block_row, .threads = 64, .threads_per_row = 64, .vector = 1, .per_thread = 1};

// The members of struct Operands in the text of a spec's kernel: "const Input* x".
std::vector<std::string> members(const NormSpec& spec, const Plan& plan) {
  const std::string text = generate(spec, plan, {.number = 90}, "").value().text;
  const std::string_view begin = "struct Operands {", end = "};";
  const std::size_t first = text.find(begin) + begin.size();
  std::vector<std::string> all;
  std::string member;
  for (const char c : text.substr(first, text.find(end, first) - first)) {
    if (c == ';') {
      all.push_back(std::move(member));
      member.clear();
    } else if (c != '\n' && (c != ' ' || !member.empty())) {
      member += c;
    }
  }
  return all;
}

TEST(OperandBlock, AKernelDeclaresWhatItsSpecHas) {
  EXPECT_THAT(members({.columns = 64}, kPlan),
              ElementsAre("long long rows", "unsigned char* workspace", "const Input* x", "Rows x_rows",
                          "Output* y", "Rows y_rows"));
  EXPECT_THAT(
      members({.norm = Norm::rms, .columns = 64, .affine = Affine::weight, .statistics = true}, kPlan),
      ElementsAre("long long rows", "unsigned char* workspace", "const Input* x", "Rows x_rows",
                  "const Weight* weight", "Output* y", "Rows y_rows", "Acc* rstd"));
  Plan grouped = kPlan;
  grouped.grouped_rows = true;
  EXPECT_THAT(
      members({.columns = 64, .in_bias = true, .affine = Affine::weight, .affine_rows = true}, grouped),
      ElementsAre("long long rows", "unsigned char* workspace", "const Input* x", "GroupedRows x_rows",
                  "const Weight* in_bias", "const Weight* weight", "GroupedRows weight_rows", "Output* y",
                  "GroupedRows y_rows"));
  const Plan channels{.strategy = Strategy::channels_first,
                      .threads = 64,
                      .threads_per_row = 8,
                      .vector = 1,
                      .per_thread = 8};
  EXPECT_THAT(members({.columns = 64, .affine = Affine::weight, .channels_first = true}, channels),
              ElementsAre("long long rows", "unsigned char* workspace", "const Input* x",
                          "GroupedRows x_rows", "const Weight* weight", "Output* y", "GroupedRows y_rows"));
  EXPECT_THAT(
      members({.columns = 64}, generic_plan()),
      ElementsAre(
          "long long rows", "unsigned char* workspace", "const Input* x", "GroupedRows x_rows",
          "const Weight* in_bias", "const Mod* gate", "GroupedRows gate_rows", "const Weight* gate_table",
          "const Residual* residual", "GroupedRows residual_rows", "const Weight* weight",
          "GroupedRows weight_rows", "const Weight* bias", "GroupedRows bias_rows", "const Mod* mod_scale",
          "GroupedRows mod_scale_rows", "const Weight* mod_scale_table", "const Mod* mod_shift",
          "GroupedRows mod_shift_rows", "const Weight* mod_shift_table", "const float* tensor_scale",
          "const float* upper_bound", "const float* global_scale", "Output* y", "GroupedRows y_rows",
          "Residual* sum", "GroupedRows sum_rows", "Acc* mean", "Acc* rstd", "AlsoOutput* also",
          "GroupedRows also_rows", "float* row_scale", "BlockScale* block_scale", "float* amax",
          "const Output* dy", "GroupedRows dy_rows", "const Residual* dsum", "GroupedRows dsum_rows",
          "Input* dx", "GroupedRows dx_rows", "Gradient* dweight", "Gradient* dbias", "Mod* dgate",
          "GroupedRows dgate_rows", "Mod* dmod_scale", "GroupedRows dmod_scale_rows", "Mod* dmod_shift",
          "GroupedRows dmod_shift_rows", "const Acc* saved_mean", "const Acc* saved_rstd"))
      << "the generic kernel has all, whatever the spec";
}

const Plan kGradientPlan{
    .strategy = Strategy::gradient_rows, .threads = 64, .threads_per_row = 64, .vector = 1, .per_thread = 1};

TEST(OperandBlock, AKernelOfGradientsDeclaresWhatItsSpecHas) {
  EXPECT_THAT(members({.backward = true, .columns = 64}, kGradientPlan),
              ElementsAre("long long rows", "unsigned char* workspace", "const Input* x", "Rows x_rows",
                          "const Output* dy", "Rows dy_rows", "Input* dx", "Rows dx_rows"));
  Plan grouped = kGradientPlan;
  grouped.grouped_rows = true;
  EXPECT_THAT(
      members({.backward = true, .columns = 64, .dsum = true, .affine = Affine::weight_bias}, grouped),
      ElementsAre("long long rows", "unsigned char* workspace", "const Input* x", "GroupedRows x_rows",
                  "const Weight* weight", "const Output* dy", "GroupedRows dy_rows", "const Residual* dsum",
                  "GroupedRows dsum_rows", "Input* dx", "GroupedRows dx_rows", "Gradient* dweight",
                  "Gradient* dbias"))
      << "no bias, and vectors of gradients have no rows";
  EXPECT_THAT(members({.backward = true,
                       .columns = 64,
                       .gate = Gate::after,
                       .affine = Affine::weight_bias,
                       .need = Need::dx},
                      kGradientPlan),
              ElementsAre("long long rows", "unsigned char* workspace", "const Input* x", "Rows x_rows",
                          "const Mod* gate", "Rows gate_rows", "const Weight* weight", "const Weight* bias",
                          "const Output* dy", "Rows dy_rows", "Input* dx", "Rows dx_rows", "Mod* dgate",
                          "Rows dgate_rows"));
}

// Numbers for what a launch passes, 8 rows in groups of 4: rows of Tensors, pointers and distances, and under
// the names of members of the kernel's text what is to be found there.
struct Numbered {
  Tensors tensors{.rows = 8, .workspace = reinterpret_cast<void*>(std::uintptr_t{1008})};
  std::map<std::string, std::vector<std::uint64_t>> of{{"rows", {8}}, {"workspace", {1008}}};

  Numbered(const NormSpec& spec, bool grouped) {
    for (std::size_t i = 0; i < kOperandCount; ++i) {
      const OperandRow& row = kOperands[i];
      const bool there = row.present(spec), matrix = there && is_matrix(row, spec);
      const std::uint64_t pointer = there ? 2000 + 8 * i : 0;
      const auto inner = static_cast<std::int64_t>(3000 + i), outer = 4 * inner + 1;
      if (matrix && grouped)
        set(tensors, row, InputRows(reinterpret_cast<const void*>(pointer), 4, outer, inner));
      else
        set(tensors, row, reinterpret_cast<const void*>(pointer), matrix ? outer : kContiguous);
      of[std::string(row.name)] = {pointer};
      // A vector is rows that are all the same.
      if (matrix && grouped)
        of[concat({row.name, "_rows"})] = {std::uint64_t{1} << 62, static_cast<std::uint64_t>(inner), 1, 4};
      else
        of[concat({row.name, "_rows"})] = {0, matrix ? static_cast<std::uint64_t>(outer) : 0, 0, 1};
    }
  }
};

void expect_the_block_is_the_struct(const NormSpec& spec, const Plan& plan, bool grouped) {
  SCOPED_TRACE(concat({to_text(spec), " as ", to_text(plan), grouped ? ", groups" : ""}));
  const OperandLayout layout = kernel_layout(plan, spec);
  const Numbered numbered(spec, grouped);
  ASSERT_TRUE(pack(spec, numbered.tensors).status);
  const OperandBlock block = block_of(plan, spec, numbered.tensors);
  std::size_t word = 0;
  for (const std::string& member : members(spec, plan)) {
    const std::string own = member.substr(member.rfind(' ') + 1);
    ASSERT_TRUE(numbered.of.contains(own)) << own;
    std::vector<std::uint64_t> expected = numbered.of.at(own);
    if (member.starts_with("Rows ")) {
      expected = {expected[1]};  // the stride alone
    } else if (!member.starts_with("GroupedRows ")) {
      EXPECT_TRUE(member.find('*') != member.npos || member.starts_with("long long "))
          << "8 bytes: " << member;
      for (const OperandRow& row : kOperands)
        if (row.name == own) {
          EXPECT_EQ(OperandBlock::offset_of(row.operand, layout), 8 * word) << own;
        }
    }
    for (const std::uint64_t value : expected) EXPECT_EQ(block.words[word++], value) << own;
  }
  EXPECT_EQ(OperandBlock::bytes_of(layout), 8 * word);
}

TEST(OperandBlock, ALaunchPacksWhatTheKernelDeclares) {
  int specs = 0;
  for (const Choice<Norm>& norm : kNorms)
    for (const Choice<Residual>& residual : kResiduals)
      for (const bool in_bias : {false, true})
        for (const bool sum : {false, true})
          for (const Choice<Affine>& affine : kAffines)
            for (const bool rows : {false, true}) {
              const NormSpec spec{.norm = norm.value,
                                  .columns = 64,
                                  .input = DType::bf16,
                                  .weight = DType::f32,
                                  .residual_type = DType::f32,
                                  .in_bias = in_bias,
                                  .residual = residual.value,
                                  .sum = sum,
                                  .affine = affine.value,
                                  .affine_rows = rows && affine.value != Affine::none,
                                  .statistics = sum};
              ++specs;
              Plan grouped = kPlan;
              grouped.grouped_rows = true;
              expect_the_block_is_the_struct(spec, kPlan, false);
              for (const bool groups : {false, true})
                for (const Plan& plan : {grouped, generic_plan()})
                  expect_the_block_is_the_struct(spec, plan, groups);
            }
  EXPECT_EQ(specs, 2 * 3 * 2 * 2 * 3 * 2);
}

TEST(OperandBlock, ALaunchOfGradientsPacksWhatTheKernelDeclares) {
  for (const Choice<Norm>& norm : kNorms)
    for (const bool dsum : {false, true})
      for (const Choice<Affine>& affine : kAffines)
        for (const bool groups : {false, true}) {
          Plan plan = kGradientPlan;
          plan.grouped_rows = groups;
          expect_the_block_is_the_struct(
              {.norm = norm.value, .backward = true, .columns = 64, .dsum = dsum, .affine = affine.value},
              plan, groups);
        }
}

// Kernel::check finds what else overlaps.
TEST(OperandBlock, AGradientMayBeInPlaceOfItsOwn) {
  const auto memory = [](std::uintptr_t i) { return reinterpret_cast<void*>(i << 20); };
  const NormSpec spec{.backward = true, .columns = 64, .dsum = true, .affine = Affine::weight_bias};
  const auto code = [&](const auto& change) {
    Tensors tensors{.x = memory(1), .rows = 12};
    tensors.weight = memory(2);
    tensors.dy = memory(3);
    tensors.dsum = memory(4);
    tensors.dx = memory(5);
    tensors.dweight = memory(6);
    tensors.dbias = memory(7);
    change(tensors);
    return code_name(pack(spec, tensors).status.code);
  };
  EXPECT_EQ(code([](Tensors&) {}), "Ok");
  EXPECT_EQ(code([](Tensors& t) { t.dx = const_cast<void*>(t.dy.pointer); }), "Ok");
  EXPECT_EQ(code([](Tensors& t) {
              t.dx = const_cast<void*>(t.dy.pointer);
              t.dx.outer = 80;
            }),
            "Overlap")
      << "with other rows";
  EXPECT_EQ(code([](Tensors& t) { t.y = const_cast<void*>(t.x.pointer); }), "UnexpectedPointer");
  EXPECT_EQ(code([](Tensors& t) { t.bias = t.weight; }), "UnexpectedPointer") << "the bias is not needed";
  EXPECT_EQ(code([](Tensors& t) { t.dbias = nullptr; }), "NullPointer");
}

// ---- Rows in groups ----

constexpr std::int64_t kColumns = 64;
constexpr NormSpec kAll{.columns = kColumns, .residual = Residual::before, .sum = true};

// Tensors of `rows` rows with their own memory.
Tensors tensors_of(std::int64_t rows) {
  const auto memory = [](std::uintptr_t i) { return reinterpret_cast<void*>(i << 20); };
  return {.x = memory(1), .y = memory(2), .rows = rows, .residual = memory(3), .sum = memory(4)};
}
std::string_view code_of(const Tensors& tensors) { return code_name(pack(kAll, tensors).status.code); }

// Where the kernel finds a row: begin_of() of templates/layout.cuh.
TEST(GroupsOfRows, BeginWhereTheySay) {
  Tensors tensors = tensors_of(0);
  const auto begins = [&](std::int64_t rows, std::int64_t n, std::int64_t outer, std::int64_t inner) {
    tensors.rows = rows;
    tensors.residual = {tensors.residual.pointer, n, outer, inner};
    const PackedTensors packed = pack(kAll, tensors);
    ASSERT_TRUE(packed.status && packed.layout.grouped) << rows << " " << n;
    const std::size_t at = OperandBlock::offset_of(Operand::residual, packed.layout) / 8;
    const auto [inverse, own_inner, step] =
        std::tuple{packed.block.words[at + 1], packed.block.words[at + 2], packed.block.words[at + 3]};
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, n - 1, n, n + 1, 2 * n - 1, rows / 2,
                                   rows / n / 2 * n - 1, rows - n - 1, rows - n, rows - 1}) {
      const auto r = static_cast<std::uint64_t>(row);
      const auto group = static_cast<std::uint64_t>(static_cast<unsigned __int128>(r) * inverse >> 64);
      EXPECT_EQ(static_cast<std::int64_t>(r * own_inner + group * step), row / n * outer + row % n * inner)
          << row << " of " << rows << ", groups of " << n;
    }
  };
  for (const std::int64_t n : {2, 3, 4, 5, 7, 12, 64, 127, 1000, 1024, 65537, 1000003})
    for (const std::int64_t groups : {2, 3, 7, 1024, 4001})
      for (const std::int64_t outer : {1, 64, 70001})
        for (const std::int64_t inner : {0, 65, 1000000}) begins(n * groups, n, outer, inner);
  begins((std::int64_t{1} << 31) - 2, ((std::int64_t{1} << 31) - 2) / 2, 0, 1);
  begins(std::int64_t{1} << 33, std::int64_t{1} << 28, 1, 0);
}

// A group, or groups without a gap, are rows that one stride describes: no kernel of its own.
TEST(GroupsOfRows, AreOnlyThoseThatNeedIt) {
  const auto grouped = [](std::int64_t rows, std::int64_t n, std::int64_t outer, std::int64_t inner) {
    Tensors tensors = tensors_of(rows);
    tensors.x = {tensors.x.pointer, n, outer, inner};
    const PackedTensors packed = pack(kAll, tensors);
    EXPECT_TRUE(packed.status) << n << " " << outer << " " << inner;
    return packed.layout.grouped;
  };
  EXPECT_FALSE(grouped(12, 1, 80, 7));
  EXPECT_FALSE(grouped(12, 0, 80, 7));
  EXPECT_FALSE(grouped(12, 12, 5, 100)) << "one group";
  EXPECT_FALSE(grouped(12, 4, 400, 100)) << "the same distance everywhere";
  EXPECT_FALSE(grouped(12, 4, kContiguous, 3)) << "contiguous, whatever n is";
  EXPECT_FALSE(grouped(12, 4, 0, 0)) << "all rows are one";
  EXPECT_TRUE(grouped(12, 4, 401, 100));
  EXPECT_TRUE(grouped(12, 4, 0, 100)) << "each group the same";
  EXPECT_TRUE(grouped(12, 4, 100, 0)) << "a row for each group";
}

TEST(GroupsOfRows, AreRefusedWhereTheyDoNotFit) {
  Tensors tensors = tensors_of(12);
  const auto with_x = [&](std::int64_t n, std::int64_t outer, std::int64_t inner) {
    tensors.x = {tensors.x.pointer, n, outer, inner};
    return code_of(tensors);
  };
  EXPECT_EQ(with_x(4, 401, 100), "Ok");
  EXPECT_EQ(with_x(5, 401, 100), "BadStride") << "12 rows are no multiple of 5";
  EXPECT_EQ(with_x(24, 401, 100), "BadStride");
  EXPECT_EQ(with_x(-4, 401, 100), "BadStride");
  tensors.rows = std::int64_t{1} << 40;
  EXPECT_EQ(with_x(std::int64_t{1} << 23, 0, 1), "Ok");
  EXPECT_EQ(with_x(std::int64_t{1} << 24, 0, 1), "BadStride") << "beyond what the kernel divides by";
  tensors.rows = 12;
  EXPECT_EQ(with_x(4, -2, 100), "BadStride");
  EXPECT_EQ(with_x(4, 401, -1), "BadStride");
  EXPECT_EQ(with_x(4, std::numeric_limits<std::int64_t>::max() / 2, 100), "BadStride");
  EXPECT_EQ(with_x(4, 401, std::numeric_limits<std::int64_t>::max() / 3), "BadStride");
  with_x(1, 64, 0);
  const auto with_y = [&](std::int64_t n, std::int64_t outer, std::int64_t inner) {
    tensors.y = {tensors.y.pointer, n, outer, inner};
    return code_of(tensors);
  };
  EXPECT_EQ(with_y(4, 4 * 64 + 1, 64), "Ok");
  EXPECT_EQ(with_y(4, 4 * 64 - 1, 64), "BadStride") << "the next group begins too early";
  EXPECT_EQ(with_y(4, 4 * 64 + 1, 63), "BadStride") << "rows of a group overlap";
  EXPECT_EQ(with_y(4, 64, 3 * 64), "Ok") << "groups between the rows of others";
  EXPECT_EQ(with_y(4, 64, 3 * 64 - 1), "BadStride");
  EXPECT_EQ(with_y(4, 0, 64), "BadStride");
}

// The rows that share a row of dmod_scale and dmod_shift are those that share scale and shift.
TEST(GroupsOfRows, ShareTheGradientsOfAModulation) {
  const NormSpec spec{
      .backward = true, .columns = 64, .modulation = Modulation::scale_shift, .activation = Activation::silu};
  int memory = 0;
  void* const at = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(&memory) / 4096 * 4096);
  struct Rows {
    std::int64_t n, outer, inner;
  };
  const auto code = [&](Rows inputs, Rows scale, Rows shift) {
    Tensors tensors{.x = at, .rows = 12};
    tensors.mod_scale = {at, inputs.n, inputs.outer, inputs.inner};
    tensors.mod_shift = {at, inputs.n, inputs.outer, inputs.inner};
    tensors.dy = at, tensors.dx = static_cast<std::byte*>(at) + 65536;
    tensors.dmod_scale = {static_cast<std::byte*>(at) + 131072, scale.n, scale.outer, scale.inner};
    tensors.dmod_shift = {static_cast<std::byte*>(at) + 196608, shift.n, shift.outer, shift.inner};
    return pack(spec, tensors).status.code;
  };
  const Rows each{1, 64, 0}, of_four{4, 64, 0}, of_three{3, 64, 0}, of_all{12, 64, 0}, same{1, 0, 0};
  EXPECT_EQ(code(each, each, each), Code::Ok);
  EXPECT_EQ(code(each, {4, 300, 70}, each), Code::Ok) << "rows in groups, one for each row";
  EXPECT_EQ(code(of_four, of_four, of_four), Code::Ok);
  EXPECT_EQ(code(of_four, of_four, {4, 100, 0}), Code::Ok);
  EXPECT_EQ(code(of_all, of_all, of_all), Code::Ok);
  EXPECT_EQ(code(same, of_all, of_all), Code::Ok);
  EXPECT_EQ(code(same, of_three, of_three), Code::Ok);
  EXPECT_EQ(code(same, each, each), Code::Ok);
  EXPECT_EQ(code(of_four, each, each), Code::BadStride) << "each row would need a gradient of its own";
  EXPECT_EQ(code(of_four, of_three, of_three), Code::BadStride);
  EXPECT_EQ(code(of_four, of_all, of_all), Code::BadStride);
  EXPECT_EQ(code(of_four, of_four, each), Code::BadStride);
  EXPECT_EQ(code(of_four, of_four, of_three), Code::BadStride);
  EXPECT_EQ(code(each, of_four, of_four), Code::BadStride) << "they share no scale";
  EXPECT_EQ(code(of_four, {4, 63, 0}, of_four), Code::BadStride) << "two sums overlap";
  EXPECT_EQ(code(of_four, {5, 64, 0}, of_four), Code::BadStride);
}

// Each address counts: of the rows of a group, and of the groups.
TEST(GroupsOfRows, TellTheirAlignment) {
  const auto aligned = [](std::int64_t outer, std::int64_t inner) {
    Tensors tensors = tensors_of(12);
    tensors.residual = {tensors.residual.pointer, 4, outer, inner};
    return static_cast<int>(pack(kAll, tensors).alignment);
  };
  EXPECT_EQ(aligned(400, 96), 8) << "16 bytes are enough for every access";
  EXPECT_EQ(aligned(402, 96), 2);
  EXPECT_EQ(aligned(400, 97), 1);
}

TEST(GroupsOfRows, MayBeInPlace) {
  Tensors tensors = tensors_of(12);
  tensors.residual = InputRows(tensors.sum.pointer, 4, 500, 100);
  EXPECT_EQ(code_of(tensors), "Overlap");
  tensors.sum = OutputRows(tensors.sum.pointer, 4, 500, 100);
  EXPECT_EQ(code_of(tensors), "Ok");
  tensors.sum.inner = 96;
  EXPECT_EQ(code_of(tensors), "Overlap");
  // The residual that is added to the result is read when the sum is there already.
  NormSpec after = kAll;
  after.residual = Residual::after;
  after.in_bias = true;
  tensors.sum = OutputRows(tensors.sum.pointer, 4, 500, 100);
  tensors.in_bias = tensors.x.pointer;
  EXPECT_EQ(code_name(pack(after, tensors).status.code), "Overlap");
}

// ---- Channels first ----

constexpr NormSpec kChannels{.columns = 6,
                             .input = DType::f16,
                             .weight = DType::f16,
                             .residual_type = DType::f16,
                             .residual = Residual::before,
                             .sum = true,
                             .affine = Affine::weight,
                             .channels_first = true};

Tensors planes_of(std::int64_t samples, std::int64_t plane) {
  Tensors tensors = tensors_of(samples * plane);
  tensors.weight = reinterpret_cast<const void*>(std::uintptr_t{5} << 20);
  tensors.plane = plane;
  return tensors;
}

TEST(ChannelsFirst, PassThePlaneAndTheDistanceOfSamples) {
  Tensors tensors = planes_of(3, 20);
  tensors.x.outer = 0;
  tensors.y.outer = 200;
  const PackedTensors packed = pack(kChannels, tensors);
  ASSERT_TRUE(packed.status);
  const auto address = [](const InputRows& rows) { return reinterpret_cast<std::uintptr_t>(rows.pointer); };
  const std::uint64_t inverse = ~std::uint64_t{0} / 20 + 1;
  const auto step = [](std::int64_t outer) { return static_cast<std::uint64_t>(outer - 20); };
  const std::vector<std::uint64_t> expected = {60,        0,  address(tensors.x),        inverse, 1,
                                               step(0),   20, address(tensors.residual), inverse, 1,
                                               step(120), 20, address(tensors.weight)};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(packed.block.words[i], expected[i]) << i;
  EXPECT_EQ(packed.block.words[16], step(200)) << "of y";
  EXPECT_EQ(packed.block.words[21], step(120)) << "of the sum";

  // The generic kernel takes the same addresses.
  const OperandBlock generic = block_of(generic_plan(), kChannels, tensors);
  EXPECT_EQ(generic.words[3], inverse);
  EXPECT_EQ(generic.words[6], 20u);

  // Beyond what one multiplication tells apart, unless there is one sample.
  tensors = planes_of(1, (std::int64_t{1} << 32) + 1);
  EXPECT_TRUE(pack(kChannels, tensors).status);
  tensors.rows *= 2;
  EXPECT_EQ(pack(kChannels, tensors).status.code, Code::BadStride);
  tensors = planes_of(2, 20);

  // Planes of one position are rows as far apart as samples.
  tensors.plane = 1;
  const PackedTensors single = pack(kChannels, tensors);
  EXPECT_EQ(single.block.words[3], 0u);
  EXPECT_EQ(single.block.words[9], 6u) << "the residual's samples, of 6 columns";
}

TEST(ChannelsFirst, NeedAPlaneAndWholeSamples) {
  const auto code = [](const NormSpec& spec, const Tensors& tensors) {
    return code_name(pack(spec, tensors).status.code);
  };
  Tensors tensors = planes_of(3, 20);
  EXPECT_EQ(code(kChannels, tensors), "Ok");
  for (const std::int64_t plane : {0, -20, 7, 120}) {
    tensors.plane = plane;
    EXPECT_EQ(code(kChannels, tensors), "BadPlane") << plane;
  }
  tensors = tensors_of(60);
  EXPECT_EQ(code(kAll, tensors), "Ok");
  tensors.plane = 20;
  EXPECT_EQ(code(kAll, tensors), "BadPlane") << "other specs have none";
  tensors = planes_of(0, 20);
  EXPECT_EQ(code(kChannels, tensors), "Ok") << "no rows";
}

TEST(ChannelsFirst, HaveADistanceOfSamplesAlone) {
  const auto code = [](const RowsAt<const void>& x, std::int64_t y_outer, std::int64_t samples = 3) {
    Tensors tensors = planes_of(samples, 20);
    tensors.x = {tensors.x.pointer, x.n, x.outer, x.inner};
    tensors.y.outer = y_outer;
    return code_name(pack(kChannels, tensors).status.code);
  };
  EXPECT_EQ(code({}, 120), "Ok");
  EXPECT_EQ(code({nullptr, 0, 7}, 121), "Ok") << "samples of an input may overlap";
  EXPECT_EQ(code({}, 119), "BadStride") << "samples of an output overlap";
  EXPECT_EQ(code({}, 119, 1), "Ok") << "one sample has no distance";
  EXPECT_EQ(code({nullptr, 1, -3}, 120), "BadStride");
  EXPECT_EQ(code({nullptr, 2, 120}, 120), "BadStride") << "no groups";
  EXPECT_EQ(code({nullptr, 1, 120, 1}, 120), "BadStride") << "no distance of positions";
  EXPECT_EQ(code({nullptr, 1, std::numeric_limits<std::int64_t>::max() / 4}, 120), "BadStride");
}

// Of positions: planes and distances of samples count, parameters do not.
TEST(ChannelsFirst, TellTheirAlignment) {
  const auto packed = [](std::int64_t plane, std::int64_t outer, std::uintptr_t behind = 0) {
    Tensors tensors = planes_of(3, plane);
    tensors.residual.outer = outer;
    tensors.sum.pointer = static_cast<std::byte*>(tensors.sum.pointer) + behind;
    tensors.weight = static_cast<const std::byte*>(tensors.weight.pointer) + 2;
    return pack(kChannels, tensors);
  };
  const auto aligned = [&](auto... given) { return static_cast<int>(packed(given...).alignment); };
  EXPECT_EQ(aligned(16, kContiguous), 8);
  EXPECT_EQ(aligned(20, kContiguous), 4);
  EXPECT_EQ(aligned(49, kContiguous), 1);
  EXPECT_EQ(aligned(16, 98), 2);
  EXPECT_EQ(aligned(16, 0), 8);
  EXPECT_EQ(aligned(16, kContiguous, std::uintptr_t{4}), 2);
  EXPECT_EQ(packed(16, kContiguous, 1).status.code, Code::Misaligned);
  Tensors one = planes_of(1, 1);
  EXPECT_EQ(static_cast<int>(pack(kChannels, one).alignment), 1) << "channels of one position are neighbours";
}

TEST(ChannelsFirst, MayBeInPlace) {
  Tensors tensors = planes_of(3, 20);
  tensors.y = const_cast<void*>(tensors.x.pointer);
  tensors.residual = tensors.sum.pointer;
  EXPECT_TRUE(pack(kChannels, tensors).status);
  tensors.sum.outer = 128;
  EXPECT_EQ(code_name(pack(kChannels, tensors).status.code), "Overlap");
}

}  // namespace
}  // namespace normjit::testing
