#include "normjit/service/binary_store.h"

#include <optional>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"

namespace normjit {

Result<Identified> BinaryStore::identify(const LayerNormSpec& spec, const Plan& plan, Arch of_device) const {
  const Arch arch = target_of(plan, of_device);
  auto source = generate(spec, plan, arch, template_directory_);
  if (!source) return source.error();
  Identified kernel{source_spec(plan, spec), plan, arch, {}, {}, {}};
  kernel.identity =
      concat({"source=", digest(source->text), " arch=", arch.name(), " options=", semantic_options(arch)});
  kernel.id = entry_id(kernel.identity);
  kernel.source = *std::move(source);
  return kernel;
}

// Where there is no compiler to compare with, none could make it anew.
bool BinaryStore::is_outdated(const Entry& entry) const {
  if (!exact_toolchain_) return false;
  const auto compiler = compiler_->facts();
  return compiler && entry.fact("toolchain") != compiler->toolchain();
}

Cache::Look BinaryStore::look(const Identified& kernel) const {
  return cache_->look(kernel.identity, [this](const Entry& entry) { return !is_outdated(entry); });
}

bool BinaryStore::has(const Identified& kernel) const {
  const Standing standing = look(kernel).standing;
  return standing.kind == Standing::Kind::entry && !is_outdated(standing.entry);
}

Result<StoredBinary> BinaryStore::get(const Identified& kernel, const Missed& missed) {
  return flights_.run(kernel.identity, [&] { return find_or_compile(kernel, nullptr, missed); });
}

Result<StoredBinary> BinaryStore::make(const Identified& kernel) {
  return flights_.run(kernel.identity + " made", [&] { return find_or_compile(kernel, nullptr, {}); });
}

Result<StoredBinary> BinaryStore::replace(const Identified& kernel, const std::string& refused,
                                          const Missed& missed) {
  return flights_.run(kernel.identity + " again", [&] { return find_or_compile(kernel, &refused, missed); });
}

Result<StoredBinary> BinaryStore::find_or_compile(const Identified& kernel, const std::string* refused,
                                                  const Missed& missed) {
  const auto find = [&]() -> std::optional<StoredBinary> {
    auto found = cache_->find(kernel.identity, [&](const Entry& entry) {
      return (!refused || entry.body != *refused) && !is_outdated(entry);
    });
    if (!found) return {};
    constexpr Origin kOrigins[] = {Origin::memory, Origin::disk, Origin::layer, Origin::embedded};
    const Origin origin = kOrigins[static_cast<int>(found->place)];
    meter_->found(origin);
    return StoredBinary{std::move(found->entry.body), origin, found->kept_on_disk};
  };
  if (auto binary = find()) return *std::move(binary);
  if (missed)
    if (auto compiles = missed(kernel); !compiles) return compiles.error();
  const KeyLock alone = cache_->lock(kernel.identity);
  if (auto binary = find()) return *std::move(binary);  // another process has made it since
  return compile(kernel, /*replace=*/exact_toolchain_ || refused);
}

Result<StoredBinary> BinaryStore::compile(const Identified& kernel, bool replace) {
  const Stopwatch watch;
  auto binary = compiler_->compile(kernel.source, kernel.arch);
  const std::string spec = to_text(kernel.spec), plan = to_text(kernel.plan), arch = kernel.arch.name();
  Event event{Event::Kind::compiled, spec, plan, arch, watch.milliseconds(), {}};
  if (!binary) {
    event.kind = Event::Kind::compile_failed;
    event.detail = binary.error().message;
    meter_->compile_failed(event);
    return binary.error();
  }
  meter_->compiled(event);
  Entry entry{kernel.identity,
              {{"spec", spec},
               {"plan", plan},
               {"arch", arch},
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
