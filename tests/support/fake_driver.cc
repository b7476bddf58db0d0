// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver.h"

#include <algorithm>
#include <utility>

namespace normjit::testing {
namespace {

thread_local int t_device = -1;

}  // namespace

class FakeDriver::FakeKernel final : public LoadedKernel {
 public:
  FakeKernel(std::shared_ptr<State> state, std::string kernel, int device)
      : state_(std::move(state)), kernel_(std::move(kernel)), device_(device) {}
  ~FakeKernel() override {
    const std::lock_guard lock(state_->mutex);
    --state_->live_kernels;
  }

  int launch(std::uint32_t blocks, const LaunchShape& shape, Stream stream,
             void** arguments) const noexcept override {
    const std::lock_guard lock(state_->mutex);
    constexpr int kInvalidDevice = 101;
    if (current_of(*state_).value_or(device_) != device_) return kInvalidDevice;
    Launch launch{kernel_, device_, blocks, shape, stream, {}};
    for (const std::size_t bytes : state_->argument_sizes) {
      launch.arguments.emplace_back(static_cast<const char*>(*arguments++), bytes);
    }
    state_->launches.push_back(std::move(launch));
    if (state_->sick != 0) return state_->sick;
    const bool together = shape.cooperative || shape.cluster_blocks > 1;
    return together && state_->together_result != 0 ? state_->together_result : state_->launch_result;
  }

  Result<int> resident_blocks(const LaunchShape&) const override {
    const std::lock_guard lock(state_->mutex);
    ++state_->calls;
    if (Result<void> healthy = health(*state_); !healthy) return healthy.error();
    if (current_of(*state_) != device_)
      return Error{Code::NoContext, "The fake driver's context is elsewhere."};
    return state_->resident_blocks;
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string kernel_;
  const int device_;
};

FakeDriver::FakeDriver(std::vector<DeviceProfile> devices) : devices_(std::move(devices)) {}

void FakeDriver::set_current_device(std::optional<int> device) {
  const std::lock_guard lock(state_->mutex);
  state_->current = device;
}

void FakeDriver::set_device_of_this_thread(int device) { t_device = device; }

std::optional<int> FakeDriver::current_of(const State& state) {
  return t_device >= 0 ? t_device : state.current;
}

void FakeDriver::set_driver_missing(bool missing) {
  const std::lock_guard lock(state_->mutex);
  state_->missing = missing;
}

void FakeDriver::refuse_load(int nth) {
  const std::lock_guard lock(state_->mutex);
  state_->refused_loads.push_back(nth);
}

void FakeDriver::set_launch_result(int result) {
  const std::lock_guard lock(state_->mutex);
  state_->launch_result = result;
}

void FakeDriver::set_together_result(int result) {
  const std::lock_guard lock(state_->mutex);
  state_->together_result = result;
}

void FakeDriver::set_sick(int result) {
  const std::lock_guard lock(state_->mutex);
  state_->sick = result;
}

void FakeDriver::set_capturing(bool capturing) {
  const std::lock_guard lock(state_->mutex);
  state_->capturing = capturing;
}
int FakeDriver::clear(void* memory, std::size_t bytes, Stream stream) noexcept {
  const std::lock_guard lock(state_->mutex);
  ++state_->calls;
  state_->clears.push_back({memory, bytes, stream});
  return state_->sick != 0 ? state_->sick : state_->launch_result;
}
bool FakeDriver::is_capturing(Stream) noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->capturing;
}
void FakeDriver::set_resident_blocks(int blocks) {
  const std::lock_guard lock(state_->mutex);
  state_->resident_blocks = blocks;
}

void FakeDriver::set_argument_sizes(std::vector<std::size_t> sizes) {
  const std::lock_guard lock(state_->mutex);
  state_->argument_sizes = std::move(sizes);
}

void FakeDriver::set_allocation(const void* address, const Allocation& facts) {
  const std::lock_guard lock(state_->mutex);
  state_->allocations[address] = facts;
}

std::vector<FakeDriver::Load> FakeDriver::loads() const {
  const std::lock_guard lock(state_->mutex);
  return state_->loads;
}

std::vector<FakeDriver::Launch> FakeDriver::launches() const {
  const std::lock_guard lock(state_->mutex);
  return state_->launches;
}

std::vector<FakeDriver::Clear> FakeDriver::clears() const {
  const std::lock_guard lock(state_->mutex);
  return state_->clears;
}

int FakeDriver::live_kernels() const {
  const std::lock_guard lock(state_->mutex);
  return state_->live_kernels;
}

int FakeDriver::calls() const {
  const std::lock_guard lock(state_->mutex);
  return state_->calls;
}

void FakeDriver::sicken_after_loads(int count, int result) {
  const std::lock_guard lock(state_->mutex);
  state_->loads_until_sick = count;
  state_->coming = result;
}

Result<void> FakeDriver::health(const State& state) {
  if (state.sick == 0) return {};
  return Error{code_of(state.sick), "The fake device answers " + std::to_string(state.sick) + "."};
}

Result<void> FakeDriver::enter() {
  ++state_->calls;
  if (state_->missing) return Error{Code::NoDriver, "The fake driver is missing."};
  return {};
}

Result<void> FakeDriver::enter(int device) {
  if (Result<void> entered = enter(); !entered) return entered;
  if (device < 0 || device >= static_cast<int>(devices_.size())) {
    return Error{Code::NoDevice, "The fake driver has no device " + std::to_string(device) + "."};
  }
  return {};
}

Result<int> FakeDriver::version() {
  const std::lock_guard lock(state_->mutex);
  if (Result<void> entered = enter(); !entered) return entered.error();
  return 13000;
}

Result<int> FakeDriver::device_count() {
  const std::lock_guard lock(state_->mutex);
  if (Result<void> entered = enter(); !entered) return entered.error();
  if (devices_.empty()) return Error{Code::NoDevice, "The fake driver sees no device."};
  return static_cast<int>(devices_.size());
}

Result<int> FakeDriver::current_device() {
  const std::lock_guard lock(state_->mutex);
  if (Result<void> entered = enter(); !entered) return entered.error();
  const std::optional<int> current = current_of(*state_);
  if (!current) return Error{Code::NoContext, "The fake driver has no current context."};
  return *current;
}

Driver::Current FakeDriver::current() noexcept {
  const std::lock_guard lock(state_->mutex);
  const std::optional<int> current = current_of(*state_);
  if (!current || !enter(*current)) return {};
  return {*current, &devices_[*current]};
}

Result<DeviceProfile> FakeDriver::profile(int device) {
  const std::lock_guard lock(state_->mutex);
  if (Result<void> entered = enter(device); !entered) return entered.error();
  return devices_[device];
}

Result<std::string> FakeDriver::device_name(int device) {
  const std::lock_guard lock(state_->mutex);
  if (Result<void> entered = enter(device); !entered) return entered.error();
  return "Fake GPU " + std::to_string(device);
}

Result<std::shared_ptr<LoadedKernel>> FakeDriver::load(std::string_view code, const std::string& kernel,
                                                       int device, const LaunchShape& shape) {
  const std::lock_guard lock(state_->mutex);
  if (Result<void> entered = enter(device); !entered) return entered.error();
  state_->loads.push_back({std::string(code), kernel, device, shape});
  if (Result<void> healthy = health(*state_); !healthy) return healthy.error();
  const int nth = static_cast<int>(state_->loads.size());
  const std::vector<int>& refused = state_->refused_loads;
  if (std::find(refused.begin(), refused.end(), nth) != refused.end()) {
    return Error{Code::LoadFailed, "The fake driver refuses load " + std::to_string(nth) + "."};
  }
  ++state_->live_kernels;
  if (--state_->loads_until_sick == 0) state_->sick = state_->coming;
  return std::shared_ptr<LoadedKernel>(std::make_shared<FakeKernel>(state_, kernel, device));
}

Result<Allocation> FakeDriver::allocation(const void* address) {
  const std::lock_guard lock(state_->mutex);
  if (Result<void> entered = enter(); !entered) return entered.error();
  if (Result<void> healthy = health(*state_); !healthy) return healthy.error();
  const auto found = state_->allocations.find(address);
  if (found != state_->allocations.end()) return found->second;
  return Allocation{.device_accessible = true, .device = 0, .bytes_left = UINT64_MAX};
}

std::string FakeDriver::describe(int result) { return "fake CUresult " + std::to_string(result); }

}  // namespace normjit::testing
