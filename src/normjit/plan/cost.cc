// A sum of a few terms, each with the measurement that set it (NVIDIA H200, cold L2, `normjit bench`); none
// names a column count.
#include "normjit/plan/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "normjit/plan/footprint.h"

namespace normjit {
namespace {

// What a multiprocessor's share of the memory bandwidth moves in a microsecond: 31 KiB on the H200, and much
// the same on the others that have a row.
constexpr double kShareBytes = 31 * 1024;
// One multiprocessor alone can move about three times its share.
constexpr double kAloneFactor = 3;

double copy_microseconds(const PlanUse& use) {
  const double bytes = static_cast<double>(use.rows() * use.row_bytes() + use.affine_bytes());
  return bytes / (kShareBytes * use.device.sm_count);
}

// How much slower than a copy while the memory is busy.
struct Slowdown {
  double factor = 1;
  std::string_view why = "at copy speed";

  // The text is that of the largest part.
  void add(double part, std::string_view reason) {
    factor += part;
    if (part > largest) largest = part, why = reason;
  }
  double largest = 0;
};

// A row waits for itself: nothing of its block is under way while its statistics are made. Other blocks fill
// the gap as far as there are any: 16,384 f32 columns in blocks that fit once 0.86, twice 0.95; 4096 columns
// in blocks that fit six times 0.96.
constexpr double kAloneBlock = 0.10;
// 48 KiB of loads must be under way on a multiprocessor: 4096 bf16 columns with 24 KiB 0.87, with 48 KiB
// 0.96.
constexpr double kInFlight = 48 * 1024, kNotInFlight = 0.20;
// Lanes and vectors without work: 8193 columns in 10,240 places 0.65, in 8192 places 0.76.
constexpr double kIdle = 0.4;
// Accesses of less than 16 bytes: 16,385 x 1001 f64 in single elements 0.96, 20,000 x 3001 f32 0.95; those of
// 16 bits 26,619 x 2085 f16 0.65, and of short rows less.
constexpr double kNarrow = 0.03, kNarrowerThanAWord = 0.06, kNarrowAndShort = 0.12;
// Rows that pass through shared memory to be unaligned have more to do, above all those of 16 bits, and wait
// at barriers: 1023 f32 columns in 64 threads 0.945, 1001 f64 0.86; 4097 f16 in 128 threads 0.78, in 256
// threads 0.62; and idle lanes wait with them: 2085 columns in 3072 places 0.59.
constexpr double kUnalignedCost = 0.06, kUnalignedInDouble = 0.15, kUnalignedOf16Bits = 0.25,
                 kUnalignedOfThreads = 0.10, kIdleInUnaligned = 0.5;
// Lanes that share a short row: 96 f16 columns in 4 lanes of 3 vectors 0.99, in 16 lanes 0.63; 64 f32 columns
// in 8 lanes 1.01, in 16 or 4 lanes 0.95 and 0.99; 211 f32 columns in 8 lanes of 7 vectors 0.92, in 32 of 2
// 0.67.
constexpr double kShuffles = 0.02, kFullLanes = 0.012;
// 24 f16 columns in one lane of 3 vectors 0.72, 16 f32 columns in two lanes of 2 vectors 1.00.
constexpr double kScattered = 0.37;
// Tiles. The constants were fitted to 90 measured plans of 13 specs of 3 to 2047 columns, and then moved a
// little so that plans near the best measured ones are chosen. A multiprocessor has time for so many
// instructions of a warp, and for so many accesses to shared memory and L1, in which as many bytes of 32
// lanes are copied; it slows down from a half of them on.
constexpr double kThroughTile = 0.045, kInstructionsAByte = 13.5, kAccessesAByte = 3.5;
constexpr double kInstructions = 0.19, kInstructionsFree = 0.5, kAccesses = 0.32, kAccessesFree = 0.6;
// 31 f32 columns in tiles of 70 KiB together 0.98, of 41 KiB 0.77. And few warps do not fill each other's
// gaps.
constexpr double kTilesInFlight = 52 * 1024, kTilesNotInFlight = 0.3, kEnoughWarps = 32, kFewWarps = 0.15;
// All of a tile comes before any of it goes: microseconds for each KiB of a warp. 39 f32 columns in tiles of
// 1.2, 2.4 and 4.9 KiB 0.87, 0.82 and 0.74 in 13 us.
// Many rows are seldom as many as those that stand for them, so there it counts 2.5 times.
constexpr double kTileWait = 0.87;
// 8192 bf16 columns with 32 registers of x a thread 0.953, with 16 0.962; 8192 f32 columns with 64 0.92, with
// 32 0.95; 4096 f32 columns with 32 and 16 0.964, but of 1024 rows 0.78 and 0.88, as short threads are done
// sooner.
constexpr int kManyRegisters = 16;
constexpr double kFullThreads = 0.02;
// Weights wider than 16 bytes a vector are read in pieces that are not contiguous over the lanes: 4096 bf16
// columns with f32 weights 0.92, in vectors of half the width 0.97.
constexpr double kWideWeights = 0.05;
// Rows that pass by quickly are exchanged often: 519,328 bf16 columns in 32 slices of 4 chunks 0.70.
constexpr double kShortSlice = 0.03;
// Clusters start and meet together, the more often the less each block has: 16,384 f32 columns in clusters of
// 4 blocks with 16 KiB each 0.94, of 8 with 8 KiB 0.89; 32,768 in clusters of 8 0.92, bf16 in clusters of 4
// 0.84; 16,384 f64 0.84.
constexpr double kCluster = 0.045, kClusterBytes = 16 * 1024, kClusterSize = 0.015;
constexpr double kClusterInDouble = 0.10, kClusterOf16Bits = 0.08;
// Teams of blocks that hold rows in registers stand still while they meet: 0.68 at 1,048,576 f32 columns.
constexpr double kTeam = 0.40;
// Blocks that stay have a fixed share of the rows, and no two multiprocessors are equally fast: 0.92.
constexpr double kStays = 0.08;
// A slice that fills most of its ring leaves little room for the rows behind it: 32,768 f32 columns in one
// slice, of which 1.75 fit, 0.89. And slices wait for each other: 24,576 columns in one slice 0.896, in two
// 0.867.
constexpr double kShortRing = 0.08, kMeet = 0.04;
// And where most of the next row has no place, reading and writing take turns: 5,800,000 f32 columns 0.54.
constexpr double kOverlap = 1.6, kNoOverlap = 0.35;
// Out of the ring in single elements: 1050 x 13,243 f32 0.82, 3284 x 3059 f64 0.86, 150 x 1,000,001 bf16
// 0.65; 500 x 100,003 f32 with weight and bias in registers 0.79, asked for chunk by chunk 0.60.
constexpr double kScalars = 0.15, kScalarsInDouble = 0.08, kScalarsOf16Bits = 0.25, kAsked = 0.4;
// A row's way through the four warps that measure, in microseconds: 6232 bf16 columns in two chunks 0.61,
// 4973 in two 0.44, in one 0.69; 20,480 f16 in five 0.88.
constexpr double kPerRow = 0.3, kPerChunk = 0.2, kPerColumn = 0.06 / 1024;
// 4099 x 4096 f64 without a shift 0.87.
constexpr double kStreamedInDouble = 0.1;
// What two reads cost over what the bytes say: 2 x 16,777,216 f32 0.60 of copy speed, 1024 x 32,768 f64 0.34;
// and unaligned 150 x 1,000,001 bf16 0.26, since few blocks wait at many barriers.
constexpr double kTwice = 0.3, kTwiceInDouble = 1.0, kTwiceUnaligned = 1.0;
// And in single 16-bit elements 0.14.
constexpr double kTwiceNarrow = 0.3;

// Into how many an access to shared memory of a warp of staged_rows falls apart, because lanes want different
// words of a bank at once.
int waves_of(const Plan& plan, const NormSpec& spec, int size) {
  constexpr int kBanks = 32;
  const int bytes = plan.vector * size, together = std::min(kWarp, kBanks * 4 / bytes);
  int waves = 0;
  for (int first = 0; first < kWarp; first += together) {
    // A lane's words are of different banks, so a bank has one of each lane at most.
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

double tile_kib(const Plan& plan, const NormSpec& spec) {  // of x, of a warp
  return static_cast<double>(kWarp / plan.threads_per_row * plan.group_rows * spec.columns *
                             size_of(spec.input)) /
         1024;
}

// What a lane does for an element, as the compiler's output has it: for the tile, for a row, for the weights,
// and for the element itself.
Slowdown slowdown_of_tiles(const Plan& plan, const NormSpec& spec) {
  const int exchanges = std::countr_zero(static_cast<unsigned>(plan.threads_per_row));
  const int weights = static_cast<int>(spec.affine), converts = size_of(spec.input) == 2;
  const double row = static_cast<double>(spec.columns) / plan.threads_per_row;
  const double places = static_cast<double>(columns_per_block(plan)) / static_cast<double>(spec.columns);
  const double instructions = 130 / (row * plan.group_rows) + (20 + 6 * exchanges) / row +
                              places * (7.5 + converts + 2.0 / plan.vector +
                                        weights * (1.0 / plan.vector + converts) / plan.group_rows);
  // Four times all bytes pass in wide accesses of 128 bytes for a warp.
  const int bytes = size_of(spec.input) + size_of(spec.output);
  const int input_waves = waves_of(plan, spec, size_of(spec.input));
  const int output_waves =
      size_of(spec.output) == size_of(spec.input) ? input_waves : waves_of(plan, spec, size_of(spec.output));
  const double accesses =
      3 * exchanges / row + bytes / 2.0 +
      places / plan.vector * (input_waves + output_waves + static_cast<double>(weights) / plan.group_rows);
  const int warps = plan.threads / kWarp * plan.blocks_per_sm;
  const double held = tile_kib(plan, spec) * 1024 * warps;
  Slowdown s;
  s.add(kThroughTile, "its rows pass through shared memory");
  s.add(kInstructions * std::max(0.0, instructions / (kInstructionsAByte / 2 * bytes) - kInstructionsFree),
        "its lanes have much to do");
  s.add(kAccesses * std::max(0.0, accesses / (kAccessesAByte / 2 * bytes) - kAccessesFree),
        "shared memory is busy");
  s.add(kTilesNotInFlight * std::max(0.0, kTilesInFlight / held - 1), "little is in flight");
  s.add(kFewWarps * std::max(0.0, 1 - warps / kEnoughWarps), "few warps overlap each other");
  return s;
}

Slowdown slowdown_of(const Plan& plan, const PlanUse& use) {
  const NormSpec& spec = use.spec;
  Slowdown s;
  if (plan.strategy == Strategy::staged_rows) return slowdown_of_tiles(plan, spec);
  const int weight = spec.affine == Affine::none ? 0 : size_of(spec.weight);
  const int width = plan.vector * std::max({size_of(spec.input), size_of(spec.output), weight});
  if (width < 16)
    s.add((plan.strategy == Strategy::warp_rows ? kNarrowAndShort
           : width < 4                          ? kNarrowerThanAWord
                                                : kNarrow) *
              (16.0 / width - 1),
          "its accesses are narrow");
  if (plan.unaligned && plan.strategy != Strategy::persistent_row)
    s.add((size_of(spec.input) == 2   ? kUnalignedOf16Bits
           : size_of(spec.input) == 8 ? kUnalignedInDouble
                                      : kUnalignedCost) +
              kUnalignedOfThreads * std::max(0.0, std::log2(plan.threads / 128.0)),
          "its rows are unaligned into place");
  const double span = static_cast<double>(columns_per_block(plan));

  if (plan.strategy == Strategy::split_row) {
    // x twice where it does not stay in L2; groups of rows share the weights.
    const double once = static_cast<double>(use.row_bytes() + use.affine_bytes() / plan.group_rows);
    const double again = static_cast<double>(spec.columns * size_of(spec.input));
    const bool stays_near = plan.group_rows == 1;
    s.add((stays_near ? 0.6 : 1.0) * again / once + kTwice, "x is read twice");
    if (compute_type(spec) == DType::f64) s.add(kTwiceInDouble, "x is read twice, in double");
    if (width < 16) s.add(kTwiceNarrow * (16.0 / width - 1), "its accesses are narrow");
    if (plan.unaligned) s.add(kTwiceUnaligned, "x is read twice, and its rows are unaligned into place");
    const double places = std::ceil(static_cast<double>(spec.columns) / span) * span;
    s.add(kIdle * (places / static_cast<double>(spec.columns) - 1), "some lanes are idle");
    return s;
  }
  if (plan.strategy == Strategy::persistent_row) {
    const double own =
        static_cast<double>(ceil_div(ceil_div(spec.columns, columns_per_block(plan)), plan.blocks_per_row));
    s.add(kStays, "its blocks have fixed shares");
    if (plan.blocks_per_row > 1) s.add(kMeet, "its slices wait for each other");
    const double rows = plan.stages / own;
    if (rows < 3.5) s.add(kShortRing * (3.5 - rows) / 2.5, "few rows fit in its ring");
    if (rows < kOverlap) s.add(kNoOverlap, "the next row does not fit in its ring");
    const double teams = use.device.sm_count / plan.blocks_per_row;
    s.add(use.device.sm_count / (teams * plan.blocks_per_row) - 1, "some multiprocessors have no team");
    if (own < 6 && plan.blocks_per_row > 1) s.add(kShortSlice * (6 - own), "its slices are short");
    const bool in_double = compute_type(spec) == DType::f64;
    if (plan.unaligned)
      s.add(in_double                  ? kScalarsInDouble
            : size_of(spec.input) == 2 ? kScalarsOf16Bits
                                       : kScalars,
            "its elements come one by one");
    else if (in_double)
      s.add(kStreamedInDouble, "it computes in double");
    if (plan.unaligned && !keeps_affine(plan, spec))
      s.add(kAsked, "weight and bias do not stay in registers");
    const double measuring =
        kPerRow + own * kPerChunk + kPerColumn * static_cast<double>(spec.columns) / plan.blocks_per_row;
    const double copying = static_cast<double>(use.row_bytes()) / plan.blocks_per_row / kShareBytes;
    s.add(std::max(0.0, measuring / copying - 1), "a row is soon copied, but not measured");
    return s;
  }
  const double held = static_cast<double>(plan.per_thread) * plan.vector * read_bytes(spec) * plan.threads *
                      plan.blocks_per_sm;
  // Short rows come and go one by one: 64 f32 columns with 36 KiB in flight reach copy speed.
  const double enough = plan.strategy == Strategy::warp_rows ? kInFlight / 2 : kInFlight;
  if (held < enough) s.add(kNotInFlight * (1 - held / enough), "little is in flight");
  const double places =
      span * plan.blocks_per_row / static_cast<double>(std::max<std::int64_t>(1, covered(plan, spec)));
  const bool waits = plan.unaligned && plan.threads_per_row > kWarp;
  s.add((kIdle + (waits ? kIdleInUnaligned : 0)) * std::max(0.0, places - 1), "some lanes are idle");
  if (plan.strategy == Strategy::warp_rows) {
    s.add(0.01, "at copy speed");
    s.add(kShuffles * std::countr_zero(static_cast<unsigned>(plan.threads_per_row)) / plan.per_thread,
          "its lanes exchange much");
    s.add(kFullLanes * std::max(0, plan.per_thread - 2), "its lanes have much to do");
    // An access of a warp takes so many bytes of each row: below a sector, L1 fetches it more than once.
    constexpr int kSector = 32;
    const int piece = plan.threads_per_row * plan.vector * size_of(spec.input);
    if (plan.per_thread > 1 && piece < kSector)
      s.add(kScattered * (static_cast<double>(kSector) / piece - 1), "its accesses are scattered");
    // Small blocks end and begin independently.
    if (plan.threads == 64) s.add(0.002, "its blocks have another size");
  } else {
    s.add(kAloneBlock / plan.blocks_per_sm, "few blocks overlap each other");
    s.add(0.01 * (plan.threads / 256.0), "its threads meet at barriers");
    if (const auto x = static_cast<double>(held_registers(plan, spec)); x > kManyRegisters)
      s.add(kFullThreads * std::log2(x / kManyRegisters), "its threads have much to do");
    if (width > 16) s.add(kWideWeights, "its weights are scattered");
  }
  if (plan.exchange == Exchange::cluster)
    s.add(kCluster * kClusterBytes / (span * size_of(spec.input)) +
              kClusterSize * std::log2(plan.blocks_per_row) +
              (compute_type(spec) == DType::f64 ? kClusterInDouble
               : size_of(spec.input) == 2       ? kClusterOf16Bits
                                                : 0),
          "clusters start and meet together");
  if (plan.exchange == Exchange::grid)
    s.add(kTeam + 0.02 * std::countr_zero(static_cast<unsigned>(plan.blocks_per_row)),
          "its teams wait for each other");
  return s;
}

// Whether the parameters are loaded together with x.
bool parameters_come_early(const Plan& plan, const NormSpec& spec) {
  if (spec.affine == Affine::none) return true;
  const int words = plan.vector * (size_of(spec.input) + 2 * size_of(spec.weight)) / 4;
  return plan_math::early_parameters(
      plan.per_thread, words, plan_math::low_occupancy(plan.threads, plan.blocks_per_sm), plan.unaligned);
}

// Until the first byte is written, in microseconds: launch, one load, the sums over the lanes, and what grows
// with the work of a thread, of a multiprocessor, and the size of the block. 1 x 4096 f16: in one block 1.94
// us with 256 threads and 2 vectors each, 2.02 us with 512 and 1, 2.02 us with 128 and 4; in 4 blocks of 64
// threads 1.87 us, in 8 1.89 us. 1 x 16,384: in clusters of 8 2.07 us with 128 threads, 2.17 us with 256, in
// clusters of 4 2.21 us, in one block 3.2 us.
double latency_of(const Plan& plan, const PlanUse& use) {
  const double kib = static_cast<double>(std::min(columns_per_block(plan), use.spec.columns)) *
                     size_of(use.spec.input) / 1024;
  const double warps = static_cast<double>(plan.threads) / kWarp;
  const double in_warps = 1.7 + 0.12 * plan.per_thread + 0.024 * warps;
  if (plan.strategy == Strategy::staged_rows) return in_warps + 0.5 + kTileWait * tile_kib(plan, use.spec);
  if (plan.strategy == Strategy::warp_rows) return in_warps + 0.024 * kib * rows_per_block(plan) / 4;
  if (plan.strategy ==
      Strategy::persistent_row)  // the first slice, which is not written before all of it is known
    return 3 + static_cast<double>(use.spec.columns * size_of(use.spec.input)) / plan.blocks_per_row /
                   kShareBytes;
  if (plan.strategy == Strategy::split_row) return 6;  // tickets, and rows that are completed in between
  double us = 1.23 + 0.07 * plan.per_thread + 0.02 * warps + 0.05 * kib;
  if (plan.unaligned) us += 0.5;
  // 4096 f16 with 128 threads and 4 vectors each 2.75 us, 2.09 us with weights that come early.
  if (!parameters_come_early(plan, use.spec)) us += 0.5;
  if (plan.exchange == Exchange::cluster) {
    const double blocks = static_cast<double>(grid_blocks(plan, use.spec, use.device, use.rows()));
    us += 0.1 + 0.13 * std::countr_zero(static_cast<unsigned>(plan.blocks_per_row));
    // 128 x 4096 f16 in clusters of 4 2.65 us, in one block 2.53 us; 1 x 4096 1.89 and 1.94 us.
    us += 0.05 * blocks / use.device.sm_count;
    // Of blocks whose lanes are not all at work each lane waits for its loads one by one: 5120 f16 in 2
    // blocks 2.36 us, in one 2.15 us.
    if (columns_per_block(plan) * plan.blocks_per_row != use.spec.columns) us += 0.2;
  }
  if (plan.exchange == Exchange::grid) us += 2.5;
  return us;
}

}  // namespace

Weighed weighed(const Plan& plan, const PlanUse& use) {
  const Slowdown slow = slowdown_of(plan, use);
  const double copy = copy_microseconds(use), latency = latency_of(plan, use);
  const double blocks = static_cast<double>(grid_blocks(plan, use.spec, use.device, use.rows()));
  const double busy = std::min(1.0, kAloneFactor * blocks / use.device.sm_count);
  // Where the memory is busy for long, latency is only what comes before and behind.
  const double ends = use.regime != RowsRegime::many              ? latency
                      : plan.strategy == Strategy::persistent_row ? latency / 2
                      : plan.strategy == Strategy::staged_rows
                          ? 1 + 2.5 * kTileWait * tile_kib(plan, use.spec)
                          : 1;
  const double time = ends + copy * slow.factor / busy;
  std::string_view why = slow.why;
  if (copy / busy < latency) why = "latency counts";
  if (busy < 1 && copy > latency) why = "its blocks do not fill the device";
  return {plan, time / (1.0 + copy), why};
}

}  // namespace normjit
