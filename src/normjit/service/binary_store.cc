// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/binary_store.h"

#include <chrono>
#include <new>

#include "normjit/base/text.h"

namespace normjit {
namespace {

// The texts of a kernel's events, which point into it.
struct Names {
  explicit Names(const Identified& kernel)
      : spec(to_text(kernel.spec)), plan(to_text(kernel.plan)), arch(kernel.arch.name()) {}
  Event event(Event::Kind kind, double milliseconds, std::string_view detail) const {
    return {kind, spec, plan, arch, milliseconds, detail};
  }
  const std::string spec, plan, arch;
};

// Ends a lease of the remote store however a compile ends, unless an offer does.
struct GivenUp {
  ~GivenUp() {
    if (remote != nullptr) remote->give_up(identity);
  }
  Remote* remote;
  const std::string& identity;
};

}  // namespace

BinaryStore::BinaryStore(std::shared_ptr<Compiler> compiler, std::unique_ptr<Cache> cache,
                         std::unique_ptr<Remote> remote, std::string template_directory, bool exact_toolchain,
                         std::shared_ptr<Meter> meter, std::unique_ptr<RemotePack> pack)
    : compiler_(std::move(compiler)),
      cache_(std::move(cache)),
      pack_(std::move(pack)),
      remote_(std::move(remote)),
      template_directory_(std::move(template_directory)),
      exact_toolchain_(exact_toolchain),
      meter_(std::move(meter)) {
  if (pack_ && !cache_->settings().directory.empty()) cache_->add_layer(pack_->layer());
}

Result<Identified> BinaryStore::identify(const NormSpec& spec, const Plan& plan, Arch of_device) const {
  const Arch arch = target_of(plan, spec, of_device);
  auto source = draft(spec, plan, arch, template_directory_);
  if (!source) return source.error();
  Identified kernel{source_spec(plan, spec), plan, arch, {}, {}, {}};
  kernel.identity =
      concat({"source=", source->digest(), " arch=", arch.name(), " options=", semantic_options(arch)});
  kernel.id = entry_id(kernel.identity);
  kernel.draft = *std::move(source);
  return kernel;
}

// Without a compiler there is none to replace it.
bool BinaryStore::is_outdated(const Entry& entry) const {
  if (!exact_toolchain_) return false;
  const auto compiler = compiler_->facts();
  return compiler && entry.fact("toolchain") != compiler->toolchain();
}

Cache::Look BinaryStore::look(const Identified& kernel) const {
  return cache_->look(kernel.identity, [this](const Entry& entry) { return !is_outdated(entry); });
}

bool BinaryStore::has(const Identified& kernel) const {
  const Lookup lookup = look(kernel).lookup;
  return lookup.kind == Lookup::Kind::entry && !is_outdated(lookup.entry);
}

std::optional<StoredBinary> BinaryStore::find(const Identified& kernel,
                                              const std::optional<std::string>& refused) const {
  const auto accepts = [&](const Entry& entry) {
    return (!refused || entry.body != *refused) && !is_outdated(entry);
  };
  const auto damaged = [&](std::string_view what) {
    meter_->tell(Names(kernel).event(Event::Kind::damaged, 0, what));
  };
  auto found = cache_->find(kernel.identity, accepts, damaged);
  if (!found) return {};
  constexpr Origin kOrigins[] = {Origin::memory, Origin::disk, Origin::layer, Origin::embedded};
  const Origin origin = kOrigins[static_cast<int>(found->place)];
  meter_->found(origin);
  return StoredBinary{std::move(found->entry.body), origin, found->kept_on_disk};
}

Result<StoredBinary> BinaryStore::make(const Identified& kernel, const Making& making) {
  return compiles_.run({kernel.identity, making.refused.has_value()}, [&]() -> Result<StoredBinary> {
    const KeyLock lock = this->lock(kernel);
    if (auto binary = find_again(kernel, making.refused)) return *std::move(binary);
    GivenUp lease{making.refused ? nullptr : remote_.get(), kernel.identity};
    if (lease.remote != nullptr)
      if (auto binary = ask(kernel, /*leases=*/true)) return *std::move(binary);
    if (making.before_compile) making.before_compile();
    auto compiled = compile(kernel, making);
    if (compiled) lease.remote = nullptr;  // it has been offered
    return compiled;
  });
}

KeyLock BinaryStore::lock(const Identified& kernel) const {
  KeyLock lock =
      cache_->lock(kernel.identity, [&] { meter_->begin(Names(kernel).event(Event::Kind::waiting, 0, {})); });
  if (const std::chrono::duration<double, std::milli> waited = lock.waited(); waited.count() > 0)
    meter_->waited(Names(kernel).event(Event::Kind::waited, waited.count(), {}));
  return lock;
}

std::optional<StoredBinary> BinaryStore::find_again(const Identified& kernel,
                                                    const std::optional<std::string>& refused) {
  if (!pack_) return find(kernel, refused);
  const std::uint64_t before = pack_->changes();
  auto binary = find(kernel, refused);
  if (binary) return binary;
  pack_->refresh();
  return pack_->changes() == before ? std::nullopt : find(kernel, refused);
}

std::optional<StoredBinary> BinaryStore::fetch(const Identified& kernel) {
  const bool may_have = remote_ && remote_->may_have(kernel.identity);
  if (!may_have && !(pack_ && pack_->is_due())) return {};
  const KeyLock lock = this->lock(kernel);
  if (auto binary = find_again(kernel)) return binary;
  if (!may_have) return {};
  return ask(kernel, /*leases=*/false);
}

// An entry of another compiler is as good as absent where only this one's count.
std::optional<StoredBinary> BinaryStore::ask(const Identified& kernel, bool leases) {
  using Kind = Remote::Answer::Kind;
  const Names names(kernel);
  const std::string store = remote_->shown();
  bool begun = false;
  const auto begin = [&] {
    begun = true;
    meter_->begin(names.event(Event::Kind::asking, 0, store));
  };
  Remote::Answer answer =
      leases ? remote_->look_or_lease(kernel.identity, begin) : remote_->look(kernel.identity, begin);
  if (answer.kind == Kind::entry && is_outdated(answer.entry)) answer.kind = Kind::absent;
  if (begun) meter_->asked(answer, names.event(Event::Kind::asking, 0, store));
  if (answer.kind != Kind::entry) return {};
  const bool stored = cache_->take_over(answer.entry, /*replace=*/exact_toolchain_);
  return StoredBinary{std::move(answer.entry.body), Origin::remote, stored};
}

Result<StoredBinary> BinaryStore::get(const Identified& kernel) {
  auto binary = find(kernel);
  if (!binary) return make(kernel, {.wait_to_offer = true});
  if (remote_ && remote_->takes_offers())
    if (remote_->look(kernel.identity).kind == Remote::Answer::Kind::absent)
      if (const Cache::Look local = look(kernel); local.lookup.kind == Lookup::Kind::entry)
        offer(kernel, local.lookup.entry, /*wait=*/true);
  return *std::move(binary);
}

// Best effort, also where memory is exhausted: the code has been made.
void BinaryStore::offer(const Identified& kernel, const Entry& entry, bool wait) noexcept try {
  if (!remote_) return;
  const auto names = std::make_shared<const Names>(kernel);
  remote_->offer(
      entry,
      [meter = meter_, names](const Remote::Sent& sent) { meter->sent(sent, names->event({}, 0, {})); },
      wait);
} catch (const std::bad_alloc&) {
  remote_->give_up(kernel.identity);
}

Result<StoredBinary> BinaryStore::compile(const Identified& kernel, const Making& making) {
  const Names names(kernel);
  meter_->begin(names.event(Event::Kind::compiling, 0, {}));
  const Stopwatch watch;
  auto binary = compiler_->compile(kernel.draft.source(), kernel.arch);
  const double milliseconds = watch.milliseconds();
  if (!binary) {
    meter_->compile_failed(names.event(Event::Kind::compile_failed, milliseconds, binary.error().message));
    return binary.error();
  }
  meter_->compiled(names.event(Event::Kind::compiled, milliseconds, {}));
  Entry entry{kernel.identity,
              {{"spec", names.spec},
               {"plan", names.plan},
               {"arch", names.arch},
               {"kernel", kernel.draft.kernel},
               {"toolchain", binary->toolchain},
               {"code", binary->ptx ? "ptx" : "cubin"},
               {"target", binary->target},
               {"registers", shortest(binary->registers)},
               {"spill_bytes", shortest(binary->spill_bytes)},
               {"shared_bytes", shortest(binary->shared_bytes)}},
              binary->code};
  const bool stored =
      cache_->store(entry, /*replace=*/exact_toolchain_ || making.refused,
                    [&](std::string_view why) { meter_->tell(names.event(Event::Kind::unstored, 0, why)); });
  if (!making.refused) offer(kernel, entry, making.wait_to_offer);
  return StoredBinary{std::move(binary->code), Origin::compiled, stored};
}

}  // namespace normjit
