// What a Service is made of.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/service.h"
#include "normjit/service/background.h"
#include "normjit/service/binary_store.h"
#include "normjit/service/kernel_table.h"
#include "normjit/service/meter.h"
#include "normjit/service/miss_log.h"
#include "normjit/service/prepared.h"
#include "normjit/service/single_flight.h"
#include "normjit/service/tuned_plans.h"
#include "normjit/service/use.h"

namespace normjit {

// Not exported, as its Service is.
class [[gnu::visibility("hidden")]] Service::Impl {
 public:
  Impl(Options options, Seams seams);

  // The kernel that serves these tensors on the current context's device without further ado: it is in
  // memory, admits them, and has been launched with pointers that were sound. Else null, also for what is
  // wrong with the arguments; kernel_for and Kernel::check find out. Lives as long as this object. Takes no
  // lock.
  const Launcher* ready_kernel(const NormSpec& spec, const Tensors& tensors, Strides& strides) const noexcept;

  // Launches where ready_kernel() has none: valid spec, at least one row. As Service::layer_norm.
  Result<void> first_launch(const NormSpec& spec, const Tensors& tensors, Stream stream,
                            const LaunchOptions& options);
  // What layer_norm answers after a launch with this outcome; another kernel launches where that helps.
  Result<void> after_launch(Status status, const NormSpec& spec, const Tensors& tensors, Stream stream,
                            const LaunchOptions& options);

  // The kernel that serves these tensors, out of memory or made ready, or the generic one in its place.
  // NotReady where it would have to be made ready and `unless_capturing` is a stream that is being captured.
  Result<Kernel> kernel_for(const NormSpec& spec, int device, const DeviceProfile& profile, std::int64_t rows,
                            const Tensors& tensors, std::optional<Stream> unless_capturing = {});

  // The kernel of this very plan; compiled, where it has to be, while the caller waits.
  Result<Kernel> pinned_kernel(const NormSpec& spec, const Plan& plan, int device,
                               const DeviceProfile& profile);

  Result<int> device_or_current(int ordinal);
  void log(LogLevel level, std::string_view text) const;

  const Options options;
  const std::shared_ptr<Meter> meter;
  const std::shared_ptr<Driver> driver;
  const std::shared_ptr<Compiler> compiler;
  BinaryStore binaries;
  TunedPlans tuned;
  std::atomic<Frozen> frozen = Frozen::no;
  void wait_for_compiles() { background_.wait(); }

 private:
  // Who asks for a kernel that no cache may have.
  enum class Asker {
    mode,    // compiles, waits or gives up as the mode says
    waiter,  // waits for its compile, unless nothing is compiled at all
    looker,  // takes it only where it need not be compiled: the generic kernel
  };
  // What becomes of a plan: its kernel, or the compile in the background that it has to wait for.
  struct Made {
    Kernel kernel;
    const Job* job = nullptr;
  };

  // The kernel that serves these tensors from now on, because the driver would not run the blocks of
  // kernel_for's together.
  Result<Kernel> fall_back(const NormSpec& spec, const Tensors& tensors);

  // Launches once the pointers are known to be sound.
  static Result<Status> launch(const Kernel& kernel, const Tensors& tensors, Stream stream,
                               const LaunchOptions& options);

  static Use use_of(const NormSpec& spec, int device, const DeviceProfile& profile, std::int64_t rows,
                    const Tensors& tensors) noexcept;
  // The kernel of the planner's choice, or where the device has no room for that, of its fallback.
  Result<Made> chosen_kernel(const Use& use, const DeviceProfile& profile, Asker asker);
  Result<Made> fallback_kernel(const Use& use, const DeviceProfile& profile, std::string_view why,
                               Asker asker);
  // The kernel of the tuned plan for a use; empty where there is none, or it cannot be had. An error only of
  // the device.
  Result<Made> tuned_kernel(const Use& use, const DeviceProfile& profile, Asker asker);
  // The tuned one, else the chosen one.
  Result<Made> own_kernel(const Use& use, const DeviceProfile& profile, Asker asker);
  // The generic kernel, for a use whose own kernel has to wait or cannot be had; an error where it is not to
  // be had either.
  Result<Kernel> generic_kernel(const Use& use, const DeviceProfile& profile);
  // The record of a use that has none yet, or has a fallback whose time is over.
  Result<Kernel> settle(const Use& use, const DeviceProfile& profile);

  Result<Made> kernel_of(const NormSpec& spec, const Plan& plan, int device, const DeviceProfile& profile,
                         Asker asker);
  Result<Made> make_ready(const NormSpec& spec, const Plan& plan, const DeviceProfile& profile, int device,
                          Asker asker);
  // Loads the kernel's code; or says which job has to make it first, and answers NotReady.
  Result<std::shared_ptr<LoadedKernel>> load(const Kernel::Prepared& kernel, Origin& origin, Asker asker,
                                             const Job*& job);
  // No cache has a kernel: ok if the caller is to compile it and wait; NotReady if it is compiled in the
  // background now; NotCached.
  Result<void> missed(const Identified& kernel, Asker asker);
  bool compile_in_background(const Identified& kernel);
  // Ok where the blocks of a launch that must run together do, or nobody can tell yet; else NotResident.
  static Result<void> check_room(const Kernel::Prepared& kernel);

  KernelTable by_use_;
  // Guards only the map: never held across a compile, a file access or a driver call.
  ForkSharedMutex mutex_;
  std::unordered_map<std::string, Kernel> by_plan_;  // several uses may share a plan
  SingleFlight<std::string, Made> flights_;
  MissLog miss_log_;
  Background background_;  // the last: its threads use the others
};

}  // namespace normjit
