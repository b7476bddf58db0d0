// SPDX-License-Identifier: Apache-2.0
// The JSON of reports, which may quote anything; and the stored results that normjit-bench plots.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/plot.h"
#include "normjit/base/json.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;
using Other = nlohmann::ordered_json;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  const Other report = Other::parse(JsonObject().add(input, input).text(), nullptr, false);
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
    fuzz::expect(Json(input).text() == utf8, "texts are written as others write them", utf8);
    fuzz::expect(report.begin().key() == input && *report.begin() == input, "a text reads back", utf8);
  }
  if (double number; size >= sizeof number) {
    std::memcpy(&number, data, sizeof number);
    const Other read = Other::parse(Json(number).text());
    fuzz::expect(std::isfinite(number) ? read == number : read.is_null(), "a number reads back");
  }

  const std::size_t end = input.find('\0');
  const std::string suite(input.substr(0, end)), peers(end == input.npos ? "" : input.substr(end + 1));
  const Result<cli::Plot> plot = cli::plot_of(suite, peers);
  if (!plot)
    fuzz::expect_message(plot.error().message);
  else
    fuzz::expect(!cli::svg_of(*plot).empty(), "a plot can be drawn");
  return 0;
}
