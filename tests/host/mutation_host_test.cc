// SPDX-License-Identifier: Apache-2.0
// Do the tests of the kernels notice mistakes? Every planted fault and many automatic mutants of the
// templates are compiled and run, until one of the experiments below finds something wrong. Cases, inputs and
// schedules are fixed, so the score is the same every time, and what is known from earlier runs is believed
// (see tests/support/verdict_cache.h).
#include <fnmatch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/codegen/templates.h"
#include "normjit/service/prepared.h"
#include "simt/launch.h"
#include "tests/support/child.h"
#include "tests/support/equivalent_mutants.h"
#include "tests/support/host_kernels.h"
#include "tests/support/mutation.h"
#include "tests/support/verdict_cache.h"
#include "verify/element.h"

namespace normjit::testing {
namespace {

using simt::HostKernel;

// Of processor time; a right kernel takes a sixth of it at most, on a machine that others slow down more.
constexpr std::chrono::milliseconds kTimeLimit(1000);
// Of real time, for the process of a mutant that the time limit does not end.
constexpr unsigned kMostSeconds = 120;
// Kernels in a translation unit: more save little, and waste more when one of them does not compile.
constexpr std::size_t kUnit = 32;
// Tests that ctest may run at the same time.
constexpr int kShards = 8;

// ---- Experiments ----

// A kernel, and how to see whether it is right.
struct Experiment {
  std::string name;
  Source source;
  std::set<std::string> files;  // whose mutants are tried here
  // What is wrong, or nothing.
  std::function<std::optional<std::string>(const HostKernel&)> wrong;
};

struct Pinned {
  std::string_view text;
  std::vector<std::uint64_t> schedules;
  std::vector<std::string> files = {};  // none: all that its kernel is made of
};

// What kernels of other stages of the algebra try: files of another kernel are left out.
const std::vector<std::string> kOperation = {"layout.cuh",
                                             "op/functions.cuh",
                                             "op/source.cuh",
                                             "op/sink.cuh",
                                             "op/statistics.cuh",
                                             "schedule/fragment.cuh",
                                             "schedule/ring.cuh",
                                             "schedule/warp_rows.cu",
                                             "schedule/staged_rows.cu",
                                             "schedule/block_row.cu",
                                             "schedule/split_row.cu",
                                             "schedule/persistent_row.cu",
                                             "schedule/generic.cu",
                                             "schedule/generic.cuh"};

// What kernels with results of 8 bits, a second result or the largest one try.
const std::vector<std::string> kQuantized = {"number.cuh",
                                             "reduce.cuh",
                                             "op/quantizer.cuh",
                                             "op/sink.cuh",
                                             "schedule/workspace.cuh",
                                             "schedule/fragment.cuh",
                                             "schedule/exchange.cuh",
                                             "schedule/warp_rows.cu",
                                             "schedule/staged_rows.cu",
                                             "schedule/block_row.cu",
                                             "schedule/split_row.cu",
                                             "schedule/generic.cu",
                                             "schedule/generic.cuh"};

// What kernels with results of 4 bits try.
const std::vector<std::string> kOf4Bits = {"layout.cuh",
                                           "number.cuh",
                                           "op/quantizer.cuh",
                                           "op/sink.cuh",
                                           "schedule/fragment.cuh",
                                           "schedule/warp_rows.cu",
                                           "schedule/block_row.cu",
                                           "schedule/generic.cu",
                                           "schedule/generic.cuh"};

// What kernels of gradients try.
const std::vector<std::string> kGradients = {"op/derivatives.cuh", "op/gradients.cuh",
                                             "schedule/gradient_rows.cu", "schedule/gradient_ring.cu",
                                             "schedule/gradient_columns.cu"};

// What the generic kernel of gradients tries.
const std::vector<std::string> kGenericGradients = {"op/derivatives.cuh", "schedule/generic.cuh",
                                                    "schedule/generic_gradients.cu"};

// What kernels with channels first try.
const std::vector<std::string> kChannels = {"schedule/channels_first.cu"};

// Mutants meet the cases in this order, the cheap ones first.
const std::vector<Pinned> kPinned = {
    // Partial rows, more vectors a thread than have their weights loaded early, rows left over, blocks that
    // loop, gaps.
    {"layernorm/cols=90/f32/wb/gelu/scale=-0.5/stats warp_rows threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 arch=sm_90 rows=37 x_gap=6 y_gap=4 blocks=2 overlaps=1 seed=1",
     {0, 14}},
    // Whole rows with early weights; a NaN.
    {"layernorm/cols=64/f32/w/relu/stats warp_rows threads=64 threads_per_row=16 vector=2 per_thread=2 "
     "arch=sm_90 rows=10 inputs=nan_row seed=3",
     {0}},
    // A mean that cannot be exact.
    {"layernorm/cols=45/f32/silu/stats warp_rows threads=32 threads_per_row=4 vector=1 per_thread=12 "
     "arch=sm_90 rows=20 inputs=constant_rows seed=4",
     {0},
     {"op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh", "op/statistics.cuh"}},
    // A thread for each row; only one row; a block's rows exactly.
    {"layernorm/cols=7/f64/out=f16/wb/gelu_tanh/scale=2/stats warp_rows threads=32 threads_per_row=1 "
     "vector=1 per_thread=7 arch=sm_90 rows=70 seed=5",
     {0},
     {"op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh", "schedule/warp_rows.cu"}},
    {"layernorm/cols=4/f32/scale=0/stats warp_rows threads=32 threads_per_row=2 vector=2 per_thread=1 "
     "arch=sm_90 rows=1 seed=6",
     {0},
     {"op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh", "schedule/warp_rows.cu"}},
    {"layernorm/cols=40/f16/wb/gelu warp_rows threads=32 threads_per_row=1 vector=8 per_thread=5 arch=sm_90 "
     "rows=33 seed=41",
     {0},
     {"op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh"}},
    // Pairs of bf16.
    {"layernorm/cols=40/bf16/wb warp_rows threads=32 threads_per_row=1 vector=8 per_thread=5 arch=sm_90 "
     "rows=9 seed=55",
     {0},
     {"number.cuh"}},
    {"layernorm/cols=40/f64/gelu warp_rows threads=32 threads_per_row=4 vector=2 per_thread=5 arch=sm_90 "
     "rows=13 in_place=1 inputs=mixed seed=7",
     {15},
     {"op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh", "schedule/warp_rows.cu"}},

    // The rms of x + residual, which is also stored: partial rows, gaps.
    {"rmsnorm/cols=90/f32/add/sum/wb/gelu/scale=-0.5/stats warp_rows threads=64 threads_per_row=8 "
     "vector=2 per_thread=6 arch=sm_90 rows=37 x_gap=6 y_gap=4 blocks=2 overlaps=1 residual_gap=4 "
     "sum_gap=6 seed=70",
     {0, 14},
     {"layout.cuh", "reduce.cuh", "op/source.cuh", "op/statistics.cuh", "op/functions.cuh", "op/sink.cuh",
      "schedule/fragment.cuh", "schedule/warp_rows.cu"}},
    // A sum that the storage type rounds and y does not.
    {"layernorm/cols=45/bf16/out=f32/add/sum/w/stats warp_rows threads=32 threads_per_row=4 vector=1 "
     "per_thread=12 arch=sm_90 rows=20 inputs=mixed seed=71",
     {0},
     {"op/source.cuh", "op/statistics.cuh", "op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh",
      "schedule/warp_rows.cu"}},
    // y is x, and the sum is the residual; whole rows; a NaN.
    {"rmsnorm/cols=40/f64/add/sum/silu warp_rows threads=32 threads_per_row=4 vector=2 per_thread=5 "
     "arch=sm_90 rows=13 x_gap=2 in_place=1 inputs=nan_row sum_in_place=1 seed=72",
     {15},
     {"op/source.cuh", "op/statistics.cuh", "op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh",
      "schedule/warp_rows.cu"}},
    // Of x alone, and of a sum that is not stored.
    {"rmsnorm/cols=64/f16/w/stats warp_rows threads=64 threads_per_row=16 vector=2 per_thread=2 arch=sm_90 "
     "rows=10 inputs=near_epsilon seed=73",
     {0},
     {"op/statistics.cuh", "op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh"}},
    {"layernorm/cols=64/f32/add warp_rows threads=64 threads_per_row=16 vector=2 per_thread=2 arch=sm_90 "
     "rows=10 y_gap=2 residual_gap=2 seed=74",
     {0},
     {"op/source.cuh", "schedule/fragment.cuh"}},

    // Several rows a block, so that the halves of the shared memory take turns.
    {"layernorm/cols=300/f16/out=f32/wb/silu/stats block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=2 arch=sm_90 rows=7 x_gap=8 blocks=2 inputs=mixed seed=8",
     {0, 13, 3}},
    // A warp without columns, and one that begins a column behind the last.
    {"layernorm/cols=95/f32/w/stats block_row threads=256 threads_per_row=256 vector=1 per_thread=3 "
     "arch=sm_90 rows=3 blocks=2 inputs=large_mean seed=9",
     {0, 5}},
    // Whole rows with late weights.
    {"layernorm/cols=1536/f32/wb/stats block_row threads=64 threads_per_row=64 vector=4 per_thread=6 "
     "arch=sm_90 rows=4 seed=10 blocks=1",
     {0, 5}},

    // The same of sums: partial rows and whole ones; with two vectors of parameters that come late.
    {"rmsnorm/cols=300/f16/out=f32/add/sum/w/stats block_row threads=128 threads_per_row=128 vector=4 "
     "per_thread=1 arch=sm_90 rows=7 x_gap=8 y_gap=4 blocks=2 inputs=mixed residual_gap=4 sum_gap=8 "
     "seed=75",
     {0, 13, 3},
     {"op/source.cuh", "op/statistics.cuh", "op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh",
      "schedule/block_row.cu"}},
    {"rmsnorm/cols=1536/f32/add/sum/wb/stats block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=6 arch=sm_90 rows=4 y_gap=8 residual_gap=8 seed=76 blocks=1",
     {0, 5},
     {"op/source.cuh", "op/statistics.cuh", "op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh",
      "schedule/block_row.cu"}},
    {"layernorm/cols=300/bf16/out=f32/add/sum/wb/stats block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=2 arch=sm_90 rows=5 y_gap=4 blocks=2 inputs=large_mean residual_gap=4 seed=77",
     {0},
     {"op/source.cuh", "schedule/fragment.cuh", "schedule/block_row.cu"}},
    {"rmsnorm/cols=95/f64/add/sum/wb block_row threads=256 threads_per_row=256 vector=1 per_thread=3 "
     "arch=sm_90 rows=5 x_gap=3 blocks=2 in_place=1 inputs=nan_row sum_in_place=1 seed=78",
     {0, 5},
     {"op/source.cuh", "op/statistics.cuh", "op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh",
      "schedule/block_row.cu"}},
    // Whole rows of equal parts, whose means are large.
    {"layernorm/cols=256/f32/stats block_row threads=64 threads_per_row=64 vector=4 per_thread=1 "
     "arch=sm_90 rows=40 inputs=large_mean seed=235",
     {0},
     {"op/statistics.cuh"}},

    // Whole chunks with early weights, all of them measured before the first is applied; a second launch.
    {"layernorm/cols=128/f32/wb split_row threads=64 threads_per_row=64 vector=1 per_thread=1 group_rows=2 "
     "blocks_per_sm=2 sms=1 arch=sm_90 rows=3 runs=2 inputs=nan_row seed=14",
     {15}},
    // More chunks than threads, one column left over, a batch left over.
    {"layernorm/cols=1281/f64/stats split_row threads=32 threads_per_row=32 vector=1 per_thread=1 "
     "group_rows=3 blocks_per_sm=2 sms=2 arch=sm_90 rows=5 inputs=large_mean seed=13",
     {5}},
    // More blocks than a row has chunks, so that some know nothing of a row; a ring of exactly as many rows
    // as are wanted, which wraps. In this schedule one block is late by a turn of the ring.
    {"layernorm/cols=100/f32/stats split_row threads=64 threads_per_row=64 vector=1 per_thread=1 "
     "group_rows=1 blocks_per_sm=3 sms=1 arch=sm_90 rows=80 y_gap=2 inputs=large_mean seed=10",
     {13}},
    // Groups of two batches, the last group only one; late weights.
    {"layernorm/cols=200/bf16/wb split_row threads=32 threads_per_row=32 vector=1 per_thread=3 group_rows=8 "
     "blocks_per_sm=2 sms=1 arch=sm_90 rows=68 in_place=1 seed=11",
     {13}},
    // So many threads that weights come late.
    {"layernorm/cols=200/f32/wb split_row threads=32 threads_per_row=32 vector=1 per_thread=3 group_rows=2 "
     "blocks_per_sm=9 sms=1 arch=sm_90 rows=6 seed=54",
     {0},
     {"op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh", "schedule/split_row.cu"}},
    // Rows shared by blocks: in a cluster, whose last slice has a warp without columns; whole slices.
    {"layernorm/cols=400/f32/wb/stats block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_row=4 exchange=cluster arch=sm_90 rows=5 blocks=8 x_gap=3 inputs=large_mean overlaps=1 "
     "seed=16",
     {0, 13}},
    {"layernorm/cols=256/f32/stats block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_row=2 exchange=cluster arch=sm_90 rows=3 seed=17",
     {5},
     {"layout.cuh", "schedule/exchange.cuh", "schedule/block_row.cu"}},
    {"layernorm/cols=100/f32/w block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_row=2 exchange=cluster arch=sm_90 rows=2 seed=37",
     {0},
     {"layout.cuh"}},
    {"layernorm/cols=380/f32/wb block_row threads=64 threads_per_row=64 vector=1 per_thread=3 "
     "blocks_per_row=2 exchange=cluster arch=sm_90 rows=3 seed=31",
     {0},
     {"schedule/block_row.cu"}},
    // Parts of as many columns, several for each lane that merges them.
    {"layernorm/cols=8192/f32/stats block_row threads=1024 threads_per_row=1024 vector=1 per_thread=1 "
     "blocks_per_row=8 exchange=cluster arch=sm_90 rows=1 seed=53",
     {0},
     {"op/statistics.cuh", "schedule/fragment.cuh"}},
    // Sums in slices.
    {"rmsnorm/cols=400/f32/add/sum/wb/stats block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_row=4 exchange=cluster arch=sm_90 rows=5 blocks=8 x_gap=3 overlaps=1 sum_gap=3 seed=79",
     {0, 13},
     {"op/source.cuh", "op/statistics.cuh", "op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh",
      "schedule/block_row.cu"}},
    {"rmsnorm/cols=4096/f32/add/sum/w block_row threads=512 threads_per_row=512 vector=1 per_thread=1 "
     "blocks_per_row=8 exchange=cluster arch=sm_90 rows=2 y_gap=1 residual_gap=1 seed=80",
     {0},
     {"op/source.cuh", "op/statistics.cuh", "schedule/fragment.cuh", "schedule/block_row.cu"}},
    // In teams, of which one has a row less, and again; with slices that have no columns; with more slices
    // than a warp has lanes.
    {"layernorm/cols=300/f32/stats block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_sm=2 blocks_per_row=3 exchange=grid sms=3 arch=sm_80 rows=7 runs=2 inputs=large_mean "
     "seed=18",
     {0, 13}},
    {"layernorm/cols=256/f64/w block_row threads=64 threads_per_row=64 vector=1 per_thread=2 blocks_per_sm=2 "
     "blocks_per_row=5 exchange=grid sms=5 arch=sm_90 rows=5 overlaps=1 inputs=nan_row seed=19",
     {10},
     {"layout.cuh", "op/statistics.cuh", "schedule/fragment.cuh", "schedule/exchange.cuh",
      "schedule/workspace.cuh", "schedule/block_row.cu"}},
    {"layernorm/cols=1050/f32 block_row threads=32 threads_per_row=32 vector=1 per_thread=1 blocks_per_sm=2 "
     "blocks_per_row=33 exchange=grid sms=17 arch=sm_90 rows=2 inputs=large_mean seed=20",
     {0},
     {"layout.cuh", "op/statistics.cuh", "schedule/fragment.cuh", "schedule/exchange.cuh",
      "schedule/block_row.cu"}},

    // Sums in teams; in place.
    {"rmsnorm/cols=300/f32/add/sum/w/stats block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_sm=2 blocks_per_row=3 exchange=grid sms=3 arch=sm_80 rows=7 x_gap=1 y_gap=2 runs=2 "
     "residual_gap=2 sum_gap=1 seed=81",
     {0, 13},
     {"op/source.cuh", "op/statistics.cuh", "op/functions.cuh", "op/sink.cuh", "schedule/fragment.cuh",
      "schedule/exchange.cuh", "schedule/block_row.cu"}},
    {"rmsnorm/cols=1050/f64/add/sum block_row threads=32 threads_per_row=32 vector=1 per_thread=1 "
     "blocks_per_sm=2 blocks_per_row=33 exchange=grid sms=17 arch=sm_90 rows=2 in_place=1 sum_in_place=1 "
     "seed=82",
     {0},
     {"op/source.cuh", "op/statistics.cuh", "schedule/exchange.cuh", "schedule/block_row.cu"}},

    // Tiles: of rows one after the other, whole ones and a last one that is not, from every place; with gaps,
    // in which each row is a run; in place; wide elements into narrow ones and back; tiles shorter than an
    // access.
    {"layernorm/cols=45/f16/wb/stats staged_rows threads=64 threads_per_row=4 vector=1 per_thread=12 "
     "group_rows=2 arch=sm_90 rows=71 x_shift=3 y_shift=6 weight_shift=1 blocks=1 guard=before overlaps=1 "
     "seed=21",
     {0, 13}},
    {"layernorm/cols=45/f16/w/stats staged_rows threads=64 threads_per_row=4 vector=1 per_thread=12 "
     "group_rows=2 arch=sm_90 rows=37 x_shift=2 x_gap=2 y_gap=1 blocks=1 guard=before seed=39",
     {0, 13}},
    {"layernorm/cols=45/f16/w staged_rows threads=64 threads_per_row=4 vector=1 per_thread=12 group_rows=2 "
     "arch=sm_90 rows=33 x_gap=7 seed=84",
     {0},
     {"plan_math.cuh"}},
    {"layernorm/cols=33/f32/out=f16/wb/stats staged_rows threads=32 threads_per_row=1 vector=1 per_thread=33 "
     "arch=sm_90 rows=66 y_shift=1 y_gap=3 overlaps=1 seed=22",
     {0},
     {"schedule/staged_rows.cu"}},
    {"layernorm/cols=6/f16/out=f32/wb staged_rows threads=32 threads_per_row=2 vector=2 per_thread=2 "
     "group_rows=3 arch=sm_90 rows=100 x_shift=2 seed=40",
     {0},
     {"schedule/staged_rows.cu"}},
    {"layernorm/cols=19/f32/w staged_rows threads=32 threads_per_row=4 vector=1 per_thread=5 group_rows=2 "
     "arch=sm_75 rows=33 x_shift=3 guard=before seed=45",
     {0},
     {"schedule/staged_rows.cu"}},
    // Tiles of as many elements as their wide accesses have, of which the edges take some.
    {"layernorm/cols=16/f32 staged_rows threads=32 threads_per_row=4 vector=1 per_thread=4 group_rows=2 "
     "arch=sm_90 rows=16 x_shift=1 seed=85",
     {0},
     {"schedule/staged_rows.cu"}},
    {"layernorm/cols=8/f64 staged_rows threads=32 threads_per_row=4 vector=1 per_thread=2 arch=sm_90 rows=8 "
     "x_shift=1 seed=88",
     {0},
     {"schedule/staged_rows.cu"}},
    {"layernorm/cols=1/bf16 staged_rows threads=64 threads_per_row=32 vector=1 per_thread=1 arch=sm_90 "
     "rows=9 x_shift=5 in_place=1 seed=41",
     {0},
     {"schedule/staged_rows.cu"}},
    {"layernorm/cols=257/f32/w staged_rows threads=32 threads_per_row=32 vector=1 per_thread=9 group_rows=3 "
     "arch=sm_90 rows=7 in_place=1 blocks=1 guard=before seed=42",
     {0, 13},
     {"schedule/staged_rows.cu", "op/statistics.cuh", "schedule/fragment.cuh"}},

    // Rows that begin anywhere.
    {"layernorm/cols=201/f32/wb block_row threads=64 threads_per_row=64 vector=4 per_thread=1 unaligned=1 "
     "arch=sm_90 rows=5 x_gap=1 y_gap=2 blocks=2 inputs=large_mean seed=23",
     {0, 13, 3},
     {"layout.cuh", "schedule/unaligned.cuh", "op/statistics.cuh", "schedule/fragment.cuh",
      "schedule/block_row.cu"}},
    {"layernorm/cols=301/bf16/wb block_row threads=32 threads_per_row=32 vector=8 per_thread=1 "
     "blocks_per_row=2 exchange=cluster unaligned=1 arch=sm_90 rows=4 blocks=2 y_shift=1 in_place=1 seed=24",
     {0, 5},
     {"layout.cuh", "schedule/unaligned.cuh", "schedule/exchange.cuh", "schedule/block_row.cu"}},
    {"rmsnorm/cols=201/f32/wb/stats block_row threads=64 threads_per_row=64 vector=4 per_thread=1 "
     "unaligned=1 arch=sm_90 rows=5 x_gap=1 y_gap=2 blocks=2 seed=83",
     {0},
     {"op/statistics.cuh", "schedule/block_row.cu"}},
    // The single elements in the second warp of four, where the last vector is the last of it, and in the
    // third, where it is the first; no vector at all; parameters of each row.
    {"layernorm/cols=257/f32/wb block_row threads=128 threads_per_row=128 vector=4 per_thread=1 unaligned=1 "
     "arch=sm_90 rows=5 x_gap=1 y_gap=1 blocks=2 inputs=large_mean seed=90",
     {0, 13},
     {"layout.cuh", "schedule/fragment.cuh", "schedule/block_row.cu"}},
    {"layernorm/cols=261/f32/wb block_row threads=128 threads_per_row=128 vector=4 per_thread=1 unaligned=1 "
     "arch=sm_90 rows=5 x_gap=1 y_gap=1 blocks=2 inputs=large_mean seed=93",
     {0},
     {"layout.cuh"}},
    {"layernorm/cols=5/bf16/w block_row threads=32 threads_per_row=32 vector=8 per_thread=1 unaligned=1 "
     "arch=sm_90 rows=3 guard=before seed=94",
     {0},
     {"layout.cuh", "schedule/block_row.cu"}},
    {"layernorm/cols=301/f16/wb:rows block_row threads=64 threads_per_row=64 vector=8 per_thread=1 "
     "unaligned=1 arch=sm_90 rows=7 blocks=2 seed=91",
     {0, 13, 5},
     {"schedule/unaligned.cuh", "schedule/block_row.cu"}},
    {"rmsnorm/cols=301/f32/w:rows split_row threads=32 threads_per_row=32 vector=4 per_thread=1 group_rows=4 "
     "blocks_per_sm=2 sms=1 unaligned=1 arch=sm_90 rows=6 seed=92",
     {0, 13},
     {"schedule/unaligned.cuh", "schedule/split_row.cu"}},
    // As many columns as the vectors of the lanes, of which the edges take some.
    {"layernorm/cols=128/f32 block_row threads=32 threads_per_row=32 vector=4 per_thread=1 unaligned=1 "
     "arch=sm_90 rows=2 x_shift=1 seed=86",
     {0},
     {"layout.cuh", "op/source.cuh", "schedule/unaligned.cuh"}},
    // Weights that are misaligned, one or the other.
    {"layernorm/cols=301/bf16/wb block_row threads=32 threads_per_row=32 vector=8 per_thread=2 unaligned=1 "
     "arch=sm_90 rows=3 weight_shift=1 guard=before seed=43",
     {0},
     {"schedule/unaligned.cuh"}},
    {"layernorm/cols=301/bf16/wb block_row threads=32 threads_per_row=32 vector=8 per_thread=2 unaligned=1 "
     "arch=sm_90 rows=3 bias_shift=1 guard=before seed=44",
     {0},
     {"schedule/unaligned.cuh"}},
    // Weights that are both aligned.
    {"layernorm/cols=301/bf16/wb block_row threads=32 threads_per_row=32 vector=8 per_thread=2 unaligned=1 "
     "arch=sm_90 rows=1 guard=before seed=89",
     {0},
     {"schedule/unaligned.cuh"}},
    {"layernorm/cols=301/f32/wb/stats split_row threads=32 threads_per_row=32 vector=4 per_thread=1 "
     "group_rows=4 blocks_per_sm=2 sms=1 unaligned=1 arch=sm_90 rows=6 x_gap=2 x_shift=1 overlaps=1 seed=25",
     {0, 13},
     {"layout.cuh", "schedule/unaligned.cuh", "schedule/split_row.cu"}},
    // Other operands of rows, where x is cut, or elsewhere; what is found of the results.
    {"layernorm/cols=301/bf16/add/sum/wb block_row threads=64 threads_per_row=64 vector=8 per_thread=1 "
     "unaligned=1 arch=sm_90 rows=9 x_gap=1 residual_gap=1 y_gap=1 sum_gap=1 blocks=2 inputs=large_mean "
     "seed=95",
     {0, 13},
     {"layout.cuh", "op/source.cuh", "schedule/fragment.cuh"}},
    {"rmsnorm/cols=301/f32/gate:silu/add/sum block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=2 unaligned=1 arch=sm_90 rows=9 x_gap=1 gate_gap=2 residual_gap=3 y_gap=2 sum_gap=3 "
     "blocks=2 guard=before seed=96",
     {0},
     {"layout.cuh", "op/source.cuh", "schedule/fragment.cuh"}},
    {"rmsnorm/cols=301/f32/gate:silu/add block_row threads=64 threads_per_row=64 vector=4 per_thread=2 "
     "unaligned=1 arch=sm_90 rows=9 gate_gap=2 blocks=2 guard=before seed=97",
     {0},
     {"layout.cuh", "op/source.cuh", "schedule/fragment.cuh"}},
    {"layernorm/cols=301/f32/addafter block_row threads=64 threads_per_row=64 vector=4 per_thread=2 "
     "unaligned=1 arch=sm_90 rows=5 x_gap=1 residual_gap=1 seed=98",
     {0},
     {"layout.cuh", "op/source.cuh", "schedule/fragment.cuh"}},
    {"layernorm/cols=301/bf16/addafter block_row threads=64 threads_per_row=64 vector=8 per_thread=1 "
     "unaligned=1 arch=sm_90 rows=9 x_gap=1 residual_gap=3 guard=before seed=99",
     {0},
     {"layout.cuh", "op/source.cuh", "schedule/fragment.cuh"}},
    {"layernorm/cols=301/f32/gateafter:silu/wb/mods block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=2 unaligned=1 arch=sm_90 rows=5 x_gap=1 gate_gap=1 scale_gap=1 guard=before "
     "seed=100",
     {0},
     {"layout.cuh", "op/sink.cuh", "schedule/fragment.cuh", "schedule/unaligned.cuh"}},
    {"rmsnorm/cols=301/f32/mods block_row threads=64 threads_per_row=64 vector=4 per_thread=2 unaligned=1 "
     "arch=sm_90 rows=9 x_gap=1 scale_gap=3 guard=before seed=101",
     {0},
     {"layout.cuh", "op/sink.cuh", "schedule/fragment.cuh", "schedule/unaligned.cuh"}},
    {"rmsnorm/cols=301/f32/out=e4m3/add/sum/w/q=row block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=2 unaligned=1 arch=sm_90 rows=9 x_gap=1 residual_gap=1 y_gap=2 sum_gap=1 blocks=2 "
     "seed=102",
     {0, 13},
     {"op/sink.cuh", "schedule/fragment.cuh", "schedule/unaligned.cuh", "schedule/block_row.cu"}},
    {"rmsnorm/cols=301/bf16/out=s8/w/q=tensor/also=bf16/amax block_row threads=64 threads_per_row=64 "
     "vector=8 per_thread=1 unaligned=1 arch=sm_90 rows=9 x_gap=1 y_gap=1 blocks=2 seed=103",
     {0},
     {"op/sink.cuh", "schedule/fragment.cuh", "schedule/unaligned.cuh", "schedule/block_row.cu"}},
    {"rmsnorm/cols=301/f32/add/sum/w split_row threads=32 threads_per_row=32 vector=4 per_thread=1 "
     "group_rows=4 blocks_per_sm=2 sms=1 unaligned=1 arch=sm_90 rows=6 x_gap=2 residual_gap=1 sum_gap=2 "
     "x_shift=1 seed=104",
     {0, 13},
     {"op/source.cuh", "schedule/fragment.cuh", "schedule/split_row.cu"}},
    {"layernorm/cols=301/bf16/add/sum/w split_row threads=32 threads_per_row=32 vector=8 per_thread=1 "
     "group_rows=4 blocks_per_sm=2 sms=1 unaligned=1 arch=sm_90 rows=6 x_gap=2 residual_gap=2 sum_gap=1 "
     "seed=105",
     {0},
     {"op/source.cuh", "schedule/fragment.cuh", "schedule/split_row.cu"}},

    // Streamed: more rows than places, a partial last chunk; teams of two, and again; a whole slice that is
    // taken ahead; a bias that is not held.
    {"layernorm/cols=3064/f32/wb/stats persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
     "stages=4 sms=1 arch=sm_90 rows=9 x_gap=4 inputs=large_mean overlaps=1 seed=26",
     {0, 13}},
    {"layernorm/cols=5108/f32/w/stats persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
     "blocks_per_row=3 exchange=grid stages=4 sms=6 arch=sm_90 rows=17 runs=2 inputs=large_mean seed=27",
     {0, 13},
     {"schedule/exchange.cuh", "schedule/workspace.cuh", "op/statistics.cuh", "schedule/fragment.cuh",
      "plan_math.cuh", "schedule/ring.cuh", "schedule/persistent_row.cu"}},
    {"layernorm/cols=2048/f32/wb persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
     "blocks_per_row=2 exchange=grid stages=3 sms=2 arch=sm_90 rows=2 seed=57",
     {0},
     {"schedule/persistent_row.cu"}},
    {"layernorm/cols=8192/bf16/out=f32/wb persistent_row threads=512 threads_per_row=256 vector=8 "
     "per_thread=2 stages=2 sms=1 arch=sm_90 rows=3 seed=28",
     {5},
     {"layout.cuh", "plan_math.cuh", "schedule/ring.cuh", "schedule/persistent_row.cu"}},
    {"layernorm/cols=12280/f16/w=f64/wb persistent_row threads=512 threads_per_row=256 vector=8 per_thread=2 "
     "stages=4 sms=1 arch=sm_90 rows=2 seed=29",
     {0},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/persistent_row.cu"}},
    {"layernorm/cols=20472/f16/w=f64/wb persistent_row threads=512 threads_per_row=256 vector=8 per_thread=2 "
     "stages=5 sms=1 arch=sm_90 rows=2 seed=30",
     {0},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/persistent_row.cu"}},
    // A sum that stays in the ring, in place; the ring of residuals goes round more often.
    {"layernorm/cols=5112/f32/add/sum/w persistent_row threads=512 threads_per_row=256 vector=4 per_thread=2 "
     "stages=5 sms=1 arch=sm_90 rows=4 sum_in_place=1 seed=93",
     {0, 13},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/persistent_row.cu"}},
    // A warp that measures nothing, and one of which only a lane does.
    {"layernorm/cols=260/f32/w/stats persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
     "stages=2 sms=1 arch=sm_90 rows=2 inputs=large_mean seed=34",
     {0},
     {"layout.cuh", "op/statistics.cuh", "schedule/fragment.cuh", "plan_math.cuh", "schedule/ring.cuh",
      "schedule/persistent_row.cu"}},
    // Chunks so large that one alone is in flight.
    {"layernorm/cols=11264/f32 persistent_row threads=512 threads_per_row=256 vector=4 per_thread=11 "
     "stages=2 sms=1 arch=sm_90 rows=2 seed=35",
     {0},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/persistent_row.cu"}},
    // Persistent rows that begin anywhere: one chunk each.
    {"layernorm/cols=1501/f16/out=f32/wb/stats persistent_row threads=512 threads_per_row=256 vector=8 "
     "per_thread=1 stages=3 unaligned=1 sms=1 arch=sm_90 rows=7 x_gap=4 y_gap=1 inputs=large_mean overlaps=1 "
     "seed=46",
     {0, 13},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/unaligned_ring.cuh", "schedule/persistent_row.cu"}},
    // A warp that measures nothing, and one of which only a lane does.
    {"layernorm/cols=65/f32/stats persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
     "stages=2 unaligned=1 sms=1 arch=sm_90 rows=3 seed=52",
     {0},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/unaligned_ring.cuh", "schedule/persistent_row.cu"}},
    // Several elements a thread for each place in a vector; no weights.
    {"layernorm/cols=700/f64 persistent_row threads=512 threads_per_row=256 vector=2 per_thread=2 stages=2 "
     "unaligned=1 sms=1 arch=sm_90 rows=2 x_shift=1 seed=87",
     {0},
     {"schedule/unaligned_ring.cuh"}},
    // Two vectors of a thread, each with its own weights.
    {"rmsnorm/cols=2100/f32/w persistent_row threads=512 threads_per_row=256 vector=4 per_thread=2 stages=2 "
     "unaligned=1 sms=1 arch=sm_90 rows=2 x_shift=1 seed=108",
     {0},
     {"schedule/unaligned_ring.cuh"}},
    // Chunks of which the last is not full.
    {"layernorm/cols=3065/f32/wb/stats persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
     "stages=4 unaligned=1 sms=1 arch=sm_90 rows=6 x_gap=2 x_shift=1 guard=before inputs=large_mean seed=47",
     {0, 13},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/unaligned_ring.cuh", "schedule/persistent_row.cu"}},
    // Slices of one and two chunks, in place, over again; teams of which one has a row less.
    {"layernorm/cols=10101/f16/wb/stats persistent_row threads=512 threads_per_row=256 vector=8 per_thread=1 "
     "blocks_per_row=3 exchange=grid stages=3 unaligned=1 sms=6 arch=sm_90 rows=7 x_gap=2 in_place=1 runs=2 "
     "inputs=large_mean seed=48",
     {0, 5},
     {"schedule/exchange.cuh", "plan_math.cuh", "schedule/ring.cuh", "schedule/unaligned_ring.cuh",
      "schedule/persistent_row.cu"}},
    // A last slice that lies in front of its first whole vector.
    {"layernorm/cols=4099/bf16/w persistent_row threads=512 threads_per_row=256 vector=8 per_thread=1 "
     "blocks_per_row=3 exchange=grid stages=2 unaligned=1 sms=3 arch=sm_90 rows=6 x_shift=2 y_shift=1 "
     "seed=49",
     {0, 13},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/unaligned_ring.cuh", "schedule/persistent_row.cu"}},
    // Full chunks in slices that share vectors.
    {"layernorm/cols=5120/f32/w/stats persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
     "blocks_per_row=2 exchange=grid stages=3 unaligned=1 sms=2 arch=sm_90 rows=5 x_gap=1 y_gap=3 seed=50",
     {0, 13},
     {"op/statistics.cuh", "schedule/fragment.cuh", "plan_math.cuh", "schedule/ring.cuh",
      "schedule/unaligned_ring.cuh", "schedule/persistent_row.cu"}},
    // In double; a last chunk of one column.
    {"layernorm/cols=4609/f64/wb/stats persistent_row threads=512 threads_per_row=256 vector=2 per_thread=1 "
     "stages=11 unaligned=1 sms=1 arch=sm_100 rows=3 x_gap=2 seed=51",
     {0, 13},
     {"plan_math.cuh", "schedule/ring.cuh", "schedule/unaligned_ring.cuh", "schedule/persistent_row.cu"}},
    // Vectors that cover all but the ends of a row, in a block and in the one chunk of a row.
    {"layernorm/cols=257/f32/w block_row threads=64 threads_per_row=64 vector=4 per_thread=1 unaligned=1 "
     "arch=sm_90 rows=3 seed=38",
     {0},
     {"layout.cuh", "schedule/exchange.cuh", "schedule/block_row.cu"}},
    {"layernorm/cols=257/bf16/w split_row threads=32 threads_per_row=32 vector=8 per_thread=1 group_rows=2 "
     "sms=2 unaligned=1 arch=sm_90 rows=17 y_shift=1 seed=33",
     {10},
     {"plan_math.cuh", "layout.cuh", "schedule/unaligned.cuh", "schedule/split_row.cu"}},
    // The generic kernel: a warp a row, of chunks that are not full, with warps and blocks that loop.
    {"layernorm/cols=150/f16/out=bf16/w=f32/wb/gelu/scale=-0.5/stats generic threads=64 threads_per_row=32 "
     "vector=1 per_thread=5 arch=sm_90 rows=9 x_gap=3 y_gap=1 x_shift=1 blocks=2 overlaps=1 seed=60",
     {0, 13}},
    // A block a row, whose last warp has a part of a chunk; other dtypes; a NaN.
    {"layernorm/cols=300/bf16/out=f32/w=f16/w/silu/stats generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 rows=5 blocks=2 inputs=nan_row guard=before seed=61",
     {0, 13, 3}},
    {"layernorm/cols=433/f32/out=f16/w=bf16/wb/gelu_tanh generic threads=128 threads_per_row=32 vector=1 "
     "per_thread=1 arch=sm_90 rows=4 blocks=1 inputs=large_mean y_gap=5 seed=62",
     {0, 5},
     {"schedule/generic.cu", "schedule/generic.cuh"}},
    // Fewer warps with columns than there are; rows of one number; in place.
    {"layernorm/cols=129/f32/relu/stats generic threads=128 threads_per_row=32 vector=1 per_thread=1 "
     "arch=sm_90 rows=3 in_place=1 inputs=constant_rows seed=63",
     {0, 13},
     {"op/statistics.cuh", "schedule/generic.cu", "schedule/generic.cuh"}},
    {"layernorm/cols=500/f64/out=f32/w=f64/wb/gelu/scale=3/stats generic threads=64 threads_per_row=32 "
     "vector=1 per_thread=2 arch=sm_90 rows=3 inputs=large_mean seed=64",
     {0},
     {"schedule/generic.cu", "schedule/generic.cuh"}},
    {"layernorm/cols=300/f32/w/stats generic threads=64 threads_per_row=32 vector=1 per_thread=1 arch=sm_90 "
     "rows=4 inputs=large_mean seed=66",
     {0},
     {"schedule/generic.cu", "schedule/generic.cuh"}},
    // A part of one column.
    {"layernorm/cols=129/f32/stats generic threads=128 threads_per_row=32 vector=1 per_thread=1 arch=sm_90 "
     "rows=3 seed=67",
     {0},
     {"schedule/generic.cu", "schedule/generic.cuh", "op/statistics.cuh", "schedule/fragment.cuh"}},
    {"layernorm/cols=64/f32/out=f64/w generic threads=64 threads_per_row=32 vector=1 per_thread=2 arch=sm_90 "
     "rows=4 seed=65",
     {0},
     {"schedule/generic.cu", "schedule/generic.cuh"}},
    // Every stage at once: roundings, an offset, types of their own.
    {"rmsnorm/cols=90/bf16/out=f32/w=f32/res=f32/inb/add/sum/round=norm/wb1/gelu/stats warp_rows threads=64 "
     "threads_per_row=8 vector=2 per_thread=6 arch=sm_90 rows=37 x_gap=6 y_gap=4 blocks=2 overlaps=1 "
     "residual_gap=4 sum_gap=6 seed=90",
     {0, 14},
     kOperation},
    {"layernorm/cols=64/f16/out=f32/add/sum/round=sum+norm/w1 warp_rows threads=64 threads_per_row=16 "
     "vector=2 per_thread=2 arch=sm_90 rows=10 sum_in_place=1 seed=91",
     {0},
     kOperation},
    // A residual behind the norm, and weights of each row.
    {"layernorm/cols=90/f32/res=f16/addafter/wb:rows/relu warp_rows threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 arch=sm_90 rows=13 residual_gap=4 y_gap=2 overlaps=1 seed=92",
     {0},
     kOperation},
    {"rmsnorm/cols=45/f16/inb/add/sum/w/stats staged_rows threads=64 threads_per_row=4 vector=1 "
     "per_thread=12 group_rows=2 arch=sm_90 rows=71 x_shift=3 y_shift=6 weight_shift=1 blocks=1 guard=before "
     "overlaps=1 seed=93",
     {0, 13},
     kOperation},
    {"layernorm/cols=45/f16/addafter/wb:rows staged_rows threads=64 threads_per_row=4 vector=1 per_thread=12 "
     "group_rows=2 arch=sm_90 rows=37 x_gap=2 y_gap=1 residual_gap=3 x_shift=1 y_shift=5 seed=94",
     {0, 13},
     kOperation},
    {"layernorm/cols=33/f32/res=f16/inb/sum/w staged_rows threads=32 threads_per_row=2 vector=1 "
     "per_thread=17 arch=sm_75 rows=40 sum_gap=1 x_shift=1 seed=95",
     {0},
     kOperation},
    {"layernorm/cols=256/f32/addafter block_row threads=64 threads_per_row=64 vector=1 per_thread=4 "
     "arch=sm_90 "
     "rows=3 seed=110",
     {0},
     {"schedule/fragment.cuh", "schedule/block_row.cu"}},
    {"layernorm/cols=300/bf16/res=f32/inb/addafter/round=norm/w1:rows block_row threads=64 "
     "threads_per_row=64 vector=4 per_thread=2 arch=sm_90 rows=7 x_gap=8 y_gap=4 blocks=2 residual_gap=4 "
     "seed=96",
     {0, 13},
     kOperation},
    {"rmsnorm/cols=400/f32/inb/add/sum/wb:rows block_row threads=64 threads_per_row=64 vector=1 "
     "per_thread=2 blocks_per_row=4 exchange=cluster arch=sm_90 rows=5 blocks=8 x_gap=3 overlaps=1 seed=97",
     {0, 13},
     kOperation},
    // A sum that is read again, one that is computed again, and a residual that is added behind.
    {"rmsnorm/cols=1281/f32/add/sum/w split_row threads=32 threads_per_row=32 vector=1 per_thread=1 "
     "group_rows=3 blocks_per_sm=2 sms=2 arch=sm_90 rows=5 sum_gap=2 seed=98",
     {5},
     kOperation},
    {"rmsnorm/cols=128/f32/add/sum/w split_row threads=64 threads_per_row=64 vector=1 per_thread=1 "
     "group_rows=2 "
     "blocks_per_sm=2 sms=1 arch=sm_90 rows=3 seed=108",
     {0},
     {"schedule/fragment.cuh", "schedule/split_row.cu"}},
    {"layernorm/cols=200/bf16/inb/add/sum/wb split_row threads=32 threads_per_row=32 vector=1 per_thread=3 "
     "group_rows=8 blocks_per_sm=2 sms=1 arch=sm_90 rows=68 in_place=1 sum_in_place=1 seed=99",
     {13},
     kOperation},
    {"layernorm/cols=200/f32/addafter/w:rows split_row threads=32 threads_per_row=32 vector=1 per_thread=3 "
     "group_rows=2 blocks_per_sm=2 sms=1 arch=sm_90 rows=6 residual_gap=3 seed=100",
     {13},
     kOperation},
    // Streams of x and of the residual; chunks that are taken ahead.
    {"layernorm/cols=3064/f32/add/sum/wb/stats persistent_row threads=512 threads_per_row=256 vector=4 "
     "per_thread=1 stages=4 sms=1 arch=sm_90 rows=9 x_gap=4 residual_gap=8 sum_gap=4 inputs=large_mean "
     "overlaps=1 seed=101",
     {0, 13},
     kOperation},
    {"rmsnorm/cols=5104/bf16/res=f32/add/sum/w1 persistent_row threads=512 threads_per_row=256 vector=8 "
     "per_thread=1 blocks_per_row=2 exchange=grid stages=3 sms=4 arch=sm_90 rows=9 runs=2 sum_in_place=1 "
     "seed=102",
     {0, 13},
     kOperation},
    {"layernorm/cols=3065/f32/wb:rows persistent_row threads=512 threads_per_row=256 vector=4 per_thread=1 "
     "stages=4 "
     "unaligned=1 sms=1 arch=sm_90 rows=6 x_gap=2 x_shift=1 guard=before seed=109",
     {0},
     {"schedule/unaligned_ring.cuh", "schedule/persistent_row.cu"}},
    {"layernorm/cols=3064/f32/addafter/w:rows persistent_row threads=512 threads_per_row=256 vector=4 "
     "per_thread=1 stages=3 sms=1 arch=sm_90 rows=5 residual_gap=4 seed=103",
     {0},
     kOperation},
    {"rmsnorm/cols=150/f16/out=bf16/w=f32/res=f32/inb/add/sum/round=norm/wb1/gelu/stats generic threads=64 "
     "threads_per_row=32 vector=1 per_thread=5 arch=sm_90 rows=9 x_gap=3 y_gap=1 x_shift=1 blocks=2 "
     "overlaps=1 residual_gap=2 sum_gap=5 seed=104",
     {0, 13},
     kOperation},
    {"layernorm/cols=300/bf16/add/sum/round=sum/w generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 rows=5 blocks=2 sum_in_place=1 seed=105",
     {0},
     kOperation},
    {"layernorm/cols=300/bf16/res=f64/addafter/wb:rows generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 rows=5 blocks=2 residual_gap=1 seed=106",
     {0},
     kOperation},
    {"rmsnorm/cols=300/f32/inb/sum/w generic threads=64 threads_per_row=32 vector=1 per_thread=2 arch=sm_90 "
     "rows=5 seed=107",
     {0},
     kOperation},
    // Gates before and behind the norm, modulations; the same for a group of rows, or for each row its own.
    {"layernorm/cols=90/bf16/out=f32/w=f32/mod=f32/inb/gate:sigmoid:table/add/sum/wb/mod:table/relu "
     "warp_rows "
     "threads=64 threads_per_row=8 vector=2 per_thread=6 grouped_rows=1 arch=sm_90 rows=36 group=3 "
     "group_gap=4 x_gap=6 gate_gap=2 residual_gap=4 scale_gap=4 shift_gap=6 y_gap=4 blocks=2 overlaps=1 "
     "seed=120",
     {0, 14},
     kOperation},
    {"rmsnorm/cols=45/f32/gateafter:tanh:table/addafter/w/mods0:table/scale=2 warp_rows threads=32 "
     "threads_per_row=4 vector=1 per_thread=12 arch=sm_90 rows=20 gate_gap=3 residual_gap=1 scale_gap=2 "
     "y_gap=5 seed=121",
     {0},
     kOperation},
    {"layernorm/cols=64/f32/gate:silu/mod0 warp_rows threads=64 threads_per_row=16 vector=2 "
     "per_thread=2 "
     "arch=sm_90 rows=10 x_gap=2 gate_gap=4 scale_gap=6 shift_gap=-64 seed=122",
     {0},
     kOperation},
    {"layernorm/cols=64/f32/gate:silu:table/mod0:table warp_rows threads=64 threads_per_row=16 vector=2 "
     "per_thread=2 "
     "arch=sm_90 rows=10 x_gap=2 gate_gap=4 scale_gap=6 shift_gap=-64 seed=135",
     {0},
     kOperation},
    {"layernorm/cols=64/f32/gateafter:silu/mods warp_rows threads=64 threads_per_row=16 vector=2 "
     "per_thread=2 arch=sm_90 rows=10 gate_gap=4 scale_gap=6 seed=123",
     {0},
     kOperation},
    {"rmsnorm/cols=45/f16/w=f32/gate:tanh:table/add/mod staged_rows threads=64 threads_per_row=4 vector=1 "
     "per_thread=12 group_rows=2 arch=sm_90 rows=37 x_shift=3 y_shift=5 gate_gap=1 scale_gap=3 shift_gap=2 "
     "residual_gap=2 seed=124",
     {0},
     kOperation},
    {"layernorm/cols=300/bf16/mod=f32/gate/add/wb/mod:table block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=2 arch=sm_90 rows=5 blocks=2 gate_gap=4 scale_gap=8 shift_gap=4 seed=125",
     {0},
     kOperation},
    {"rmsnorm/cols=400/f32/gate:silu:table/add/sum/wb:rows/mod:table block_row threads=64 "
     "threads_per_row=64 vector=1 per_thread=2 blocks_per_row=4 exchange=cluster arch=sm_90 rows=5 blocks=8 "
     "x_gap=3 gate_gap=2 scale_gap=1 shift_gap=5 seed=126",
     {0},
     kOperation},
    {"layernorm/cols=200/f32/gate:table/add/sum/mod:table split_row threads=32 threads_per_row=32 vector=1 "
     "per_thread=3 group_rows=2 blocks_per_sm=2 sms=1 arch=sm_90 rows=6 gate_gap=3 scale_gap=4 shift_gap=1 "
     "sum_in_place=1 seed=127",
     {13},
     kOperation},
    {"rmsnorm/cols=200/bf16/gate:silu/sum split_row threads=32 threads_per_row=32 vector=1 "
     "per_thread=3 group_rows=8 blocks_per_sm=2 sms=1 arch=sm_90 rows=12 gate_gap=3 seed=128",
     {13},
     kOperation},
    {"layernorm/cols=3064/f32/gateafter:sigmoid:table/add/sum/wb/mod:table persistent_row threads=512 "
     "threads_per_row=256 vector=4 per_thread=1 stages=4 sms=1 arch=sm_90 rows=5 gate_gap=4 scale_gap=8 "
     "shift_gap=12 seed=129",
     {0, 13},
     kOperation},
    {"rmsnorm/cols=5104/bf16/mod=f32/mods/w persistent_row threads=512 threads_per_row=256 vector=8 "
     "per_thread=1 blocks_per_row=2 exchange=grid stages=3 sms=4 arch=sm_90 rows=9 scale_gap=8 seed=130",
     {0},
     kOperation},
    {"layernorm/cols=150/f16/out=f32/w=f32/mod=bf16/inb/gate:sigmoid:table/add/sum/wb/mod:table/silu generic "
     "threads=64 threads_per_row=32 vector=1 per_thread=5 arch=sm_90 rows=9 group=3 group_gap=2 gate_gap=1 "
     "scale_gap=2 shift_gap=3 seed=131",
     {0},
     kOperation},
    {"rmsnorm/cols=300/bf16/mod=f32/gateafter:tanh:table/addafter/w/mods0:table generic threads=64 "
     "threads_per_row=32 vector=1 per_thread=2 arch=sm_90 rows=5 blocks=2 gate_gap=2 scale_gap=1 seed=132",
     {0},
     kOperation},
    {"rmsnorm/cols=300/f32/gate:silu generic threads=64 threads_per_row=32 vector=1 per_thread=2 arch=sm_90 "
     "rows=5 gate_gap=2 seed=133",
     {0},
     kOperation},
    {"rmsnorm/cols=300/f32/gateafter generic threads=64 threads_per_row=32 vector=1 per_thread=2 arch=sm_90 "
     "rows=5 gate_gap=2 seed=134",
     {0},
     kOperation},
    // Rows that are taken from four places in turn, with some left over.
    {"layernorm/cols=64/f32/mod block_row threads=64 threads_per_row=64 vector=1 per_thread=1 "
     "grouped_rows=1 arch=sm_90 rows=30 group=6 scale_gap=2 blocks=4 seed=136",
     {0},
     kOperation},
    {"layernorm/cols=32/f32/gateafter warp_rows threads=64 threads_per_row=16 vector=2 per_thread=1 "
     "grouped_rows=1 arch=sm_90 rows=72 group=24 gate_gap=2 blocks=3 seed=137",
     {0},
     kOperation},
    // Channels first: tiles that cross samples, threads with a channel less, more threads of a row than a
    // warp
    // has lanes, or one; pieces, and a sum in the place of the residual.
    {"layernorm/cols=45/f32/wb/gelu/stats/cf channels_first threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 "
     "arch=sm_90 rows=42 plane=6 x_gap=4 y_gap=2 blocks=2 overlaps=1 seed=140",
     {0, 13, 14},
     kChannels},
    {"layernorm/cols=150/f32/w/stats/cf channels_first threads=128 threads_per_row=64 vector=1 per_thread=3 "
     "arch=sm_90 rows=9 plane=3 in_place=1 inputs=nan_row guard=before seed=141",
     {0, 13},
     kChannels},
    // A channel more than threads, whose parameters one of them copies beside its own.
    {"layernorm/cols=65/f32/wb/cf channels_first threads=64 threads_per_row=8 vector=2 per_thread=9 "
     "arch=sm_90 rows=12 plane=6 seed=149",
     {0},
     kChannels},
    {"layernorm/cols=7/f16/inb/add/sum/round=sum/wb/stats/cf channels_first threads=32 threads_per_row=1 "
     "vector=4 "
     "per_thread=7 arch=sm_90 rows=136 plane=8 residual_gap=4 sum_gap=8 x_gap=12 seed=142",
     {0},
     kChannels},
    {"layernorm/cols=203/bf16/out=f32/w=f32/inb/add/sum/wb/stats/cf channels_first threads=32 "
     "threads_per_row=4 "
     "vector=2 per_thread=6 arch=sm_90 rows=20 plane=10 sum_in_place=1 residual_gap=6 inputs=large_mean "
     "seed=143",
     {0, 13},
     kChannels},
    {"rmsnorm/cols=256/f32/addafter/w1/silu/stats/cf channels_first threads=256 threads_per_row=32 vector=1 "
     "per_thread=4 arch=sm_90 rows=15 plane=5 residual_gap=3 seed=144",
     {0},
     kChannels},
    {"layernorm/cols=64/f64/wb/cf channels_first threads=64 threads_per_row=16 vector=2 per_thread=4 "
     "arch=sm_90 "
     "rows=14 plane=14 seed=145",
     {0},
     kChannels},
    {"layernorm/cols=3/f16/w/stats/cf channels_first threads=64 threads_per_row=8 vector=2 per_thread=1 "
     "arch=sm_90 "
     "rows=18 plane=2 seed=146",
     {0},
     kChannels},
    {"layernorm/cols=30/f32/inb/add/sum/wb/stats/cf generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 "
     "arch=sm_90 rows=12 plane=6 x_gap=5 residual_gap=3 y_gap=2 sum_gap=1 seed=147",
     {0},
     {"schedule/generic.cu", "schedule/generic.cuh"}},
    {"layernorm/cols=150/bf16/addafter/wb/cf generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 rows=6 plane=3 seed=148",
     {0},
     {"schedule/generic.cu", "schedule/generic.cuh"}},
    // Blocks with a scale each, in every format and layout; rows of zeros, with a NaN and an infinity; second
    // results.
    {"rmsnorm/cols=96/bf16/out=e4m3/wb/also=f32/q=16:e4m3:sw warp_rows threads=64 threads_per_row=8 "
     "vector=4 per_thread=3 arch=sm_90 rows=131 y_gap=4 blocks=3 seed=200",
     {0},
     kQuantized},
    {"layernorm/cols=256/f32/out=e4m3/also=bf16/q=128:cols warp_rows threads=64 threads_per_row=16 "
     "vector=8 per_thread=2 arch=sm_90 rows=6 inputs=constant_rows seed=201",
     {0},
     kQuantized},
    {"rmsnorm/cols=192/f16/out=e5m2/w/q=64:p2 warp_rows threads=64 threads_per_row=16 vector=4 "
     "per_thread=3 arch=sm_90 rows=5 inputs=nan_row seed=202",
     {0},
     kQuantized},
    // A tile of which only the last row is missing.
    {"rmsnorm/cols=32/f32/out=e4m3/q=16:e4m3:sw warp_rows threads=128 threads_per_row=8 vector=4 "
     "per_thread=1 arch=sm_90 rows=255 seed=2",
     {0},
     {"op/quantizer.cuh"}},
    // Lanes without a row, which read the weights of the last one.
    {"rmsnorm/cols=256/f32/out=e4m3/w:rows/q=16:e4m3 warp_rows threads=64 threads_per_row=8 vector=4 "
     "per_thread=8 arch=sm_90 rows=9 seed=1",
     {0},
     {"schedule/warp_rows.cu"}},
    {"rmsnorm/cols=160/bf16/out=s8/w:rows/also=f16/q=32:e8m0:cols4 warp_rows threads=64 threads_per_row=8 "
     "vector=4 per_thread=5 arch=sm_75 rows=13 y_gap=8 seed=203",
     {0},
     kQuantized},
    {"rmsnorm/cols=512/f32/out=e4m3/w/q=32:e8m0:sw warp_rows threads=32 threads_per_row=16 vector=4 "
     "per_thread=8 arch=sm_90 rows=3 inputs=mixed seed=204",
     {0},
     kQuantized},
    {"rmsnorm/cols=256/f32/out=e4m3/addafter/q=32:e8m0:sw warp_rows threads=64 threads_per_row=32 vector=4 "
     "per_thread=2 arch=sm_90 rows=5 seed=205",
     {0},
     kQuantized},
    {"layernorm/cols=96/f32/out=e4m3/q=16:e4m3:sw warp_rows threads=32 threads_per_row=4 vector=8 "
     "per_thread=3 arch=sm_90 rows=63 inputs=constant_rows seed=206",
     {0},
     kQuantized},
    {"layernorm/cols=128/bf16/out=s8/round=y/q=64:cols warp_rows threads=32 threads_per_row=32 vector=2 "
     "per_thread=2 arch=sm_90 rows=5 inputs=inf_row seed=207",
     {0},
     kQuantized},
    {"layernorm/cols=304/bf16/out=e4m3/wb/also=f32/q=16:e8m0:cols4 block_row threads=64 threads_per_row=64 "
     "vector=4 per_thread=2 arch=sm_90 rows=5 blocks=2 y_gap=4 seed=208",
     {0, 13},
     kQuantized},
    {"rmsnorm/cols=512/f32/out=e4m3/w/also=bf16/q=64:cols block_row threads=64 threads_per_row=64 vector=2 "
     "per_thread=2 blocks_per_row=2 exchange=cluster arch=sm_90 rows=3 seed=209",
     {0, 5},
     kQuantized},
    {"rmsnorm/cols=352/f32/out=s8/add/sum/q=32:e8m0:sw block_row threads=64 threads_per_row=64 vector=1 "
     "per_thread=2 blocks_per_row=3 exchange=grid sms=3 arch=sm_80 rows=5 seed=210",
     {0, 13},
     kQuantized},
    {"rmsnorm/cols=160/bf16/out=e4m3/w/also=f16/q=32:e8m0:cols4 generic threads=64 threads_per_row=32 "
     "vector=1 per_thread=5 arch=sm_90 rows=5 y_gap=3 seed=211",
     {0},
     kQuantized},
    {"layernorm/cols=656/f32/out=e4m3/w/also=bf16/q=16:e4m3:sw generic threads=64 threads_per_row=32 "
     "vector=1 per_thread=2 arch=sm_90 rows=3 inputs=nan_row y_shift=1 guard=before seed=212",
     {0},
     kQuantized},
    {"layernorm/cols=384/f32/out=e5m2/q=128:p2:cols generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 rows=6 inputs=constant_rows seed=213",
     {0},
     kQuantized},
    {"rmsnorm/cols=320/f16/out=s8/w/q=64 generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 rows=3 seed=214",
     {0},
     kQuantized},
    // Scales of rows with a bound, and second results.
    {"rmsnorm/cols=64/f16/out=e4m3/w/also=bf16/q=tensor warp_rows threads=32 threads_per_row=16 vector=4 "
     "per_thread=1 arch=sm_90 rows=3 y_gap=4 seed=228",
     {0},
     kQuantized},
    {"rmsnorm/cols=90/bf16/out=e4m3/wb/also=bf16/q=row:ub warp_rows threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 arch=sm_90 rows=13 y_gap=4 inputs=nan_row seed=215",
     {0},
     kQuantized},
    {"rmsnorm/cols=300/bf16/out=e4m3/w:rows/also=f32/q=row:ub block_row threads=64 threads_per_row=64 "
     "vector=4 per_thread=2 arch=sm_90 rows=7 y_gap=4 blocks=2 seed=216",
     {0, 13},
     kQuantized},
    {"rmsnorm/cols=300/f32/out=e4m3/w/also=bf16/q=row:ub split_row threads=64 threads_per_row=64 vector=1 "
     "per_thread=2 group_rows=2 blocks_per_sm=2 sms=1 arch=sm_90 rows=21 y_gap=4 seed=230",
     {0, 13},
     kQuantized},
    {"layernorm/cols=301/f32/out=s8/add/sum/wb/q=row split_row threads=32 threads_per_row=32 vector=4 "
     "per_thread=1 group_rows=8 blocks_per_sm=2 unaligned=1 sms=1 arch=sm_90 rows=9 inputs=nan_row seed=231",
     {0},
     kQuantized},
    // Rows of one chunk, whose scales nobody else writes; results below 1.
    {"rmsnorm/cols=30/f32/out=s8/w/q=row split_row threads=32 threads_per_row=32 vector=1 per_thread=1 "
     "group_rows=8 blocks_per_sm=2 sms=1 arch=sm_90 rows=8 seed=232",
     {0},
     {"schedule/split_row.cu"}},
    {"rmsnorm/cols=32/bf16/out=e4m3/w/q=32:e8m0:sw split_row threads=32 threads_per_row=32 vector=1 "
     "per_thread=1 group_rows=2 blocks_per_sm=2 sms=1 arch=sm_90 rows=5 seed=233",
     {0},
     {"schedule/split_row.cu"}},
    {"rmsnorm/cols=200/f32/out=e4m3/w/scale=0.0078125/q=tensor/amax split_row threads=32 threads_per_row=32 "
     "vector=1 per_thread=1 group_rows=8 blocks_per_sm=2 sms=1 arch=sm_90 rows=7 seed=234",
     {0},
     {"schedule/split_row.cu"}},
    {"rmsnorm/cols=45/f16/out=e4m3/w/q=row:ub staged_rows threads=64 threads_per_row=4 vector=1 "
     "per_thread=12 group_rows=2 arch=sm_90 rows=21 x_shift=3 y_shift=6 seed=217",
     {0},
     kQuantized},
    {"rmsnorm/cols=150/f16/out=e4m3/w/also=f32/q=row:ub generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=5 arch=sm_90 rows=9 y_gap=1 blocks=2 seed=218",
     {0},
     kQuantized},
    {"rmsnorm/cols=300/f32/out=e4m3/w/q=row:ub generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 rows=3 seed=225",
     {0},
     kQuantized},
    // The largest result of a launch; a second launch on the same workspace.
    {"rmsnorm/cols=90/f16/w/amax warp_rows threads=64 threads_per_row=8 vector=2 per_thread=6 arch=sm_90 "
     "rows=37 blocks=2 runs=2 overlaps=1 seed=219",
     {0, 13},
     kQuantized},
    {"layernorm/cols=90/f32/out=e4m3/wb/also=f16/q=tensor/amax warp_rows threads=64 threads_per_row=8 "
     "vector=2 per_thread=6 arch=sm_90 rows=13 y_gap=4 runs=2 seed=220",
     {0, 13},
     kQuantized},
    {"layernorm/cols=300/bf16/wb/amax block_row threads=64 threads_per_row=64 vector=4 per_thread=2 "
     "arch=sm_90 rows=7 blocks=2 runs=2 seed=221",
     {0, 13},
     kQuantized},
    {"layernorm/cols=400/f32/w/amax block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_row=4 exchange=cluster arch=sm_90 rows=5 blocks=8 inputs=nan_row seed=222",
     {0, 5},
     kQuantized},
    {"layernorm/cols=300/f16/out=e4m3/w/also=f32/q=tensor/amax block_row threads=64 threads_per_row=64 "
     "vector=1 per_thread=2 blocks_per_row=3 exchange=grid sms=6 arch=sm_80 rows=7 runs=2 seed=223",
     {0, 13},
     kQuantized},
    {"layernorm/cols=150/f32/out=bf16/w/amax generic threads=64 threads_per_row=32 vector=1 per_thread=5 "
     "arch=sm_90 rows=9 blocks=2 runs=2 seed=224",
     {0, 13},
     kQuantized},
    {"rmsnorm/cols=300/f16/out=f32/amax generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 rows=5 runs=2 seed=226",
     {0, 13},
     kQuantized},
    {"layernorm/cols=64/f32/amax warp_rows threads=32 threads_per_row=16 vector=2 per_thread=2 arch=sm_90 "
     "rows=5 inputs=constant_rows seed=227",
     {0},
     kQuantized},
    // Results of 8 bits, by instruction and without: of rows with a scale each; a NaN; rows of zeros.
    {"rmsnorm/cols=90/bf16/out=e4m3/round=norm+y/wb/stats/q=row warp_rows threads=64 threads_per_row=8 "
     "vector=2 per_thread=6 arch=sm_90 rows=37 x_gap=6 y_gap=4 blocks=2 overlaps=1 seed=160",
     {0, 14},
     kQuantized},
    {"layernorm/cols=64/f16/out=e5m2/q=row warp_rows threads=64 threads_per_row=16 vector=2 per_thread=2 "
     "arch=sm_75 rows=10 inputs=nan_row seed=161",
     {0},
     kQuantized},
    {"layernorm/cols=64/f32/out=s8/q=row warp_rows threads=64 threads_per_row=16 vector=2 per_thread=2 "
     "arch=sm_90 rows=12 inputs=constant_rows seed=162",
     {0},
     kQuantized},
    {"layernorm/cols=64/f32/out=e4m3/q=row warp_rows threads=64 threads_per_row=16 vector=2 per_thread=2 "
     "arch=sm_75 rows=12 inputs=constant_rows seed=163",
     {0},
     kQuantized},
    {"layernorm/cols=192/bf16/out=e4m3/mod/q=row warp_rows threads=64 threads_per_row=16 vector=4 "
     "per_thread=3 blocks_per_sm=9 arch=sm_90 rows=5 scale_gap=4 shift_gap=8 seed=164",
     {0},
     kQuantized},
    // With the scale of a tensor, or its inverse, and without one.
    {"layernorm/cols=45/f32/out=e4m3/wb/q=tensor warp_rows threads=32 threads_per_row=4 vector=1 "
     "per_thread=12 arch=sm_75 rows=20 seed=165",
     {0},
     kQuantized},
    {"rmsnorm/cols=64/bf16/out=e5m2/w/q=tensor:inv warp_rows threads=32 threads_per_row=4 vector=8 "
     "per_thread=2 arch=sm_75 rows=9 seed=166",
     {0},
     kQuantized},
    {"rmsnorm/cols=64/bf16/out=e4m3/w/q=tensor warp_rows threads=32 threads_per_row=4 vector=8 per_thread=2 "
     "arch=sm_90 rows=9 seed=167",
     {0},
     kQuantized},
    {"rmsnorm/cols=40/f32/out=e5m2/w/scale=30000 warp_rows threads=32 threads_per_row=1 vector=4 "
     "per_thread=10 arch=sm_75 rows=9 seed=168",
     {0},
     kQuantized},
    {"rmsnorm/cols=45/f16/out=e4m3/addafter/w/q=row staged_rows threads=64 threads_per_row=4 vector=1 "
     "per_thread=12 group_rows=2 arch=sm_90 rows=71 x_shift=3 y_shift=6 residual_gap=2 blocks=1 "
     "guard=before seed=169",
     {0, 13},
     kQuantized},
    {"layernorm/cols=46/bf16/out=s8/add/sum/wb:rows/q=row staged_rows threads=64 threads_per_row=4 vector=2 "
     "per_thread=6 group_rows=2 arch=sm_75 rows=37 x_gap=2 y_gap=4 seed=170",
     {0, 13},
     kQuantized},
    {"layernorm/cols=45/f16/out=s8/round=y/q=tensor staged_rows threads=64 threads_per_row=4 vector=1 "
     "per_thread=12 group_rows=2 arch=sm_90 rows=37 x_shift=1 y_shift=2 seed=171",
     {0},
     kQuantized},
    {"layernorm/cols=300/f16/out=e4m3/wb/silu/q=row/stats block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=2 arch=sm_90 rows=7 x_gap=8 blocks=2 inputs=mixed seed=172",
     {0, 13, 3},
     kQuantized},
    {"rmsnorm/cols=1536/f32/out=s8/add/sum/w/q=row block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=6 arch=sm_90 rows=4 blocks=1 seed=173",
     {0, 5},
     kQuantized},
    {"rmsnorm/cols=300/bf16/out=e5m2/addafter/wb:rows/q=row block_row threads=64 threads_per_row=64 vector=4 "
     "per_thread=2 arch=sm_75 rows=5 blocks=2 residual_gap=4 seed=174",
     {0},
     kQuantized},
    {"layernorm/cols=400/f32/out=e5m2/wb/q=row/stats block_row threads=64 threads_per_row=64 vector=1 "
     "per_thread=2 blocks_per_row=4 exchange=cluster arch=sm_90 rows=9 blocks=8 x_gap=3 overlaps=1 seed=175",
     {0, 13},
     kQuantized},
    {"rmsnorm/cols=256/f32/out=e4m3/q=row block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_row=2 exchange=cluster arch=sm_90 rows=7 blocks=2 seed=176",
     {5, 13},
     kQuantized},
    // So many threads that weights come late.
    {"layernorm/cols=380/f32/out=e4m3/wb/q=row block_row threads=64 threads_per_row=64 vector=1 per_thread=3 "
     "blocks_per_sm=9 blocks_per_row=2 exchange=cluster arch=sm_90 rows=3 seed=188",
     {0},
     {"schedule/block_row.cu"}},
    {"layernorm/cols=300/f32/out=e4m3/w/q=row block_row threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "blocks_per_sm=2 blocks_per_row=3 exchange=grid sms=3 arch=sm_80 rows=7 runs=2 seed=177",
     {0, 13},
     kQuantized},
    {"rmsnorm/cols=1050/bf16/out=s8/add/sum/w:rows/q=row block_row threads=32 threads_per_row=32 vector=1 "
     "per_thread=1 blocks_per_sm=2 blocks_per_row=33 exchange=grid sms=17 arch=sm_90 rows=3 seed=178",
     {0},
     kQuantized},
    {"rmsnorm/cols=150/f16/out=e4m3/round=norm+y/w/q=row/stats generic threads=64 threads_per_row=32 "
     "vector=1 per_thread=5 arch=sm_75 rows=9 x_gap=3 y_gap=1 blocks=2 seed=179",
     {0, 13},
     kQuantized},
    {"layernorm/cols=300/bf16/out=e5m2/add/sum/wb/q=row generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 rows=5 blocks=2 sum_in_place=1 seed=180",
     {0, 13},
     kQuantized},
    {"layernorm/cols=300/f32/out=s8/q=row generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 rows=5 inputs=constant_rows seed=181",
     {0},
     kQuantized},
    {"rmsnorm/cols=300/f32/out=s8/q=tensor generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 rows=3 seed=182",
     {0},
     kQuantized},
    {"layernorm/cols=30/f32/out=e5m2/w/q=tensor:inv/cf generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 rows=12 plane=6 seed=183",
     {0},
     kQuantized},
    {"rmsnorm/cols=128/f32/out=e4m3/w/q=tensor split_row threads=64 threads_per_row=64 vector=1 "
     "per_thread=1 group_rows=2 blocks_per_sm=2 sms=1 arch=sm_90 rows=3 seed=184",
     {0},
     {"schedule/split_row.cu"}},
    {"rmsnorm/cols=352/f32/out=e4m3/w/also=bf16/q=32:e8m0:sw split_row threads=32 threads_per_row=32 "
     "vector=4 per_thread=1 group_rows=1 blocks_per_sm=2 sms=1 arch=sm_90 rows=3 seed=106",
     {0},
     {"schedule/split_row.cu"}},
    {"layernorm/cols=300/f16/wb/amax split_row threads=32 threads_per_row=32 vector=4 per_thread=1 "
     "group_rows=1 blocks_per_sm=2 sms=1 arch=sm_90 rows=4 seed=107",
     {0},
     {"schedule/split_row.cu"}},
    {"rmsnorm/cols=3064/f32/out=s8/w/q=tensor persistent_row threads=512 threads_per_row=256 vector=4 "
     "per_thread=1 stages=4 sms=1 arch=sm_90 rows=5 seed=185",
     {0},
     {"schedule/persistent_row.cu"}},
    {"layernorm/cols=1501/f16/out=e4m3/wb/q=tensor persistent_row threads=512 threads_per_row=256 vector=8 "
     "per_thread=1 stages=3 unaligned=1 sms=1 arch=sm_90 rows=4 x_gap=4 y_gap=1 seed=186",
     {0},
     {"schedule/unaligned_ring.cuh"}},
    {"layernorm/cols=45/f32/out=e4m3/wb/q=tensor/cf channels_first threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 arch=sm_90 rows=42 plane=6 seed=187",
     {0},
     kChannels},
    // Results of 4 bits, in software and by the instruction; in slices of a row; in the generic kernel.
    {"rmsnorm/cols=96/bf16/out=e2m1/w/also=bf16/q=16:e4m3:sw warp_rows threads=64 threads_per_row=8 vector=4 "
     "per_thread=3 arch=sm_90 rows=13 y_gap=4 seed=230",
     {0},
     kOf4Bits},
    {"layernorm/cols=352/f32/out=e2m1/wb/q=32:e8m0 block_row threads=64 threads_per_row=64 vector=2 "
     "per_thread=2 blocks_per_row=2 exchange=cluster arch=sm_100 rows=5 seed=231",
     {0},
     kOf4Bits},
    {"layernorm/cols=304/f32/out=e2m1/w/q=16:e4m3 generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 rows=5 y_gap=3 blocks=2 seed=232",
     {0},
     kOf4Bits},
    // Gradients of a modulation: of each row, in a warp and in a block, with tables and an activation; of
    // groups of rows that have pieces, in several blocks and in one; of more groups than blocks; of groups
    // whose last round has fewer rows than the next one.
    {"layernorm_bwd/cols=90/f32/wb1/mod:table/gelu gradient_rows threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 arch=sm_90 sms=2 rows=37 x_gap=6 y_gap=4 scale_gap=2 shift_gap=4 sum_gap=6 seed=380",
     {0},
     kGradients},
    {"rmsnorm_bwd/cols=300/f32/wb/mods0 gradient_rows threads=96 threads_per_row=96 vector=1 per_thread=4 "
     "exchange=grid arch=sm_90 sms=3 rows=10 sum_gap=3 runs=2 seed=381",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=90/f32/wb1/mod:table gradient_rows threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 "
     "exchange=grid grouped_rows=1 arch=sm_90 sms=4 rows=58 group=29 scale_gap=2 sum_gap=6 runs=2 seed=382",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=130/f32/wb/mod0/silu gradient_rows threads=96 threads_per_row=96 vector=2 "
     "per_thread=1 grouped_rows=1 arch=sm_90 sms=3 rows=7 group=7 seed=383",
     {0, 14},
     kGradients},
    {"layernorm_bwd/cols=70/f32/w/mod gradient_rows threads=64 threads_per_row=16 vector=1 per_thread=5 "
     "exchange=grid grouped_rows=1 arch=sm_90 sms=2 rows=33 group=3 group_gap=2 inputs=nan_row seed=384",
     {0},
     kGradients},
    {"layernorm_bwd/cols=24/f32/wb/mod gradient_rows threads=32 threads_per_row=8 vector=1 per_thread=3 "
     "exchange=grid grouped_rows=1 arch=sm_90 sms=1 rows=10 group=5 blocks=1 in_place=1 runs=2 seed=385",
     {0, 13},
     kGradients},
    // Gradients of rows in parts of a warp: partial rows, lanes without a row, blocks that loop, gaps; sums
    // over rows by the last block, and by all.
    {"layernorm_bwd/cols=90/f32/dsum/wb1 gradient_rows threads=64 threads_per_row=8 vector=2 per_thread=6 "
     "arch=sm_90 sms=2 rows=37 x_gap=6 y_gap=4 scale_gap=2 residual_gap=8 overlaps=1 runs=2 seed=300",
     {0, 14},
     kGradients},
    {"rmsnorm_bwd/cols=64/f16/w=f32/dw=f32/w gradient_rows threads=64 threads_per_row=16 vector=4 "
     "per_thread=1 exchange=grid sms=3 arch=sm_90 rows=41 runs=2 seed=301",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=45/f32/wb gradient_rows threads=64 threads_per_row=4 vector=1 per_thread=12 "
     "exchange=grid sms=2 arch=sm_90 rows=7 inputs=large_mean seed=302",
     {0},
     kGradients},
    {"layernorm_bwd/cols=7/f64/out=f16/wb gradient_rows threads=32 threads_per_row=1 vector=1 per_thread=7 "
     "sms=2 arch=sm_90 rows=70 seed=303",
     {0},
     kGradients},
    // Without sums over rows; a NaN; one column.
    {"layernorm_bwd/cols=64/bf16/dsum gradient_rows threads=64 threads_per_row=32 vector=2 per_thread=1 "
     "arch=sm_90 sms=2 rows=11 inputs=nan_row seed=304",
     {0},
     kGradients},
    {"layernorm_bwd/cols=1/f32/wb gradient_rows threads=32 threads_per_row=1 vector=1 per_thread=1 "
     "arch=sm_90 sms=1 rows=1 seed=305",
     {0},
     kGradients},
    // A row for a block: of uneven warps, one of which has no columns; of more warps than are merged at once.
    {"layernorm_bwd/cols=300/f32/wb gradient_rows threads=96 threads_per_row=96 vector=1 per_thread=4 "
     "exchange=grid arch=sm_90 sms=3 rows=10 inputs=large_mean runs=2 seed=306",
     {0, 13, 3},
     kGradients},
    {"layernorm_bwd/cols=400/f32/dsum/wb gradient_rows threads=224 threads_per_row=224 vector=2 "
     "per_thread=1 arch=sm_90 sms=2 rows=5 inputs=mixed in_place=1 runs=2 seed=307",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=70/f32/wb gradient_rows threads=96 threads_per_row=96 vector=2 per_thread=1 "
     "exchange=grid arch=sm_90 sms=2 rows=5 seed=308",
     {0},
     kGradients},
    {"rmsnorm_bwd/cols=1030/f64/w gradient_rows threads=1024 threads_per_row=1024 vector=1 per_thread=2 "
     "exchange=grid arch=sm_90 sms=2 rows=5 seed=309",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=256/f32/wb gradient_rows threads=128 threads_per_row=128 vector=2 per_thread=1 "
     "blocks_per_sm=8 exchange=none arch=sm_90 sms=8 rows=70 runs=2 seed=310",
     {0, 3},
     kGradients},
    // More elements than are added over warps at once; a warp with one column.
    {"layernorm_bwd/cols=90/f32/wb gradient_rows threads=512 threads_per_row=8 vector=2 per_thread=6 "
     "exchange=grid arch=sm_90 sms=1 rows=70 seed=314",
     {0},
     kGradients},
    {"layernorm_bwd/cols=65/f32/wb gradient_rows threads=96 threads_per_row=96 vector=1 per_thread=1 "
     "exchange=grid arch=sm_90 sms=2 rows=5 seed=315",
     {0},
     kGradients},
    // Of 16 bits in the widest vectors; a warp has no columns.
    {"layernorm_bwd/cols=64/bf16/wb gradient_rows threads=64 threads_per_row=64 vector=8 per_thread=1 "
     "exchange=grid arch=sm_90 sms=2 rows=6 seed=313",
     {0},
     kGradients},
    // Constant rows, whose dx is what the weights make of dy; a large row of sums.
    {"layernorm_bwd/cols=128/f32/wb gradient_rows threads=64 threads_per_row=64 vector=2 per_thread=1 "
     "arch=sm_90 sms=2 rows=9 inputs=constant_rows seed=311",
     {0},
     kGradients},
    {"layernorm_bwd/cols=4500/f32/wb gradient_rows threads=256 threads_per_row=256 vector=4 per_thread=5 "
     "exchange=grid arch=sm_90 sms=2 rows=3 seed=312",
     {0},
     kGradients},
    // From the ring: more rows than places, fewer, and one; gaps; a warp without columns; by the last block.
    {"layernorm_bwd/cols=88/f32/dsum/wb1 gradient_ring threads=96 threads_per_row=96 vector=1 per_thread=1 "
     "stages=3 exchange=grid arch=sm_90 sms=2 rows=17 x_gap=8 y_gap=4 scale_gap=12 residual_gap=8 overlaps=1 "
     "runs=2 seed=340",
     {0, 13, 10},
     kGradients},
    {"rmsnorm_bwd/cols=64/bf16/w gradient_ring threads=64 threads_per_row=64 vector=2 per_thread=1 stages=4 "
     "arch=sm_90 sms=2 rows=6 runs=2 seed=341",
     {0, 3},
     kGradients},
    {"layernorm_bwd/cols=128/f64/wb gradient_ring threads=32 threads_per_row=32 vector=2 per_thread=2 "
     "stages=5 "
     "exchange=grid arch=sm_90 sms=3 rows=1 inputs=large_mean seed=342",
     {0},
     kGradients},
    // In clusters, whose last slice is short; many rows; without sums, and a NaN.
    {"layernorm_bwd/cols=216/f32/wb gradient_ring threads=64 threads_per_row=64 vector=1 per_thread=1 "
     "blocks_per_row=4 stages=3 exchange=cluster arch=sm_90 sms=12 rows=25 inputs=large_mean runs=2 seed=343",
     {0, 13, 10},
     kGradients},
    {"layernorm_bwd/cols=256/bf16/dsum gradient_ring threads=64 threads_per_row=64 vector=2 per_thread=1 "
     "blocks_per_row=2 stages=4 exchange=cluster arch=sm_90 sms=2 rows=9 inputs=nan_row seed=344",
     {0, 13},
     kGradients},
    // Chunk by chunk: fewer chunks than blocks, whose rows are shared unevenly; several batches, a short last
    // one; more rows of a batch than warps.
    {"layernorm_bwd/cols=90/f32/dsum/wb1 gradient_columns threads=32 threads_per_row=32 vector=2 "
     "per_thread=1 group_rows=3 exchange=grid arch=sm_90 sms=5 rows=14 x_gap=6 y_gap=4 scale_gap=2 "
     "residual_gap=8 overlaps=1 runs=2 seed=320",
     {0, 13, 10},
     kGradients},
    {"layernorm_bwd/cols=700/f32/wb gradient_columns threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "group_rows=8 exchange=grid arch=sm_90 sms=3 rows=20 inputs=large_mean seed=321",
     {0, 13},
     kGradients},
    {"rmsnorm_bwd/cols=300/f16/w=f32/dw=f32/w gradient_columns threads=64 threads_per_row=64 vector=4 "
     "per_thread=1 group_rows=1 exchange=grid arch=sm_90 sms=4 rows=9 runs=2 seed=322",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=500/f64/out=f32/wb gradient_columns threads=32 threads_per_row=32 vector=2 "
     "per_thread=1 group_rows=4 arch=sm_90 sms=3 rows=9 in_place=0 seed=323",
     {0},
     kGradients},
    {"layernorm_bwd/cols=256/bf16/dsum gradient_columns threads=64 threads_per_row=64 vector=2 per_thread=1 "
     "group_rows=16 exchange=grid arch=sm_90 sms=2 rows=33 inputs=nan_row seed=324",
     {0, 13},
     kGradients},
    // A modulation of each row; of groups: more blocks than rows of a batch, several batches of a group, or
    // one, more chunks than blocks, whose sums are added to those of earlier batches.
    {"layernorm_bwd/cols=90/f32/wb1/mod:table/gelu gradient_columns threads=32 threads_per_row=32 vector=2 "
     "per_thread=1 group_rows=3 exchange=grid arch=sm_90 sms=5 rows=14 scale_gap=2 shift_gap=4 sum_gap=6 "
     "seed=390",
     {0},
     kGradients},
    {"layernorm_bwd/cols=90/f32/wb1/mod:table gradient_columns threads=32 threads_per_row=32 vector=2 "
     "per_thread=1 group_rows=2 exchange=grid grouped_rows=1 arch=sm_90 sms=8 rows=36 group=3 runs=2 "
     "seed=391",
     {0, 13, 10},
     kGradients},
    {"layernorm_bwd/cols=90/f32/wb1/mod:table gradient_columns threads=32 threads_per_row=32 vector=2 "
     "per_thread=1 group_rows=3 exchange=grid grouped_rows=1 arch=sm_90 sms=8 rows=24 group=2 seed=393",
     {0, 13},
     kGradients},
    {"rmsnorm_bwd/cols=700/f32/w/mod0 gradient_columns threads=64 threads_per_row=64 vector=1 per_thread=2 "
     "group_rows=2 exchange=grid grouped_rows=1 arch=sm_90 sms=2 rows=15 group=5 sum_gap=3 seed=392",
     {0, 13},
     kGradients},
    // Whole chunks, of which a block has several.
    {"layernorm_bwd/cols=512/f32/wb gradient_columns threads=32 threads_per_row=32 vector=4 per_thread=1 "
     "group_rows=2 exchange=grid arch=sm_90 sms=2 rows=5 seed=327",
     {0},
     kGradients},
    // More chunks than lanes.
    {"layernorm_bwd/cols=2500/f32/wb gradient_columns threads=32 threads_per_row=32 vector=1 per_thread=2 "
     "group_rows=2 exchange=grid arch=sm_90 sms=2 rows=5 inputs=mixed runs=2 seed=325",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=1/f32/wb gradient_columns threads=32 threads_per_row=32 vector=1 per_thread=1 "
     "group_rows=2 exchange=grid arch=sm_90 sms=3 rows=1 seed=326",
     {0},
     kGradients},
    // Behind an activation: rows in parts of a warp, of blocks with an uneven number of warps, and a NaN.
    {"layernorm_bwd/cols=90/f32/dsum/wb1/gelu/scale=-0.5 gradient_rows threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 arch=sm_90 sms=2 rows=37 x_gap=6 y_gap=4 scale_gap=2 residual_gap=8 runs=2 seed=350",
     {0, 14},
     kGradients},
    {"rmsnorm_bwd/cols=300/f32/wb/silu gradient_rows threads=96 threads_per_row=96 vector=1 per_thread=4 "
     "exchange=grid arch=sm_90 sms=3 rows=10 runs=2 seed=351",
     {0, 13, 3},
     kGradients},
    {"layernorm_bwd/cols=200/f64/wb/gelu gradient_rows threads=64 threads_per_row=64 vector=2 per_thread=2 "
     "exchange=grid arch=sm_90 sms=2 rows=9 inputs=large_mean seed=352",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=70/bf16/wb/relu gradient_rows threads=96 threads_per_row=96 vector=2 per_thread=1 "
     "exchange=grid arch=sm_90 sms=2 rows=9 inputs=nan_row runs=2 seed=353",
     {0},
     kGradients},
    {"layernorm_bwd/cols=64/f64/wb/silu gradient_rows threads=32 threads_per_row=16 vector=2 per_thread=2 "
     "arch=sm_90 sms=2 rows=9 inputs=inf_row seed=354",
     {0},
     kGradients},
    // From the ring, in blocks and in clusters: one row, two, fewer than places and more.
    {"layernorm_bwd/cols=88/f32/dsum/wb1/gelu_tanh gradient_ring threads=96 threads_per_row=96 vector=1 "
     "per_thread=1 stages=4 exchange=grid arch=sm_90 sms=2 rows=17 x_gap=8 y_gap=4 scale_gap=12 "
     "residual_gap=8 runs=2 seed=355",
     {0, 13, 10},
     kGradients},
    {"rmsnorm_bwd/cols=64/bf16/wb/gelu gradient_ring threads=64 threads_per_row=64 vector=2 per_thread=1 "
     "stages=5 arch=sm_90 sms=2 rows=3 runs=2 seed=356",
     {0, 3},
     kGradients},
    {"layernorm_bwd/cols=216/f32/wb/gelu gradient_ring threads=64 threads_per_row=64 vector=1 per_thread=1 "
     "blocks_per_row=4 stages=4 exchange=cluster arch=sm_90 sms=12 rows=25 inputs=large_mean runs=2 seed=357",
     {0, 13, 10},
     kGradients},
    {"layernorm_bwd/cols=256/bf16/dsum/silu gradient_ring threads=64 threads_per_row=64 vector=2 "
     "per_thread=1 blocks_per_row=2 stages=6 exchange=cluster arch=sm_90 sms=4 rows=9 inputs=nan_row "
     "seed=358",
     {0, 13},
     kGradients},
    // Chunk by chunk: blocks that share chunks, and that have several; several batches, a short last one.
    {"layernorm_bwd/cols=90/f32/dsum/wb1/gelu gradient_columns threads=32 threads_per_row=32 vector=2 "
     "per_thread=1 group_rows=3 exchange=grid arch=sm_90 sms=5 rows=14 x_gap=6 y_gap=4 scale_gap=2 "
     "residual_gap=8 runs=2 seed=359",
     {0, 13, 10},
     kGradients},
    {"layernorm_bwd/cols=700/f32/wb/silu gradient_columns threads=64 threads_per_row=64 vector=1 "
     "per_thread=2 "
     "group_rows=2 exchange=grid arch=sm_90 sms=3 rows=20 inputs=large_mean runs=2 seed=360",
     {0, 13},
     kGradients},
    {"rmsnorm_bwd/cols=300/f16/w/gelu_tanh gradient_columns threads=64 threads_per_row=64 vector=4 "
     "per_thread=1 group_rows=4 arch=sm_90 sms=4 rows=9 seed=361",
     {0},
     kGradients},
    // With a gate of another type before the norm, and behind it: from registers, the ring and L2, with rows
    // at distances of their own, and dgate over the gate.
    {"rmsnorm_bwd/cols=90/bf16/mod=f32/gate:silu/dsum/w gradient_rows threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 arch=sm_90 sms=2 rows=37 x_gap=6 y_gap=4 scale_gap=2 residual_gap=8 gate_gap=10 "
     "shift_gap=12 runs=2 seed=370",
     {0, 14},
     kGradients},
    {"layernorm_bwd/cols=300/f32/gateafter:tanh/wb/scale=-0.5 gradient_rows threads=96 threads_per_row=96 "
     "vector=1 per_thread=4 exchange=grid arch=sm_90 sms=3 rows=10 gate_gap=3 shift_gap=5 runs=2 seed=371",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=88/f32/gate:sigmoid/dsum/wb gradient_ring threads=96 threads_per_row=96 vector=1 "
     "per_thread=1 stages=3 exchange=grid arch=sm_90 sms=2 rows=17 x_gap=8 y_gap=4 gate_gap=12 shift_gap=4 "
     "runs=2 seed=372",
     {0, 10},
     kGradients},
    {"rmsnorm_bwd/cols=64/f16/gateafter:silu/w1 gradient_ring threads=64 threads_per_row=64 vector=2 "
     "per_thread=1 stages=4 arch=sm_90 sms=2 rows=9 gate_gap=8 sum_in_place=1 runs=2 seed=373",
     {0},
     kGradients},
    {"layernorm_bwd/cols=90/f32/gate:tanh/wb1/gelu gradient_columns threads=32 threads_per_row=32 vector=2 "
     "per_thread=1 group_rows=3 exchange=grid arch=sm_90 sms=5 rows=14 gate_gap=4 shift_gap=6 runs=2 "
     "seed=374",
     {0, 13},
     kGradients},
    {"rmsnorm_bwd/cols=300/f32/gateafter/wb gradient_columns threads=64 threads_per_row=64 vector=1 "
     "per_thread=1 group_rows=4 exchange=grid arch=sm_90 sms=3 rows=9 sum_in_place=1 seed=375",
     {0},
     kGradients},
    // Of some gradients: the weights alone, behind an activation and not; frozen weights.
    {"layernorm_bwd/cols=90/f32/wb/need=db gradient_rows threads=64 threads_per_row=8 vector=2 per_thread=6 "
     "exchange=grid arch=sm_90 sms=2 rows=37 runs=2 seed=376",
     {0},
     kGradients},
    {"layernorm_bwd/cols=216/f32/wb/gelu/need=dw+db gradient_ring threads=64 threads_per_row=64 vector=1 "
     "per_thread=1 blocks_per_row=4 stages=3 exchange=cluster arch=sm_90 sms=12 rows=25 inputs=large_mean "
     "runs=2 seed=377",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=300/f32/w/silu/need=dw gradient_columns threads=64 threads_per_row=64 vector=1 "
     "per_thread=2 group_rows=2 exchange=grid arch=sm_90 sms=3 rows=20 runs=2 seed=378",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=88/f32/wb/need=dx gradient_ring threads=96 threads_per_row=96 vector=1 per_thread=1 "
     "stages=3 arch=sm_90 sms=2 rows=17 x_gap=8 y_gap=4 runs=2 seed=379",
     {0},
     kGradients},
    // With given statistics: in parts of a warp, in blocks, from the ring of a block and of a cluster, and
    // chunk by chunk.
    {"layernorm_bwd/cols=90/f32/dsum/wb1/stats gradient_rows threads=64 threads_per_row=8 vector=2 "
     "per_thread=6 arch=sm_90 sms=2 rows=37 x_gap=6 y_gap=4 scale_gap=2 residual_gap=8 runs=2 seed=380",
     {0, 14},
     kGradients},
    {"layernorm_bwd/cols=300/f32/wb/gelu/stats gradient_rows threads=96 threads_per_row=96 vector=1 "
     "per_thread=4 exchange=grid arch=sm_90 sms=3 rows=10 inputs=large_mean runs=2 seed=381",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=88/f32/wb/stats gradient_ring threads=96 threads_per_row=96 vector=1 per_thread=1 "
     "stages=3 exchange=grid arch=sm_90 sms=2 rows=17 runs=2 seed=382",
     {0, 10},
     kGradients},
    {"layernorm_bwd/cols=216/f32/wb/silu/stats gradient_ring threads=64 threads_per_row=64 vector=1 "
     "per_thread=1 blocks_per_row=4 stages=3 exchange=cluster arch=sm_90 sms=12 rows=25 runs=2 seed=383",
     {0, 13},
     kGradients},
    {"layernorm_bwd/cols=300/f32/wb/gelu/stats gradient_columns threads=64 threads_per_row=64 vector=1 "
     "per_thread=2 group_rows=2 exchange=grid arch=sm_90 sms=3 rows=20 runs=2 seed=384",
     {0, 13},
     kGradients},
    // Of the generic kernel: rounds of rows that warps have alone, also one that is not full; longer rows;
    // groups that share scale and shift, in rounds or a row at a time; gates; given statistics; some sums.
    {"layernorm_bwd/cols=50/f32/dsum/wb1/gelu/scale=-0.5 generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 sms=2 rows=27 x_gap=3 y_gap=1 scale_gap=2 residual_gap=5 runs=2 overlaps=1 "
     "seed=385",
     {0, 10},
     kGenericGradients},
    {"rmsnorm_bwd/cols=150/bf16/w=f32/dw=f16/wb/silu generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 sms=3 rows=17 runs=2 seed=386",
     {0, 11},
     kGenericGradients},
    {"layernorm_bwd/cols=50/f32/wb1/mod:table/gelu_tanh generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 sms=1 rows=24 group=3 group_gap=3 scale_gap=1 sum_gap=2 runs=2 seed=387",
     {0, 12},
     kGenericGradients},
    {"layernorm_bwd/cols=150/f16/mod=f32/w/mod0/relu generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 sms=1 rows=21 group=3 sum_gap=2 runs=2 seed=388",
     {0, 13},
     kGenericGradients},
    {"layernorm_bwd/cols=70/f32/wb/mod generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 sms=2 rows=9 scale_gap=1 sum_gap=3 runs=2 seed=389",
     {0},
     kGenericGradients},
    {"layernorm_bwd/cols=50/bf16/mod=f32/gate:silu/dsum/wb/relu generic threads=64 threads_per_row=32 "
     "vector=1 per_thread=2 arch=sm_90 sms=2 rows=11 gate_gap=2 shift_gap=1 seed=390",
     {0},
     kGenericGradients},
    {"rmsnorm_bwd/cols=150/f32/gateafter:tanh/w generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 sms=2 rows=11 seed=391",
     {0},
     kGenericGradients},
    {"layernorm_bwd/cols=50/f32/gate:sigmoid/dsum/w generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 sms=2 rows=5 group=5 seed=392",
     {0},
     kGenericGradients},
    {"layernorm_bwd/cols=150/f32/wb/stats generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 sms=2 rows=7 inputs=large_mean runs=2 seed=393",
     {0},
     kGenericGradients},
    {"layernorm_bwd/cols=40/f64/out=f16/wb/need=db generic threads=64 threads_per_row=32 vector=1 "
     "per_thread=2 arch=sm_90 sms=4 rows=5 runs=2 seed=394",
     {0},
     kGenericGradients},
    {"layernorm_bwd/cols=50/f32/wb/mod generic threads=64 threads_per_row=32 vector=1 per_thread=2 "
     "arch=sm_90 sms=4 rows=24 group=12 runs=2 seed=396",
     {0},
     kGenericGradients},
    {"layernorm_bwd/cols=4000/f32/wb generic threads=64 threads_per_row=32 vector=1 per_thread=2 arch=sm_90 "
     "sms=16 rows=16 seed=397",
     {0},
     kGenericGradients},
    {"layernorm_bwd/cols=700/f32/dsum generic threads=64 threads_per_row=32 vector=1 per_thread=2 arch=sm_90 "
     "sms=2 rows=7 inputs=large_mean seed=395",
     {0},
     kGenericGradients},
    // So many blocks that the ring has its largest size, and wraps.
    {"layernorm/cols=32/f32 split_row threads=32 threads_per_row=32 vector=1 per_thread=1 group_rows=1 "
     "blocks_per_sm=32 sms=11 arch=sm_90 rows=1100 seed=15",
     {0},
     {"schedule/split_row.cu"}},
};

Experiment experiment_of(const Pinned& pinned) {
  const auto c = case_from_text(pinned.text);
  if (!c || !legal(*c)) {
    ADD_FAILURE() << "no legal case: " << pinned.text;
    return {};
  }
  std::vector<std::string> files = pinned.files.empty() ? mutated_files() : pinned.files;
  // Those that this kernel does not have, or has no use for.
  const Source source = sources({&*c, 1}).value().front();
  std::erase_if(files, [&](const std::string& file) {
    return source.text.find(concat({"#line 1 \"", file, "\""})) == std::string::npos ||
           (file == "op/quantizer.cuh" && !is_narrow(c->spec.output)) ||
           (file == "op/derivatives.cuh" && c->spec.activation == Activation::none &&
            c->spec.gate == Gate::none) ||
           (file == "schedule/unaligned_ring.cuh" && !c->plan.unaligned) ||
           (file == "schedule/unaligned.cuh" &&
            (c->plan.strategy == Strategy::persistent_row || !c->plan.unaligned)) ||
           (file == "schedule/exchange.cuh" && c->plan.blocks_per_row == 1 && !c->plan.unaligned) ||
           (file == "schedule/workspace.cuh" && workspace_bytes(c->plan, c->spec, c->device) == 0);
  });
  return {std::string(pinned.text),
          source,
          {files.begin(), files.end()},
          [c = *c, schedules = pinned.schedules](const HostKernel& kernel) {
            std::optional<std::string> wrong;
            for (const std::uint64_t seed : schedules)
              if (!wrong) wrong = run_case(c, kernel, seed, kTimeLimit);
            return wrong;
          }};
}

// A function of the templates, for numbers that hardly ever come up in rows: on.y[0], or on.dx[0] of a
// backward spec, from on.x[0].
struct Number {
  std::string_view spec, y;
  double from, to;
  std::string file;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const Number kNumbers[] = {
    // A little more than half way between two numbers of 16 bits, and half way in f32.
    {"layernorm/cols=1/f64/out=f16", "narrow<Output>(on.x[0])", 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10,
     "number.cuh"},
    {"layernorm/cols=1/f64/out=bf16", "narrow<Output>(on.x[0])", 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7,
     "number.cuh"},
    // A tie of e4m3, which the product with the inverse misses, and a result of a row with an infinity.
    {"rmsnorm/cols=1/f32/out=e4m3/q=row",
     "narrow<Output>(quantized(on.x[0], Quantizer{0, 1 / 0x1.9755d4p+0f, 0x1.9755d4p+0f}))", 0x1.b0cb32p+0, 1,
     "op/quantizer.cuh"},
    {"rmsnorm/cols=1/f32/out=e5m2/q=row",
     "narrow<Output>(quantized(on.x[0], quantizer_of_row<Output>(Largest{10 * 1e38f}, {})))", 1, 0,
     "op/quantizer.cuh"},
    // Powers of two: one of its own, the next to it, the largest ones and infinity, in f32 and in a byte.
    {"layernorm/cols=1/f32", "quantizer_of_power(on.x[0], false).scale", 4, 4, "op/quantizer.cuh"},
    {"layernorm/cols=1/f32", "quantizer_of_power(on.x[0], false).scale", 4 + 0x1p-21, 8, "op/quantizer.cuh"},
    {"layernorm/cols=1/f32", "quantizer_of_power(on.x[0], false).scale", kInfinity, kInfinity,
     "op/quantizer.cuh"},
    {"layernorm/cols=1/f32", "quantizer_of_power(on.x[0], false).inverse", kInfinity, 0, "op/quantizer.cuh"},
    {"layernorm/cols=1/f32", "quantizer_of_power(on.x[0], true).inverse", 0x1p126, 0x1p-126,
     "op/quantizer.cuh"},
    {"layernorm/cols=1/f32", "quantizer_of_power(on.x[0], true).inverse", 0x1.8p126, 0x1p-127,
     "op/quantizer.cuh"},
    {"layernorm/cols=1/f32",
     "Output(byte_of_scale(quantizer_of_power(on.x[0], true).scale, ScaleFormat::e8m0))", kInfinity, 254,
     "op/quantizer.cuh"},
    {"layernorm/cols=1/f32", "quantizer_of_block(Largest{on.x[0]}, 448, ScaleFormat::e8m0, {}).scale",
     kInfinity, 0x1p127, "op/quantizer.cuh"},
    {"layernorm/cols=1/f32", "quantizer_of_block(Largest{on.x[0]}, 448, ScaleFormat::power_of_two, {}).scale",
     kInfinity, kInfinity, "op/quantizer.cuh"},
    // Results of which e4m3 keeps no scale.
    {"layernorm/cols=1/f32", "quantizer_of_block(Largest{on.x[0]}, 448, ScaleFormat::e4m3, {1}).inverse",
     1e-6, 0, "op/quantizer.cuh"},
    // A quotient that the product with the inverse misses.
    {"layernorm/cols=1/f32", "over(on.x[0], 448)", 0x1.000008p+0, 0x1.2492520000000p-9, "op/quantizer.cuh"},
    // Half way between two numbers of e4m3, in integers.
    {"layernorm/cols=1/f32/out=e4m3", "Output{static_cast<unsigned char>(to_small_float<Output>(on.x[0]))}",
     1.0625, 1, "number.cuh"},
    // The bits of 0, 1, 4 and 6 in e2m1: ties and the largest; a sign; NaN, which is none.
    {"layernorm/cols=1/f32", "Output(to_e2m1(on.x[0]) & 15)", 0.25, 0, "number.cuh"},
    {"layernorm/cols=1/f32", "Output(to_e2m1(on.x[0]) & 15)", 0.75, 2, "number.cuh"},
    {"layernorm/cols=1/f32", "Output(to_e2m1(on.x[0]) & 15)", 5, 6, "number.cuh"},
    {"layernorm/cols=1/f32", "Output(to_e2m1(on.x[0]) & 15)", -9, 15, "number.cuh"},
    {"layernorm/cols=1/f32", "Output(to_e2m1(on.x[0]) & 15)", kNan, 7, "number.cuh"},
    // A vector of one bf16, which is no pair.
    {"layernorm/cols=1/bf16/out=f32", "widen(reinterpret_cast<const Vec<Input>&>(*on.x), 0)", 1.5, 1.5,
     "number.cuh"},
    {"layernorm/cols=1/f32/gelu", "activate<Activation::chosen>(on.x[0])", kInfinity, kInfinity,
     "op/functions.cuh"},
    {"layernorm/cols=1/f16/gelu", "narrow<Output>(activate<Activation::chosen>(widen(on.x[0])))", kInfinity,
     kInfinity, "op/functions.cuh"},
    // Derivatives where the function is a line: an infinity is not multiplied by 0.
    {"layernorm_bwd/cols=1/f32/gelu", "derivative<Activation::chosen>(on.x[0])", kInfinity, 1,
     "op/derivatives.cuh"},
    {"layernorm_bwd/cols=1/f32/gelu", "derivative<Activation::chosen>(on.x[0])", -kInfinity, 0,
     "op/derivatives.cuh"},
    {"layernorm_bwd/cols=1/f64/gelu", "derivative<Activation::chosen>(on.x[0])", kInfinity, 1,
     "op/derivatives.cuh"},
    {"layernorm_bwd/cols=1/f64/gelu", "derivative<Activation::chosen>(on.x[0])", -kInfinity, 0,
     "op/derivatives.cuh"},
    {"layernorm_bwd/cols=1/f32/gelu_tanh", "derivative<Activation::chosen>(on.x[0])", kInfinity, 1,
     "op/derivatives.cuh"},
    {"layernorm_bwd/cols=1/f32/silu", "derivative<Activation::chosen>(on.x[0])", kInfinity, 1,
     "op/derivatives.cuh"},
    {"layernorm_bwd/cols=1/f32/silu", "derivative<Activation::chosen>(on.x[0])", -kInfinity, 0,
     "op/derivatives.cuh"},
    {"layernorm_bwd/cols=1/f64/silu", "derivative<Activation::chosen>(on.x[0])", -kInfinity, 0,
     "op/derivatives.cuh"},
    // That of relu at 0, also where an infinity arrives.
    {"layernorm_bwd/cols=1/f32/relu", "gradient_through<Activation::chosen>(on.x[0], Acc(0))", kInfinity, 0,
     "op/derivatives.cuh"},
    // What stands in the same place for all kernels, as workspace_bytes() has it.
    {"layernorm/cols=1/f32", "narrow<Output>(Acc(sizeof(Meeting)))", 0, 32 + 1024 * 32 + 4096 * 48,
     "schedule/workspace.cuh"},
    // The third row of the third group.
    {"layernorm/cols=1/f32", "narrow<Output>(Acc(begin_of(GroupedRows{1ull << 62, 7, 72, 4}, 10)))", 0, 214,
     "layout.cuh"},
    // What the mean of two parts lacks, which is half way between two numbers.
    {"layernorm/cols=1/f32", "Moments::merge_equal({on.x[0], 0, 0}, {1, 0, 0}, 4).mean_lo", 1 + 0x1p-23,
     0x1p-24, "op/statistics.cuh"},
    // A distance whose square is no number any more, from a part without columns.
    {"layernorm/cols=1/f32", "Moments::merge({on.x[0], 0, 0}, 4, {0, 0, 0}, 0).m2", 0x1p100, 0,
     "op/statistics.cuh"},
};

std::optional<std::string> wrong_number(const Number& number, const KernelCase& c, const HostKernel& kernel) {
  double from = 0, to = 0;
  oracle::store(c.spec.input, &from, 0, 1, &number.from);
  Tensors tensors{.rows = 1};
  set(tensors, row_of(Operand::x), &from);
  set(tensors, row_of(c.spec.backward ? Operand::dx : Operand::y), &to);
  OperandBlock block = block_of(c.plan, c.spec, tensors);
  void* arguments[] = {&block};
  simt::Launch launch;
  launch.shape.threads = 32;
  launch.arguments = arguments;
  const simt::Buffer buffers[] = {{&from, static_cast<std::size_t>(size_of(c.spec.input)), "x", false, true},
                                  {&to, static_cast<std::size_t>(size_of(c.spec.output)), "y", true, false}};
  launch.buffers = buffers;
  if (const auto diagnosis = simt::run(kernel, launch)) return diagnosis->message;
  double got = 0;
  oracle::load(c.spec.output, &to, 0, 1, &got);
  if (got == number.to) return {};
  return concat({shortest(number.from), " becomes ", shortest(got), " instead of ", shortest(number.to)});
}

// In the place of a kernel of the strategy whose text has all of these functions.
Experiment experiment_of(const Number& number) {
  const NormSpec spec = parse_spec(number.spec).value();
  const Strategy strategy = spec.backward ? Strategy::gradient_rows : Strategy::block_row;
  const KernelCase c{
      .spec = spec, .plan = {strategy, 32, 32, 1, 1}, .device = DeviceProfile::of(Arch{90}).value()};
  Source source = sources({&c, 1}).value().front();
  source.text.erase(source.text.find(concat({"#line 1 \"schedule/", normjit::name(strategy), ".cu\""})));
  source.text += concat({"namespace normjit {\nNJ_KERNEL(NJ_ENTRY, 32) {\n  if (threadIdx.x == 0) on.",
                         spec.backward ? "dx" : "y", "[0] = ", number.y, ";\n}\n}\n"});
  return {concat({number.y, " of ", shortest(number.from)}),
          source,
          {number.file},
          [&number, c](const HostKernel& kernel) { return wrong_number(number, c, kernel); }};
}

// Experiments on one kernel are joined, so that a mutant of it is compiled once.
void join(std::vector<Experiment>& all, Experiment next) {
  const auto same = std::find_if(all.begin(), all.end(),
                                 [&](const Experiment& one) { return one.source.text == next.source.text; });
  if (same == all.end()) {
    all.push_back(std::move(next));
    return;
  }
  same->name += concat({"; ", next.name});
  same->files.insert(next.files.begin(), next.files.end());
  same->wrong = [first = std::move(same->wrong),
                 second = std::move(next.wrong)](const HostKernel& kernel) -> std::optional<std::string> {
    if (auto wrong = first(kernel)) return wrong;
    return second(kernel);
  };
}

// The generic kernel is for all dtypes and takes ten times as long to compile: it comes last, for the few
// mutants that are left.
std::vector<Experiment> experiments() {
  std::vector<Experiment> all;
  for (const Pinned& pinned : kPinned) join(all, experiment_of(pinned));
  for (const Number& number : kNumbers) join(all, experiment_of(number));
  std::stable_partition(all.begin(), all.end(),
                        [](const Experiment& one) { return one.files.count("schedule/generic.cuh") == 0; });
  return all;
}

// ---- Trials ----

enum class End { survived, caught, not_compiling };

struct Trial {
  Mutant mutant;
  End end = End::survived;
};

// One kernel for each source, or nothing where it does not compile.
void compile_each(const simt::HostCompiler& compiler, std::span<const Source> sources,
                  std::vector<std::optional<HostKernel>>& kernels) {
  const auto compiled = compiler.compile(sources);
  if (compiled) {
    kernels.insert(kernels.end(), compiled->begin(), compiled->end());
  } else if (sources.size() == 1) {
    kernels.push_back(std::nullopt);
  } else {
    compile_each(compiler, sources.first(sources.size() / 2), kernels);
    compile_each(compiler, sources.subspan(sources.size() / 2), kernels);
  }
}

// Which experiments have caught a mutant in earlier runs, whatever has changed since: they are tried first.
class EarlierCatches {
 public:
  bool has(const Mutant& mutant, const Experiment& experiment) const {
    return cache_.has(key(mutant, experiment));
  }
  void keep(const Mutant& mutant, const Experiment& experiment) const {
    if (!has(mutant, experiment)) cache_.keep(key(mutant, experiment));
  }

 private:
  std::string key(const Mutant& mutant, const Experiment& experiment) const {
    return cache_.key({experiment.name, to_text(mutant)});
  }

  const VerdictCache cache_{"catches", ""};
};

// In a process of its own, since a mutant may write anywhere: one that crashes or hangs the process is
// noticed.
bool is_noticed(const Experiment& experiment, const HostKernel& kernel) {
  const std::string outcome =
      outcome_of(start_child([&] { return !experiment.wrong(kernel); }, Ending::immediate, kMostSeconds));
  EXPECT_NE(outcome, "not started");
  return outcome != "done" && outcome != "not started";
}

// Tries an experiment on mutants that nothing has caught yet.
void try_on(const Experiment& experiment, std::span<Trial* const> open, const simt::HostCompiler& compiler,
            const EarlierCatches& earlier) {
  for (std::size_t first = 0; first < open.size(); first += kUnit) {
    const std::span unit = open.subspan(first, std::min(kUnit, open.size() - first));
    std::vector<Source> texts;
    for (const Trial* trial : unit) texts.push_back(mutated(experiment.source, trial->mutant));
    std::vector<std::optional<HostKernel>> kernels;
    compile_each(compiler, texts, kernels);
    for (std::size_t i = 0; i < unit.size(); ++i) {
      if (!kernels[i]) {
        unit[i]->end = End::not_compiling;
      } else if (is_noticed(experiment, *kernels[i])) {
        unit[i]->end = End::caught;
        earlier.keep(unit[i]->mutant, experiment);
      }
    }
  }
}

void try_all(const std::vector<Trial*>& trials, const simt::HostCompiler& compiler) {
  const std::vector<Experiment> all = experiments();
  const EarlierCatches earlier;
  for (const bool only_known : {true, false})
    for (const Experiment& experiment : all) {
      std::vector<Trial*> open;
      for (Trial* trial : trials)
        if (trial->end == End::survived && experiment.files.count(trial->mutant.file) > 0 &&
            (!only_known || earlier.has(trial->mutant, experiment)))
          open.push_back(trial);
      try_on(experiment, open, compiler, earlier);
    }
}

// Not of plan_math.cuh, which mostly says what is fast, and of which the planner has another copy.
std::vector<Mutant> all_automatic() {
  std::vector<Mutant> all;
  for (const std::string& file : mutated_files())
    if (file != "plan_math.cuh")
      for (Mutant& mutant : automatic_mutants(file, std::string(find_template("", file).value().view())))
        all.push_back(std::move(mutant));
  return all;
}

bool explains(const EquivalentMutant& explanation, const Mutant& mutant) {
  const bool whole_line = explanation.becomes.empty();
  return explanation.file == mutant.file && explanation.line == mutant.line &&
         (whole_line || (explanation.becomes == mutant.becomes && explanation.nth == mutant.nth));
}

// The explanation of a mutant, or null.
const EquivalentMutant* explanation_of(const Mutant& mutant) {
  const auto all = equivalent_mutants();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return explains(one, mutant); });
  return found == all.end() ? nullptr : &*found;
}

// A sixteenth of the automatic mutants, always the same as long as their lines stay, and all planted faults;
// with NORMJIT_MUTANTS=all all mutants, with NORMJIT_MUTANTS=planted the planted faults alone, and with names
// of files, separated by commas, which may have wildcards, all mutants of those. Mutants with an explanation
// would pass through all experiments, and take most of the time: they are tried where NORMJIT_MUTANTS asks
// for them.
bool is_tried(const Mutant& mutant) {
  const char* const wanted = std::getenv("NORMJIT_MUTANTS");
  if (wanted != nullptr) {
    const std::string_view names = wanted;
    if (names == "all") return true;
    if (names == "planted") return !mutant.fault.empty();
    const auto files = split(names, ',');
    return std::any_of(files.begin(), files.end(), [&](std::string_view file) {
      return fnmatch(std::string(file).c_str(), mutant.file.c_str(), 0) == 0;
    });
  }
  if (!mutant.fault.empty()) return true;
  if (explanation_of(mutant) != nullptr) return false;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : to_text(mutant)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash % 16 == 0;
}

// What is wrong with this end of a mutant; empty if nothing is.
std::string trouble_of(const Mutant& mutant, End end) {
  const EquivalentMutant* const explanation = explanation_of(mutant);
  if (!mutant.fault.empty()) return end == End::caught ? "" : concat({"no case notices ", to_text(mutant)});
  if (end == End::survived)
    return explanation != nullptr
               ? ""
               : concat({"no case notices ", to_text(mutant),
                         "\nPin a case that does, or explain in equivalent_mutants.cc why none can."});
  return explanation == nullptr || explanation->becomes.empty()
             ? ""
             : concat({"is noticed, so that its explanation in equivalent_mutants.cc is wrong: ",
                       to_text(mutant)});
}

// The ends that are kept. A compile may also fail for want of memory.
constexpr std::pair<End, std::string_view> kKeptEnds[] = {{End::survived, "survived"},
                                                          {End::caught, "caught"}};

// The good ends that earlier runs have come to.
class KnownEnds {
 public:
  explicit KnownEnds(const simt::HostCompiler& compiler) {
    const auto version = version_of(compiler);
    compiler_ = version ? *version : "";
    for (const Experiment& experiment : experiments())
      for (const std::string& file : experiment.files)
        experiments_[file] += concat({experiment.name, " ", digest(experiment.source.text), "\n"});
  }

  std::optional<End> of(const Mutant& mutant) const {
    for (const auto& [end, name] : kKeptEnds)
      if (trouble_of(mutant, end).empty() && cache_.has(key(mutant, name))) return end;
    return {};
  }
  // Whether to try a mutant whose end is known.
  bool is_due(const Mutant& mutant) const { return cache_.is_due(key(mutant, "")); }
  // Whether to try one whose end is not known. What is asked for by name is.
  bool is_in_part(const Mutant& mutant) const {
    return std::getenv("NORMJIT_MUTANTS") != nullptr || cache_.is_in_part(key(mutant, ""));
  }
  void keep(const Mutant& mutant, End end) const {
    for (const auto& [one, name] : kKeptEnds)
      if (one == end) cache_.keep(key(mutant, name));
  }
  void discard() const { cache_.discard(); }

 private:
  std::string key(const Mutant& mutant, std::string_view end) const {
    const auto tried = experiments_.find(mutant.file);
    return cache_.key({compiler_, tried == experiments_.end() ? "" : tried->second, to_text(mutant),
                       shortest(mutant.at), shortest(mutant.length), mutant.replacement, end});
  }

  const VerdictCache cache_{"mutants", NORMJIT_TEST_CODE};
  std::string compiler_;
  std::map<std::string, std::string> experiments_;  // of a file: their names and sources
};

// Over the shards that this process has run.
struct Score {
  int planted = 0, planted_caught = 0, automatic_caught = 0, not_compiling = 0, explained = 0;
  std::size_t known = 0, tried = 0;
  double seconds = 0;
} score;

class Mutation : public ::testing::TestWithParam<int> {
 protected:
  static void TearDownTestSuite() {
    if (score.known + score.tried == 0) return;
    std::printf(
        "mutation check: planted %d of %d caught; automatic %d caught, %d not compiling, %d survive and are "
        "explained; %.1f s\n"
        "%zu mutants: %zu known, %zu tried\n",
        score.planted_caught, score.planted, score.automatic_caught, score.not_compiling, score.explained,
        score.seconds, score.known + score.tried, score.known, score.tried);
  }
};

TEST_P(Mutation, EveryMistakeIsNoticed) {
  const auto begin = std::chrono::steady_clock::now();
  if (!simt::sanitizer().empty()) GTEST_SKIP() << "The score is that of the executor's own checks.";
  const auto compiler = simt::HostCompiler::find();
  ASSERT_TRUE(compiler) << compiler.error().message;
  auto mutants = planted_faults();
  ASSERT_TRUE(mutants) << mutants.error().message;
  for (Mutant& mutant : all_automatic()) mutants->push_back(std::move(mutant));
  std::erase_if(*mutants, [](const Mutant& mutant) { return !is_tried(mutant); });
  std::vector<Trial> trials;
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < mutants->size(); i += kShards)
    trials.push_back({std::move((*mutants)[i])});
  const KnownEnds known(*compiler);
  std::erase_if(
      trials, [&](const Trial& trial) { return !known.of(trial.mutant) && !known.is_in_part(trial.mutant); });
  std::vector<Trial*> tried;
  for (Trial& trial : trials)
    if (const auto end = known.of(trial.mutant); end && !known.is_due(trial.mutant))
      trial.end = *end;
    else
      tried.push_back(&trial);
  try_all(tried, *compiler);
  score.tried += tried.size();
  score.known += trials.size() - tried.size();

  for (const Trial* const trial : tried) {
    const auto before = known.of(trial->mutant);
    if (before && before != trial->end) {
      ADD_FAILURE() << "had another end in an earlier run, which was kept in " << verdict_folder()
                    << ", whose keys of mutants are discarded now: " << to_text(trial->mutant);
      known.discard();
    } else if (trouble_of(trial->mutant, trial->end).empty()) {
      known.keep(trial->mutant, trial->end);
    }
  }
  for (const auto& [mutant, end] : trials) {
    const std::string trouble = trouble_of(mutant, end);
    EXPECT_TRUE(trouble.empty()) << trouble;
    if (!mutant.fault.empty()) {
      ++score.planted;
      score.planted_caught += end == End::caught;
    } else if (end == End::survived) {
      score.explained += trouble.empty();
    } else {
      (end == End::caught ? score.automatic_caught : score.not_compiling) += 1;
    }
  }
  score.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
INSTANTIATE_TEST_SUITE_P(Shards, Mutation, ::testing::Range(0, kShards));

TEST(MutationExperiments, SucceedWithTheTemplatesAsTheyAre) {
  if (!simt::sanitizer().empty()) GTEST_SKIP() << "The time limit is for kernels without a sanitizer.";
  const auto compiler = simt::HostCompiler::find();
  ASSERT_TRUE(compiler) << compiler.error().message;
  const std::vector<Experiment> all = experiments();
  std::vector<Source> sources;
  for (const Experiment& experiment : all) sources.push_back(experiment.source);
  const auto kernels = compiler->compile(sources);
  ASSERT_TRUE(kernels) << kernels.error().message;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto wrong = all[i].wrong((*kernels)[i]);
    EXPECT_FALSE(wrong) << all[i].name << "\n" << *wrong;
  }
}

TEST(EquivalentMutants, AreMutantsOfTheTemplatesAsTheyAre) {
  const std::vector<Mutant> mutants = all_automatic();
  for (const EquivalentMutant& explanation : equivalent_mutants())
    EXPECT_TRUE(std::any_of(mutants.begin(), mutants.end(),
                            [&](const Mutant& mutant) { return explains(explanation, mutant); }))
        << "the templates have this line no more: " << explanation.file << ": " << explanation.line << " -> "
        << explanation.becomes;
}

// ---- The mutants themselves ----

std::vector<std::string> changes(std::string_view text) {
  std::vector<std::string> all;
  for (const Mutant& mutant : automatic_mutants("some.cuh", text)) all.push_back(mutant.becomes);
  return all;
}

TEST(AutomaticMutants, AreTheSmallChangesOfALine) {
  using ::testing::ElementsAre;
  EXPECT_THAT(changes("  x = a < b;\n"), ElementsAre("x = a <= b;"));
  EXPECT_THAT(changes("x = a >= b && c != d;\n"),
              ElementsAre("x = a > b && c != d;", "x = a >= b || c != d;", "x = a >= b && c == d;"));
  EXPECT_THAT(changes("x = a + 2;\n"), ElementsAre("x = a - 2;", "x = a + 3;", "x = a + 1;"));
  EXPECT_THAT(changes("x = 4 * b;\n"), ElementsAre("x = 3 * b;", "x = 4 / b;"));
  EXPECT_THAT(changes("x = 0;\n"), ElementsAre("x = 1;"));
  EXPECT_THAT(changes("x = 1.5f;\n"), ElementsAre("x = 1.01f * 1.5f;"));
  EXPECT_THAT(changes("x = !a;\n"), ElementsAre("x = a;"));
  EXPECT_THAT(changes("x = -a;\n"), ElementsAre("x = a;"));
  EXPECT_THAT(changes("x ^= a;\n"), ElementsAre("x |= a;"));
  EXPECT_THAT(changes("hw::block_barrier();\n"), ElementsAre("(void)0;"));
  EXPECT_THAT(changes("if (a) hw::wait_until(&b, c);\n"), ElementsAre("if (a) (void)0;"));
  EXPECT_THAT(changes("x = hw::arrive(&b);\n"), ElementsAre("x = hw::take_ticket(&b);"));
  EXPECT_THAT(changes("hw::arrive(&b);\n"), ElementsAre("hw::take_ticket(&b);", "(void)0;"));
}

TEST(AutomaticMutants, LeaveAloneWhatIsNoArithmetic) {
  using ::testing::IsEmpty;
  EXPECT_THAT(changes("// a < b + 1\n#if A < 1\nstatic_assert(a < 1,\n              \"b\");\n"), IsEmpty());
  EXPECT_THAT(changes("template <class T>\nVec<T>& f(const T* a, b&& c);\n"), IsEmpty());
  EXPECT_THAT(changes("x = hw::take_ticket(&w->next);\n"), IsEmpty());
}

TEST(AutomaticMutants, TellEqualLinesApart) {
  const auto mutants = automatic_mutants("some.cuh", "if (a < b) f();\nif (a < b) f();\n");
  ASSERT_EQ(mutants.size(), 2u);
  EXPECT_EQ(to_text(mutants[0]), "some.cuh: 'if (a < b) f();' -> 'if (a <= b) f();'");
  EXPECT_EQ(to_text(mutants[1]), "some.cuh: 'if (a < b) f();' -> 'if (a <= b) f();', occurrence 2");
}

TEST(Mutants, ChangeTheirFileInTheKernelAndNothingElse) {
  const Source source{"#line 1 \"a.cuh\"\nx < y;\n#line 1 \"b.cuh\"\nx < y;\n", "kernel", "what"};
  const auto mutants = automatic_mutants("b.cuh", "x < y;\n");
  ASSERT_EQ(mutants.size(), 1u);
  EXPECT_EQ(mutated(source, mutants[0]).text, "#line 1 \"a.cuh\"\nx < y;\n#line 1 \"b.cuh\"\nx <= y;\n");
}

}  // namespace
}  // namespace normjit::testing
