// SPDX-License-Identifier: Apache-2.0
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

// A key (identity), facts that are only shown, and the bytes.
struct Entry {
  std::string identity;  // one line; entries of one identity are interchangeable
  std::vector<std::pair<std::string, std::string>> facts;  // one line each, in order; keys are [a-z_]+
  std::string body;

  // The value of a fact; empty if the entry has no such fact.
  std::string_view fact(std::string_view name) const;

  friend bool operator==(const Entry&, const Entry&) = default;
};

// The file name of an identity, 32 hexadecimal digits: the digest of the format line and the identity. So
// entries of two format versions never have one name.
std::string entry_id(std::string_view identity);

// The bytes of the file. Control characters in header values become spaces, so that every value stays on its
// line; an identity with a line break is therefore never found again.
std::string encode(const Entry& entry);

// Parses any bytes. Verifies magic, version, checksum and size first; CacheIo with the reason if one is
// wrong. The body is moved within `file`'s own buffer, not copied.
Result<Entry> decode(std::string file);

// For the text headers of entries and packs: remove a prefix, a line, or the line of a field ("NAME: VALUE")
// from the text. False if the text does not begin with one.
bool take_prefix(std::string_view& text, std::string_view prefix);
bool take_line(std::string_view& text, std::string_view& line);
bool take_field(std::string_view& text, std::string_view name, std::string_view& value);

}  // namespace normjit
