// SPDX-License-Identifier: Apache-2.0
// The cost of a plan is a sum of a few terms. The measurement beside a constant set it: on an NVIDIA H200,
// with cold L2, by `normjit bench`. Measured numbers without a unit are fractions of copy speed. No term
// depends on a particular number of columns.
#include "normjit/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace normjit {
namespace {

// Bytes that a multiprocessor's share of the memory bandwidth moves in a microsecond: 31 KiB on the H200, and
// nearly the same on the other known devices.
constexpr double kShareBytes = 31 * 1024;
// While others are idle, a multiprocessor can use about three times its share.
constexpr double kMaxShares = 3;

double copy_microseconds(const PlanUse& use) {
  const double bytes = static_cast<double>(use.rows() * use.row_bytes() + use.affine_bytes());
  return bytes / (kShareBytes * use.device.sm_count);
}

// How many times as long as a copy a plan takes while the memory is busy.
struct Slowdown {
  double factor = 1;
  std::string_view why = "at copy speed";  // the reason for the largest part
  double largest = 0;

  void add(double part, std::string_view reason) {
    factor += part;
    if (part > largest) largest = part, why = reason;
  }
};

// ---- All but staged_rows ----

// Threads and vectors beyond the end of a row. Measured: 8193 columns with room for 10,240: 0.65, with room
// for 8192 and the last element on its own: 0.76.
constexpr double kIdle = 0.4;
// Accesses of less than 16 bytes. Measured: single elements of 16,385 x 1001 f64: 0.96, of 20,000 x 3001 f32:
// 0.95, of 26,619 x 2085 f16: 0.65. Short rows are slower still.
constexpr double kNarrow = 0.03, kNarrowerThanAWord = 0.06, kNarrowAndShort = 0.12;
// In sums idle threads cost less, since other rows are in flight meanwhile. Measured, of bf16 with a residual
// and its sum: 1608 columns with room for 2048: 0.98, 5424 with room for 6144: 0.98.
constexpr double kIdleInSums = 0.2, kPartialSums = 0.015;
// Single elements of sums, of 16 bits and of f32: the fewer a thread has, the more of its instructions are
// for the row. Measured, layernorm of bf16: 1023 columns, 16 elements a thread: 0.84, 8: 0.78, 4: 0.67, 2:
// 0.42; 4097 columns, 17: 0.81, 9: 0.77, 5: 0.56; of f32, 9: 0.93, 5: 0.89.
constexpr double kSingle16 = 0.02, kSingle16EachThread = 0.285, kSingle32 = 0.015, kSingle32EachThread = 0.1;
// Realigning rows in shared memory adds instructions, most for 16-bit types, and barriers. Measured: 1023 f32
// columns, 64 threads: 0.945; 1001 f64: 0.86; 4097 f16, 128 threads: 0.78, 256 threads: 0.62. Idle threads
// wait at the barriers too: 2085 columns with room for 3072: 0.59.
constexpr double kUnalignedCost = 0.06, kUnalignedInDouble = 0.15, kUnalignedOf16Bits = 0.25,
                 kUnalignedOfThreads = 0.10, kIdleInUnaligned = 0.5;

// The generic kernel reads rows four times, mostly from L2, where each has a scale; about.
constexpr double kGeneric = 4;

// ---- warp_rows and block_row ----

// A multiprocessor needs 48 KiB of loads in flight. Measured: 4096 bf16 columns, 24 KiB: 0.87, 48 KiB: 0.96.
constexpr double kInFlight = 48 * 1024, kNotInFlight = 0.20;
// Of sums 32 KiB of x, with as much of the other rows. Measured, layernorm of 1280 bf16 columns with a
// residual and its sum, 15 KiB: 0.88, 20 KiB: 0.95, 22 KiB: 0.99; rmsnorm of 8192 columns, 32 KiB: 0.98.
constexpr double kInFlightOfSums = 32 * 1024;
// Where scale and shift follow, it costs more. Measured, 3072 bf16 columns with gate, residual, sum and
// scale: 18 KiB: 0.86, 24 KiB: 0.94, 36 KiB: 0.99.
constexpr double kNotInFlightModulated = 0.3;
// warp_rows: shuffles between the threads of a row, and more than two vectors per thread. Measured: 96 f16
// columns, 4 threads of 3 vectors: 0.99, 16 threads: 0.63; 64 f32 columns, 8 threads: 1.01, 16: 0.95, 4:
// 0.99; 211 f32 columns, 8 threads of 7 vectors: 0.92, 32 of 2: 0.67.
constexpr double kShuffles = 0.02, kManyVectors = 0.012, kManyVectorsOfSums = 0.02;
// warp_rows: where an access of a warp takes less than a sector of each row, L1 fetches sectors more than
// once. Measured: 24 f16 columns, one thread of 3 vectors: 0.72; 16 f32 columns, two threads of 2 vectors:
// 1.00.
constexpr double kScattered = 0.37;
// block_row: a block has no loads in flight while it reduces a row. Other resident blocks fill the gap.
// Measured: 16,384 f32 columns, blocks that fit once per SM: 0.86, twice: 0.95; 4096 columns, six times:
// 0.96.
constexpr double kReducing = 0.10;
// Sums have more loads in flight. Measured: 16,384 bf16 columns, one block of 1024 threads: 0.95, two of 512:
// 0.975.
constexpr double kReducingSums = 0.06;
// A multiprocessor starts a block in so many microseconds, and more for each thread. Measured: 333 bf16
// columns with a residual and its sum, 64 or 96 threads: 0.53; with a scale for each sample, 1152 columns, 64
// threads: 0.86, 160: 0.58, in warps: 0.91; 3072 columns, 384 threads: 0.75, 192: 0.97. With results of 8
// bits, which make rows short: 1536 bf16 columns to e4m3, 64 threads: 0.87, in warps: 0.955.
constexpr double kBlockStart = 0.12, kBlockStartEachThread = 0.0012;
// Scale and shift of each row that are loaded when the statistics are known, if x and y are all rows.
// Measured: 3072 bf16 columns with those of 1024 rows, four vectors a thread: 0.95, two, loaded early, but
// with less in flight: 0.85; with gate, residual and sum 0.97 and 0.965.
constexpr double kLateRows = 0.03;
// block_row: many registers of x per thread. Measured: 8192 bf16 columns, 32 registers: 0.953, 16: 0.962;
// 8192 f32 columns, 64: 0.92, 32: 0.95; 4096 f32 columns, 32 and 16: 0.964, but in 1024 rows 0.78 and 0.88,
// since threads with less work finish sooner.
constexpr int kFewRegisters = 16;
// Of sums: 3072 bf16 columns with a residual, 24 registers: 0.98, 16: 1.00; 8192 columns, 32: 0.96, 16: 0.98.
// With results of 8 bits fewer threads gain: 16,384 bf16 columns to e4m3 with a given scale, 32 registers:
// 0.97, 16: 0.93; with a scale of each row, 8192 columns: 0.90 and 0.80.
constexpr double kManyRegisters = 0.02, kManyRegistersOfSums = 0.04, kManyRegistersOf8Bits = 0.005;
// block_row: vectors of weights wider than 16 bytes take several accesses, each with gaps between the lanes.
// Measured: 4096 bf16 columns with f32 weights: 0.92, in vectors of half the width: 0.97.
constexpr double kWideWeights = 0.05;
// The blocks of a cluster start and wait together, more often the less each of them has. Measured: 16,384 f32
// columns, 4 blocks of 16 KiB: 0.94, 8 of 8 KiB: 0.89; 32,768 f32 columns, 8 blocks: 0.92; bf16, 4 blocks:
// 0.84; 16,384 f64 columns: 0.84.
constexpr double kCluster = 0.045, kClusterBytes = 16 * 1024, kClusterSize = 0.015;
constexpr double kClusterInDouble = 0.10, kClusterOf16Bits = 0.08;
// All blocks of a row stand still while they exchange over the grid. Measured: 1,048,576 f32 columns: 0.68.
constexpr double kGridExchange = 0.40;

// ---- staged_rows ----

// These constants were fitted to 90 measured plans of 13 specs of 3 to 2047 columns, then adjusted a little
// so that plans near the best measured ones are chosen. While a copy reads and writes one byte per lane, a
// multiprocessor can issue 13.5 instructions of a warp, and make 3.5 accesses of a warp to shared memory and
// L1. A kernel slows down from about half of either on.
constexpr double kThroughTile = 0.045, kInstructionsPerByte = 13.5, kAccessesPerByte = 3.5;
constexpr double kInstructions = 0.19, kInstructionsFree = 0.5, kAccesses = 0.32, kAccessesFree = 0.6;
// A multiprocessor needs 52 KiB of tiles in flight, and enough warps to fill each other's gaps. Measured: 31
// f32 columns, 70 KiB: 0.98, 41 KiB: 0.77.
constexpr double kTilesInFlight = 52 * 1024, kTilesNotInFlight = 0.3, kEnoughWarps = 32, kFewWarps = 0.15;
// A warp loads all of a tile before it stores any of it: microseconds per KiB of a warp's tile. Measured: 39
// f32 columns in 13 us, tiles of 1.2 KiB: 0.87, 2.4 KiB: 0.82, 4.9 KiB: 0.74. Where there are many rows, it
// counts 2.5 times, since most launches have fewer than PlanUse::rows().
constexpr double kTileWait = 0.87;

// ---- persistent_row ----

// Blocks have fixed shares of the rows, but no two multiprocessors are equally fast. Measured: 0.92.
constexpr double kFixedShares = 0.08;
// Sums. Measured, bf16 with a residual and its sum: 5072 columns: 0.92, 7400 columns: 0.87.
constexpr double kStreamedSums = 0.07;
// Blocks that share a row wait for each other. Measured: 24,576 columns in one block: 0.896, in two: 0.867.
constexpr double kWaiting = 0.04;
// The less of a row a block has, the more often it exchanges. Measured: 519,328 bf16 columns in 32 blocks of
// 4 chunks: 0.70.
constexpr double kShortPart = 0.03;
// A ring that holds few rows lets the next ones come late. Measured: 32,768 f32 columns in one block, 1.75
// rows: 0.89.
constexpr double kShortRing = 0.08;
// Where much of the next row has no room, reading and writing take turns. Measured: 5,800,000 f32
// columns, 1.2 rows: 0.54; 4,194,304 columns, 1.5 rows: 5 % slower than 1.75, so the limit may be lower.
constexpr double kOverlap = 1.56, kNoOverlap = 0.35;
// Unaligned rows are read from the ring in single elements. Measured: 1050 x 13,243 f32: 0.82, 3284 x 3059
// f64: 0.86, 150 x 1,000,001 bf16: 0.65; 500 x 100,003 f32 with weight and bias in registers: 0.79, with both
// loaded for each chunk: 0.60.
constexpr double kScalars = 0.15, kScalarsInDouble = 0.08, kScalarsOf16Bits = 0.25, kReloaded = 0.4;
// Aligned rows of f64. Measured: 4099 x 4096: 0.87.
constexpr double kPersistentInDouble = 0.1;
// Microseconds in which the four reduce warps reduce a row. Measured: 6232 bf16 columns in two chunks: 0.61,
// 4973 in two: 0.44, in one: 0.69; 20,480 f16 in five: 0.88.
constexpr double kPerRow = 0.3, kPerChunk = 0.2, kPerColumn = 0.06 / 1024;

// ---- channels_first ----

// What threads side by side move of a channel at once. Less than 256 bytes is more requests and rows of DRAM
// for as many bytes; below 64 sectors are shared with the next block. Measured, 256 channels of f32 in planes
// of 128 x 128: 256 bytes: 0.97, 128: 0.94, 64: 0.86; with 16 bits, of which half as many bytes pass, half.
constexpr double kNarrowRun = 0.06, kShareSectors = 0.25;
constexpr int kWideRun = 256, kNarrowestRun = 64;
// Narrow accesses cost little where there are 4 bytes. Measured, 96 channels of f32 in planes of 56 x 56: 16
// bytes: 0.989, 4 bytes: 0.97; of f16, 4 bytes: 0.97, 2 bytes: 0.78.
constexpr double kNarrowChannels = 0.007;
// Merging the parts of a position takes about as many instructions as measuring so many channels, which count
// the more the fewer bytes there are. Measured, 96 channels of f16 in planes of 56 x 56, 24 channels a
// thread: 0.97, 12: 0.90, 6: 0.68; of f32, 12: 0.98, 6: 0.98, 3: 0.85.
constexpr double kMergedChannels = 6, kMeasuring = 0.4, kMeasuredBytes = 4;
constexpr double kReducingChannels = 0.05;
// Channels that pass in pieces are read twice, the second time mostly from L2.
constexpr double kInPieces = 0.35;

// ---- split_row ----

// What two reads cost besides their bytes. Measured: 2 x 16,777,216 f32: 0.60, 1024 x 32,768 f64: 0.34;
// unaligned 150 x 1,000,001 bf16: 0.26, since few blocks wait at many barriers, and in single elements 0.14.
constexpr double kTwice = 0.3, kTwiceInDouble = 1.0, kTwiceUnaligned = 1.0, kTwiceNarrow = 0.3;

// Waves of a shared-memory access of a warp of staged_rows: one per 128 bytes, and more where lanes want
// different words of one bank.
int waves_of(const Plan& plan, const NormSpec& spec, int size) {
  constexpr int kBanks = 32;
  const int bytes = plan.vector * size, together = std::min(kWarp, kBanks * 4 / bytes);
  int waves = 0;
  for (int first = 0; first < kWarp; first += together) {
    // The words of one lane are in different banks, so a bank has at most one word of each lane.
    std::int64_t words[kBanks][kWarp];
    int counts[kBanks] = {}, most = 0;
    for (int lane = first; lane < first + together; ++lane) {
      const std::int64_t row = std::int64_t{lane / plan.threads_per_row} * plan.group_rows;
      const std::int64_t begin = row * spec.columns * size + lane % plan.threads_per_row * bytes;
      for (std::int64_t word = begin / 4; word <= (begin + bytes - 1) / 4; ++word) {
        const auto bank = static_cast<std::size_t>(word % kBanks);
        std::int64_t *const known = words[bank], *const end = known + counts[bank];
        if (std::find(known, end, word) != end) continue;
        *end = word;
        most = std::max(most, ++counts[bank]);
      }
    }
    waves += most;
  }
  return waves;
}

// The part of x in the tile of a warp.
double tile_kib(const Plan& plan, const NormSpec& spec) {
  const std::int64_t rows = kWarp / plan.threads_per_row * plan.group_rows;
  return static_cast<double>(rows * spec.columns * size_of(spec.input)) / 1024;
}

Slowdown slowdown_of_tiles(const Plan& plan, const NormSpec& spec) {
  const double shuffles = std::log2(plan.threads_per_row);
  const int weights = static_cast<int>(spec.affine), converts = size_of(spec.input) == 2;
  const double row = static_cast<double>(spec.columns) / plan.threads_per_row;
  const double padding = static_cast<double>(columns_per_block(plan)) / static_cast<double>(spec.columns);
  // Per element, counted in the compiler's output: for the tile, for a row, for the element and its weights.
  const double instructions = 130 / (row * plan.group_rows) + (20 + 6 * shuffles) / row +
                              padding * (7.5 + converts + 2.0 / plan.vector +
                                         weights * (1.0 / plan.vector + converts) / plan.group_rows);
  // All bytes pass four times in wide accesses, of 128 bytes per warp and wave.
  const int bytes = size_of(spec.input) + size_of(spec.output);
  const int input_waves = waves_of(plan, spec, size_of(spec.input));
  const int output_waves =
      size_of(spec.output) == size_of(spec.input) ? input_waves : waves_of(plan, spec, size_of(spec.output));
  const double accesses =
      3 * shuffles / row + bytes / 2.0 +
      padding / plan.vector * (input_waves + output_waves + static_cast<double>(weights) / plan.group_rows);
  const int warps = plan.threads / kWarp * plan.blocks_per_sm;
  const double in_flight = tile_kib(plan, spec) * 1024 * warps;
  Slowdown s;
  s.add(kThroughTile, "rows pass through shared memory");
  s.add(kInstructions * std::max(0.0, instructions / (kInstructionsPerByte / 2 * bytes) - kInstructionsFree),
        "many instructions per element");
  s.add(kAccesses * std::max(0.0, accesses / (kAccessesPerByte / 2 * bytes) - kAccessesFree),
        "shared memory is busy");
  s.add(kTilesNotInFlight * std::max(0.0, kTilesInFlight / in_flight - 1), "too few bytes in flight");
  s.add(kFewWarps * std::max(0.0, 1 - warps / kEnoughWarps), "too few warps overlap");
  return s;
}

Slowdown slowdown_of_channels(const Plan& plan, const NormSpec& spec) {
  const double columns = static_cast<double>(spec.columns);
  const double span = static_cast<double>(columns_per_block(plan));
  const int run = static_cast<int>(rows_per_block(plan)) * size_of(spec.input);
  Slowdown s;
  if (const int width = plan.vector * widest_element(spec); width < 16)
    s.add((width < 4 ? kNarrowerThanAWord : kNarrowChannels) * (16.0 / width - 1), "accesses are narrow");
  // The memory and the instructions keep each other waiting, the slower one counts.
  const double bytes = read_bytes(spec) + written_bytes(spec);
  const double scattered = kNarrowRun * std::max(0.0, std::log2(static_cast<double>(kWideRun) / run)) *
                           std::min(1.0, bytes / (2 * kMeasuredBytes));
  const double merging = kMeasuring * kMergedChannels / plan.per_thread * std::pow(kMeasuredBytes / bytes, 2);
  if (scattered > merging)
    s.add(scattered, "accesses are scattered");
  else
    s.add(merging, "few channels for each part of the statistics");
  if (run < kNarrowestRun)
    s.add(kShareSectors * (static_cast<double>(kNarrowestRun) / run - 1), "accesses share sectors");
  const double held = std::min(columns, span) * static_cast<double>(rows_per_block(plan));
  const double in_flight = held * read_bytes(spec) * plan.blocks_per_sm;
  if (in_flight < kInFlight) s.add(kNotInFlight * (1 - in_flight / kInFlight), "too few bytes in flight");
  s.add(kReducingChannels / plan.blocks_per_sm, "too few blocks overlap");
  s.add(0.01 * (plan.threads / 256.0), "threads wait at barriers");
  s.add(kIdle * (std::ceil(columns / span) * span / columns - 1), "some threads are idle");
  if (span < columns) {
    s.add(kInPieces + again_bytes(spec) / bytes / 2, "x is read twice");
  }
  if (const auto x = static_cast<double>(held_registers(plan, spec)); x > kFewRegisters)
    s.add(kManyRegisters * std::log2(x / kFewRegisters), "threads hold many registers");
  return s;
}

// ---- Gradients ----

// Bytes of x and dy of the next row that keep the memory busy, on a multiprocessor. Measured on an H100, as
// all of gradients: 16,384 x 4096 bf16 with 16 KiB: 0.80, with 32 KiB: 0.92; 65,536 x 768 with 24 KiB: 0.82,
// with 36 KiB: 0.90.
constexpr double kGradientsInFlight = 28 * 1024, kGradientsNotInFlight = 0.6;
// What a thread does for a row besides its elements; and few warps, which wait for each other's exchange.
// 4096 bf16 columns, two blocks of 256 threads with 16 elements: 145.2 us, of 128 with 32: 149.1 us. 4096 f32
// columns, 512 threads with 8: 144.5 us, 256 with 16: 147.5 us, two blocks of 128 with 32: 148.7 us.
constexpr double kGradientsEachRow = 0.25, kGradientsFewWarps = 0.05, kGradientsFewWarpsAlone = 0.03;
// One block waits at its barriers. 8192 bf16 columns, 512 threads with 16 elements: 151.0 us; 4096 in two
// blocks of 256: 145.2 us.
constexpr double kGradientsAlone = 0.03;
// Rows are read from shared memory up to three times, and blocks of a cluster wait for each other: 4096 x
// 16,384 bf16 155.4 us in clusters of two, two blocks of 256 threads on a multiprocessor; 158.8 us with one
// of 512; 158.2 us in one block; 160.4 us in clusters of four. In place of rows in registers at 16,384 x
// 4096: 151.3 us.
constexpr double kGradientsInRing = 0.08, kGradientsRingAlone = 0.04, kGradientsInCluster = 0.02;
// Short rows of a small block are few bytes side by side: 1,048,576 x 64 f32, 128 threads: 0.89, 256: 0.953,
// 512: 0.956.
constexpr double kGradientsSmallBlocks = 0.06;
// 4096 x 16,384 bf16: 0.50; 1024 x 65,536 f32: 0.55.
constexpr double kGradientsTwice = 0.8;

Slowdown slowdown_of_gradients(const Plan& plan, const PlanUse& use) {
  const NormSpec& spec = use.spec;
  const double columns = static_cast<double>(spec.columns);
  const double span = static_cast<double>(columns_per_block(plan));
  const int width = plan.vector * widest_element(spec), elements = plan.per_thread * plan.vector;
  const bool in_columns = plan.strategy == Strategy::gradient_columns;
  const double threads = static_cast<double>(plan.threads) * plan.blocks_per_sm;
  Slowdown s;
  if (width < 16) s.add(kNarrowAndShort * (16.0 / width - 1), "accesses are narrow");
  // Behind an activation once more, and rows in registers have two exchanges. Neither was measured.
  if (in_columns) s.add(kGradientsTwice * rows_behind(spec), "x and dy are read twice");
  const bool in_ring = plan.strategy == Strategy::gradient_ring;
  const double pieces = in_columns ? std::ceil(columns / span) : plan.blocks_per_row;
  s.add(kIdle * (pieces * span / columns - 1), "some threads are idle");
  const double in_flight = threads * elements *
                           (in_ring ? (plan.stages - 1 - rows_behind(spec)) * read_bytes(spec)
                                    : size_of(spec.input) + size_of(spec.output));
  s.add(kGradientsNotInFlight * std::max(0.0, 1 - in_flight / kGradientsInFlight), "too few bytes in flight");
  s.add(kGradientsEachRow * (in_ring ? 1 : rows_behind(spec)) / elements, "few elements for each reduction");
  s.add((plan.threads_per_row > kWarp && !in_ring ? kGradientsFewWarps : kGradientsFewWarpsAlone) *
            std::max(0.0, 16 * kWarp / threads - 1),
        "too few warps overlap");
  if (in_ring) {
    s.add(kGradientsInRing + (plan.blocks_per_sm == 1 ? kGradientsRingAlone : 0),
          "rows are read from shared memory");
    s.add(kGradientsInCluster * (plan.blocks_per_row - 1), "blocks that share a row wait for each other");
  } else if (plan.threads_per_row > kWarp) {
    s.add(kGradientsAlone / plan.blocks_per_sm, "too few blocks overlap");
    s.add(0.01 * (plan.threads / 256.0), "threads wait at barriers");
  } else {
    s.add(kGradientsSmallBlocks * 128 / plan.threads, "blocks are small");
  }
  return s;
}

// Microseconds at the start and the end: launch, the first row, and adding the sums of all blocks.
double latency_of_gradients(const Plan& plan, const PlanUse& use) {
  const NormSpec& spec = use.spec;
  const bool in_columns = plan.strategy == Strategy::gradient_columns;
  const double blocks = static_cast<double>(grid_blocks(plan, spec, use.device, use.rows()));
  const double chunks =
      std::ceil(static_cast<double>(spec.columns) / static_cast<double>(columns_per_block(plan)));
  const double parts = in_columns ? std::max(1.0, blocks / chunks) : blocks / plan.blocks_per_row;
  const double sums =
      parts * sums_over_rows(spec) * static_cast<double>(spec.columns) * size_of(compute_type(spec));
  constexpr double kMeeting = 2, kBatch = 6, kLastBlockBytes = 100 * 1024;
  double us = 3;
  if (in_columns) us += kBatch * std::ceil(static_cast<double>(use.rows()) / plan.group_rows);
  // One block does all, or adds all parts alone.
  if (plan.exchange == Exchange::none)
    return us + sums / kLastBlockBytes + (in_columns ? copy_microseconds(use) * use.device.sm_count : 0);
  return us + kMeeting + sums / (kShareBytes * use.device.sm_count);
}

bool loads_parameters_early(const Plan& plan, const NormSpec& spec) {
  return (spec.affine == Affine::none && row_parameters(spec) == 0) ||
         loads_parameters_early(plan, spec, plan_math::low_occupancy(plan.threads, plan.blocks_per_sm));
}

Slowdown slowdown_of(const Plan& plan, const PlanUse& use) {
  const NormSpec& spec = use.spec;
  if (plan.strategy == Strategy::generic) {
    Slowdown s;
    s.add(kGeneric, "the generic kernel reads rows several times");
    return s;
  }
  if (is_of_gradients(plan)) return slowdown_of_gradients(plan, use);
  if (plan.strategy == Strategy::channels_first) return slowdown_of_channels(plan, spec);
  if (plan.strategy == Strategy::staged_rows) return slowdown_of_tiles(plan, spec);
  const bool in_double = compute_type(spec) == DType::f64, in_16_bits = size_of(spec.input) == 2;
  const auto by_type = [&](double in_16, double in_32, double in_64) {
    return in_double ? in_64 : in_16_bits ? in_16 : in_32;
  };
  const double columns = static_cast<double>(spec.columns);
  const double span = static_cast<double>(columns_per_block(plan));
  const int weight = spec.affine == Affine::none ? 0 : size_of(spec.weight);
  const int width = plan.vector * std::max(widest_element(spec), weight);
  const bool sums = is_measured_fusion(spec) && adds_rows(spec);
  Slowdown s;
  if (plan.vector == 1 && sums && plan.strategy == Strategy::block_row)
    s.add((in_16_bits ? kSingle16 + kSingle16EachThread / plan.per_thread
                      : kSingle32 + kSingle32EachThread / plan.per_thread) *
              (16.0 / width - 1),
          "accesses are narrow");
  else if (width < 16)
    s.add((plan.strategy == Strategy::warp_rows ? kNarrowAndShort
           : width < 4                          ? kNarrowerThanAWord
                                                : kNarrow) *
              (16.0 / width - 1),
          "accesses are narrow");
  if (plan.unaligned && plan.strategy != Strategy::persistent_row)
    s.add((in_16_bits                 ? kUnalignedOf16Bits
           : size_of(spec.input) == 8 ? kUnalignedInDouble
                                      : kUnalignedCost) +
              kUnalignedOfThreads * std::max(0.0, std::log2(plan.threads / 128.0)),
          "rows are realigned in shared memory");

  if (plan.strategy == Strategy::split_row) {
    const double once = static_cast<double>(use.row_bytes() + use.affine_bytes() / plan.group_rows);
    const double again = static_cast<double>(spec.columns * again_bytes(spec));
    const bool some_in_l2 = plan.group_rows == 1;  // when x is read again
    s.add((some_in_l2 ? 0.6 : 1.0) * again / once + kTwice, "x is read twice");
    if (in_double) s.add(kTwiceInDouble, "x is read twice, in f64");
    if (width < 16) s.add(kTwiceNarrow * (16.0 / width - 1), "accesses are narrow");
    if (plan.unaligned) s.add(kTwiceUnaligned, "x is read twice, and rows are realigned in shared memory");
    s.add(kIdle * (std::ceil(columns / span) * span / columns - 1), "some threads are idle");
    return s;
  }
  if (plan.strategy == Strategy::persistent_row) {
    const double chunks =  // of a block
        static_cast<double>(ceil_div(ceil_div(spec.columns, columns_per_block(plan)), plan.blocks_per_row));
    const double rows_in_ring = plan.stages / chunks;
    const bool shared_row = plan.blocks_per_row > 1;
    s.add(kFixedShares, "blocks have fixed shares of the rows");
    if (sums) s.add(kStreamedSums, "residuals pass through the ring");
    if (shared_row) s.add(kWaiting, "blocks that share a row wait for each other");
    if (rows_in_ring < 3.5) s.add(kShortRing * (3.5 - rows_in_ring) / 2.5, "few rows fit in the ring");
    if (rows_in_ring < kOverlap) s.add(kNoOverlap, "the next row does not fit in the ring");
    const double parallel_rows = use.device.sm_count / plan.blocks_per_row;
    s.add(use.device.sm_count / (parallel_rows * plan.blocks_per_row) - 1, "some multiprocessors are idle");
    if (chunks < 6 && shared_row) s.add(kShortPart * (6 - chunks), "blocks have little of each row");
    if (plan.unaligned)
      s.add(by_type(kScalarsOf16Bits, kScalars, kScalarsInDouble), "single elements are read from the ring");
    else if (in_double)
      s.add(kPersistentInDouble, "it computes in f64");
    if (plan.unaligned && !keeps_affine(plan, spec))
      s.add(kReloaded, "weight and bias do not stay in registers");
    const double reducing = kPerRow + chunks * kPerChunk + kPerColumn * columns / plan.blocks_per_row;
    const double copying = static_cast<double>(use.row_bytes()) / plan.blocks_per_row / kShareBytes;
    s.add(std::max(0.0, reducing / copying - 1), "reducing a row takes longer than copying it");
    return s;
  }

  // warp_rows and block_row.
  // Scale and shift are mostly those of the row before, and come from L1.
  const bool counts_x_only = sums || (is_measured_fusion(spec) && row_parameters(spec) > 0);
  const double in_flight = static_cast<double>(plan.per_thread) * plan.vector *
                           (counts_x_only ? size_of(spec.input) : read_bytes(spec)) * plan.threads *
                           plan.blocks_per_sm;
  // Short rows start and end one by one: 64 f32 columns with 36 KiB in flight reach copy speed.
  const double enough = (sums ? kInFlightOfSums : kInFlight) / (plan.strategy == Strategy::warp_rows ? 2 : 1);
  if (in_flight < enough)
    s.add(
        (sums && row_parameters(spec) > 0 ? kNotInFlightModulated : kNotInFlight) * (1 - in_flight / enough),
        "too few bytes in flight");
  const double padding =
      span * plan.blocks_per_row / static_cast<double>(std::max<std::int64_t>(1, covered(plan, spec)));
  const bool waits = plan.unaligned && plan.threads_per_row > kWarp;
  if (plan.strategy == Strategy::block_row && (is_measured_fusion(spec) || is_narrow(spec.output))) {
    const double copying = static_cast<double>(use.row_bytes()) / plan.blocks_per_row / kShareBytes;
    s.add(std::max(0.0, (kBlockStart + kBlockStartEachThread * plan.threads) / copying - 1),
          "blocks start one after the other");
  }
  if (row_parameters(spec) > 0 && !loads_parameters_early(plan, spec))
    s.add(kLateRows * static_cast<double>(spec.columns * (size_of(spec.input) + size_of(spec.output))) /
              static_cast<double>(use.row_bytes()),
          "scale and shift come late");
  if (sums && padding > 1) s.add(kPartialSums, "some threads are idle");
  s.add(((sums && row_parameters(spec) == 0 ? kIdleInSums : kIdle) + (waits ? kIdleInUnaligned : 0)) *
            std::max(0.0, padding - 1),
        "some threads are idle");
  if (plan.strategy == Strategy::warp_rows) {
    s.add(0.01, "at copy speed");
    s.add(kShuffles * std::log2(plan.threads_per_row) / plan.per_thread, "many shuffles for few vectors");
    s.add((sums ? kManyVectorsOfSums : kManyVectors) * std::max(0, plan.per_thread - 2),
          "many vectors per thread");
    constexpr int kSector = 32;
    const int piece = plan.threads_per_row * plan.vector * size_of(spec.input);
    if (plan.per_thread > 1 && piece < kSector)
      s.add(kScattered * (static_cast<double>(kSector) / piece - 1), "accesses are scattered");
    // Where all else is equal, 128 threads.
    if (plan.threads == 64) s.add(0.002, "blocks are small");
  } else {
    const int reductions = scales_rows(spec) ? 2 : 1;
    s.add((sums ? kReducingSums : kReducing) * reductions / plan.blocks_per_sm, "too few blocks overlap");
    s.add(0.01 * reductions * (plan.threads / 256.0), "threads wait at barriers");
    if (const auto x = static_cast<double>(held_registers(plan, spec)); x > kFewRegisters)
      s.add((sums                     ? kManyRegistersOfSums
             : is_narrow(spec.output) ? kManyRegistersOf8Bits
                                      : kManyRegisters) *
                std::log2(x / kFewRegisters),
            "threads hold many registers");
    if (width > 16) s.add(kWideWeights, "accesses to weights are scattered");
  }
  if (plan.exchange == Exchange::cluster)
    s.add(kCluster * kClusterBytes / (span * size_of(spec.input)) +
              kClusterSize * std::log2(plan.blocks_per_row) + by_type(kClusterOf16Bits, 0, kClusterInDouble),
          "the blocks of a cluster start and wait together");
  if (plan.exchange == Exchange::grid)
    s.add(kGridExchange + 0.02 * std::log2(plan.blocks_per_row),
          "blocks that share a row wait for each other");
  return s;
}

// Microseconds until the first byte is written: launch, one load, the reduction over the threads, and what
// grows with the vectors per thread, the bytes per multiprocessor and the warps per block. 1 x 4096 f16 in
// one block, 256 threads of 2 vectors: 1.94 us, 512 of 1: 2.02 us, 128 of 4: 2.02 us; in 4 blocks of 64
// threads: 1.87 us, in 8: 1.89 us. 1 x 16,384 in clusters of 8, 128 threads: 2.07 us, 256: 2.17 us; in
// clusters of 4: 2.21 us; in one block: 3.2 us.
double latency_of(const Plan& plan, const PlanUse& use) {
  if (is_of_gradients(plan)) return latency_of_gradients(plan, use);
  const NormSpec& spec = use.spec;
  const double kib =
      static_cast<double>(std::min(columns_per_block(plan), spec.columns)) * size_of(spec.input) / 1024;
  const double warps = static_cast<double>(plan.threads) / kWarp;
  const double in_warps = 1.7 + 0.12 * plan.per_thread + 0.024 * warps;
  if (plan.strategy == Strategy::staged_rows) return in_warps + 0.5 + kTileWait * tile_kib(plan, spec);
  if (plan.strategy == Strategy::warp_rows) return in_warps + 0.024 * kib * rows_per_block(plan) / 4;
  // A block's part of the first row arrives before any of it is written.
  if (plan.strategy == Strategy::persistent_row)
    return 3 + static_cast<double>(spec.columns * size_of(spec.input)) / plan.blocks_per_row / kShareBytes;
  // A warp walks along the row four times.
  if (plan.strategy == Strategy::generic) return 20;
  // Tickets, and the wait between the two reads.
  if (plan.strategy == Strategy::split_row) return 6;
  // Two barriers, and the merging between them. Pieces come one after the other, twice. 32 x 768 x 7 x 7 f32,
  // 16 threads a row: 7.4 us, 32: 7.5 us, 64: 7.7 us; 2 x 256 x 64 x 64 f16, 16: 4.6 us, 32: 5.1 us, 64: 6.4
  // us.
  if (plan.strategy == Strategy::channels_first) {
    const std::int64_t pieces = ceil_div(spec.columns, columns_per_block(plan));
    return (pieces > 1 ? 2.0 * static_cast<double>(pieces) : 1.6) + 0.025 * plan.threads_per_row +
           0.012 * plan.per_thread * plan.vector + 0.02 * warps;
  }
  double us = 1.23 + 0.07 * plan.per_thread + 0.02 * warps + 0.05 * kib;
  if (plan.unaligned) us += 0.5;
  // 4096 f16, 128 threads of 4 vectors: 2.75 us, 2.09 us with early parameters.
  if (!loads_parameters_early(plan, spec)) us += 0.5;
  if (plan.exchange == Exchange::cluster) {
    const double blocks = static_cast<double>(grid_blocks(plan, spec, use.device, use.rows()));
    us += 0.1 + 0.13 * std::log2(plan.blocks_per_row);
    // 128 x 4096 f16 in clusters of 4: 2.65 us, in one block: 2.53 us; 1 x 4096: 1.89 and 1.94 us.
    us += 0.05 * blocks / use.device.sm_count;
    // With idle threads in a block each thread waits for its loads one by one. 5120 f16 in 2 blocks: 2.36 us,
    // in one: 2.15 us.
    if (columns_per_block(plan) * plan.blocks_per_row != spec.columns) us += 0.2;
  }
  if (plan.exchange == Exchange::grid) us += 2.5;
  return us;
}

}  // namespace

Candidate evaluate(const Plan& plan, const PlanUse& use) {
  const Slowdown slow = slowdown_of(plan, use);
  const double copy = copy_microseconds(use), latency = latency_of(plan, use);
  const double blocks = static_cast<double>(grid_blocks(plan, use.spec, use.device, use.rows()));
  const double busy = std::min(1.0, kMaxShares * blocks / use.device.sm_count);
  // With many rows latency counts only at the start and at the end.
  const double ends = use.regime != RowsRegime::many || is_of_gradients(plan) ? latency
                      : plan.strategy == Strategy::persistent_row             ? latency / 2
                      : plan.strategy == Strategy::staged_rows
                          ? 1 + 2.5 * kTileWait * tile_kib(plan, use.spec)
                          : 1;
  const double time = ends + copy * slow.factor / busy;
  const std::string_view why = busy < 1 && copy > latency ? "the blocks do not fill the device"
                               : copy / busy < latency    ? "latency dominates"
                                                          : slow.why;
  return {plan, time / (1.0 + copy), why};
}

}  // namespace normjit
