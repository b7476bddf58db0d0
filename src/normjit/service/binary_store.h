// SPDX-License-Identifier: Apache-2.0
// From spec, plan and architecture to machine code: out of the cache, or generated and compiled.
#pragma once

#include <compare>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "normjit/cache/cache.h"
#include "normjit/codegen/generator.h"
#include "normjit/compiler/compiler.h"
#include "normjit/plan.h"
#include "normjit/remote/remote.h"
#include "normjit/remote/remote_pack.h"
#include "normjit/service.h"
#include "normjit/service/meter.h"
#include "normjit/service/single_flight.h"

namespace normjit {

// A source with the identity under which its machine code is cached: the digest of its files, the options
// that decide the code, and the full architecture. Nothing else.
struct Identified {
  NormSpec spec;
  Plan plan;
  Arch arch;
  Draft draft;
  std::string identity;
  std::string id;  // of the cache entry
};

struct StoredBinary {
  std::string code;
  Origin origin = Origin::compiled;
  bool stored = true;  // false: only the memory of this process has it
};

// How code is made that no cache of this machine has.
struct Making {
  std::optional<std::string> refused = {};    // code that the driver did not load, and that does not count
  std::function<void()> before_compile = {};  // called if nobody else has the code either
  bool wait_to_offer = false;  // else what the remote store does not take in time is not offered
};

// Thread-safe. Concurrent calls for one kernel share one compile, those of other processes on the same cache
// directory included.
class BinaryStore {
 public:
  // With `exact_toolchain` only entries made by the compiler's own version are accepted. `remote` and `pack`
  // may be null.
  BinaryStore(std::shared_ptr<Compiler> compiler, std::unique_ptr<Cache> cache,
              std::unique_ptr<Remote> remote, std::string template_directory, bool exact_toolchain,
              std::shared_ptr<Meter> meter, std::unique_ptr<RemotePack> pack = nullptr);

  Result<Identified> identify(const NormSpec& spec, const Plan& plan, Arch of_device) const;
  // Whether another compiler made the entry, and this one has to replace it.
  bool is_outdated(const Entry& entry) const;
  // Where find() would find the code, or what stands there. Changes nothing.
  Cache::Look look(const Identified& kernel) const;
  // Whether find() would find it.
  bool has(const Identified& kernel) const;

  // The code, out of the first tier of the cache that has it; nothing where none does. `refused`: code that
  // the driver did not load, and that does not count.
  std::optional<StoredBinary> find(const Identified& kernel,
                                   const std::optional<std::string>& refused = {}) const;
  // Compiles the code, for callers of find() that found nothing. Holds the kernel's lock among processes, and
  // looks once more behind it: another process or thread may have compiled the code since. Then it renews the
  // remote pack, and asks the remote store, unless the driver has refused code.
  Result<StoredBinary> make(const Identified& kernel, const Making& making = {});
  // The code, out of the remote pack or store, for callers of find() that found nothing.
  std::optional<StoredBinary> fetch(const Identified& kernel);
  // For a prebuild: find(), else make(). What it finds is offered to the remote store, too.
  Result<StoredBinary> get(const Identified& kernel);

  Cache& cache() const { return *cache_; }
  RemotePack* remote_pack() const { return pack_.get(); }  // null: none is configured
  Remote* remote() const { return remote_.get(); }         // likewise

 private:
  // A compile that callers share. Code that is compiled anew because the driver refused it is another one.
  struct Compile {
    std::string identity;
    bool anew;
    auto operator<=>(const Compile&) const = default;
  };
  // The kernel's lock among processes. A wait for it is told.
  KeyLock lock(const Identified& kernel) const;
  // Out of what other processes, and the remote pack, have brought since this one looked.
  std::optional<StoredBinary> find_again(const Identified& kernel,
                                         const std::optional<std::string>& refused = {});
  Result<StoredBinary> compile(const Identified& kernel, const Making& making);
  // Asks the remote store for the kernel, and tells the meter. `leases`: the caller compiles the kernel if
  // the store does not have it.
  std::optional<StoredBinary> ask(const Identified& kernel, bool leases);
  void offer(const Identified& kernel, const Entry& entry, bool wait) noexcept;

  const std::shared_ptr<Compiler> compiler_;
  const std::unique_ptr<Cache> cache_;
  const std::unique_ptr<RemotePack> pack_;
  const std::unique_ptr<Remote> remote_;
  const std::string template_directory_;
  const bool exact_toolchain_;
  const std::shared_ptr<Meter> meter_;
  SingleFlight<Compile, StoredBinary> compiles_;
};

}  // namespace normjit
