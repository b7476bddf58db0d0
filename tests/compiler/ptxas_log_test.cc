// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/nvrtc_compiler.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace normjit {
namespace {

constexpr std::string_view kPlain = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compile time = 6.013 ms
)";

TEST(PtxasLog, ReadsAKernel) {
  EXPECT_EQ(parse_ptxas_log(kPlain, "k"),
            (PtxasFacts{.registers = 16, .spill_bytes = 0, .shared_bytes = 1024}));
}

TEST(PtxasLog, SaysNothingOfAnotherKernel) { EXPECT_EQ(parse_ptxas_log(kPlain, "kk"), PtxasFacts{}); }

TEST(PtxasLog, SaysNothingWithoutALog) {
  EXPECT_EQ(parse_ptxas_log("", "k"), PtxasFacts{});
  EXPECT_EQ(parse_ptxas_log("a.cu(3): warning #177-D: variable was declared but never referenced\n", "k"),
            PtxasFacts{});
}

TEST(PtxasLog, NoSharedMemoryIsNotMentioned) {
  EXPECT_EQ(parse_ptxas_log(
                "ptxas info    : Compiling entry function 'k' for 'sm_80'\n"
                "ptxas info    : Used 255 registers, 40 bytes cumulative stack size, 392 bytes cmem[0]\n",
                "k"),
            (PtxasFacts{.registers = 255, .spill_bytes = -1, .shared_bytes = 0}));
}

TEST(PtxasLog, AddsSpillsOfTheKernelAndItsFunctions) {
  constexpr std::string_view log = R"(ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    64 bytes stack frame, 100 bytes spill stores, 200 bytes spill loads
ptxas info    : Function properties for callee
    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 64 registers, 16 bytes smem
)";
  EXPECT_EQ(parse_ptxas_log(log, "first"),
            (PtxasFacts{.registers = 32, .spill_bytes = 20, .shared_bytes = 0}));
  EXPECT_EQ(parse_ptxas_log(log, "second"),
            (PtxasFacts{.registers = 64, .spill_bytes = 308, .shared_bytes = 16}));
}

TEST(PtxasLog, HugeNumbersDoNotOverflow) {
  const auto facts = parse_ptxas_log(
      "ptxas info    : Compiling entry function 'k' for 'sm_90'\n"
      "    0 bytes stack frame, 1833120777 bytes spill stores, 1833120777 bytes spill loads\n",
      "k");
  EXPECT_EQ(facts.spill_bytes, std::numeric_limits<int>::max());
}

TEST(PtxasLog, ACountIsNotNegativeAndStandsBeforeItsUnit) {
  const std::string begin = "ptxas info    : Compiling entry function 'k' for 'sm_90'\n";
  for (const char* line :
       {"Used -5 registers", " registers 5", "-2147483648 bytes spill stores, 1 bytes spill loads"})
    EXPECT_EQ(parse_ptxas_log(begin + line, "k"), PtxasFacts{}) << line;
  EXPECT_EQ(parse_ptxas_log(begin + "5 registers", "k").registers, 5);
}

}  // namespace
}  // namespace normjit
