// SPDX-License-Identifier: Apache-2.0
// A process dies at any moment: what it leaves is right or nothing, locks nobody out, and can be cleared
// away.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "normjit/cache/key_lock.h"
#include "tests/support/cache_scenes.h"

namespace normjit::testing {
namespace {

int calls_of(const Story& story) {
  CacheScene scene(story);
  scene.files->forget();
  scene.act();
  return static_cast<int>(scene.files->calls().size());
}

// The call is not made any more, and all before it are.
void act_until(CacheScene& scene, int call) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    scene.files->before(call, [] { ::kill(::getpid(), SIGKILL); });
    scene.act();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "status " << status;
}

TEST(CacheKills, LeaveWhatIsRightOrNothing) {
  int kills = 0;
  for (const Story& story : stories()) {
    const int calls = calls_of(story);
    for (int call = 1; call <= calls && !HasFailure(); ++call) {
      SCOPED_TRACE(std::string(story.name) + ", killed before call " + std::to_string(call));
      CacheScene scene(story);
      scene.killed = true;
      act_until(scene, call);
      ++kills;
      scene.files->heal();
      EXPECT_EQ(KeyLock::of_id(*scene.files, scene.directory, entry_id("a"), false, {}).state(),
                KeyLock::State::held);
      scene.check();
    }
  }
  std::printf("cache: %d kills\n", kills);
}

}  // namespace
}  // namespace normjit::testing
