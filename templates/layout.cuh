// SPDX-License-Identifier: Apache-2.0
// Which columns a thread has: neighbouring lanes have neighbouring vectors, so that each access is contiguous
// over them.
//
// Rows that may begin anywhere (kUnaligned) are cut: single elements up to the first aligned vector, whole
// vectors, and single elements again. Without kUnaligned all of a row is vectors.
namespace normjit {

enum : int { kWarp = 32 };
enum : int { kWarps = kThreads / kWarp };
enum : int { kGroup = kThreadsPerRow < kWarp ? kThreadsPerRow : kWarp };  // lanes of a warp that share a row
enum : int {
  kStep = kChannelsFirst ? 1 : kVector
};  // columns of a vector: with channels first it is of rows
enum : int { kSpan = kThreadsPerRow * kStep * kPerThread };  // columns that the lanes hold together
// Whether no slice reaches past its row. More blocks may share a row than it has spans, but not with a
// ring, where each has a chunk.
enum : bool {
  kWhole = kColumns % kSpan == 0 && !kUnaligned &&
           (kStages > 0 || kColumns >= static_cast<long long>(kSpan) * kBlocksPerRow)
};
enum : bool { kLowOccupancy = plan_math::low_occupancy(kThreads, kBlocksPerSm) };
// What the vectors of a row must cover.
enum : int { kCovered = plan_math::covered(kColumns, kStep, kUnaligned&& kBlocksPerRow == 1) };
static_assert(kColumns % kStep == 0 || kUnaligned, "vectors do not straddle the end of a row");
static_assert(kThreads % kWarp == 0 && kThreads % kThreadsPerRow == 0);
static_assert((kThreadsPerRow & (kThreadsPerRow - 1)) == 0 || kThreadsPerRow == kThreads,
              "lanes that share a row are a power of two, but for all of a block");

// How `count` columns of a row are cut that begin `past` elements past an aligned vector: `head` single
// elements, `body` columns in whole vectors, and what is left. Of fewer columns than `head` all are single.
struct Cut {
  int past, head, body, count;

  NJ_METHOD int edges() const { return count - body; }
  // The column of edge e.
  NJ_METHOD int edge(int e) const { return e < head ? e : e + body; }
};

// In vectors of kWidth elements.
template <int kWidth, class T>
NJ_DEVICE Cut cut_into(const T* address, int count) {
  const int past = static_cast<int>(reinterpret_cast<unsigned long long>(address) / sizeof(T) % kWidth);
  const int head = (kWidth - past) % kWidth;
  return {past, head, (count - head) / kWidth * kWidth, count};
}
template <class T>
NJ_DEVICE Cut cut_of(const T* address, int count) {
  if constexpr (!kUnaligned) return {0, 0, count, count};
  return cut_into<kVector>(address, count);
}

// Columns of a slice of a row, where block after block takes kSpan of them.
NJ_DEVICE int columns_of_slice(int slice) {
  if constexpr (kBlocksPerRow == 1) return kColumns;
  const long long left = kColumns - static_cast<long long>(slice) * kSpan;
  return left < 0 ? 0 : left < kSpan ? static_cast<int>(left) : kSpan;
}

// Where a row begins, in elements behind the first.
NJ_DEVICE long long begin_of(const Rows& rows, long long row) { return row * rows.stride; }
NJ_DEVICE long long begin_of(const GroupedRows& rows, long long row) {
  const unsigned long long group = hw::multiply_high(row, rows.inverse);
  return static_cast<long long>(static_cast<unsigned long long>(row) * rows.inner + group * rows.step);
}

// Where vector k of a lane begins, in the body.
NJ_DEVICE int column(int k, int lane) { return (k * kThreadsPerRow + lane) * kStep; }

// The same from where the body begins.
template <class T>
NJ_DEVICE T* at(T* body, int k, int lane) {
  constexpr int kElements = kVector / kColumnsIn<T>;
  return body + lane * kElements + k * (kThreadsPerRow * kElements);
}
// Vector 0 of a lane. Opaque to the compiler, so that the offset of vector k stays an immediate of its
// access; added to the lane or the row first it took five instructions an access. Unaligned rows have no
// registers left for it.
template <class T>
NJ_DEVICE T* first_of(T* body, int lane) {
  T* first = at(body, 0, lane);
  if constexpr (!kUnaligned) hw::opaque(first);
  return first;
}

// Columns that the body of every row has, known before the kernel runs: what lies there needs no condition,
// and a load behind a condition is waited for there.
enum : int { kLost = kUnaligned ? 2 * (kVector - 1) : 0 };
enum : int { kSurely = kBlocksPerRow == 1 && kSpan >= kCovered && kColumns > kLost ? kColumns - kLost : 0 };

NJ_DEVICE bool inside(int k, int lane, const Cut& cut) {
  return kWhole || (k + 1) * kThreadsPerRow * kStep <= kSurely || column(k, lane) < cut.body;
}

// The single elements of an unaligned row or chunk, one of a lane at most. They belong to the warp that has
// the last vector of a row that begins with a vector: so a warp has as many columns wherever the row begins.
NJ_DEVICE int warp_of_edges(int count) {
  return count < kVector ? 0 : (count / kVector - 1) % kThreadsPerRow / kWarp;
}
NJ_DEVICE int edge_of(int lane, const Cut& cut) { return lane - warp_of_edges(cut.count) * kWarp; }
NJ_DEVICE bool has_edge(int lane, const Cut& cut) {
  return kUnaligned && static_cast<unsigned>(edge_of(lane, cut)) < static_cast<unsigned>(cut.edges());
}
NJ_DEVICE int column_of_edge(int lane, const Cut& cut) { return cut.edge(edge_of(lane, cut)); }

// Other operands of an unaligned row have vectors where x has them. If they are not aligned there, they are
// moved in single elements: of rows with as many columns between them seldom.
template <class T>
NJ_DEVICE bool is_aligned(const T* row, const Cut& cut) {
  return !kUnaligned || cut_of(row, cut.count).head == cut.head;
}
template <hw::Cache kCache, bool kAligned, class T>
NJ_DEVICE Vec<T> load_vector(const T* from) {
  if constexpr (kAligned) {
    return load<kCache>(from);
  } else {
    Vec<T> elements;
#pragma unroll
    for (int i = 0; i < kVector; ++i) elements.at[i] = hw::load<kCache, T>(from + i);
    return elements;
  }
}
template <class T>
NJ_DEVICE void store_vector(T* to, Vec<T> value, bool aligned) {
  if constexpr (!kUnaligned) {
    store(to, value);
  } else {
    hw::opaque(value);
    if (aligned) {
      store(to, value);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) hw::store(to + i, value.at[i]);
    }
  }
}
// All of a lane's vectors, the first of which is there.
template <hw::Cache kCache, bool kAligned, class T>
NJ_DEVICE void load_vectors(Vec<T>* part, const T* first, int lane, const Cut& cut) {
#pragma unroll
  for (int k = 0; k < kPerThread; ++k)
    if (inside(k, lane, cut)) part[k] = load_vector<kCache, kAligned>(at(first, k, 0));
}

}  // namespace normjit
