// SPDX-License-Identifier: Apache-2.0
// The arithmetic of plans, shared by kernels and planner: a part of every kernel, and included by
// src/normjit/plan. All functions are pure. A template directory must therefore contain exactly the file that
// the library was built with.
//
// NJ_MATH declares a function that is known before the kernel runs, and callable from it.
namespace normjit::plan_math {

NJ_MATH long long ceil_div(long long a, long long b) { return a / b + (a % b != 0); }
NJ_MATH int larger(int a, int b) { return a < b ? b : a; }

// ---- Columns ----

// That the vectors of a row must cover: of an unaligned row that one block has, whole vectors alone; the few
// elements at its ends come one by one.
NJ_MATH long long covered(long long columns, int vector, bool cut) {
  return cut ? columns / vector * vector : columns;
}
// Pieces of `span` columns into which a row is cut. The elements at the ends are no piece of their own.
NJ_MATH long long chunks(long long columns, long long span, long long covered) {
  return span >= covered ? 1 : ceil_div(columns, span);
}

// ---- Registers ----

// So few threads on a multiprocessor that each waits for its own row, and has 128 registers or more: what
// shortens the way through a row is worth more instructions. With four blocks of 128 threads it is not:
// 16,384 x 5120 f16 84.6 us, and 88.7 us with parameters that come early.
enum : int { kFewThreads = 256 };
NJ_MATH bool low_occupancy(int threads, int blocks_per_sm) {
  return blocks_per_sm == 1 ? threads <= 2 * kFewThreads : threads * blocks_per_sm <= kFewThreads;
}
// Whether a thread loads its parameters together with x, so that they have arrived when the statistics are
// known. With few vectors it does; more are loaded as they are used, which saves registers. With few threads
// a vector of x and two parameters, of so many words, may take half of the registers: 128 x 5120 f16 with
// three vectors a thread 2.96 us, 3.11 us as they are used. What each row has, in a warp, is early too:
// 32,768 x 1152 bf16 with scale and shift of a sample, five vectors a thread: 0.91 of copy speed, 0.85 as
// they are used.
NJ_MATH bool early_parameters(int per_thread, int words, bool low_occupancy, bool of_row_in_warp,
                              bool unaligned) {
  return (per_thread <= 2 || (low_occupancy && per_thread * words <= 64) ||
          (of_row_in_warp && per_thread <= 5 && per_thread * words <= 100)) &&
         !unaligned;
}

// ---- Shared memory, in bytes ----

// What rows need in shared memory that are no farther from an aligned place there than in memory: `largest`
// is the size of the larger of the two element types, `wide` the elements of it in 16 bytes.
NJ_MATH long long tile_pitch(long long columns, int wide) {
  return ceil_div(columns + wide - 1, wide) * wide;
}
NJ_MATH long long tile_bytes(long long rows, long long columns, int largest) {
  return rows * tile_pitch(columns, 16 / largest) * largest;
}
// Of the parameters of unaligned rows, `size` bytes a column, in planes of as many columns each.
NJ_MATH long long planes_bytes(long long columns, int vector, int size) {
  return ceil_div(ceil_div(columns, vector) * vector * size, 16) * 16;
}
// Columns that a block has of a row: a span, or with a ring as many as `sharing` blocks take of its chunks.
NJ_MATH long long columns_of_block(long long columns, long long span, int sharing) {
  return sharing > 0 ? ceil_div(ceil_div(columns, span), sharing) * span : span;
}
// Columns for which a place of the ring of persistent_row has room.
NJ_MATH long long ring_room(long long span, int vector, bool unaligned) {
  return span + (unaligned ? vector : 0);
}
// Chunks of so many bytes in flight: 40 KiB on a multiprocessor keep the memory busy; more slows the writes
// down.
NJ_MATH long long chunks_in_flight(int stages, long long bytes) {
  const long long enough = 40 * 1024 / bytes;
  return enough < 1 ? 1 : enough < stages ? enough : stages;
}
// Places for residuals where the ring keeps the sum: of the chunks in flight, and of one that is summed.
NJ_MATH long long residual_places(int stages, long long bytes) {
  const long long in_flight = chunks_in_flight(stages, bytes);
  return in_flight < stages ? in_flight + 1 : stages;
}
// Rows between the first of which a chunk is in the ring and the last that is written, and some: what is
// passed on for each row has as many places, in turn. `chunks` are whole ones of a row.
NJ_MATH long long row_depth(int stages, long long chunks, int blocks_per_row) {
  const long long fewest = chunks / blocks_per_row;
  return stages / (fewest < 1 ? 1 : fewest) + 3;
}
// Of two blocks of a team one may be as many rows ahead in measuring as the other in writing.
NJ_MATH long long slot_depth(long long row_depth) { return 2 * row_depth; }

// channels_first: from the part of one thread of a row to that of the next, in parts. A tile of rows, and as
// many as a warp merges at once, so that the parts that its lanes read lie in different banks.
NJ_MATH int parts_pitch(int threads, int threads_per_row, int vector) {
  return threads / threads_per_row * vector + (threads_per_row < 32 ? 32 / threads_per_row : 1);
}
// All parts of a tile; one place that is not used where a thread has a row alone.
NJ_MATH int parts_of_tile(int threads, int threads_per_row, int vector) {
  return threads_per_row > 1 ? threads_per_row * parts_pitch(threads, threads_per_row, vector) : 1;
}
// channels_first: whether the parameters of all channels, of so many bytes each, are in shared memory: where
// a block has all channels at once, and a thread has few of them to copy.
NJ_MATH bool shares_parameters(long long span, long long columns, long long bytes) {
  return bytes > 0 && span >= columns && columns * bytes <= 8 * 1024;
}

// ---- The workspace ----

enum : int { kHeaderBytes = 32, kRingRowBytes = 32, kMaxRingRows = 1024 };
// What is published has up to so many words; a block publishes in several places in turn.
enum : int { kSlotWords = 6, kSlotBytes = 8 * kSlotWords, kMaxSlots = 4096 };

// gradient_columns: what is measured of some batches of rows, five numbers of each chunk of a row; to a
// multiple of 16 bytes.
enum : int { kBatches = 4 };
NJ_MATH long long measured_bytes(int group_rows, long long chunks, int size) {
  return ceil_div(kBatches * group_rows * chunks * 5 * size, 16) * 16;
}

// gradient_ring and gradient_columns: rows, or batches, from the one that is measured to the one that is
// written. Behind an activation, unless the statistics are given, one between them is weighed.
NJ_MATH int rows_behind(bool weighs) { return weighs ? 2 : 1; }

// Gradients: lanes that add sums over rows side by side, of so many vectors. The fewest units that are enough
// for all multiprocessors: a block adds the next one only when it has the first. 8192 x 8192 bf16 with 512
// units: 154.3 us, with 128: 151.0 us. But at most 32 shares of a unit, since a lane adds those at the end.
NJ_MATH int lanes_of_sums(long long vectors, int threads) {
  int lanes = 32;
  while (threads / lanes <= 16 && ceil_div(vectors, lanes / 2) <= 128) lanes /= 2;
  return lanes;
}
// The same of one block that adds all of them: warps enough for all of them that divide the threads. 224
// threads are 32 or 224: with 32 the sums of 983 columns took 19 of 25 us.
NJ_MATH int lanes_of_all_sums(int vectors, int threads) {
  int lanes = 32;
  for (int more = 64; more <= threads && lanes < vectors; more += 32)
    if (threads % more == 0) lanes = more;
  return lanes;
}

// split_row: reads of a row before it is written. A scale of the row follows from its largest result, and that
// from its statistics.
NJ_MATH int reads_before_writing(bool row_scales) { return row_scales ? 2 : 1; }
// Items that are measured before the first is applied: a group, and all that the blocks may have
// in hand (one that is measured and one that is not yet published), so that applying rarely waits. At 2048 x
// 65,536 f32 on an H200 half of it cost 6 %, a quarter 71 %, and twice of it gained nothing.
NJ_MATH long long split_lag(int group_rows, long long items_of_row, long long blocks) {
  return group_rows * items_of_row + 2 * blocks;
}
// The logarithm of the number of rows in its ring: those that are under way at once, a power of two.
NJ_MATH int split_ring_shift(int group_rows, long long items_of_row, long long blocks) {
  const long long rows =
      group_rows + (split_lag(group_rows, items_of_row, blocks) + blocks) / items_of_row + 2;
  int shift = 0;
  while (1 << shift < rows && 1 << shift < kMaxRingRows) ++shift;
  return shift;
}

}  // namespace normjit::plan_math
