// SPDX-License-Identifier: Apache-2.0
// The 100 % line of every measurement: a kernel that only moves as many bytes as a norm must, in as many
// streams. A norm with a residual and a sum reads two matrices and writes two, and so does its copy.
//
// Which shape of such a kernel is the fastest depends on the GPU, the streams and the size. So several are
// timed in the run that they are compared in, and the fastest one counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/gpu.h"
#include "normjit/device.h"
#include "normjit/driver/driver.h"
#include "normjit/service.h"
#include "normjit/spec.h"

namespace normjit::cli {

// The matrices that a launch reads and writes. Each number is the size of an element over that of the
// smallest one: x in bf16 beside a residual in f32 reads {1, 2}.
struct CopyStreams {
  std::vector<int> reads, writes;

  int parts() const;  // the sum of all numbers
  friend auto operator<=>(const CopyStreams&, const CopyStreams&) = default;
};
CopyStreams copy_streams(const NormSpec& spec, std::int64_t sample = 1);

// How a copy kernel divides its work.
struct CopyShape {
  int threads;        // a block
  int vector_bytes;   // of one load or store: 8 or 16
  int vectors;        // that a thread moves of the smallest stream, all loaded before the first is stored
  int blocks_per_sm;  // of a grid that walks over the streams; 0: as many blocks as it takes
};
inline constexpr CopyShape kCopyShapes[] = {
    {512, 16, 1, 0}, {128, 16, 1, 0}, {512, 8, 1, 0}, {256, 16, 2, 0}, {256, 16, 4, 0}, {512, 16, 2, 2},
};
std::string to_text(const CopyShape& shape);  // "t=256 bytes=16 vectors=4", "t=512 bytes=16 vectors=2 b=2"

// Where the streams of one copy lie in its part of a buffer, inputs first; each begins at a multiple of 256
// bytes.
struct CopyLayout {
  // Divides so many bytes among the streams, as their elements are sized. What rows share, and statistics,
  // go with the matrices.
  CopyLayout(const CopyStreams& streams, std::int64_t bytes);

  std::vector<std::size_t> at;
  std::size_t bytes = 0;      // of the part
  std::int64_t smallest = 0;  // bytes of the smallest stream, a multiple of 16
};

// Its text. Each stream that it writes is the sum of those that it reads, 32 bits by 32 bits, so that no load
// can be left out; with one of each it is a plain copy. Without one that it writes, it only reads. `overlap`:
// for launches that overlap the one before.
std::string copy_source(const CopyStreams& streams, const CopyShape& shape, bool overlap);

// One copy kernel, loaded.
class CopyKernel {
 public:
  CopyKernel(const Gpu& gpu, std::shared_ptr<LoadedKernel> kernel, const CopyShape& shape, int sm_count,
             bool overlap)
      : gpu_(gpu), kernel_(std::move(kernel)), shape_(shape), sm_count_(sm_count), overlap_(overlap) {}

  // Enqueues a copy of streams that lie as in `layout` from `part` on, which is a multiple of 16.
  void launch(void* part, const CopyLayout& layout, Stream stream) const;
  const CopyShape& shape() const { return shape_; }

 private:
  const Gpu& gpu_;
  std::shared_ptr<LoadedKernel> kernel_;
  CopyShape shape_;
  int sm_count_;
  bool overlap_;
};

// The copy kernels of a GPU, each compiled when it is first asked for. For one thread.
class Copies {
 public:
  Copies(const Options& options, const Gpu& gpu, const DeviceProfile& device);

  // One for each of kCopyShapes; valid as long as this. Throws normjit::Exception.
  const std::vector<CopyKernel>& of(const CopyStreams& streams, bool overlap = false);

 private:
  const Options options_;
  const Gpu& gpu_;
  const DeviceProfile device_;
  std::map<std::pair<CopyStreams, bool>, std::vector<CopyKernel>> kernels_;
};

}  // namespace normjit::cli
