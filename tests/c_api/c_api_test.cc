// SPDX-License-Identifier: Apache-2.0
// The C interface on a machine that leaves a trace of every step: what it passes on, and what it answers.
#include "normjit/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "normjit/c_api/call.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

void* memory(std::uintptr_t number) { return reinterpret_cast<void*>(number << 30); }

// What a kernel with weight, bias and statistics takes.
struct Block {
  std::int64_t rows;
  void *workspace, *x;
  std::int64_t x_stride;
  void *weight, *bias, *y;
  std::int64_t y_stride;
  void *mean, *rstd;
};

normjit_spec spec_of(std::int64_t columns, std::int32_t affine = NORMJIT_WEIGHT_BIAS) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  spec.columns = columns;
  spec.affine = affine;
  return spec;
}

normjit_tensors tensors_of(std::int64_t rows) {
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  tensors.x.pointer = memory(1);
  tensors.y.pointer = memory(2);
  tensors.weight.pointer = memory(3);
  tensors.bias.pointer = memory(4);
  tensors.rows = rows;
  return tensors;
}

// A text that the library gave away.
struct Text {
  Text() = default;
  ~Text() { normjit_free(text); }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  std::string string() const { return text == nullptr ? "" : text; }
  char* text = nullptr;
};

class CApi : public ::testing::Test {
 protected:
  CApi() { machine_.driver->set_argument_sizes({sizeof(Block)}); }

  // A call's outcome, by name, and with the sentence behind it where there is one.
  template <class Call>
  static std::string outcome(const Call& call) {
    Text error;
    const normjit_status status = call(&error.text);
    return std::string(normjit_status_name(status)) + (error.text == nullptr ? "" : ": " + error.string());
  }
  template <class Call>
  static Json report(const Call& call) {
    Text json, error;
    const normjit_status status = call(&json.text, &error.text);
    EXPECT_EQ(status, NORMJIT_OK) << error.string();
    return status == NORMJIT_OK ? Json::parse(json.string()) : Json();
  }
  normjit_kernel* prepared(const normjit_spec& spec) {
    normjit_kernel* kernel = nullptr;
    EXPECT_EQ(outcome([&](char** e) { return normjit_prepare(&service_, &spec, nullptr, &kernel, e); }),
              "Ok");
    return kernel;
  }
  std::string launched(const normjit_spec& spec, const normjit_tensors& tensors,
                       const normjit_launch_options* options = nullptr) {
    return outcome([&](char** e) { return normjit_norm(&service_, &spec, &tensors, memory(9), options, e); });
  }

  FakeMachine machine_;
  normjit_service service_{machine_.options(), machine_.seams()};
};

// --- What is passed on ---

TEST_F(CApi, OneCallLaunchesWhatTheSpecAndTheTensorsSay) {
  normjit_spec spec = spec_of(4096);
  spec.input = NORMJIT_BF16;
  spec.output = NORMJIT_F32;
  spec.weight = NORMJIT_F16;
  spec.epsilon = 1e-6;
  spec.scale = 0.5;
  spec.activation = NORMJIT_GELU_TANH;
  spec.statistics = 1;
  normjit_tensors tensors = tensors_of(200);
  tensors.mean = memory(5);
  tensors.rstd = memory(6);
  tensors.x.outer = 5000;
  tensors.y.outer = 6000;
  tensors.workspace = memory(7);
  const normjit_launch_options options = {sizeof options, 1, 0, nullptr};
  ASSERT_EQ(launched(spec, tensors, &options), "Ok");

  ASSERT_THAT(machine_.driver->launches(), SizeIs(1));
  const FakeDriver::Launch launch = machine_.driver->launches()[0];
  EXPECT_EQ(launch.stream, static_cast<Stream>(memory(9)));
  const Block passed = launch.argument<Block>(0);
  EXPECT_EQ(passed.rows, 200);
  EXPECT_EQ(passed.workspace, memory(7));
  EXPECT_EQ(passed.x, memory(1));
  EXPECT_EQ(passed.x_stride, 5000);
  EXPECT_EQ(passed.weight, memory(3));
  EXPECT_EQ(passed.bias, memory(4));
  EXPECT_EQ(passed.y, memory(2));
  EXPECT_EQ(passed.y_stride, 6000);
  EXPECT_EQ(passed.mean, memory(5));
  EXPECT_EQ(passed.rstd, memory(6));

  Text json;
  normjit_kernel* const kernel = prepared(spec);
  ASSERT_EQ(normjit_kernel_describe(kernel, &json.text, nullptr), NORMJIT_OK);
  EXPECT_EQ(Json::parse(json.string()).at("spec"),
            "layernorm/cols=4096/bf16/out=f32/w=f16/eps=1e-06/wb/gelu_tanh/scale=0.5/stats");
  normjit_kernel_release(kernel);
}

// C has the members of Tensors in their order, and the numbers of Operand beginning with 1.
template <class C, class Cpp>
constexpr bool same_place(std::size_t c, std::size_t cpp) {
  return sizeof(C) == sizeof(Cpp) && c == cpp + sizeof(std::size_t);
}
#define SAME_PLACE(member)                                                                \
  static_assert(same_place<decltype(normjit_tensors::member), decltype(Tensors::member)>( \
      offsetof(normjit_tensors, member), offsetof(Tensors, member)))
SAME_PLACE(x);
SAME_PLACE(y);
SAME_PLACE(weight);
SAME_PLACE(bias);
SAME_PLACE(mean);
SAME_PLACE(rstd);
SAME_PLACE(rows);
SAME_PLACE(workspace);
SAME_PLACE(residual);
SAME_PLACE(sum);
SAME_PLACE(in_bias);
SAME_PLACE(gate);
SAME_PLACE(gate_table);
SAME_PLACE(mod_scale);
SAME_PLACE(mod_scale_table);
SAME_PLACE(mod_shift);
SAME_PLACE(mod_shift_table);
SAME_PLACE(tensor_scale);
SAME_PLACE(row_scale);
SAME_PLACE(upper_bound);
SAME_PLACE(global_scale);
SAME_PLACE(also);
SAME_PLACE(block_scale);
SAME_PLACE(amax);
SAME_PLACE(dy);
SAME_PLACE(dsum);
SAME_PLACE(dx);
SAME_PLACE(dweight);
SAME_PLACE(dbias);
SAME_PLACE(dgate);
SAME_PLACE(dmod_scale);
SAME_PLACE(dmod_shift);
SAME_PLACE(saved_mean);
SAME_PLACE(saved_rstd);
#undef SAME_PLACE
constexpr bool is_number_of(int number, Operand operand) { return number == static_cast<int>(operand) + 1; }
static_assert(
    is_number_of(NORMJIT_OPERAND_X, Operand::x) && is_number_of(NORMJIT_OPERAND_IN_BIAS, Operand::in_bias) &&
    is_number_of(NORMJIT_OPERAND_GATE, Operand::gate) &&
    is_number_of(NORMJIT_OPERAND_GATE_TABLE, Operand::gate_table) &&
    is_number_of(NORMJIT_OPERAND_RESIDUAL, Operand::residual) &&
    is_number_of(NORMJIT_OPERAND_WEIGHT, Operand::weight) &&
    is_number_of(NORMJIT_OPERAND_BIAS, Operand::bias) &&
    is_number_of(NORMJIT_OPERAND_MOD_SCALE, Operand::mod_scale) &&
    is_number_of(NORMJIT_OPERAND_MOD_SCALE_TABLE, Operand::mod_scale_table) &&
    is_number_of(NORMJIT_OPERAND_MOD_SHIFT, Operand::mod_shift) &&
    is_number_of(NORMJIT_OPERAND_MOD_SHIFT_TABLE, Operand::mod_shift_table) &&
    is_number_of(NORMJIT_OPERAND_TENSOR_SCALE, Operand::tensor_scale) &&
    is_number_of(NORMJIT_OPERAND_UPPER_BOUND, Operand::upper_bound) &&
    is_number_of(NORMJIT_OPERAND_GLOBAL_SCALE, Operand::global_scale) &&
    is_number_of(NORMJIT_OPERAND_Y, Operand::y) && is_number_of(NORMJIT_OPERAND_SUM, Operand::sum) &&
    is_number_of(NORMJIT_OPERAND_MEAN, Operand::mean) && is_number_of(NORMJIT_OPERAND_RSTD, Operand::rstd) &&
    is_number_of(NORMJIT_OPERAND_ALSO, Operand::also) &&
    is_number_of(NORMJIT_OPERAND_ROW_SCALE, Operand::row_scale) &&
    is_number_of(NORMJIT_OPERAND_BLOCK_SCALE, Operand::block_scale) &&
    is_number_of(NORMJIT_OPERAND_AMAX, Operand::amax) && is_number_of(NORMJIT_OPERAND_DY, Operand::dy) &&
    is_number_of(NORMJIT_OPERAND_DSUM, Operand::dsum) && is_number_of(NORMJIT_OPERAND_DX, Operand::dx) &&
    is_number_of(NORMJIT_OPERAND_DWEIGHT, Operand::dweight) &&
    is_number_of(NORMJIT_OPERAND_DBIAS, Operand::dbias) &&
    is_number_of(NORMJIT_OPERAND_DGATE, Operand::dgate) &&
    is_number_of(NORMJIT_OPERAND_DMOD_SCALE, Operand::dmod_scale) &&
    is_number_of(NORMJIT_OPERAND_DMOD_SHIFT, Operand::dmod_shift) &&
    is_number_of(NORMJIT_OPERAND_SAVED_MEAN, Operand::saved_mean) &&
    is_number_of(NORMJIT_OPERAND_SAVED_RSTD, Operand::saved_rstd) &&
    is_number_of(NORMJIT_OPERAND_WORKSPACE, Operand::workspace));

TEST_F(CApi, AGroupSizeOfZeroIsOne) {
  normjit_tensors tensors = tensors_of(3);
  tensors.x.n = tensors.y.n = 0;
  EXPECT_EQ(launched(spec_of(64), tensors), "Ok");
  tensors.x.n = 2;
  EXPECT_THAT(launched(spec_of(64), tensors), HasSubstr("BadStride")) << "3 rows are no groups of 2";
}

TEST_F(CApi, NodeOffsets) {
  normjit_kernel* const kernel = prepared(spec_of(64));
  std::size_t offset = 0;
  const auto asked = [&](std::int32_t operand) {
    return outcome([&](char** e) { return normjit_node_offset(kernel, operand, &offset, e); });
  };
  EXPECT_EQ(asked(NORMJIT_OPERAND_X), "Ok");
  EXPECT_EQ(offset, 16U);
  EXPECT_EQ(asked(NORMJIT_OPERAND_Y), "Ok");
  EXPECT_EQ(offset, 48U);
  EXPECT_THAT(asked(NORMJIT_OPERAND_MEAN), HasSubstr("has no mean"));
  EXPECT_THAT(asked(NORMJIT_OPERAND_WORKSPACE), HasSubstr("has no workspace"));
  EXPECT_THAT(asked(0), HasSubstr("operand is 0"));
  EXPECT_THAT(asked(NORMJIT_OPERAND_DX), HasSubstr("has no dx"));
  EXPECT_THAT(asked(NORMJIT_OPERAND_DGATE), HasSubstr("has no dgate"));
  EXPECT_THAT(asked(NORMJIT_OPERAND_DMOD_SHIFT), HasSubstr("has no dmod_shift"));
  EXPECT_THAT(asked(NORMJIT_OPERAND_SAVED_RSTD), HasSubstr("has no saved_rstd"));
  EXPECT_THAT(asked(33), HasSubstr("operand is 33"));
  EXPECT_EQ(offset, 48U) << "written by successful calls only";
  EXPECT_EQ(normjit_node_offset(kernel, NORMJIT_OPERAND_MEAN, &offset, nullptr), NORMJIT_UNEXPECTED_POINTER);
  EXPECT_EQ(normjit_node_offset(kernel, NORMJIT_OPERAND_X, nullptr, nullptr), NORMJIT_BAD_ARGUMENT);
  EXPECT_EQ(normjit_node_offset(nullptr, NORMJIT_OPERAND_X, &offset, nullptr), NORMJIT_BAD_ARGUMENT);
  normjit_kernel_release(kernel);
}

TEST_F(CApi, APreparedKernelLaunchesChecksAndOutlivesItsService) {
  normjit_service* service = new normjit_service(machine_.options(), machine_.seams());
  const normjit_spec spec = spec_of(4096);
  normjit_kernel* kernel = nullptr;
  ASSERT_EQ(normjit_prepare(service, &spec, nullptr, &kernel, nullptr), NORMJIT_OK);
  normjit_service_destroy(service);

  normjit_tensors tensors = tensors_of(200);
  EXPECT_EQ(normjit_kernel_launch(kernel, &tensors, memory(9), nullptr), NORMJIT_OK);
  EXPECT_THAT(machine_.driver->launches(), SizeIs(1));
  EXPECT_EQ(normjit_kernel_workspace_bytes(kernel), 0u);
  machine_.driver->set_allocation(memory(1), {.device_accessible = false});
  Text error;
  EXPECT_EQ(normjit_kernel_check(kernel, &tensors, &error.text), NORMJIT_WRONG_DEVICE);
  EXPECT_THAT(error.string(), HasSubstr("x is not memory"));
  tensors.x.pointer = static_cast<char*>(memory(1)) + 2;
  EXPECT_EQ(normjit_kernel_launch(kernel, &tensors, nullptr, nullptr), NORMJIT_MISALIGNED);
  normjit_kernel_release(kernel);
  EXPECT_EQ(machine_.driver->live_kernels(), 0);
}

TEST_F(CApi, PrepareTakesItsOptions) {
  FakeMachine two({90, 80});
  normjit_service service(two.options(), two.seams());
  const normjit_spec spec = spec_of(4096);
  normjit_prepare_options options = NORMJIT_PREPARE_OPTIONS_INIT;
  options.device = 1;
  options.rows_hint = 1;
  options.pointer_alignment = 4;
  const std::string plan = to_text(generic_plan());
  options.plan = plan.c_str();
  normjit_kernel* kernel = nullptr;
  ASSERT_EQ(outcome([&](char** e) { return normjit_prepare(&service, &spec, &options, &kernel, e); }), "Ok");
  const Json facts = report([&](char** json, char** e) { return normjit_kernel_describe(kernel, json, e); });
  EXPECT_EQ(facts.at("device"), 1);
  EXPECT_EQ(facts.at("arch"), "sm_80");
  EXPECT_EQ(facts.at("plan"), plan);
  EXPECT_EQ(facts.at("fallback"), false);
  EXPECT_EQ(facts.at("workspace_bytes"), 0);
  normjit_kernel_release(kernel);

  kernel = nullptr;
  options.plan = "no_plan";
  EXPECT_THAT(outcome([&](char** e) { return normjit_prepare(&service, &spec, &options, &kernel, e); }),
              HasSubstr("BadArgument"));
  EXPECT_EQ(kernel, nullptr) << "a result is written only where the call succeeds";
}

TEST_F(CApi, AWorkspaceIsAskedForAndGiven) {
  const normjit_spec spec = spec_of(4194304, NORMJIT_NO_AFFINE);
  normjit_tensors tensors = tensors_of(2);
  tensors.weight.pointer = tensors.bias.pointer = nullptr;
  std::size_t bytes = 0;
  ASSERT_EQ(normjit_workspace_bytes(&service_, &spec, &bytes, nullptr), NORMJIT_OK);
  EXPECT_GT(bytes, 0u);
  EXPECT_THAT(launched(spec, tensors), HasSubstr("WorkspaceRequired"));
  tensors.workspace = memory(7);
  EXPECT_EQ(launched(spec, tensors), "Ok");
}

TEST_F(CApi, AMissInACaptureIsNotReadyUnlessItIsAllowed) {
  machine_.driver->set_capturing(true);
  EXPECT_THAT(launched(spec_of(4096), tensors_of(8)), HasSubstr("NotReady"));
  EXPECT_EQ(machine_.compiles(), 0);
  const normjit_launch_options allowed = {sizeof allowed, 0, 1, nullptr};
  EXPECT_EQ(launched(spec_of(4096), tensors_of(8), &allowed), "Ok");
  EXPECT_EQ(launched(spec_of(4096), tensors_of(8)), "Ok") << "it is ready now";
}

TEST_F(CApi, AFrozenServiceCompilesNothing) {
  ASSERT_EQ(normjit_freeze(&service_, NORMJIT_FROZEN_ERROR, nullptr), NORMJIT_OK);
  EXPECT_THAT(launched(spec_of(4096), tensors_of(8)), HasSubstr("NotCached"));
  ASSERT_EQ(normjit_freeze(&service_, NORMJIT_THAWED, nullptr), NORMJIT_OK);
  EXPECT_EQ(launched(spec_of(4096), tensors_of(8)), "Ok");
  for (const std::int32_t wrong : {0, 4, -1})
    EXPECT_EQ(normjit_freeze(&service_, wrong, nullptr), NORMJIT_BAD_ARGUMENT);
  normjit_wait_for_compiles(&service_);
}

TEST_F(CApi, SpecsAndTheirTexts) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  ASSERT_EQ(normjit_spec_parse("layernorm/shape=4x16/bf16/out=f32/wb/silu/stats", &spec, nullptr),
            NORMJIT_OK);
  EXPECT_EQ(spec.struct_size, sizeof spec);
  EXPECT_EQ(spec.columns, 64);
  EXPECT_EQ(spec.input, NORMJIT_BF16);
  EXPECT_EQ(spec.output, NORMJIT_F32);
  EXPECT_EQ(spec.weight, NORMJIT_BF16);
  EXPECT_EQ(spec.affine, NORMJIT_WEIGHT_BIAS);
  EXPECT_EQ(spec.activation, NORMJIT_SILU);
  EXPECT_EQ(spec.statistics, 1);
  Text text;
  ASSERT_EQ(normjit_spec_text(&spec, &text.text, nullptr), NORMJIT_OK);
  EXPECT_EQ(text.string(), "layernorm/cols=64/bf16/out=f32/eps=1e-05/wb/silu/stats");
  EXPECT_EQ(normjit_spec_text(&spec, nullptr, nullptr), NORMJIT_OK) << "only validates";
  spec.epsilon = -1;
  EXPECT_EQ(normjit_status_name(normjit_spec_text(&spec, nullptr, nullptr)), std::string("BadEpsilon"));

  // Every member goes there and back.
  const char* const full =
      "rmsnorm/cols=64/f16/out=f32/w=bf16/res=bf16/eps=0.5/inb/add/sum/round=sum+norm/w1:rows/relu/scale=2/"
      "stats";
  ASSERT_EQ(normjit_spec_parse(full, &spec, nullptr), NORMJIT_OK);
  EXPECT_EQ(spec.norm, NORMJIT_RMS);
  EXPECT_EQ(spec.columns, 64);
  EXPECT_EQ(spec.input, NORMJIT_F16);
  EXPECT_EQ(spec.output, NORMJIT_F32);
  EXPECT_EQ(spec.weight, NORMJIT_BF16);
  EXPECT_EQ(spec.epsilon, 0.5);
  EXPECT_EQ(spec.residual, NORMJIT_RESIDUAL_BEFORE);
  EXPECT_EQ(spec.sum, 1);
  EXPECT_EQ(spec.affine, NORMJIT_WEIGHT);
  EXPECT_EQ(spec.activation, NORMJIT_RELU);
  EXPECT_EQ(spec.scale, 2);
  EXPECT_EQ(spec.statistics, 1);
  EXPECT_EQ(spec.residual_type, NORMJIT_BF16);
  EXPECT_EQ(spec.in_bias, 1);
  EXPECT_EQ(spec.rounding, NORMJIT_ROUND_SUM_NORM);
  EXPECT_EQ(spec.weight_offset, 1);
  EXPECT_EQ(spec.affine_rows, 1);
  Text again;
  ASSERT_EQ(normjit_spec_text(&spec, &again.text, nullptr), NORMJIT_OK);
  EXPECT_EQ(again.string(), full);
  normjit_spec gradients = NORMJIT_SPEC_INIT;
  const char* const backward = "rmsnorm_bwd/cols=64/f16/out=f32/w=bf16/dw=f32/res=bf16/eps=0.5/dsum/w1";
  ASSERT_EQ(normjit_spec_parse(backward, &gradients, nullptr), NORMJIT_OK);
  EXPECT_EQ(gradients.backward, 1);
  EXPECT_EQ(gradients.dsum, 1);
  EXPECT_EQ(gradients.gradient_type, NORMJIT_F32);
  EXPECT_EQ(gradients.residual_type, NORMJIT_BF16);
  Text gradients_again;
  ASSERT_EQ(normjit_spec_text(&gradients, &gradients_again.text, nullptr), NORMJIT_OK);
  EXPECT_EQ(gradients_again.string(), backward);
  ASSERT_EQ(normjit_spec_parse("layernorm_bwd/cols=64/gate:silu/wb/need=dx+db", &gradients, nullptr),
            NORMJIT_OK);
  EXPECT_EQ(gradients.gate, NORMJIT_GATE_BEFORE);
  EXPECT_EQ(gradients.need, NORMJIT_NEED_DX_DBIAS);
  gradients.sum = 1;
  EXPECT_THAT(outcome([&](char** e) { return normjit_spec_text(&gradients, nullptr, e); }),
              HasSubstr("BadCombination: a backward spec excludes sum"));

  spec.residual = NORMJIT_NO_RESIDUAL;
  spec.in_bias = 0;
  spec.residual_type = 0;
  EXPECT_THAT(outcome([&](char** e) { return normjit_spec_text(&spec, nullptr, e); }),
              HasSubstr("BadCombination: sum needs something that happens to x before the norm"));

  const std::int64_t shape[] = {64, 256, 256};
  std::int64_t columns = 0;
  ASSERT_EQ(normjit_columns_of(shape, 3, &columns, nullptr), NORMJIT_OK);
  EXPECT_EQ(columns, 4194304);
  EXPECT_THAT(outcome([&](char** e) { return normjit_columns_of(nullptr, 0, &columns, e); }),
              HasSubstr("BadRank"));
  EXPECT_THAT(outcome([&](char** e) { return normjit_spec_parse("nonsense", &spec, e); }),
              HasSubstr("BadSpecText: "));

  std::int64_t sizes[3] = {};
  std::size_t rank = 0;
  ASSERT_EQ(normjit_spec_parse("rmsnorm/cols=96/f32/out=e4m3/q=32:e8m0:sw", &spec, nullptr), NORMJIT_OK);
  ASSERT_EQ(normjit_block_scale_shape(&spec, 130, sizes, &rank, nullptr), NORMJIT_OK);
  EXPECT_EQ(std::vector(sizes, sizes + rank), (std::vector<std::int64_t>{2, 1, 512}));
  EXPECT_THAT(outcome([&](char** e) { return normjit_block_scale_shape(&spec, -1, sizes, &rank, e); }),
              HasSubstr("BadRows: -1 rows"));
}

// "NAME EXTENT DTYPE", and "!" in front of an output, "=INPUT" where it may have that memory.
std::vector<std::string> operands_of(const char* text) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  EXPECT_EQ(normjit_spec_parse(text, &spec, nullptr), NORMJIT_OK);
  std::size_t count = 0;
  EXPECT_EQ(normjit_operands(&spec, nullptr, &count, nullptr), NORMJIT_OK);
  std::vector<normjit_operand> operands(count, NORMJIT_OPERAND_INIT);
  EXPECT_EQ(normjit_operands(&spec, operands.data(), &count, nullptr), NORMJIT_OK);
  EXPECT_EQ(count, operands.size());
  std::vector<std::string> texts;
  for (const normjit_operand& each : operands) {
    EXPECT_EQ(each.struct_size, sizeof each);
    texts.push_back((each.output ? "!" : "") + std::string(each.name) + " " + std::to_string(each.extent) +
                    " " + std::to_string(each.dtype) +
                    (each.in_place ? "=" + std::to_string(each.in_place) : ""));
  }
  return texts;
}

TEST_F(CApi, TellsTheOperandsOfASpec) {
  EXPECT_THAT(operands_of("layernorm/cols=64/f16/add/sum/wb/stats"),
              ElementsAre("x 1 1", "residual 1 1", "weight 3 1", "bias 3 1", "!y 1 1=1", "!sum 1 1=5",
                          "!mean 4 3", "!rstd 4 3"));
  EXPECT_THAT(operands_of("rmsnorm/cols=64/bf16/mods/out=e4m3/q=32:e8m0"),
              ElementsAre("x 1 2", "mod_scale 2 2", "!y 1 5=1", "!block_scale 6 9"));
  EXPECT_THAT(operands_of("rmsnorm/cols=64/bf16/w:rows/amax"),
              ElementsAre("x 1 2", "weight 1 2", "!y 1 2=1", "!amax 5 3"));
  EXPECT_THAT(operands_of("rmsnorm_bwd/cols=64/f32/w/dsum"),
              ElementsAre("x 1 3", "weight 3 3", "dy 1 3", "dsum 1 3", "!dx 1 3=23", "!dweight 3 3"));
  EXPECT_THAT(operands_of("rmsnorm_bwd/cols=64/f32/need=dx"), ElementsAre("x 1 3", "dy 1 3", "!dx 1 3=23"));
  EXPECT_THAT(operands_of("layernorm_bwd/cols=64/bf16/stats"),
              ElementsAre("x 1 2", "dy 1 2", "!dx 1 2=23", "saved_mean 4 3", "saved_rstd 4 3"));
}

TEST_F(CApi, OperandsHaveTheOffsetsOfTheirMembers) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  ASSERT_EQ(normjit_spec_parse("layernorm/cols=8/f32/wb/stats", &spec, nullptr), NORMJIT_OK);
  normjit_operand operands[6] = {NORMJIT_OPERAND_INIT};
  std::size_t count = 6;
  ASSERT_EQ(normjit_operands(&spec, operands, &count, nullptr), NORMJIT_OK);
  ASSERT_EQ(count, 6u);
  const std::size_t offsets[] = {offsetof(normjit_tensors, x),    offsetof(normjit_tensors, weight),
                                 offsetof(normjit_tensors, bias), offsetof(normjit_tensors, y),
                                 offsetof(normjit_tensors, mean), offsetof(normjit_tensors, rstd)};
  const int numbers[] = {NORMJIT_OPERAND_X, NORMJIT_OPERAND_WEIGHT, NORMJIT_OPERAND_BIAS,
                         NORMJIT_OPERAND_Y, NORMJIT_OPERAND_MEAN,   NORMJIT_OPERAND_RSTD};
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(operands[i].offset, offsets[i]) << operands[i].name;
    EXPECT_EQ(operands[i].operand, numbers[i]) << operands[i].name;
  }
}

TEST_F(CApi, OperandsFitTheRoomAndTheVersionOfTheCaller) {
  normjit_spec spec = spec_of(8);
  normjit_operand operands[4] = {NORMJIT_OPERAND_INIT};
  std::size_t count = 3;  // x, weight, bias and y are four
  ASSERT_EQ(normjit_operands(&spec, operands, &count, nullptr), NORMJIT_OK);
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(operands[0].name, nullptr);
  // Of an older version, with fewer members, and of a newer one.
  struct Older {
    std::size_t struct_size;
    const char* name;
  } older[4] = {{sizeof(Older), nullptr}};
  ASSERT_EQ(normjit_operands(&spec, reinterpret_cast<normjit_operand*>(older), &count, nullptr), NORMJIT_OK);
  EXPECT_STREQ(older[3].name, "y");
  EXPECT_EQ(older[3].struct_size, sizeof(Older));
  struct Newer {
    normjit_operand known;
    std::size_t unknown;
  } newer[4] = {{NORMJIT_OPERAND_INIT, 7}};
  newer[0].known.struct_size = sizeof(Newer);
  ASSERT_EQ(normjit_operands(&spec, &newer[0].known, &count, nullptr), NORMJIT_OK);
  EXPECT_STREQ(newer[3].known.name, "y");
  EXPECT_EQ(newer[0].unknown, 0u);
  operands[0].struct_size = 0;
  EXPECT_THAT(outcome([&](char** e) { return normjit_operands(&spec, operands, &count, e); }),
              HasSubstr("normjit_operand"));
  spec.columns = 0;
  EXPECT_THAT(outcome([&](char** e) { return normjit_operands(&spec, operands, &count, e); }),
              HasSubstr("BadDimension"));
}

TEST_F(CApi, AnEnumerationThatIsZeroIsTheDefault) {
  normjit_spec spec;
  std::memset(&spec, 0, sizeof spec);
  spec.struct_size = sizeof spec;
  spec.columns = 64;
  const auto text_of = [](const normjit_spec& of) {
    Text text;
    EXPECT_EQ(normjit_spec_text(&of, &text.text, nullptr), NORMJIT_OK);
    return text.string();
  };
  EXPECT_EQ(text_of(spec), "layernorm/cols=64/f32/eps=0/scale=0");
  spec.input = NORMJIT_F16;
  EXPECT_EQ(text_of(spec), "layernorm/cols=64/f16/eps=0/scale=0");
}

// --- Options ---

class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~EnvironmentVariable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST_F(CApi, OptionsReplaceWhatTheEnvironmentSays) {
  const EnvironmentVariable cache("NORMJIT_CACHE_DIR", "/from/environment"), mode("NORMJIT_MODE", "lazy"),
      log("NORMJIT_MISS_LOG", "/miss.log"), shared("NORMJIT_CACHE_SHARED", "1"),
      trust("NORMJIT_TRUST", "a b"), key("NORMJIT_SIGN_KEY", "/from/environment.key");
  const auto made = [](const normjit_options* options) {
    normjit_service* service = nullptr;
    EXPECT_EQ(outcome([&](char** e) { return normjit_service_create(options, &service, e); }), "Ok");
    const Options all = service->options;
    normjit_service_destroy(service);
    return all;
  };
  for (const bool with_options : {false, true}) {
    const normjit_options defaults = NORMJIT_OPTIONS_INIT;
    const Options all = made(with_options ? &defaults : nullptr);
    EXPECT_EQ(all.cache_directory, "/from/environment");
    EXPECT_EQ(all.mode, Mode::lazy);
    EXPECT_EQ(all.miss_log, "/miss.log");
    EXPECT_TRUE(all.shared_cache);
    EXPECT_THAT(all.trust, ElementsAre("a", "b"));
    EXPECT_EQ(all.sign_key, "/from/environment.key");
    EXPECT_EQ(all.max_cache_bytes, std::int64_t{256} << 20);
  }
  normjit_options options = NORMJIT_OPTIONS_INIT;
  options.mode = NORMJIT_CACHED_ONLY;
  options.shared_cache = NORMJIT_NO;
  options.exact_toolchain = NORMJIT_YES;
  options.cache_directory = "/cache";
  options.layers = "/one:/two.njp:";
  options.max_cache_bytes = -1;
  options.miss_log = "";
  options.compiler_path = "/nvrtc";
  options.cuda_home = "/cuda";
  options.template_directory = "/templates";
  options.trust = "RWone, two.pub";
  options.sign_key = "/key";
  options.remote = "redis://host";
  options.remote_pack = "https://host/kernels.njp";
  options.remote_unsigned = NORMJIT_YES;
  normjit_remote store = NORMJIT_REMOTE_INIT;
  store.user = &store;
  store.get = [](void*, const char*, std::size_t, normjit_remote_sink, void*, std::int32_t, char*,
                 std::size_t) -> normjit_remote_outcome { return NORMJIT_REMOTE_ABSENT; };
  options.remote_store = &store;
  const Options all = made(&options);
  EXPECT_EQ(all.mode, Mode::cached_only);
  EXPECT_FALSE(all.shared_cache);
  EXPECT_TRUE(all.exact_toolchain);
  EXPECT_EQ(all.cache_directory, "/cache");
  EXPECT_THAT(all.layers, ElementsAre("/one", "/two.njp"));
  EXPECT_EQ(all.max_cache_bytes, 0);
  EXPECT_EQ(all.miss_log, "");
  EXPECT_EQ(all.compiler_path, "/nvrtc");
  EXPECT_EQ(all.cuda_home, "/cuda");
  EXPECT_EQ(all.template_directory, "/templates");
  EXPECT_THAT(all.trust, ElementsAre("RWone", "two.pub"));
  EXPECT_EQ(all.sign_key, "/key");
  EXPECT_EQ(all.remote, "redis://host");
  EXPECT_EQ(all.remote_pack, "https://host/kernels.njp");
  EXPECT_TRUE(all.remote_unsigned);
  ASSERT_TRUE(all.remote_store.has_value());
  EXPECT_EQ(all.remote_store->user, &store);
  EXPECT_EQ(all.remote_store->get, store.get);

  options.trust = "";
  options.sign_key = "";
  EXPECT_THAT(made(&options).trust, IsEmpty());
  EXPECT_EQ(made(&options).sign_key, "");

  normjit_options alone = NORMJIT_OPTIONS_INIT;
  alone.ignore_environment = NORMJIT_YES;
  EXPECT_EQ(made(&alone).cache_directory, "");
  EXPECT_EQ(made(&alone).mode, Mode::eager);
}

TEST_F(CApi, OptionsOutOfRangeAreNamed) {
  const auto refused = [](auto normjit_options::*member, auto value) {
    normjit_options options = NORMJIT_OPTIONS_INIT;
    options.*member = value;
    normjit_service* service = nullptr;
    const std::string answer =
        outcome([&](char** e) { return normjit_service_create(&options, &service, e); });
    EXPECT_EQ(service, nullptr);
    return answer;
  };
  EXPECT_THAT(refused(&normjit_options::mode, 4), HasSubstr("BadArgument: mode is 4"));
  EXPECT_THAT(refused(&normjit_options::mode, -1), HasSubstr("mode is -1"));
  EXPECT_THAT(refused(&normjit_options::shared_cache, 3), HasSubstr("shared_cache is 3"));
  EXPECT_THAT(refused(&normjit_options::exact_toolchain, -2), HasSubstr("exact_toolchain is -2"));
  EXPECT_THAT(refused(&normjit_options::ignore_environment, 9), HasSubstr("ignore_environment is 9"));
  EXPECT_THAT(refused(&normjit_options::remote_unsigned, 3), HasSubstr("remote_unsigned is 3"));
  const normjit_remote without_get = NORMJIT_REMOTE_INIT, without_size = {};
  EXPECT_THAT(refused(&normjit_options::remote_store, &without_get), HasSubstr("normjit_remote.get is NULL"));
  EXPECT_THAT(refused(&normjit_options::remote_store, &without_size),
              HasSubstr("struct_size of normjit_remote"));
  EXPECT_THAT(refused(&normjit_options::max_cache_bytes, std::int64_t{-2}),
              HasSubstr("max_cache_bytes is -2"));
}

// What a callback was told, and by whose pointer.
struct Heard {
  std::mutex mutex;
  std::vector<std::string> lines;
};

TEST_F(CApi, LogAndEventsReachTheCallbacks) {
  Heard log, events;
  normjit_options options = NORMJIT_OPTIONS_INIT;
  options.ignore_environment = NORMJIT_YES;
  options.log = [](void* user, std::int32_t level, const char* message) {
    const std::lock_guard lock(static_cast<Heard*>(user)->mutex);
    static_cast<Heard*>(user)->lines.push_back(std::to_string(level) + " " + message);
  };
  options.log_user = &log;
  options.on_event = [](void* user, const normjit_event* event) {
    const std::lock_guard lock(static_cast<Heard*>(user)->mutex);
    EXPECT_EQ(event->struct_size, sizeof *event);
    EXPECT_GE(event->milliseconds, 0);
    constexpr const char* kPhases[] = {"", "instant", "begin", "end"};
    ASSERT_THAT(event->phase, ::testing::AllOf(::testing::Ge(NORMJIT_INSTANT), ::testing::Le(NORMJIT_END)));
    static_cast<Heard*>(user)->lines.push_back(std::string(kPhases[event->phase]) + " " + event->kind + " " +
                                               event->spec + " " + event->arch);
    EXPECT_NE(event->plan, nullptr);
    EXPECT_NE(event->detail, nullptr);
  };
  options.event_user = &events;

  // The callbacks as a service has them, on the machine that needs no GPU.
  normjit_service* made = nullptr;
  ASSERT_EQ(normjit_service_create(&options, &made, nullptr), NORMJIT_OK);
  normjit_service service(made->options, machine_.seams());
  normjit_service_destroy(made);
  const normjit_spec spec = spec_of(64);
  const normjit_tensors tensors = tensors_of(8);
  ASSERT_EQ(normjit_layer_norm(&service, &spec, &tensors, nullptr, nullptr, nullptr), NORMJIT_OK);
  EXPECT_THAT(events.lines, ElementsAre("instant missed layernorm/cols=64/f32/eps=1e-05/wb sm_90",
                                        "begin compiling layernorm/cols=64/f32/eps=1e-05/wb sm_90",
                                        "end compiled layernorm/cols=64/f32/eps=1e-05/wb sm_90",
                                        "begin loading layernorm/cols=64/f32/eps=1e-05/wb sm_90",
                                        "end loaded layernorm/cols=64/f32/eps=1e-05/wb sm_90"));
  service.options.log(LogLevel::warn, std::string_view("careful, please", 7));
  ASSERT_FALSE(log.lines.empty());
  EXPECT_EQ(log.lines.back(), "3 careful");
}

TEST_F(CApi, TheCountersAreAPageForPrometheus) {
  const normjit_spec spec = spec_of(64);
  normjit_kernel_release(prepared(spec));
  const normjit_label labels[] = {{"model", "bert"}, {"rank", "3"}};
  Text page, error;
  ASSERT_EQ(normjit_prometheus(&service_, labels, 2, &page.text, &error.text), NORMJIT_OK);
  EXPECT_THAT(page.text, HasSubstr("\nnormjit_compiles_total{model=\"bert\",rank=\"3\"} 1\n"));
  const normjit_label wrong[] = {{"my model", "bert"}}, half[] = {{"model", nullptr}};
  Text nothing;
  EXPECT_EQ(normjit_prometheus(&service_, wrong, 1, &nothing.text, &error.text), NORMJIT_BAD_ARGUMENT);
  EXPECT_THAT(error.text, HasSubstr("my model"));
  EXPECT_EQ(normjit_prometheus(&service_, half, 1, &nothing.text, nullptr), NORMJIT_BAD_ARGUMENT);
  EXPECT_EQ(nothing.text, nullptr);
}

// --- Mistakes ---

TEST_F(CApi, ACodeHasItsNameAndItsMessage) {
  EXPECT_STREQ(normjit_status_name(NORMJIT_OK), "Ok");
  EXPECT_STREQ(normjit_status_name(NORMJIT_NOT_READY), "NotReady");
  EXPECT_STREQ(normjit_status_name(12345), "Unknown");
  EXPECT_STREQ(normjit_status_name(std::numeric_limits<std::int32_t>::min()), "Unknown");
  EXPECT_THAT(normjit_status_message(NORMJIT_WORKSPACE_REQUIRED), HasSubstr("workspace"));
  EXPECT_THAT(normjit_status_message(-1), HasSubstr("does not know"));
  EXPECT_EQ(normjit_abi_version(), static_cast<std::uint32_t>(NORMJIT_ABI_VERSION));
  EXPECT_STREQ(normjit_version(), NORMJIT_TEST_VERSION);
}

TEST_F(CApi, NullIsAnsweredWithTheNameOfTheArgument) {
  const normjit_spec spec = spec_of(64);
  const normjit_tensors tensors = tensors_of(8);
  const normjit_kernel_set set = NORMJIT_KERNEL_SET_INIT;
  normjit_spec parsed = NORMJIT_SPEC_INIT;
  normjit_kernel* kernel = prepared(spec);
  normjit_service* const s = &service_;
  std::size_t bytes = 0;
  Text text;
  char** const t = &text.text;
  const std::int64_t shape[] = {1};
  using Call = std::function<normjit_status(char**)>;
  const std::pair<const char*, Call> calls[] = {
      {"shape", [&](char** e) { return normjit_columns_of(nullptr, 1, &parsed.columns, e); }},
      {"columns", [&](char** e) { return normjit_columns_of(shape, 1, nullptr, e); }},
      {"text", [&](char** e) { return normjit_spec_parse(nullptr, &parsed, e); }},
      {"spec", [&](char** e) { return normjit_spec_parse("layernorm/cols=1/f32", nullptr, e); }},
      {"spec", [&](char** e) { return normjit_spec_text(nullptr, t, e); }},
      {"spec", [&](char** e) { return normjit_block_scale_shape(nullptr, 1, &parsed.columns, &bytes, e); }},
      {"shape", [&](char** e) { return normjit_block_scale_shape(&spec, 1, nullptr, &bytes, e); }},
      {"rank", [&](char** e) { return normjit_block_scale_shape(&spec, 1, &parsed.columns, nullptr, e); }},
      {"spec", [&](char** e) { return normjit_operands(nullptr, nullptr, &bytes, e); }},
      {"count", [&](char** e) { return normjit_operands(&spec, nullptr, nullptr, e); }},
      {"service", [&](char** e) { return normjit_service_create(nullptr, nullptr, e); }},
      {"service", [&](char** e) { return normjit_norm(nullptr, &spec, &tensors, nullptr, nullptr, e); }},
      {"service",
       [&](char** e) { return normjit_layer_norm(nullptr, &spec, &tensors, nullptr, nullptr, e); }},
      {"spec", [&](char** e) { return normjit_norm(s, nullptr, &tensors, nullptr, nullptr, e); }},
      {"tensors", [&](char** e) { return normjit_norm(s, &spec, nullptr, nullptr, nullptr, e); }},
      {"service", [&](char** e) { return normjit_workspace_bytes(nullptr, &spec, &bytes, e); }},
      {"spec", [&](char** e) { return normjit_workspace_bytes(s, nullptr, &bytes, e); }},
      {"bytes", [&](char** e) { return normjit_workspace_bytes(s, &spec, nullptr, e); }},
      {"service", [&](char** e) { return normjit_prepare(nullptr, &spec, nullptr, &kernel, e); }},
      {"spec", [&](char** e) { return normjit_prepare(s, nullptr, nullptr, &kernel, e); }},
      {"kernel", [&](char** e) { return normjit_prepare(s, &spec, nullptr, nullptr, e); }},
      {"kernel", [&](char** e) { return normjit_kernel_check(nullptr, &tensors, e); }},
      {"tensors", [&](char** e) { return normjit_kernel_check(kernel, nullptr, e); }},
      {"kernel", [&](char** e) { return normjit_kernel_describe(nullptr, t, e); }},
      {"json", [&](char** e) { return normjit_kernel_describe(kernel, nullptr, e); }},
      {"service", [&](char** e) { return normjit_freeze(nullptr, NORMJIT_THAWED, e); }},
      {"service", [&](char** e) { return normjit_counters(nullptr, t, e); }},
      {"json", [&](char** e) { return normjit_counters(s, nullptr, e); }},
      {"service", [&](char** e) { return normjit_prometheus(nullptr, nullptr, 0, t, e); }},
      {"labels", [&](char** e) { return normjit_prometheus(s, nullptr, 1, t, e); }},
      {"text", [&](char** e) { return normjit_prometheus(s, nullptr, 0, nullptr, e); }},
      {"service", [&](char** e) { return normjit_environment(nullptr, t, e); }},
      {"json", [&](char** e) { return normjit_environment(s, nullptr, e); }},
      {"service", [&](char** e) { return normjit_prebuild(nullptr, &set, 0, 0, nullptr, nullptr, t, e); }},
      {"set", [&](char** e) { return normjit_prebuild(s, nullptr, 0, 0, nullptr, nullptr, t, e); }},
      {"service", [&](char** e) { return normjit_export_pack(nullptr, "/p.njp", nullptr, t, e); }},
      {"path", [&](char** e) { return normjit_export_pack(s, nullptr, nullptr, t, e); }},
      {"service", [&](char** e) { return normjit_import(nullptr, "/p", t, e); }},
      {"sources", [&](char** e) { return normjit_import(s, nullptr, t, e); }},
      {"service", [&](char** e) { return normjit_add_layer(nullptr, "pack", 4, nullptr, e); }},
      {"pack", [&](char** e) { return normjit_add_layer(s, nullptr, 4, nullptr, e); }},
      {"service", [&](char** e) { return normjit_entries(nullptr, t, e); }},
      {"service", [&](char** e) { return normjit_verify(nullptr, 0, t, e); }},
      {"service", [&](char** e) { return normjit_prune(nullptr, 0, 0, t, e); }},
      {"service", [&](char** e) { return normjit_why(nullptr, &spec, "sm_90", t, e); }},
      {"spec", [&](char** e) { return normjit_why(s, nullptr, "sm_90", t, e); }},
      {"arch", [&](char** e) { return normjit_why(s, &spec, nullptr, t, e); }},
      {"service", [&](char** e) { return normjit_render(nullptr, &spec, "sm_90", 0, nullptr, t, e); }},
      {"spec", [&](char** e) { return normjit_render(s, nullptr, "sm_90", 0, nullptr, t, e); }},
      {"arch", [&](char** e) { return normjit_render(s, &spec, nullptr, 0, nullptr, t, e); }},
      {"source", [&](char** e) { return normjit_render(s, &spec, "sm_90", 0, nullptr, nullptr, e); }},
      {"service", [&](char** e) { return normjit_remember(nullptr, &spec, 1, "p", e); }},
      {"spec", [&](char** e) { return normjit_remember(s, nullptr, 1, "p", e); }},
      {"plan", [&](char** e) { return normjit_remember(s, &spec, 1, nullptr, e); }},
  };
  for (const auto& [name, call] : calls) {
    EXPECT_EQ(outcome(call), std::string("BadArgument: ") + name + " is NULL") << &call - &calls[0].second;
    EXPECT_EQ(call(nullptr), NORMJIT_BAD_ARGUMENT) << name << ", without room for a sentence";
  }
  EXPECT_EQ(text.text, nullptr);
  EXPECT_EQ(normjit_kernel_launch(nullptr, &tensors, nullptr, nullptr), NORMJIT_BAD_ARGUMENT);
  EXPECT_EQ(normjit_kernel_launch(kernel, nullptr, nullptr, nullptr), NORMJIT_BAD_ARGUMENT);
  EXPECT_EQ(normjit_kernel_workspace_bytes(nullptr), 0u);
  normjit_wait_for_compiles(nullptr);
  normjit_free(nullptr);
  normjit_kernel_release(nullptr);
  normjit_service_destroy(nullptr);
  normjit_kernel_release(kernel);
}

TEST_F(CApi, ValuesThatAreNoneAreNamed) {
  const auto refused = [](std::int32_t normjit_spec::*member, std::int32_t value) {
    normjit_spec spec = spec_of(64);
    spec.*member = value;
    return outcome([&](char** e) { return normjit_spec_text(&spec, nullptr, e); });
  };
  for (const std::int32_t wrong : {-1, 10, 256, 257, std::numeric_limits<std::int32_t>::min()}) {
    const std::string is = " is " + std::to_string(wrong) + ";";
    EXPECT_THAT(refused(&normjit_spec::norm, wrong), HasSubstr("BadArgument: norm" + is));
    EXPECT_THAT(refused(&normjit_spec::residual, wrong), HasSubstr("BadArgument: residual" + is));
    EXPECT_THAT(refused(&normjit_spec::sum, wrong), HasSubstr("BadArgument: sum" + is));
    EXPECT_THAT(refused(&normjit_spec::in_bias, wrong), HasSubstr("BadArgument: in_bias" + is));
    EXPECT_THAT(refused(&normjit_spec::rounding, wrong), HasSubstr("BadArgument: rounding" + is));
    EXPECT_THAT(refused(&normjit_spec::weight_offset, wrong), HasSubstr("BadArgument: weight_offset" + is));
    EXPECT_THAT(refused(&normjit_spec::affine_rows, wrong), HasSubstr("BadArgument: affine_rows" + is));
    EXPECT_THAT(refused(&normjit_spec::residual_type, wrong), HasSubstr("BadDType: residual_type" + is));
    EXPECT_THAT(refused(&normjit_spec::input, wrong), HasSubstr("BadDType: input" + is));
    EXPECT_THAT(refused(&normjit_spec::output, wrong), HasSubstr("BadDType: output" + is));
    EXPECT_THAT(refused(&normjit_spec::weight, wrong), HasSubstr("BadDType: weight" + is));
    EXPECT_THAT(refused(&normjit_spec::affine, wrong), HasSubstr("BadAffine: affine" + is));
    EXPECT_THAT(refused(&normjit_spec::statistics, wrong), HasSubstr("BadArgument: statistics" + is));
    EXPECT_THAT(refused(&normjit_spec::activation, wrong), HasSubstr("BadActivation: activation" + is));
    EXPECT_THAT(refused(&normjit_spec::quantization, wrong), HasSubstr("BadArgument: quantization" + is));
    EXPECT_THAT(refused(&normjit_spec::inverse_scale, wrong), HasSubstr("BadArgument: inverse_scale" + is));
    EXPECT_THAT(refused(&normjit_spec::upper_bound, wrong), HasSubstr("BadArgument: upper_bound" + is));
    EXPECT_THAT(refused(&normjit_spec::scale_format, wrong), HasSubstr("BadArgument: scale_format" + is));
    EXPECT_THAT(refused(&normjit_spec::scale_layout, wrong), HasSubstr("BadArgument: scale_layout" + is));
    EXPECT_THAT(refused(&normjit_spec::also, wrong), HasSubstr("BadArgument: also" + is));
    EXPECT_THAT(refused(&normjit_spec::amax, wrong), HasSubstr("BadArgument: amax" + is));
    EXPECT_THAT(refused(&normjit_spec::backward, wrong), HasSubstr("BadArgument: backward" + is));
    EXPECT_THAT(refused(&normjit_spec::dsum, wrong), HasSubstr("BadArgument: dsum" + is));
    EXPECT_THAT(refused(&normjit_spec::gradient_type, wrong), HasSubstr("BadDType: gradient_type" + is));
    EXPECT_THAT(refused(&normjit_spec::need, wrong), HasSubstr("BadArgument: need" + is));
  }
  EXPECT_THAT(refused(&normjit_spec::input, NORMJIT_E4M3), HasSubstr("BadDType: input is e4m3; it must be"));
  EXPECT_THAT(refused(&normjit_spec::output, NORMJIT_E8M0),
              HasSubstr("BadDType: output is e8m0; it must be"));
  EXPECT_THAT(refused(&normjit_spec::quantization, 8),
              HasSubstr("quantization is 8; it is NORMJIT_NO_QUANTIZATION (1)"));
  EXPECT_THAT(refused(&normjit_spec::norm, 3), HasSubstr("norm is 3; it is NORMJIT_LAYER (1)"));
  EXPECT_THAT(refused(&normjit_spec::residual, 4), HasSubstr("residual is 4; it is NORMJIT_NO_RESIDUAL (1)"));
  EXPECT_THAT(refused(&normjit_spec::activation, 6), HasSubstr("BadActivation: activation is 6"));
  normjit_spec spec = spec_of(64);
  spec.input = 10;
  EXPECT_THAT(launched(spec, tensors_of(8)), HasSubstr("BadDType: input is 10"));
  const std::size_t size = sizeof(normjit_launch_options);
  const std::pair<const char*, normjit_launch_options> options[] = {
      {"overlap_previous", {size, 2, 0, nullptr}}, {"miss_in_capture", {size, 0, -1, nullptr}}};
  for (const auto& [name, how] : options)
    EXPECT_THAT(launched(spec_of(64), tensors_of(8), &how), HasSubstr(std::string("BadArgument: ") + name));
  EXPECT_THAT(machine_.driver->launches(), SizeIs(0));
}

// --- Structures of other versions ---

// A structure as a caller of a later version has it.
template <class Struct>
struct Later {
  Struct known;
  std::int64_t unknown = 0;
};

TEST_F(CApi, AMemberThatTheLibraryDoesNotKnowMustBeZero) {
  Later<normjit_spec> spec{spec_of(64)};
  spec.known.struct_size = sizeof spec;
  Later<normjit_tensors> tensors{tensors_of(8)};
  tensors.known.struct_size = sizeof tensors;
  Later<normjit_launch_options> options{NORMJIT_LAUNCH_OPTIONS_INIT};
  options.known.struct_size = sizeof options;
  EXPECT_EQ(launched(spec.known, tensors.known, &options.known), "Ok");
  ASSERT_THAT(machine_.driver->launches(), SizeIs(1));
  EXPECT_EQ(machine_.driver->launches()[0].argument<Block>(0).rows, 8);

  for (std::int64_t* unknown : {&spec.unknown, &tensors.unknown, &options.unknown}) {
    *unknown = std::int64_t{1} << 56;
    EXPECT_THAT(launched(spec.known, tensors.known, &options.known), HasSubstr("does not know"));
    *unknown = 0;
  }
  Later<normjit_options> service{NORMJIT_OPTIONS_INIT, 1};
  service.known.struct_size = sizeof service;
  normjit_service* made = nullptr;
  EXPECT_EQ(normjit_service_create(&service.known, &made, nullptr), NORMJIT_BAD_ARGUMENT);
  Later<normjit_prepare_options> prepare{NORMJIT_PREPARE_OPTIONS_INIT, 1};
  prepare.known.struct_size = sizeof prepare;
  normjit_kernel* kernel = nullptr;
  EXPECT_EQ(normjit_prepare(&service_, &spec.known, &prepare.known, &kernel, nullptr), NORMJIT_BAD_ARGUMENT);
  Later<normjit_kernel_set> set{NORMJIT_KERNEL_SET_INIT, 1};
  set.known.struct_size = sizeof set;
  Text json;
  EXPECT_EQ(normjit_prebuild(&service_, &set.known, 0, 0, nullptr, nullptr, &json.text, nullptr),
            NORMJIT_BAD_ARGUMENT);

  // What is written to a later structure is 0 where this library knows nothing.
  spec.unknown = 77;
  ASSERT_EQ(normjit_spec_parse("layernorm/cols=128/f16", &spec.known, nullptr), NORMJIT_OK);
  EXPECT_EQ(spec.known.columns, 128);
  EXPECT_EQ(spec.unknown, 0);
  EXPECT_EQ(spec.known.struct_size, sizeof spec);
}

TEST_F(CApi, ChannelsFirstHaveAPlane) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  ASSERT_EQ(normjit_spec_parse("layernorm/cols=96/f32/eps=1e-6/cf", &spec, nullptr), NORMJIT_OK);
  EXPECT_EQ(spec.channels_first, 1);
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  tensors.x.pointer = memory(1);
  tensors.y.pointer = memory(2);
  tensors.rows = 128;
  EXPECT_THAT(launched(spec, tensors), HasSubstr("BadPlane"));
  tensors.plane = 64;
  EXPECT_EQ(launched(spec, tensors), "Ok");
  tensors.struct_size = offsetof(normjit_tensors, plane);
  EXPECT_THAT(launched(spec, tensors), HasSubstr("BadPlane")) << "a caller that does not have it";

  normjit_prepare_options options = NORMJIT_PREPARE_OPTIONS_INIT;
  options.plane = 49;
  normjit_kernel* kernel = nullptr;
  ASSERT_EQ(normjit_prepare(&service_, &spec, &options, &kernel, nullptr), NORMJIT_OK);
  tensors.struct_size = sizeof tensors;
  tensors.plane = tensors.rows = 49;
  EXPECT_EQ(normjit_kernel_launch(kernel, &tensors, nullptr, nullptr), NORMJIT_OK);
  normjit_kernel_release(kernel);
}

TEST_F(CApi, ResultsOf8BitsHaveTheirScales) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  const char* const text = "rmsnorm/cols=64/bf16/out=e4m3/eps=0.5/round=y/w/q=tensor:inv";
  ASSERT_EQ(normjit_spec_parse(text, &spec, nullptr), NORMJIT_OK);
  EXPECT_EQ(spec.output, NORMJIT_E4M3);
  EXPECT_EQ(spec.rounding, NORMJIT_ROUND_Y);
  EXPECT_EQ(spec.quantization, NORMJIT_QUANTIZE_BY_TENSOR);
  EXPECT_EQ(spec.inverse_scale, 1);
  Text again;
  ASSERT_EQ(normjit_spec_text(&spec, &again.text, nullptr), NORMJIT_OK);
  EXPECT_EQ(again.string(), text);

  ASSERT_EQ(normjit_spec_parse("layernorm/cols=64/out=s8/q=row", &spec, nullptr), NORMJIT_OK);
  EXPECT_EQ(spec.output, NORMJIT_S8);
  EXPECT_EQ(spec.quantization, NORMJIT_QUANTIZE_BY_ROW);
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  tensors.x.pointer = memory(1);
  tensors.y.pointer = memory(2);
  tensors.rows = 8;
  EXPECT_THAT(launched(spec, tensors), HasSubstr("NullPointer"));
  tensors.row_scale = memory(3);
  EXPECT_EQ(launched(spec, tensors), "Ok");
  tensors.struct_size = offsetof(normjit_tensors, row_scale);
  EXPECT_THAT(launched(spec, tensors), HasSubstr("NullPointer")) << "a caller that does not have it";
}

TEST_F(CApi, BlocksHaveScalesAndRowsMayHaveABound) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  const auto there_and_back = [&](const char* text) {
    EXPECT_EQ(outcome([&](char** e) { return normjit_spec_parse(text, &spec, e); }), "Ok");
    Text again;
    EXPECT_EQ(normjit_spec_text(&spec, &again.text, nullptr), NORMJIT_OK);
    EXPECT_EQ(again.string(), text);
  };
  there_and_back("rmsnorm/cols=64/bf16/out=e4m3/eps=0.5/w/q=16:e4m3:sw/also=bf16");
  EXPECT_EQ(spec.quantization, NORMJIT_QUANTIZE_BY_BLOCK_16);
  EXPECT_EQ(spec.scale_format, NORMJIT_SCALE_E4M3);
  EXPECT_EQ(spec.scale_layout, NORMJIT_SCALE_LAYOUT_SWIZZLED);
  EXPECT_EQ(spec.also, NORMJIT_ALSO_BF16);
  there_and_back("rmsnorm/cols=128/f32/out=e5m2/eps=0.5/q=32:e8m0:cols4/also=f16");
  EXPECT_EQ(spec.quantization, NORMJIT_QUANTIZE_BY_BLOCK_32);
  EXPECT_EQ(spec.scale_format, NORMJIT_SCALE_E8M0);
  EXPECT_EQ(spec.scale_layout, NORMJIT_SCALE_LAYOUT_PACKED_COLUMNS);
  EXPECT_EQ(spec.also, NORMJIT_ALSO_F16);
  there_and_back("rmsnorm/cols=128/f32/out=s8/eps=0.5/q=64:p2:cols");
  EXPECT_EQ(spec.quantization, NORMJIT_QUANTIZE_BY_BLOCK_64);
  EXPECT_EQ(spec.scale_format, NORMJIT_SCALE_POWER_OF_TWO);
  EXPECT_EQ(spec.scale_layout, NORMJIT_SCALE_LAYOUT_COLUMNS);
  EXPECT_EQ(spec.also, NORMJIT_NO_ALSO);
  there_and_back("rmsnorm/cols=128/f32/eps=0.5/amax");
  EXPECT_EQ(spec.amax, 1);
  EXPECT_EQ(spec.also, NORMJIT_NO_ALSO);

  there_and_back("rmsnorm/cols=128/f32/out=s8/eps=0.5/q=128/also=f32");
  EXPECT_EQ(spec.quantization, NORMJIT_QUANTIZE_BY_BLOCK_128);
  EXPECT_EQ(spec.scale_format, NORMJIT_SCALE_F32);
  EXPECT_EQ(spec.scale_layout, NORMJIT_SCALE_LAYOUT_ROWS);
  EXPECT_EQ(spec.also, NORMJIT_ALSO_F32);
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  tensors.x.pointer = memory(1);
  tensors.y.pointer = memory(2);
  tensors.rows = 8;
  tensors.block_scale = memory(3);
  EXPECT_THAT(launched(spec, tensors), HasSubstr("NullPointer"));
  tensors.also.pointer = memory(4);
  EXPECT_EQ(launched(spec, tensors), "Ok");
  tensors.struct_size = offsetof(normjit_tensors, block_scale);
  EXPECT_THAT(launched(spec, tensors), HasSubstr("NullPointer")) << "a caller that does not have it";

  there_and_back("rmsnorm/cols=128/f32/out=e4m3/eps=0.5/q=row:ub");
  EXPECT_EQ(spec.upper_bound, 1);
  tensors.struct_size = sizeof tensors;
  tensors.also.pointer = nullptr;
  tensors.block_scale = nullptr;
  tensors.row_scale = memory(3);
  EXPECT_THAT(launched(spec, tensors), HasSubstr("NullPointer"));
  tensors.upper_bound = memory(4);
  EXPECT_EQ(launched(spec, tensors), "Ok");
}

TEST_F(CApi, AMemberThatTheCallerDoesNotHaveIsZero) {
  // A caller that knows x to workspace.
  normjit_tensors tensors = tensors_of(1);
  tensors.struct_size = offsetof(normjit_tensors, residual);
  tensors.residual.pointer = memory(8);  // not the caller's
  ASSERT_EQ(launched(spec_of(64), tensors), "Ok");
  EXPECT_THAT(machine_.driver->launches(), SizeIs(1));

  normjit_spec spec = spec_of(64, NORMJIT_NO_AFFINE);
  spec.activation = 99;
  spec.struct_size = offsetof(normjit_spec, affine);
  EXPECT_EQ(outcome([&](char** e) { return normjit_spec_text(&spec, nullptr, e); }), "Ok");
  EXPECT_THAT(
      outcome([&](char** e) { return normjit_spec_parse("layernorm/cols=128/f16/wb/relu", &spec, e); }),
      HasSubstr("needs a member that this program's normjit_spec does not have"));
  EXPECT_EQ(spec.columns, 64) << "nothing is written";
  EXPECT_EQ(spec.activation, 99) << "beyond the caller's structure";

  for (const std::size_t wrong : {std::size_t{0}, std::size_t{7}, std::size_t{4097}, ~std::size_t{0}}) {
    spec.struct_size = wrong;
    EXPECT_THAT(launched(spec, tensors_of(1)), HasSubstr("struct_size of normjit_spec is"));
    EXPECT_EQ(normjit_spec_parse("layernorm/cols=128/f16", &spec, nullptr), NORMJIT_BAD_ARGUMENT);
  }
}

// --- Reports, as the tool prints them ---

TEST_F(CApi, ReportsOfTheCache) {
  const char* const specs[] = {"layernorm/cols=64/f32/wb", "layernorm/cols=4096/bf16"};
  const char* const archs[] = {"sm_90"};
  const normjit_kernel_set set = {sizeof set, specs, 2, archs, 1};
  Heard progress;
  const auto hear = [](void* user, const char* spec, const char* outcome, std::int32_t done,
                       std::int32_t total) {
    Heard& heard = *static_cast<Heard*>(user);
    heard.lines.push_back(std::string(spec) + " " + outcome);
    EXPECT_EQ(done, static_cast<std::int32_t>(heard.lines.size()));
    EXPECT_GE(total, done);
  };
  const auto prebuilt = [&](std::int32_t dry_run) {
    return report([&](char** json, char** e) {
      return normjit_prebuild(&service_, &set, 2, dry_run, hear, &progress, json, e);
    });
  };
  const int requested = prebuilt(1).at("missing");
  EXPECT_GT(requested, 1);
  EXPECT_EQ(machine_.compiles(), 0);
  progress.lines.clear();
  const Json built = prebuilt(0);
  EXPECT_EQ(built.at("compiled"), requested);
  EXPECT_EQ(built.at("cache_directory"), machine_.directory.path());
  EXPECT_THAT(progress.lines, SizeIs(requested));
  EXPECT_THAT(progress.lines, ::testing::Contains("layernorm/cols=64/f32/eps=1e-05/wb compiled"));

  const auto entries = report([&](char** json, char** e) { return normjit_entries(&service_, json, e); });
  EXPECT_THAT(entries.at("entries"), SizeIs(requested));
  EXPECT_EQ(
      report([&](char** json, char** e) { return normjit_verify(&service_, 0, json, e); }).at("entries"),
      requested);

  const std::string pack = machine_.directory / "kernels.njp";
  const Json exported = report(
      [&](char** json, char** e) { return normjit_export_pack(&service_, pack.c_str(), &set, json, e); });
  EXPECT_EQ(exported.at("entries"), requested);
  EXPECT_THAT(exported.at("xxh128").get<std::string>(), SizeIs(32));
  FakeMachine other;
  normjit_service elsewhere(other.options(), other.seams());
  EXPECT_EQ(report([&](char** json, char** e) {
              return normjit_import(&elsewhere, pack.c_str(), json, e);
            }).at("imported"),
            requested);

  const normjit_spec spec = spec_of(64);
  const Json why =
      report([&](char** json, char** e) { return normjit_why(&elsewhere, &spec, "sm_90", json, e); });
  EXPECT_EQ(why.at("missing"), 0);
  EXPECT_EQ(why.at("device").at("arch"), "sm_90");
  const Json pruned = report([&](char** json, char** e) { return normjit_prune(&elsewhere, 0, 0, json, e); });
  EXPECT_EQ(pruned.at("removed").at("entries"), requested);
  EXPECT_EQ(
      report([&](char** json, char** e) { return normjit_counters(&service_, json, e); }).at("compiles"),
      requested);
  const Json environment =
      report([&](char** json, char** e) { return normjit_environment(&service_, json, e); });
  EXPECT_EQ(environment.at("version"), normjit_version());
  EXPECT_EQ(environment.at("devices").at(0).at("profile").at("arch"), "sm_90");
}

TEST_F(CApi, APackInMemoryIsALayer) {
  const char* const texts[] = {"layernorm/cols=64/f32/wb"};
  const char* const archs[] = {"sm_90"};
  const normjit_kernel_set set = {sizeof set, texts, 1, archs, 1};
  report([&](char** json, char** e) {
    return normjit_prebuild(&service_, &set, 1, 0, nullptr, nullptr, json, e);
  });
  const std::string path = machine_.directory / "kernels.njp";
  report([&](char** json, char** e) { return normjit_export_pack(&service_, path.c_str(), &set, json, e); });
  std::ifstream file(path, std::ios::binary);
  std::string pack(std::istreambuf_iterator<char>(file), {});

  FakeMachine other;
  normjit_service elsewhere(other.options(), other.seams());
  const auto missing = [&] {
    const normjit_spec spec = spec_of(64);
    return report([&](char** json, char** e) { return normjit_why(&elsewhere, &spec, "sm_90", json, e); })
        .at("missing")
        .get<int>();
  };
  const auto added = [&](std::size_t size) {
    return outcome([&](char** e) { return normjit_add_layer(&elsewhere, pack.data(), size, nullptr, e); });
  };
  for (const std::size_t cut : {std::size_t{0}, std::size_t{100}, pack.size() - 1})
    EXPECT_THAT(added(cut), HasSubstr("BadArgument: the layer in memory is not a valid pack")) << cut;
  EXPECT_GT(missing(), 0);
  EXPECT_EQ(added(pack.size()), "Ok");
  std::fill(pack.begin(), pack.end(), 'x');  // it was copied
  EXPECT_EQ(missing(), 0);
  const Json environment =
      report([&](char** json, char** e) { return normjit_environment(&elsewhere, json, e); });
  EXPECT_EQ(environment.at("layers").at(0).at("path"), "memory layer 1");
  EXPECT_THAT(
      report([&](char** json, char** e) { return normjit_entries(&elsewhere, json, e); }).at("entries"),
      Not(IsEmpty()));
  EXPECT_EQ(other.compiles(), 0);
}

TEST_F(CApi, MistakesInASetAreNamed) {
  const char* const specs[] = {"layernorm/cols=64/f32", nullptr};
  const char* const archs[] = {"sm_90", "sm_1"};
  const auto refused = [&](const normjit_kernel_set& set) {
    Text json;
    return outcome(
        [&](char** e) { return normjit_prebuild(&service_, &set, 0, 0, nullptr, nullptr, &json.text, e); });
  };
  const std::size_t size = sizeof(normjit_kernel_set);
  EXPECT_THAT(refused({size, specs, 2, archs, 1}), HasSubstr("BadArgument: a text of specs is NULL"));
  EXPECT_THAT(refused({size, nullptr, 2, archs, 1}), HasSubstr("BadArgument: specs is NULL"));
  EXPECT_THAT(refused({size, specs, 1, archs, 2}), HasSubstr("UnknownArch"));
  EXPECT_THAT(refused({size, specs, 1, nullptr, 0}), HasSubstr("BadArgument: nothing to prebuild"));
  EXPECT_THAT(refused({size, archs, 1, archs, 1}), HasSubstr("BadSpecText"));
  Text json;
  const normjit_kernel_set empty = NORMJIT_KERNEL_SET_INIT;
  EXPECT_EQ(normjit_export_pack(&service_, "/x.njp", &empty, &json.text, nullptr), NORMJIT_BAD_ARGUMENT);
  EXPECT_EQ(normjit_verify(&service_, 2, &json.text, nullptr), NORMJIT_BAD_ARGUMENT);
  EXPECT_EQ(normjit_prune(&service_, -2, 0, &json.text, nullptr), NORMJIT_BAD_ARGUMENT);
  EXPECT_EQ(normjit_prune(&service_, 0, 2, &json.text, nullptr), NORMJIT_BAD_ARGUMENT);
  EXPECT_EQ(json.text, nullptr);
}

TEST_F(CApi, RendersAndRemembersPlans) {
  const normjit_spec spec = spec_of(4096);
  Text chosen, pinned;
  const std::string generic = to_text(generic_plan());
  ASSERT_EQ(normjit_render(&service_, &spec, "sm_90", 0, nullptr, &chosen.text, nullptr), NORMJIT_OK);
  ASSERT_EQ(normjit_render(&service_, &spec, "sm_90", 0, generic.c_str(), &pinned.text, nullptr), NORMJIT_OK);
  EXPECT_THAT(chosen.string(), HasSubstr("__global__"));
  EXPECT_NE(chosen.string(), pinned.string());

  ASSERT_EQ(outcome([&](char** e) { return normjit_remember(&service_, &spec, 100'000, generic.c_str(), e); }),
            "Ok");
  normjit_service anew(machine_.options(), machine_.seams());
  normjit_kernel* kernel = nullptr;
  ASSERT_EQ(normjit_prepare(&anew, &spec, nullptr, &kernel, nullptr), NORMJIT_OK);
  EXPECT_EQ(
      report([&](char** json, char** e) { return normjit_kernel_describe(kernel, json, e); }).at("plan"),
      generic);
  normjit_kernel_release(kernel);
  EXPECT_EQ(normjit_remember(&service_, &spec, 0, generic.c_str(), nullptr), NORMJIT_BAD_ARGUMENT);
}

// --- Memory ---

// Has no memory left.
class StarvedCompiler final : public Compiler {
 public:
  Result<Binary> compile(const Source&, Arch) override { throw std::bad_alloc(); }
  Result<Facts> facts() override { throw std::bad_alloc(); }
};

TEST_F(CApi, ALaunchThatTheDriverRefusesTellsItsResult) {
  const normjit_spec spec = spec_of(64);
  const normjit_tensors tensors = tensors_of(8);
  normjit_kernel* kernel = nullptr;
  ASSERT_EQ(normjit_prepare(&service_, &spec, nullptr, &kernel, nullptr), NORMJIT_OK);
  machine_.driver->set_launch_result(700);
  std::int32_t result = -1;
  normjit_launch_options options = NORMJIT_LAUNCH_OPTIONS_INIT;
  EXPECT_EQ(normjit_kernel_launch(kernel, &tensors, nullptr, &options), NORMJIT_DRIVER_ERROR);
  options.driver_result = &result;
  EXPECT_EQ(normjit_kernel_launch(kernel, &tensors, nullptr, &options), NORMJIT_DRIVER_ERROR);
  EXPECT_EQ(result, 700);
  machine_.driver->set_launch_result(0);
  result = -1;
  EXPECT_EQ(normjit_kernel_launch(kernel, &tensors, nullptr, &options), NORMJIT_OK);
  EXPECT_EQ(result, -1) << "a launch that succeeds writes nothing";
  normjit_kernel_release(kernel);
}

TEST_F(CApi, NoExceptionComesOut) {
  Seams seams = machine_.seams();
  seams.compiler = std::make_shared<StarvedCompiler>();
  normjit_service service(machine_.options(), seams);
  Text json;
  EXPECT_THAT(outcome([&](char** e) { return normjit_environment(&service, &json.text, e); }),
              HasSubstr("OutOfMemory: the process has no memory left"));
  const normjit_spec spec = spec_of(64);
  const normjit_tensors tensors = tensors_of(8);
  EXPECT_THAT(
      outcome([&](char** e) { return normjit_layer_norm(&service, &spec, &tensors, nullptr, nullptr, e); }),
      HasSubstr("OutOfMemory"));
  EXPECT_EQ(json.text, nullptr);

  Options lazy = machine_.options();  // and so on a thread of its own
  lazy.mode = Mode::lazy;
  seams.embedded = {};
  normjit_service other(lazy, seams);
  normjit_layer_norm(&other, &spec, &tensors, nullptr, nullptr, nullptr);
  normjit_wait_for_compiles(&other);
}

// Under AddressSanitizer the end of this program looks for what is left; the C program of
// tests/c_api/dlopen_test.c counts.
TEST_F(CApi, NothingIsLeftBehindByManyCalls) {
  const normjit_spec sound = spec_of(64);
  normjit_spec wrong = sound;
  wrong.input = 9;
  const normjit_tensors tensors = tensors_of(0);
  for (int i = 0; i < 20'000; ++i) {
    normjit_service* service = nullptr;
    normjit_kernel* kernel = nullptr;
    Text error, text, json;
    normjit_options options = NORMJIT_OPTIONS_INIT;
    options.ignore_environment = NORMJIT_YES;
    ASSERT_EQ(normjit_layer_norm(&service_, &sound, &tensors, nullptr, nullptr, &error.text), NORMJIT_OK);
    ASSERT_EQ(normjit_prepare(&service_, &sound, nullptr, &kernel, &error.text), NORMJIT_OK);
    ASSERT_NE(normjit_spec_text(&wrong, &text.text, &error.text), NORMJIT_OK);
    ASSERT_EQ(normjit_kernel_describe(kernel, &json.text, nullptr), NORMJIT_OK);
    if (i % 100 == 0) {
      ASSERT_EQ(normjit_service_create(&options, &service, nullptr), NORMJIT_OK);
      normjit_service_destroy(service);
    }
    normjit_kernel_release(kernel);
  }
  EXPECT_EQ(machine_.loads(), 1);
}

}  // namespace
}  // namespace normjit::testing
