# Writes OUT, a C++ file with the text of each of FILES as an array (a raw string literal has a length limit).
set(body "")
set(rows "")
set(index 0)
foreach(file IN LISTS FILES)
  get_filename_component(name "${file}" NAME)
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND body "const unsigned char kText${index}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", {reinterpret_cast<const char*>(kText${index}), sizeof kText${index} - 1}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUT}" "// Made from templates/ by scripts/embed_templates.cmake.
#include \"normjit/codegen/templates.h\"

namespace normjit {
namespace {
${body}const EmbeddedTemplate kTemplates[] = {
${rows}};
}  // namespace

std::span<const EmbeddedTemplate> embedded_templates() noexcept { return kTemplates; }
}  // namespace normjit
")
