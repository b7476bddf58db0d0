// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/tier.h"

#include <utility>

#include "normjit/cache/directory.h"
#include "normjit/cache/pack.h"

namespace normjit {

std::unique_ptr<Tier> make_layer(std::string path, std::shared_ptr<FileSystem> files, bool shared,
                                 Believes believes) {
  if (path.ends_with(kPackSuffix))
    return std::make_unique<Pack>(std::move(path), std::move(files), shared, std::move(believes));
  return std::make_unique<Directory>(std::move(path), std::move(files), nullptr,
                                     DirectoryRules{.shared = shared, .must_exist = true});
}

Lookup verify(std::string bytes, const std::string& identity, const std::string& path) {
  Result<Entry> decoded = decode(std::move(bytes));
  if (!decoded) return {.kind = Lookup::Kind::damaged, .error = path + " is " + decoded.error().message};
  if (decoded->identity != identity)
    return {.kind = Lookup::Kind::other, .error = path + " holds another entry than its name says"};
  return {.kind = Lookup::Kind::entry, .entry = std::move(*decoded)};
}

void verify(std::string bytes, Listed& listed) {
  listed.entry = decode(std::move(bytes));
  if (!listed.entry) {
    listed.kind = Lookup::Kind::damaged;
  } else if (const std::string id = entry_id(listed.entry->identity); id != listed.id) {
    listed.kind = Lookup::Kind::other;
    listed.entry = Error{Code::CacheIo, "misnamed: it holds the entry " + id};
  } else {
    listed.kind = Lookup::Kind::entry;
  }
}

}  // namespace normjit
