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
#include "normjit/service/kernel_table.h"
#include "normjit/service/prepared.h"
#include "normjit/service/single_flight.h"
#include "normjit/service/tuned_plans.h"
#include "normjit/service/use.h"

namespace normjit {

class Service::Impl {
 public:
  Impl(Options options, Seams seams);

  // The kernel that serves these tensors on the current context's device without further ado: it is in
  // memory, admits them, and has been launched with pointers that were sound. Else null, also for what is
  // wrong with the arguments; kernel_for and Kernel::check find out. Lives as long as this object. Takes no
  // lock, writes nothing.
  const Launcher* ready_kernel(const LayerNormSpec& spec, const Tensors& tensors,
                               Strides& strides) const noexcept;

  // Launches where ready_kernel() has none: valid spec, at least one row. As Service::layer_norm.
  Result<void> first_launch(const LayerNormSpec& spec, const Tensors& tensors, Stream stream,
                            const LaunchOptions& options);
  // What layer_norm answers after a launch with this outcome; another kernel launches where that helps.
  Result<void> after_launch(Status status, const LayerNormSpec& spec, const Tensors& tensors, Stream stream,
                            const LaunchOptions& options);

  // The kernel that serves these tensors, out of memory or made ready.
  Result<Kernel> kernel_for(const LayerNormSpec& spec, int device, const DeviceProfile& profile,
                            std::int64_t rows, const Tensors& tensors);

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
  // The kernel that serves these tensors from now on, because the driver would not run the blocks of
  // kernel_for's together.
  Result<Kernel> fall_back(const LayerNormSpec& spec, const Tensors& tensors);

  // Launches once the pointers are known to be sound.
  static Result<Status> launch(const Kernel& kernel, const Tensors& tensors, Stream stream,
                               const LaunchOptions& options);

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

  KernelTable by_use_;
  // Guards only the map: never held across a compile, a file access or a driver call.
  ForkSharedMutex mutex_;
  std::unordered_map<std::string, Kernel> by_plan_;  // several uses may share a plan
  SingleFlight<std::string, Kernel> flights_;
};

}  // namespace normjit
