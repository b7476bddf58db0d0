// SPDX-License-Identifier: Apache-2.0
// Text tables for people: columns padded to their widest cell.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace normjit::cli {

class Table {
 public:
  // A heading that begins with '>' (not shown) makes its column right-aligned, as numbers are.
  explicit Table(std::vector<std::string> headings);

  // As many cells as headings; a missing cell is empty.
  void add(std::vector<std::string> cells);

  // Lines of two-space separated columns without trailing blanks, the headings first.
  std::string text() const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// "12.3" with this many decimals; independent of the locale.
std::string fixed(double value, int decimals);

// "1 entry", "2 entries"; nouns that take more than an s name their plural.
std::string counted(std::int64_t number, const std::string& one, const std::string& many = "");

}  // namespace normjit::cli
