// SPDX-License-Identifier: Apache-2.0
// One tiny kernel for each primitive of the thin layer hw::, with inputs and the outputs that the primitive's
// promise gives. The host half, the device half and the compiler are tested with the same table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/arch.h"
#include "normjit/base/source.h"
#include "normjit/driver/driver.h"

namespace normjit::testing {

using Bytes = std::vector<unsigned char>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// How two outputs are compared. Of numbers, a NaN equals every NaN.
struct Comparison {
  enum class Type { bits, e4m3, e5m2, f16, bf16, f32, f64 };
  Type type = Type::bits;
  // How many normal f32 numbers apart two outputs may be, where subnormal ones count as zero. 0: not at all.
  int ulps = 0;
};

struct ConformanceKernel {
  std::string name;                // of this row of the table
  std::string kernel;              // the entry point; several rows may launch one kernel in different shapes
  std::string_view input, output;  // the element types of x and y, as CUDA C++ spells them
  std::string text;                // written like the kernels in templates/, in terms of hw::
  Arch oldest{.number = 75};
  bool own_target = false;  // for an architecture-specific target, as sm_90a
  LaunchShape shape;
  std::uint32_t blocks = 1;
  Bytes x{};
  long long rows = 0;  // what on.rows is; for kernels that map numbers, how many
  std::size_t y_bytes = 0;
  std::size_t workspace_bytes = 0;  // zeroed before the launch
  Comparison comparison{};
  // y, worked out in plain C++ from the promise in templates/hw.cuh.
  Bytes (*expected)(const ConformanceKernel& kernel) = nullptr;
};

// The whole table, the same at every call.
const std::vector<ConformanceKernel>& conformance_kernels();

// What to compile the kernel for, for a GPU of this architecture.
Arch target_of(const ConformanceKernel& kernel, Arch arch);

// A complete translation unit: what NJ_KERNEL needs to know, the embedded hw.cuh, the kernel.
Source conformance_source(const ConformanceKernel& kernel, Arch arch);

// Where two outputs of the kernel differ by more than its comparison allows; empty if nowhere.
std::string difference(const ConformanceKernel& kernel, const Bytes& expected, const Bytes& actual);

// What the kernels take: the struct Operands of conformance_source().
struct ConformanceOperands {
  long long rows;
  void* workspace;
  const void* x;
  void* y;
};

// The table's parts, each in a file of its own.
std::vector<ConformanceKernel> memory_kernels();    // global memory
std::vector<ConformanceKernel> lanes_kernels();     // what the lanes of a warp tell each other
std::vector<ConformanceKernel> barriers_kernels();  // what holds threads and blocks back
std::vector<ConformanceKernel> copies_kernels();    // asynchronous copies, barriers in shared memory
std::vector<ConformanceKernel> clusters_kernels();  // blocks of a cluster, launches that overlap
std::vector<ConformanceKernel> numbers_kernels();   // conversions, rounding, approximations

// Bytes of no pattern, always the same for a seed.
Bytes random_bytes(std::size_t bytes, std::uint64_t seed);

}  // namespace normjit::testing
