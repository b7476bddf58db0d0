// From spec, plan and architecture to machine code: out of the cache, or generated and compiled.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "normjit/cache/cache.h"
#include "normjit/codegen/generator.h"
#include "normjit/compiler/compiler.h"
#include "normjit/plan.h"
#include "normjit/service.h"
#include "normjit/service/single_flight.h"

namespace normjit {

// A source with the identity under which its machine code is cached: the digest of the text, the options that
// decide the code, and the full architecture. Nothing else.
struct Identified {
  LayerNormSpec spec;
  Plan plan;
  Arch arch;
  Source source;
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
              std::string template_directory, bool exact_toolchain)
      : compiler_(std::move(compiler)),
        cache_(std::move(cache)),
        template_directory_(std::move(template_directory)),
        exact_toolchain_(exact_toolchain) {}

  Result<Identified> identify(const LayerNormSpec& spec, const Plan& plan, Arch of_device) const;
  // Whether the code is at hand without compiling. Changes nothing.
  bool has(const Identified& kernel);
  // Whether this compiler has to make an entry anew that another one made.
  bool is_outdated(const Entry& entry);
  Result<StoredBinary> get(const Identified& kernel);
  // Compiles anew and puts it in the place of an entry that the driver refused.
  Result<StoredBinary> replace(const Identified& kernel);

  Cache& cache() const { return *cache_; }

 private:
  // What the cache has. `outdated` is set if that was made by another compiler than it has to be.
  std::optional<StoredBinary> find(const Identified& kernel, bool& outdated);
  Result<StoredBinary> compile(const Identified& kernel, bool replace);

  const std::shared_ptr<Compiler> compiler_;
  const std::unique_ptr<Cache> cache_;
  const std::string template_directory_;
  const bool exact_toolchain_;
  SingleFlight<std::string, StoredBinary> flights_;
};

}  // namespace normjit
