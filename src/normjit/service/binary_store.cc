#include "normjit/service/binary_store.h"

#include "normjit/base/digest.h"
#include "normjit/base/text.h"

namespace normjit {

Result<Identified> BinaryStore::identify(const LayerNormSpec& spec, const Plan& plan, Arch of_device) const {
  const Arch arch = target_of(plan, of_device);
  auto source = generate(spec, plan, arch, template_directory_);
  if (!source) return source.error();
  Identified kernel{spec, plan, arch, {}, {}, {}};
  kernel.identity =
      concat({"source=", digest(source->text), " arch=", arch.name(), " options=", semantic_options(arch)});
  kernel.id = entry_id(kernel.identity);
  kernel.source = *std::move(source);
  return kernel;
}

std::optional<StoredBinary> BinaryStore::find(const Identified& kernel, bool& outdated) {
  auto found = cache_->find(kernel.identity);
  if (!found) return {};
  outdated = is_outdated(found->entry);
  if (outdated) return {};
  constexpr Origin kOrigins[] = {Origin::memory, Origin::disk, Origin::layer};
  return StoredBinary{std::move(found->entry.body), kOrigins[static_cast<int>(found->place)],
                      found->kept_on_disk};
}

// Where there is no compiler to compare with, none could make it anew.
bool BinaryStore::is_outdated(const Entry& entry) {
  if (!exact_toolchain_) return false;
  const auto compiler = compiler_->facts();
  if (!compiler) return false;
  return entry.fact("toolchain") != compiler->toolchain();
}

bool BinaryStore::has(const Identified& kernel) {
  const Standing standing = cache_->look(kernel.identity).standing;
  return standing.kind == Standing::Kind::entry && !is_outdated(standing.entry);
}

Result<StoredBinary> BinaryStore::get(const Identified& kernel) {
  return flights_.run(kernel.identity, [&]() -> Result<StoredBinary> {
    bool outdated = false;
    if (auto binary = find(kernel, outdated)) return *std::move(binary);
    const KeyLock alone = cache_->lock(kernel.identity);
    // Another process may have made it since.
    if (auto binary = find(kernel, outdated)) return *std::move(binary);
    return compile(kernel, /*replace=*/outdated);
  });
}

Result<StoredBinary> BinaryStore::replace(const Identified& kernel) {
  return flights_.run(kernel.identity + " again", [&] { return compile(kernel, true); });
}

Result<StoredBinary> BinaryStore::compile(const Identified& kernel, bool replace) {
  auto binary = compiler_->compile(kernel.source, kernel.arch);
  if (!binary) return binary.error();
  Entry entry{kernel.identity,
              {{"spec", to_text(kernel.spec)},
               {"plan", to_text(kernel.plan)},
               {"arch", kernel.arch.name()},
               {"kernel", kernel.source.kernel},
               {"toolchain", binary->toolchain},
               {"code", binary->ptx ? "ptx" : "cubin"},
               {"target", binary->target},
               {"registers", shortest(binary->registers)},
               {"spill_bytes", shortest(binary->spill_bytes)},
               {"shared_bytes", shortest(binary->shared_bytes)}},
              binary->code};
  const bool stored = cache_->store(entry, replace);
  return StoredBinary{std::move(binary->code), Origin::compiled, stored};
}

}  // namespace normjit
