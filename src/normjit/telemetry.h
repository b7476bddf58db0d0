// SPDX-License-Identifier: Apache-2.0
// What a Service has done: counters and events.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "normjit/export.h"
#include "normjit/result.h"

namespace normjit {

// A histogram of how long something took.
struct Durations {
  // The upper bounds of the buckets, in milliseconds. The last bucket has none.
  static constexpr std::array kBounds{0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4};
  // How many took at most a bucket's bound, and more than that of the bucket before it.
  std::array<std::uint64_t, kBounds.size() + 1> buckets{};

  static constexpr std::size_t bucket_of(double milliseconds) noexcept {
    std::size_t bucket = 0;
    while (bucket < kBounds.size() && milliseconds > kBounds[bucket]) ++bucket;
    return bucket;
  }
};

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
  double compile_ms = 0;        // of both, summed over all threads
  Durations compile_durations;  // of both
  std::uint64_t loads = 0;      // of kernels into the driver, that succeeded
  double load_ms = 0;
  Durations load_durations;
  std::uint64_t fallback_launches = 0;  // of the generic kernel, where the spec's own is not available (yet)

  std::uint64_t damaged_entries = 0;  // found in the directory, the layers or the library
  std::uint64_t lock_waits = 0;       // for another process that was compiling the same kernel
  double lock_wait_ms = 0;
  Durations lock_wait_durations;

  // Of the store that machines share (Options::remote).
  std::uint64_t remote_hits = 0;       // kernels that it had, in place of compiles
  std::uint64_t remote_misses = 0;     // that it did not have
  std::uint64_t remote_errors = 0;     // calls that failed; while it counts as down it is not called
  std::uint64_t remote_untrusted = 0;  // values that were not believed
  std::uint64_t remote_stored = 0;     // compiled kernels that it took, or had
  std::uint64_t remote_bytes = 0;      // of the values that it had
  std::uint64_t remote_waits = 0;      // for another machine that was compiling the same kernel
  double remote_wait_ms = 0;
  Durations remote_wait_durations;
};

// {"memory_hits": 12, ...}, in the order and with the names of the struct, on one line; durations are the
// array of their buckets.
NORMJIT_API std::string to_json(const Counters& counters);

// A label that a host gives to all its metrics, as {"model", "bert"}.
struct Label {
  std::string_view
      name;  // a letter or _, then letters, digits and _; not __ first, not "le", "tier" or "version"
  std::string_view value;  // any text in UTF-8
};
// The counters as a page for Prometheus: the text format 0.0.4, to be served as
// `text/plain; version=0.0.4; charset=utf-8`. Times are in seconds. A page always has the same series, with
// the given labels on each: none of them depends on specs. The names of docs/embedding.md stay.
// BadArgument for a name that is none, reserved or given twice, and for a value that is not UTF-8.
NORMJIT_API Result<std::string> to_prometheus(const Counters& counters, std::span<const Label> labels = {});

// One event, for a line in a trace. The texts are valid during the call.
struct Event {
  enum class Kind : std::uint8_t {
    missed,          // no cache has the kernel
    waiting,         // for another process that is compiling the same kernel; ends with waited
    waited,          // for it
    asking,          // the remote store; ends with fetched, absent, untrusted or remote_failed
    fetched,         // the remote store had the kernel; detail: which store
    absent,          // it did not have it, or was not asked after all; detail: which store
    untrusted,       // it had a value that is not believed; detail: why
    remote_failed,   // a call of it failed; detail: why
    remote_waited,   // for another machine that was compiling the same kernel; within asking
    compiling,       // ends with compiled or compile_failed
    compiled,        // the kernel
    compile_failed,  // detail: the compiler's log
    unstored,        // a compiled kernel could not be stored in the cache directory; detail: why
    offered,         // the remote store took a compiled kernel; on normjit's own thread
    loading,         // into the driver; detail: where the code comes from. Ends with loaded or load_failed
    loaded,          // detail: where the code came from
    load_failed,     // detail: why
    substituted,     // the generic kernel serves a use from now on; detail: why
    specialised,     // the spec's own kernel serves such a use from now on
    damaged,         // a cache entry is damaged and counts as absent; detail: where, and what is wrong
  };
  // A begin is followed by its end on the same thread, with the same spec, plan and arch, unless memory is
  // exhausted meanwhile; of this thread, only instants lie between them.
  enum class Phase : std::uint8_t { instant, begin, end };

  Kind kind = Kind::missed;
  std::string_view spec;  // canonical
  std::string_view plan;  // empty if a tuned plan's entry is damaged
  std::string_view arch;
  double milliseconds = 0;  // its duration; 0 if it has none
  std::string_view detail;
  Phase phase = Phase::instant;
};
NORMJIT_API std::string_view name(Event::Kind) noexcept;
NORMJIT_API std::string_view name(Event::Phase) noexcept;  // "instant", "begin", "end"

// Called on the thread of the event, which may be one of normjit's own, while normjit holds no mutex. Must be
// thread-safe, must not throw and must not call back into the same Service. The events of one kernel on one
// thread come in the order of missed, waiting, asking, compiling, loading; those of several threads in any.
using EventCallback = std::function<void(const Event&)>;

}  // namespace normjit
