// From spec, plan and architecture to machine code: out of the cache, or generated and compiled.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "normjit/base/fork.h"
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
  bool stored = true;  // false: the cache could not keep it
};

// Thread-safe. Concurrent requests for one kernel share one compile.
class BinaryStore {
 public:
  BinaryStore(std::shared_ptr<Compiler> compiler, std::unique_ptr<Cache> cache,
              std::string template_directory)
      : compiler_(std::move(compiler)),
        cache_(std::move(cache)),
        template_directory_(std::move(template_directory)) {}

  Result<Identified> identify(const LayerNormSpec& spec, const Plan& plan, Arch of_device) const;
  // Whether the code is at hand without compiling.
  bool has(const Identified& kernel);
  Result<StoredBinary> get(const Identified& kernel);
  // Compiles anew and puts it in the place of an entry that the driver refused.
  Result<StoredBinary> replace(const Identified& kernel);

  Cache& cache() const { return *cache_; }

 private:
  bool find(const Identified& kernel, StoredBinary& binary);
  Result<StoredBinary> compile(const Identified& kernel, bool replace);

  std::shared_ptr<Compiler> compiler_;
  std::unique_ptr<Cache> cache_;
  std::string template_directory_;
  SingleFlight<std::string, StoredBinary> flights_;
  ForkMutex mutex_;
  std::map<std::string, std::string> unstored_;  // identity -> code that the directory did not take
};

}  // namespace normjit
