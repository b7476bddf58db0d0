// One place that entries are looked for in: a directory of them, or a pack.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/cache/entry.h"
#include "normjit/cache/file_system.h"
#include "normjit/result.h"

namespace normjit {

// What stands where an entry is looked for.
struct Lookup {
  enum class Kind {
    entry,       // the one that was asked for
    absent,      // nothing
    other,       // a good entry of another identity: a renamed file, or two identities with one hash
    damaged,     // no entry: cut short, changed, foreign, a link, a directory
    untrusted,   // another user owns it or can write it
    unreadable,  // the system does not let us read it: perhaps a good entry that others can read
  };
  Kind kind = Kind::absent;
  Entry entry = {};
  std::string error = {};  // a sentence, for all but entry and absent
};

// One entry of a list, sound or not.
struct Listed {
  std::string id;
  std::string path;           // of the file that holds it
  std::int64_t bytes = 0;     // of that file, or its part of the pack; 0 where not even that is known
  std::int64_t modified = 0;  // when that file was, in seconds since 1970
  Lookup::Kind kind = Lookup::Kind::entry;
  Result<Entry> entry;
};

// Thread-safe. Only looks: changes nothing, and says nothing to anybody but the caller.
class Tier {
 public:
  virtual ~Tier() = default;
  virtual const std::string& path() const = 0;
  // What stands where the entry of this identity would be.
  virtual Lookup look(const std::string& identity) const = 0;
  // Every entry by id, those that are none included. CacheIo if it cannot be read as a whole.
  virtual Result<std::vector<Listed>> list() const = 0;
};

// What ends in this is a pack, everything else is a directory.
inline constexpr std::string_view kPackSuffix = ".njp";

// A tier that is only read. Touches no file; what is wrong with it shows when it is used. `shared`: what
// other users own or can write is believed.
std::unique_ptr<Tier> make_layer(std::string path, std::shared_ptr<FileSystem> files, bool shared);

// No entry comes near it (the largest kernels are about 100 KB); it bounds what a foreign file can make a
// reader allocate.
inline constexpr std::int64_t kMaxEntryBytes = std::int64_t{64} << 20;

// The bytes of a file that was read, as what they are to whoever asks for this identity. `path` is for the
// error.
Lookup verify(std::string bytes, const std::string& identity, const std::string& path);
// The same for a list, where the id is known and not the identity.
void verify(std::string bytes, Listed& listed);

}  // namespace normjit
