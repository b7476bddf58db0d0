// Points in time as text.
#pragma once

#include <cstdint>
#include <string>

namespace normjit {

// Seconds since 1970 as "2026-11-21T09:30:00Z".
std::string timestamp(std::int64_t seconds);

}  // namespace normjit
