#include "normjit/compiler/cubin.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace normjit {
namespace {

std::string header(int abi, unsigned flags, int machine = EM_CUDA) {
  Elf64_Ehdr elf = {};
  std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
  elf.e_ident[EI_ABIVERSION] = static_cast<unsigned char>(abi);
  elf.e_machine = static_cast<Elf64_Half>(machine);
  elf.e_flags = flags;
  return {reinterpret_cast<const char*>(&elf), sizeof elf};
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

}  // namespace
}  // namespace normjit
