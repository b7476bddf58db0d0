// Plans that were measured to be the fastest, stored beside the kernels in the cache directory. The key of an
// entry has every fact of the device that was measured; cache/README.md documents it.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/cache/cache.h"
#include "normjit/service.h"
#include "normjit/service/meter.h"

namespace normjit {

// Ok, or IllegalPlan: the plan cannot serve every launch of its use. Of a canonical spec.
Result<void> check(const TunedPlan& tuned);

// The tuned plan in an entry; nothing if it is a kernel, or its identity and content disagree.
std::optional<TunedPlan> tuned_plan_in(const Entry& entry);

// The plan that an entry of either kind names, as to_text writes it, also where 0.1 wrote it in other words.
std::string plan_text_in(const Entry& entry);

// Thread-safe. An entry with a fault counts as absent.
class TunedPlans {
 public:
  // Called for an intact entry that cannot be used, on the thread that reads it. May be empty.
  using Warn = std::function<void(std::string_view)>;

  // A damaged entry becomes an event of the meter, if there is one.
  TunedPlans(Cache& cache, Warn warn, std::shared_ptr<Meter> meter = nullptr)
      : cache_(cache), warn_(std::move(warn)), meter_(std::move(meter)) {}

  // The plan stored for this use of a canonical spec. The first call for a use reads one file; this object
  // remembers the result, so that kernels and the size of their workspace agree.
  std::optional<Plan> find(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                           Alignment alignment);

  // Stores a plan of a canonical spec, and replaces the one stored for the same use. Errors: IllegalPlan;
  // CacheIo if the directory cannot store it, or there is none.
  Result<void> store(const TunedPlan& tuned);

  // All plans in the directory and the layers that find() finds on their devices. Reads every file.
  std::vector<TunedPlan> list() const;

 private:
  Cache& cache_;
  const Warn warn_;
  const std::shared_ptr<Meter> meter_;
  ForkMutex mutex_;                                   // never held across a file access
  std::map<std::string, std::optional<Plan>> known_;  // by identity
};

}  // namespace normjit
