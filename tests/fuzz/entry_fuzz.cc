// SPDX-License-Identifier: Apache-2.0
// Entries of the cache: as they are, and with the checksum made right.
#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/cache/entry.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;

namespace {

void try_to_decode(const std::string& file) {
  const Result<Entry> entry = decode(file);
  if (!entry) {
    fuzz::expect_message(entry.error().message);
    return;
  }
  std::string header = entry->identity;
  for (const auto& [key, value] : entry->facts) header += key + value;
  const std::string encoded = encode(*entry);
  const Result<Entry> again = decode(encoded);
  fuzz::expect(again.ok() && again->body == entry->body, "an entry reads back");
  fuzz::expect(encode(*again) == encoded, "what reads back is written as before");
  // encode() keeps every value on its line.
  bool clean = true;
  for (const char c : header) clean &= static_cast<unsigned char>(c) >= ' ' && c != '\x7f';
  if (clean) fuzz::expect(encoded == file, "the same entry is the same file");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kFormat = "normjit-entry 1\n", kChecksum = "checksum: ";
  std::string_view rest = fuzz::text_of(data, size), line;
  try_to_decode(std::string(rest));
  if (take_prefix(rest, kFormat)) take_line(rest, line);
  try_to_decode(concat({kFormat, kChecksum, digest(rest), "\n", rest}));
  return 0;
}
