// SPDX-License-Identifier: Apache-2.0
#include "tests/support/recording_file_system.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace normjit {

using Lock = std::lock_guard<std::mutex>;

std::vector<RecordingFileSystem::Call> RecordingFileSystem::calls() const {
  const Lock lock(mutex_);
  return calls_;
}

int RecordingFileSystem::count(Kind kind) const {
  const Lock lock(mutex_);
  return static_cast<int>(
      std::count_if(calls_.begin(), calls_.end(), [&](const Call& call) { return call.kind == kind; }));
}

int RecordingFileSystem::count(Kind kind, std::string_view path) const {
  const Lock lock(mutex_);
  return static_cast<int>(std::count_if(calls_.begin(), calls_.end(), [&](const Call& call) {
    return call.kind == kind && call.path == path;
  }));
}

bool RecordingFileSystem::changes(const Call& call) {
  switch (call.kind) {
    case Kind::open:
      return (call.flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != 0;  // O_RDONLY is 0
    case Kind::write:
    case Kind::fsync:
    case Kind::link:
    case Kind::rename:
    case Kind::unlink:
    case Kind::mkdir:
      return true;
    default:
      return false;
  }
}

int RecordingFileSystem::writes() const {
  const Lock lock(mutex_);
  return static_cast<int>(std::count_if(calls_.begin(), calls_.end(), changes));
}

int RecordingFileSystem::open_files() const {
  const Lock lock(mutex_);
  return static_cast<int>(names_.size());
}

void RecordingFileSystem::forget() {
  const Lock lock(mutex_);
  calls_.clear();
}

void RecordingFileSystem::fail(Kind kind, int error, int nth) {
  const Lock lock(mutex_);
  faults_[kind][nth] = error;
}

void RecordingFileSystem::fail_always(Kind kind, int error) {
  const Lock lock(mutex_);
  permanent_faults_[kind] = error;
}

void RecordingFileSystem::fail_creation(int error) {
  const Lock lock(mutex_);
  creation_fault_ = error;
}

void RecordingFileSystem::pretend_owner(unsigned user, unsigned permissions) {
  const Lock lock(mutex_);
  owner_ = {user, permissions};
}

void RecordingFileSystem::limit_transfers(std::size_t bytes) {
  const Lock lock(mutex_);
  transfer_limit_ = bytes;
}

void RecordingFileSystem::strike(int nth, int error, Strike how) {
  const Lock lock(mutex_);
  until_strike_ = nth;
  strike_error_ = error;
  strike_ = how;
}

void RecordingFileSystem::before(int nth, std::function<void()> action) {
  const Lock lock(mutex_);
  until_action_ = nth;
  action_ = std::move(action);
}

void RecordingFileSystem::heal() {
  const Lock lock(mutex_);
  faults_.clear();
  permanent_faults_.clear();
  creation_fault_ = until_strike_ = strike_error_ = until_action_ = 0;
  action_ = nullptr;
}

void RecordingFileSystem::skip_flushes() {
  const Lock lock(mutex_);
  skips_flushes_ = true;
}

RecordingFileSystem::Fault RecordingFileSystem::admit(Kind kind, std::string path, int flags) {
  std::function<void()> action;
  {
    const Lock lock(mutex_);
    if (until_action_ > 0 && --until_action_ == 0) action = std::move(action_);
  }
  if (action) action();
  const Lock lock(mutex_);
  Call call{kind, std::move(path), flags};
  const Fault fault = fault_of(call);
  call.error = fault.error;
  calls_.push_back(std::move(call));
  return fault;
}

RecordingFileSystem::Fault RecordingFileSystem::fault_of(const Call& call) {
  Fault fault;
  std::map<int, int> waiting;
  for (const auto& [calls_left, error] : faults_[call.kind]) {
    if (calls_left == 1) {
      fault.error = error;
    } else {
      waiting[calls_left - 1] = error;
    }
  }
  faults_[call.kind] = std::move(waiting);
  if (const auto always = permanent_faults_.find(call.kind); always != permanent_faults_.end())
    fault.error = always->second;
  if (call.kind == Kind::open && (call.flags & O_CREAT) != 0 && creation_fault_ != 0)
    fault.error = creation_fault_;
  if (strike_error_ == 0) return fault;
  if (until_strike_ > 0 && --until_strike_ > 0) return fault;
  if (strike_ == Strike::all_changes && !changes(call)) return fault;
  fault = {strike_error_, strike_ == Strike::late};
  if (strike_ == Strike::once || strike_ == Strike::late) strike_error_ = 0;
  return fault;
}

template <class Real>
auto RecordingFileSystem::make(Kind kind, std::string path, const Real& real) {
  const Fault fault = admit(kind, std::move(path));
  using Answer = decltype(real());
  const Answer answer = fault.error == 0 || fault.late ? real() : Answer{-1};
  if (fault.error == 0) return answer;
  errno = fault.error;
  return Answer{-1};
}

std::string RecordingFileSystem::name_of(int file) const {
  const Lock lock(mutex_);
  const auto name = names_.find(file);
  return name == names_.end() ? "" : name->second;
}

std::size_t RecordingFileSystem::shortened(std::size_t bytes) const {
  const Lock lock(mutex_);
  return transfer_limit_ == 0 ? bytes : std::min(bytes, transfer_limit_);
}

int RecordingFileSystem::open(const char* path, int flags, unsigned mode) {
  const Fault fault = admit(Kind::open, path, flags);
  const int file = fault.error == 0 || fault.late ? real_->open(path, flags, mode) : -1;
  if (fault.error != 0) {
    if (file >= 0) real_->close(file);
    errno = fault.error;
    return -1;
  }
  if (file >= 0) {
    const Lock lock(mutex_);
    names_[file] = path;
  }
  return file;
}

long RecordingFileSystem::read(int file, void* to, std::size_t bytes) {
  return make(Kind::read, name_of(file), [&] { return real_->read(file, to, shortened(bytes)); });
}

long RecordingFileSystem::write(int file, const void* from, std::size_t bytes) {
  return make(Kind::write, name_of(file), [&] { return real_->write(file, from, shortened(bytes)); });
}

long RecordingFileSystem::pread(int file, void* to, std::size_t bytes, long long offset) {
  return make(Kind::pread, name_of(file), [&] { return real_->pread(file, to, shortened(bytes), offset); });
}

int RecordingFileSystem::fstat(int file, struct stat* facts) {
  const int result = make(Kind::fstat, name_of(file), [&] { return real_->fstat(file, facts); });
  const Lock lock(mutex_);
  if (result == 0 && owner_) {
    facts->st_uid = owner_->first;
    facts->st_mode = (facts->st_mode & S_IFMT) | owner_->second;
  }
  return result;
}

int RecordingFileSystem::lstat(const char* path, struct stat* facts) {
  return make(Kind::lstat, path, [&] { return real_->lstat(path, facts); });
}

int RecordingFileSystem::lock(int file, int command, struct flock* range) {
  return make(Kind::lock, name_of(file), [&] { return real_->lock(file, command, range); });
}

int RecordingFileSystem::fsync(int file) {
  return make(Kind::fsync, name_of(file), [&] { return skips_flushes_ ? 0 : real_->fsync(file); });
}

int RecordingFileSystem::close(int file) {
  // A close that reports an error has closed nevertheless, as on Linux.
  const Fault fault = admit(Kind::close, name_of(file));
  {
    const Lock lock(mutex_);
    names_.erase(file);
  }
  const int result = real_->close(file);
  if (fault.error == 0) return result;
  errno = fault.error;
  return -1;
}

int RecordingFileSystem::link(const char* from, const char* to) {
  return make(Kind::link, to, [&] { return real_->link(from, to); });
}

int RecordingFileSystem::rename(const char* from, const char* to) {
  return make(Kind::rename, to, [&] { return real_->rename(from, to); });
}

int RecordingFileSystem::unlink(const char* path) {
  return make(Kind::unlink, path, [&] { return real_->unlink(path); });
}

int RecordingFileSystem::mkdir(const char* path, unsigned mode) {
  return make(Kind::mkdir, path, [&] { return real_->mkdir(path, mode); });
}

int RecordingFileSystem::list(const char* path, std::vector<std::string>& names) {
  return make(Kind::list, path, [&] { return real_->list(path, names); });
}

}  // namespace normjit
