// SPDX-License-Identifier: Apache-2.0
// What a compiler returns: cubins, and the log of ptxas.
#include <elf.h>

#include "normjit/compiler/cubin.h"
#include "normjit/compiler/nvrtc_compiler.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;

namespace {

// The kernel that the cubin seems to have.
std::string_view kernel_in(std::string_view input) {
  constexpr std::string_view kSection = ".nv.info.";
  const std::size_t at = input.find(kSection);
  if (at == input.npos) return "k";
  const std::string_view name = input.substr(at + kSection.size());
  return name.substr(0, name.find('\0'));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  // A cubin may follow other bytes, as it does in an entry of the cache.
  const std::size_t begin = input.find(ELFMAG);
  const std::string_view cubin = input.substr(begin == input.npos ? 0 : begin);
  const int architecture = cubin_architecture(cubin);
  fuzz::expect(architecture >= -1 && architecture <= 255, "an architecture has a byte");
  if (const auto facts = cubin_facts(cubin, kernel_in(cubin))) {
    fuzz::expect(architecture > 0, "a kernel is for an architecture");
    for (const int fact : {facts->registers, facts->register_limit, facts->local_bytes, facts->shared_bytes,
                           facts->max_threads, facts->cluster_blocks, facts->max_cluster_blocks})
      fuzz::expect(fact >= 0, "a fact is a count");
  }
  const PtxasFacts facts = parse_ptxas_log(input, "k");
  for (const int fact : {facts.registers, facts.spill_bytes, facts.shared_bytes})
    fuzz::expect(fact >= -1, "a fact of the log is a count, or -1");
  return 0;
}
