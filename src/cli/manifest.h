// SPDX-License-Identifier: Apache-2.0
// Lists of specs to prebuild, in files.
//
// A manifest is one JSON document
//   {"normjit_manifest": 1, "specs": ["layernorm/cols=64/f32/eps=1e-05", {"spec": "...", "comment": "why"}]}
// or its list alone, [...]; or lines, each an entry of that list in JSON or a spec without quotes. Blank
// lines are skipped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "normjit/result.h"
#include "normjit/spec.h"

namespace normjit::cli {

// The specs of a manifest text, canonical, in order. BadArgument for malformed JSON, an unknown or repeated
// key or a bad spec; the message names the file and the entry or line.
Result<std::vector<NormSpec>> parse_manifest(std::string_view text, const std::string& file_name);

// The same of a file; "-" is standard input.
Result<std::vector<NormSpec>> read_manifest(const std::string& path);

// The specs without repetition, in the order of their first appearance.
std::vector<NormSpec> distinct(const std::vector<NormSpec>& specs);

}  // namespace normjit::cli
