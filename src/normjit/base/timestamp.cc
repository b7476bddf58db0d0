#include "normjit/base/timestamp.h"

#include <ctime>

namespace normjit {

std::string timestamp(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm utc{};
  if (gmtime_r(&time, &utc) == nullptr) return "?";  // a year beyond int
  char text[64];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

}  // namespace normjit
