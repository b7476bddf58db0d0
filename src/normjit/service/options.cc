// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "normjit/base/text.h"
#include "normjit/service.h"
#include "normjit/service/default_log.h"

namespace normjit {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string cache_directory() {
  if (const std::string own = variable("NORMJIT_CACHE_DIR"); !own.empty()) return own;
  if (const std::string shared = variable("XDG_CACHE_HOME"); !shared.empty()) return shared + "/normjit";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/normjit";
  return "";
}

std::optional<bool> one_or_zero(std::string_view value) {
  if (value != "1" && value != "0") return std::nullopt;
  return value == "1";
}

std::optional<bool> exact(std::string_view value) {
  if (value != "exact") return std::nullopt;
  return true;
}

std::optional<Mode> mode_from(std::string_view value) {
  for (const Mode mode : {Mode::eager, Mode::lazy, Mode::cached_only})
    if (value == name(mode)) return mode;
  return std::nullopt;
}

// An empty callback for "off".
std::optional<LogCallback> log_from(std::string_view value) {
  if (value == "off") return LogCallback();
  const auto level = log_level(value);
  if (!level) return std::nullopt;
  return default_log(*level);
}

}  // namespace

std::optional<LogLevel> log_level(std::string_view name) noexcept {
  constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  return std::nullopt;
}

std::string_view name(Mode mode) noexcept {
  constexpr std::string_view kNames[] = {"eager", "lazy", "cached-only"};
  return kNames[static_cast<int>(mode)];
}

Options Options::from_environment() {
  Options options;
  options.cache_directory = normjit::cache_directory();
  const std::string layers = variable("NORMJIT_LAYERS");
  for (const std::string_view path : split(layers, ':'))
    if (!path.empty()) options.layers.emplace_back(path);
  const auto understood = [&](const char* name, const char* allowed, const auto& parse) {
    const std::string value = variable(name);
    const auto known = parse(value);
    if (!known && !value.empty())
      options.warnings.push_back(
          concat({name, " is '", value, "', and may be ", allowed, ": it is ignored"}));
    return known;
  };
  options.max_cache_bytes =
      understood("NORMJIT_CACHE_MAX_BYTES", "a number of bytes, as 256M, or 0 for any size", bytes_from)
          .value_or(options.max_cache_bytes);
  options.shared_cache = understood("NORMJIT_CACHE_SHARED", "1 or 0", one_or_zero).value_or(false);
  options.exact_toolchain = understood("NORMJIT_TOOLCHAIN", "exact", exact).value_or(false);
  options.remote = variable("NORMJIT_REMOTE");
  options.remote_pack = variable("NORMJIT_REMOTE_PACK");
  options.remote_unsigned = understood("NORMJIT_REMOTE_UNSIGNED", "1 or 0", one_or_zero).value_or(false);
  options.mode = understood("NORMJIT_MODE", "eager, lazy or cached-only", mode_from).value_or(options.mode);
  options.batch_invariant = understood("NORMJIT_BATCH_INVARIANT", "1 or 0", one_or_zero).value_or(false);
  options.miss_log = variable("NORMJIT_MISS_LOG");
  options.compiler_path = variable("NORMJIT_NVRTC_PATH");
  options.cuda_home = variable("CUDA_HOME");
  if (options.cuda_home.empty()) options.cuda_home = variable("CUDA_PATH");
  options.template_directory = variable("NORMJIT_TEMPLATE_DIR");
  options.trust = words_of(variable("NORMJIT_TRUST"));
  options.sign_key = variable("NORMJIT_SIGN_KEY");
  if (const auto log = understood("NORMJIT_LOG", "debug, info, warn, error or off", log_from))
    options.log = *log;
  return options;
}

}  // namespace normjit
