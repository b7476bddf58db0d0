#include "normjit/arch.h"

#include <algorithm>

#include "normjit/base/text.h"

namespace normjit {
namespace {

constexpr std::string_view kPrefix = "sm_";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

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
    const bool plain = (rest.size() == 2 || rest.size() == 3) && std::ranges::all_of(rest, is_digit);
    if (plain && rest.front() != '0') {
      arch.number = *normjit::number<int>(rest);
      return arch;
    }
  }
  return Error{
      Code::UnknownArch,
      concat({"'", text,
              "' is not the name of an architecture. Write sm_ and the compute capability without its ",
              "point, then the suffix a or f if there is one: sm_80, sm_90, sm_90a, sm_120f."})};
}

}  // namespace normjit
