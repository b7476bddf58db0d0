// SPDX-License-Identifier: Apache-2.0
// The real file system with a witness: records every call, and fails or shortens those that a test names.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/cache/file_system.h"

namespace normjit {

// Thread-safe. Calls that were made to fail are recorded like any other.
class RecordingFileSystem final : public FileSystem {
 public:
  enum class Kind {
    open,
    read,
    pread,
    write,
    fstat,
    lstat,
    fsync,
    lock,
    close,
    link,
    rename,
    unlink,
    mkdir,
    list
  };

  struct Call {
    Kind kind;
    std::string path;  // of link and rename the target; of calls on an open file the name it was opened by
    int flags = 0;     // of open
    int error = 0;     // that it was made to fail with
  };
  // Whether a call could change anything on disk; opening for writing could.
  static bool changes(const Call& call);

  std::vector<Call> calls() const;
  int count(Kind kind) const;
  int count(Kind kind, std::string_view path) const;
  // Calls that could change anything on disk.
  int writes() const;
  // Files opened and not yet closed.
  int open_files() const;
  // Forgets the calls so far; faults stay.
  void forget();

  // The nth call of this kind from now on (1 is the next) does nothing and fails with this errno. Faults of
  // one kind may be stacked; each strikes once.
  void fail(Kind kind, int error, int nth = 1);
  // Every call of this kind fails with this errno.
  void fail_always(Kind kind, int error);
  // As fail_always, for opens that create a file.
  void fail_creation(int error);
  enum class Strike {
    once,         // the call does nothing and fails
    late,         // it does what it should and fails nevertheless: the answer got lost
    onwards,      // it and all calls behind it fail
    all_changes,  // from it on, the calls fail that could change anything
  };
  // The nth call of any kind from now on is struck so. In the place of an earlier strike.
  void strike(int nth, int error, Strike how);
  // Does this before the nth call of any kind from now on.
  void before(int nth, std::function<void()> action);
  // Takes all faults and the action away.
  void heal();
  // fsync answers at once, and the disk has nothing.
  void skip_flushes();
  // Every file seems to belong to this user and to have these permissions.
  void pretend_owner(unsigned user, unsigned permissions);
  // No read or write moves more bytes than this.
  void limit_transfers(std::size_t bytes);

  int open(const char* path, int flags, unsigned mode) override;
  long read(int file, void* to, std::size_t bytes) override;
  long pread(int file, void* to, std::size_t bytes, long long offset) override;
  long write(int file, const void* from, std::size_t bytes) override;
  int fstat(int file, struct stat* facts) override;
  int lstat(const char* path, struct stat* facts) override;
  int fsync(int file) override;
  int lock(int file, int command, struct flock* range) override;
  int close(int file) override;
  int link(const char* from, const char* to) override;
  int rename(const char* from, const char* to) override;
  int unlink(const char* path) override;
  int mkdir(const char* path, unsigned mode) override;
  int list(const char* path, std::vector<std::string>& names) override;

 private:
  // What a call is to answer instead of the truth; 0: the truth.
  struct Fault {
    int error = 0;
    bool late = false;
  };
  // Records a call and tells its fault, having done the action that is due before it.
  Fault admit(Kind kind, std::string path, int flags = 0);
  Fault fault_of(const Call& call);
  // Records the call, and makes it as far as it is not made to fail.
  template <class Real>
  auto make(Kind kind, std::string path, const Real& real);
  std::string name_of(int file) const;
  std::size_t shortened(std::size_t bytes) const;

  const std::shared_ptr<FileSystem> real_ = make_posix_file_system();
  mutable std::mutex mutex_;
  std::vector<Call> calls_;
  std::map<int, std::string> names_;           // of open files
  std::map<Kind, std::map<int, int>> faults_;  // calls until it strikes, errno
  std::map<Kind, int> permanent_faults_;       // errno
  int creation_fault_ = 0;                     // errno; 0 is none
  int until_strike_ = 0, strike_error_ = 0;    // calls, errno; 0 is none
  Strike strike_ = Strike::once;
  int until_action_ = 0;
  std::function<void()> action_;
  bool skips_flushes_ = false;
  std::size_t transfer_limit_ = 0;                      // 0 is none
  std::optional<std::pair<unsigned, unsigned>> owner_;  // user, permissions
};

}  // namespace normjit
