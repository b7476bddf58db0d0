// Bytes under a key, on disk: one self-verifying file per entry. Knows nothing of kernels; cache/README.md documents
// the format, the key and the rules.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/cache/file_system.h"
#include "normjit/result.h"

namespace normjit {

// An entry: what it is (identity, compared on read), what is known of it (facts, only shown), and its bytes.
struct Entry {
  std::string identity;  // one line; equal identities mean equal content
  std::vector<std::pair<std::string, std::string>> facts;  // one line each, in order; keys are [a-z_]+
  std::string body;
};

// The name of an identity: its XXH3 128-bit hash, 32 hexadecimal digits.
std::string entry_id(std::string_view identity);

// The file format. decode verifies magic, version, sizes and checksum: CacheIo with the reason for anything wrong.
std::string encode(const Entry& entry);
Result<Entry> decode(std::string file);

// One directory of entries. Thread-safe, and safe against any number of processes on the same directory.
class Cache {
 public:
  using Warn = std::function<void(std::string_view)>;  // told once per kind of trouble

  // An empty directory name is a cache that stores nothing and finds nothing. Touches no file.
  Cache(std::string directory, std::shared_ptr<FileSystem> files, Warn warn);

  // The entry, or nothing: absent, unreadable, damaged (then it is moved aside) or of another identity. Never fails.
  bool find(const std::string& identity, Entry& entry);

  // Publishes an entry: complete before visible, and the first of several publishers wins. Best effort: false says that the
  // directory did not take it (a warning has been given), and harms nobody.
  // `replace` puts it in the place of a present one, which the driver refused.
  bool store(const Entry& entry, bool replace = false);

  // Every entry file, by id, damaged ones included: CacheIo if the directory exists and cannot be read.
  struct Listed {
    std::string id;
    std::int64_t bytes = 0;
    Result<Entry> entry;
  };
  Result<std::vector<Listed>> list() const;

  // Ok if the directory exists or can be made, and takes files.
  Result<void> probe() const;

  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  std::shared_ptr<FileSystem> files_;
  Warn warn_;
};

}  // namespace normjit
