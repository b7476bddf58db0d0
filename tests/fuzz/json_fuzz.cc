// SPDX-License-Identifier: Apache-2.0
// The JSON of reports, which may quote anything.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "normjit/base/json.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;
using Other = nlohmann::ordered_json;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  const Other report = Other::parse(Json{{input, input}}.text(), nullptr, false);
  fuzz::expect(report.is_object() && report.size() == 1, "a report is JSON");
  // Another writer; it refuses what is not UTF-8, of which a report keeps what it can.
  const auto utf8 = [&] {
    try {
      return Other(std::string(input)).dump(-1, ' ', false, Other::error_handler_t::strict);
    } catch (const Other::exception&) {
      return std::string();
    }
  }();
  if (!utf8.empty()) {
    fuzz::expect(Json(input).line() == utf8, "texts are written as others write them", utf8);
    fuzz::expect(report.begin().key() == input && *report.begin() == input, "a text reads back", utf8);
  }
  if (double number; size >= sizeof number) {
    std::memcpy(&number, data, sizeof number);
    const Other read = Other::parse(Json(number).text());
    fuzz::expect(std::isfinite(number) ? read == number
                 : std::isnan(number)  ? read.is_null()
                                       : read == (number > 0 ? "inf" : "-inf"),
                 "a number reads back");
  }
  return 0;
}
