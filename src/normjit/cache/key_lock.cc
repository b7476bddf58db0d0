// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/key_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "normjit/cache/atomic_file.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/system_call.h"

namespace normjit {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr long long kTrimmer = 0;
// Between two attempts; a compile takes tens of milliseconds.
constexpr milliseconds kLongestSleep{16};

int open_lock_file(FileSystem& files, const std::string& directory, bool shared) {
  const std::string path = path_to(directory, kLockName, "");
  const auto open = [&] {
    return files.open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, shared ? 0666 : 0600);
  };
  const int file = uninterrupted(open);
  if (file >= 0 || errno != ENOENT || !make_directories(files, directory, shared)) return file;
  return uninterrupted(open);
}

// A process as the length of a lock: the PID in 22 bits, which is the kernel's bound, above them 16 bits of
// its PID namespace. Two keys whose ranges overlap would wait for each other; of 2^62 bytes that is as rare
// as keys of the same byte.
constexpr int kPidBits = 22, kNamespaceBits = 16;

long long this_process() {
  struct stat facts = {};
  if (::stat("/proc/self/ns/pid", &facts) != 0) return 0;  // not known
  const auto space = static_cast<long long>(facts.st_ino) & ((1LL << kNamespaceBits) - 1);
  return space << kPidBits | (::getpid() & ((1LL << kPidBits) - 1));
}

struct flock range_of(short type, long long byte, long long length) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = length;
  return range;
}

}  // namespace

KeyLock KeyLock::of_id(FileSystem& files, const std::string& directory, std::string_view id, bool shared,
                       milliseconds patience, const std::function<void()>& on_wait) {
  // 62 bits of the id; odd, so never the trimmer's.
  const auto byte = static_cast<long long>(id_number(id) >> 2) | 1;
  return KeyLock(files, directory, shared, byte, patience, on_wait);
}

KeyLock KeyLock::of_trimmer(FileSystem& files, const std::string& directory, bool shared) {
  return KeyLock(files, directory, shared, kTrimmer, milliseconds(0), {});
}

KeyLock::KeyLock(FileSystem& files, const std::string& directory, bool shared, long long byte,
                 milliseconds patience, const std::function<void()>& on_wait)
    : files_(&files), file_(open_lock_file(files, directory, shared)), byte_(byte) {
  if (file_ < 0) return;
  if (byte_ != kTrimmer) length_ += this_process();
  // Polls, because a blocking lock has no time limit.
  const Clock::time_point begin = Clock::now(), latest = begin + kSlowFactor * patience;
  Clock::time_point give_up = begin + patience;
  for (milliseconds sleep{1};; sleep = std::min(2 * sleep, kLongestSleep)) {
    if (set(F_WRLCK)) {
      state_ = State::held;
      return;
    }
    if (errno != EAGAIN && errno != EACCES) return;
    if (const auto now = Clock::now(); now >= give_up) {
      if (now >= latest || !holder_runs()) {
        state_ = State::busy;
        return;
      }
      give_up = now + patience;
    }
    if (on_wait && waited_.count() == 0) on_wait();
    std::this_thread::sleep_for(sleep);
    waited_ = Clock::now() - begin;
  }
}

KeyLock::KeyLock(KeyLock&& other) noexcept
    : files_(other.files_),
      file_(std::exchange(other.file_, -1)),
      byte_(other.byte_),
      length_(other.length_),
      state_(std::exchange(other.state_, State::unavailable)),
      waited_(other.waited_) {}

// Unlocks before close(): a child that was forked meanwhile shares the open file description.
KeyLock::~KeyLock() {
  if (state_ == State::held) set(F_UNLCK);
  if (file_ >= 0) files_->close(file_);
}

bool KeyLock::set(short type) {
  struct flock range = range_of(type, byte_, length_);
  return uninterrupted([&] { return files_->lock(file_, F_OFD_SETLK, &range); }) >= 0;
}

bool KeyLock::holder_runs() const {
  struct flock range = range_of(F_WRLCK, byte_, length_);
  if (uninterrupted([&] { return files_->lock(file_, F_OFD_GETLK, &range); }) < 0) return false;
  if (range.l_type == F_UNLCK) return true;  // freed meanwhile
  const long long holder = range.l_len - 1;
  if (holder <= 0 || holder >> kPidBits != this_process() >> kPidBits) return false;
  // "PID (name) STATE ...", where the name may have any character.
  std::ifstream file("/proc/" + std::to_string(holder & ((1LL << kPidBits) - 1)) + "/stat");
  std::string facts;
  std::getline(file, facts);
  const std::size_t state = facts.rfind(") ");
  return state != facts.npos && std::string_view("TtZX").find(facts[state + 2]) == std::string_view::npos;
}

}  // namespace normjit
