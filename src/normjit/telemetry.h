// SPDX-License-Identifier: Apache-2.0
// What a Service has done: counters and events.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "normjit/export.h"

namespace normjit {

// Totals since the Service was made. A forked child continues with its parent's totals.
struct Counters {
  // Where kernels were found. memory_hits counts launches and prepares whose kernel was in memory, and code
  // that this process compiled itself; the other hits count entries read.
  std::uint64_t memory_hits = 0;
  std::uint64_t disk_hits = 0;      // in the cache directory
  std::uint64_t layer_hits = 0;     // in a read-only layer
  std::uint64_t embedded_hits = 0;  // in the library itself
  std::uint64_t misses = 0;         // in none of them; the remote store is asked after that

  std::uint64_t compiles = 0;  // that succeeded, those of prebuilds included
  std::uint64_t failed_compiles = 0;
  double compile_ms = 0;    // of both, summed over all threads
  std::uint64_t loads = 0;  // of kernels into the driver
  double load_ms = 0;
  std::uint64_t fallback_launches = 0;  // of the generic kernel, where the spec's own is not available (yet)

  std::uint64_t damaged_entries = 0;  // found in the directory, the layers or the library
  std::uint64_t lock_waits = 0;       // for another process that was compiling the same kernel
  double lock_wait_ms = 0;

  // Of the store that machines share (Options::remote).
  std::uint64_t remote_hits = 0;       // kernels that it had, in place of compiles
  std::uint64_t remote_misses = 0;     // that it did not have
  std::uint64_t remote_errors = 0;     // calls that failed; while it counts as down it is not called
  std::uint64_t remote_untrusted = 0;  // values that were not believed
  std::uint64_t remote_stored = 0;     // compiled kernels that it took, or had
  std::uint64_t remote_bytes = 0;      // of the values that it had
  std::uint64_t remote_waits = 0;      // for another machine that was compiling the same kernel
  double remote_wait_ms = 0;
};

// {"memory_hits": 12, ...}, in the order and with the names of the struct, on one line.
NORMJIT_API std::string to_json(const Counters& counters);

// One event, for a line in a trace. The texts are valid during the call.
struct Event {
  enum class Kind : std::uint8_t {
    missed,  // no cache has the kernel
    compiled,
    compile_failed,  // detail: the compiler's log
    loaded,          // into the driver; detail: where the code came from
    substituted,     // the generic kernel serves a use from now on; detail: why
    specialised,     // the spec's own kernel serves such a use from now on
    damaged,         // a cache entry is damaged and counts as absent; detail: where, and what is wrong
    waited,          // for another process that was compiling the same kernel
    unstored,        // a compiled kernel could not be stored in the cache directory; detail: why
    fetched,         // the remote store had the kernel; detail: which store
    untrusted,       // it had a value that is not believed; detail: why
    remote_failed,   // a call of it failed; detail: why
    remote_waited,   // for another machine that was compiling the same kernel
    offered,         // it took a compiled kernel
  };
  Kind kind = Kind::missed;
  std::string_view spec;  // canonical
  std::string_view plan;  // empty if a tuned plan's entry is damaged
  std::string_view arch;
  double milliseconds = 0;  // its duration; 0 if it has none
  std::string_view detail;
};
NORMJIT_API std::string_view name(Event::Kind) noexcept;

// Called on the thread of the event, which may be one of normjit's own. Must be thread-safe, must not throw
// and must not call back into the same Service.
using EventCallback = std::function<void(const Event&)>;

}  // namespace normjit
