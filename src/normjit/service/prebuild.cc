// SPDX-License-Identifier: Apache-2.0
// Fills the cache without a GPU.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "normjit/base/run_on_threads.h"
#include "normjit/base/stopwatch.h"
#include "normjit/base/text.h"
#include "normjit/service/impl.h"

namespace normjit {
namespace {

using Outcome = KernelReport::Outcome;

void build(BinaryStore& binaries, bool dry_run, KernelReport& report) {
  const Stopwatch time;
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
  report.milliseconds = time.milliseconds();
}

// Estimates how long a kernel takes to compile, in milliseconds. Fitted to NVRTC 13.0 for sm_90 with 200
// kernels of the suite; correlation 0.93.
int compile_milliseconds(const Plan& plan) {
  constexpr int kBase[] = {60, 100, 65, 240, 120};  // by strategy
  const auto strategy = static_cast<std::size_t>(plan.strategy);
  const int base = strategy < std::size(kBase) ? kBase[strategy] : 0;
  return base + plan.vector * plan.per_thread * (plan.unaligned ? 6 : 2);
}

// The indices of the kernels, the longest compiles first: else one core may start a long compile when the
// others are done. 200 kernels keep 0.97 of 16 cores busy, instead of 0.93 in the order of the report; of 32
// cores 0.95 instead of 0.82.
std::vector<std::size_t> longest_first(const std::vector<KernelReport>& kernels) {
  std::vector<std::size_t> order(kernels.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return compile_milliseconds(kernels[a].plan) > compile_milliseconds(kernels[b].plan);
  });
  return order;
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

Result<PrebuildReport> Service::prebuild(std::span<const NormSpec> specs,
                                         std::span<const DeviceProfile> devices,
                                         const PrebuildOptions& options) {
  if (specs.empty() || devices.empty())
    return Error{Code::BadArgument, concat({"nothing to prebuild: ", shortest(specs.size()), " specs for ",
                                            shortest(devices.size()), " devices"})};
  if (options.jobs < 0)
    return Error{Code::BadArgument, concat({"jobs is ", shortest(options.jobs), "; 0 means one per core"})};
  for (const NormSpec& spec : specs)
    if (auto valid = validate(spec); !valid) return valid.error();

  const Stopwatch time;
  PrebuildReport report;
  const Uses uses = uses_in(options.uses, impl_->options.batch_invariant);
  report.results = kernels_for(specs, devices, impl_->tuned.list(), uses);
  report.requested = static_cast<int>(report.results.size());

  const std::vector<std::size_t> order = longest_first(report.results);
  std::atomic<int> next = 0;
  std::mutex mutex;  // guards the counts and the caller's progress
  int done = 0;
  const auto work = [&] {
    for (int i; (i = next.fetch_add(1)) < report.requested;) {
      KernelReport& kernel = report.results[order[static_cast<std::size_t>(i)]];
      build(impl_->binaries, options.dry_run, kernel);
      const std::lock_guard lock(mutex);
      count(kernel, report);
      if (options.progress) options.progress(kernel, ++done, report.requested);
    }
  };
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int jobs = std::min(options.jobs > 0 ? options.jobs : cores, report.requested);
  const std::shared_ptr<void> helpers =
      jobs > 1 && !options.dry_run ? impl_->compiler->helpers() : nullptr;  // until this call returns
  run_on_threads(jobs, work);
  report.seconds = time.seconds();
  return report;
}

}  // namespace normjit
