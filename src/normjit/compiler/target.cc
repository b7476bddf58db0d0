#include "normjit/compiler/target.h"

#include "normjit/base/text.h"

namespace normjit {

std::string Target::name() const { return ptx ? concat({"compute_", shortest(arch.number)}) : arch.name(); }

std::optional<Target> choose_target(Arch wanted, const std::vector<Arch>& known) {
  Arch newest;  // of those not newer than `wanted`
  for (Arch arch : known) {
    if (arch.number <= wanted.number && arch.number > newest.number) newest = arch;
  }
  if (newest.number == 0) return std::nullopt;
  if (newest.number == wanted.number) return Target{.arch = wanted};
  return Target{.arch = {.number = newest.number}, .ptx = newest.major() != wanted.major()};
}

}  // namespace normjit
