// SPDX-License-Identifier: Apache-2.0
// The lists of a command line: architectures, numbers of rows, schedules; and numbers of bytes.
#include "cli/executor.h"
#include "cli/measure.h"
#include "normjit/base/text.h"
#include "normjit/plan/arch_list.h"
#include "tests/fuzz/fuzz.h"
#include "verify/foreign_text.h"

using namespace normjit;

namespace {

// A machine with two GPUs of one kind.
Result<DeviceProfile> native(int ordinal) {
  if (ordinal < 2) return DeviceProfile::of(Arch{90});
  return Error{Code::NoDevice, "there are two GPUs"};
}
Result<std::vector<DeviceProfile>> architectures(std::string_view list) {
  return parse_arch_list(list, native);
}

Result<std::vector<std::int64_t>> rows(std::string_view list) try {
  return cli::parse_rows_list(std::string(list));
} catch (const Exception& error) {
  return Error{error.code(), error.what()};
}

// Elements that text() writes read back. The messages quote the list, of which a terminal gets what shown()
// leaves.
template <class T, class Text>
void read(std::string_view input, Result<std::vector<T>> (*parse)(std::string_view), const Text& text) {
  const Result<std::vector<T>> list = parse(input);
  if (!list) {
    if (const auto shown = parse(oracle::shown(input)); !shown) fuzz::expect_message(shown.error().message);
    return;
  }
  fuzz::expect(!list->empty(), "no list is empty");
  std::string all;
  for (const T& element : *list) all += (all.empty() ? "" : ",") + text(element);
  const Result<std::vector<T>> again = parse(all);
  fuzz::expect(again.ok() && *again == *list, "a list reads back", all);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  read<DeviceProfile>(input, architectures, [](const auto& device) { return device.arch.name(); });
  read<std::int64_t>(input, rows, shortest<std::int64_t>);
  read<std::uint64_t>(input, cli::parse_schedules, shortest<std::uint64_t>);
  if (const std::optional<std::int64_t> bytes = bytes_from(input))
    fuzz::expect(*bytes >= 0 && bytes_from(shortest(*bytes)) == bytes, "a number of bytes reads back");
  return 0;
}
