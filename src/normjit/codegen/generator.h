// SPDX-License-Identifier: Apache-2.0
// Generates the source of one kernel from a spec and a plan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/source.h"
#include "normjit/codegen/templates.h"
#include "normjit/plan.h"

namespace normjit {

// A source in files, which suffice for its digest. A cache hit never needs the whole text of 90 KB:
// allocating it took 60 us of a cold process.
struct Draft {
  struct File {
    std::string name;
    TemplateText text;
  };
  std::string kernel, description;  // as in Source
  std::vector<File> files;          // in the order of the text

  Source source() const;
  // Of the names and texts of all files, in their order.
  std::string digest() const;
};

// spec.cuh rendered for exactly this spec and plan, and the other templates unchanged. #line directives
// between them make compilers name the template file. The same arguments give the same text.
// `template_directory` as in find_template. Errors: BadTemplate.
Result<Draft> draft(const NormSpec& spec, const Plan& plan, Arch arch, const std::string& template_directory);

// The source of that draft: a complete translation unit.
Result<Source> generate(const NormSpec& spec, const Plan& plan, Arch arch,
                        const std::string& template_directory);

}  // namespace normjit
