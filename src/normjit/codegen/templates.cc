// SPDX-License-Identifier: Apache-2.0
#include "normjit/codegen/templates.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>

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

}  // namespace normjit
