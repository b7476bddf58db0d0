// SPDX-License-Identifier: Apache-2.0
#include "tests/support/layering.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string_view>

namespace normjit::layering {
namespace {

// What a stage may include besides itself: stages, and single headers of stages otherwise closed to it.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"spec", {"base"}},
    {"plan", {"base", "spec"}},
    {"codegen", {"base", "spec", "plan"}},
    {"compiler", {"base"}},
    {"cache", {"base"}},
    {"driver", {"base", "normjit/device.h"}},  // the facts of a device
    {"remote", {"base", "cache"}},
    {"service", {"base", "spec", "plan", "codegen", "compiler", "cache", "driver", "remote"}},
    {"c_api", {"base", "spec", "plan", "service", "normjit/remote.h"}},
    // The executor: launches a rendered text with the driver's configuration. Only the tool and tests have
    // it.
    {"simt", {"base", "normjit/driver/driver.h"}},
    {"plugins", {"base", "normjit/remote.h"}},  // headers only
    {"onnxruntime", {"normjit/c_api.h"}},       // the header only: it opens the library
    {"verify", {"base", "spec"}},  // the float64 oracle of the tool and the tests
    {"cli",
     {"base", "spec", "plan", "codegen", "compiler", "cache", "driver", "remote", "service", "simt",
      "verify"}},
    {"bench",
     {"base", "spec", "plan", "codegen", "compiler", "cache", "driver", "remote", "service", "simt", "verify",
      "cli"}},
};

// The stage of each public header; every other file's stage is its folder.
const std::map<std::string, std::string> kPublicHeaders = {
    {"normjit/arch.h", "base"},         {"normjit/export.h", "base"},     {"normjit/result.h", "base"},
    {"normjit/spec.h", "spec"},         {"normjit/device.h", "plan"},     {"normjit/plan.h", "plan"},
    {"normjit/cache.h", "service"},     {"normjit/normjit.h", "service"}, {"normjit/service.h", "service"},
    {"normjit/telemetry.h", "service"}, {"normjit/c_api.h", "c_api"},     {"normjit/stream.h", "base"},
    {"normjit/tensors.h", "base"},      {"normjit/remote.h", "remote"},
};

// The only places of other people's headers, and of the one template that the host compiles. Else they could
// reach a host that embeds the library. A
// name stands for every header that begins with it, a place for every file whose path does. Public headers
// have none of these.
struct Guarded {
  const char* header;
  std::vector<const char*> places;
};
const Guarded kGuarded[] = {
    {"spdlog/", {"src/normjit/service/default_log.cc"}},
    {"fmt/", {"src/normjit/service/default_log.cc"}},
    {"CLI/", {"src/cli/"}},
    {"nlohmann/", {"src/cli/manifest.cc", "src/bench/startup_command.cc"}},  // reading only
    {"plan_math.cuh", {"src/normjit/plan/footprint.h"}},
    {"hiredis/", {"src/plugins/redis.cc"}},
    {"curl/", {"src/plugins/http.cc"}},
    {"nvrtc", {"src/normjit/compiler/"}},
    {"cuda", {"src/normjit/driver/", "src/cli/"}},
};

// What would keep a kernel's text from serving NVRTC, nvcc and the host alike.
struct Banned {
  const char* name;
  const char* pattern;
};
const Banned kBannedInKernels[] = {
    {"asm", R"(\b(asm|__asm__)\b)"},       {"__shared__", R"(\b__shared__\b)"},
    {"extern \"C\"", R"(\bextern\s*"C")"}, {"#include", R"(^\s*#\s*include\b)"},
    {"#define", R"(^\s*#\s*define\b)"},
};

bool starts_with_any(std::string_view text, const std::vector<const char*>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const char* beginning) { return text.starts_with(beginning); });
}

// "driver" for "normjit/driver/driver.h", "plan" for "normjit/device.h", "cli" for "cli/run.cc".
std::string stage_of(const std::string& header) {
  if (auto row = kPublicHeaders.find(header); row != kPublicHeaders.end()) return row->second;
  const std::string inside =
      header.starts_with("normjit/") ? header.substr(std::string("normjit/").size()) : header;
  return inside.substr(0, inside.find('/'));
}

// The text with its comments blanked out, line for line. (Kernels have no strings to mistake for comments.)
std::string without_comments(std::string text) {
  for (std::size_t at = 0; (at = text.find('/', at)) != std::string::npos; ++at) {
    const std::string_view opening = std::string_view(text).substr(at, 2);
    if (opening != "//" && opening != "/*") continue;
    const std::size_t closing = opening == "//" ? text.find('\n', at) : text.find("*/", at + 2);
    const std::size_t end = closing == std::string::npos ? text.size() : closing + (opening == "//" ? 0 : 2);
    std::replace_if(
        text.begin() + at, text.begin() + end, [](char c) { return c != '\n'; }, ' ');
  }
  return text;
}

}  // namespace

std::set<std::string> public_headers() {
  std::set<std::string> headers;
  for (const auto& [header, stage] : kPublicHeaders) headers.insert(header);
  return headers;
}

std::string objection(const std::string& path, const std::string& header, bool quoted) {
  for (const Guarded& guarded : kGuarded) {
    if (header.starts_with(guarded.header) && !starts_with_any(path, guarded.places)) {
      return "belongs only in " + std::string(guarded.places.front());
    }
  }
  const bool ours = starts_with_any(header, {"normjit/", "simt/", "plugins/", "onnxruntime/", "verify/", "cli/", "bench/"});
  if (!ours) return quoted ? "include our files by their path from src/, others with <>" : "";
  const std::string from = stage_of(path.substr(std::string("src/").size()));
  const std::string to = stage_of(header);
  const auto row = kMayInclude.find(from);
  if (row == kMayInclude.end()) return "the stage " + from + " has no row in kMayInclude";
  if (from == to || row->second.contains(to) || row->second.contains(header)) return "";
  return from + " may not include " + to;
}

std::vector<std::string> check_includes(const File& file) {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  std::vector<std::string> broken;
  std::istringstream lines(file.text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (!std::regex_match(line, match, include)) continue;
    const std::string why = objection(file.path, match[2], match[1] == "\"");
    if (!why.empty()) {
      broken.push_back(file.path + ":" + std::to_string(number) + ": " + match[2].str() + ": " + why);
    }
  }
  return broken;
}

std::vector<std::string> check_kernel(const File& file) {
  std::vector<std::string> broken;
  std::istringstream lines(without_comments(file.text));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    for (const Banned& banned : kBannedInKernels) {
      if (std::regex_search(line, std::regex(banned.pattern))) {
        broken.push_back(file.path + ":" + std::to_string(number) + ": " + banned.name +
                         " is not for kernels");
      }
    }
  }
  return broken;
}

std::vector<File> read_files(const std::string& folder, const std::set<std::string>& extensions) {
  const std::filesystem::path root = NORMJIT_SOURCE_DIR;
  std::vector<File> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
    if (!extensions.contains(entry.path().extension().string())) continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    files.push_back({entry.path().lexically_relative(root).generic_string(), text.str()});
  }
  return files;
}

}  // namespace normjit::layering
