// SPDX-License-Identifier: Apache-2.0
#include "cli/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "cli/commands.h"
#include "normjit/base/text.h"
#include "verify/foreign_text.h"
#include "verify/text_file.h"

namespace normjit::cli {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kBlanks = " \t\r\n";
constexpr int kDeepest = 16;

Error bad(const std::string& where, const std::string& reason) {
  return {Code::BadArgument, where + ": " + reason};
}

// A JSON text; discarded if it is none. Also, with `mistake`, where it nests deeply or gives a key twice in
// one object, of which nlohmann keeps the last.
Json parse_json(std::string_view text, std::string& mistake) {
  std::vector<std::set<std::string>> keys;  // of each object that is open
  const auto check = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second)
      mistake = "the key \"" + oracle::shown(parsed.get_ref<const std::string&>()) + "\" is given twice";
    if (depth > kDeepest) mistake = "lists and objects are nested too deeply";
    if (!mistake.empty()) throw Exception({Code::BadArgument, mistake});  // stops the parser
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check, /*allow_exceptions=*/false);
  } catch (const Exception&) {
    return Json(Json::value_t::discarded);
  }
}

// A spec string, or an object that holds one.
Result<NormSpec> parse_entry(const Json& entry, const std::string& where) {
  const Json* text = &entry;
  if (entry.is_object()) {
    for (const auto& [key, value] : entry.items()) {
      if (key != "spec" && key != "comment")
        return bad(where, "unknown key \"" + oracle::shown(key) + "\"; known are spec, comment");
    }
    if (!entry.contains("spec")) return bad(where, "an object without \"spec\"");
    text = &entry.at("spec");
  }
  if (!text->is_string()) return bad(where, "must be a spec string or an object with \"spec\"");
  Result<NormSpec> spec = spec_from(text->get_ref<const std::string&>());
  if (!spec) return bad(where, spec.error().message);
  return spec;
}

Result<std::vector<NormSpec>> parse_entries(const Json& list, const std::string& file_name) {
  std::vector<NormSpec> specs;
  for (const Json& entry : list) {
    const Result<NormSpec> spec =
        parse_entry(entry, file_name + ", entry " + std::to_string(specs.size() + 1));
    if (!spec) return spec.error();
    specs.push_back(*spec);
  }
  return specs;
}

Result<std::vector<NormSpec>> parse_document(const Json& document, const std::string& file_name) {
  for (const auto& [key, value] : document.items()) {
    if (key != "normjit_manifest" && key != "specs" && key != "comment") {
      return bad(file_name,
                 "unknown key \"" + oracle::shown(key) + "\"; known are normjit_manifest, specs, comment");
    }
  }
  if (document.at("normjit_manifest") != 1) {
    return bad(file_name,
               "\"normjit_manifest\" must be 1, the version of the format that this normjit reads");
  }
  if (!document.contains("specs") || !document.at("specs").is_array()) {
    return bad(file_name, "\"specs\" must be a list");
  }
  return parse_entries(document.at("specs"), file_name);
}

// A line of JSON, or a spec as it is.
Result<NormSpec> parse_line(std::string_view line, bool is_last, const std::string& where) {
  if (std::string_view("{[\"").find(line.front()) == std::string_view::npos) {
    Result<NormSpec> spec = spec_from(line);
    if (!spec) return bad(where, spec.error().message);
    return spec;
  }
  std::string mistake;
  const Json entry = parse_json(line, mistake);
  if (!mistake.empty()) return bad(where, mistake);
  if (!entry.is_discarded()) return parse_entry(entry, where);
  if (is_last)
    return bad(where,
               "the last line is cut short, as a process leaves it whose disk was full or that was stopped: "
               "remove the line");
  return bad(where, "is neither JSON nor part of a JSON document that begins on line 1");
}

Result<std::vector<NormSpec>> parse_lines(std::string_view text, const std::string& file_name) {
  std::vector<NormSpec> specs;
  int line_number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++line_number;
    const bool is_last = line.data() + line.size() == text.data() + text.size();
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
    if (line.empty()) continue;
    const Result<NormSpec> spec =
        parse_line(line, is_last, file_name + ", line " + std::to_string(line_number));
    if (!spec) return spec.error();
    specs.push_back(*spec);
  }
  return specs;
}

}  // namespace

Result<std::vector<NormSpec>> parse_manifest(std::string_view text, const std::string& file_name) {
  std::string mistake;
  const Json document = parse_json(text, mistake);
  if (document.is_array()) return parse_entries(document, file_name);
  if (document.is_object() && !document.contains("spec")) {
    if (document.contains("normjit_manifest")) return parse_document(document, file_name);
    return bad(file_name, "a manifest begins with {\"normjit_manifest\": 1, \"specs\": [...]}");
  }
  // A document that does not parse is either lines or broken. An opening brace or bracket that the first line
  // does not close means broken, and then the parser's own words help more.
  const std::string_view first =
      split(text.substr(std::min(text.find_first_not_of(kBlanks), text.size())), '\n')[0];
  const bool opens = first.starts_with('{') || first.starts_with('[');
  if (!document.is_discarded() || !opens || Json::accept(first.begin(), first.end()))
    return parse_lines(text, file_name);
  if (!mistake.empty()) return bad(file_name, mistake);
  try {
    [[maybe_unused]] const Json never = Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    mistake = oracle::shown(error.what(), 400);
  }
  return bad(file_name, "is not JSON: " + mistake);
}

Result<std::vector<NormSpec>> read_manifest(const std::string& path) {
  const Result<std::string> text = oracle::read_text(path);
  if (!text) return text.error();
  return parse_manifest(*text, path == "-" ? "standard input" : path);
}

std::vector<NormSpec> distinct(const std::vector<NormSpec>& specs) {
  std::vector<NormSpec> kept;
  std::unordered_set<std::string> seen;
  for (const NormSpec& spec : specs)
    if (seen.insert(to_text(spec)).second) kept.push_back(spec);
  return kept;
}

}  // namespace normjit::cli
