// SPDX-License-Identifier: Apache-2.0
// What the shared library shows to others, and what it asks of them. tests/c_api/exports.txt is the golden
// list: a symbol that goes away breaks programs that were built with it, one that comes must be meant for
// them.
#include <cxxabi.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#ifdef NORMJIT_LIBRARY
namespace normjit::testing {
namespace {

using Names = std::set<std::string>;

std::string output_of(const std::string& command) {
  FILE* const pipe = ::popen(("LC_ALL=C " + command).c_str(), "r");
  std::string text;
  for (int c; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  EXPECT_TRUE(pipe != nullptr && ::pclose(pipe) == 0) << command;
  return text;
}

std::string quoted(const std::string& path) { return "'" + path + "'"; }

// As people write it.
std::string readable(const std::string& mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  std::free(text);
  const std::pair<std::string, std::string> shorter[] = {
      {"[abi:cxx11]", ""},
      {"std::__cxx11::", "std::"},
      {"std::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string"},
      {"std::basic_string_view<char, std::char_traits<char> >", "std::string_view"}};
  for (const auto& [from, to] : shorter)
    for (std::size_t at; (at = name.find(from)) != std::string::npos;) name.replace(at, from.size(), to);
  return name;
}

Names exported() {
  Names names;
  std::istringstream lines(output_of("nm -D --defined-only -P " + quoted(NORMJIT_LIBRARY)));
  for (std::string line; std::getline(lines, line);) names.insert(readable(line.substr(0, line.find(' '))));
  return names;
}

Names golden() {
  Names names;
  std::ifstream lines(NORMJIT_SOURCE_DIR "/tests/c_api/exports.txt");
  for (std::string line; std::getline(lines, line);) names.insert(line);
  return names;
}

std::string lines_of(const Names& names, const Names& without) {
  std::string text;
  for (const std::string& name : names)
    if (!without.contains(name)) text += name + "\n";
  return text;
}

TEST(CApiLibrary, ExportsWhatTheGoldenListSays) {
  const Names now = exported(), listed = golden();
  const std::string file = ::testing::TempDir() + "normjit-exports.txt";
  if (now != listed) std::ofstream(file) << lines_of(now, {});
  EXPECT_EQ(lines_of(listed, now), "") << "is exported no more: programs that use it break";
  EXPECT_EQ(lines_of(now, listed), "")
      << "is exported and not in tests/c_api/exports.txt; if it is meant to be, copy " << file;
}

// Besides normjit's own names there are none: nothing of the standard library, of spdlog or of other headers.
TEST(CApiLibrary, ExportsOnlyNamesOfNormjit) {
  for (const std::string& name : exported())
    EXPECT_TRUE(name.starts_with("normjit_") || name.starts_with("normjit::") ||
                name.find("normjit::Exception") != std::string::npos ||
                name.find(" normjit::") != std::string::npos)
        << name;
}

// Every function of the header is there, and no other of that kind.
TEST(CApiLibrary, HasEveryFunctionOfTheHeader) {
  std::ifstream stream(NORMJIT_SOURCE_DIR "/src/normjit/c_api.h");
  const std::string header = (std::stringstream() << stream.rdbuf()).str();
  Names declared, there;
  for (std::size_t at = 0; (at = header.find("\nNORMJIT_C_EXPORT ", at)) != std::string::npos; ++at) {
    const std::size_t open = header.find('(', at), name = header.find_last_of(" *", open) + 1;
    declared.insert(header.substr(name, open - name));
  }
  for (const std::string& name : exported())
    if (name.starts_with("normjit_")) there.insert(name);
  EXPECT_EQ(there, declared);
  EXPECT_GT(declared.size(), 25u);
}

// The Debian package records which version brought each function.
TEST(CApiLibrary, TheSymbolsOfThePackageAreItsFunctions) {
  Names listed, there;
  std::ifstream lines(NORMJIT_SOURCE_DIR "/packaging/debian/libnormjit1.symbols");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(" normjit_")) listed.insert(line.substr(1, line.find('@') - 1));
  for (const std::string& name : golden())
    if (name.starts_with("normjit_")) there.insert(name);
  EXPECT_EQ(listed, there);
}

TEST(CApiLibrary, NeedsTheStandardLibrariesOnly) {
  const Names allowed = {"libstdc++.so", "libm.so",       "libgcc_s.so", "libc.so",
                         "libdl.so",     "libpthread.so", "ld-linux"};
  std::istringstream lines(output_of("readelf -d " + quoted(NORMJIT_LIBRARY)));
  int needed = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(line.find("RPATH"), std::string::npos) << line;
    EXPECT_EQ(line.find("RUNPATH"), std::string::npos) << line;
    if (line.find("(NEEDED)") == std::string::npos) continue;
    ++needed;
    const std::string name = line.substr(line.find('[') + 1);
    EXPECT_TRUE(std::ranges::any_of(allowed, [&](const auto& begin) { return name.starts_with(begin); }))
        << line;
  }
  EXPECT_GE(needed, 2);
}

TEST(CApiLibrary, ItsNameHasTheVersionOfTheInterface) {
  EXPECT_THAT(output_of("readelf -d " + quoted(NORMJIT_LIBRARY)),
              ::testing::HasSubstr("soname: [libnormjit.so.1]"));
}

}  // namespace
}  // namespace normjit::testing
#endif
