// SPDX-License-Identifier: Apache-2.0
#include "tests/support/every_fault.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace normjit::testing {
namespace {

using Kind = RecordingFileSystem::Kind;
using Strike = RecordingFileSystem::Strike;

// What such a call can fail with, the cause being the disk, a quota, permissions, a network file system, its
// server, the limits of the process, or another process.
const std::vector<int>& errors_of(Kind kind) {
  static const std::vector<int> open = {EACCES, EROFS,  ENOSPC, EDQUOT,  EIO,   ESTALE, EINTR,
                                        EMFILE, ENFILE, ENOENT, ENOTDIR, EPERM, ENOMEM};
  static const std::vector<int> read = {EIO, ESTALE, EINTR, EAGAIN, ENOMEM, EISDIR};
  static const std::vector<int> write = {ENOSPC, EDQUOT, EIO, EROFS, ESTALE, EINTR, EFBIG, EAGAIN};
  static const std::vector<int> flush = {EIO, ENOSPC, EDQUOT, EROFS, EINVAL, EINTR, ESTALE};
  static const std::vector<int> close = {EIO, ENOSPC, EDQUOT, EINTR, ESTALE};
  static const std::vector<int> stat = {EIO, ESTALE, EACCES, ENOENT, EOVERFLOW, ENOMEM};
  static const std::vector<int> lock = {ENOLCK, EINVAL, EOPNOTSUPP, ENOSYS, EIO,
                                        ESTALE, EAGAIN, EACCES,     EINTR};
  static const std::vector<int> link = {EPERM,  EOPNOTSUPP, ENOSYS, EXDEV,  EMLINK, EACCES, EROFS,
                                        ENOSPC, EDQUOT,     EIO,    ESTALE, ENOENT, EINTR};
  static const std::vector<int> rename = {EPERM, EACCES, EROFS,  ENOSPC, EDQUOT, EIO,
                                          EXDEV, EBUSY,  ESTALE, ENOENT, EISDIR, EINTR};
  static const std::vector<int> unlink = {EPERM, EACCES, EROFS, EIO, ESTALE, EBUSY, ENOENT, EINTR};
  static const std::vector<int> mkdir = {EACCES, EROFS, ENOSPC, EDQUOT, EIO, ESTALE, ENOENT, ENOTDIR, EMLINK};
  static const std::vector<int> list = {EACCES, EIO, ESTALE, EMFILE, ENOENT, ENOTDIR, ENOMEM};
  switch (kind) {
    case Kind::open:
      return open;
    case Kind::read:
    case Kind::pread:
      return read;
    case Kind::write:
      return write;
    case Kind::fsync:
      return flush;
    case Kind::close:
      return close;
    case Kind::fstat:
    case Kind::lstat:
      return stat;
    case Kind::lock:
      return lock;
    case Kind::link:
      return link;
    case Kind::rename:
      return rename;
    case Kind::unlink:
      return unlink;
    case Kind::mkdir:
      return mkdir;
    case Kind::list:
      break;
  }
  return list;
}

constexpr std::size_t kErrors = kBriefly ? 2 : 100;
constexpr int kPairedCalls = kBriefly ? 0 : 16;

const char* name_of(Strike strike) {
  constexpr const char* kNames[] = {"once", "late", "onwards", "for all changes from it on"};
  return kNames[static_cast<int>(strike)];
}

Outcome play(Scene& scene) {
  const Outcome outcome = scene.act();
  EXPECT_EQ(scene.files->open_files(), 0);
  scene.files->heal();
  scene.check();
  EXPECT_EQ(scene.files->open_files(), 0);
  return outcome;
}

bool makes_sense(const RecordingFileSystem::Call& call, int error, Strike how) {
  const bool changes = RecordingFileSystem::changes(call);
  switch (how) {
    case Strike::once:
      return true;
    case Strike::late:
      // Of these alone the effect stays; and no signal interrupts what is done.
      return (changes || call.kind == Kind::lock) && call.kind != Kind::fsync && error != EINTR;
    case Strike::onwards:
      // Signals without end would be no fault of the disk; and who never lets go of a lock costs a wait.
      return error != EINTR && (call.kind != Kind::lock || (error != EAGAIN && error != EACCES));
    case Strike::all_changes:
      return changes &&
             (error == EROFS || error == ENOSPC || error == EDQUOT || error == EIO || error == EACCES);
  }
  return false;
}

}  // namespace

void Tally::count(Outcome outcome) {
  ++faults;
  served += outcome == Outcome::served;
  missed += outcome == Outcome::missed;
  refused += outcome == Outcome::refused;
}

Tally& Tally::operator+=(const Tally& other) {
  faults += other.faults;
  served += other.served;
  missed += other.missed;
  refused += other.refused;
  return *this;
}

std::string Tally::text() const {
  return std::to_string(faults) + " faults: " + std::to_string(served) + " served, " +
         std::to_string(missed) + " missed, " + std::to_string(refused) + " refused";
}

Tally strike_everywhere(const std::function<std::unique_ptr<Scene>()>& make,
                        const std::function<void(Scene&)>& vanish) {
  Tally tally;
  const auto undisturbed = make();
  undisturbed->files->forget();
  EXPECT_EQ(undisturbed->act(), Outcome::served) << "undisturbed";
  const auto calls = undisturbed->files->calls();
  EXPECT_FALSE(calls.empty());
  undisturbed->check();

  for (int nth = 1; nth <= static_cast<int>(calls.size()) && !::testing::Test::HasFailure(); ++nth) {
    const RecordingFileSystem::Call& call = calls[static_cast<std::size_t>(nth) - 1];
    for (const Strike how : {Strike::once, Strike::late, Strike::onwards, Strike::all_changes}) {
      std::size_t tried = 0;
      for (const int error : errors_of(call.kind)) {
        if (!makes_sense(call, error, how) || tried++ >= kErrors) continue;
        SCOPED_TRACE("call " + std::to_string(nth) + " of " + std::to_string(calls.size()) + ", kind " +
                     std::to_string(static_cast<int>(call.kind)) + " of " + call.path + ": " +
                     std::strerror(error) + ", " + name_of(how));
        const auto scene = make();
        scene->files->strike(nth, error, how);
        tally.count(play(*scene));
      }
    }
    for (int second = nth + 1; second <= std::min(kPairedCalls, static_cast<int>(calls.size())); ++second) {
      for (std::size_t i = 0; i < 2; ++i) {
        const int first_error = errors_of(call.kind)[i], second_error = i == 0 ? EIO : EACCES;
        SCOPED_TRACE("calls " + std::to_string(nth) + " and " + std::to_string(second) + " of " +
                     std::to_string(calls.size()) + ": " + std::strerror(first_error) + " and " +
                     std::strerror(second_error));
        const auto scene = make();
        scene->files->strike(nth, first_error, Strike::once);
        scene->files->before(second, [&] { scene->files->strike(1, second_error, Strike::once); });
        tally.count(play(*scene));
      }
    }
    if (!vanish) continue;
    SCOPED_TRACE("vanishing before call " + std::to_string(nth));
    const auto scene = make();
    scene->files->before(nth, [&] { vanish(*scene); });
    tally.count(play(*scene));
  }
  return tally;
}

}  // namespace normjit::testing
