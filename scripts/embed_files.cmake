# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a C++ file in which FUNCTION, declared in HEADER, returns each of FILES with its text as an array (a raw
# string literal has a length limit).
set(body "")
set(rows "")
set(index 0)
foreach(file IN LISTS FILES)
  get_filename_component(name "${file}" NAME)
  if(file MATCHES "/templates/([^/]+/[^/]+)$")  # templates have folders
    set(name "${CMAKE_MATCH_1}")
  endif()
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND body "const unsigned char kText${index}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", {reinterpret_cast<const char*>(kText${index}), sizeof kText${index} - 1}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUT}" "// Made by scripts/embed_files.cmake.
#include \"${HEADER}\"

namespace {
${body}const normjit::EmbeddedFile kFiles[] = {
${rows}};
}  // namespace

std::span<const normjit::EmbeddedFile> ${FUNCTION}() noexcept { return kFiles; }
")
