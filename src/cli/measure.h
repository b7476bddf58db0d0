// How fast a kernel is on a GPU, against a plain copy of the same number of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/copy_kernel.h"
#include "cli/gpu.h"
#include "cli/reports.h"
#include "normjit/service.h"

namespace normjit::cli {

// Bytes that a launch must move, whatever the kernel: x and y once, weight and bias once, statistics once.
std::int64_t bytes_moved(const LayerNormSpec& spec, std::int64_t rows) noexcept;

// Where the tensors of one launch lie in its part of a buffer; each begins at a multiple of 256 bytes.
struct SetLayout {
  std::size_t x = 0, y = 0, weight = 0, bias = 0, mean = 0, rstd = 0;
  std::size_t bytes = 0;
};
SetLayout layout_of(const LayerNormSpec& spec, std::int64_t rows) noexcept;

// How many sets of buffers a graph rotates through, so that a launch finds nothing of its own in the L2
// cache: together at least four times the cache, two at least, bounded by memory and by what a graph can
// hold.
std::int64_t rotation_sets(std::size_t set_bytes, std::int64_t l2_bytes, std::size_t memory) noexcept;

Timing timing_of(std::vector<double> samples) noexcept;  // of at least one

// Times `replays` replays of a graph of launches, each alternating with one of copies, so that both see the
// same clocks. Throws normjit::Exception.
BenchReport measure(Service& service, const Gpu& gpu, const CopyKernel& copy, const LayerNormSpec& spec,
                    std::int64_t rows, int replays, const std::optional<Plan>& plan = {});

}  // namespace normjit::cli
