// Filling and reading the cache without a GPU.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "normjit/base/run_on_threads.h"
#include "normjit/base/text.h"
#include "normjit/service/impl.h"

namespace normjit {
namespace {

using Outcome = KernelReport::Outcome;
using Clock = std::chrono::steady_clock;

// Each kernel that the specs can ask for on the devices, once. Tuned plans count for the whole architecture:
// its named profile stands for GPUs of other sizes, which find their own tuned plans in the same directory.
std::vector<KernelReport> wanted(std::span<const LayerNormSpec> specs, std::span<const DeviceProfile> devices,
                                 std::span<const TunedPlan> tuned) {
  std::vector<KernelReport> all;
  std::set<std::string> seen;
  const auto want = [&](const LayerNormSpec& spec, Arch arch, const Plan& plan) {
    if (!seen.insert(concat({to_text(spec), " ", arch.name(), " ", to_text(plan)})).second) return;
    KernelReport report;
    report.spec = spec;
    report.arch = arch;
    report.plan = plan;
    all.push_back(std::move(report));
  };
  for (const LayerNormSpec& given : specs) {
    const LayerNormSpec spec = canonical(given);
    for (const DeviceProfile& device : devices) {
      for (const Plan& plan : plans(spec, device)) want(spec, device.arch, plan);
      for (const TunedPlan& kept : tuned)
        if (kept.spec == spec && kept.device.arch == device.arch) want(spec, device.arch, kept.plan);
    }
  }
  return all;
}

void build(BinaryStore& binaries, bool dry_run, KernelReport& report) {
  const auto start = Clock::now();
  const auto kernel = binaries.identify(report.spec, report.plan, report.arch);
  if (!kernel) {
    report.error = kernel.error().message;
    return;
  }
  report.id = kernel->id;
  if (dry_run) {
    report.outcome = binaries.has(*kernel) ? Outcome::cached : Outcome::missing;
  } else if (const auto binary = binaries.get(*kernel)) {
    report.outcome = binary->origin == Origin::compiled ? Outcome::compiled : Outcome::cached;
    report.unstored = !binary->stored;
  } else {
    report.error = binary.error().message;
  }
  report.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void count(const KernelReport& kernel, PrebuildReport& report) {
  report.cached += kernel.outcome == Outcome::cached;
  report.compiled += kernel.outcome == Outcome::compiled;
  report.failed += kernel.outcome == Outcome::failed;
  report.missing += kernel.outcome == Outcome::missing;
  report.unstored += kernel.unstored;
}

}  // namespace

std::string_view name(KernelReport::Outcome outcome) noexcept {
  constexpr std::string_view kNames[] = {"cached", "compiled", "failed", "missing"};
  return kNames[static_cast<int>(outcome)];
}

Result<PrebuildReport> Service::prebuild(std::span<const LayerNormSpec> specs,
                                         std::span<const DeviceProfile> devices,
                                         const PrebuildOptions& options) {
  if (specs.empty() || devices.empty())
    return Error{Code::BadArgument, concat({"nothing to prebuild: ", shortest(specs.size()), " specs for ",
                                            shortest(devices.size()), " devices"})};
  if (options.jobs < 0)
    return Error{Code::BadArgument, concat({"jobs is ", shortest(options.jobs), "; 0 means one per core"})};
  for (const LayerNormSpec& spec : specs)
    if (auto valid = validate(spec); !valid) return valid.error();

  const auto start = Clock::now();
  PrebuildReport report;
  report.results = wanted(specs, devices, impl_->tuned.list());
  report.requested = static_cast<int>(report.results.size());

  std::atomic<int> next = 0;
  std::mutex mutex;  // guards the counts and the caller's progress
  int done = 0;
  const auto work = [&] {
    for (int i; (i = next.fetch_add(1)) < report.requested;) {
      KernelReport& kernel = report.results[static_cast<std::size_t>(i)];
      build(impl_->binaries, options.dry_run, kernel);
      const std::lock_guard lock(mutex);
      count(kernel, report);
      if (options.progress) options.progress(kernel, ++done, report.requested);
    }
  };
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int jobs = std::min(options.jobs > 0 ? options.jobs : cores, report.requested);
  run_on_threads(jobs, work);
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

Result<std::vector<EntryReport>> Service::entries() const {
  auto listed = impl_->binaries.cache().list();
  if (!listed) return listed.error();
  std::vector<EntryReport> reports;
  for (const Cache::Listed& file : *listed) {
    EntryReport report;
    report.id = file.id;
    report.bytes = file.bytes;
    if (!file.entry) {
      report.damaged = true;
      report.error = file.entry.error().message;
    } else {
      const auto fact = [&](std::string_view key) -> std::string {
        for (const auto& [name, value] : file.entry->facts)
          if (name == key) return value;
        return "";
      };
      const auto count = [&](std::string_view key) { return number<int>(fact(key)).value_or(-1); };
      report.spec = fact("spec");
      report.plan = fact("plan");
      report.arch = fact("arch");
      report.kernel = fact("kernel");
      report.toolchain = fact("toolchain");
      report.code = fact("code");
      report.device = fact("device");
      report.regime = fact("regime");
      report.alignment = fact("alignment");
      report.registers = count("registers");
      report.spill_bytes = count("spill_bytes");
      report.shared_bytes = count("shared_bytes");
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace normjit
