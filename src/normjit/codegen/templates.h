// The template files: embedded in the library, or read from a directory while developing.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "normjit/base/embedded_file.h"
#include "normjit/result.h"

namespace normjit {

// Made at build time from templates/.
std::span<const EmbeddedFile> embedded_templates() noexcept;

// A template's text: the embedded one, which is never copied, or what was read from a directory.
struct TemplateText {
  std::string read;           // empty for an embedded one
  std::string_view embedded;  // empty for one that was read

  std::string_view view() const { return embedded.empty() ? std::string_view(read) : embedded; }
};

// One file: from `directory`, or the embedded one where that is empty. BadTemplate if there is none.
Result<TemplateText> find_template(const std::string& directory, std::string_view name);

// Its text alone.
Result<std::string> template_text(const std::string& directory, std::string_view name);

}  // namespace normjit
