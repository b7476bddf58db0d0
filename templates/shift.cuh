// Rows that begin anywhere: the accesses stay whole aligned vectors, and neighbouring lanes pass each other
// what belongs to them. Only where a row, or the columns of a warp, begin and end are single elements moved.
//
// A vector that begins `shift` elements behind an aligned place consists of the end of one aligned vector and
// the begin of the next, which the next lane has loaded, or will store.
namespace normjit {

// The elements of a vector as 32-bit words.
template <class T>
struct Words {
  static constexpr int kCount = sizeof(Vec<T>) / 4;
  unsigned at[kCount];
};
template <class T>
NJ_DEVICE Words<T> words_of(const Vec<T>& value) {
  Words<T> words;
  memcpy(&words, &value, sizeof words);
  return words;
}
template <class T>
NJ_DEVICE Vec<T> vector_of(const Words<T>& words) {
  Vec<T> value;
  memcpy(&value, &words, sizeof value);
  return value;
}

// What lane `lane` of the warp has.
template <class T>
NJ_DEVICE Vec<T> shuffle(const Vec<T>& value, int lane) {
  Words<T> words = words_of(value);
#pragma unroll
  for (int i = 0; i < Words<T>::kCount; ++i) words.at[i] = hw::shuffle(words.at[i], lane);
  return vector_of<T>(words);
}

// kVector elements from element `shift` on, 0 to kVector - 1, of `low` and `high` in a row.
template <class T>
NJ_DEVICE Vec<T> window(const Vec<T>& low, const Vec<T>& high, int shift) {
  constexpr int kCount = Words<T>::kCount;
  const Words<T> first = words_of(low), second = words_of(high);
  unsigned word[2 * kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) word[i] = first.at[i], word[kCount + i] = second.at[i];
  const int bytes = shift * static_cast<int>(sizeof(T));
#pragma unroll
  for (int step = kCount / 2; step > 0; step /= 2) {
    const bool moves = (bytes / 4 & step) != 0;
#pragma unroll
    for (int i = 0; i + step < 2 * kCount; ++i) word[i] = moves ? word[i + step] : word[i];
  }
  Words<T> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    result.at[i] = sizeof(T) < 4 ? hw::funnel(word[i], word[i + 1], bytes % 4 * 8) : word[i];
  return vector_of<T>(result);
}

// By how many elements an address is past a whole vector.
template <class T>
NJ_DEVICE int shift_of(const T* address) {
  return static_cast<int>(reinterpret_cast<unsigned long long>(address) / sizeof(T) % kVector);
}

// The vector at row[at], of which only elements `first` to `last` - 1 of the row may be touched. Single
// elements where that is less than all, or where the address is no vector's.
template <hw::Keep kKeep, class T>
NJ_DEVICE Vec<T> load_some(const T* row, int at, int first, int last) {
  constexpr int kAligned = sizeof(Vec<T>) < 16 ? sizeof(Vec<T>) : 16;
  Vec<T> value = {};
  if (at >= first && at + kVector <= last && reinterpret_cast<unsigned long long>(row + at) % kAligned == 0) {
    value = load<kKeep>(row + at);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (at + i >= first && at + i < last) value.at[i] = hw::load<kKeep, T>(row + at + i);
  }
  return value;
}
template <class T>
NJ_DEVICE void store_some(T* row, int at, int first, int last, const Vec<T>& value) {
  if (at >= first && at + kVector <= last) {
    store(row + at, value);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (at + i >= first && at + i < last) hw::store(row + at + i, value.at[i]);
  }
}

// The lane of the group that is `by` away, as a lane of the warp.
NJ_DEVICE int neighbour(int lane, int by) {
  return lane % kWarp / kGroup * kGroup + (lane + by + kGroup) % kGroup;
}

// The kPerThread vectors of a slice of `count` columns; all lanes of the warp call this.
template <hw::Keep kKeep, class T>
NJ_DEVICE void load_shifted(Vec<T>* part, const T* row, int lane, int count) {
  const int shift = shift_of(row);
  const bool first = lane % kGroup == 0;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) part[k] = load_some<kKeep>(row, column(k, lane) - shift, 0, count);
  // What the last lane of a group lacks is the first lane's next.
  Vec<T> next = {};
  if (first && shift != 0) next = load_some<kKeep>(row, column(kPerThread, lane) - shift, 0, count);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const Vec<T>& following = k + 1 < kPerThread ? part[k + 1] : next;
    const Vec<T> given = first ? following : part[k];
    part[k] = window(part[k], shuffle(given, neighbour(lane, 1)), shift);
  }
}

// Stores the vectors of a slice of `count` columns one after the other, k from 0 to kPerThread: what is given
// for the last is not looked at. All lanes of the warp call this.
template <class T>
struct ShiftedStore {
  T* row;
  int lane, first, last;  // of the columns of this group of lanes
  int shift;
  Vec<T> before = {};

  NJ_METHOD ShiftedStore(T* row, int lane, int count)
      : row(row), lane(lane), first(lane / kGroup * kGroup * kPerThread * kVector), shift(shift_of(row)) {
    const int end = first + kGroup * kPerThread * kVector;
    last = end < count ? end : count;
  }

  NJ_METHOD void put(int k, const Vec<T>& now) {
    const Vec<T> given = lane % kGroup == kGroup - 1 ? before : now;
    const Vec<T> low = shuffle(given, neighbour(lane, -1));
    const Vec<T> whole = shift == 0 ? now : window(low, now, kVector - shift);
    store_some(row, column(k, lane) - shift, first, last, whole);
    before = now;
  }
};

}  // namespace normjit
