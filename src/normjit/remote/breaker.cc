// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/breaker.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <ctime>
#include <utility>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/base/uninterrupted.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/key_lock.h"

namespace normjit {
namespace {

constexpr std::string_view kSuffix = ".down";

}  // namespace

Breaker::Breaker(std::string_view name, const std::string& directory, std::shared_ptr<FileSystem> files,
                 bool shared, Limits limits)
    : directory_(directory),
      id_(digest(concat({"normjit-remote ", name}))),
      path_(directory.empty() ? "" : path_to(directory, id_, kSuffix)),
      files_(std::move(files)),
      shared_(shared),
      limits_(limits) {}

// Opened without following a link, so that a name in a shared directory decides nothing but the verdict.
Breaker::Verdict Breaker::verdict(Clock::duration& left) const noexcept {
  struct stat facts = {};
  if (path_.empty() || files_->lstat(path_.c_str(), &facts) != 0) return Verdict::none;
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  const auto age = std::chrono::seconds(now.tv_sec - facts.st_mtim.tv_sec) +
                   std::chrono::nanoseconds(now.tv_nsec - facts.st_mtim.tv_nsec);
  // A file of the future is as good as none once its clock is as far off as a pause is long.
  if (age >= limits_.pause || age <= -limits_.pause) return Verdict::old;
  left = std::chrono::duration_cast<Clock::duration>(limits_.pause - std::max(age, {}));
  return Verdict::fresh;
}

// A byte is written, because opening alone does not change the time of a file.
void Breaker::write_verdict() noexcept {
  if (path_.empty()) return;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int file = uninterrupted([&] { return files_->open(path_.c_str(), kFlags, shared_ ? 0666 : 0600); });
  if (file < 0) return;
  static_cast<void>(uninterrupted([&] { return files_->write(file, "\n", 1); }));
  files_->close(file);
}

bool Breaker::lets_through() noexcept {
  const auto now = Clock::now();
  auto until = shut_until_.load();
  if (now.time_since_epoch().count() < until) return false;
  // After a pause one thread asks, and the others see the next pause.
  const auto next = (now + limits_.pause).time_since_epoch().count();
  if (until != 0 && !shut_until_.compare_exchange_strong(until, next)) return false;
  Clock::duration left{};
  switch (verdict(left)) {
    case Verdict::none:
      return true;
    case Verdict::fresh:
      shut_until_ = (now + left).time_since_epoch().count();
      return false;
    case Verdict::old:
      break;
  }
  // Likewise one process: it renews the file before it asks. A process without locks asks on its own account.
  const KeyLock lock = KeyLock::of_id(*files_, directory_, id_, shared_, std::chrono::milliseconds(0));
  const bool first = lock.state() != KeyLock::State::busy && verdict(left) != Verdict::fresh;
  if (first) write_verdict();
  shut_until_ = next;
  return first;
}

bool Breaker::open() noexcept {
  lost_ns_ = 0;
  const bool was_shut = shut_until_.exchange((Clock::now() + limits_.pause).time_since_epoch().count()) != 0;
  write_verdict();
  return !was_shut;
}

void Breaker::succeeded(std::chrono::nanoseconds took) noexcept {
  if (took >= limits_.slow && (lost_ns_ += took.count()) >= std::chrono::nanoseconds(limits_.lost).count()) {
    open();
  } else if (shut_until_.exchange(0) != 0 && !path_.empty()) {
    files_->unlink(path_.c_str());
  }
}

bool Breaker::failed() noexcept { return open(); }

}  // namespace normjit
