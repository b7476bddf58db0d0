#include "normjit/compiler/ptxas_log.h"

#include <optional>

#include "normjit/base/text.h"

// The log, whose layout has not changed from CUDA 12.0 to 13.0:
//   ptxas info    : Compiling entry function 'k' for 'sm_90'
//   ptxas info    : Function properties for k
//   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//   ptxas info    : Used 16 registers, used 1 barriers, 1024 bytes smem
namespace normjit {
namespace {

// The number before `unit`: 1024 for " bytes smem" in the last line above.
std::optional<int> number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return std::nullopt;
  const std::size_t space = line.find_last_of(' ', end - 1);
  const std::size_t start = space == std::string_view::npos ? 0 : space + 1;
  return number<int>(line.substr(start, end - start));
}

}  // namespace

PtxasFacts parse_ptxas_log(std::string_view log, std::string_view kernel) {
  PtxasFacts facts;
  const std::string quoted = concat({"'", kernel, "'"});
  bool ours = false;
  for (std::string_view line : split(log, '\n')) {
    if (line.find("Compiling entry function") != std::string_view::npos) {
      ours = line.find(quoted) != std::string_view::npos;
    }
    if (!ours) continue;
    const auto stores = number_before(line, " bytes spill stores");
    const auto loads = number_before(line, " bytes spill loads");
    if (stores && loads)
      facts.spill_bytes = (facts.spill_bytes < 0 ? 0 : facts.spill_bytes) + *stores + *loads;
    if (const auto registers = number_before(line, " registers")) {
      facts.registers = *registers;
      facts.shared_bytes = number_before(line, " bytes smem").value_or(0);  // missing where there is none
    }
  }
  return facts;
}

}  // namespace normjit
