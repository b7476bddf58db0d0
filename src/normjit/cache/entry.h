// The file format of one cache entry: a text header that `head` can show, and the bytes.
//
//   normjit-entry 1                               magic and format version
//   checksum: 0c5f4e1d...                         of everything after this line: digest()
//   bytes: 38432                                  size of the body
//   identity: ...                                 what the entry is, compared on read
//   toolchain: nvrtc 13.0                         facts, one a line, in the writer's order
//
//   <body>
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/result.h"

namespace normjit {

// What an entry is (identity), what is known of it (facts, only shown), and its bytes.
struct Entry {
  std::string identity;  // one line; entries of one identity stand for each other
  std::vector<std::pair<std::string, std::string>> facts;  // one line each, in order; keys are [a-z_]+
  std::string body;

  // The value of a fact; empty if there is none of this name.
  std::string_view fact(std::string_view name) const;

  friend bool operator==(const Entry&, const Entry&) = default;
};

// The name of an identity in this format version, 32 hexadecimal digits: the digest of the format's first
// line and the identity. So another version of the format never meets this one's files.
std::string entry_id(std::string_view identity);

// The bytes of the file. Each control character of the header's values becomes a space, so that every value
// stays on its line: a fact is then shown changed, and an identity with a line break is never found again.
std::string encode(const Entry& entry);

// The entry in these bytes, whatever they are. Verifies magic, version, checksum and size before it believes
// anything; CacheIo with the reason if one of them is wrong. The body is moved within `file`'s own buffer,
// not copied.
Result<Entry> decode(std::string file);

}  // namespace normjit
