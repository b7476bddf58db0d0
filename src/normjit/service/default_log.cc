// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/default_log.h"

#ifdef NORMJIT_WITH_SPDLOG

#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/spdlog.h>

#include "normjit/base/fork.h"

namespace normjit {
namespace {

// Replaces spdlog's own mutex, which a forked child could find locked. All services share it, so that their
// lines do not mix. Never destroyed: threads may log until the process ends.
ForkMutex& g_console = *new ForkMutex;

struct Console {
  using mutex_t = ForkMutex;
  static mutex_t& mutex() { return g_console; }
};
using Sink = spdlog::sinks::ansicolor_stderr_sink<Console>;

}  // namespace

LogCallback default_log(LogLevel threshold) {
  // Not registered with spdlog: the host's loggers are unaffected.
  auto logger = std::make_shared<spdlog::logger>("normjit", std::make_shared<Sink>());
  logger->set_pattern("%n %^%l%$: %v");
  logger->set_level(spdlog::level::debug);
  return [logger, threshold](LogLevel level, std::string_view text) {
    constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                     spdlog::level::warn, spdlog::level::err};
    if (level >= threshold)
      logger->log(kLevels[static_cast<int>(level)], spdlog::string_view_t(text.data(), text.size()));
  };
}

}  // namespace normjit

#else

namespace normjit {

LogCallback default_log(LogLevel) { return {}; }

}  // namespace normjit

#endif
