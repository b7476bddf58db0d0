// Filling the cache without a GPU.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "normjit/base/run_on_threads.h"
#include "normjit/base/text.h"
#include "normjit/service/impl.h"
#include "normjit/service/wanted.h"

namespace normjit {
namespace {

using Outcome = KernelReport::Outcome;
using Clock = std::chrono::steady_clock;

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

}  // namespace normjit
