// SPDX-License-Identifier: Apache-2.0
// The host half of hw:: keeps the promises of templates/hw.cuh, under every kind of schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "normjit/codegen/templates.h"
#include "simt/launch.h"
#include "tests/support/conformance_host.h"

namespace normjit::testing {
namespace {

constexpr std::uint64_t kSeeds = 8;

void expect_promises_kept(simt::Checks checks) {
  const auto compiler = simt::HostCompiler::find();
  if (compiler.code() == Code::NoCompiler) GTEST_SKIP() << compiler.error().message;
  ASSERT_TRUE(compiler.ok()) << compiler.error().message;
  std::vector<Source> sources;
  for (const ConformanceKernel& kernel : conformance_kernels())
    sources.push_back(conformance_source(kernel, {.number = 90}));
  const auto compiled = compiler->compile(sources, checks);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;

  for (std::size_t i = 0; i < sources.size(); ++i) {
    const ConformanceKernel& kernel = conformance_kernels()[i];
    const Bytes expected = kernel.expected(kernel);
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const HostRun run = run_on_host(kernel, (*compiled)[i], seed);
      ASSERT_EQ(run.trouble, "") << kernel.name << ", " << simt::to_text(simt::schedule_of(seed));
      EXPECT_EQ(difference(kernel, expected, run.y), "") << simt::to_text(simt::schedule_of(seed));
    }
  }
}

TEST(ConformanceHost, EveryPrimitiveKeepsItsPromise) { expect_promises_kept(simt::Checks::memory); }

TEST(ConformanceHost, AndSoWithoutChecks) { expect_promises_kept(simt::Checks::none); }

// The names behind `prefix` and before `(`, outside of comments and macros: "load" of "NJ_DEVICE T load(".
std::set<std::string> declared_functions(std::string_view text) {
  std::set<std::string> names;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with("NJ_DEVICE ")) continue;
    const std::string_view declaration = line.substr(0, line.find('('));
    names.emplace(declaration.substr(declaration.find_last_of(" *&") + 1));
  }
  return names;
}

TEST(ConformanceTable, HasAKernelForEveryPrimitive) {
  const std::string text(find_template("", "hw.cuh").value().view());
  const std::set<std::string> names = declared_functions(text);
  // The reading of the text can fail as well: these are there, however else it changes.
  for (const char* name :
       {"load", "store", "shuffle_xor", "block_barrier", "take_ticket", "f32_to_f16", "rsqrt"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_GE(names.size(), 45U);
  std::string kernels;
  for (const ConformanceKernel& kernel : conformance_kernels()) kernels += kernel.text;
  // Of the device half alone: what pieces and bulk loads tell L2, which their kernels try.
  const std::set<std::string> inner = {"evict_first_policy", "evict_last_policy"};
  for (const std::string& name : names) {
    if (inner.contains(name)) continue;
    bool used = false;
    for (const char* end : {"(", "<"}) used = used || kernels.find("hw::" + name + end) != std::string::npos;
    EXPECT_TRUE(used) << "hw::" << name
                      << " is in templates/hw.cuh, but in no conformance kernel. Add one to "
                      << "tests/simt, so that both halves are tested.";
  }
}

TEST(ConformanceTable, NamesEveryRowOnce) {
  std::set<std::string> names;
  for (const ConformanceKernel& kernel : conformance_kernels())
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
}

}  // namespace
}  // namespace normjit::testing
