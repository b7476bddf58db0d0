// SPDX-License-Identifier: Apache-2.0
// GPUs that are emulated on the CPU: a Compiler and a Driver for a Service, so that all between a spec and
// its numbers is tested as it is, bytes of machine code on disk included, on a machine without a GPU.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/source.h"
#include "normjit/compiler/compiler.h"
#include "normjit/driver/driver.h"
#include "normjit/service/single_flight.h"
#include "simt/host_compiler.h"
#include "simt/launch.h"

namespace normjit::testing {

// "Compiles" a source into bytes that say what it is and for which architecture; the real compile is the
// driver's, as it is with PTX. Thread-safe.
class SimtCompiler final : public Compiler {
 public:
  Result<Binary> compile(const Source& source, Arch arch) override;
  // Every architecture that has a profile.
  Result<Facts> facts() override;

  // The architectures of all compiles so far.
  std::vector<Arch> compiles() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Arch> compiles_;
};

// How device memory is used by the kernels of a test.
struct SimtMemory {
  std::string name = "memory";  // in diagnoses
  int device = 0;
  std::size_t shift = 0;    // bytes, below 16, that its address is past a multiple of 16
  bool writable = true;     // else a kernel that writes to it is at fault
  bool initialized = true;  // else one that reads what it has not written itself is
  bool early = false;       // else one that overlaps the launch before, and reads it before it has waited, is
  std::size_t element = 2;  // bytes of an element
};

// Loads what SimtCompiler made, and runs it on the thread that launches: a launch is over when it returns.
// Launches on one stream come one after the other, those on several streams run at the same time. A kernel
// that does anything wrong, to memory that does not belong to its device for instance, makes its launch
// return 719, which is CUDA_ERROR_LAUNCH_FAILED. Thread-safe; kernels may outlive it, its memory does not.
class SimtDriver final : public Driver {
 public:
  // GPUs of these profiles; the first one's context is current, in all threads.
  SimtDriver(std::vector<DeviceProfile> devices, simt::HostCompiler compiler,
             simt::Checks checks = simt::Checks::memory);

  void set_current_device(std::optional<int> device);  // nothing: NoContext
  // Of the launches from now on; simt::Schedule says what it means.
  void set_seed(std::uint64_t seed);

  // Device memory, zeroed, with a guard page behind it. Tests read and write it directly.
  void* allocate(std::size_t bytes, const SimtMemory& use = {});
  void free(void* address);

  // Compiles all of these at once, which takes a fraction of the time that their loads would take one by one.
  Result<void> compile_ahead(std::span<const Source> sources);

  // What has happened so far.
  int loads() const;     // accepted
  int compiled() const;  // by the host compiler: once for all loads of one content
  int launches() const;  // failed ones included
  std::optional<simt::Diagnosis> last_diagnosis() const;

  Result<int> version() override;
  Result<int> device_count() override;
  Result<int> current_device() override;
  Current current() noexcept override;
  Result<DeviceProfile> profile(int device) override;
  Result<std::string> device_name(int device) override;
  // LoadFailed for what SimtCompiler did not make, or for another architecture, or with another kernel.
  Result<std::shared_ptr<LoadedKernel>> load(std::string_view code, const std::string& kernel, int device,
                                             const LaunchShape& shape) override;
  // Of memory that came from allocate(); any other address is none that a device can reach.
  Result<Allocation> allocation(const void* address) override;
  // At once, behind the launches of the stream. 1, which is CUDA_ERROR_INVALID_VALUE, for other memory than
  // that of allocate().
  int clear(void* memory, std::size_t bytes, Stream stream) noexcept override;
  // Of 719 with the last diagnosis.
  std::string describe(int result) override;

 private:
  class Kernel;
  class Memory;
  // Shared with the kernels, which may live longer.
  struct State {
    mutable std::mutex mutex;
    std::optional<int> current = 0;
    std::uint64_t seed = 0;
    int loads = 0, compiled = 0, launches = 0;
    std::optional<simt::Diagnosis> diagnosis;
    std::map<std::uintptr_t, std::shared_ptr<const Memory>> memory;  // by its first address
    std::map<Stream, std::unique_ptr<std::mutex>> streams;
    std::map<std::string, simt::HostKernel> kernels;  // by kernel and text
  };

  Result<simt::HostKernel> host_kernel(const Source& source);

  const std::vector<DeviceProfile> devices_;
  const simt::HostCompiler compiler_;
  const simt::Checks checks_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  SingleFlight<std::string, simt::HostKernel> flights_;
};

}  // namespace normjit::testing
