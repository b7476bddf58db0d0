// How blocks that share a row learn the moments of all of it: through nothing where a block has the whole
// row, through each other's shared memory in a cluster, through posts in the workspace over the grid.
namespace normjit {

static_assert((kSlices > 1) == (Exchange::chosen != Exchange::none));

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

// A block leaves its part of each row for its team, in kPlaces places in turn. One thread calls this; a place
// is written again when the whole team has collected what it had.
template <int kPlaces>
NJ_DEVICE Post* posts_of(unsigned char* workspace, unsigned tag) {
  const unsigned first = blockIdx.x / kSlices * kSlices;
  return meeting_in(workspace).posts + tag % kPlaces * gridDim.x + first;
}
template <int kPlaces>
NJ_DEVICE void post_part(unsigned char* workspace, unsigned tag, const Moments& part, int slice) {
  hw::post(posts_of<kPlaces>(workspace, tag)[slice].words, part, tag);
}

// The moments of the row from those of all slices. One warp calls this, and all its lanes get the same.
// own(i) is how many columns slice i has.
template <int kPlaces, class Own>
NJ_DEVICE Moments collect_row(unsigned char* workspace, unsigned tag, const Own& own) {
  const int lane = threadIdx.x % Merging<kSlices>::kWidth;
  Moments parts[Merging<kSlices>::kEach];
  hw::collect<Merging<kSlices>::kEach>(posts_of<kPlaces>(workspace, tag)[lane].words, kWarp * kPostWords,
                                       (kSlices - lane + kWarp - 1) / kWarp, tag, parts);
  return merge<kSlices>([&](int i) { return parts[i / kWarp]; }, own, kColumns);
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
