// SPDX-License-Identifier: Apache-2.0
#include "cli/table.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace normjit::cli {

Table::Table(std::vector<std::string> headings) {
  for (std::string& heading : headings) {
    right_.push_back(!heading.empty() && heading.front() == '>');
    if (right_.back()) heading.erase(0, 1);
  }
  rows_.push_back(std::move(headings));
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(right_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(right_.size(), 0);
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());

  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += right_[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string fixed(double value, int decimals) {
  char text[400];  // the longest double has 309 digits before the point
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, decimals).ptr;
  return std::string(text, end);
}

std::string counted(std::int64_t number, const std::string& one, const std::string& many) {
  return std::to_string(number) + " " + (number == 1 ? one : many.empty() ? one + "s" : many);
}

}  // namespace normjit::cli
