// SPDX-License-Identifier: Apache-2.0
// What NVTX loads in the place of a profiler (NVTX_INJECTION64_PATH): ends the program with 1 unless it has
// pushed ranges of compiles, and has popped every range on the thread that pushed it.
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string_view>

namespace {

std::atomic<int> g_pushes = 0, g_pops = 0, g_marks = 0, g_compiles = 0, g_wrong = 0;
thread_local int t_depth = 0;

int push(const char* text) {
  ++g_pushes;
  if (std::string_view(text).starts_with("normjit compiling layernorm/")) ++g_compiles;
  return t_depth++;
}

int pop() {
  ++g_pops;
  if (t_depth == 0) ++g_wrong;
  return --t_depth;
}

void mark(const char*) { ++g_marks; }

template <class Function>
void replace(NvtxFunctionTable table, unsigned size, unsigned id, Function* function) {
  if (id < size && table[id] != nullptr) *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

// At the end of the program.
struct Verdict {
  ~Verdict() {
    std::fprintf(stderr, "NVTX: %d ranges, %d ended, %d of compiles, %d marks\n", g_pushes.load(),
                 g_pops.load(), g_compiles.load(), g_marks.load());
    if (g_wrong != 0 || g_pushes != g_pops || g_compiles == 0) _exit(1);
  }
} g_verdict;

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size))
    return 0;
  replace(table, size, NVTX_CBID_CORE_RangePushA, push);
  replace(table, size, NVTX_CBID_CORE_RangePop, pop);
  replace(table, size, NVTX_CBID_CORE_MarkA, mark);
  return 1;
}
