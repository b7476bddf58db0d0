// SPDX-License-Identifier: Apache-2.0
// What a Service is made of.
#pragma once

#include <atomic>
#include <compare>
#include <map>
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

// What a caller allows for a kernel that no cache has.
struct Demand {
  bool may_compile = true;  // as far as the mode and a freeze allow it, too
  bool may_wait = true;     // else it is compiled in the background
  auto operator<=>(const Demand&) const = default;
};

// A kernel; or the compile in the background that has to end before there is one.
struct Made {
  Kernel kernel;
  const Job* job = nullptr;
};

// Not exported, as its Service is.
class [[gnu::visibility("hidden")]] Service::Impl {
 public:
  Impl(Options options, Seams seams);

  // The hot path. The kernel that serves these tensors on the current context's device, if it is in memory,
  // admits the tensors, and has been launched with pointers that were checked. Null in all other cases,
  // wrong arguments included: first_launch() finds out. Lives as long as this object. Takes no lock.
  const Launcher* ready_kernel(const NormSpec& spec, const Tensors& tensors, PackedTensors& packed)
      const noexcept;

  // Launches where ready_kernel() is null: valid spec, at least one row. As Service::norm.
  Result<void> first_launch(const NormSpec& spec, const Tensors& tensors, Stream stream,
                            const LaunchOptions& options);
  // What Service::norm returns after a launch with this status. Launches another kernel where that helps.
  Result<void> after_launch(Status status, const NormSpec& spec, const Tensors& tensors, Stream stream,
                            const LaunchOptions& options);

  // The kernel that serves a use: out of memory, or the first of its attempts (impl.cc) that can be made
  // ready. While the stream `unless_capturing` is captured one in memory alone, else NotReady.
  Result<Kernel> kernel_for(const Use& use, const DeviceProfile& profile,
                            std::optional<Stream> unless_capturing = {});
  // The kernel of a plan: out of memory, or made ready.
  Result<Made> kernel_of(const NormSpec& spec, const Plan& plan, int device, const DeviceProfile& profile,
                         Demand demand);

  struct Device {
    int ordinal;
    DeviceProfile profile;
  };
  // -1: the current context's.
  Result<Device> device(int ordinal = -1);
  // As Service::workspace_bytes, of a valid canonical spec. An answer is kept: to plan for every regime and
  // alignment takes some milliseconds, and callers may ask for each launch.
  Result<std::size_t> workspace_bytes(const NormSpec& spec);
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
  Impl(Options options, const Seams& seams, const std::shared_ptr<FileSystem>& files);
  Warn warner() const;

  struct Asked {
    Use use;
    DeviceProfile profile;
  };
  // How these tensors use a spec on the current context's device; or what is wrong with them.
  Result<Asked> use_of(const NormSpec& spec, const Tensors& tensors);
  // Launches a kernel whose pointers are checked the first time.
  static Result<Status> launch(const Kernel& kernel, const Tensors& tensors, Stream stream,
                               const LaunchOptions& options);
  // The kernel that serves these tensors from now on, after the driver refused to run the blocks of another
  // one together.
  Result<Kernel> unshared_kernel(const NormSpec& spec, const Tensors& tensors);

  Result<Made> make_ready(const NormSpec& spec, const Plan& plan, int device, const DeviceProfile& profile,
                          Demand demand);
  // No cache of this machine has a kernel, or the driver has refused what they have: the job that compiles it
  // in the background, what the remote store had for a service that does not compile, neither if the caller
  // is to make it now, or NotCached.
  struct Missed {
    const Job* job = nullptr;
    std::optional<StoredBinary> binary = {};
  };
  Result<Missed> missed(const Identified& kernel, Demand demand, bool refused);
  // The code that nobody on this machine has.
  Result<StoredBinary> make(const Identified& kernel, const std::optional<std::string>& refused = {});
  // NotResident if blocks of a launch that must run together cannot. Ok if that is not known yet.
  static Result<void> find_room(Kernel::Prepared& kernel);

  // A kernel of this process. The same plan in the place of another is another kernel.
  struct Key {
    std::string spec, plan;
    int device;
    bool is_fallback;
    auto operator<=>(const Key&) const = default;
  };
  // Callers that may wait do not share the outcome of callers that may not.
  struct Request {
    Key key;
    bool may_wait;
    auto operator<=>(const Request&) const = default;
  };

  // The kernel, if it has been made ready.
  std::optional<Kernel> in_memory(const Key& key);

  KernelTable by_use_;
  // Guards only the maps: never held across a compile, a file access or a driver call.
  ForkSharedMutex mutex_;
  std::map<Key, Kernel> by_plan_;  // several uses may share a plan
  struct Hash {
    std::size_t operator()(const UseKey& key) const noexcept { return key.hash(); }
  };
  std::unordered_map<UseKey, std::size_t, Hash> workspaces_;  // by spec and device
  SingleFlight<Request, Made> flights_;
  MissLog miss_log_;
  Background background_;  // the last: its threads use the others
};

}  // namespace normjit
