// SPDX-License-Identifier: Apache-2.0
// A driver and GPUs in memory: records every load and launch, and fails those that a test names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/driver/driver.h"

namespace normjit::testing {

// Thread-safe. Kernels may outlive it.
class FakeDriver final : public Driver {
 public:
  struct Load {
    std::string code, kernel;
    int device = -1;
    LaunchShape shape;
  };
  struct Launch {
    std::string kernel;
    int device = -1;  // that the kernel was loaded for
    std::uint32_t blocks = 0;
    LaunchShape shape;
    Stream stream = nullptr;
    std::vector<std::string> arguments;  // the bytes of each, as many as argument_sizes says

    // An argument as the type that it has in the kernel; T{} where there is none of that size.
    template <class T>
    T argument(std::size_t index) const {
      T value{};
      if (index < arguments.size() && arguments[index].size() == sizeof(T)) {
        arguments[index].copy(reinterpret_cast<char*>(&value), sizeof(T));
      }
      return value;
    }
  };

  struct Clear {
    void* memory = nullptr;
    std::size_t bytes = 0;
    Stream stream = nullptr;

    bool operator==(const Clear&) const = default;
  };

  // GPUs of these profiles; the first one's context is current.
  explicit FakeDriver(std::vector<DeviceProfile> devices);

  // What the machine is like from now on.
  void set_current_device(std::optional<int> device);  // nothing: NoContext
  static void set_device_of_this_thread(
      int device);                        // current in the calling thread only; -1: as the others'
  void set_driver_missing(bool missing);  // every call answers NoDriver
  void refuse_load(int nth);              // the n-th load from the start, counting from 1, answers LoadFailed
  void set_launch_result(int result);     // what launches return; they are recorded all the same
  // What launches return whose blocks must run together: those in clusters and cooperative ones.
  void set_together_result(int result);
  // What every launch, load, look at an address and count of blocks ends with; 0: they are well again.
  void set_sick(int result);
  void sicken_after_loads(int count, int result);  // once so many loads have ended well
  void set_capturing(bool capturing);              // every stream
  void set_resident_blocks(int blocks);  // what kernels answer where their device's context is current
  void set_argument_sizes(std::vector<std::size_t> sizes);  // bytes of each launch argument to copy
  // What allocation() answers for this address. Every other is memory of the first GPU, of unknown extent.
  void set_allocation(const void* address, const Allocation& facts);

  // What has happened so far.
  std::vector<Load> loads() const;  // refused ones included
  std::vector<Launch> launches() const;
  std::vector<Clear> clears() const;
  int live_kernels() const;  // loaded and not yet freed
  int calls() const;         // of any function of Driver but describe

  Result<int> version() override;
  Result<int> device_count() override;
  Result<int> current_device() override;
  Current current() noexcept override;
  Result<DeviceProfile> profile(int device) override;
  Result<std::string> device_name(int device) override;
  Result<std::shared_ptr<LoadedKernel>> load(std::string_view code, const std::string& kernel, int device,
                                             const LaunchShape& shape) override;
  Result<Allocation> allocation(const void* address) override;
  int clear(void* memory, std::size_t bytes, Stream stream) noexcept override;
  bool is_capturing(Stream) noexcept override;
  std::string describe(int result) override;

 private:
  class FakeKernel;
  // Shared with the kernels, which may live longer.
  struct State {
    std::mutex mutex;
    bool missing = false;
    std::optional<int> current = 0;
    int launch_result = 0;
    int together_result = 0;
    int sick = 0;
    int loads_until_sick = 0, coming = 0;  // the second is what it will be sick of
    int resident_blocks = 1 << 20;
    bool capturing = false;
    int calls = 0;
    int live_kernels = 0;
    std::vector<int> refused_loads;
    std::vector<std::size_t> argument_sizes;
    std::map<const void*, Allocation> allocations;
    std::vector<Load> loads;
    std::vector<Launch> launches;
    std::vector<Clear> clears;
  };

  // The error of a device that is sick; the mutex is held by the caller.
  static Result<void> health(const State& state);
  // The device whose context is current in the calling thread.
  static std::optional<int> current_of(const State& state);
  // Counts a call; an error where the driver is missing or has no such device. The mutex is held by the
  // caller.
  Result<void> enter();
  Result<void> enter(int device);

  const std::vector<DeviceProfile> devices_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace normjit::testing
