// What a Service is made of.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "normjit/driver/driver.h"
#include "normjit/service.h"
#include "normjit/service/binary_store.h"
#include "normjit/service/prepared.h"
#include "normjit/service/single_flight.h"

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

    friend bool operator==(const Use&, const Use&) = default;
  };

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

 private:
  struct UseHash {
    std::size_t operator()(const Use& use) const noexcept;
  };

  Result<Kernel> make_ready(const LayerNormSpec& spec, const Plan& plan, const DeviceProfile& profile,
                            int device);
  Result<std::shared_ptr<LoadedKernel>> load(const Kernel::Prepared& kernel, Origin& origin);

  // Guards only the two maps: never held across a compile, a file access or a driver call.
  std::shared_mutex mutex_;
  std::unordered_map<Use, Kernel, UseHash> by_use_;
  std::unordered_map<std::string, Kernel> by_plan_;  // several uses may share a plan
  SingleFlight<std::string, Kernel> flights_;
};

}  // namespace normjit
