// SPDX-License-Identifier: Apache-2.0
// What the cache is asked to do, each in a directory of its own, to be done with faults and kills.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "normjit/cache/cache.h"
#include "tests/support/every_fault.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {

// What a story does in a scene, and what stands there before.
class CacheScene;
struct Story {
  const char* name;
  void (*prepare)(CacheScene&);
  Outcome (*act)(CacheScene&);
};

// Publications, look-ups, fills, trims and lists of the entry "a" and others.
std::span<const Story> stories();

class CacheScene final : public Scene {
 public:
  explicit CacheScene(const Story& story);
  Outcome act() override { return story_.act(*this); }
  // What was found and what stands there is right, the layers are as they were, no temporary was left, "a"
  // can be had and kept, and prune leaves entries only.
  void check() override;

  // For stories to prepare. Sound entries:
  void put(const std::string& identity);
  void put_in_layer(const std::string& identity);
  void put_in_pack(const std::string& identity);
  // An older body under the same identity, also right; and one that is cut short.
  void put_other_body(const std::string& identity);
  void put_damaged(const std::string& identity);

  // For stories to act. The cache as a new process has it:
  Cache cache();
  // What whoever needs an entry does, who can make it.
  Outcome get(Cache& cache, const std::string& identity, bool was_there);
  // Whether it was found; then it is what it should be.
  bool find(Cache& cache, const std::string& identity);

  const TempDirectory temp = TempDirectory::in_memory();
  std::string directory = temp / "cache";
  const std::string layer = temp / "layer", packs = temp / "packs", pack = packs + "/one.njp";
  std::vector<std::string> layers;
  std::int64_t max_bytes = 0;
  bool killed = false;  // who is killed leaves a temporary

 private:
  void expect_right(const Entry& entry);
  void expect_no_temporaries();

  const Story& story_;
  std::map<std::string, std::set<std::string>> bodies_;  // by identity, that are right besides the usual one
  std::set<std::string> damaged_;                        // ids
  std::set<std::string> temporaries_;                    // that stood there before
  std::map<std::string, std::string> layer_before_, packs_before_;  // bytes by name
};

}  // namespace normjit::testing
