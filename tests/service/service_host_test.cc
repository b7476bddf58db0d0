// SPDX-License-Identifier: Apache-2.0
// A Service from end to end with true numbers and no GPU: spec, plan, text, compiler, cache on disk, driver,
// launch. The kernels run on the CPU (tests/support/simt_driver.h), and every output is compared with the
// reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "normjit/cache/entry.h"
#include "normjit/service.h"
#include "tests/support/simt_driver.h"
#include "tests/support/temp_directory.h"
#include "verify/check.h"
#include "verify/problem.h"

namespace normjit::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One of each strategy that takes rows of an odd length. Those are read element by element or unaligned, so
// few kernels serve every alignment.
constexpr NormSpec kTiled{.columns = 33,
                          .input = DType::f16,
                          .output = DType::f16,
                          .weight = DType::f16,
                          .affine = Affine::weight_bias,
                          .statistics = true};
constexpr NormSpec kResident{.columns = 3001, .affine = Affine::weight_bias, .statistics = true};
constexpr NormSpec kLong{.columns = 40001,
                         .input = DType::f64,
                         .output = DType::f64,
                         .weight = DType::f64,
                         .activation = Activation::gelu,
                         .statistics = true};
constexpr NormSpec kOneOfEach[] = {kTiled, kResident, kLong};

// Small, so that a few rows are many.
constexpr int kMultiprocessors = 4;
DeviceProfile small_gpu(int arch) {
  DeviceProfile profile = DeviceProfile::of({.number = arch}).value();
  profile.sm_count = kMultiprocessors;
  return profile;
}

// How the tensors of a problem lie in device memory.
struct Placement {
  std::int64_t shift = 0;  // elements that every tensor is moved past a multiple of 16 bytes
  bool in_place = false;   // y is x
  int device = 0;
};

// The tensors of a problem in a driver's memory. The problem stays the caller's and must live as long.
class OnGpu {
 public:
  explicit OnGpu(SimtDriver& driver, oracle::Problem& problem, const Placement& placement = {})
      : driver_(driver), problem_(problem), placement_(placement) {
    for (const OperandRow& row : kOperands) {
      const oracle::Matrix& matrix = problem[row.operand];
      const bool in_place = placement.in_place && row.in_place != row.operand;
      const SimtMemory use{.name = std::string(row.name),
                           .writable = row.output || (placement.in_place && row.extent == Extent::matrix),
                           .initialized = !row.output,
                           .early = is_columns(row, problem.spec),
                           .element = static_cast<std::size_t>(size_of(matrix.dtype()))};
      const void* const at = in_place ? pointer_of(tensors_, row_of(row.in_place)) : add(matrix, use);
      if (matrix.columns() > 0) set(tensors_, row, oracle::rows_at(at, matrix.layout()));
    }
    tensors_.rows = problem.rows;
  }
  ~OnGpu() {
    for (void* address : allocated_) driver_.free(address);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  const Tensors& tensors() const { return tensors_; }
  void fetch() {
    for (const OperandRow& row : kOperands)
      if (row.output) fetch(problem_[row.operand], pointer_of(tensors_, row));
  }

 private:
  void* add(const oracle::Matrix& matrix, SimtMemory use) {
    if (matrix.columns() == 0) return nullptr;  // not of this spec
    use.device = placement_.device;
    use.shift = static_cast<std::size_t>(placement_.shift) * size_of(matrix.dtype()) % 16;
    void* const memory = driver_.allocate(matrix.bytes(), use);
    std::memcpy(memory, matrix.data(), matrix.bytes());
    allocated_.push_back(memory);
    return memory;
  }
  static void fetch(oracle::Matrix& to, const void* from) {
    if (to.columns() > 0) std::memcpy(to.data(), from, to.bytes());
  }

  SimtDriver& driver_;
  oracle::Problem& problem_;
  const Placement placement_;
  Tensors tensors_;
  std::vector<void*> allocated_;
};

// Random inputs, other ones each time, and poisoned outputs.
oracle::Problem make(const NormSpec& spec, std::int64_t rows, std::int64_t x_row_stride = kContiguous,
                     std::int64_t y_row_stride = kContiguous) {
  static std::atomic<std::uint64_t> seed = 1;
  oracle::Problem problem =
      oracle::make_problem(spec, rows, {{Operand::x, x_row_stride}, {Operand::y, y_row_stride}}).value();
  oracle::fill(problem, seed++);
  return problem;
}

void expect_right(const oracle::Problem& problem) {
  SCOPED_TRACE(to_text(problem.spec) + ", " + std::to_string(problem.rows) + " rows");
  const oracle::CheckReport report = oracle::check(problem, problem.rows);
  const auto expect_close = [](const char* tensor, const oracle::Comparison& compared) {
    EXPECT_EQ(compared.wrong, 0) << tensor << ": of " << compared.values << " values; the first in row "
                                 << compared.first_wrong.row << ", column " << compared.first_wrong.column
                                 << ": " << compared.first_wrong.got << ", expected "
                                 << compared.first_wrong.expected;
  };
  for (const OperandRow& row : kOperands)
    if (row.output) expect_close(std::string(row.name).c_str(), report[row.operand]);
  EXPECT_EQ(report.overwritten, 0) << "bytes between the rows of outputs";
}

std::vector<std::byte> bytes_of(const oracle::Matrix& matrix) {
  return {matrix.data(), matrix.data() + matrix.bytes()};
}

class ServiceHostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto host = simt::HostCompiler::find();
    if (!host) GTEST_SKIP() << host.error().message;
    driver_ = std::make_shared<SimtDriver>(std::vector{small_gpu(90), small_gpu(80)}, *host);
  }

  // As in a new process, but for the driver.
  Service service() {
    Options options;
    options.cache_directory = directory_.path();
    options.log = [this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      if (level >= LogLevel::warn) warnings_.emplace_back(text);
    };
    return Service(options, {.compiler = compiler_, .driver = driver_, .files = nullptr, .embedded = ""});
  }
  int compiles() const { return static_cast<int>(compiler_->compiles().size()); }

  // Compiles the kernels of these specs for few and many rows in one go.
  void compile_ahead(Service& service, std::span<const NormSpec> specs,
                     std::initializer_list<Alignment> alignments = {Alignment::eight}) {
    std::vector<Source> sources;
    for (const NormSpec& spec : specs)
      for (const RowsRegime regime : kRowsRegimes)
        for (const Alignment alignment : alignments) {
          auto kernel = service.render(spec, small_gpu(90), regime, alignment).value();
          const auto same = [&](const Source& source) { return source.text == kernel.text; };
          if (std::ranges::none_of(sources, same))
            sources.push_back({std::move(kernel.text), std::move(kernel.kernel), to_text(spec)});
        }
    const auto done = driver_->compile_ahead(sources);
    ASSERT_TRUE(done.ok()) << done.error().message;
  }

  // Workspace for all of these specs, zeroed. The test's end frees it.
  void* workspace(Service& service, std::span<const NormSpec> specs) {
    std::size_t bytes = 0;
    for (const NormSpec& spec : specs) bytes = std::max(bytes, service.workspace_bytes(spec).value());
    return bytes == 0 ? nullptr : driver_->allocate(bytes, {.name = "workspace"});
  }

  // The one-call form, and that its result is right.
  void run(Service& service, oracle::Problem& problem, void* workspace = nullptr,
           const Placement& placement = {}) {
    OnGpu on_gpu(*driver_, problem, placement);
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace;
    const auto done = service.layer_norm(problem.spec, tensors, nullptr);
    ASSERT_TRUE(done.ok()) << done.error().message;
    on_gpu.fetch();
    expect_right(problem);
  }

  const TempDirectory directory_;
  const std::shared_ptr<SimtCompiler> compiler_ = std::make_shared<SimtCompiler>();
  std::shared_ptr<SimtDriver> driver_;
  std::mutex mutex_;  // of warnings_, while services are at work
  std::vector<std::string> warnings_;
};

TEST_F(ServiceHostTest, EveryStrategyGivesTheReference) {
  Service service = this->service();
  void* const workspace = this->workspace(service, kOneOfEach);
  std::vector<Strategy> strategies;
  for (const NormSpec& spec : kOneOfEach) {
    // Short rows are staged where they are many.
    const std::int64_t rows = spec == kTiled ? 512 * kMultiprocessors + 1 : kMultiprocessors + 1;
    oracle::Problem problem = make(spec, rows);
    run(service, problem, workspace);

    const Kernel kernel =
        service.prepare(spec, {.rows_hint = problem.rows, .pointer_alignment = size_of(spec.input)}).value();
    problem = make(spec, rows);
    OnGpu on_gpu(*driver_, problem);
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace;
    EXPECT_TRUE(kernel.launch(tensors, nullptr)) << driver_->describe(719);
    on_gpu.fetch();
    expect_right(problem);
    strategies.push_back(kernel.plan().strategy);
  }
  EXPECT_THAT(strategies,
              ::testing::ElementsAre(Strategy::staged_rows, Strategy::block_row, Strategy::split_row));
  EXPECT_EQ(compiles(), 3) << "both forms share their kernels";
  EXPECT_EQ(driver_->launches(), 6);
}

TEST_F(ServiceHostTest, TheGenericKernelGivesTheReference) {
  constexpr NormSpec kWarps{.columns = 1000,
                            .input = DType::f16,
                            .output = DType::bf16,
                            .weight = DType::f32,
                            .epsilon = 1e-3,
                            .affine = Affine::weight_bias,
                            .activation = Activation::gelu,
                            .scale = -0.5};
  Service service = this->service();
  for (const NormSpec& spec : {kTiled, kWarps, kResident, kLong}) {
    const Kernel kernel = service.prepare(spec, {.plan = generic_plan()}).value();
    EXPECT_EQ(kernel.plan(), generic_plan());
    EXPECT_EQ(kernel.spec(), canonical(spec));
    EXPECT_EQ(kernel.workspace_bytes(), 0u);
    for (const bool in_place : {false, true}) {
      if (in_place && spec.output != spec.input && spec.output != DType::bf16) continue;
      oracle::Problem problem = make(spec, 9, spec.columns + 1, spec.columns + 1);
      OnGpu on_gpu(*driver_, problem, {.shift = 1, .in_place = in_place});
      ASSERT_TRUE(kernel.check(on_gpu.tensors()).ok());
      EXPECT_TRUE(kernel.launch(on_gpu.tensors(), nullptr)) << driver_->describe(719);
      on_gpu.fetch();
      expect_right(problem);
    }
  }
  EXPECT_EQ(compiles(), 2) << "one for each compute type";
  EXPECT_THAT(warnings_, IsEmpty());
}

// As a cubin runs on later architectures of the same major version.
TEST_F(ServiceHostTest, OneGenericKernelServesAMajorVersion) {
  driver_ =
      std::make_shared<SimtDriver>(std::vector{small_gpu(80), small_gpu(89)}, *simt::HostCompiler::find());
  Service service = this->service();
  for (const int device : {0, 1}) {
    const Kernel kernel = service.prepare(kTiled, {.device = device, .plan = generic_plan()}).value();
    oracle::Problem problem = make(kTiled, 9);
    OnGpu on_gpu(*driver_, problem, {.device = device});
    EXPECT_TRUE(kernel.launch(on_gpu.tensors(), nullptr)) << driver_->describe(719);
    on_gpu.fetch();
    expect_right(problem);
  }
  EXPECT_EQ(compiles(), 1);
}

TEST_F(ServiceHostTest, ASecondProcessFindsTheSameBitsOnDisk) {
  oracle::Problem problem = make(kResident, 3);
  Service first = service();
  run(first, problem);
  EXPECT_EQ(first.prepare(kResident, {.rows_hint = 3}).value().origin(), Origin::compiled);
  const std::vector<std::byte> y = bytes_of(problem[Operand::y]), rstd = bytes_of(problem[Operand::rstd]);

  Service second = service();
  problem[Operand::y].poison();
  run(second, problem);
  EXPECT_EQ(second.prepare(kResident, {.rows_hint = 3}).value().origin(), Origin::disk);
  EXPECT_EQ(bytes_of(problem[Operand::y]), y);
  EXPECT_EQ(bytes_of(problem[Operand::rstd]), rstd);
  EXPECT_EQ(compiles(), 1);
  EXPECT_EQ(driver_->loads(), 2);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(ServiceHostTest, ADamagedEntryIsCompiledAgain) {
  oracle::Problem problem = make(kTiled, 5);
  Service first = service();
  run(first, problem);
  const std::vector<std::byte> y = bytes_of(problem[Operand::y]);
  const std::string path = directory_ / (first.entries().value().at(0).id + ".njk");
  std::ifstream in(path, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  const Entry entry = decode(whole).value();

  const auto with_body = [&](const std::string& body) {
    Entry other = entry;
    other.body = body;
    return encode(other);
  };
  const auto changed = [&](std::size_t at) {
    std::string file = whole;
    file[at] ^= 1;
    return file;
  };
  const struct {
    const char* what;
    std::string file;
  } damages[] = {{"cut off", whole.substr(0, whole.size() / 2)},
                 {"empty", ""},
                 {"another byte in the header", changed(10)},
                 {"another byte in the code", changed(whole.size() - 100)},
                 {"whole, but the driver refuses its code", with_body(entry.body.substr(0, 1000))},
                 {"whole, but of no code", with_body("")}};
  int expected = compiles();
  for (const auto& damage : damages) {
    SCOPED_TRACE(damage.what);
    std::ofstream(path, std::ios::binary) << damage.file;
    warnings_.clear();
    problem[Operand::y].poison();
    Service second = service();
    run(second, problem);
    EXPECT_EQ(bytes_of(problem[Operand::y]), y);
    EXPECT_EQ(compiles(), ++expected);
    EXPECT_THAT(warnings_, SizeIs(1));

    Service third = service();
    run(third, problem);
    EXPECT_EQ(compiles(), expected) << "the entry was not mended";
  }
}

TEST_F(ServiceHostTest, SpecsThatDifferInOneFieldShareNoKernel) {
  const NormSpec base{.columns = 40, .affine = Affine::weight_bias, .activation = Activation::relu};
  std::vector<NormSpec> specs(10, base);
  specs[1].columns = 48;
  specs[2].input = DType::f16;
  specs[3].output = DType::f16;
  specs[4].weight = DType::f16;
  specs[5].epsilon = 0.25;
  specs[6].affine = Affine::weight;
  specs[7].activation = Activation::silu;
  specs[8].scale = -2;
  specs[9].statistics = true;
  Service first = service();
  compile_ahead(first, specs);
  const int ahead = driver_->compiled();

  for (std::size_t i = 0; i < specs.size(); ++i) {
    oracle::Problem problem = make(specs[i], kMultiprocessors);
    run(first, problem);
    EXPECT_EQ(compiles(), static_cast<int>(i) + 1) << to_text(specs[i]);
  }
  EXPECT_THAT(first.entries().value(), SizeIs(specs.size()));
  EXPECT_EQ(driver_->compiled(), ahead) << "what was rendered is what is compiled";

  Service second = service();
  for (const NormSpec& spec : specs) {
    oracle::Problem problem = make(spec, kMultiprocessors);
    run(second, problem);
  }
  EXPECT_EQ(compiles(), static_cast<int>(specs.size())) << "all of them were on disk";

  // The architecture is part of the key too.
  driver_->set_current_device(1);
  oracle::Problem problem = make(base, kMultiprocessors);
  run(second, problem, nullptr, {.device = 1});
  EXPECT_EQ(compiler_->compiles().back().name(), "sm_80");
  EXPECT_EQ(compiles(), static_cast<int>(specs.size()) + 1);
}

TEST_F(ServiceHostTest, NoneOneFewAndManyRows) {
  Service service = this->service();
  compile_ahead(service, kOneOfEach);
  void* const workspace = this->workspace(service, kOneOfEach);
  for (const NormSpec& spec : kOneOfEach) {
    for (const std::int64_t rows : {1, 2, 3, 4, 9}) {
      oracle::Problem problem = make(spec, rows);
      run(service, problem, workspace);
    }
    const int launches = driver_->launches();
    oracle::Problem problem = make(spec, 2);
    OnGpu on_gpu(*driver_, problem);
    Tensors tensors = on_gpu.tensors();
    tensors.rows = 0;
    EXPECT_TRUE(service.layer_norm(spec, tensors, nullptr).ok());
    EXPECT_EQ(driver_->launches(), launches);
  }
  oracle::Problem many = make(kTiled, 1000);
  run(service, many);
}

TEST_F(ServiceHostTest, StridesAndOffsets) {
  Service service = this->service();
  compile_ahead(service, kOneOfEach);
  void* const workspace = this->workspace(service, kOneOfEach);
  for (const NormSpec& spec : kOneOfEach) {
    const std::int64_t columns = spec.columns;
    oracle::Problem gaps = make(spec, 2, columns + 1, columns + 7);
    run(service, gaps, workspace);
    oracle::Problem unaligned = make(spec, 4, columns + 2);
    run(service, unaligned, workspace, {.shift = 1});
    oracle::Problem one_row = make(spec, 5, 0);
    run(service, one_row, workspace, {.shift = 3});
    oracle::Problem overlapping = make(spec, 3, columns / 3);
    run(service, overlapping, workspace);
  }
  EXPECT_EQ(driver_->loads(), compiles()) << "a kernel that serves several alignments is loaded once";
}

TEST_F(ServiceHostTest, InPlace) {
  Service service = this->service();
  compile_ahead(service, kOneOfEach);
  void* const workspace = this->workspace(service, kOneOfEach);
  for (const NormSpec& spec : kOneOfEach)
    for (const std::int64_t gap : {0, 5}) {
      oracle::Problem problem = make(spec, 4, spec.columns + gap, spec.columns + gap);
      run(service, problem, workspace, {.in_place = true});
    }
}

// Each width of an access, by pointers and by strides.
TEST_F(ServiceHostTest, TheKernelFitsTheAlignment) {
  const NormSpec spec{.columns = 64, .input = DType::f16, .affine = Affine::weight_bias, .statistics = true};
  Service service = this->service();
  compile_ahead(service, {{spec}}, {Alignment::one, Alignment::two, Alignment::four, Alignment::eight});
  const DeviceProfile device = small_gpu(90);
  std::vector<Plan> different;
  for (const Alignment alignment : kAlignments)
    if (const Plan plan = choose(spec, device, regime_of(5, device), alignment);
        std::ranges::find(different, plan) == different.end())
      different.push_back(plan);
  ASSERT_GT(different.size(), 1u);
  for (const std::int64_t shift : {0, 4, 2, 1}) {
    oracle::Problem problem = make(spec, 5);
    run(service, problem, nullptr, {.shift = shift});
  }
  EXPECT_EQ(compiles(), static_cast<int>(different.size()));
  for (const std::int64_t gap : {8, 4, 2, 1}) {
    oracle::Problem x_strided = make(spec, 5, spec.columns + gap);
    run(service, x_strided);
    oracle::Problem y_strided = make(spec, 5, kContiguous, spec.columns + gap);
    run(service, y_strided);
  }
  EXPECT_EQ(compiles(), static_cast<int>(different.size()));
}

// The counters, which stand in the same place for all kernels, are zero again behind every launch, but for
// the tag that grows from launch to launch where blocks share rows.
TEST_F(ServiceHostTest, OneWorkspaceServesManyKernelsInTurn) {
  constexpr std::size_t kEpochAt = 16, kCounterBytes = 32 + 1024 * 32;
  const struct {
    NormSpec spec;
    std::string_view plan;
  } uses[] = {
      {{.columns = 3001, .input = DType::f64, .output = DType::f64, .weight = DType::f64, .statistics = true},
       "split_row threads=64 threads_per_row=64 vector=1 per_thread=4"},
      {{.columns = 1000, .affine = Affine::weight},
       "block_row threads=64 threads_per_row=64 vector=4 per_thread=1 blocks_per_row=4 exchange=grid"},
      {{.columns = 6000, .affine = Affine::weight_bias},
       "persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 blocks_per_row=2 exchange=grid "
       "stages=4"},
      {{.columns = 2001, .affine = Affine::weight},
       "split_row threads=64 threads_per_row=64 vector=4 per_thread=1 unaligned=1"},
  };
  Service service = this->service();
  std::vector<Kernel> kernels;
  std::size_t bytes = 0;
  for (const auto& use : uses) {
    kernels.push_back(service.prepare(use.spec, {.plan = parse_plan(use.plan).value()}).value());
    ASSERT_GT(kernels.back().workspace_bytes(), kCounterBytes);
    bytes = std::max(bytes, kernels.back().workspace_bytes());
  }
  auto* const workspace = static_cast<std::byte*>(driver_->allocate(bytes, {.name = "workspace"}));
  std::uint32_t epoch = 0;
  for (const std::int64_t rows : {5, 1, 9, 2})
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      SCOPED_TRACE(uses[i].plan);
      driver_->set_seed(static_cast<std::uint64_t>(driver_->launches()));
      oracle::Problem problem = make(uses[i].spec, rows);
      OnGpu on_gpu(*driver_, problem);
      Tensors tensors = on_gpu.tensors();
      tensors.workspace = workspace;
      ASSERT_TRUE(kernels[i].launch(tensors, nullptr)) << driver_->describe(719);
      on_gpu.fetch();
      expect_right(problem);
      std::vector<std::byte> counters(workspace, workspace + kCounterBytes);
      const std::uint32_t before = epoch;
      std::memcpy(&epoch, counters.data() + kEpochAt, sizeof epoch);
      EXPECT_EQ(epoch > before, kernels[i].plan().exchange == Exchange::grid);
      EXPECT_GE(epoch, before);
      std::fill_n(counters.begin() + kEpochAt, sizeof epoch, std::byte{0});
      EXPECT_EQ(std::ranges::count(counters, std::byte{0}), static_cast<std::ptrdiff_t>(counters.size()));
    }
}

// So many rows that all of its ring is used.
TEST_F(ServiceHostTest, AWorkspaceOfTheKernelsSizeSuffices) {
  oracle::Problem problem = make(kLong, 12);
  Service service = this->service();
  const Kernel kernel = service.prepare(kLong, {.rows_hint = problem.rows}).value();
  OnGpu on_gpu(*driver_, problem);
  Tensors tensors = on_gpu.tensors();
  tensors.workspace = driver_->allocate(kernel.workspace_bytes(), {.name = "workspace"});
  EXPECT_TRUE(kernel.launch(tensors, nullptr)) << driver_->describe(719);
  on_gpu.fetch();
  expect_right(problem);
}

TEST_F(ServiceHostTest, ManyThreadsShareKernelsAndEachGetsItsNumbers) {
  constexpr int kThreads = 8, kRounds = 2;
  const NormSpec specs[] = {{.columns = 64, .affine = Affine::weight_bias, .activation = Activation::gelu},
                            {.columns = 100, .input = DType::f16, .statistics = true},
                            kResident,
                            kLong};
  Service service = this->service();
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      const auto stream = reinterpret_cast<Stream>(static_cast<std::uintptr_t>(thread + 1));
      void* const workspace = this->workspace(service, specs);
      start.arrive_and_wait();
      for (int i = 0; i < kRounds * static_cast<int>(std::size(specs)); ++i) {
        const NormSpec& spec = specs[static_cast<std::size_t>(i + thread) % std::size(specs)];
        oracle::Problem problem = make(spec, kMultiprocessors + 1 + thread % 3);
        OnGpu on_gpu(*driver_, problem);
        Tensors tensors = on_gpu.tensors();
        tensors.workspace = workspace;
        if (i % 2 == 0) {
          const auto done = service.layer_norm(spec, tensors, stream);
          EXPECT_TRUE(done.ok()) << done.error().message;
        } else {
          const auto kernel = service.prepare(spec, {.rows_hint = problem.rows});
          ASSERT_TRUE(kernel.ok()) << kernel.error().message;
          EXPECT_TRUE(kernel->launch(tensors, stream)) << driver_->describe(719);
        }
        on_gpu.fetch();
        expect_right(problem);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiles(), static_cast<int>(std::size(specs)));
  EXPECT_EQ(driver_->loads(), static_cast<int>(std::size(specs)));
  EXPECT_EQ(driver_->launches(), kThreads * kRounds * static_cast<int>(std::size(specs)));
  EXPECT_THAT(warnings_, IsEmpty());
}

// Before a launch has waited for the one before it, it may read weight and bias and nothing else.
TEST_F(ServiceHostTest, OverlappingLaunchesTouchNothingButWeightsTooEarly) {
  Service service = this->service();
  for (const NormSpec& spec : kOneOfEach)
    for (const Plan& plan : plans(spec, driver_->profile(0).value())) {
      const auto kernel = service.prepare(spec, {.plan = plan});
      if (kernel.code() == Code::IllegalPlan || kernel.code() == Code::NotResident) continue;
      SCOPED_TRACE(to_text(spec) + " " + to_text(plan));
      oracle::Problem problem = make(spec, kMultiprocessors + 1);
      OnGpu on_gpu(*driver_, problem);
      Tensors tensors = on_gpu.tensors();
      tensors.workspace = workspace(service, {&spec, 1});
      ASSERT_TRUE(kernel->launch(tensors, nullptr, {.overlap_previous = true})) << driver_->describe(719);
      on_gpu.fetch();
      expect_right(problem);
    }
}

TEST_F(ServiceHostTest, WhatIsRefusedLaunchesNothing) {
  const NormSpec spec{.columns = 64};
  constexpr NormSpec kGigantic{.columns = 1 << 22, .statistics = true};  // too long for a cluster
  Service service = this->service();
  const Kernel kernel = service.prepare(spec).value();
  const Kernel needs_workspace = service.prepare(kGigantic, {.rows_hint = 1}).value();
  ASSERT_GT(needs_workspace.workspace_bytes(), 0U);

  oracle::Problem problem = make(spec, 5);
  OnGpu off_by_one(*driver_, problem, {.shift = 1});
  EXPECT_EQ(kernel.launch(off_by_one.tensors(), nullptr).code, Code::Misaligned);
  oracle::Problem long_problem = make(kGigantic, 1);
  OnGpu on_gpu(*driver_, long_problem);
  EXPECT_EQ(needs_workspace.launch(on_gpu.tensors(), nullptr).code, Code::WorkspaceRequired);
  EXPECT_EQ(service.layer_norm(kGigantic, on_gpu.tensors(), nullptr).code(), Code::WorkspaceRequired);

  EXPECT_EQ(driver_->launches(), 0);
  off_by_one.fetch();
  on_gpu.fetch();
  for (const oracle::Matrix* output :
       {&problem[Operand::y], &long_problem[Operand::y], &long_problem[Operand::mean]})
    EXPECT_EQ(bytes_of(*output) == std::vector(output->bytes(), std::byte{0xff}), true);
}

TEST_F(ServiceHostTest, MemoryThatTheDeviceCannotReachIsRefused) {
  const NormSpec spec{.columns = 64};
  Service service = this->service();
  oracle::Problem problem = make(spec, 5);
  OnGpu here(*driver_, problem), there(*driver_, problem, {.device = 1});

  Tensors tensors = here.tensors();
  tensors.x = problem[Operand::x].data();  // of the host
  EXPECT_EQ(service.layer_norm(spec, tensors, nullptr).code(), Code::WrongDevice);
  EXPECT_EQ(service.layer_norm(spec, there.tensors(), nullptr).code(), Code::WrongDevice);
  tensors = here.tensors();
  tensors.rows = 6;
  EXPECT_EQ(service.layer_norm(spec, tensors, nullptr).code(), Code::OutOfBounds);
  tensors = here.tensors();
  tensors.y = static_cast<char*>(tensors.y.pointer) + 256;
  EXPECT_EQ(service.layer_norm(spec, tensors, nullptr).code(), Code::OutOfBounds);
  EXPECT_EQ(driver_->launches(), 0);

  EXPECT_TRUE(service.layer_norm(spec, here.tensors(), nullptr).ok());
  driver_->set_current_device(1);
  EXPECT_TRUE(service.layer_norm(spec, there.tensors(), nullptr).ok());
  there.fetch();
  expect_right(problem);
  driver_->set_current_device(std::nullopt);
  EXPECT_EQ(service.layer_norm(spec, here.tensors(), nullptr).code(), Code::NoContext);
}

// Kernel::launch believes its caller, as on a GPU; then the kernel itself meets the end of the memory.
TEST_F(ServiceHostTest, AKernelThatGoesAstrayIsTold) {
  const NormSpec spec{.columns = 64};
  Service service = this->service();
  const Kernel kernel = service.prepare(spec, {.rows_hint = 5}).value();
  oracle::Problem problem = make(spec, 5);
  OnGpu on_gpu(*driver_, problem);
  Tensors tensors = on_gpu.tensors();
  ASSERT_TRUE(service.layer_norm(spec, tensors, nullptr).ok());
  tensors.rows = 6;
  const Status status = kernel.launch(tensors, nullptr);
  EXPECT_EQ(status.code, Code::DriverError);
  EXPECT_EQ(status.driver_result, 719);
  ASSERT_TRUE(driver_->last_diagnosis());
  EXPECT_EQ(driver_->last_diagnosis()->fault, simt::Fault::out_of_bounds)
      << driver_->last_diagnosis()->message;

  // The one-call form has seen good pointers of this kernel, and looks at none again.
  const auto failed = service.layer_norm(spec, tensors, nullptr);
  ASSERT_EQ(failed.code(), Code::DriverError);
  EXPECT_THAT(failed.error().message, AllOf(HasSubstr(to_text(spec)), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"),
                                            HasSubstr("out of bounds"), HasSubstr("warp_rows.cu")));
  EXPECT_TRUE(service.layer_norm(spec, on_gpu.tensors(), nullptr).ok()) << "the device is as good as before";
}

TEST_F(ServiceHostTest, CodeForAnotherArchitectureDoesNotLoad) {
  const Source source{.text = "", .kernel = "warp_rows", .description = ""};
  const std::string code = compiler_->compile(source, {.number = 80}).value().code;
  const LaunchShape shape{.threads = 128};
  EXPECT_EQ(driver_->load(code, "warp_rows", 0, shape).code(), Code::LoadFailed) << "an sm_90";
  EXPECT_EQ(driver_->load(code, "split_row", 1, shape).code(), Code::LoadFailed);
  EXPECT_EQ(driver_->load(code + " ", "warp_rows", 1, shape).code(), Code::LoadFailed);
  EXPECT_EQ(driver_->load("", "warp_rows", 1, shape).code(), Code::LoadFailed);
  EXPECT_EQ(driver_->load(code, "warp_rows", 2, shape).code(), Code::NoDevice);
  EXPECT_EQ(driver_->load(code, "warp_rows", 1, shape).code(), Code::CompileFailed) << "an empty text";
}

}  // namespace
}  // namespace normjit::testing
