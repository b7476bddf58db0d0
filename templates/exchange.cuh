// How blocks that share a row learn the moments of all of it: through nothing where a block has the whole
// row, through each other's shared memory in a cluster, through posts in the workspace over the grid.
namespace normjit {

static_assert((kSlices > 1) == (kExchange != Exchange::none));

// Columns of a slice of a row, where block after block takes kSpan of them.
NJ_DEVICE int columns_of_slice(int slice) {
  if constexpr (kSlices == 1) return kColumns;
  const long long left = kColumns - static_cast<long long>(slice) * kSpan;
  return left < 0 ? 0 : left < kSpan ? static_cast<int>(left) : kSpan;
}

// Over the grid: the kSlices blocks that share a row are a team, and teams take the rows in turn. A post is
// tagged with a number that grows from row to row and from launch to launch.
NJ_DEVICE Meeting& meeting_in(unsigned char* workspace) { return *reinterpret_cast<Meeting*>(workspace); }

NJ_DEVICE unsigned first_tag(unsigned char* workspace) { return meeting_in(workspace).header.epoch; }

// From the moments of this slice those of the row. One warp of each block of the team calls this, row after
// row, and all its lanes get the same. own(i) is how many columns slice i has.
template <class Own>
NJ_DEVICE Moments meet(unsigned char* workspace, unsigned tag, const Moments& moments, int slice,
                       const Own& own) {
  const int first = static_cast<int>(blockIdx.x) / kSlices * kSlices;
  Post* const posts = meeting_in(workspace).posts[tag % 2] + first;
  if (threadIdx.x % kWarp == 0) hw::post(posts[slice].words, moments, tag);
  return merge<kSlices>([&](int i) { return hw::collect<Moments>(posts[i].words, tag); }, own, kColumns);
}

// One thread of each block calls this when its block is done, with the last tag that its team used.
NJ_DEVICE void leave(unsigned char* workspace, unsigned tag, long long team, long long rows) {
  // Team 0 has the most rows, so its last tag is the largest.
  const long long teams = gridDim.x / kSlices, own = (rows - team + teams - 1) / teams;
  const long long most = (rows + teams - 1) / teams;
  if (leaves_last(meeting_in(workspace).header))
    meeting_in(workspace).header = {0, 0, tag + static_cast<unsigned>(most - own), {}};
}

}  // namespace normjit
