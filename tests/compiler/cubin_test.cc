// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/cubin.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace normjit {
namespace {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

Elf64_Ehdr elf_header(int abi, unsigned flags, int machine = EM_CUDA) {
  Elf64_Ehdr elf = {};
  std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
  elf.e_ident[EI_ABIVERSION] = static_cast<unsigned char>(abi);
  elf.e_machine = static_cast<Elf64_Half>(machine);
  elf.e_flags = flags;
  return elf;
}

std::string header(int abi, unsigned flags, int machine = EM_CUDA) {
  return bytes_of(elf_header(abi, flags, machine));
}

// The flags are those of real cubins.
TEST(Cubin, ReadsTheArchitectureOfBothLayouts) {
  EXPECT_EQ(cubin_architecture(header(7, 0x005a055a)), 90);   // NVRTC 12.9, sm_90
  EXPECT_EQ(cubin_architecture(header(7, 0x005a0d5a)), 90);   // NVRTC 12.9, sm_90a
  EXPECT_EQ(cubin_architecture(header(8, 0x06004b04)), 75);   // NVRTC 13.0, sm_75
  EXPECT_EQ(cubin_architecture(header(8, 0x06007902)), 121);  // NVRTC 13.0, sm_121
}

TEST(Cubin, DoesNotGuessAtAnUnknownLayout) { EXPECT_EQ(cubin_architecture(header(9, 0x06007902)), 0); }

TEST(Cubin, KnowsWhatIsNone) {
  EXPECT_EQ(cubin_architecture(""), -1);
  EXPECT_EQ(cubin_architecture("\x7f"
                               "ELF"),
            -1);
  EXPECT_EQ(cubin_architecture(header(8, 0x06007902, EM_X86_64)), -1);
  EXPECT_EQ(cubin_architecture(std::string(sizeof(Elf64_Ehdr), '\0')), -1);
}

// ---- Facts, out of cubins that are put together here ----

// An attribute with words behind it, and one whose value is in its 16-bit field.
std::string sized(int code, const std::vector<std::uint32_t>& words) {
  std::string text = {'\4', static_cast<char>(code)};
  text += bytes_of(static_cast<std::uint16_t>(4 * words.size()));
  for (const std::uint32_t word : words) text += bytes_of(word);
  return text;
}
std::string half(int code, std::uint16_t value) {
  return std::string{'\3', static_cast<char>(code)} + bytes_of(value);
}

// The attributes that the tests use, as cubins number them.
std::string max_threads(std::uint32_t x) { return sized(0x05, {x, 1, 1}); }
std::string required_threads(std::uint32_t x, std::uint32_t y) { return sized(0x10, {x, y, 1}); }
std::string frame(std::uint32_t symbol, std::uint32_t bytes) { return sized(0x11, {symbol, bytes}); }
std::string stack(std::uint32_t symbol, std::uint32_t bytes) { return sized(0x12, {symbol, bytes}); }
std::string register_limit(std::uint16_t registers) { return half(0x1b, registers); }
std::string registers(std::uint32_t symbol, std::uint32_t count) { return sized(0x2f, {symbol, count}); }
std::string cluster(std::uint32_t x, std::uint32_t y, std::uint32_t z = 1) { return sized(0x3d, {x, y, z}); }
std::string max_cluster(std::uint32_t blocks) { return sized(0x3f, {blocks}); }

struct MadeSection {
  std::string name = {};
  std::string content = {};
  std::uint64_t bytes_in_memory = 0;  // of a section without content
};

// Header, table of sections, contents; section 1 has the names.
std::string put_together(Elf64_Ehdr elf, std::vector<MadeSection> sections) {
  sections.insert(sections.begin(), {{.name = ""}, {.name = ".shstrtab"}});
  std::string names;
  std::vector<Elf64_Word> name_offsets;
  for (const MadeSection& section : sections) {
    name_offsets.push_back(static_cast<Elf64_Word>(names.size()));
    names += section.name + '\0';
  }
  sections[1].content = names;
  elf.e_shoff = sizeof elf;
  elf.e_shentsize = sizeof(Elf64_Shdr);
  elf.e_shnum = static_cast<Elf64_Half>(sections.size());
  elf.e_shstrndx = 1;
  std::string table, contents;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    Elf64_Shdr entry = {};
    entry.sh_name = name_offsets[i];
    entry.sh_type = i == 0 ? SHT_NULL : sections[i].bytes_in_memory > 0 ? SHT_NOBITS : SHT_PROGBITS;
    entry.sh_offset = sizeof elf + sections.size() * sizeof entry + contents.size();
    entry.sh_size =
        sections[i].bytes_in_memory > 0 ? sections[i].bytes_in_memory : sections[i].content.size();
    table += bytes_of(entry);
    contents += sections[i].content;
  }
  return bytes_of(elf) + table + contents;
}

constexpr unsigned kSm80 = 0x06005004, kSm90 = 0x06005a04;  // flags of NVRTC 13.0

// Of kernels "row" (symbol 1) and "chunk" (symbol 2) and a function "help" (symbol 3).
struct MadeCubin {
  Elf64_Ehdr elf = elf_header(8, kSm90);
  std::string info =
      registers(1, 40) + frame(1, 0) + stack(1, 0) + registers(2, 255) + frame(2, 8) + frame(3, 64);
  std::string info_row = register_limit(128) + max_threads(256);
  std::string info_chunk = register_limit(255);
  std::uint64_t shared_row = 1024 + 20;

  std::string bytes() const {
    const std::string names = std::string("\0row\0chunk\0help\0", 16);
    std::string symbols;
    for (const Elf64_Word name : {0, 1, 5, 11}) {
      Elf64_Sym symbol = {};
      symbol.st_name = name;
      symbols += bytes_of(symbol);
    }
    return put_together(elf, {{.name = ".strtab", .content = names},
                              {.name = ".symtab", .content = symbols},
                              {.name = ".nv.info", .content = info},
                              {.name = ".nv.info.row", .content = info_row},
                              {.name = ".nv.info.chunk", .content = info_chunk},
                              {.name = ".nv.shared.row", .bytes_in_memory = shared_row}});
  }
};

TEST(CubinFacts, AreThoseOfTheKernelAsked) {
  const std::string bytes = MadeCubin().bytes();
  const CubinFacts row{.registers = 40, .register_limit = 128, .shared_bytes = 20, .max_threads = 256};
  const CubinFacts chunk{.registers = 255, .local_bytes = 8};
  EXPECT_EQ(cubin_facts(bytes, "row"), row);
  EXPECT_EQ(cubin_facts(bytes, "chunk"), chunk);
  EXPECT_EQ(cubin_facts(bytes, "ro"), std::nullopt);
  EXPECT_EQ(cubin_facts(bytes, ""), std::nullopt);
  EXPECT_EQ(cubin_facts(bytes, "help"), std::nullopt) << "a function is no kernel";
}

TEST(CubinFacts, SharedMemoryIsWithoutWhatTheSystemReserves) {
  MadeCubin cubin;
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row")->shared_bytes, 20);
  cubin.shared_row = 1024;
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row")->shared_bytes, 0);
  cubin.shared_row = 1023;  // less than is reserved
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt);
  cubin.elf = elf_header(8, kSm80);  // which does not count it
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row")->shared_bytes, 1023);
  cubin.shared_row = std::uint64_t{1} << 40;
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt);
}

TEST(CubinFacts, TheStackCountsTheFunctionsThatAreCalled) {
  MadeCubin cubin;
  cubin.info = registers(1, 40) + frame(3, 64) + frame(1, 16) + stack(1, 80);
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row")->local_bytes, 80);
  cubin.info = registers(1, 40) + stack(1, 80) + frame(1, 16);
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row")->local_bytes, 80);
}

TEST(CubinFacts, BoundsOfBlocksAndClusters) {
  MadeCubin cubin;
  cubin.info_row = required_threads(32, 4) + cluster(4, 2) + max_cluster(16);
  const CubinFacts expected{
      .registers = 40, .shared_bytes = 20, .max_threads = 128, .cluster_blocks = 8, .max_cluster_blocks = 16};
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), expected);
  for (const std::uint32_t z : {1, 4}) {
    cubin.info_row = cluster(0x80000000, 0x80000000, z);
    EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt) << "a cluster that no number holds";
  }
}

TEST(CubinFacts, AttributesOfOtherKindsAreSkipped) {
  MadeCubin cubin;
  cubin.info_row = sized(0x1c, {1, 2, 3, 4, 5}) + std::string("\1\x3e\0\0", 4) +
                   std::string("\2\x4c\1\0", 4) + sized(0x77, {}) + max_threads(64);
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row")->max_threads, 64);
  cubin.info_row = std::string("\5\x4c\1\0", 4) + max_threads(64);
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt) << "where it ends, nobody knows";
}

TEST(CubinFacts, NothingOfWhatIsNoCubin) {
  MadeCubin cubin;
  ASSERT_TRUE(cubin_facts(cubin.bytes(), "row"));
  EXPECT_EQ(cubin_facts("", "row"), std::nullopt);
  EXPECT_EQ(cubin_facts(header(8, kSm90), "row"), std::nullopt);
  cubin.elf = elf_header(9, kSm90);
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt);
  cubin.elf = elf_header(8, kSm90, EM_X86_64);
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt);
}

TEST(CubinFacts, AValueThatIsCutOffIsNone) {
  MadeCubin cubin;
  cubin.info_row = max_threads(256).substr(0, 15);
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt);
  cubin.info_row = sized(0x05, {256, 1});
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt);
  cubin = {};
  cubin.info += registers(99, 1);  // no such symbol
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt);
  cubin = {};
  cubin.info = frame(1, 0);
  EXPECT_EQ(cubin_facts(cubin.bytes(), "row"), std::nullopt) << "no register count";
}

TEST(CubinFacts, PlacesBeyondTheEndOfNumbersAreNone) {
  const std::string whole = MadeCubin().bytes();
  const auto changed = [&](std::size_t at, auto value) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  };
  const std::uint64_t before_zero = 0 - std::uint64_t{64};
  EXPECT_EQ(cubin_facts(changed(offsetof(Elf64_Ehdr, e_shoff), before_zero), "row"), std::nullopt);
  EXPECT_EQ(cubin_facts(changed(offsetof(Elf64_Ehdr, e_shentsize), std::uint16_t{40}), "row"), std::nullopt);
  const std::size_t strtab = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Shdr);
  EXPECT_EQ(cubin_facts(changed(strtab + offsetof(Elf64_Shdr, sh_offset), before_zero), "row"), std::nullopt);
  EXPECT_EQ(cubin_facts(changed(strtab + offsetof(Elf64_Shdr, sh_size), before_zero), "row"), std::nullopt);
}

// Bytes that end where memory ends: reading beyond them is a crash.
class AtTheEdge {
 public:
  explicit AtTheEdge(std::size_t capacity) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    usable_ = (capacity + page - 1) / page * page;
    bytes_ = usable_ + page;
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    base_ = static_cast<char*>(mapped);
    EXPECT_EQ(mprotect(base_ + usable_, page, PROT_NONE), 0);
  }
  ~AtTheEdge() { munmap(base_, bytes_); }
  AtTheEdge(const AtTheEdge&) = delete;
  AtTheEdge& operator=(const AtTheEdge&) = delete;

  std::string_view put(std::string_view bytes) {
    char* const start = base_ + usable_ - bytes.size();
    std::memcpy(start, bytes.data(), bytes.size());
    return {start, bytes.size()};
  }

 private:
  char* base_ = nullptr;
  std::size_t usable_ = 0, bytes_ = 0;
};

TEST(CubinFacts, ACutOffFileHasNone) {
  const std::string whole = MadeCubin().bytes();
  AtTheEdge edge(whole.size());
  ASSERT_TRUE(cubin_facts(edge.put(whole), "row"));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(cubin_facts(edge.put(whole.substr(0, size)), "row"), std::nullopt) << size << " bytes";
}

TEST(CubinFacts, WhateverAByteSaysNothingBeyondIsRead) {
  const std::string whole = MadeCubin().bytes();
  AtTheEdge edge(whole.size());
  int still_there = 0;
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const int other : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(other);
      const auto facts = cubin_facts(edge.put(damaged), "row");
      if (!facts) continue;
      ++still_there;
      for (const int value :
           {facts->registers, facts->register_limit, facts->local_bytes, facts->shared_bytes,
            facts->max_threads, facts->cluster_blocks, facts->max_cluster_blocks})
        EXPECT_GE(value, 0) << "byte " << at << " is " << other;
    }
  EXPECT_GT(still_there, 0) << "bytes that say nothing of the kernel do not matter";
}

}  // namespace
}  // namespace normjit
