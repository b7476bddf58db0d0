#include "cli/stand_in_driver.h"

#include <limits>

namespace normjit::cli {
namespace {

class StandInKernel final : public LoadedKernel {
 public:
  int launch(std::uint32_t, const LaunchShape&, Stream, void**) const noexcept override { return 0; }
  Result<int> resident_blocks(const LaunchShape&) const override { return std::numeric_limits<int>::max(); }
};

class StandInDriver final : public Driver {
 public:
  explicit StandInDriver(const DeviceProfile& profile) : profile_(profile) {}

  Result<int> version() override { return Error{Code::NoDriver, "there is no driver"}; }
  Result<int> device_count() override { return 1; }
  Result<int> current_device() override { return 0; }
  Current current() noexcept override { return {0, &profile_}; }
  Result<DeviceProfile> profile(int) override { return profile_; }
  Result<std::string> device_name(int) override { return std::string("none"); }
  Result<std::shared_ptr<LoadedKernel>> load(std::string_view, const std::string&, int,
                                             const LaunchShape&) override {
    return std::shared_ptr<LoadedKernel>(std::make_shared<StandInKernel>());
  }
  Result<Allocation> allocation(const void*) override {
    return Allocation{true, 0, std::numeric_limits<std::uint64_t>::max()};
  }
  std::string describe(int result) override { return "CUresult " + std::to_string(result); }

 private:
  const DeviceProfile profile_;
};

}  // namespace

std::shared_ptr<Driver> make_stand_in_driver(const DeviceProfile& profile) {
  return std::make_shared<StandInDriver>(profile);
}

}  // namespace normjit::cli
