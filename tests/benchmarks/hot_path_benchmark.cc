// SPDX-License-Identifier: Apache-2.0
// What a launch costs above the driver's own call: by a prepared kernel, and by the one-call form, with one
// and with ten thousand specs resident, on up to 16 threads at once; and the same through the C interface.
//
// The time of a call is the counter `ns`: each thread's own elapsed time over its calls, averaged over the
// threads. On a machine with fewer cores than threads look at the CPU column instead. With a GPU the same is
// measured on its driver; the kernel is then compiled, or comes from the cache. Repeat, and look at medians:
//
//   normjit_hot_path_benchmark --benchmark_repetitions=9 --benchmark_enable_random_interleaving
//       --benchmark_report_aggregates_only --benchmark_out=hot_path.json
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cli/gpu.h"
#include "cli/measure.h"
#include "normjit/c_api.h"
#include "normjit/c_api/call.h"
#include "normjit/c_api/values.h"
#include "normjit/compiler/compiler.h"
#include "normjit/driver/cuda_driver.h"
#include "normjit/service.h"
#include "normjit/service/packed_tensors.h"
#include "tests/support/counting_cuda.h"

namespace normjit::benchmarks {
namespace {

using testing::counting_cuda;
using testing::launches_of_this_thread;

using Clock = std::chrono::steady_clock;

constexpr int kManySpecs = 10'000;
constexpr std::int64_t kRows = 200;

NormSpec spec(int number) {
  return canonical({.columns = 256 + number, .input = DType::bf16, .affine = Affine::weight_bias});
}

// A spec that has every operand.
constexpr NormSpec kFull{.columns = 256,
                         .input = DType::bf16,
                         .residual = Residual::before,
                         .sum = true,
                         .affine = Affine::weight_bias,
                         .statistics = true};

// Addresses that nothing follows, with room between them. y is x, and sum is the residual.
Tensors tensors_of(const NormSpec& spec) {
  Tensors tensors{.rows = kRows};
  for (const OperandRow& row : kOperands) {
    const std::uintptr_t at = (static_cast<std::uintptr_t>(row.in_place) + 1) << 30;
    if (row.present(spec)) set(tensors, row, reinterpret_cast<void*>(at));
  }
  return tensors;
}

// Nobody runs what it makes.
class NoCompile final : public Compiler {
 public:
  Result<Binary> compile(const Source& source, Arch arch) override {
    Binary binary;
    binary.code = source.kernel;
    binary.target = arch.name();
    binary.toolchain = "none";
    return binary;
  }
  Result<Facts> facts() override { return Facts{}; }
};

// A service on the driver that only counts, with every spec resident.
struct Counting {
  Counting() {
    Seams seams;
    seams.compiler = std::make_shared<NoCompile>();
    seams.driver = std::make_shared<CudaDriver>(counting_cuda);
    handle = std::make_unique<normjit_service>(Options{}, seams);
    service = &handle->service;
    for (int i = 0; i < kManySpecs; ++i) service->layer_norm(spec(i), tensors, nullptr).value();
    service->layer_norm(kFull, all_tensors, nullptr).value();
  }

  const Tensors tensors = tensors_of(spec(0)), all_tensors = tensors_of(kFull);
  std::unique_ptr<normjit_service> handle;
  Service* service = nullptr;
};

normjit_tensors in_c(const Tensors& tensors) {
  normjit_tensors t = NORMJIT_TENSORS_INIT;
  t.x.pointer = tensors.x.pointer, t.y.pointer = tensors.y.pointer, t.rows = tensors.rows;
  t.weight.pointer = tensors.weight.pointer, t.bias.pointer = tensors.bias.pointer;
  return t;
}

normjit_spec in_c(const NormSpec& spec) {
  normjit_spec s = NORMJIT_SPEC_INIT;
  c_api::write(spec, s);
  return s;
}

Counting& counting() {
  static Counting all;
  return all;
}

// What string-keyed JITs do on each launch.
class ByText {
 public:
  explicit ByText(Service& service) : service_(service) {}

  Status launch(const NormSpec& spec, const Tensors& tensors, Stream stream) {
    Kernel kernel;
    {
      const std::lock_guard lock(mutex_);
      Kernel& kept = kernels_[to_text(canonical(spec))];
      if (!kept) kept = service_.prepare(spec, {.rows_hint = kRows}).value();
      kernel = kept;
    }
    return kernel.launch(tensors, stream);
  }

 private:
  Service& service_;
  std::mutex mutex_;
  std::unordered_map<std::string, Kernel> kernels_;
};

// The specs that a thread calls, each thread in an order of its own.
std::vector<NormSpec> order(int specs, int thread) {
  std::vector<int> numbers(specs);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(thread));
  std::vector<NormSpec> all;
  for (const int number : numbers) all.push_back(spec(number));
  return all;
}

// Runs `launch` as often as the benchmark wants, and checks that the driver heard of each.
template <class Launch>
void measure(benchmark::State& state, const Launch& launch) {
  const std::uint64_t before = launches_of_this_thread();
  Clock::time_point begin;
  bool begun = false;
  for (auto _ : state) {
    if (!begun) begin = Clock::now(), begun = true;  // behind the barrier of all threads
    launch();
  }
  const std::chrono::duration<double, std::nano> elapsed = Clock::now() - begin;
  if (launches_of_this_thread() - before != static_cast<std::uint64_t>(state.iterations()))
    state.SkipWithError("the driver did not hear of every launch");
  state.counters["ns"] = benchmark::Counter(elapsed.count() / static_cast<double>(state.iterations()),
                                            benchmark::Counter::kAvgThreads);
}

void raw(benchmark::State& state) {
  const auto launch_kernel = counting_cuda()->cuLaunchKernelEx;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  void* arguments[2] = {};
  measure(state, [&] {
    benchmark::DoNotOptimize(config);
    benchmark::DoNotOptimize(launch_kernel(&config, nullptr, arguments, nullptr));
  });
}

void prepared(benchmark::State& state) {
  const Kernel kernel = counting().service->prepare(spec(0), {.rows_hint = kRows}).value();
  const Tensors& tensors = counting().tensors;
  measure(state, [&] { benchmark::DoNotOptimize(kernel.launch(tensors, nullptr)); });
}

void prepared_full(benchmark::State& state) {
  const Kernel kernel = counting().service->prepare(kFull, {.rows_hint = kRows}).value();
  const Tensors& tensors = counting().all_tensors;
  measure(state, [&] { benchmark::DoNotOptimize(kernel.launch(tensors, nullptr)); });
}

void one_call_full(benchmark::State& state) {
  Service& service = *counting().service;
  const Tensors& tensors = counting().all_tensors;
  measure(state, [&] { benchmark::DoNotOptimize(service.layer_norm(kFull, tensors, nullptr).ok()); });
}

void c_prepared(benchmark::State& state) {
  const normjit_spec what = in_c(spec(0));
  normjit_prepare_options options = NORMJIT_PREPARE_OPTIONS_INIT;
  options.rows_hint = kRows;
  normjit_kernel* kernel = nullptr;
  if (normjit_prepare(counting().handle.get(), &what, &options, &kernel, nullptr) != NORMJIT_OK)
    state.SkipWithError("normjit_prepare failed");
  const normjit_tensors tensors = in_c(counting().tensors);
  measure(state,
          [&] { benchmark::DoNotOptimize(normjit_kernel_launch(kernel, &tensors, nullptr, nullptr)); });
  normjit_kernel_release(kernel);
}

// Calls `launch` with the specs of a thread in turn, as `form` makes them.
template <class Launch, class Form = std::identity>
void measure_specs(benchmark::State& state, const Launch& launch, const Form& form = {}) {
  using Spec = std::remove_cvref_t<std::invoke_result_t<Form, const NormSpec&>>;
  std::vector<Spec> specs;
  for (const NormSpec& spec : order(static_cast<int>(state.range(0)), state.thread_index()))
    specs.push_back(form(spec));
  std::size_t next = 0;
  measure(state, [&] {
    launch(specs[next]);
    next = next + 1 == specs.size() ? 0 : next + 1;
  });
}

void one_call(benchmark::State& state) {
  Service& service = *counting().service;
  const Tensors& tensors = counting().tensors;
  measure_specs(state, [&](const NormSpec& spec) {
    benchmark::DoNotOptimize(service.layer_norm(spec, tensors, nullptr).ok());
  });
}

void c_one_call(benchmark::State& state) {
  normjit_service* const service = counting().handle.get();
  const normjit_tensors tensors = in_c(counting().tensors);
  measure_specs(
      state,
      [&](const normjit_spec& spec) {
        benchmark::DoNotOptimize(normjit_layer_norm(service, &spec, &tensors, nullptr, nullptr, nullptr));
      },
      [](const NormSpec& spec) { return in_c(spec); });
}

void by_text(benchmark::State& state) {
  static ByText kernels(*counting().service);
  const Tensors& tensors = counting().tensors;
  const auto launch = [&](const NormSpec& spec) {
    benchmark::DoNotOptimize(kernels.launch(spec, tensors, nullptr));
  };
  for (const NormSpec& one : order(static_cast<int>(state.range(0)), 0)) launch(one);
  measure_specs(state, launch);
}

BENCHMARK(raw)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(prepared)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(one_call)->ArgName("specs")->Arg(1)->Arg(kManySpecs)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(prepared_full)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(one_call_full)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(c_prepared)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(c_one_call)->ArgName("specs")->Arg(1)->Arg(kManySpecs)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(by_text)->ArgName("specs")->Arg(1)->Arg(kManySpecs)->ThreadRange(1, 16)->UseRealTime();

// --- On a GPU
// ---------------------------------------------------------------------------------------------

constexpr NormSpec kOnGpu{.columns = 1024, .input = DType::bf16, .affine = Affine::weight_bias};

// The last launch that went through record(), to be done again without normjit.
struct Recorded {
  decltype(DriverTable::cuLaunchKernelEx) launch_kernel = nullptr;  // the driver's own
  CUlaunchConfig config{};
  std::vector<CUlaunchAttribute> attributes;
  CUfunction function = nullptr;
  std::vector<std::uint64_t> block;  // the kernel's one parameter
  void* arguments[1] = {};
};
Recorded g_recorded;

CUresult record(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  Recorded& r = g_recorded;
  r.config = *config;
  r.attributes.assign(config->attrs, config->attrs + config->numAttrs);
  r.config.attrs = r.attributes.data();
  r.function = function;
  const auto* words = static_cast<const std::uint64_t*>(arguments[0]);
  r.block.assign(words, words + OperandBlock::bytes_of(kernel_layout({}, kOnGpu)) / sizeof *words);
  r.arguments[0] = r.block.data();
  return r.launch_kernel(config, function, arguments, extra);
}

Result<DriverTable> recording_cuda() {
  Result<DriverTable> driver = open_driver();
  if (driver) g_recorded.launch_kernel = std::exchange(driver->cuLaunchKernelEx, record);
  return driver;
}

// A kernel whose run takes the GPU less time than its launch takes the CPU.
struct OnGpu {
  OnGpu() {
    recorded.layer_norm(kOnGpu, tensors, stream.handle()).value();
    service.layer_norm(kOnGpu, tensors, stream.handle()).value();
    stream.synchronize();
  }

  static Seams recording() {
    Seams seams;
    seams.driver = std::make_shared<CudaDriver>(recording_cuda);
    return seams;
  }

  void* vectors() const { return static_cast<std::byte*>(memory.data()) + 2048; }  // behind the row of x

  const cli::Gpu gpu{0};
  const cli::DeviceBuffer memory{gpu, 4096};
  const cli::GpuStream stream{gpu};
  const Tensors tensors{
      .x = memory.data(), .y = memory.data(), .weight = vectors(), .bias = vectors(), .rows = 1};
  Service recorded{Options::from_environment(), recording()};  // has the kernel that is launched raw
  Service service;
};

// Nanoseconds a launch, of a batch that the driver's queue has room for; the GPU ends it before the next one.
template <class Launch>
double time_batch(const OnGpu& on, const Launch& launch) {
  constexpr int kBatch = 256;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kBatch; ++i) launch();
  const std::chrono::duration<double, std::nano> elapsed = Clock::now() - begin;
  on.stream.synchronize();
  return elapsed.count() / kBatch;
}

// The same launch raw, prepared and in one call. A machine's speed changes by more than what normjit adds, so
// they take turns, and what counts is by how much each batch exceeds the raw one before it: the median.
void gpu_launch(benchmark::State& state, OnGpu& on) {
  Recorded& r = g_recorded;
  const Kernel kernel = on.service.prepare(kOnGpu, {.rows_hint = 1}).value();
  CUresult worst = CUDA_SUCCESS;
  std::vector<double> raw, prepared, one_call;
  for (auto _ : state) {
    raw.push_back(time_batch(
        on, [&] { worst = std::max(worst, r.launch_kernel(&r.config, r.function, r.arguments, nullptr)); }));
    prepared.push_back(
        time_batch(on, [&] { benchmark::DoNotOptimize(kernel.launch(on.tensors, on.stream.handle())); }) -
        raw.back());
    one_call.push_back(time_batch(on,
                                  [&] {
                                    benchmark::DoNotOptimize(
                                        on.service.layer_norm(kOnGpu, on.tensors, on.stream.handle()).ok());
                                  }) -
                       raw.back());
  }
  if (worst != CUDA_SUCCESS) state.SkipWithError("the driver refused a launch");
  state.counters["raw_ns"] = cli::timing_of(std::move(raw)).median;
  state.counters["prepared_adds_ns"] = cli::timing_of(std::move(prepared)).median;
  state.counters["one_call_adds_ns"] = cli::timing_of(std::move(one_call)).median;
}

}  // namespace
}  // namespace normjit::benchmarks

int main(int argc, char** argv) {
  using namespace normjit::benchmarks;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::unique_ptr<OnGpu> on;
  try {
    on = std::make_unique<OnGpu>();
    benchmark::RegisterBenchmark("gpu", [&](auto& state) { gpu_launch(state, *on); })->Iterations(300);
  } catch (const normjit::Exception& nothing) {
    std::fprintf(stderr, "Nothing is measured on a GPU: %s\n", nothing.what());
  }
  benchmark::RunSpecifiedBenchmarks();
}
