// SPDX-License-Identifier: Apache-2.0
// What a launch packs is what the kernel's text declares: struct Operands of the rendered spec.cuh, word for
// word.
#include "normjit/service/packed_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
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
              ElementsAre("long long rows", "unsigned char* workspace", "const Input* x",
                          "long long x_stride", "Output* y", "long long y_stride"));
  EXPECT_THAT(
      members({.norm = Norm::rms, .columns = 64, .affine = Affine::weight, .statistics = true}, kPlan),
      ElementsAre("long long rows", "unsigned char* workspace", "const Input* x", "long long x_stride",
                  "const Weight* weight", "Output* y", "long long y_stride", "Acc* rstd"));
  const auto all = ElementsAre(
      "long long rows", "unsigned char* workspace", "const Input* x", "long long x_stride",
      "const Residual* residual", "long long residual_stride", "const Weight* weight", "const Weight* bias",
      "Output* y", "long long y_stride", "Residual* sum", "long long sum_stride", "Acc* mean", "Acc* rstd");
  EXPECT_THAT(members({.columns = 64,
                       .residual = Residual::before,
                       .sum = true,
                       .affine = Affine::weight_bias,
                       .statistics = true},
                      kPlan),
              all);
  EXPECT_THAT(members({.columns = 64}, generic_plan()), all)
      << "the generic kernel has all, whatever the spec";
}

// A number for each member, which a launch finds in Tensors and strides.
struct Numbered {
  Tensors tensors{.rows = 1001, .workspace = reinterpret_cast<void*>(std::uintptr_t{1002})};
  std::map<std::string, std::uint64_t> of{{"rows", 1001}, {"workspace", 1002}};

  explicit Numbered(OperandSet operands) {
    for (std::size_t i = 0; i < kOperandCount; ++i) {
      const OperandRow& row = kOperands[i];
      const std::uint64_t pointer = has(operands, i) ? 2000 + i : 0, stride = has(operands, i) ? 3000 + i : 0;
      set(tensors, row, reinterpret_cast<const void*>(pointer), static_cast<std::int64_t>(stride));
      of[std::string(row.name)] = pointer;
      of[concat({row.name, "_stride"})] = stride;
    }
  }
};

void expect_the_block_is_the_struct(const NormSpec& spec, const Plan& plan) {
  SCOPED_TRACE(concat({to_text(spec), " as ", name(plan.strategy)}));
  const OperandSet in_kernel = kernel_operands(plan, spec);
  const Numbered numbered(operands_of(spec));
  const OperandBlock block = block_of(plan, spec, numbered.tensors);
  const std::vector<std::string> declared = members(spec, plan);
  ASSERT_EQ(OperandBlock::bytes_of(in_kernel), 8 * declared.size());
  for (std::size_t i = 0; i < declared.size(); ++i) {
    const std::string_view member = declared[i];
    const std::string own(member.substr(member.rfind(' ') + 1));
    EXPECT_TRUE(member.find('*') != member.npos || member.starts_with("long long ")) << "8 bytes: " << member;
    ASSERT_TRUE(numbered.of.contains(own)) << own;
    EXPECT_EQ(block.words[i], numbered.of.at(own)) << own;
    for (const OperandRow& row : kOperands)
      if (row.name == own) {
        EXPECT_EQ(OperandBlock::offset_of(row.operand, in_kernel), 8 * i) << own;
      }
    if (own == "workspace") {
      EXPECT_EQ(OperandBlock::offset_of(Operand::workspace, in_kernel), 8 * i);
    }
  }
}

TEST(OperandBlock, ALaunchPacksWhatTheKernelDeclares) {
  int specs = 0;
  for (const Choice<Norm>& norm : kNorms)
    for (const Choice<Residual>& residual : kResiduals)
      for (const bool sum : {false, true})
        for (const Choice<Affine>& affine : kAffines)
          for (const bool statistics : {false, true}) {
            const NormSpec spec{.norm = norm.value,
                                .columns = 64,
                                .input = DType::bf16,
                                .weight = DType::f32,
                                .residual = residual.value,
                                .sum = sum,
                                .affine = affine.value,
                                .statistics = statistics};
            if (!validate(spec)) continue;
            ++specs;
            expect_the_block_is_the_struct(spec, kPlan);
            expect_the_block_is_the_struct(spec, generic_plan());
          }
  EXPECT_EQ(specs, 2 * 3 * 3 * 2);
}

}  // namespace
}  // namespace normjit::testing
