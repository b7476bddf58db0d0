#include "normjit/compiler/cubin.h"

#include <elf.h>

#include <cstring>

namespace normjit {

int cubin_architecture(std::string_view bytes) {
  // Where the flags hold the architecture: in the lowest byte (CUDA 12, before sm_100) or in the second (CUDA
  // 13, and from sm_100 on).
  constexpr unsigned char kLegacyAbi = 7, kCurrentAbi = 8;
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
