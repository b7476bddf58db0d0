// SPDX-License-Identifier: Apache-2.0
// What tests of kernels on a GPU share: device 0 in its primary context, guarded device memory, a service,
// and problems that are uploaded, run and compared with the reference.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "normjit/service.h"
#include "tests/support/test_seed.h"
#include "verify/problem.h"

namespace normjit::testing {

// Throws std::runtime_error with the driver's name of the error unless the call was a success.
void must(CUresult result, const char* call);

// Device memory between canaries: bytes before and behind it that no kernel may touch.
class DeviceMemory {
 public:
  // `shift` moves the address that many bytes past a multiple of 256.
  explicit DeviceMemory(std::size_t bytes, std::size_t shift = 0);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  CUdeviceptr address() const { return address_; }
  void* data() const { return reinterpret_cast<void*>(address_); }
  std::size_t bytes() const { return bytes_; }

  void fill(unsigned char byte);
  void upload(const void* from, std::size_t bytes);
  void download(void* to, std::size_t bytes, std::size_t at = 0) const;
  bool canaries_live() const;

 private:
  std::size_t bytes_;
  CUdeviceptr allocation_ = 0, address_ = 0;
};

// Waits for no other stream; synchronous copies do not wait for it.
class GpuStream {
 public:
  GpuStream();
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  operator Stream() const { return stream_; }
  void synchronize() const;

 private:
  CUstream stream_ = nullptr;
};

// How the tensors of a problem lie on the GPU.
struct Placement {
  std::int64_t shift = 0;     // elements that every tensor is moved past a multiple of 256 bytes
  bool in_place = false;      // y is x, or dx is dy
  bool sum_in_place = false;  // the sum is the residual, or dgate the gate
};

// The tensors of a problem in device memory. The problem stays the caller's and must live as long.
class GpuProblem {
 public:
  explicit GpuProblem(oracle::Problem& problem, const Placement& placement = {});

  // For a launch; the workspace is not set.
  const Tensors& tensors() const { return tensors_; }
  // Uploads the problem anew, with outputs as poisoned as the problem's are.
  void upload();
  // Brings the outputs back into the problem. Expects all canaries to live.
  void fetch();

 private:
  struct Tensor {
    oracle::Matrix* matrix;
    std::unique_ptr<DeviceMemory> memory;
  };

  oracle::Problem& problem_;
  std::vector<Tensor> inputs_, outputs_;
  Tensors tensors_;
};

// Skips with the driver's reason where there is no GPU. Else device 0's primary context is current, released
// again behind the test, and service() has a cache that the tests of this process share.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  Service& service() { return *service_; }
  // For services of a test's own. Warnings are failures.
  static Options options(const std::string& cache_directory);

  // Random inputs, other ones each time, and poisoned outputs.
  oracle::Problem make(const NormSpec& spec, std::int64_t rows, std::int64_t x_row_stride = kContiguous,
                       std::int64_t y_row_stride = kContiguous, std::int64_t plane = 0);

  // Workspace for the spec. It is zeroed when it is allocated and never again: what uses it leaves it ready.
  void* workspace(const NormSpec& spec);

  // Runs the problem through layer_norm and expects what expect_right does.
  void run(oracle::Problem& problem, const Placement& placement = {});
  void run(const NormSpec& spec, std::int64_t rows);

  // Every output equals the reference within its tolerance, and the gaps between rows are as they were.
  static void expect_right(const oracle::Problem& problem);

 private:
  void drop_workspace();

  CUcontext context_ = nullptr;
  std::optional<Service> service_;
  std::unique_ptr<DeviceMemory> workspace_;
  std::uint64_t problems_ = 0;  // made so far
};

}  // namespace normjit::testing
