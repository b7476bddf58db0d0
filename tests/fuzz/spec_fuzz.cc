// SPDX-License-Identifier: Apache-2.0
// Spec texts, as users write them.
#include "cli/commands.h"
#include "normjit/spec.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  const Result<NormSpec> spec = parse_spec(input);
  const Result<NormSpec> shown = cli::spec_from(input);  // the same, with a message for a terminal
  fuzz::expect(spec.ok() == shown.ok(), "the tool takes the same specs");
  if (!spec) {
    fuzz::expect_message(shown.error().message);
    return 0;
  }
  const std::string text = to_text(*spec);
  fuzz::expect(validate(*spec).ok(), "a parsed spec is valid", text);
  fuzz::expect(canonical(*spec) == *spec, "a parsed spec is canonical", text);
  fuzz::expect(fuzz::is_one_line(text) && text.size() <= 250, "a canonical text is short", text);
  const Result<NormSpec> again = parse_spec(text);
  fuzz::expect(again.ok() && *again == *spec, "a canonical text reads back", text);
  return 0;
}
