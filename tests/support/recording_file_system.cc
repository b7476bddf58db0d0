#include "tests/support/recording_file_system.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

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

int RecordingFileSystem::writes() const {
  const auto changes = [](const Call& call) {
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
  };
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

bool RecordingFileSystem::admit(Kind kind, std::string path, int flags) {
  const Lock lock(mutex_);
  calls_.push_back({kind, std::move(path), flags});
  int error = 0;
  std::map<int, int> waiting;
  for (const auto& [calls_left, fault] : faults_[kind]) {
    if (calls_left == 1) {
      error = fault;
    } else {
      waiting[calls_left - 1] = fault;
    }
  }
  faults_[kind] = std::move(waiting);
  if (const auto always = permanent_faults_.find(kind); always != permanent_faults_.end())
    error = always->second;
  if (kind == Kind::open && (flags & O_CREAT) != 0 && creation_fault_ != 0) error = creation_fault_;
  if (error != 0) errno = error;
  return error == 0;
}

bool RecordingFileSystem::admit(Kind kind, int file) {
  std::string path;
  {
    const Lock lock(mutex_);
    if (const auto name = names_.find(file); name != names_.end()) path = name->second;
  }
  return admit(kind, std::move(path));
}

std::size_t RecordingFileSystem::shortened(std::size_t bytes) const {
  const Lock lock(mutex_);
  return transfer_limit_ == 0 ? bytes : std::min(bytes, transfer_limit_);
}

int RecordingFileSystem::open(const char* path, int flags, unsigned mode) {
  if (!admit(Kind::open, path, flags)) return -1;
  const int file = real_->open(path, flags, mode);
  if (file >= 0) {
    const Lock lock(mutex_);
    names_[file] = path;
  }
  return file;
}

long RecordingFileSystem::read(int file, void* to, std::size_t bytes) {
  return admit(Kind::read, file) ? real_->read(file, to, shortened(bytes)) : -1;
}

long RecordingFileSystem::write(int file, const void* from, std::size_t bytes) {
  return admit(Kind::write, file) ? real_->write(file, from, shortened(bytes)) : -1;
}

long RecordingFileSystem::pread(int file, void* to, std::size_t bytes, long long offset) {
  return admit(Kind::pread, file) ? real_->pread(file, to, shortened(bytes), offset) : -1;
}

int RecordingFileSystem::fstat(int file, struct stat* facts) {
  if (!admit(Kind::fstat, file)) return -1;
  const int result = real_->fstat(file, facts);
  const Lock lock(mutex_);
  if (result == 0 && owner_) {
    facts->st_uid = owner_->first;
    facts->st_mode = (facts->st_mode & S_IFMT) | owner_->second;
  }
  return result;
}

int RecordingFileSystem::lstat(const char* path, struct stat* facts) {
  return admit(Kind::lstat, path) ? real_->lstat(path, facts) : -1;
}

int RecordingFileSystem::lock(int file, struct flock* range) {
  return admit(Kind::lock, file) ? real_->lock(file, range) : -1;
}

int RecordingFileSystem::fsync(int file) { return admit(Kind::fsync, file) ? real_->fsync(file) : -1; }

int RecordingFileSystem::close(int file) {
  // A close that reports an error has closed nevertheless, as on Linux.
  const bool admitted = admit(Kind::close, file);
  const int error = errno;
  {
    const Lock lock(mutex_);
    names_.erase(file);
  }
  const int result = real_->close(file);
  if (admitted) return result;
  errno = error;
  return -1;
}

int RecordingFileSystem::link(const char* from, const char* to) {
  return admit(Kind::link, to) ? real_->link(from, to) : -1;
}

int RecordingFileSystem::rename(const char* from, const char* to) {
  return admit(Kind::rename, to) ? real_->rename(from, to) : -1;
}

int RecordingFileSystem::unlink(const char* path) {
  return admit(Kind::unlink, path) ? real_->unlink(path) : -1;
}

int RecordingFileSystem::mkdir(const char* path, unsigned mode) {
  return admit(Kind::mkdir, path) ? real_->mkdir(path, mode) : -1;
}

int RecordingFileSystem::list(const char* path, std::vector<std::string>& names) {
  return admit(Kind::list, path) ? real_->list(path, names) : -1;
}

}  // namespace normjit
