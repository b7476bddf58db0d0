// The real file system with a witness: records every call, and fails or shortens those that a test names.
#pragma once

#include <cstddef>
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
  };

  std::vector<Call> calls() const;
  int count(Kind kind) const;
  int count(Kind kind, std::string_view path) const;
  // Calls that could change anything on disk, opening for writing included.
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
  int lock(int file, struct flock* range) override;
  int close(int file) override;
  int link(const char* from, const char* to) override;
  int rename(const char* from, const char* to) override;
  int unlink(const char* path) override;
  int mkdir(const char* path, unsigned mode) override;
  int list(const char* path, std::vector<std::string>& names) override;

 private:
  // Records a call; false, with errno set, if it is to fail.
  bool admit(Kind kind, std::string path, int flags = 0);
  bool admit(Kind kind, int file);
  std::size_t shortened(std::size_t bytes) const;

  const std::shared_ptr<FileSystem> real_ = make_posix_file_system();
  mutable std::mutex mutex_;
  std::vector<Call> calls_;
  std::map<int, std::string> names_;                    // of open files
  std::map<Kind, std::map<int, int>> faults_;           // calls until it strikes, errno
  std::map<Kind, int> permanent_faults_;                // errno
  int creation_fault_ = 0;                              // errno; 0 is none
  std::size_t transfer_limit_ = 0;                      // 0 is none
  std::optional<std::pair<unsigned, unsigned>> owner_;  // user, permissions
};

}  // namespace normjit
