// SPDX-License-Identifier: Apache-2.0
// Files of the source as texts, and what tests take out of the documents among them.
#pragma once

#include <string>

namespace normjit {

// A file, by its path from the root of the source.
std::string source_text(const std::string& path);

// The part of a page from one heading to another.
std::string part_of(const std::string& page, const std::string& first, const std::string& behind);

// The indented block whose first line begins with `first`, without the indentation.
std::string block_of(const std::string& page, const std::string& first);

// `text` with each `from`, of which there must be one, replaced.
std::string replaced(std::string text, const std::string& from, const std::string& to);

}  // namespace normjit
