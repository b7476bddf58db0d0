#include "normjit/compiler/cubin.h"

#include <elf.h>

#include <cstring>

namespace normjit {

int cubin_architecture(std::string_view bytes) {
  constexpr unsigned char kLegacyAbi =
      7;  // CUDA 12, before sm_100: architecture in the lowest byte of the flags
  constexpr unsigned char kCurrentAbi = 8;  // CUDA 13, and from sm_100 on: in the second byte
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header) return -1;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != EM_CUDA) return -1;
  switch (header.e_ident[EI_ABIVERSION]) {
    case kLegacyAbi:
      return header.e_flags & 0xff;
    case kCurrentAbi:
      return header.e_flags >> 8 & 0xff;
    default:
      return 0;
  }
}

}  // namespace normjit
