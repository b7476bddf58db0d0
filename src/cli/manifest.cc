#include "cli/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/text_file.h"
#include "normjit/base/text.h"

namespace normjit::cli {
namespace {

using Json = nlohmann::json;

Error bad(const std::string& where, const std::string& reason) {
  return {Code::BadArgument, where + ": " + reason};
}

// A spec string, or an object that holds one.
Result<NormSpec> parse_entry(const Json& entry, const std::string& where) {
  const Json* text = &entry;
  if (entry.is_object()) {
    for (const auto& [key, value] : entry.items()) {
      if (key != "spec" && key != "comment")
        return bad(where, "unknown key \"" + key + "\"; known are spec, comment");
    }
    if (!entry.contains("spec")) return bad(where, "an object without \"spec\"");
    text = &entry.at("spec");
  }
  if (!text->is_string()) return bad(where, "must be a spec string or an object with \"spec\"");
  Result<NormSpec> spec = parse_spec(text->get_ref<const std::string&>());
  if (!spec) return bad(where, spec.error().message);
  return spec;
}

Result<std::vector<NormSpec>> parse_document(const Json& document, const std::string& file_name) {
  for (const auto& [key, value] : document.items()) {
    if (key != "normjit_manifest" && key != "specs" && key != "comment") {
      return bad(file_name, "unknown key \"" + key + "\"; known are normjit_manifest, specs, comment");
    }
  }
  if (document.at("normjit_manifest") != 1) {
    return bad(file_name,
               "\"normjit_manifest\" must be 1, the version of the format that this normjit reads");
  }
  if (!document.contains("specs") || !document.at("specs").is_array()) {
    return bad(file_name, "\"specs\" must be a list");
  }
  std::vector<NormSpec> specs;
  for (const Json& entry : document.at("specs")) {
    const Result<NormSpec> spec =
        parse_entry(entry, file_name + ", entry " + std::to_string(specs.size() + 1));
    if (!spec) return spec.error();
    specs.push_back(*spec);
  }
  return specs;
}

Result<std::vector<NormSpec>> parse_lines(std::string_view text, const std::string& file_name) {
  std::vector<NormSpec> specs;
  int line_number = 0;
  for (const std::string_view line : split(text, '\n')) {
    const std::string where = file_name + ", line " + std::to_string(++line_number);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json entry = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (entry.is_discarded() && line.data() + line.size() == text.data() + text.size())
      return bad(
          where,
          "the last line is cut short, as a process leaves it whose disk was full or that was stopped: "
          "remove the line");
    if (entry.is_discarded())
      return bad(where, "is neither JSON nor part of a JSON document that begins on line 1");
    const Result<NormSpec> spec = parse_entry(entry, where);
    if (!spec) return spec.error();
    specs.push_back(*spec);
  }
  return specs;
}

}  // namespace

Result<std::vector<NormSpec>> parse_manifest(std::string_view text, const std::string& file_name) {
  const Json document = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (document.is_object() && !document.contains("spec")) {
    if (document.contains("normjit_manifest")) return parse_document(document, file_name);
    return bad(file_name, "a manifest begins with {\"normjit_manifest\": 1, \"specs\": [...]}");
  }
  // A document that does not parse is either JSON lines or broken. An opening brace that the first line does
  // not close means broken, and then the parser's own words help more.
  const std::string_view first =
      split(text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size())), '\n')[0];
  if (document.is_discarded() && !first.empty() && !Json::accept(first.begin(), first.end())) {
    try {
      [[maybe_unused]] const Json never = Json::parse(text.begin(), text.end());
    } catch (const Json::exception& error) {
      return bad(file_name, std::string("is not JSON: ") + error.what());
    }
  }
  return parse_lines(text, file_name);
}

Result<std::vector<NormSpec>> read_manifest(const std::string& path) {
  const Result<std::string> text = read_text(path);
  if (!text) return text.error();
  return parse_manifest(*text, path == "-" ? "standard input" : path);
}

std::vector<NormSpec> distinct(const std::vector<NormSpec>& specs) {
  std::vector<NormSpec> kept;
  for (const NormSpec& spec : specs)
    if (std::find(kept.begin(), kept.end(), spec) == kept.end()) kept.push_back(spec);
  return kept;
}

}  // namespace normjit::cli
