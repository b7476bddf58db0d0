// SPDX-License-Identifier: Apache-2.0
#include "normjit/codegen/render.h"

#include <algorithm>
#include <vector>

#include "normjit/base/text.h"

namespace normjit {

Result<std::string> render(std::string_view name, std::string_view text,
                           std::span<const Placeholder> values) {
  const auto bad = [&](std::size_t at, std::string_view what, std::string_view key) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    return Error{Code::BadTemplate, concat({name, "(", shortest(line), "): ", what, " '", key, "'"})};
  };
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (values[i].key == values[j].key) return bad(0, "two values for placeholder", values[i].key);

  std::string out;
  out.reserve(2 * text.size());
  std::vector<bool> used(values.size());
  std::size_t at = 0;
  for (std::size_t open; (open = text.find("{{", at)) != text.npos;) {
    const std::size_t close = text.find("}}", open);
    if (close == text.npos) return bad(open, "unclosed placeholder", text.substr(open, 20));
    const std::string_view key = text.substr(open + 2, close - open - 2);
    const auto value =
        std::find_if(values.begin(), values.end(), [&](const Placeholder& p) { return p.key == key; });
    if (value == values.end()) return bad(open, "no value for placeholder", key);
    used[static_cast<std::size_t>(value - values.begin())] = true;
    out += text.substr(at, open - at);
    out += value->value;
    at = close + 2;
  }
  out += text.substr(at);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!used[i]) return bad(0, "the template does not use placeholder", values[i].key);
  return out;
}

}  // namespace normjit
