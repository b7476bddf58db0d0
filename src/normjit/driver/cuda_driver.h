// SPDX-License-Identifier: Apache-2.0
// The Driver of a real machine, on top of a table of driver calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/driver/driver.h"
#include "normjit/driver/driver_table.h"

namespace normjit {

// A value that is made on first use. Thread-safe. Concurrent threads may each make a value; one is kept for
// the life of this object. A failure is not kept: the next call tries again. There is no lock, because a
// process that is forked while another thread makes the value would hang on it.
template <class T>
class PublishOnce {
 public:
  PublishOnce() = default;
  PublishOnce(const PublishOnce&) = delete;
  PublishOnce& operator=(const PublishOnce&) = delete;
  ~PublishOnce() { delete value_.load(std::memory_order_acquire); }

  // The value, or null if it has not been made.
  const T* peek() const noexcept { return value_.load(std::memory_order_acquire); }

  // The value, made by `make() -> Result<T>` on first use; never null.
  template <class Make>
  Result<const T*> get(const Make& make) {
    if (const T* value = peek()) return value;
    Result<T> made = make();
    if (!made) return made.error();
    auto mine = std::make_unique<const T>(std::move(*made));
    const T* first = nullptr;
    if (value_.compare_exchange_strong(first, mine.get(), std::memory_order_acq_rel)) return mine.release();
    return first;
  }

 private:
  std::atomic<const T*> value_{nullptr};
};

// Opens the driver's library and initialises it on the first call that needs it, without a lock. Makes,
// retains and switches no context: what must work without one uses context-independent calls of the driver.
class CudaDriver final : public Driver {
 public:
  using Open = std::function<Result<DriverTable>()>;
  explicit CudaDriver(Open open) : open_(std::move(open)) {}

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
  bool is_capturing(Stream stream) noexcept override;
  std::string describe(int result) override;

 private:
  // One GPU. If its profile cannot be read (it fell off the bus), it keeps the error; the others stay usable.
  struct Device {
    CUdevice handle = 0;
    Result<DeviceProfile> profile;
  };
  // The driver after cuInit.
  struct Machine {
    DriverTable driver;
    std::vector<Device> devices;  // by ordinal

    int ordinal_of(CUdevice handle) const noexcept;  // -1: not in the list
  };
  struct Found {
    const Machine& machine;
    const Device& device;
  };
  Result<const DriverTable*> driver() { return driver_.get(open_); }
  Result<const Machine*> machine();
  Result<Found> find(int device);
  // Calls cuInit. NoDevice if the driver sees no GPU.
  static Result<std::vector<Device>> read_devices(const DriverTable& driver);

  const Open open_;
  PublishOnce<DriverTable> driver_;
  PublishOnce<Machine> machine_;
  std::atomic<std::uint64_t> initialised_ = 0;  // the fork_generation() that called cuInit; 0: not called
};

}  // namespace normjit
