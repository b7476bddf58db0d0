// SPDX-License-Identifier: Apache-2.0
// Finding a kernel in memory, or making one ready: the attempts of a use, a kernel, its code, its load.
#include "normjit/service/impl.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "normjit/base/embedded_file.h"
#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"
#include "normjit/remote/signed_pack.h"
#include "normjit/service/default_compiler.h"
#include "normjit/spec/valid.h"

namespace normjit {
namespace {

// Whether an error is the device's own, so that no other plan helps.
bool is_of_device(Code code) {
  constexpr Code kCodes[] = {Code::NoDriver,    Code::NoDevice,    Code::NoContext,
                             Code::DriverError, Code::OutOfMemory, Code::ForkedAfterCudaInit};
  return std::ranges::find(kCodes, code) != std::end(kCodes);
}

// Why a plan is tried.
enum class Because {
  tuned,     // it was measured to be the fastest for the use
  chosen,    // the planner chooses it
  unshared,  // the device has no room for blocks that share rows, and its blocks share none
  generic,   // its kernel is part of the library
};
struct Attempt {
  Plan plan;
  Because because;
};

// The plans that may serve a use, in the order in which they are tried. The planner knows an architecture by
// one GPU of it: this device may be smaller, or a slice of one.
std::vector<Attempt> attempts(const Use& use, const DeviceProfile& profile, TunedPlans& tuned) {
  std::vector<Attempt> all;
  const auto needs_workspace = [&](const Plan& plan) {
    return workspace_bytes(in_groups(plan, use.spec, use.grouped_rows), use.spec, profile) != 0;
  };
  const auto kept =
      use.batch_invariant ? std::nullopt : tuned.find(use.spec, profile, use.regime, use.alignment);
  if (kept && (use.workspace || !needs_workspace(*kept))) all.push_back({*kept, Because::tuned});
  const Plan chosen = choose(use.spec, profile, use.regime, use.alignment, use.batch_invariant);
  all.push_back({chosen, Because::chosen});
  if (chosen.exchange != Exchange::none)
    all.push_back(
        {fallback(use.spec, profile, use.regime, use.alignment, use.batch_invariant), Because::unshared});
  // Without a workspace what needs none is waited for.
  if (use.workspace || !needs_workspace(generic_plan()) || needs_workspace(chosen))
    all.push_back({generic_plan(), Because::generic});
  for (Attempt& attempt : all) attempt.plan = in_groups(attempt.plan, use.spec, use.grouped_rows);
  return all;
}

// Sums over rows so long keep a few blocks of the generic kernel busy: the spec's own is compiled sooner.
bool is_slow_meanwhile(const NormSpec& spec) {
  constexpr std::int64_t kMostColumns = 1 << 16;
  return spec.columns > kMostColumns && all_sums(spec) > 0;
}

// Whether an attempt is made after this outcome of the one before. Ok: there was none. A generic kernel that
// serves for a while has other bits than the one after it.
bool follows(Because because, Code outcome, const Use& use) {
  if (because == Because::chosen) return outcome != Code::NotReady;
  if (because == Because::unshared) return outcome == Code::NotResident || outcome == Code::IllegalPlan;
  if (because == Because::generic)
    return outcome == Code::NoCompiler ||
           (outcome == Code::NotReady && !use.batch_invariant && !is_slow_meanwhile(use.spec));
  return true;
}

// For the log: an attempt succeeded after the one before it did not.
std::string instead(const NormSpec& spec, const Attempt& attempt, std::string_view why) {
  constexpr std::string_view kNames[] = {"the tuned plan", "the planner's choice",
                                         "a plan whose blocks share no rows", "the generic kernel"};
  return concat({to_text(spec), ": ", kNames[static_cast<int>(attempt.because)], ", '", to_text(attempt.plan),
                 "', is used instead: ", why});
}

// The store that machines share; null: none.
std::unique_ptr<Remote> remote_of(const Options& options, std::shared_ptr<FileSystem> files, Warn warn) {
  if (options.remote.empty() && !options.remote_store) return nullptr;
  return std::make_unique<Remote>(Remote::Settings{.url = options.remote,
                                                   .store = options.remote_store,
                                                   .trust = options.trust,
                                                   .sign_key = options.sign_key,
                                                   .unsigned_values = options.remote_unsigned,
                                                   .directory = options.cache_directory,
                                                   .shared = options.shared_cache},
                                  std::move(files), std::move(warn));
}

// The pack of a URL; null: none.
std::unique_ptr<RemotePack> remote_pack_of(const Options& options, std::shared_ptr<FileSystem> files,
                                           Warn warn) {
  if (options.remote_pack.empty()) return nullptr;
  return std::make_unique<RemotePack>(RemotePack::Settings{.url = options.remote_pack,
                                                           .trust = options.trust,
                                                           .unsigned_values = options.remote_unsigned,
                                                           .directory = options.cache_directory,
                                                           .shared = options.shared_cache},
                                      std::move(files), std::move(warn));
}

}  // namespace

Service::Impl::Impl(Options given, Seams seams)
    : Impl(std::move(given), seams, seams.files ? seams.files : make_posix_file_system()) {}

Service::Impl::Impl(Options given, const Seams& seams, const std::shared_ptr<FileSystem>& files)
    : options(std::move(given)),
      meter(std::make_shared<Meter>(options.on_event)),
      driver(seams.driver ? seams.driver : make_cuda_driver()),
      compiler(seams.compiler ? seams.compiler : make_default_compiler(options, driver)),
      binaries(compiler,
               std::make_unique<Cache>(
                   Cache::Settings{.directory = options.cache_directory,
                                   .layers = options.layers,
                                   .max_bytes = options.max_cache_bytes,
                                   .shared = options.shared_cache,
                                   .believes = signed_by(options.trust, files, options.shared_cache),
                                   .embedded = seams.embedded.value_or(embedded_pack())},
                   files, warner()),
               remote_of(options, files, warner()), options.template_directory, options.exact_toolchain,
               meter, remote_pack_of(options, files, warner())),
      tuned(binaries.cache(), warner(), meter),
      miss_log_(options.miss_log, files, warner()) {
  for (const std::string& warning : options.warnings) log(LogLevel::warn, warning);
}

Warn Service::Impl::warner() const {
  return [this](std::string_view text) { log(LogLevel::warn, text); };
}

void Service::Impl::log(LogLevel level, std::string_view text) const {
  if (options.log) options.log(level, text);
}

Result<Service::Impl::Device> Service::Impl::device(int ordinal) {
  const auto found = ordinal >= 0 ? Result<int>(ordinal) : driver->current_device();
  if (!found) return found.error();
  const auto profile = driver->profile(*found);
  if (!profile) return profile.error();
  return Device{*found, *profile};
}

const Launcher* Service::Impl::ready_kernel(const NormSpec& given, const Tensors& tensors,
                                            PackedTensors& packed) const noexcept {
  if (!is_valid(given) || tensors.rows == 0) return nullptr;
  const NormSpec spec = canonical_now(given);
  TensorRules(spec).pack(tensors, packed);
  if (!packed.status) return nullptr;
  const auto [device, profile] = driver->current();
  if (profile == nullptr) return nullptr;
  const bool invariant = options.batch_invariant;
  const KernelTable::Record* found = by_use_.find(
      UseKey({spec, device, Use::regime_for(spec, tensors.rows, *profile, invariant), packed.alignment,
              packed.has_workspace(), needs_grouped_rows(spec, packed.layout.grouped), invariant}));
  if (found == nullptr || !found->is_sound() || !found->launcher.admit(packed)) return nullptr;
  return &found->launcher;
}

Result<Service::Impl::Asked> Service::Impl::use_of(const NormSpec& spec, const Tensors& tensors) {
  const auto current = device();
  if (!current) return current.error();
  const auto& [device, profile] = *current;
  const PackedTensors packed = pack(spec, tensors);
  if (!packed.status)
    return Error{packed.status.code, concat({to_text(spec), ": ", packed.status.message()})};
  const bool invariant = options.batch_invariant;
  return Asked{{spec, device, Use::regime_for(spec, tensors.rows, profile, invariant), packed.alignment,
                packed.has_workspace(), needs_grouped_rows(spec, packed.layout.grouped), invariant},
               profile};
}

Result<void> Service::Impl::first_launch(const NormSpec& spec, const Tensors& tensors, Stream stream,
                                         const LaunchOptions& options) {
  const auto asked = use_of(spec, tensors);
  if (!asked) return asked.error();
  std::optional<Stream> unless_capturing;
  if (!options.miss_in_capture) unless_capturing = stream;
  const auto kernel = kernel_for(asked->use, asked->profile, unless_capturing);
  if (!kernel) return kernel.error();
  const auto status = launch(*kernel, tensors, stream, options);
  if (!status) return status.error();
  return after_launch(*status, spec, tensors, stream, options);
}

Result<void> Service::Impl::after_launch(Status status, const NormSpec& spec, const Tensors& tensors,
                                         Stream stream, const LaunchOptions& options) {
  if (status.code == Code::NotResident) {
    const auto kernel = unshared_kernel(spec, tensors);
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

Result<Kernel> Service::Impl::unshared_kernel(const NormSpec& spec, const Tensors& tensors) {
  const auto asked = use_of(spec, tensors);
  if (!asked) return asked.error();
  const auto& [use, profile] = *asked;
  const Plan plan = in_groups(fallback(spec, profile, use.regime, use.alignment, use.batch_invariant), spec,
                              use.grouped_rows);
  const auto made = kernel_of(spec, plan, use.device, profile, {});
  if (!made) return made.error();
  log(LogLevel::info, instead(spec, {plan, Because::unshared}, Status{Code::NotResident}.message()));
  return by_use_.replace(UseKey(use), made->kernel).kernel;
}

Result<Kernel> Service::Impl::kernel_for(const Use& use, const DeviceProfile& profile,
                                         std::optional<Stream> unless_capturing) {
  const UseKey key(use);
  const KernelTable::Record* const found = by_use_.find(key);
  const bool superseded =
      found && found->launcher.is_fallback && found->job && found->job->state == Job::State::done;
  if (found && !superseded) {
    if (!found->launcher.is_fallback) meter->hit();
    return found->kernel;
  }
  const std::string spec = to_text(use.spec), arch = profile.arch.name();
  const std::vector<Attempt> all = attempts(use, profile, tuned);
  if (!found && unless_capturing && driver->is_capturing(*unless_capturing)) {
    // Launches of another regime may have made it ready. What else may serve is for a launch to find out.
    if (const auto kernel = in_memory({spec, to_text(all.front().plan), use.device, false})) {
      meter->hit();
      return by_use_.insert(key, *kernel).kernel;
    }
    return Error{Code::NotReady, concat({spec, ": ", Status{Code::NotReady}.message()})};
  }
  Demand demand{.may_wait = options.mode != Mode::lazy};
  Error outcome;
  do {
    outcome = {};  // of the last attempt, the generic one aside
    const Job* job = nullptr;
    for (const auto& [plan, because] : all) {
      if (!follows(because, outcome.code, use)) continue;
      const bool is_fallback = because == Because::generic;
      const auto made =
          kernel_of(use.spec, plan, use.device, profile, is_fallback ? Demand{.may_compile = false} : demand);
      if (made && made->kernel) {
        const std::string text = to_text(plan);
        if (is_fallback)
          meter->tell({Event::Kind::substituted, spec, text, arch, 0, outcome.message});
        else if (found)
          meter->tell({Event::Kind::specialised, spec, text, arch, 0, {}});
        if (outcome.code != Code::Ok && outcome.code != Code::NotReady)
          log(because == Because::unshared ? LogLevel::info : LogLevel::warn,
              instead(use.spec, {plan, because}, outcome.message));
        return (found ? by_use_.replace(key, made->kernel, job) : by_use_.insert(key, made->kernel, job))
            .kernel;
      }
      if (is_of_device(made.code())) return made.error();
      if (is_fallback) break;
      job = made ? made->job : nullptr;
      outcome = made ? Error{Code::NotReady, "its own kernel is being compiled"} : made.error();
    }
    // Nothing serves while the kernel is compiled in the background: once more, and wait for it.
  } while (outcome.code == Code::NotReady && !std::exchange(demand.may_wait, true));
  return outcome;
}

Result<std::size_t> Service::Impl::workspace_bytes(const NormSpec& spec) {
  const auto found = device();
  if (!found) return found.error();
  const UseKey key({.spec = spec, .device = found->ordinal});
  {
    const std::shared_lock lock(mutex_);
    if (const auto known = workspaces_.find(key); known != workspaces_.end()) return known->second;
  }
  const DeviceProfile& profile = found->profile;
  std::size_t most = normjit::workspace_bytes(generic_plan(), spec, profile);
  Result<void> legal;  // unless check() refuses all, as it then does every launch
  const std::vector<Plan> all = plans(spec, profile);
  for (const Plan& plan : all) {
    legal = check(plan, spec, profile);
    if (legal) break;
  }
  if (!legal) return legal.error();
  for (const Plan& plan : all)  // of rows in groups, which need no less
    most = std::max(most, normjit::workspace_bytes(in_groups(plan, spec, true), spec, profile));
  for (const RowsRegime regime : kRowsRegimes)
    for (const Alignment alignment : kAlignments)
      if (const auto plan = tuned.find(spec, profile, regime, alignment))
        most = std::max(most, normjit::workspace_bytes(in_groups(*plan, spec, true), spec, profile));
  const std::unique_lock lock(mutex_);
  return workspaces_.try_emplace(key, most).first->second;
}

std::optional<Kernel> Service::Impl::in_memory(const Key& key) {
  const std::shared_lock lock(mutex_);
  const auto found = by_plan_.find(key);
  if (found == by_plan_.end()) return {};
  return found->second;
}

Result<Made> Service::Impl::kernel_of(const NormSpec& spec, const Plan& plan, int device,
                                      const DeviceProfile& profile, Demand demand) {
  const Key key{to_text(spec), to_text(plan), device, !demand.may_compile};
  return flights_.run({key, demand.may_wait}, [&]() -> Result<Made> {
    if (const auto found = in_memory(key)) {
      if (!key.is_fallback) meter->hit();
      return Made{*found};
    }
    auto made = make_ready(spec, plan, device, profile, demand);
    if (!made || !made->kernel) return made;
    const std::unique_lock lock(mutex_);
    return Made{by_plan_.try_emplace(key, made->kernel).first->second};
  });
}

Result<Made> Service::Impl::make_ready(const NormSpec& spec, const Plan& plan, int device,
                                       const DeviceProfile& profile, Demand demand) {
  if (auto legal = check(plan, spec, profile); !legal) return legal.error();
  const auto identified = binaries.identify(spec, plan, profile.arch);
  if (!identified) return identified.error();
  auto kernel = std::make_shared<Kernel::Prepared>(spec, plan, profile, device, driver);
  std::optional<std::string> refused;  // code that the driver did not load
  while (!kernel->loaded) {
    auto binary = binaries.find(*identified, refused);
    if (!binary) {
      auto elsewhere = missed(*identified, demand, refused.has_value());
      if (!elsewhere) return elsewhere.error();
      if (elsewhere->job) return Made{{}, elsewhere->job};
      auto made = elsewhere->binary ? *std::move(elsewhere->binary) : make(*identified, refused);
      if (!made) return made.error();
      binary = *std::move(made);
    }
    kernel->origin = binary->origin;
    log(binary->origin == Origin::compiled ? LogLevel::info : LogLevel::debug,
        concat({identified->draft.description, " on ", profile.arch.name(), ": ", name(binary->origin)}));
    const std::string of = to_text(spec), by = to_text(plan), arch = identified->arch.name();
    meter->begin({Event::Kind::loading, of, by, arch, 0, name(binary->origin)});
    const Stopwatch watch;
    auto loaded = driver->load(binary->code, identified->draft.kernel, device, kernel->launcher.shape);
    const double milliseconds = watch.milliseconds();
    if (loaded)
      meter->loaded({Event::Kind::loaded, of, by, arch, milliseconds, name(binary->origin)});
    else
      meter->end({Event::Kind::load_failed, of, by, arch, milliseconds, loaded.error().message});
    if (loaded) {
      kernel->loaded = *std::move(loaded);
    } else if (loaded.code() != Code::LoadFailed || binary->origin == Origin::compiled || refused) {
      return loaded.error();
    } else {  // an entry that this driver refuses is a miss
      log(LogLevel::warn,
          concat({"cache entry ", identified->id, " is compiled again: ", loaded.error().message}));
      refused = std::move(binary->code);
      demand.may_wait = true;
    }
  }
  kernel->meter = meter;
  kernel->launcher.loaded = kernel->loaded.get();
  kernel->launcher.is_fallback = !demand.may_compile;
  if (auto room = find_room(*kernel); !room) return room.error();
  return Made{Kernel(std::move(kernel))};
}

// The profile says what a device has. Only the driver knows this process's share of it, and what the kernel
// needs. Without a current context the driver cannot be asked, and the first launch finds out.
Result<void> Service::Impl::find_room(Kernel::Prepared& kernel) {
  if (kernel.plan.exchange == Exchange::none) return {};
  const auto room = kernel.loaded->resident_blocks(kernel.launcher.shape);
  if (room.code() == Code::NoContext) return {};
  if (!room) return room.error();
  // Gradients have a part of the sums for each block, or cluster, and go with fewer of them.
  if (is_of_gradients(kernel.plan) && *room >= kernel.plan.blocks_per_row) {
    kernel.launcher.grid.limit(*room - *room % kernel.plan.blocks_per_row);
    return {};
  }
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
                       "; use Service::norm, which then takes another plan, or a plan without an exchange"})};
}

Result<StoredBinary> Service::Impl::make(const Identified& kernel,
                                         const std::optional<std::string>& refused) {
  return binaries.make(kernel, {.refused = refused, .before_compile = [&] {
                                  miss_log_.add(to_text(kernel.spec), kernel.arch.name());
                                }});
}

Result<Service::Impl::Missed> Service::Impl::missed(const Identified& kernel, Demand demand, bool refused) {
  const std::string spec = to_text(kernel.spec), plan = to_text(kernel.plan), arch = kernel.arch.name();
  if (!demand.may_compile)
    return Error{Code::NotCached, concat({"this library has no generic kernel for ", arch})};
  if (!background_.find(kernel.identity))  // else it has been counted
    meter->missed({Event::Kind::missed, spec, plan, arch, 0, {}});
  const Frozen after_warm_up = frozen;
  if (options.mode == Mode::cached_only || after_warm_up == Frozen::error) {
    if (after_warm_up != Frozen::error && !refused)
      if (auto binary = binaries.fetch(kernel)) return Missed{.binary = std::move(binary)};
    miss_log_.add(spec, arch);
    return Error{Code::NotCached,
                 concat({"no cache has ", spec, " as ", plan, " for ", arch, ", and this service ",
                         options.mode == Mode::cached_only ? "works from caches only" : "is frozen",
                         ": prebuild it (normjit prebuild ", spec, " --arch ", arch, ")"})};
  }
  if (after_warm_up == Frozen::warn)
    log(LogLevel::warn, concat({spec, " as ", plan, " for ", arch,
                                " is compiled after the service was frozen: no cache has it"}));
  if (demand.may_wait) return Missed{};
  return Missed{.job = background_.start(kernel.identity, [this, kernel] {
    const auto made = make(kernel);
    if (!made)
      log(LogLevel::warn,
          concat({to_text(kernel.spec), " was not compiled in the background: ", made.error().message}));
    return made.ok();
  })};
}

}  // namespace normjit
