// SPDX-License-Identifier: Apache-2.0
// The built-in log: lines on stderr through spdlog, which only the shared library and the tool contain.
#pragma once

#include <optional>
#include <string_view>

#include "normjit/service.h"

namespace normjit {

// Logs messages of at least this level. An empty callback in the static library, which cannot hide spdlog's
// symbols from its host: there the host's own callback is the only log.
LogCallback default_log(LogLevel threshold);

// "debug", "info", "warn", "error"; nothing for any other name.
std::optional<LogLevel> log_level(std::string_view name) noexcept;

}  // namespace normjit
