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

bool BinaryStore::find(const Identified& kernel, StoredBinary& binary) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto kept = unstored_.find(kernel.identity); kept != unstored_.end()) {
      binary = {kept->second, Origin::memory, false};
      return true;
    }
  }
  Entry entry;
  if (!cache_->find(kernel.identity, entry)) return false;
  binary = {std::move(entry.body), Origin::disk, true};
  return true;
}

bool BinaryStore::has(const Identified& kernel) {
  StoredBinary binary;
  return find(kernel, binary);
}

Result<StoredBinary> BinaryStore::get(const Identified& kernel) {
  return flights_.run(kernel.identity, [&]() -> Result<StoredBinary> {
    StoredBinary binary;
    if (find(kernel, binary)) return binary;
    return compile(kernel, false);
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
  if (!stored) {
    const std::lock_guard lock(mutex_);
    unstored_[kernel.identity] = binary->code;
  }
  return StoredBinary{std::move(binary->code), Origin::compiled, stored};
}

}  // namespace normjit
