// Plans that were measured to be the fastest, kept beside the kernels in the cache directory. An entry is
// bound to every fact of the device that it was measured on; cache/README.md documents it.
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

// Ok, or why the plan of this (with a canonical spec) cannot serve every launch of its use: IllegalPlan.
Result<void> check(const TunedPlan& tuned);

// What an entry keeps, or nothing if it is a kernel, or does not say what its identity says.
std::optional<TunedPlan> tuned_plan_in(const Entry& entry);

// The plan that an entry of either kind names, as to_text writes it, also where 0.1 wrote it in other words.
std::string plan_text_in(const Entry& entry);

// Thread-safe. Whatever is wrong with an entry, it is as if there were none.
class TunedPlans {
 public:
  // Told of an entry that is whole and yet of no use. Called on the thread that met it; may be empty.
  using Warn = std::function<void(std::string_view)>;

  // A damaged entry is an event of the meter, where there is one.
  TunedPlans(Cache& cache, Warn warn, std::shared_ptr<Meter> meter = nullptr)
      : cache_(cache), warn_(std::move(warn)), meter_(std::move(meter)) {}

  // The plan kept for this use of a canonical spec. The first question reads one file, or tries to; its
  // answer is kept, so that kernels and the size of their workspace agree as long as this object lives.
  std::optional<Plan> find(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                           Alignment alignment);

  // Keeps one with a canonical spec, in the place of what was kept for the same use. Errors: IllegalPlan;
  // CacheIo if the directory did not take it, or there is none.
  Result<void> store(const TunedPlan& tuned);

  // All in the directory and the layers that find() would find on their devices. Reads every file of it.
  std::vector<TunedPlan> list() const;

 private:
  Cache& cache_;
  const Warn warn_;
  const std::shared_ptr<Meter> meter_;
  ForkMutex mutex_;                                   // never held across a file access
  std::map<std::string, std::optional<Plan>> known_;  // by identity
};

}  // namespace normjit
