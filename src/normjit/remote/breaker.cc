// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/breaker.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
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

Breaker::Verdict Breaker::verdict(Clock::duration& left) const noexcept {
  struct stat facts = {};
  if (path_.empty() || files_->lstat(path_.c_str(), &facts) != 0) return Verdict::none;
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  // In floating point, since a file may have any time. One of the future is as good as none once its clock is
  // as far off as a pause is long.
  const auto difference = [](std::int64_t a, std::int64_t b) {
    return static_cast<double>(a) - static_cast<double>(b);
  };
  const std::chrono::duration<double> age(difference(now.tv_sec, facts.st_mtim.tv_sec) +
                                          difference(now.tv_nsec, facts.st_mtim.tv_nsec) / 1e9);
  const std::chrono::duration<double> pause(limits_.pause);
  if (age >= pause || age <= -pause) return Verdict::old;
  left = std::chrono::duration_cast<Clock::duration>(std::min(pause, pause - age));
  return Verdict::fresh;
}

// Opened without following a link, so that a name in a shared directory decides nothing but the verdict. A
// byte is written, because opening alone does not change the time of a file.
void Breaker::write_verdict() noexcept {
  if (path_.empty()) return;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int file = uninterrupted([&] { return files_->open(path_.c_str(), kFlags, shared_ ? 0666 : 0600); });
  if (file < 0) return;
  static_cast<void>(uninterrupted([&] { return files_->write(file, "\n", 1); }));
  files_->close(file);
}

bool Breaker::lets_through() noexcept {
  auto known = shut_until_.load();
  if (Clock::now().time_since_epoch().count() < known) return false;
  // After a pause one thread asks, and the others see the next pause.
  if (known != 0) {
    const auto next = after(limits_.pause);
    if (!shut_until_.compare_exchange_strong(known, next)) return false;
    known = next;
  }
  // Unless another thread has learnt more meanwhile.
  const auto shut_for = [&](Clock::duration time) {
    shut_until_.compare_exchange_strong(known, after(time));
  };
  // What another process found out is looked at again soon: its probe may succeed.
  const Clock::duration soon = limits_.pause / 30;
  Clock::duration left{};
  switch (verdict(left)) {
    case Verdict::none:
      return true;
    case Verdict::fresh:
      shut_for(std::min(left, soon));
      return false;
    case Verdict::old:
      break;
  }
  // Likewise one process: it renews the file before it asks. A process without locks asks on its own account.
  const KeyLock lock = KeyLock::of_id(*files_, directory_, id_, shared_, std::chrono::milliseconds(0));
  const bool first = lock.state() != KeyLock::State::busy && verdict(left) != Verdict::fresh;
  if (first) write_verdict();
  shut_for(first ? limits_.pause : soon);
  return first;
}

void Breaker::pause() noexcept { shut_until_ = after(limits_.pause); }

bool Breaker::failed() noexcept {
  lost_ns_ = 0;
  const bool was_shut = shut_until_.exchange(after(limits_.pause)) != 0;
  write_verdict();
  return !was_shut;
}

bool Breaker::succeeded(std::optional<std::chrono::nanoseconds> waited) noexcept {
  const std::chrono::nanoseconds slow(limits_.slow), lost(limits_.lost);
  if (waited && *waited < slow) {
    // Fast answers make up for slow ones.
    if (const auto before = lost_ns_.load(); before > 0)
      lost_ns_ = std::max<std::int64_t>(before - slow.count(), 0);
  } else if (waited && (lost_ns_ += waited->count()) >= lost.count()) {
    return failed();
  }
  if (shut_until_.exchange(0) != 0 && !path_.empty()) files_->unlink(path_.c_str());
  return false;
}

void Breaker::close() noexcept {
  shut_until_ = 0;
  lost_ns_ = 0;
  if (!path_.empty()) files_->unlink(path_.c_str());
}

}  // namespace normjit
