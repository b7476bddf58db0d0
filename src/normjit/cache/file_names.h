// SPDX-License-Identifier: Apache-2.0
// The names of the files in a cache directory. Files of other names are ignored.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace normjit {

// An id is 32 hexadecimal digits: entry_id(). The pack that is fetched has some, too (remote/remote_pack.cc).
inline constexpr std::string_view kEntrySuffix = ".njk";        // ID.njk: an entry
inline constexpr std::string_view kDamagedSuffix = ".damaged";  // ID.damaged: a quarantined entry
inline constexpr std::string_view kTemporarySuffix = ".tmp";    // NAME.RANDOM.tmp: being written
inline constexpr std::string_view kLockName = "lock";           // only locked

inline std::string file_name(std::string_view id, std::string_view suffix) {
  return std::string(id).append(suffix);
}

inline std::string path_to(const std::string& directory, std::string_view id, std::string_view suffix) {
  return directory + '/' + file_name(id, suffix);
}

// Whether the text is `count` hexadecimal digits.
inline bool is_hex(std::string_view text, std::size_t count) {
  return text.size() == count && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

inline bool is_id(std::string_view text) { return is_hex(text, 32); }

// The id in the name of a file with this suffix; empty for any other name.
inline std::string_view id_in(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return {};
  name.remove_suffix(suffix.size());
  return is_id(name) ? name : std::string_view();
}

// Whether AtomicFile makes such names. Temporaries of other programs do not match: they may use the directory
// too.
inline bool is_temporary(std::string_view name) {
  if (!name.ends_with(kTemporarySuffix)) return false;
  name.remove_suffix(kTemporarySuffix.size());
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return false;
  return is_hex(name.substr(dot + 1), 16);
}

// The first 64 bits of an id.
inline std::uint64_t id_number(std::string_view id) {
  std::uint64_t number = 0;
  std::from_chars(id.data(), id.data() + 16, number, 16);
  return number;
}

}  // namespace normjit
