// SPDX-License-Identifier: Apache-2.0
#include "normjit/arch.h"

#include "normjit/base/text.h"

namespace normjit {
namespace {
constexpr std::string_view kPrefix = "sm_";
}

std::string Arch::name() const {
  std::string text = concat({kPrefix, shortest(number)});
  if (suffix != '\0') text += suffix;
  return text;
}

Result<Arch> Arch::parse(std::string_view text) {
  std::string_view rest = text;
  Arch arch;
  if (rest.starts_with(kPrefix)) {
    rest.remove_prefix(kPrefix.size());
    if (rest.ends_with('a') || rest.ends_with('f')) {
      arch.suffix = rest.back();
      rest.remove_suffix(1);
    }
    arch.number = normjit::number<int>(rest).value_or(0);
    // Two or three digits, without a leading zero.
    if (arch.number >= 10 && arch.number <= 999 && rest == shortest(arch.number)) return arch;
  }
  return Error{
      Code::UnknownArch,
      concat({"'", text,
              "' is not the name of an architecture. Write sm_ and the compute capability without its point: "
              "sm_80, sm_90, sm_120."})};
}

}  // namespace normjit
