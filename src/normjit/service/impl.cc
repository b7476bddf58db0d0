// Finding a prepared kernel, or making one ready: plan, binary, load.
#include "normjit/service/impl.h"

#include <limits>

#include "normjit/base/text.h"
#include "normjit/service/default_compiler.h"
#include "normjit/service/embedded_pack.h"
#include "normjit/spec/valid.h"

namespace normjit {

namespace {
// Whether an error is the device's own: no other kernel would fare better, and the caller has to know.
bool is_of_device(Code code) {
  switch (code) {
    case Code::NoDriver:
    case Code::NoDevice:
    case Code::NoContext:
    case Code::DriverError:
    case Code::OutOfMemory:
    case Code::ForkedAfterCudaInit:
      return true;
    default:
      return false;
  }
}
}  // namespace

Service::Impl::Impl(Options given, Seams seams)
    : options(std::move(given)),
      meter(std::make_shared<Meter>(options.on_event)),
      driver(seams.driver ? seams.driver : make_cuda_driver()),
      compiler(seams.compiler ? seams.compiler : make_default_compiler(options, driver)),
      binaries(compiler,
               std::make_unique<Cache>(Cache::Settings{.directory = options.cache_directory,
                                                       .layers = options.layers,
                                                       .max_bytes = options.max_cache_bytes,
                                                       .shared = options.shared_cache,
                                                       .embedded = seams.embedded.value_or(embedded_pack())},
                                       seams.files ? seams.files : make_posix_file_system(),
                                       [this](std::string_view text) { log(LogLevel::warn, text); }),
               options.template_directory, options.exact_toolchain, meter),
      tuned(
          binaries.cache(), [this](std::string_view text) { log(LogLevel::warn, text); }, meter),
      miss_log_(options.miss_log, binaries.cache().files(),
                [this](std::string_view text) { log(LogLevel::warn, text); }) {
  for (const std::string& warning : options.warnings) log(LogLevel::warn, warning);
}

void Service::Impl::log(LogLevel level, std::string_view text) const {
  if (options.log) options.log(level, text);
}

Result<int> Service::Impl::device_or_current(int ordinal) {
  if (ordinal >= 0) return ordinal;
  return driver->current_device();
}

const Launcher* Service::Impl::ready_kernel(const NormSpec& given, const Tensors& tensors,
                                            Strides& strides) const noexcept {
  if (!is_valid(given) || tensors.rows == 0) return nullptr;
  const NormSpec spec = canonical(given);
  const TensorRules rules(spec);
  strides = rules.strides(tensors);
  if (!rules.check(tensors, strides)) return nullptr;
  const auto [device, profile] = driver->current();
  if (profile == nullptr) return nullptr;
  const Alignment alignment = rules.alignment(tensors, strides);
  const KernelTable::Record* found = by_use_.find(
      UseKey({spec, device, regime_of(tensors.rows, *profile), alignment, tensors.workspace != nullptr}));
  if (found == nullptr || !found->is_sound() || !found->launcher.admit(tensors, alignment)) return nullptr;
  return &found->launcher;
}

Result<void> Service::Impl::first_launch(const NormSpec& spec, const Tensors& tensors, Stream stream,
                                         const LaunchOptions& options) {
  const auto device = driver->current_device();
  if (!device) return device.error();
  const auto profile = driver->profile(*device);
  if (!profile) return profile.error();
  std::optional<Stream> unless_capturing;
  if (!options.miss_in_capture) unless_capturing = stream;
  const auto kernel = kernel_for(spec, *device, *profile, tensors.rows, tensors, unless_capturing);
  if (!kernel) return kernel.error();
  const auto status = launch(*kernel, tensors, stream, options);
  if (!status) return status.error();
  return after_launch(*status, spec, tensors, stream, options);
}

Result<void> Service::Impl::after_launch(Status status, const NormSpec& spec, const Tensors& tensors,
                                         Stream stream, const LaunchOptions& options) {
  if (status.code == Code::NotResident) {
    const auto kernel = fall_back(spec, tensors);
    if (!kernel) return kernel.error();
    const auto again = launch(*kernel, tensors, stream, options);
    if (!again) return again.error();
    status = *again;
  }
  if (status) return {};
  std::string message = concat({to_text(spec), ": ", status.message()});
  if (const int result = status.driver_result; result != 0) {
    message += concat({" ", driver->describe(result), "."});
    if (loses_context(result)) message += advice_on(result);
  }
  return Error{status.code, std::move(message)};
}

Result<Status> Service::Impl::launch(const Kernel& kernel, const Tensors& tensors, Stream stream,
                                     const LaunchOptions& options) {
  if (std::atomic<bool>& checked = kernel.prepared().pointers_checked;
      !checked.load(std::memory_order_relaxed)) {
    if (auto sound = kernel.check(tensors); !sound) return sound.error();
    checked.store(true, std::memory_order_relaxed);
  }
  return kernel.launch(tensors, stream, options);
}

Result<Kernel> Service::Impl::kernel_for(const NormSpec& spec, int device, const DeviceProfile& profile,
                                         std::int64_t rows, const Tensors& tensors,
                                         std::optional<Stream> unless_capturing) {
  const auto refuse = [&](Code code) {
    return Error{code, concat({to_text(spec), ": ", Status{code}.message()})};
  };
  if (const Status status = check_tensors(spec, tensors); !status) return refuse(status.code);
  const Use use = use_of(spec, device, profile, rows, tensors);
  if (use.alignment == Alignment{0}) return refuse(Code::Misaligned);
  const KernelTable::Record* found = by_use_.find(UseKey(use));
  const bool superseded =
      found && found->launcher.is_fallback && found->job && found->job->state == Job::State::done;
  if (found && !superseded) {
    if (!found->launcher.is_fallback) meter->hit();
    return found->kernel;
  }
  if (!found && unless_capturing && driver->is_capturing(*unless_capturing)) return refuse(Code::NotReady);
  return settle(use, profile);
}

Result<Kernel> Service::Impl::settle(const Use& use, const DeviceProfile& profile) {
  const UseKey key(use);
  const bool had_fallback = by_use_.find(key) != nullptr;
  const auto tell = [&](Event::Kind kind, const Kernel& kernel, std::string_view why) {
    const std::string spec = to_text(use.spec), plan = to_text(kernel.plan()), arch = profile.arch.name();
    meter->tell({kind, spec, plan, arch, 0, why});
  };
  auto own = own_kernel(use, profile, Asker::mode);
  if (own && own->kernel && had_fallback) {
    tell(Event::Kind::specialised, own->kernel, {});
    return by_use_.replace(key, own->kernel).kernel;
  }
  if (own && own->kernel) return by_use_.insert(key, own->kernel).kernel;
  if (!own && own.code() != Code::NoCompiler) return own.error();

  const auto generic = generic_kernel(use, profile);
  if (is_of_device(generic.code())) return generic.error();
  if (generic) {
    const Job* const job = own ? own->job : nullptr;
    const std::string why = own ? "its own kernel is being compiled" : own.error().message;
    if (!own) log(LogLevel::warn, concat({to_text(use.spec), " is served by the generic kernel: ", why}));
    tell(Event::Kind::substituted, *generic, why);
    return (had_fallback ? by_use_.replace(key, *generic, job) : by_use_.insert(key, *generic, job)).kernel;
  }
  if (!own) return own.error();
  own = own_kernel(use, profile, Asker::waiter);
  if (!own) return own.error();
  return by_use_.insert(key, own->kernel).kernel;
}

Result<Service::Impl::Made> Service::Impl::own_kernel(const Use& use, const DeviceProfile& profile,
                                                      Asker asker) {
  auto made = tuned_kernel(use, profile, asker);
  if (!made || made->kernel || made->job) return made;
  return chosen_kernel(use, profile, asker);
}

Result<Kernel> Service::Impl::generic_kernel(const Use& use, const DeviceProfile& profile) {
  const auto made = kernel_of(use.spec, generic_plan(), use.device, profile, Asker::looker);
  if (!made) return made.error();
  return made->kernel;
}

Use Service::Impl::use_of(const NormSpec& spec, int device, const DeviceProfile& profile, std::int64_t rows,
                          const Tensors& tensors) noexcept {
  return {spec, device, regime_of(rows, profile), alignment_of(spec, tensors), tensors.workspace != nullptr};
}

// The planner knows the architecture by one GPU of it. This device may be smaller, or a slice of such.
Result<Service::Impl::Made> Service::Impl::chosen_kernel(const Use& use, const DeviceProfile& profile,
                                                         Asker asker) {
  const Plan plan = choose(use.spec, profile, use.regime, use.alignment);
  auto kernel = kernel_of(use.spec, plan, use.device, profile, asker);
  const bool no_room = kernel.code() == Code::NotResident || kernel.code() == Code::IllegalPlan;
  if (plan.exchange == Exchange::none || !no_room) return kernel;
  return fallback_kernel(use, profile, kernel.error().message, asker);
}

Result<Service::Impl::Made> Service::Impl::fallback_kernel(const Use& use, const DeviceProfile& profile,
                                                           std::string_view why, Asker asker) {
  const Plan plan = fallback(use.spec, profile, use.regime, use.alignment);
  log(LogLevel::info, concat({"'", to_text(plan), "' is used instead: ", why}));
  return kernel_of(use.spec, plan, use.device, profile, asker);
}

Result<Kernel> Service::Impl::fall_back(const NormSpec& spec, const Tensors& tensors) {
  const auto device = driver->current_device();
  if (!device) return device.error();
  const auto profile = driver->profile(*device);
  if (!profile) return profile.error();
  const Use use = use_of(spec, *device, *profile, tensors.rows, tensors);
  const auto made = fallback_kernel(
      use, *profile, concat({to_text(spec), ": ", Status{Code::NotResident}.message()}), Asker::waiter);
  if (!made) return made.error();
  return by_use_.replace(UseKey(use), made->kernel).kernel;
}

Result<Service::Impl::Made> Service::Impl::tuned_kernel(const Use& use, const DeviceProfile& profile,
                                                        Asker asker) {
  const auto plan = tuned.find(use.spec, profile, use.regime, use.alignment);
  if (!plan || (!use.workspace && normjit::workspace_bytes(*plan, use.spec, profile) != 0)) return Made{};
  auto kernel = kernel_of(use.spec, *plan, use.device, profile, asker);
  if (kernel || is_of_device(kernel.code())) return kernel;
  log(LogLevel::warn, concat({"the tuned plan '", to_text(*plan), "' for ", to_text(use.spec),
                              " gives way to the planner's choice: ", kernel.error().message}));
  return Made{};
}

Result<Kernel> Service::Impl::pinned_kernel(const NormSpec& spec, const Plan& plan, int device,
                                            const DeviceProfile& profile) {
  const auto made = kernel_of(spec, plan, device, profile, Asker::waiter);
  if (!made) return made.error();
  return made->kernel;
}

Result<Service::Impl::Made> Service::Impl::kernel_of(const NormSpec& spec, const Plan& plan, int device,
                                                     const DeviceProfile& profile, Asker asker) {
  std::string key = concat({to_text(spec), " ", to_text(plan), " ", shortest(device)});
  if (asker == Asker::looker) key += " instead";
  const auto make = [&]() -> Result<Made> {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = by_plan_.find(key); found != by_plan_.end()) {
        if (asker != Asker::looker) meter->hit();
        return Made{found->second};
      }
    }
    auto made = make_ready(spec, plan, profile, device, asker);
    if (!made || !made->kernel) return made;
    const std::unique_lock lock(mutex_);
    return Made{by_plan_.try_emplace(key, made->kernel).first->second};
  };
  return flights_.run(asker == Asker::waiter ? key + " waits" : key, make);
}

Result<Service::Impl::Made> Service::Impl::make_ready(const NormSpec& spec, const Plan& plan,
                                                      const DeviceProfile& profile, int device, Asker asker) {
  if (auto legal = check(plan, spec, profile); !legal) return legal.error();
  auto kernel = std::make_shared<Kernel::Prepared>(spec, plan, profile, device, driver);
  const Job* job = nullptr;
  auto loaded = load(*kernel, kernel->origin, asker, job);
  if (job) return Made{{}, job};
  if (!loaded) return loaded.error();
  kernel->loaded = *std::move(loaded);
  kernel->meter = meter;
  kernel->launcher.loaded = kernel->loaded.get();
  kernel->launcher.is_fallback = asker == Asker::looker;
  if (auto room = check_room(*kernel); !room) return room.error();
  return Made{Kernel(std::move(kernel))};
}

// The profile says what a device has; only the driver knows what a process gets of it, and what the kernel
// really takes. Where it cannot be asked, for want of a current context, the first launch asks.
Result<void> Service::Impl::check_room(const Kernel::Prepared& kernel) {
  if (kernel.plan.exchange == Exchange::none) return {};
  const auto room = kernel.loaded->resident_blocks(kernel.launcher.shape);
  if (room.code() == Code::NoContext) return {};
  if (!room) return room.error();
  constexpr std::int64_t kManyRows = std::numeric_limits<std::int32_t>::max();
  const std::int64_t together = kernel.launcher.shape.cooperative
                                    ? grid_blocks(kernel.plan, kernel.spec, kernel.profile, kManyRows)
                                    : kernel.launcher.shape.cluster_blocks;
  if (*room >= together) return {};
  return Error{Code::NotResident,
               concat({"plan '", to_text(kernel.plan), "' for ", to_text(kernel.spec), " on device ",
                       shortest(kernel.device), ": ", shortest(together),
                       " blocks must run together, and the device, or the share of it that this process has, "
                       "has room for ",
                       shortest(*room),
                       "; use Service::layer_norm, which then takes another plan, or a split_row plan"})};
}

Result<std::shared_ptr<LoadedKernel>> Service::Impl::load(const Kernel::Prepared& kernel, Origin& origin,
                                                          Asker asker, const Job*& job) {
  const auto identified = binaries.identify(kernel.spec, kernel.plan, kernel.profile.arch);
  if (!identified) return identified.error();
  const auto on_miss = [&](const Identified& missing) { return missed(missing, asker); };
  auto binary = binaries.get(*identified, on_miss);
  if (binary.code() == Code::NotReady) job = background_.find(identified->identity);
  if (!binary) return binary.error();
  origin = binary->origin;
  log(origin == Origin::compiled ? LogLevel::info : LogLevel::debug,
      concat({identified->draft.description, " on ", kernel.profile.arch.name(), ": ", name(origin)}));
  const auto load = [&] {
    const Stopwatch watch;
    auto loaded = driver->load(binary->code, identified->draft.kernel, kernel.device, kernel.launcher.shape);
    if (loaded) {
      const std::string spec = to_text(kernel.spec), plan = to_text(kernel.plan);
      const std::string arch = identified->arch.name();
      meter->loaded({Event::Kind::loaded, spec, plan, arch, watch.milliseconds(), name(origin)});
    }
    return loaded;
  };
  auto loaded = load();
  if (loaded || loaded.code() != Code::LoadFailed || binary->origin == Origin::compiled) return loaded;
  // An entry that this driver refuses is a miss.
  log(LogLevel::warn,
      concat({"cache entry ", identified->id, " is compiled again: ", loaded.error().message}));
  binary = binaries.replace(*identified, binary->code, [&](const Identified& missing) {
    return missed(missing, asker == Asker::mode ? Asker::waiter : asker);
  });
  if (!binary) return binary.error();
  origin = binary->origin;
  return load();
}

Result<void> Service::Impl::missed(const Identified& kernel, Asker asker) {
  const std::string spec = to_text(kernel.spec), plan = to_text(kernel.plan), arch = kernel.arch.name();
  if (asker == Asker::looker)
    return Error{Code::NotCached, concat({"this library has no generic kernel for ", arch})};
  if (!background_.find(kernel.identity)) {  // else it has been counted
    meter->missed({Event::Kind::missed, spec, plan, arch, 0, {}});
    miss_log_.add(spec, arch);
  }
  const Frozen after_warm_up = frozen;
  if (options.mode == Mode::cached_only || after_warm_up == Frozen::error)
    return Error{Code::NotCached,
                 concat({"no cache has ", spec, " as ", plan, " for ", arch, ", and this service ",
                         options.mode == Mode::cached_only ? "works from caches only" : "is frozen",
                         ": prebuild it (normjit prebuild ", spec, " --arch ", arch, ")"})};
  if (after_warm_up == Frozen::warn)
    log(LogLevel::warn, concat({spec, " as ", plan, " for ", arch,
                                " is compiled after the service was frozen: no cache has it"}));
  if (options.mode != Mode::lazy || asker == Asker::waiter) return {};
  if (!background_.start(kernel.identity, [this, kernel] { return compile_in_background(kernel); }))
    return {};
  return Error{Code::NotReady, concat({spec, " is being compiled"})};
}

bool Service::Impl::compile_in_background(const Identified& kernel) {
  const auto made = binaries.make(kernel);
  if (!made)
    log(LogLevel::warn,
        concat({to_text(kernel.spec), " stays with the generic kernel: ", made.error().message}));
  return made.ok();
}

}  // namespace normjit
