// SPDX-License-Identifier: Apache-2.0
// What a launch hands to the driver, and what it refuses before the driver hears of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "normjit/service.h"
#include "normjit/service/prepared.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::int64_t kColumns = 4096;
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int64_t>::max();
constexpr NormSpec kAll{.columns = kColumns, .affine = Affine::weight_bias, .statistics = true};
constexpr NormSpec kGigantic{.columns = 4194304};

// An address that nobody reads: `number` GiB and some bytes.
void* memory(std::uintptr_t number, std::uintptr_t offset = 0) {
  return reinterpret_cast<void*>((number << 30) + offset);
}

Tensors tensors_of(const NormSpec& spec, std::int64_t rows) {
  Tensors tensors{.x = memory(1), .rows = rows};
  if (spec.affine != Affine::none) tensors.weight = memory(3);
  if (spec.backward) {
    tensors.dy = memory(8);
    tensors.dx = memory(9);
    if (spec.dsum) tensors.dsum = memory(10);
    if (spec.affine != Affine::none) tensors.dweight = memory(11);
    if (spec.affine == Affine::weight_bias) tensors.dbias = memory(12);
    return tensors;
  }
  tensors.y = memory(2);
  if (spec.affine == Affine::weight_bias) tensors.bias = memory(4);
  if (spec.statistics) tensors.mean = memory(5), tensors.rstd = memory(6);
  return tensors;
}

// A word of a block: a number or an address.
struct Word {
  Word(std::int64_t number) : value(static_cast<std::uint64_t>(number)) {}
  Word(int number) : Word(std::int64_t{number}) {}
  Word(const void* address) : value(reinterpret_cast<std::uintptr_t>(address)) {}
  Word(std::nullptr_t) : value(0) {}
  std::uint64_t value;
};
std::vector<std::uint64_t> words(std::initializer_list<Word> all) {
  std::vector<std::uint64_t> values;
  for (const Word& word : all) values.push_back(word.value);
  return values;
}

class KernelTest : public ::testing::Test {
 protected:
  // The bytes that a kernel with these operands takes, and nothing behind them.
  void takes_operands_of(const NormSpec& spec, bool grouped = false) {
    const OperandLayout layout = kernel_layout({.grouped_rows = grouped}, spec);
    machine_.driver->set_argument_sizes({OperandBlock::bytes_of(layout)});
  }

  Kernel prepare(const NormSpec& spec, const PrepareOptions& options = {}) {
    return machine_.service().prepare(spec, options).value();
  }
  // The words of the block that the only launch so far has passed.
  std::vector<std::uint64_t> block() {
    const std::string bytes = launched().arguments.at(0);
    std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t));
    std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
  }
  // The only launch so far.
  FakeDriver::Launch launched() {
    EXPECT_THAT(machine_.driver->launches(), SizeIs(1));
    return machine_.driver->launches().empty() ? FakeDriver::Launch{} : machine_.driver->launches()[0];
  }

  FakeMachine machine_;
};

TEST_F(KernelTest, PassesTensorsAndStrides) {
  takes_operands_of(kAll);
  const Kernel kernel = prepare(kAll);
  Tensors tensors = tensors_of(kAll, 300);
  tensors.x.outer = 8192;
  tensors.y.outer = 4100;
  auto* const stream = static_cast<Stream>(memory(9));
  ASSERT_TRUE(kernel.launch(tensors, stream));

  const FakeDriver::Launch launch = launched();
  EXPECT_EQ(launch.device, 0);
  EXPECT_EQ(launch.stream, stream);
  EXPECT_EQ(launch.kernel, machine_.driver->loads()[0].kernel);
  EXPECT_EQ(launch.shape.threads, kernel.plan().threads);
  EXPECT_EQ(launch.blocks, grid_blocks(kernel.plan(), kernel.spec(), kernel.device(), 300));
  EXPECT_EQ(block(), words({300, nullptr, tensors.x.pointer, 8192, tensors.weight.pointer,
                            tensors.bias.pointer, tensors.y.pointer, 4100, tensors.mean, tensors.rstd}));
}

TEST_F(KernelTest, PassesNothingThatTheSpecDoesNotHave) {
  constexpr NormSpec kBare{.columns = kColumns};
  takes_operands_of(kBare);
  ASSERT_TRUE(prepare(kBare).launch({.x = memory(1), .y = memory(2), .rows = 3}, nullptr));
  EXPECT_EQ(block(), words({3, nullptr, memory(1), kColumns, memory(2), kColumns}));
}

// Its block has room for every operand, and the spec follows as a parameter of its own.
TEST_F(KernelTest, PassesWhatTheGenericKernelDoesNotKnowOfItsSpec) {
  machine_.driver->set_argument_sizes({OperandBlock::bytes_of(kGenericLayout), sizeof(RuntimeSpec)});
  const NormSpec spec{.columns = 77,
                      .input = DType::bf16,
                      .output = DType::f32,
                      .weight = DType::f16,
                      .epsilon = 1e-3,
                      .affine = Affine::weight,
                      .activation = Activation::silu,
                      .scale = 0.5};
  const Kernel kernel = prepare(spec, {.plan = generic_plan()});
  ASSERT_TRUE(kernel.launch(tensors_of(spec, 3), nullptr));
  // A vector is rows that are all the same; what is absent is null, all rows in one group.
  EXPECT_EQ(block(), words({3,
                            nullptr,
                            memory(1),
                            0,
                            77,
                            0,
                            1,
                            /*in_bias*/ nullptr,
                            /*gate*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*gate_table*/ nullptr,
                            /*residual*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            memory(3),
                            0,
                            0,
                            0,
                            1,
                            /*bias*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*mod_scale*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*mod_scale_table*/ nullptr,
                            /*mod_shift*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*mod_shift_table*/ nullptr,
                            /*tensor_scale*/ nullptr,
                            /*upper_bound*/ nullptr,
                            /*global_scale*/ nullptr,
                            memory(2),
                            0,
                            77,
                            0,
                            1,
                            /*sum*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*mean*/ nullptr,
                            /*rstd*/ nullptr,
                            /*also*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*row_scale*/ nullptr,
                            /*block_scale*/ nullptr,
                            /*amax*/ nullptr,
                            /*dy*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*dsum*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*dx*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*dweight*/ nullptr,
                            /*dbias*/ nullptr,
                            /*dgate*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*dmod_scale*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*dmod_shift*/ nullptr,
                            0,
                            0,
                            0,
                            1,
                            /*saved_mean*/ nullptr,
                            /*saved_rstd*/ nullptr}));
  const std::string bytes = launched().arguments.at(1);
  RuntimeSpec passed({});
  ASSERT_EQ(bytes.size(), sizeof passed);
  std::memcpy(&passed, bytes.data(), sizeof passed);
  EXPECT_EQ(passed.epsilon, 1e-3);
  EXPECT_EQ(passed.scale, 0.5);
  EXPECT_EQ(passed.columns, 77);
  EXPECT_EQ(passed.activation, static_cast<int>(Activation::silu));
  EXPECT_EQ(passed.input, DType::bf16);
  EXPECT_EQ(passed.output, DType::f32);
  EXPECT_EQ(passed.weight, DType::f16);
}

// One kernel of f32 serves all forward specs, and one all backward specs.
TEST_F(KernelTest, GenericKernelsShareTheirCode) {
  prepare({.columns = 5}, {.plan = generic_plan()});
  prepare({.columns = 70'000, .input = DType::f16, .affine = Affine::weight}, {.plan = generic_plan()});
  prepare({.columns = 5, .epsilon = 0.1, .statistics = true}, {.plan = generic_plan()});
  EXPECT_THAT(machine_.compiler->calls(), SizeIs(1));
  prepare({.columns = 5, .output = DType::f64}, {.plan = generic_plan()});
  EXPECT_THAT(machine_.compiler->calls(), SizeIs(2));
  prepare({.backward = true, .columns = 5}, {.plan = generic_plan()});
  prepare({.backward = true, .columns = 70'000, .gradient_type = DType::f16, .affine = Affine::weight},
          {.plan = generic_plan()});
  EXPECT_THAT(machine_.compiler->calls(), SizeIs(3));
}

TEST_F(KernelTest, NodeOffsetsSayWhereTheBlockHasAPointer) {
  for (const Kernel& kernel :
       {prepare(kAll), prepare(kAll, {.plan = generic_plan()}), prepare({.columns = 64}),
        prepare({.backward = true, .columns = 64, .dsum = true, .affine = Affine::weight_bias})}) {
    SCOPED_TRACE(to_text(kernel.plan()));
    const Tensors tensors = tensors_of(kernel.spec(), 77);
    const OperandBlock passed = block_of(kernel.plan(), kernel.spec(), tensors);
    for (const OperandRow& row : kOperands) {
      const auto offset = kernel.node_offset(row.operand);
      if (!row.present(kernel.spec())) {
        EXPECT_EQ(offset.code(), Code::UnexpectedPointer) << row.name;
        EXPECT_THAT(offset.error().message, HasSubstr(row.name));
        continue;
      }
      ASSERT_TRUE(offset.ok()) << row.name;
      const void* pointer;
      std::memcpy(&pointer, reinterpret_cast<const std::byte*>(passed.words) + *offset, sizeof pointer);
      EXPECT_EQ(pointer, pointer_of(tensors, row)) << row.name;
    }
  }
  EXPECT_EQ(prepare(kAll).node_offset(Operand::x).value(), 16U);
  EXPECT_EQ(prepare(kAll).node_offset(Operand::rstd).value(), 72U);
  EXPECT_EQ(prepare(kAll, {.plan = generic_plan()}).node_offset(Operand::rstd).value(), 440U);
  EXPECT_EQ(prepare(kAll).node_offset(Operand::workspace).code(), Code::UnexpectedPointer);
  EXPECT_EQ(prepare(kGigantic).node_offset(Operand::workspace).value(), 8U);
  EXPECT_EQ(prepare(kAll).node_offset(static_cast<Operand>(99)).code(), Code::UnexpectedPointer);
  EXPECT_EQ(Kernel().node_offset(Operand::x).code(), Code::EmptyKernel);
}

TEST_F(KernelTest, ARowMayBeReadByAll) {
  constexpr NormSpec kBare{.columns = kColumns};
  takes_operands_of(kBare);
  Tensors tensors = tensors_of({}, 3);
  tensors.x.outer = 0;
  ASSERT_TRUE(prepare(kBare).launch(tensors, nullptr));
  EXPECT_EQ(block().at(3), 0U);
}

TEST_F(KernelTest, OneRowHasNoStride) {
  constexpr NormSpec kBare{.columns = kColumns};
  takes_operands_of(kBare);
  Tensors tensors = tensors_of({}, 1);
  tensors.x.outer = -77;
  tensors.y.outer = 1;
  ASSERT_TRUE(prepare(kBare).launch(tensors, nullptr));
  EXPECT_EQ(block(), words({1, nullptr, memory(1), kColumns, memory(2), kColumns}));
}

TEST_F(KernelTest, PassesTheWorkspace) {
  takes_operands_of(kGigantic);
  const Kernel kernel = prepare(kGigantic);
  ASSERT_GT(kernel.workspace_bytes(), 0U);
  EXPECT_EQ(kernel.workspace_bytes(), workspace_bytes(kernel.plan(), kernel.spec(), kernel.device()));
  Tensors tensors = tensors_of(kGigantic, 16);
  tensors.workspace = memory(7);
  ASSERT_TRUE(kernel.launch(tensors, nullptr));
  EXPECT_EQ(block().at(1), reinterpret_cast<std::uintptr_t>(memory(7)));
  EXPECT_EQ(launched().blocks, grid_blocks(kernel.plan(), kernel.spec(), kernel.device(), 16));
}

TEST_F(KernelTest, OverlapsTheLaunchBeforeWhereItIsAskedToFromSm90On) {
  static_assert(noexcept(std::declval<const Kernel&>().launch({}, nullptr, {})));
  for (const int arch : {75, 80, 89, 90, 100, 120}) {
    FakeMachine machine({arch});
    const Kernel kernel = machine.service().prepare({.columns = kColumns}).value();
    const Tensors tensors = tensors_of({}, 3);
    ASSERT_TRUE(kernel.launch(tensors, nullptr));
    ASSERT_TRUE(kernel.launch(tensors, nullptr, {.overlap_previous = true}));
    ASSERT_TRUE(kernel.launch(tensors, nullptr));
    std::vector<bool> overlap;
    for (const FakeDriver::Launch& launch : machine.driver->launches())
      overlap.push_back(launch.shape.overlap_previous);
    EXPECT_EQ(overlap, (std::vector<bool>{false, arch >= 90, false})) << arch;
    EXPECT_FALSE(machine.driver->loads().at(0).shape.overlap_previous) << "a matter of the launch alone";
  }
}

TEST_F(KernelTest, NoRowsLaunchNothing) {
  for (const NormSpec& spec : {kAll, kGigantic}) {
    const Kernel kernel = prepare(spec);
    EXPECT_TRUE(kernel.launch({}, nullptr)) << "with null pointers, as empty tensors have";
    EXPECT_TRUE(kernel.check({}).ok());
    EXPECT_TRUE(
        kernel.launch({.x = strided(static_cast<const void*>(memory(1, 1)), -7), .rows = 0}, nullptr));
  }
  EXPECT_THAT(machine_.driver->launches(), IsEmpty());
}

TEST_F(KernelTest, RefusesBadTensorsAndLaunchesNothing) {
  constexpr NormSpec kBare{.columns = kColumns};
  const struct {
    const char* what;
    NormSpec spec;
    Code code;
    std::function<void(Tensors&)> spoil;
  } cases[] = {
      {"no x", kAll, Code::NullPointer, [](Tensors& t) { t.x = nullptr; }},
      {"no y", kAll, Code::NullPointer, [](Tensors& t) { t.y = nullptr; }},
      {"no weight", kAll, Code::NullPointer, [](Tensors& t) { t.weight = nullptr; }},
      {"no bias", kAll, Code::NullPointer, [](Tensors& t) { t.bias = nullptr; }},
      {"no mean", kAll, Code::NullPointer, [](Tensors& t) { t.mean = nullptr; }},
      {"no rstd", kAll, Code::NullPointer, [](Tensors& t) { t.rstd = nullptr; }},
      {"a weight too many", kBare, Code::UnexpectedPointer, [](Tensors& t) { t.weight = memory(3); }},
      {"a bias too many", kBare, Code::UnexpectedPointer, [](Tensors& t) { t.bias = memory(3); }},
      {"a mean too many", kBare, Code::UnexpectedPointer, [](Tensors& t) { t.mean = memory(3); }},
      {"an rstd too many", kBare, Code::UnexpectedPointer, [](Tensors& t) { t.rstd = memory(3); }},
      {"x off by 4", kAll, Code::Misaligned, [](Tensors& t) { t.x = memory(1, 4); }},
      {"x off by 1", kAll, Code::Misaligned, [](Tensors& t) { t.x = memory(1, 1); }},
      {"y off by 8", kAll, Code::Misaligned, [](Tensors& t) { t.y = memory(2, 8); }},
      {"weight off by 4", kAll, Code::Misaligned, [](Tensors& t) { t.weight = memory(3, 4); }},
      {"bias off by 2", kAll, Code::Misaligned, [](Tensors& t) { t.bias = memory(4, 2); }},
      {"mean off by 2", kAll, Code::Misaligned, [](Tensors& t) { t.mean = memory(5, 2); }},
      {"rstd off by 1", kAll, Code::Misaligned, [](Tensors& t) { t.rstd = memory(6, 1); }},
      {"x rows off by 1", kAll, Code::Misaligned, [](Tensors& t) { t.x.outer = kColumns + 1; }},
      {"y rows off by 2", kAll, Code::Misaligned, [](Tensors& t) { t.y.outer = kColumns + 2; }},
      {"negative rows", kAll, Code::BadRows, [](Tensors& t) { t.rows = -1; }},
      {"negative x stride", kAll, Code::BadStride, [](Tensors& t) { t.x.outer = -4; }},
      {"negative y stride", kAll, Code::BadStride, [](Tensors& t) { t.y.outer = -4096; }},
      {"overlapping y rows", kAll, Code::BadStride, [](Tensors& t) { t.y.outer = kColumns - 4; }},
      {"x in groups", kAll, Code::BadStride, [](Tensors& t) { t.x.n = 2; }},
      {"y in groups", kAll, Code::BadStride, [](Tensors& t) { t.y.n = -1; }},
      {"in place with other rows", kAll, Code::Overlap,
       [](Tensors& t) { t.y = strided(const_cast<void*>(t.x.pointer), 2 * kColumns); }},
      {"too many rows", kAll, Code::BadStride, [](Tensors& t) { t.rows = kMaxRows; }},
      {"too many bytes", kAll, Code::BadStride, [](Tensors& t) { t.rows = kMaxRows / kColumns / 2; }},
      {"too wide an x", kAll, Code::BadStride, [](Tensors& t) { t.x.outer = kMaxRows / 4 + 1; }},
      {"too wide a y", kAll, Code::BadStride, [](Tensors& t) { t.y.outer = kMaxRows - 3; }},
      {"no workspace", kGigantic, Code::WorkspaceRequired, [](Tensors& t) { t.workspace = nullptr; }},
      {"workspace off by 8", kGigantic, Code::Misaligned, [](Tensors& t) { t.workspace = memory(7, 8); }},
  };
  for (const auto& [what, spec, code, spoil] : cases) {
    SCOPED_TRACE(what);
    const Kernel kernel = prepare(spec);
    Tensors tensors = tensors_of(spec, 5);
    tensors.workspace = memory(7);
    ASSERT_TRUE(kernel.check(tensors).ok());
    spoil(tensors);
    const Status status = kernel.launch(tensors, nullptr);
    EXPECT_EQ(code_name(status.code), code_name(code));
    EXPECT_EQ(status.driver_result, 0);
    EXPECT_EQ(code_name(kernel.check(tensors).code()), code_name(code)) << "check says the same";
  }
  EXPECT_THAT(machine_.driver->launches(), IsEmpty());
}

TEST_F(KernelTest, AnEmptyKernelLaunchesNothing) {
  Kernel kernel;
  EXPECT_FALSE(kernel);
  EXPECT_EQ(kernel.launch(tensors_of({}, 1), nullptr).code, Code::EmptyKernel);
  EXPECT_EQ(kernel.check(tensors_of({}, 1)).code(), Code::EmptyKernel);
  EXPECT_EQ(kernel.workspace_bytes(), 0U);
  EXPECT_EQ(kernel.spec(), NormSpec());

  kernel = prepare({.columns = kColumns});
  const Kernel taken = std::move(kernel);
  EXPECT_EQ(kernel.launch(tensors_of({}, 1), nullptr).code, Code::EmptyKernel);
  EXPECT_TRUE(taken.launch(tensors_of({}, 1), nullptr));
}

TEST_F(KernelTest, AKernelForLessAlignmentTakesMore) {
  const Kernel kernel = prepare(kAll, {.pointer_alignment = 4});
  EXPECT_TRUE(kernel.plan().unaligned || kernel.plan().vector == 1);
  EXPECT_TRUE(kernel.launch(tensors_of(kAll, 5), nullptr));
  Tensors odd = tensors_of(kAll, 5);
  odd.x = memory(1, 4);
  odd.y.outer = kColumns + 1;
  EXPECT_TRUE(kernel.launch(odd, nullptr));
  odd.x = memory(1, 2);
  EXPECT_EQ(kernel.launch(odd, nullptr).code, Code::Misaligned);
}

TEST_F(KernelTest, ReportsWhatTheDriverSays) {
  const Kernel kernel = prepare({.columns = kColumns});
  const std::pair<int, Code> answers[] = {{2, Code::OutOfMemory},          // CUDA_ERROR_OUT_OF_MEMORY
                                          {3, Code::ForkedAfterCudaInit},  // CUDA_ERROR_NOT_INITIALIZED
                                          {101, Code::WrongDevice},        // CUDA_ERROR_INVALID_DEVICE
                                          {201, Code::NoContext},          // CUDA_ERROR_INVALID_CONTEXT
                                          {400, Code::DriverError},        // CUDA_ERROR_INVALID_HANDLE
                                          {700, Code::DriverError},        // CUDA_ERROR_ILLEGAL_ADDRESS
                                          {719, Code::DriverError}};       // CUDA_ERROR_LAUNCH_FAILED
  for (const auto& [result, code] : answers) {
    machine_.driver->set_launch_result(result);
    const Status status = kernel.launch(tensors_of({}, 1), nullptr);
    EXPECT_EQ(code_name(status.code), code_name(code)) << result;
    EXPECT_EQ(status.driver_result, result);
  }
}

TEST_F(KernelTest, CheckAsksForEachPointerOnce) {
  const Kernel kernel = prepare(kAll);
  const int before = machine_.driver->calls();
  EXPECT_TRUE(kernel.check(tensors_of(kAll, 5)).ok());
  EXPECT_EQ(machine_.driver->calls() - before, 6);
  EXPECT_TRUE(kernel.launch(tensors_of(kAll, 5), nullptr));
  EXPECT_EQ(machine_.driver->calls() - before, 6) << "launch asks for none";
}

TEST_F(KernelTest, CheckFindsForeignAndShortMemory) {
  const Kernel kernel = prepare(kAll);
  const Tensors tensors = tensors_of(kAll, 5);
  const auto check_with = [&](const void* address, const Allocation& facts) {
    machine_.driver->set_allocation(address, facts);
    const auto checked = kernel.check(tensors);
    machine_.driver->set_allocation(address, {true, 0, UINT64_MAX});
    return checked;
  };
  constexpr std::uint64_t kRow = kColumns * 4;

  const auto host = check_with(tensors.bias.pointer, {.device_accessible = false});
  ASSERT_EQ(host.code(), Code::WrongDevice);
  EXPECT_THAT(host.error().message, HasSubstr("bias"));
  const auto foreign = check_with(tensors.y.pointer, {true, 1, UINT64_MAX});
  ASSERT_EQ(foreign.code(), Code::WrongDevice);
  EXPECT_THAT(foreign.error().message, HasSubstr("y is memory of device 1"));
  EXPECT_TRUE(check_with(tensors.x.pointer, {true, -1, UINT64_MAX}).ok()) << "managed and pinned memory";

  const auto shorter = check_with(tensors.x.pointer, {true, 0, 5 * kRow - 1});
  ASSERT_EQ(shorter.code(), Code::OutOfBounds);
  EXPECT_THAT(shorter.error().message, HasSubstr("x needs 81920 bytes"));
  EXPECT_TRUE(check_with(tensors.x.pointer, {true, 0, 5 * kRow}).ok());
  EXPECT_EQ(check_with(tensors.weight.pointer, {true, 0, kRow - 1}).code(), Code::OutOfBounds);
  EXPECT_TRUE(check_with(tensors.weight.pointer, {true, 0, kRow}).ok());
  EXPECT_EQ(check_with(tensors.rstd, {true, 0, 19}).code(), Code::OutOfBounds);
  EXPECT_TRUE(check_with(tensors.rstd, {true, 0, 20}).ok());
}

TEST_F(KernelTest, CheckCountsOnlyWhatStridedRowsTouch) {
  const Kernel kernel = prepare({.columns = kColumns});
  Tensors tensors = tensors_of({}, 3);
  tensors.y.outer = 10000;
  machine_.driver->set_allocation(tensors.y.pointer, {true, 0, (2 * 10000 + kColumns) * 4});
  EXPECT_TRUE(kernel.check(tensors).ok()) << "not the gap behind the last row";
  tensors.y.outer = 10004;
  EXPECT_EQ(kernel.check(tensors).code(), Code::OutOfBounds);
}

TEST_F(KernelTest, CheckFindsAShortWorkspace) {
  const Kernel kernel = prepare(kGigantic);
  Tensors tensors = tensors_of(kGigantic, 2);
  tensors.workspace = memory(7);
  machine_.driver->set_allocation(tensors.workspace, {true, 0, kernel.workspace_bytes() - 1});
  EXPECT_EQ(kernel.check(tensors).code(), Code::OutOfBounds);
  machine_.driver->set_allocation(tensors.workspace, {true, 0, kernel.workspace_bytes()});
  EXPECT_TRUE(kernel.check(tensors).ok());
}

// Addresses in bytes; a row of x, y or a vector has 16 KiB, a launch 5 rows of it.
TEST_F(KernelTest, CheckFindsOverlaps) {
  constexpr std::intptr_t kRow = kColumns * 4;
  const auto at = [](void* base, std::intptr_t bytes) {
    return static_cast<void*>(static_cast<char*>(base) + bytes);
  };
  const struct {
    const char* what;
    const char* message;  // null: there is none
    std::function<void(Tensors&)> move;
  } cases[] = {
      {"y is x", nullptr, [](Tensors& t) { t.y = const_cast<void*>(t.x.pointer); }},
      {"y is x with gaps", nullptr,
       [](Tensors& t) {
         t.x.outer = 2 * kColumns;
         t.y = strided(const_cast<void*>(t.x.pointer), 2 * kColumns);
       }},
      {"y begins in the last row of x", "y overlaps x",
       [&](Tensors& t) { t.y = at(memory(1), 5 * kRow - 16); }},
      {"y begins behind x", nullptr, [&](Tensors& t) { t.y = at(memory(1), 5 * kRow); }},
      {"y ends in x", "y overlaps x", [&](Tensors& t) { t.y = at(memory(1), -5 * kRow + 16); }},
      {"y ends in front of x", nullptr, [&](Tensors& t) { t.y = at(memory(1), -5 * kRow); }},
      {"y in the other half of rows of both", nullptr,
       [&](Tensors& t) {
         t.x.outer = 2 * kColumns;
         t.y = strided(at(memory(1), kRow), 2 * kColumns);
       }},
      {"the halves meet", "y overlaps x",
       [&](Tensors& t) {
         t.x.outer = 2 * kColumns;
         t.y = strided(at(memory(1), kRow - 16), 2 * kColumns);
       }},
      {"the halves meet in the next row", "y overlaps x",
       [&](Tensors& t) {
         t.x.outer = 2 * kColumns;
         t.y = strided(at(memory(1), kRow + 16), 2 * kColumns);
       }},
      {"y between rows of another distance", nullptr,
       [&](Tensors& t) {
         t.x.outer = 4 * kColumns;
         t.y = strided(at(memory(1), kRow), 2 * kColumns);
       }},
      {"a later row of another distance meets", "y overlaps x",
       [&](Tensors& t) {
         t.x.outer = 4 * kColumns;
         t.y = strided(at(memory(1), kRow), 3 * kColumns);
       }},
      {"one row of x for all, beside y", nullptr, [](Tensors& t) { t.x.outer = 0; }},
      {"one row of x for all, in y", "y overlaps x",
       [&](Tensors& t) { t.x = strided(static_cast<const void*>(at(memory(2), kRow)), 0); }},
      {"weight in a gap of y", nullptr,
       [&](Tensors& t) {
         t.y.outer = 2 * kColumns;
         t.weight = at(memory(2), 3 * kRow);
       }},
      {"weight in y", "y overlaps weight", [&](Tensors& t) { t.weight = at(memory(2), 2 * kRow); }},
      {"weight and bias are one", nullptr, [](Tensors& t) { t.bias = t.weight; }},
      {"weight in x", nullptr, [](Tensors& t) { t.weight = t.x.pointer; }},
      {"mean is rstd", "mean overlaps rstd", [](Tensors& t) { t.mean = t.rstd; }},
      {"rstd in the last element of mean", "mean overlaps rstd",
       [&](Tensors& t) { t.rstd = at(t.mean, 16); }},
      {"rstd behind mean", nullptr, [&](Tensors& t) { t.rstd = at(t.mean, 20); }},
      {"mean in y", "y overlaps mean", [&](Tensors& t) { t.mean = at(memory(2), 4 * kRow); }},
  };
  const Kernel kernel = prepare(kAll);
  for (const auto& [what, message, move] : cases) {
    SCOPED_TRACE(what);
    Tensors tensors = tensors_of(kAll, 5);
    move(tensors);
    const auto checked = kernel.check(tensors);
    EXPECT_EQ(code_name(checked.code()), code_name(message != nullptr ? Code::Overlap : Code::Ok));
    if (message != nullptr) {
      EXPECT_THAT(checked.error().message, HasSubstr(message));
    }
  }
}

// With channels first a sample is one piece of memory.
TEST_F(KernelTest, CheckKnowsTheMemoryOfPlanes) {
  constexpr NormSpec kSpec{.columns = 96, .channels_first = true};
  constexpr std::int64_t kPlane = 64, kSample = 96 * kPlane;
  const Kernel kernel = prepare(kSpec);
  Tensors tensors{.x = memory(1), .y = memory(2), .rows = 3 * kPlane};
  tensors.plane = kPlane;
  EXPECT_TRUE(kernel.check(tensors).ok());
  machine_.driver->set_allocation(tensors.y.pointer, {true, 0, 3 * kSample * 4 - 1});
  EXPECT_EQ(kernel.check(tensors).code(), Code::OutOfBounds);
  machine_.driver->set_allocation(tensors.y.pointer, {true, 0, 3 * kSample * 4});
  EXPECT_TRUE(kernel.check(tensors).ok());

  tensors.y = const_cast<void*>(tensors.x.pointer);
  EXPECT_TRUE(kernel.check(tensors).ok()) << "in place";
  tensors.y = memory(1, (3 * kSample - 4) * 4);
  EXPECT_EQ(kernel.check(tensors).code(), Code::Overlap);
  tensors.y = memory(1, 3 * kSample * 4);
  EXPECT_TRUE(kernel.check(tensors).ok());
  tensors.x.outer = 2 * kSample;
  tensors.y = strided(memory(1, kSample * 4), 2 * kSample);
  EXPECT_TRUE(kernel.check(tensors).ok()) << "samples of y between those of x";
  tensors.y = strided(memory(1, (kSample - 4) * 4), 2 * kSample);
  EXPECT_EQ(kernel.check(tensors).code(), Code::Overlap);

  tensors = {.x = memory(1), .y = memory(2), .rows = 3 * kPlane};
  EXPECT_EQ(kernel.check(tensors).code(), Code::BadPlane);
  EXPECT_EQ(kernel.launch(tensors, nullptr).code, Code::BadPlane);
}

TEST_F(KernelTest, PlanesDecideWhatAKernelTakes) {
  constexpr NormSpec kSpec{.columns = 96, .input = DType::f16, .channels_first = true};
  const auto launched_with = [&](std::int64_t prepared, std::int64_t plane) {
    Tensors tensors{.x = memory(1), .y = memory(2), .rows = 3 * plane};
    tensors.plane = plane;
    return prepare(kSpec, {.rows_hint = 1'000'000, .plane = prepared}).launch(tensors, nullptr).code;
  };
  EXPECT_EQ(launched_with(0, 64), Code::Ok);
  EXPECT_EQ(launched_with(0, 49), Code::Misaligned);
  EXPECT_EQ(launched_with(49, 49), Code::Ok);
  EXPECT_EQ(launched_with(49, 64), Code::Ok) << "a kernel for less takes more";
  EXPECT_EQ(machine_.service().prepare(kSpec, {.plane = -1}).code(), Code::BadPlane);
  EXPECT_EQ(machine_.service().prepare({.columns = 96}, {.plane = 64}).code(), Code::BadPlane);
}

TEST_F(KernelTest, CheckFindsAnOutputInTheWorkspace) {
  const Kernel kernel = prepare(kGigantic);
  Tensors tensors = tensors_of(kGigantic, 1);
  tensors.workspace = memory(2);  // as y
  const auto checked = kernel.check(tensors);
  ASSERT_EQ(checked.code(), Code::Overlap);
  EXPECT_THAT(checked.error().message, HasSubstr("y overlaps workspace"));
}

// What comes with a residual: rules, block and overlaps, by the table alone.
TEST_F(KernelTest, ASumMayBeItsResidual) {
  constexpr NormSpec kAdd{.columns = kColumns, .residual = Residual::before, .sum = true};
  Tensors tensors{.x = memory(1), .y = memory(2), .rows = 4, .residual = memory(3), .sum = memory(3)};
  const auto code = [&] { return code_name(pack(kAdd, tensors).status.code); };
  EXPECT_EQ(code(), "Ok");
  tensors.sum.outer = kColumns + 4;
  EXPECT_EQ(code(), "Overlap");
  tensors.residual.outer = kColumns + 4;
  EXPECT_EQ(code(), "Ok");
  const OperandBlock block = pack(kAdd, tensors).block;
  EXPECT_EQ(std::vector<std::uint64_t>(block.words,
                                       block.words + OperandBlock::bytes_of(kernel_layout({}, kAdd)) / 8),
            words({4, nullptr, memory(1), kColumns, memory(3), kColumns + 4, memory(2), kColumns, memory(3),
                   kColumns + 4}));
  tensors.residual = strided(static_cast<const void*>(memory(4)), -1);
  EXPECT_EQ(code(), "Ok");
  tensors.sum.outer = kColumns - 1;
  EXPECT_EQ(code(), "BadStride") << "rows of an output";
  tensors.sum = nullptr;
  EXPECT_EQ(code(), "NullPointer");
  tensors.sum = memory(5);
  tensors.residual = memory(4, 4);
  EXPECT_EQ(pack(kAdd, tensors).alignment, Alignment::one);
  tensors.residual = memory(4);
  tensors.sum = memory(5, 8);
  EXPECT_EQ(pack(kAdd, tensors).alignment, Alignment::two);
}

TEST(KernelLifetime, OutlivesServiceAndDriver) {
  Kernel kernel;
  {
    FakeMachine machine;
    kernel = machine.service().prepare({.columns = kColumns}).value();
  }
  EXPECT_TRUE(kernel.launch(tensors_of({}, 2), nullptr));
  EXPECT_TRUE(kernel.check(tensors_of({}, 2)).ok());
}

}  // namespace
}  // namespace normjit::testing
