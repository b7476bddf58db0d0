// SPDX-License-Identifier: Apache-2.0
// A libcuda in memory: what stands behind the driver's functions in the tests of the driver stage.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "normjit/driver/driver_table.h"

namespace normjit::testing {

// The driver's functions are plain pointers and so have no state but a global: one FakeCuda lives at a time.
// The members say what the machine is like; set them before the calls of other threads begin. Calls are
// thread-safe.
class FakeCuda {
 public:
  FakeCuda();
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;

  // Finds exported functions, as dlsym in libcuda.so.1 would.
  FindSymbol symbols();

  struct Gpu {
    CUdevice handle = 0;  // on purpose not the ordinal
    std::string name;
    std::map<CUdevice_attribute, int> attributes;
  };
  // An allocation as cuPointerGetAttributes tells it.
  struct Memory {
    CUmemorytype type = CU_MEMORYTYPE_DEVICE;
    bool managed = false;
    int ordinal = 0;
    CUdeviceptr device_address = 0;
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    bool mapped_in_pieces = false;
  };

  int version = 13000;
  std::vector<Gpu> gpus;                    // two that differ in every attribute
  std::optional<CUdevice> current;          // the current context's device
  std::set<std::string> missing;            // functions that cannot be found
  std::map<std::string, CUresult> failing;  // functions that fail, and how
  std::map<std::uintptr_t, Memory> memory;  // by address
  std::string kernel = "kernel";            // the one that every library holds
  int blocks_per_sm = 2;                    // that run at once, of every kernel
  int clusters = 3;                         // that run at once on the whole device
  bool capturing = false;                   // every stream
  std::optional<int> sm_share;              // SMs that the current context is limited to

  // Every driver call in order, with the arguments that matter: "cuLibraryUnload 1 relaxed".
  std::vector<std::string> calls() const;
  int count(const std::string& name) const;  // of calls of this function
  void forget_calls();

  struct Launch {
    CUlaunchConfig config{};
    CUfunction function = nullptr;
    void** arguments = nullptr;
    void** extra = nullptr;
    std::vector<CUlaunchAttribute> attributes;  // a copy: those of config lived as long as the call
  };
  std::vector<Launch> launches() const;
  std::string last_code() const;  // what was loaded last, up to its NUL
  int live_libraries() const;
  int live_pieces() const;  // handles retained and not released
  CUstreamCaptureMode capture_mode() const;

 private:
  friend struct FakeCalls;
  // Logs a call; its result if it is to fail. The mutex is held by the caller.
  CUresult enter(const char* name, const std::string& details = "");
  const Gpu* gpu(CUdevice handle) const;

  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::vector<Launch> launches_;
  std::string last_code_;
  std::uintptr_t libraries_ = 0;  // loaded so far: the handle of the latest
  int live_libraries_ = 0;
  int live_pieces_ = 0;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

}  // namespace normjit::testing
