// SPDX-License-Identifier: Apache-2.0
// One place to look for entries in: a directory or a pack.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/cache/entry.h"
#include "normjit/cache/file_system.h"
#include "normjit/result.h"

namespace normjit {

// The result of looking for an entry.
struct Lookup {
  enum class Kind {
    entry,       // found
    absent,      // no file
    other,       // a valid entry of another identity: a renamed file, or a hash collision
    damaged,     // not a valid entry: truncated, changed, foreign, a link, a directory
    untrusted,   // another user owns it or can write it
    unreadable,  // permissions or I/O; other users may be able to read it
  };
  Kind kind = Kind::absent;
  Entry entry = {};
  std::string error = {};  // a sentence, for all but entry and absent
};

// One entry of a list, sound or not.
struct Listed {
  std::string id;
  std::string tier;           // the path of the directory or pack
  std::string path;           // of the file that holds it
  std::int64_t bytes = 0;     // of that file, or of its part of the pack; 0: unknown
  std::int64_t modified = 0;  // of that file, in seconds since 1970
  Lookup::Kind kind = Lookup::Kind::entry;
  Result<Entry> entry = Error{};

  void refuse(const Lookup& trouble) { kind = trouble.kind, entry = Error{Code::CacheIo, trouble.error}; }
};

// Thread-safe. Changes nothing and logs nothing.
class Tier {
 public:
  virtual ~Tier() = default;
  virtual const std::string& path() const = 0;
  // Looks for the entry of this identity.
  virtual Lookup look(const std::string& identity) const = 0;
  // Every entry by id, invalid ones included. CacheIo if the tier itself cannot be read.
  virtual Result<std::vector<Listed>> list() const = 0;
};

// The ending of a pack's path; every other path is a directory's.
inline constexpr std::string_view kPackSuffix = ".njp";

// Whether a pack is believed: these are the bytes of the file at this path. The error says why not.
using Believes = std::function<Result<void>(std::string_view bytes, const std::string& path)>;

// A read-only tier. Touches no file: errors appear when it is used. `shared`: trust files that other users
// own or can write. `believes`: of packs; empty: all are.
std::unique_ptr<Tier> make_layer(std::string path, std::shared_ptr<FileSystem> files, bool shared,
                                 Believes believes = {});

// Bounds what a foreign file can make a reader allocate. The largest kernels are about 100 KB.
inline constexpr std::int64_t kMaxEntryBytes = std::int64_t{64} << 20;

// Decodes the bytes of a file, and compares its identity with the one that is looked for. `path` is for the
// error.
Lookup verify(std::string bytes, const std::string& identity, const std::string& path);
// The same for a list, which knows only the id. Sets kind and entry.
void verify(std::string bytes, Listed& listed);

}  // namespace normjit
