// SPDX-License-Identifier: Apache-2.0
// What the model of the planner's costs knows of a plan: the physics of its launches in a few numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "normjit/plan.h"

namespace normjit {

// Logarithms are binary. "Of a multiprocessor" is a mean over all of the device.
#define NORMJIT_PLAN_FEATURES(X)                                                                   \
  /* Of the launch. */                                                                             \
  X(log_bytes)      /* that it must move, of a multiprocessor */                                   \
  X(log_rows)       /* of a multiprocessor */                                                      \
  X(log_row_bytes)  /* that a row must move */                                                     \
  X(input_bytes)    /* of an element of x */                                                       \
  X(moved_bytes)    /* that are read and written of a column of a row */                           \
  X(in_double)      /* computed in f64 */                                                          \
  X(calls_function) /* the activation or gate does */                                              \
  X(affine_share)   /* of weight and bias in all bytes */                                          \
  X(parameters)     /* vectors of parameters: of all rows, and of each */                          \
  X(row_parameters) /* of each row */                                                              \
  X(adds_rows)      /* more of a row than x is read in front of the norm */                        \
  X(is_layer)       /* has a mean */                                                               \
  X(scales)         /* 1: of blocks, 2: of rows */                                                 \
  X(mixes_types)    /* operands have several dtypes */                                             \
  X(needs_sums)     /* sums over rows: dweight, dbias */                                           \
  /* Of the plan. */                                                                               \
  X(in_warps)        /* warp_rows */                                                               \
  X(staged)          /* staged_rows */                                                             \
  X(in_ring)         /* persistent_row, gradient_ring */                                           \
  X(read_twice)      /* split_row, gradient_columns */                                             \
  X(log_threads)     /* of a block */                                                              \
  X(log_row_threads) /* of a row */                                                                \
  X(access_bytes)    /* of x */                                                                    \
  X(widest_access)   /* bytes, of any operand */                                                   \
  X(per_thread)      /* accesses of a thread */                                                    \
  X(elements)        /* of a thread */                                                             \
  X(blocks)          /* resident on a multiprocessor */                                            \
  X(warps)           /* resident on a multiprocessor */                                            \
  X(registers)       /* that a thread may have */                                                  \
  X(held)            /* registers for the row as it was loaded */                                  \
  X(spare)           /* registers beyond what such a kernel needs; below 0 it may spill */         \
  X(log_in_flight)   /* bytes that resident threads have asked for at once, of a multiprocessor */ \
  X(idle)            /* threads' places beyond the end of a row, over the columns */               \
  X(log_waves)       /* blocks over those that are resident at once */                             \
  X(tail)            /* of the last wave that is empty, over all waves */                          \
  X(busy)            /* multiprocessors that have a block, at most 1 */                            \
  X(log_row_blocks)  /* blocks that share a row */                                                 \
  X(over_grid)       /* they exchange through global memory */                                     \
  X(alone)           /* gradients: one block does, or adds, all */                                 \
  X(group_rows)                                                                                    \
  X(unaligned)                                                                                     \
  X(ring_rows)  /* rows of a block that its ring holds */                                          \
  X(shared_kib) /* of a multiprocessor */                                                          \
  X(log_run)    /* bytes side by side that the threads of a row move at once */                    \
  X(early)      /* parameters are loaded together with x */                                        \
  X(log_slice)  /* bytes of a row that a block has at once */                                      \
  X(log_pieces) /* pieces in which a block takes a row */                                          \
  X(log_sums)   /* gradients: bytes of sums over rows that blocks exchange, of a multiprocessor */

enum class Feature : std::uint8_t {
#define NORMJIT_NAME(name) name,
  NORMJIT_PLAN_FEATURES(NORMJIT_NAME)
#undef NORMJIT_NAME
};
inline constexpr std::string_view kFeatureNames[] = {
#define NORMJIT_TEXT(name) #name,
    NORMJIT_PLAN_FEATURES(NORMJIT_TEXT)
#undef NORMJIT_TEXT
};
inline constexpr std::size_t kFeatures = std::size(kFeatureNames);
// The first of them are of the launch, and the same for all its plans.
inline constexpr auto kFeaturesOfLaunch = static_cast<std::size_t>(Feature::in_warps);

struct Features {
  std::array<float, kFeatures> values{};

  float& operator[](Feature feature) { return values[static_cast<std::size_t>(feature)]; }
  float operator[](Feature feature) const { return values[static_cast<std::size_t>(feature)]; }
};

// The features of legal plans of one launch. With channels first a row is a position. The spec and the device
// must live as long.
class LaunchFeatures {
 public:
  LaunchFeatures(const NormSpec& spec, const DeviceProfile& device, std::int64_t rows);
  Features of(const Plan& plan) const;
  const Features& common() const { return common_; }  // what all plans share

 private:
  const NormSpec& spec_;
  const DeviceProfile& device_;
  const std::int64_t rows_;
  const int weight_bytes_, read_bytes_;  // of a column of a vector, of all rows that are read
  const int widest_element_;             // of them and all rows
  Features common_;
};

}  // namespace normjit
