// SPDX-License-Identifier: Apache-2.0
// How blocks that share a row exchange its statistics: in a cluster through each other's shared memory,
// over the grid through slots in the workspace (the LL protocol: data and flag in one 8-byte store).
namespace normjit {

static_assert((kBlocksPerRow > 1) == (Exchange::chosen != Exchange::none));

// Over the grid, the kBlocksPerRow blocks that share a row are a team, and teams take the rows in turn.
// What a block publishes is flagged with a tag that grows from row to row and from launch to launch.
NJ_DEVICE unsigned first_tag(unsigned char* workspace) { return meeting_in(workspace).header.epoch; }

// Publishes the statistics of a slice to the team, in kRowDepth places in turn. One thread calls this,
// after the whole team has gathered what the place held.
template <int kRowDepth>
NJ_DEVICE Slot* slots_of(unsigned char* workspace, unsigned tag) {
  const unsigned first = blockIdx.x / kBlocksPerRow * kBlocksPerRow;
  return meeting_in(workspace).slots + tag % kRowDepth * gridDim.x + first;
}
template <int kRowDepth, class T>
NJ_DEVICE void publish_part(unsigned char* workspace, unsigned tag, const T& part, int slice) {
  hw::publish(slots_of<kRowDepth>(workspace, tag)[slice].words, part, tag);
}

// Gathers what all slices have published, each lane its part of it.
template <int kRowDepth, class T>
NJ_DEVICE void gather_parts(unsigned char* workspace, unsigned tag,
                            T (&parts)[Merging<kBlocksPerRow>::kEach]) {
  const int lane = threadIdx.x % Merging<kBlocksPerRow>::kWidth;
  hw::gather<Merging<kBlocksPerRow>::kEach>(slots_of<kRowDepth>(workspace, tag)[lane].words,
                                            kWarp * plan_math::kSlotWords,
                                            (kBlocksPerRow - lane + kWarp - 1) / kWarp, tag, parts);
}

// Gathers the statistics of all slices and merges them; slice i has own(i) columns. One warp calls this,
// and all its lanes get the same.
template <int kRowDepth, class Own>
NJ_DEVICE Statistics gather_row(unsigned char* workspace, unsigned tag, const Own& own) {
  Statistics parts[Merging<kBlocksPerRow>::kEach];
  gather_parts<kRowDepth>(workspace, tag, parts);
  return Statistics::merge_all<kBlocksPerRow>([&](int i) { return parts[i / kWarp]; }, own, kColumns);
}
// The same of the largest results.
template <int kRowDepth>
NJ_DEVICE Largest gather_largest(unsigned char* workspace, unsigned tag) {
  Largest parts[Merging<kBlocksPerRow>::kEach];
  gather_parts<kRowDepth>(workspace, tag, parts);
  return largest_of_parts<kBlocksPerRow>([&](int i) { return parts[i / kWarp]; });
}

// What a block publishes of each row: its statistics, and where the row has a scale, its largest result.
enum : int { kTagsOfRow = kScalesRows ? 2 : 1 };

// One thread of each block calls this at the end, with the last tag that its team used.
template <class Any>
NJ_DEVICE void leave(const Any& on, unsigned tag, long long team) {
  // Team 0 has the most rows, so its last tag is the largest.
  const long long teams = gridDim.x / kBlocksPerRow, own = (on.rows - team + teams - 1) / teams;
  const long long most = (on.rows + teams - 1) / teams;
  Header& header = meeting_in(on.workspace).header;
  if (leaves_last(header)) {
    if constexpr (kWritesAmax) store_amax(header, on);
    header = {0, 0, tag + static_cast<unsigned>(most - own) * kTagsOfRow, 0, 0};
  }
}

}  // namespace normjit
