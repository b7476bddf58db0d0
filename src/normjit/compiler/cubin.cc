// SPDX-License-Identifier: Apache-2.0
// A cubin is an ELF file. Its sections ".nv.info" (all kernels) and ".nv.info.KERNEL" (one) are lists of
// attributes:
//   byte format, byte code, then by the format
//     1, 2, 3   a 16-bit field: nothing, a byte, or a 16-bit value
//     4         the 16-bit size of what follows, 32-bit words
// The size of ".nv.shared.KERNEL" is the static shared memory. NVRTC 12.0, 12.9 and 13.0 have this layout;
// the nvrtc tests compare the facts with ptxas's report.
#include "normjit/compiler/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "normjit/base/text.h"

namespace normjit {
namespace {

// Attribute codes.
constexpr int kMaxThreads = 0x05;       // x, y, z
constexpr int kRequiredThreads = 0x10;  // x, y, z
constexpr int kFrameBytes = 0x11;       // symbol, its own bytes
constexpr int kStackBytes = 0x12;       // symbol, bytes including the functions that it calls
constexpr int kRegisterLimit = 0x1b;
constexpr int kRegisters = 0x2f;         // symbol, registers
constexpr int kClusterBlocks = 0x3d;     // x, y, z
constexpr int kMaxClusterBlocks = 0x3f;  // x * y * z

// From sm_90 on, the size of ".nv.shared.KERNEL" includes what the system reserves in every block.
constexpr int kCountsReserved = 90;
constexpr std::uint64_t kReservedBytes = 1024;

std::optional<std::string_view> part(std::string_view bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
  return bytes.substr(offset, size);
}

template <class T>
std::optional<T> read(std::string_view bytes, std::uint64_t offset) {
  const auto from = part(bytes, offset, sizeof(T));
  if (!from) return std::nullopt;
  T value;
  std::memcpy(&value, from->data(), sizeof value);
  return value;
}

// The text at this offset of a string table.
std::optional<std::string_view> text_at(std::string_view table, std::uint64_t offset) {
  const std::size_t end = table.find('\0', offset);
  if (end == std::string_view::npos) return std::nullopt;
  return table.substr(offset, end - offset);
}

struct Section {
  Elf64_Shdr header;
  std::string_view name = {};
  std::string_view content = {};  // empty if the file stores none, even if the header has a size
};

const Section* find(const std::vector<Section>& sections, std::string_view name) {
  const auto found = std::ranges::find(sections, name, &Section::name);
  return found != sections.end() ? &*found : nullptr;
}

// Nothing unless the section table and everything that it points to lie inside the bytes.
std::optional<std::vector<Section>> sections_of(std::string_view bytes) {
  const auto elf = read<Elf64_Ehdr>(bytes, 0);
  if (!elf || elf->e_shentsize != sizeof(Elf64_Shdr)) return std::nullopt;
  std::vector<Section> sections;
  for (std::uint64_t i = 0; i < elf->e_shnum; ++i) {
    const auto header = read<Elf64_Shdr>(bytes, elf->e_shoff + i * sizeof(Elf64_Shdr));
    if (!header) return std::nullopt;
    Section section{.header = *header};
    if (section.header.sh_type != SHT_NOBITS && section.header.sh_type != SHT_NULL) {
      const auto content = part(bytes, section.header.sh_offset, section.header.sh_size);
      if (!content) return std::nullopt;
      section.content = *content;
    }
    sections.push_back(section);
  }
  if (elf->e_shstrndx >= sections.size()) return std::nullopt;
  for (Section& section : sections) {
    const auto name = text_at(sections[elf->e_shstrndx].content, section.header.sh_name);
    if (!name) return std::nullopt;
    section.name = *name;
  }
  return sections;
}

// Finds the sections by name, because their links are wrong in cubins of NVRTC 12.0.
std::optional<std::string_view> symbol_name(const std::vector<Section>& sections, std::uint64_t index) {
  const Section *symbols = find(sections, ".symtab"), *names = find(sections, ".strtab");
  const auto symbol = symbols ? read<Elf64_Sym>(symbols->content, index * sizeof(Elf64_Sym)) : std::nullopt;
  return symbol && names ? text_at(names->content, symbol->st_name) : std::nullopt;
}

struct Attribute {
  int code = 0;
  std::string_view value;

  std::optional<std::uint64_t> half() const { return read<std::uint16_t>(value, 0); }
  std::optional<std::uint64_t> word(int index) const { return read<std::uint32_t>(value, 4 * index); }
  // The product of the first three words. Each is at most 65,535, as is every launch dimension but a grid's.
  std::optional<std::uint64_t> product() const {
    std::uint64_t product = 1;
    for (int i = 0; i < 3; ++i) {
      const auto factor = word(i);
      if (!factor || *factor > 0xffff) return std::nullopt;
      product *= *factor;
    }
    return product;
  }
};

// The attributes in the section with this name. Nothing if there is no such section, or it is malformed.
std::optional<std::vector<Attribute>> attributes_in(const std::vector<Section>& sections,
                                                    std::string_view name) {
  constexpr int kFirstFormat = 1, kSized = 4;
  const Section* section = find(sections, name);
  if (section == nullptr) return std::nullopt;
  const std::string_view list = section->content;
  std::vector<Attribute> attributes;
  for (std::uint64_t at = 0; at < list.size();) {
    const auto format = read<std::uint8_t>(list, at), code = read<std::uint8_t>(list, at + 1);
    const auto field = read<std::uint16_t>(list, at + 2);
    if (!format || !code || !field || *format < kFirstFormat || *format > kSized) return std::nullopt;
    const auto value = *format == kSized ? part(list, at + 4, *field) : part(list, at + 2, 2);
    if (!value) return std::nullopt;
    attributes.push_back({*code, *value});
    at += *format == kSized ? 4 + value->size() : 4;
  }
  return attributes;
}

// False if there is no value, or it is out of range.
bool set(int& to, std::optional<std::uint64_t> value) {
  if (!value || *value > std::numeric_limits<int>::max() / 2) return false;
  to = static_cast<int>(*value);
  return true;
}

// Reads this kernel's attributes of ".nv.info".
bool read_registers_and_stack(const std::vector<Section>& sections, std::string_view kernel,
                              CubinFacts& facts) {
  const auto attributes = attributes_in(sections, ".nv.info");
  if (!attributes) return false;
  bool known = false;
  for (const Attribute& attribute : *attributes) {
    if (attribute.code != kRegisters && attribute.code != kFrameBytes && attribute.code != kStackBytes)
      continue;
    const auto symbol = attribute.word(0);
    const auto name = symbol ? symbol_name(sections, *symbol) : std::nullopt;
    if (!name) return false;
    if (*name != kernel) continue;
    int value = 0;
    if (!set(value, attribute.word(1))) return false;
    if (attribute.code == kRegisters) {
      facts.registers = value;
      known = true;
    } else {
      facts.local_bytes = std::max(facts.local_bytes, value);
    }
  }
  return known;
}

// Reads ".nv.info.KERNEL".
bool read_bounds(const std::vector<Section>& sections, std::string_view kernel, CubinFacts& facts) {
  const auto attributes = attributes_in(sections, concat({".nv.info.", kernel}));
  if (!attributes) return false;
  bool sound = true;
  for (const Attribute& attribute : *attributes) {
    if (attribute.code == kMaxThreads || attribute.code == kRequiredThreads)
      sound &= set(facts.max_threads, attribute.product());
    if (attribute.code == kRegisterLimit) sound &= set(facts.register_limit, attribute.half());
    if (attribute.code == kClusterBlocks) sound &= set(facts.cluster_blocks, attribute.product());
    if (attribute.code == kMaxClusterBlocks) sound &= set(facts.max_cluster_blocks, attribute.word(0));
  }
  return sound;
}

bool read_shared(const std::vector<Section>& sections, std::string_view kernel, int architecture,
                 CubinFacts& facts) {
  const Section* shared = find(sections, concat({".nv.shared.", kernel}));
  if (!shared) return true;
  const std::uint64_t reserved = architecture >= kCountsReserved ? kReservedBytes : 0;
  return shared->header.sh_size >= reserved && set(facts.shared_bytes, shared->header.sh_size - reserved);
}

}  // namespace

int cubin_architecture(std::string_view bytes) {
  // The flags hold the architecture in the lowest byte (CUDA 12, before sm_100) or in the second (CUDA 13,
  // and from sm_100 on).
  constexpr unsigned char kLegacyAbi = 7, kCurrentAbi = 8;
  const auto header = read<Elf64_Ehdr>(bytes, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_machine != EM_CUDA)
    return -1;
  switch (header->e_ident[EI_ABIVERSION]) {
    case kLegacyAbi:
      return header->e_flags & 0xff;
    case kCurrentAbi:
      return header->e_flags >> 8 & 0xff;
    default:
      return 0;
  }
}

std::optional<CubinFacts> cubin_facts(std::string_view bytes, std::string_view kernel) {
  const int architecture = cubin_architecture(bytes);
  if (architecture <= 0) return std::nullopt;
  const auto sections = sections_of(bytes);
  CubinFacts facts;
  if (!sections || !read_registers_and_stack(*sections, kernel, facts) ||
      !read_bounds(*sections, kernel, facts) || !read_shared(*sections, kernel, architecture, facts))
    return std::nullopt;
  return facts;
}

}  // namespace normjit
