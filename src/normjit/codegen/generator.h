// From spec and plan to the source of one kernel.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/source.h"
#include "normjit/codegen/templates.h"
#include "normjit/plan.h"

namespace normjit {

// A source in pieces, which suffice to name it. Who finds its kernel in a cache never needs the 90 KB of its
// text: their memory alone took 60 us of a cold process.
struct Draft {
  struct File {
    std::string name;
    TemplateText text;
  };
  std::string kernel, description;  // as of Source
  std::vector<File> files;          // in their order

  Source source() const;
  std::string digest() const;  // of source().text

 private:
  // The text: each file with the #line directive in front of it.
  std::vector<std::string_view> pieces() const;
};

// spec.cuh rendered for exactly this spec and plan, and the other templates as they are, to be joined by
// #line directives, so that compilers name the template file. The same arguments give the same text.
// `template_directory` as in template_text. Errors: BadTemplate.
Result<Draft> draft(const NormSpec& spec, const Plan& plan, Arch arch, const std::string& template_directory);

// Its source: a complete translation unit.
Result<Source> generate(const NormSpec& spec, const Plan& plan, Arch arch,
                        const std::string& template_directory);

}  // namespace normjit
