// SPDX-License-Identifier: Apache-2.0
#include "normjit/codegen/templates.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"

namespace normjit {
namespace {

// The digests of embedded_templates(), by index. Never freed. Threads that compute one at the same time keep
// the first.
constinit std::array<std::atomic<const std::string*>, 64> known_digests{};

}  // namespace

std::string TemplateText::digest() const {
  const auto all = embedded_templates();
  const auto found =
      std::ranges::find(all, embedded.data(), [](const auto& file) { return file.text.data(); });
  const auto index = static_cast<std::size_t>(found - all.begin());
  if (embedded.empty() || found == all.end() || index >= known_digests.size()) return normjit::digest(view());
  std::atomic<const std::string*>& known = known_digests[index];
  if (const std::string* const text = known.load(std::memory_order_acquire)) return *text;
  auto text = std::make_unique<const std::string>(normjit::digest(embedded));
  const std::string* expected = nullptr;
  if (known.compare_exchange_strong(expected, text.get(), std::memory_order_acq_rel)) return *text.release();
  return *expected;
}

Result<TemplateText> find_template(const std::string& directory, std::string_view name) {
  if (directory.empty()) {
    for (const EmbeddedFile& file : embedded_templates())
      if (file.name == name) return TemplateText{{}, file.text};
    return Error{Code::BadTemplate, concat({"no template '", name, "' is built into this library"})};
  }
  const std::string path = concat({directory, "/", name});
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))  // the latter fails for a folder of that name
    return Error{Code::BadTemplate,
                 concat({"cannot read template '", path,
                         "'; NORMJIT_TEMPLATE_DIR must name a folder with all of normjit's templates"})};
  return TemplateText{std::move(text).str(), {}};
}

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
