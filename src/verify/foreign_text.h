// SPDX-License-Identifier: Apache-2.0
// Text of users and files, made fit for a message: no control character reaches the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace normjit::oracle {

// For a place in a sentence: control characters as \n and \x1b, and only the beginning of a text that then
// has more than `longest` bytes, with its length.
std::string shown(std::string_view text, std::size_t longest = 200);

// A whole message: as shown(), of any length and with its line breaks and tabs.
std::string printable(std::string_view message);

}  // namespace normjit::oracle
