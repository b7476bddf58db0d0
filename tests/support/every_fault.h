// SPDX-License-Identifier: Apache-2.0
// One scene after another, each with another fault at another system call of the cache.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tests/support/recording_file_system.h"
#include "tests/support/sanitizers.h"

namespace normjit::testing {

// What became of what the caller asked for.
enum class Outcome {
  served,   // it was done as if nothing had happened
  missed,   // the cache did not give what it had, and the caller went on without
  refused,  // the cache did not keep or tell something, and the caller knows
};

// A world of its own, where something is done once.
class Scene {
 public:
  virtual ~Scene() = default;
  // What is done, with the calls that are to fail. Fails the test where anything but time is lost.
  virtual Outcome act() = 0;
  // Afterwards, when nothing fails any more: fails the test unless all is well, or becomes so.
  virtual void check() = 0;

  const std::shared_ptr<RecordingFileSystem> files = std::make_shared<RecordingFileSystem>();
};

// Under a sanitizer, which makes all this ten times slower: two errors of each kind of call, and no pairs.
#ifdef NORMJIT_ADDRESS_SANITIZER
inline constexpr bool kBriefly = true;
#else
inline constexpr bool kBriefly = false;
#endif

struct Tally {
  int faults = 0, served = 0, missed = 0, refused = 0;

  void count(Outcome outcome);
  Tally& operator+=(const Tally& other);
  // "12000 faults: 3000 served, 5000 missed, 4000 refused".
  std::string text() const;
};

// Makes the scene, undisturbed first, and then once for
// * every call that it makes, every error that makes sense of such a call, and every
//   RecordingFileSystem::Strike;
// * two calls that fail, unless there are many calls;
// * every call, with `vanish` before it.
Tally strike_everywhere(const std::function<std::unique_ptr<Scene>()>& make,
                        const std::function<void(Scene&)>& vanish = {});

}  // namespace normjit::testing
