// Which columns a thread has. Neighbouring lanes of a warp have neighbouring vectors, so that each access is
// contiguous over them; then the warp goes on behind what it has, so that all of it is contiguous too.
namespace normjit {

constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroup = kLanes < kWarp ? kLanes : kWarp;  // lanes of a warp that share a row
constexpr int kSpan = kLanes * kVector * kPerThread;     // columns that the lanes hold together
constexpr bool kWhole = kColumns % kSpan == 0;           // then no slice ever reaches past its row
// Whether a vector may reach past the end of its row.
constexpr bool kStraddles = kColumns % kVector != 0;

static_assert(!kStraddles || kShifted, "vectors do not straddle the end of a row");
static_assert((kWarps & (kWarps - 1)) == 0, "the lanes of a warp sum over the warps");
static_assert((kLanes & (kLanes - 1)) == 0 && kThreads % kLanes == 0 && kThreads % 32 == 0);

// Where vector k of a lane begins.
NJ_DEVICE int column(int k, int lane) {
  return ((lane / kGroup * kPerThread + k) * kGroup + lane % kGroup) * kVector;
}
// Whether vector k begins in the `count` columns, and whether its element i is one of them if it does.
NJ_DEVICE bool inside(int k, int lane, int count) { return kWhole || column(k, lane) < count; }
NJ_DEVICE bool inside(int k, int i, int lane, int count) {
  return !kStraddles || column(k, lane) + i < count;
}

}  // namespace normjit
