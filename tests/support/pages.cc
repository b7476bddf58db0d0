// SPDX-License-Identifier: Apache-2.0
#include "tests/support/pages.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace normjit {

std::string source_text(const std::string& path) {
  std::ifstream stream(NORMJIT_SOURCE_DIR "/" + path);
  EXPECT_TRUE(stream) << path;
  return (std::stringstream() << stream.rdbuf()).str();
}

std::string part_of(const std::string& page, const std::string& first, const std::string& behind) {
  const std::size_t begin = page.find(first), end = page.find(behind, begin);
  EXPECT_NE(end, std::string::npos) << first;
  return page.substr(begin, end - begin);
}

std::string block_of(const std::string& page, const std::string& first) {
  static const std::string kIndent = "    ";
  const std::size_t begin = page.find("\n\n" + kIndent + first);
  EXPECT_NE(begin, std::string::npos) << first;
  if (begin == std::string::npos) return "";
  std::istringstream stream(page.substr(begin + 2));
  std::string block;
  for (std::string line; std::getline(stream, line) && line.starts_with(kIndent);)
    block += line.substr(kIndent.size()) + "\n";
  return block;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in " << text;
  for (; at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  return text;
}

}  // namespace normjit
