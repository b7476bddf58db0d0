// SPDX-License-Identifier: Apache-2.0
// Manifests: a JSON document, a JSON list, or lines.
#include "cli/manifest.h"
#include "normjit/spec.h"
#include "tests/fuzz/fuzz.h"

using namespace normjit;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Result<std::vector<NormSpec>> specs = cli::parse_manifest(fuzz::text_of(data, size), "m.json");
  if (!specs) {
    fuzz::expect_message(specs.error().message);
    return 0;
  }
  // The same list in the forms that a manifest can have.
  std::string list, lines;
  for (const NormSpec& spec : *specs) {
    list += (list.empty() ? "\"" : ", \"") + to_text(spec) + "\"";
    lines += to_text(spec) + "\n";
  }
  list = "[" + list + "]";
  for (const std::string& text : {list, lines, "{\"normjit_manifest\": 1, \"specs\": " + list + "}"}) {
    const Result<std::vector<NormSpec>> again = cli::parse_manifest(text, "m.json");
    fuzz::expect(again.ok() && *again == *specs, "the same specs are read from", text);
  }
  return 0;
}
