// For parsing the text headers of entries and packs.
#pragma once

#include <string_view>

namespace normjit {

// Removes the prefix from the text; false if it does not begin with it.
inline bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace normjit
