// What a Service has done: numbers to watch, and events to follow.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "normjit/export.h"

namespace normjit {

// Totals since a Service was made. In a forked child they go on from its parent's.
struct Counters {
  // Where kernels were found. The first is of launches and prepares that needed nothing else, and of code
  // that this process compiled itself; the others are of entries read.
  std::uint64_t memory_hits = 0;
  std::uint64_t disk_hits = 0;      // in the cache directory
  std::uint64_t layer_hits = 0;     // in a read-only layer
  std::uint64_t embedded_hits = 0;  // in the library itself
  std::uint64_t misses = 0;         // in none of them

  std::uint64_t compiles = 0;  // that ended well, those of prebuilds included
  std::uint64_t failed_compiles = 0;
  double compile_ms = 0;    // of both, over all threads
  std::uint64_t loads = 0;  // of kernels into the driver
  double load_ms = 0;
  std::uint64_t fallback_launches = 0;  // of the generic kernel, in the place of one that is not there (yet)

  std::uint64_t damaged_entries = 0;  // met, in the directory, the layers or the library
  std::uint64_t lock_waits = 0;       // for another process that had the same kernel under way
  double lock_wait_ms = 0;
};

// {"memory_hits": 12, ...}, in the order and with the names of the struct, on one line.
NORMJIT_API std::string to_json(const Counters& counters);

// Something that happened once, worth a line in a trace. The texts live as long as the call.
struct Event {
  enum class Kind : std::uint8_t {
    missed,  // no cache has the kernel
    compiled,
    compile_failed,  // detail: the compiler's log
    loaded,          // into the driver; detail: where the code came from
    substituted,     // the generic kernel serves a use from now on; detail: why
    specialised,     // ... and from now on its own kernel does
    damaged,         // a cache entry is not what it was, and counts as none; detail: where, and what is wrong
    waited,          // for another process that had the same kernel under way
    unstored,        // the cache directory did not take what was compiled; detail: why
  };
  Kind kind = Kind::missed;
  std::string_view spec;  // canonical
  std::string_view plan;  // empty: of the entry of a tuned plan
  std::string_view arch;
  double milliseconds = 0;  // that it took, where it took time
  std::string_view detail;
};
NORMJIT_API std::string_view name(Event::Kind) noexcept;

// Called on the thread to which it happened, which may be one of normjit's own; must be thread-safe, must not
// throw and must not call back into the same Service.
using EventCallback = std::function<void(const Event&)>;

}  // namespace normjit
