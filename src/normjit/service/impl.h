// What a Service is made of.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/service.h"
#include "normjit/service/binary_store.h"
#include "normjit/service/prepared.h"
#include "normjit/service/single_flight.h"
#include "normjit/service/tuned_plans.h"

namespace normjit {

class Service::Impl {
 public:
  Impl(Options options, Seams seams);

  // A use of a spec: all that decides which kernel serves it.
  struct Use {
    LayerNormSpec spec;  // canonical
    int device = -1;
    RowsRegime regime = RowsRegime::many;
    Alignment alignment = Alignment::one;
    bool workspace = false;  // whether one is at hand

    friend bool operator==(const Use&, const Use&) = default;
  };

  // The kernel that serves these tensors, out of memory or made ready.
  Result<Kernel> kernel_for(const LayerNormSpec& spec, int device, const DeviceProfile& profile,
                            std::int64_t rows, const Tensors& tensors);

  // The kernel that serves these tensors from now on, because the driver would not run the blocks of
  // kernel_for's together.
  Result<Kernel> fall_back(const LayerNormSpec& spec, int device, const DeviceProfile& profile,
                           const Tensors& tensors);

  // The kernel of this very plan.
  Result<Kernel> kernel_of(const LayerNormSpec& spec, const Plan& plan, int device,
                           const DeviceProfile& profile);

  Result<int> device_or_current(int ordinal);
  void log(LogLevel level, std::string_view text) const;

  const Options options;
  const std::shared_ptr<Driver> driver;
  const std::shared_ptr<Compiler> compiler;
  BinaryStore binaries;
  TunedPlans tuned;

 private:
  struct UseHash {
    std::size_t operator()(const Use& use) const noexcept;
  };

  static Use use_of(const LayerNormSpec& spec, int device, const DeviceProfile& profile, std::int64_t rows,
                    const Tensors& tensors) noexcept;
  // The kernel of the planner's choice, or where the device has no room for that, of its fallback.
  Result<Kernel> chosen_kernel(const Use& use, const DeviceProfile& profile);
  Result<Kernel> fallback_kernel(const Use& use, const DeviceProfile& profile, std::string_view why);
  // The kernel of the tuned plan for a use; empty where there is none, or it cannot be had.
  Kernel tuned_kernel(const Use& use, const DeviceProfile& profile);
  Result<Kernel> make_ready(const LayerNormSpec& spec, const Plan& plan, const DeviceProfile& profile,
                            int device);
  Result<std::shared_ptr<LoadedKernel>> load(const Kernel::Prepared& kernel, Origin& origin);
  // Ok where the blocks of a launch that must run together do, or nobody can tell yet; else NotResident.
  static Result<void> check_room(const Kernel::Prepared& kernel);

  // Guards only the two maps: never held across a compile, a file access or a driver call.
  ForkSharedMutex mutex_;
  std::unordered_map<Use, Kernel, UseHash> by_use_;
  std::unordered_map<std::string, Kernel> by_plan_;  // several uses may share a plan
  SingleFlight<std::string, Kernel> flights_;
};

}  // namespace normjit
