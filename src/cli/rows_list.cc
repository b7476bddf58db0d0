#include "cli/rows_list.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "normjit/base/text.h"

namespace normjit::cli {

std::vector<std::int64_t> parse_rows_list(const std::string& list) {
  std::vector<std::int64_t> rows;
  for (const std::string_view word : split(list, ',')) {
    const std::optional<std::int64_t> value = number<std::int64_t>(word);
    if (!value || *value < 1) {
      throw Exception(
          {Code::BadArgument, "--rows is '" + list + "'; it must be numbers from 1 on, as in 1,16384"});
    }
    rows.push_back(*value);
  }
  return rows;
}

std::int64_t default_rows(const NormSpec& spec) noexcept {
  return std::max<std::int64_t>(1, (std::int64_t{256} << 20) / (spec.columns * size_of(spec.input)));
}

}  // namespace normjit::cli
