// The Driver of a real machine, on top of a table of driver calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/driver/cuda_device.h"
#include "normjit/driver/driver.h"
#include "normjit/driver/driver_table.h"
#include "normjit/driver/publish_once.h"

namespace normjit {

// Opens the driver's library and initialises it on the first call that needs it, without a lock. Makes,
// retains and switches no context: what must work without one uses the driver's context-independent calls.
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
  bool is_capturing(Stream stream) noexcept override;
  std::string describe(int result) override;

 private:
  // The driver after cuInit.
  struct Machine {
    DriverTable driver;
    std::vector<CudaDevice> devices;  // by ordinal
  };
  Result<const DriverTable*> driver() { return driver_.get(open_); }
  Result<const Machine*> machine();
  static Result<const CudaDevice*> find(const Machine& machine, int device);

  const Open open_;
  PublishOnce<DriverTable> driver_;
  PublishOnce<Machine> machine_;
  std::atomic<std::uint64_t> initialised_ = 0;  // the fork_generation() that called cuInit; 0: not called
};

}  // namespace normjit
