// SPDX-License-Identifier: Apache-2.0
// Reads the tree's own text for layering_test.cc: which file includes what, and what the kernels are made of.
// The rules are the tables in layering.cc; a new folder under src/ and a new public header need a row there.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace normjit::layering {

struct File {
  std::string path;  // relative to the source tree
  std::string text;
};

// The files below a folder of the source tree that have one of these extensions (".h").
std::vector<File> read_files(const std::string& folder, const std::set<std::string>& extensions);

// The public headers that have a stage, as they are included: "normjit/spec.h".
std::set<std::string> public_headers();

// Why the file at this path may not have this include; empty if it may. `quoted`: "..." rather than <...>.
std::string objection(const std::string& path, const std::string& header, bool quoted);

// One line per broken rule: "src/normjit/spec/spec.cc:3: normjit/plan.h: spec may not include plan".
std::vector<std::string> check_includes(const File& file);

// One line per broken rule: "templates/warp_rows.cu:7: asm is not for kernels".
std::vector<std::string> check_kernel(const File& file);

}  // namespace normjit::layering
