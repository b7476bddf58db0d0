#include "normjit/cache/tier.h"

#include <utility>

#include "normjit/cache/directory.h"
#include "normjit/cache/pack.h"

namespace normjit {

std::unique_ptr<Tier> make_layer(std::string path, std::shared_ptr<FileSystem> files, bool shared) {
  if (path.ends_with(kPackSuffix)) return std::make_unique<Pack>(std::move(path), std::move(files), shared);
  return std::make_unique<Directory>(std::move(path), std::move(files), nullptr,
                                     DirectoryRules{.shared = shared, .must_exist = true});
}

Standing judge(std::string bytes, const std::string& identity, const std::string& path) {
  Result<Entry> decoded = decode(std::move(bytes));
  if (!decoded) return {.kind = Standing::Kind::damaged, .error = path + " is " + decoded.error().message};
  if (decoded->identity != identity)
    return {.kind = Standing::Kind::other, .error = path + " holds another entry than its name says"};
  return {.kind = Standing::Kind::entry, .entry = std::move(*decoded)};
}

void judge(std::string bytes, Listed& listed) {
  listed.entry = decode(std::move(bytes));
  if (!listed.entry) {
    listed.kind = Standing::Kind::damaged;
  } else if (const std::string id = entry_id(listed.entry->identity); id != listed.id) {
    listed.kind = Standing::Kind::other;
    listed.entry = Error{Code::CacheIo, "misnamed: it holds the entry " + id};
  } else {
    listed.kind = Standing::Kind::entry;
  }
}

}  // namespace normjit
