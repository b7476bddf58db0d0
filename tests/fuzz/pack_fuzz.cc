// SPDX-License-Identifier: Apache-2.0
// Packs, from a file and from memory: as they are, and with the checksum of the index made right.
#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/cache/file_system.h"
#include "normjit/cache/pack.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;

namespace {

void expect_same(const Lookup& a, const Lookup& b) {
  fuzz::expect(a.kind == b.kind && a.entry == b.entry && a.error == b.error,
               "file and memory give the same entry", a.error + " / " + b.error);
  if (a.kind != Lookup::Kind::entry && a.kind != Lookup::Kind::absent) fuzz::expect_message(a.error);
}

// The pack in a file and in memory.
void read(std::string_view bytes) {
  static const std::shared_ptr<FileSystem> files = make_posix_file_system();
  const fuzz::MemoryFile file(bytes);
  const Pack on_disk(file.path(), files, /*shared=*/true), in_memory(file.path(), bytes);
  expect_same(on_disk.look("absent"), in_memory.look("absent"));

  const Result<std::vector<Listed>> listed = on_disk.list(), other = in_memory.list();
  fuzz::expect(listed.ok() == other.ok(), "file and memory are both packs, or neither is");
  fuzz::expect(on_disk.check().ok() == listed.ok() && in_memory.check().ok() == listed.ok(),
               "a pack is one that can be listed");
  if (!listed) {
    fuzz::expect_message(listed.error().message);
    fuzz::expect(listed.error().message == other.error().message, "and for the same reason");
    return;
  }
  fuzz::expect(listed->size() == other->size(), "file and memory have the same entries");
  for (std::size_t i = 0; i < listed->size(); ++i) {
    const Listed &a = (*listed)[i], &b = (*other)[i];
    fuzz::expect(a.id == b.id && a.bytes == b.bytes && a.kind == b.kind && a.entry.ok() == b.entry.ok(),
                 "file and memory list the same entry", a.id);
    if (!a.entry) {
      fuzz::expect_message(a.entry.error().message);
      continue;
    }
    fuzz::expect(*a.entry == *b.entry, "file and memory hold the same entry", a.id);
    const Lookup found = on_disk.look(a.entry->identity);
    expect_same(found, in_memory.look(a.entry->identity));
    fuzz::expect(found.kind == Lookup::Kind::entry && found.entry == *a.entry, "a listed entry is found",
                 a.id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kMagic = "normjit-pack 1\n", kChecksum = "checksum: ";
  const std::string_view input = fuzz::text_of(data, size);
  read(input);

  std::string_view rest = input, line;
  if (take_prefix(rest, kMagic)) take_line(rest, line);
  const std::size_t end = rest.find("\n\n");
  const std::string_view index = rest.substr(0, end == rest.npos ? end : end + 2);
  read(concat({kMagic, kChecksum, digest(index), "\n", rest}));

  // The input as an entry of a pack, under a name that it may not have.
  const Entry entry{.identity = "i", .facts = {}, .body = std::string(input.substr(0, 99))};
  read(encode_pack({{entry_id("i"), encode(entry)}, {digest(input), std::string(input)}}));
  return 0;
}
