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
  if (const auto bytes = bytes_from(variable("NORMJIT_CACHE_MAX_BYTES"))) options.max_cache_bytes = *bytes;
  options.shared_cache = variable("NORMJIT_CACHE_SHARED") == "1";
  options.exact_toolchain = variable("NORMJIT_TOOLCHAIN") == "exact";
  if (const std::string mode = variable("NORMJIT_MODE"); mode == "lazy")
    options.mode = Mode::lazy;
  else if (mode == "cached-only")
    options.mode = Mode::cached_only;
  options.miss_log = variable("NORMJIT_MISS_LOG");
  options.compiler_path = variable("NORMJIT_NVRTC_PATH");
  options.cuda_home = variable("CUDA_HOME");
  if (options.cuda_home.empty()) options.cuda_home = variable("CUDA_PATH");
  options.template_directory = variable("NORMJIT_TEMPLATE_DIR");
  if (const auto level = log_level(variable("NORMJIT_LOG"))) options.log = default_log(*level);
  return options;
}

}  // namespace normjit
