// SPDX-License-Identifier: Apache-2.0
// The template files, embedded in the library or read from a directory during development, and the renderer,
// which replaces each {{key}} by its value.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "normjit/base/embedded_file.h"
#include "normjit/result.h"

namespace normjit {

// The files of templates/ at build time.
std::span<const EmbeddedFile> embedded_templates() noexcept;

// A template's text: embedded, which is never copied, or read from a directory.
struct TemplateText {
  std::string read;           // empty if embedded
  std::string_view embedded;  // empty if read

  std::string_view view() const { return embedded.empty() ? std::string_view(read) : embedded; }
  // Of view(). That of an embedded text is computed once in a process: 6 us less for each kernel of a
  // prebuild whose kernels are there already.
  std::string digest() const;
};

// Finds a template in `directory`, or among the embedded ones if that is empty. BadTemplate if there is none.
Result<TemplateText> find_template(const std::string& directory, std::string_view name);

struct Placeholder {
  std::string_view key;  // [a-z0-9_]+
  std::string value;
};

// Strict: BadTemplate, with the key and the line, for a placeholder without a value, a value without a
// placeholder, a key given twice, and braces that do not close. `name` is the template's name for messages.
Result<std::string> render(std::string_view name, std::string_view text, std::span<const Placeholder> values);

}  // namespace normjit
