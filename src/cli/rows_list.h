// The numbers of rows that bench and tune measure with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "normjit/spec.h"

namespace normjit::cli {

// The value of --rows, "1,16384". Throws normjit::Exception, BadArgument, unless it is numbers from 1 on.
std::vector<std::int64_t> parse_rows_list(const std::string& list);

// As many rows as make x 256 MiB, which is far more than the caches hold.
std::int64_t default_rows(const NormSpec& spec) noexcept;

}  // namespace normjit::cli
