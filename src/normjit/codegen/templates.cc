// SPDX-License-Identifier: Apache-2.0
#include "normjit/codegen/templates.h"

#include <fstream>
#include <sstream>

#include "normjit/base/text.h"

namespace normjit {

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
