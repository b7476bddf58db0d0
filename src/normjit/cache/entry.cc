// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/entry.h"

#include <algorithm>

#include "normjit/base/digest.h"

namespace normjit {
namespace {

constexpr std::string_view kFormat = "normjit-entry 1\n";
constexpr std::string_view kChecksum = "checksum: ";
constexpr std::string_view kBytes = "bytes: ";
constexpr std::string_view kIdentity = "identity: ";
constexpr std::string_view kSeparator = ": ";

std::string one_line(std::string_view value) {
  std::string line(value);
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, ' ');
  return line;
}

bool take_facts(std::string_view& text, Entry& entry) {
  std::string_view line;
  while (take_line(text, line)) {
    if (line.empty()) return true;
    const std::size_t colon = line.find(kSeparator);
    if (colon == std::string_view::npos) return false;
    entry.facts.emplace_back(line.substr(0, colon), line.substr(colon + kSeparator.size()));
  }
  return false;
}

Error refused(std::string reason) { return {Code::CacheIo, "not a valid cache entry: " + std::move(reason)}; }

}  // namespace

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_line(std::string_view& text, std::string_view& line) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return false;
  line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

bool take_field(std::string_view& text, std::string_view name, std::string_view& value) {
  return take_line(text, value) && take_prefix(value, name);
}

std::string_view Entry::fact(std::string_view name) const {
  for (const auto& [key, value] : facts)
    if (key == name) return value;
  return {};
}

std::string entry_id(std::string_view identity) { return digest(std::string(kFormat).append(identity)); }

std::string encode(const Entry& entry) {
  std::string covered;
  covered.append(kBytes).append(std::to_string(entry.body.size())) += '\n';
  covered.append(kIdentity).append(one_line(entry.identity)) += '\n';
  for (const auto& [key, value] : entry.facts)
    covered.append(one_line(key)).append(kSeparator).append(one_line(value)) += '\n';
  covered.append("\n").append(entry.body);

  std::string file(kFormat);
  file.append(kChecksum).append(digest(covered)) += '\n';
  return file += covered;
}

Result<Entry> decode(std::string file) {
  std::string_view rest = file;
  if (!take_prefix(rest, kFormat)) return refused("it is damaged, foreign, or of another format version");
  std::string_view checksum, bytes, identity;
  if (!take_field(rest, kChecksum, checksum) || checksum != digest(rest))
    return refused("its checksum does not match: it is damaged or cut short");
  // The checksum matches, so a malformed header below was written that way.
  Entry entry;
  if (!take_field(rest, kBytes, bytes) || !take_field(rest, kIdentity, identity) || !take_facts(rest, entry))
    return refused("its header is malformed");
  if (bytes != std::to_string(rest.size())) return refused("its size differs from the one in its header");
  entry.identity = identity;
  file.erase(0, file.size() - rest.size());
  entry.body = std::move(file);
  return entry;
}

}  // namespace normjit
