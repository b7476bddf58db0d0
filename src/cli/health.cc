// SPDX-License-Identifier: Apache-2.0
#include "cli/health.h"

#include "normjit/base/text.h"

namespace normjit::cli {

Result<void> can_prebuild(const Environment& found) {
  if (found.compiler_path.empty()) return Error{Code::NoCompiler, "there is no compiler"};
  if (found.cache_directory.empty() || !found.cache_error.empty())
    return Error{Code::CacheIo, "there is no usable cache directory"};
  return {};
}

Result<void> can_serve(const Environment& found, const Options& settings) {
  if (found.driver_version.empty())
    return Error{Code::NoDriver, concat({"there is no driver: ", found.driver_error})};
  if (found.devices.empty() || !found.driver_error.empty())
    return Error{Code::NoDevice, found.driver_error.empty() ? "there is no GPU" : found.driver_error};
  if (settings.mode != Mode::cached_only) {
    if (!found.compiler_path.empty() || !found.embedded_archs.empty()) return {};
    return Error{Code::NoCompiler, "there is no compiler, and this library has no generic kernels"};
  }
  for (const Environment::Layer& layer : found.layers)
    if (!layer.error.empty())
      return Error{Code::CacheIo, concat({"layer ", layer.path, " cannot be used: ", layer.error})};
  if (found.layers.empty() && found.cache_directory.empty())
    return Error{Code::CacheIo, "this process serves from caches only, and has none"};
  return {};
}

}  // namespace normjit::cli
