// SPDX-License-Identifier: Apache-2.0
// Plans that were measured to be the fastest, stored beside the kernels in the cache directory. The key of an
// entry holds every fact of the measured device; cache/README.md documents it.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/cache/cache.h"
#include "normjit/service.h"
#include "normjit/service/meter.h"

namespace normjit {

// Ok, or IllegalPlan: the plan cannot serve every launch of its use. The spec must be canonical.
Result<void> check(const TunedPlan& tuned);

// The tuned plan in an entry; nothing if it is a kernel, or its identity and content disagree.
std::optional<TunedPlan> tuned_plan_in(const Entry& entry);

// The plan that an entry of either kind names, as to_text writes it; version 0.1 wrote some plans
// differently.
std::string plan_text_in(const Entry& entry);

// Each kernel that launches of these valid specs can use on the devices, once. A tuned plan counts for its
// whole architecture, since a GPU of another size than the named one finds its own tuned plans in the same
// directory. Many specs are planned on all cores.
std::vector<KernelReport> kernels_for(std::span<const NormSpec> specs, std::span<const DeviceProfile> devices,
                                      std::span<const TunedPlan> tuned, const Uses& uses = {});

// Calls visit(name, number) for every number of a DeviceProfile. The binding names every member, so a new
// member must be added here before this compiles.
template <class Device, class Visit>
void visit_numbers(Device& device, Visit visit) {
  auto& [arch, sms, threads, blocks, registers, shared_block, shared_sm, l2] = device;
  visit("sm_count", sms);
  visit("threads_per_sm", threads);
  visit("blocks_per_sm", blocks);
  visit("registers_per_sm", registers);
  visit("shared_per_block", shared_block);
  visit("shared_per_sm", shared_sm);
  visit("l2_bytes", l2);
}

// Thread-safe. An entry with a fault counts as absent.
class TunedPlans {
 public:
  // Called for a sound entry that cannot be used, on the thread that reads it. May be empty.
  using Warn = std::function<void(std::string_view)>;

  // A damaged entry becomes an event of the meter, unless it is null.
  TunedPlans(Cache& cache, Warn warn, std::shared_ptr<Meter> meter = nullptr)
      : cache_(cache), warn_(std::move(warn)), meter_(std::move(meter)) {}

  // The plan stored for this use of a canonical spec. The first call for a use reads one file; this object
  // remembers the result, so that kernels and the size of their workspace agree.
  std::optional<Plan> find(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                           Alignment alignment);

  // Stores a plan of a canonical spec, and replaces the one stored for the same use. Errors: IllegalPlan;
  // CacheIo if the directory cannot store it, or there is none.
  Result<void> store(const TunedPlan& tuned);

  // All plans in the directory and the layers that find() returns on their devices. Reads every file.
  std::vector<TunedPlan> list() const;

 private:
  Cache& cache_;
  const Warn warn_;
  const std::shared_ptr<Meter> meter_;
  ForkMutex mutex_;                                   // never held across a file access
  std::map<std::string, std::optional<Plan>> known_;  // by identity
};

}  // namespace normjit
