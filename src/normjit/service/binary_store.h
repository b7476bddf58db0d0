// From spec, plan and architecture to machine code: out of the cache, or generated and compiled.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "normjit/cache/cache.h"
#include "normjit/codegen/generator.h"
#include "normjit/compiler/compiler.h"
#include "normjit/plan.h"
#include "normjit/service.h"
#include "normjit/service/meter.h"
#include "normjit/service/single_flight.h"

namespace normjit {

// A source with the identity under which its machine code is cached: the digest of the text, the options that
// decide the code, and the full architecture. Nothing else.
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

// Thread-safe. Concurrent requests for one kernel share one compile, those of other processes on the same
// cache directory included.
class BinaryStore {
 public:
  // With `exact_toolchain` only entries are taken whose maker is the compiler's own version.
  BinaryStore(std::shared_ptr<Compiler> compiler, std::unique_ptr<Cache> cache,
              std::string template_directory, bool exact_toolchain, std::shared_ptr<Meter> meter)
      : compiler_(std::move(compiler)),
        cache_(std::move(cache)),
        template_directory_(std::move(template_directory)),
        exact_toolchain_(exact_toolchain),
        meter_(std::move(meter)) {}

  Result<Identified> identify(const NormSpec& spec, const Plan& plan, Arch of_device) const;
  // Whether this compiler has to make an entry anew that another one made.
  bool is_outdated(const Entry& entry) const;
  // Where get would find the code, or what stands there. Changes nothing.
  Cache::Look look(const Identified& kernel) const;
  // Whether get would find it.
  bool has(const Identified& kernel) const;
  // Asked where no tier has a kernel, before it is compiled; an error is what the caller of get gets then.
  using Missed = std::function<Result<void>(const Identified& kernel)>;
  Result<StoredBinary> get(const Identified& kernel, const Missed& missed = {});
  // Makes it for others: like get, but nobody else's get waits for it.
  Result<StoredBinary> make(const Identified& kernel);
  // Other code than this, which the driver refused: what another process has made meanwhile, or compiled anew
  // and put in its place.
  Result<StoredBinary> replace(const Identified& kernel, const std::string& refused,
                               const Missed& missed = {});

  Cache& cache() const { return *cache_; }

 private:
  // Code that is not `refused` (null: any).
  Result<StoredBinary> find_or_compile(const Identified& kernel, const std::string* refused,
                                       const Missed& missed);
  Result<StoredBinary> compile(const Identified& kernel, bool replace);

  const std::shared_ptr<Compiler> compiler_;
  const std::unique_ptr<Cache> cache_;
  const std::string template_directory_;
  const bool exact_toolchain_;
  const std::shared_ptr<Meter> meter_;
  SingleFlight<std::string, StoredBinary> flights_;
};

}  // namespace normjit
