// What a launch hands to the driver, and what it refuses before the driver hears of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <utility>

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

// An address that nobody reads: `number` MiB and some bytes.
void* memory(std::uintptr_t number, std::uintptr_t offset = 0) {
  return reinterpret_cast<void*>((number << 20) + offset);
}

Tensors tensors_of(const NormSpec& spec, std::int64_t rows) {
  Tensors tensors{.x = memory(1), .y = memory(2), .rows = rows};
  if (spec.affine != Affine::none) tensors.weight = memory(3);
  if (spec.affine == Affine::weight_bias) tensors.bias = memory(4);
  if (spec.statistics) tensors.mean = memory(5), tensors.rstd = memory(6);
  return tensors;
}

class KernelTest : public ::testing::Test {
 protected:
  KernelTest() { machine_.driver->set_argument_sizes(std::vector<std::size_t>(10, 8)); }

  Kernel prepare(const NormSpec& spec, const PrepareOptions& options = {}) {
    return machine_.service().prepare(spec, options).value();
  }
  // The only launch so far.
  FakeDriver::Launch launched() {
    EXPECT_THAT(machine_.driver->launches(), SizeIs(1));
    return machine_.driver->launches().empty() ? FakeDriver::Launch{} : machine_.driver->launches()[0];
  }

  FakeMachine machine_;
};

// The order of NJ_KERNEL in templates/hw.cuh, as the source itself says it.
TEST_F(KernelTest, KernelsTakeTheArgumentsThatALaunchPasses) {
  const std::string source =
      machine_.service().render(kAll, profile_of(90), RowsRegime::many, Alignment::one).value().text;
  std::size_t at = source.find("#define NJ_ARGUMENTS");
  ASSERT_NE(at, std::string::npos);
  for (const char* parameter :
       {"*x,", "*weight,", "*bias,", "*y,", "*mean_out,", "*rstd_out,", "long long rows,",
        "long long x_stride,", "long long y_stride,", "*workspace", "NJ_ARGUMENTS, RuntimeSpec spec)"}) {
    at = source.find(parameter, at);
    ASSERT_NE(at, std::string::npos) << parameter;
  }
}

TEST_F(KernelTest, PassesTensorsAndStrides) {
  const Kernel kernel = prepare(kAll);
  Tensors tensors = tensors_of(kAll, 300);
  tensors.x_row_stride = 8192;
  tensors.y_row_stride = 4100;
  auto* const stream = static_cast<Stream>(memory(9));
  ASSERT_TRUE(kernel.launch(tensors, stream));

  const FakeDriver::Launch launch = launched();
  EXPECT_EQ(launch.device, 0);
  EXPECT_EQ(launch.stream, stream);
  EXPECT_EQ(launch.kernel, machine_.driver->loads()[0].kernel);
  EXPECT_EQ(launch.shape.threads, kernel.plan().threads);
  EXPECT_EQ(launch.blocks, grid_blocks(kernel.plan(), kernel.spec(), kernel.device(), 300));
  EXPECT_EQ(launch.argument<const void*>(0), tensors.x);
  EXPECT_EQ(launch.argument<const void*>(1), tensors.weight);
  EXPECT_EQ(launch.argument<const void*>(2), tensors.bias);
  EXPECT_EQ(launch.argument<void*>(3), tensors.y);
  EXPECT_EQ(launch.argument<void*>(4), tensors.mean);
  EXPECT_EQ(launch.argument<void*>(5), tensors.rstd);
  EXPECT_EQ(launch.argument<std::int64_t>(6), 300);
  EXPECT_EQ(launch.argument<std::int64_t>(7), 8192);
  EXPECT_EQ(launch.argument<std::int64_t>(8), 4100);
  EXPECT_EQ(launch.argument<void*>(9), nullptr);
}

// Behind the tensors, for the generic kernel alone.
TEST_F(KernelTest, PassesWhatTheGenericKernelDoesNotKnowOfItsSpec) {
  machine_.driver->set_argument_sizes({8, 8, 8, 8, 8, 8, 8, 8, 8, 8, sizeof(RuntimeSpec)});
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
  const std::string bytes = launched().arguments.at(10);
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

// One kernel of f32 serves them all.
TEST_F(KernelTest, GenericKernelsShareTheirCode) {
  prepare({.columns = 5}, {.plan = generic_plan()});
  prepare({.columns = 70'000, .input = DType::f16, .affine = Affine::weight}, {.plan = generic_plan()});
  prepare({.columns = 5, .epsilon = 0.1, .statistics = true}, {.plan = generic_plan()});
  EXPECT_THAT(machine_.compiler->calls(), SizeIs(1));
  prepare({.columns = 5, .output = DType::f64}, {.plan = generic_plan()});
  EXPECT_THAT(machine_.compiler->calls(), SizeIs(2));
}

TEST_F(KernelTest, NodeArgumentsNameWhatALaunchPasses) {
  using enum NodeArgument;
  const Kernel kernel = prepare(kAll);
  Tensors tensors = tensors_of(kAll, 77);
  tensors.x_row_stride = 2 * kColumns;
  tensors.y_row_stride = 3 * kColumns;
  tensors.workspace = memory(7);
  ASSERT_TRUE(kernel.launch(tensors, nullptr));
  const FakeDriver::Launch launch = launched();
  const auto passed = [&](NodeArgument which) {
    return launch.argument<std::int64_t>(static_cast<std::size_t>(which));
  };
  const auto pointer = [&](NodeArgument which) { return reinterpret_cast<const void*>(passed(which)); };
  EXPECT_EQ(pointer(x), tensors.x);
  EXPECT_EQ(pointer(weight), tensors.weight);
  EXPECT_EQ(pointer(bias), tensors.bias);
  EXPECT_EQ(pointer(y), tensors.y);
  EXPECT_EQ(pointer(mean), tensors.mean);
  EXPECT_EQ(pointer(rstd), tensors.rstd);
  EXPECT_EQ(passed(rows), 77);
  EXPECT_EQ(passed(x_row_stride), 2 * kColumns);
  EXPECT_EQ(passed(y_row_stride), 3 * kColumns);
  EXPECT_EQ(pointer(workspace), tensors.workspace);
}

TEST_F(KernelTest, RowsAreContiguousByDefault) {
  ASSERT_TRUE(prepare({.columns = kColumns}).launch(tensors_of({}, 3), nullptr));
  const FakeDriver::Launch launch = launched();
  EXPECT_EQ(launch.argument<void*>(1), nullptr);
  EXPECT_EQ(launch.argument<void*>(4), nullptr);
  EXPECT_EQ(launch.argument<std::int64_t>(7), kColumns);
  EXPECT_EQ(launch.argument<std::int64_t>(8), kColumns);
}

TEST_F(KernelTest, ARowMayBeReadByAll) {
  Tensors tensors = tensors_of({}, 3);
  tensors.x_row_stride = 0;
  ASSERT_TRUE(prepare({.columns = kColumns}).launch(tensors, nullptr));
  EXPECT_EQ(launched().argument<std::int64_t>(7), 0);
}

TEST_F(KernelTest, OneRowHasNoStride) {
  Tensors tensors = tensors_of({}, 1);
  tensors.x_row_stride = -77;
  tensors.y_row_stride = 1;
  ASSERT_TRUE(prepare({.columns = kColumns}).launch(tensors, nullptr));
  EXPECT_EQ(launched().argument<std::int64_t>(7), kColumns);
  EXPECT_EQ(launched().argument<std::int64_t>(8), kColumns);
}

TEST_F(KernelTest, PassesTheWorkspace) {
  const Kernel kernel = prepare(kGigantic);
  ASSERT_GT(kernel.workspace_bytes(), 0U);
  EXPECT_EQ(kernel.workspace_bytes(), workspace_bytes(kernel.plan(), kernel.spec(), kernel.device()));
  Tensors tensors = tensors_of(kGigantic, 16);
  tensors.workspace = memory(7);
  ASSERT_TRUE(kernel.launch(tensors, nullptr));
  EXPECT_EQ(launched().argument<void*>(9), memory(7));
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
    EXPECT_TRUE(kernel.launch({.x = memory(1, 1), .rows = 0, .x_row_stride = -7}, nullptr));
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
      {"x rows off by 1", kAll, Code::Misaligned, [](Tensors& t) { t.x_row_stride = kColumns + 1; }},
      {"y rows off by 2", kAll, Code::Misaligned, [](Tensors& t) { t.y_row_stride = kColumns + 2; }},
      {"negative rows", kAll, Code::BadRows, [](Tensors& t) { t.rows = -1; }},
      {"negative x stride", kAll, Code::BadStride, [](Tensors& t) { t.x_row_stride = -4; }},
      {"negative y stride", kAll, Code::BadStride, [](Tensors& t) { t.y_row_stride = -4096; }},
      {"overlapping y rows", kAll, Code::BadStride, [](Tensors& t) { t.y_row_stride = kColumns - 4; }},
      {"in place with other rows", kAll, Code::BadStride,
       [](Tensors& t) {
         t.y = const_cast<void*>(t.x);
         t.y_row_stride = 2 * kColumns;
       }},
      {"too many rows", kAll, Code::BadStride, [](Tensors& t) { t.rows = kMaxRows; }},
      {"too many bytes", kAll, Code::BadStride, [](Tensors& t) { t.rows = kMaxRows / kColumns / 2; }},
      {"too wide an x", kAll, Code::BadStride, [](Tensors& t) { t.x_row_stride = kMaxRows / 4 + 1; }},
      {"too wide a y", kAll, Code::BadStride, [](Tensors& t) { t.y_row_stride = kMaxRows - 3; }},
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
  odd.y_row_stride = kColumns + 1;
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

  const auto host = check_with(tensors.bias, {.device_accessible = false});
  ASSERT_EQ(host.code(), Code::WrongDevice);
  EXPECT_THAT(host.error().message, HasSubstr("bias"));
  const auto foreign = check_with(tensors.y, {true, 1, UINT64_MAX});
  ASSERT_EQ(foreign.code(), Code::WrongDevice);
  EXPECT_THAT(foreign.error().message, HasSubstr("y is memory of device 1"));
  EXPECT_TRUE(check_with(tensors.x, {true, -1, UINT64_MAX}).ok()) << "managed and pinned memory";

  const auto shorter = check_with(tensors.x, {true, 0, 5 * kRow - 1});
  ASSERT_EQ(shorter.code(), Code::OutOfBounds);
  EXPECT_THAT(shorter.error().message, HasSubstr("x needs 81920 bytes"));
  EXPECT_TRUE(check_with(tensors.x, {true, 0, 5 * kRow}).ok());
  EXPECT_EQ(check_with(tensors.weight, {true, 0, kRow - 1}).code(), Code::OutOfBounds);
  EXPECT_TRUE(check_with(tensors.weight, {true, 0, kRow}).ok());
  EXPECT_EQ(check_with(tensors.rstd, {true, 0, 19}).code(), Code::OutOfBounds);
  EXPECT_TRUE(check_with(tensors.rstd, {true, 0, 20}).ok());
}

TEST_F(KernelTest, CheckCountsOnlyWhatStridedRowsTouch) {
  const Kernel kernel = prepare({.columns = kColumns});
  Tensors tensors = tensors_of({}, 3);
  tensors.y_row_stride = 10000;
  machine_.driver->set_allocation(tensors.y, {true, 0, (2 * 10000 + kColumns) * 4});
  EXPECT_TRUE(kernel.check(tensors).ok()) << "not the gap behind the last row";
  tensors.y_row_stride = 10004;
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
