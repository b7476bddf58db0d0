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

// The text of one file: from `directory`, or the embedded one where that is empty. BadTemplate if there is
// none.
Result<std::string> template_text(const std::string& directory, std::string_view name);

}  // namespace normjit
