// SPDX-License-Identifier: Apache-2.0
// One measured step of `normjit-bench startup`, in a process of its own, which prints JSON.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "bench/startup.h"
#include "cli/command_line.h"
#include "cli/gpu.h"
#include "cli/measure.h"
#include "normjit/base/stopwatch.h"
#include "normjit/compiler/nvrtc.h"
#include "normjit/compiler/target.h"
#include "normjit/service/binary_store.h"
#include "normjit/service/default_compiler.h"
#include "normjit/service/prepared.h"
#include "normjit/service/tuned_plans.h"

namespace normjit::bench {

using namespace cli;

namespace {

struct StartupStep : CommonOptions {
  std::string step;  // look, cuda, raw, first, parts or build
  std::string spec;  // of raw, first and parts
  std::int64_t rows = 0;
  std::string nvrtc;          // of raw: the library's file
  std::string layer;          // a pack to read; empty: none
  int kernels = 0, jobs = 0;  // of build
};

constexpr int kLaterCalls = 201;

class StandInKernel final : public LoadedKernel {
 public:
  int launch(std::uint32_t, const LaunchShape&, Stream, void**) const noexcept override { return 0; }
  Result<int> resident_blocks(const LaunchShape&) const override { return std::numeric_limits<int>::max(); }
};

// Replaces the driver on a machine without one, so that a first call can be timed all the same. It reports
// one GPU of this profile with a current context, loads any code at once and launches nothing. It reports no
// version, so no NVRTC is too new for it.
class StandInDriver final : public Driver {
 public:
  explicit StandInDriver(const DeviceProfile& profile) : profile_(profile) {}

  Result<int> version() override { return Error{Code::NoDriver, "there is no driver"}; }
  Result<int> device_count() override { return 1; }
  Result<int> current_device() override { return 0; }
  Current current() noexcept override { return {0, &profile_}; }
  Result<DeviceProfile> profile(int) override { return profile_; }
  Result<std::string> device_name(int) override { return std::string("none"); }
  Result<std::shared_ptr<LoadedKernel>> load(std::string_view, const std::string&, int,
                                             const LaunchShape&) override {
    return std::shared_ptr<LoadedKernel>(std::make_shared<StandInKernel>());
  }
  Result<Allocation> allocation(const void*) override {
    return Allocation{true, 0, std::numeric_limits<std::uint64_t>::max()};
  }
  int clear(void*, std::size_t, Stream) noexcept override { return 0; }
  std::string describe(int result) override { return "CUresult " + std::to_string(result); }

 private:
  const DeviceProfile profile_;
};

// The GPU with its context, or where there is none what stands in for it.
class Machine {
 public:
  Machine() {
    const Result<GpuCalls> calls = open_gpu_calls();
    int count = 0;
    if (!calls || calls->library.cuInit(0) != CUDA_SUCCESS ||
        calls->library.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
      return;
    gpu_.emplace(0);
  }
  const std::optional<Gpu>& gpu() const { return gpu_; }
  Seams seams() const {
    if (gpu_) return {};
    return {.compiler = {},
            .driver = std::make_shared<StandInDriver>(DeviceProfile::of(Arch{90}).value()),
            .files = {}};
  }

 private:
  std::optional<Gpu> gpu_;
};

Options settings_of(const StartupStep& step) {
  Options settings = Options::from_environment();
  settings.cache_directory = step.cache_directory.value_or("");
  settings.layers.clear();
  if (!step.layer.empty()) settings.layers.push_back(step.layer);
  settings.log = nullptr;
  return settings;
}

// Tensors of a launch: memory of the GPU, or addresses that nobody follows.
class Operands {
 public:
  Operands(const std::optional<Gpu>& gpu, const NormSpec& spec, std::int64_t rows) {
    const SetLayout layout = layout_of(spec, rows);
    if (gpu) memory_.emplace(*gpu, layout.bytes);
    auto* begin = gpu ? static_cast<std::byte*>(memory_->data()) : reinterpret_cast<std::byte*>(0x100000);
    tensors_ = tensors_of(spec, layout, rows, begin);
  }
  void add_workspace(const std::optional<Gpu>& gpu, std::size_t bytes) {
    if (bytes == 0) return;
    if (gpu) {
      workspace_.emplace(*gpu, bytes);
      workspace_->fill(0);
    }
    tensors_.workspace = gpu ? workspace_->data() : reinterpret_cast<void*>(0x1000);
  }
  const Tensors& tensors() const { return tensors_; }

 private:
  std::optional<DeviceBuffer> memory_, workspace_;
  Tensors tensors_;
};

// Finds out what the machine is; opens NVRTC to see which it is.
Json look(const StartupStep& step) {
  const Options settings = settings_of(step);
  const Environment environment = Service(settings).environment();
  if (environment.compiler_path.empty()) throw Exception({Code::NoCompiler, environment.compiler_error});
  Json json = {{"nvrtc", environment.compiler_path},
               {"compiler", "nvrtc " + environment.compiler_version + ", " + environment.compiler_path}};
  if (environment.devices.empty())
    return json.add("no_gpu", environment.driver_error)
        .add("device", "no GPU, as if there were " + DeviceProfile::of(Arch{90}).value().text());
  const Environment::Device& gpu = environment.devices[0];
  return json.add("no_gpu", nullptr).add("device", gpu.name + " (" + gpu.profile.text() + ")");
}

Json initialise_cuda() {
  const Stopwatch time;
  const Gpu gpu(0);
  return {{"cuda_ms", time.milliseconds()}};
}

// A compile as NVRTC's own samples do it.
double raw_compile(const Nvrtc& nvrtc, const std::string& text, const std::vector<std::string>& options) {
  std::vector<const char*> arguments;
  for (const std::string& option : options) arguments.push_back(option.c_str());
  const Stopwatch time;
  nvrtcProgram program = nullptr;
  const NvrtcTable& call = nvrtc.call;
  nvrtcResult result = call.create_program(&program, text.c_str(), "kernel.cu", 0, nullptr, nullptr);
  if (result == NVRTC_SUCCESS)
    result = call.compile_program(program, static_cast<int>(arguments.size()), arguments.data());
  std::size_t bytes = 0;
  if (result == NVRTC_SUCCESS) result = call.cubin_size(program, &bytes);
  std::string code(bytes, '\0');
  if (result == NVRTC_SUCCESS) result = call.cubin(program, code.data());
  call.destroy_program(&program);
  if (result != NVRTC_SUCCESS) throw Exception({Code::CompileFailed, call.error_string(result)});
  return time.milliseconds();
}

Json compile_raw(const StartupStep& step) {
  const Machine machine;
  const NormSpec spec = parse_spec(step.spec).value();
  Service service(settings_of(step), machine.seams());
  const DeviceProfile device = service.device(0).value();
  const RenderedKernel kernel =
      service.render(spec, device, regime_of(spec, step.rows, device), contiguous_alignment(spec)).value();

  const Stopwatch opening;
  const Nvrtc nvrtc = open_nvrtc(step.nvrtc, /*only_if_loaded=*/false).value();
  const double open = opening.milliseconds();
  const auto target = choose_target(target_of(kernel.plan, spec, device.arch), nvrtc.archs);
  if (!target || target->ptx)
    throw Exception({Code::UnknownArch, nvrtc.path + " makes no cubin for " + device.arch.name()});
  const auto options = compile_options(target->name(), nvrtc.major, nvrtc.minor);
  const std::string empty = "extern \"C\" __global__ void empty() {}";
  const double first = raw_compile(nvrtc, empty, options), second = raw_compile(nvrtc, empty, options);
  return {{"load_ms", open + std::max(0.0, first - second)},
          {"compile_ms", raw_compile(nvrtc, kernel.text, options)}};
}

Json call_first(const StartupStep& step) {
  const Machine machine;
  const NormSpec spec = parse_spec(step.spec).value();
  Operands operands(machine.gpu(), spec, step.rows);
  const Seams seams = machine.seams();

  const Stopwatch preparing;
  Service service(settings_of(step), seams);
  const Kernel kernel = service.prepare(spec, {.rows_hint = step.rows}).value();
  double first = preparing.milliseconds();
  operands.add_workspace(machine.gpu(), kernel.workspace_bytes());  // only now its size is known
  const Stopwatch launching;
  const Status status = kernel.launch(operands.tensors(), nullptr);
  first += launching.milliseconds();
  if (!status) throw Exception({status.code, status.message()});

  std::vector<double> later;
  for (int i = 0; i < kLaterCalls; ++i) {
    const Stopwatch time;
    service.layer_norm(spec, operands.tensors(), nullptr).value();
    if (i > 0) later.push_back(time.microseconds());  // the first one looks at the pointers
    if (machine.gpu())
      machine.gpu()->check(machine.gpu()->calls().stream_synchronize(nullptr), "synchronising");
  }
  return {{"first_ms", first},
          {"later_us", timing_of(std::move(later)).median},
          {"origin", name(kernel.origin())},
          {"plan", to_text(kernel.plan())}};
}

// What a first call does for a kernel that is on disk, one after the other.
Json take_apart(const StartupStep& step) {
  const Machine machine;
  const NormSpec spec = canonical(parse_spec(step.spec).value());
  const Options settings = settings_of(step);
  const std::shared_ptr<Driver> stand_in = machine.seams().driver;
  const std::shared_ptr<Driver> driver = stand_in ? stand_in : make_cuda_driver();
  const DeviceProfile device = driver->profile(0).value();
  const RowsRegime regime = regime_of(spec, step.rows, device);
  const Alignment alignment = contiguous_alignment(spec);
  Json json;
  Stopwatch time;
  const auto done = [&](const char* what) {
    json.add(what, time.microseconds());
    time = Stopwatch();
  };
  BinaryStore binaries(make_default_compiler(settings, driver),
                       std::make_unique<Cache>(Cache::Settings{.directory = settings.cache_directory},
                                               make_posix_file_system(), [](std::string_view) {}),
                       /*remote=*/nullptr, settings.template_directory, /*exact_toolchain=*/false,
                       std::make_shared<Meter>(nullptr));
  TunedPlans tuned(binaries.cache(), {});
  done("service_us");
  const std::optional<Plan> kept = tuned.find(spec, device, regime, alignment);
  done("tuned_us");
  const Plan plan = kept ? *kept : choose(spec, device, regime, alignment);
  done("choose_us");
  const Identified kernel = binaries.identify(spec, plan, device.arch).value();
  done("render_us");
  const StoredBinary binary = binaries.get(kernel).value();
  done("read_us");
  const auto loaded = driver->load(binary.code, kernel.draft.kernel, 0, launch_shape(plan, spec)).value();
  done("load_us");
  return json;
}

Json build(const StartupStep& step) {
  const Machine machine;
  Service service(settings_of(step), machine.seams());
  const DeviceProfile device = service.device(0).value();
  const std::vector<NormSpec> specs = startup_specs(device, step.kernels);
  const PrebuildReport report =
      service.prebuild(specs, {&device, 1}, {.jobs = step.jobs, .progress = {}}).value();
  if (report.compiled != report.requested)
    throw Exception({Code::CompileFailed, "only " + std::to_string(report.compiled) + " of " +
                                              std::to_string(report.requested) + " kernels were compiled"});
  double sum = 0;
  std::set<Strategy> strategies;
  for (const KernelReport& kernel : report.results) {
    sum += kernel.milliseconds / 1000;
    strategies.insert(kernel.plan.strategy);
  }
  return {{"kernels", report.requested},
          {"specs", specs.size()},
          {"strategies", strategies.size()},
          {"cores", std::max(1u, std::thread::hardware_concurrency())},
          {"sum_s", sum},
          {"wall_s", report.seconds}};
}

Json measured(const StartupStep& step) {
  if (step.step == "look") return look(step);
  if (step.step == "cuda") return initialise_cuda();
  if (step.step == "raw") return compile_raw(step);
  if (step.step == "first") return call_first(step);
  if (step.step == "parts") return take_apart(step);
  if (step.step == "build") return build(step);
  throw Exception({Code::BadArgument, "there is no step '" + step.step + "'"});
}

int startup_step(const StartupStep& step) {
  print(measured(step).text());
  return kDone;
}

}  // namespace

void add_startup_step(CommandLine& line) {
  auto [command, options] =
      line.add("startup-step", "One step of startup, in a process of its own", startup_step);
  command->group("");  // not in the help: only startup runs it
  command->add_option("STEP", options.step)->required();
  command->add_option("--spec", options.spec);
  command->add_option("--rows", options.rows);
  command->add_option("--nvrtc", options.nvrtc);
  command->add_option("--layer", options.layer);
  command->add_option("--kernels", options.kernels);
  command->add_option("--jobs", options.jobs);
}

}  // namespace normjit::bench
