// SPDX-License-Identifier: Apache-2.0
// A machine for a Service: GPUs, a compiler and a cache directory, where every step leaves a trace.
#pragma once

#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/service.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/fake_driver.h"
#include "tests/support/recording_file_system.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {

inline DeviceProfile profile_of(int arch) { return DeviceProfile::of(Arch{arch}).value(); }

class FakeMachine {
 public:
  // With one GPU for each of these architectures; the context of the first is current.
  explicit FakeMachine(const std::vector<int>& archs = {90})
      : driver(std::make_shared<FakeDriver>(profiles(archs))) {}

  // With these GPUs.
  explicit FakeMachine(std::shared_ptr<FakeDriver> gpus) : driver(std::move(gpus)) {}

  // A new Service, as in a new process. Services and kernels may outlive the machine.
  Service service() { return Service(options(), seams()); }
  Service service_without_cache() {
    Options memory_only = options();
    memory_only.cache_directory.clear();
    return Service(memory_only, seams());
  }

  Options options() const {
    Options options;
    options.cache_directory = directory.path();
    options.log = [log = log_](LogLevel level, std::string_view text) {
      const std::lock_guard lock(log->mutex);
      if (level >= LogLevel::warn) log->warnings.emplace_back(text);
    };
    return options;
  }
  // Nothing is embedded, whatever this library was built with.
  Seams seams() const { return {.compiler = compiler, .driver = driver, .files = files, .embedded = ""}; }

  // The bytes of a pack of all kernels that these specs can ask for on an sm_90, made on another machine.
  static std::string pack_of(const std::vector<NormSpec>& specs) {
    FakeMachine maker;
    Service service = maker.service();
    const DeviceProfile device = profile_of(90);
    const TempDirectory folder;
    const std::string path = folder / "kernels.njp";
    service.prebuild(specs, {&device, 1}).value();
    service.export_pack(path, {.from = {}, .specs = specs, .devices = {device}, .uses = {}, .sign_key = {}})
        .value();
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  int compiles() const { return static_cast<int>(compiler->calls().size()); }
  int loads() const { return static_cast<int>(driver->loads().size()); }
  // What Services of this machine have warned of.
  std::vector<std::string> warnings() const {
    const std::lock_guard lock(log_->mutex);
    return log_->warnings;
  }

  const TempDirectory directory;
  const std::shared_ptr<FakeDriver> driver;
  const std::shared_ptr<FakeCompiler> compiler = std::make_shared<FakeCompiler>();
  const std::shared_ptr<RecordingFileSystem> files = std::make_shared<RecordingFileSystem>();

 private:
  struct Log {
    std::mutex mutex;
    std::vector<std::string> warnings;
  };

  static std::vector<DeviceProfile> profiles(const std::vector<int>& archs) {
    std::vector<DeviceProfile> profiles;
    for (const int arch : archs) profiles.push_back(profile_of(arch));
    return profiles;
  }

  const std::shared_ptr<Log> log_ = std::make_shared<Log>();
};

}  // namespace normjit::testing
