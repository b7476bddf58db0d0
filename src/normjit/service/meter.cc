// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/meter.h"

#include <algorithm>

#include "normjit/base/json.h"

namespace normjit {

std::size_t Meter::shard() noexcept {
  static std::atomic<std::size_t> threads = 0;
  thread_local const std::size_t own = threads.fetch_add(1, std::memory_order_relaxed) % kShards;
  return own;
}

void Meter::found(Origin origin) noexcept {
  found_[static_cast<std::size_t>(origin)].fetch_add(1, std::memory_order_relaxed);
}

void Meter::missed(const Event& event) {
  ++misses_;
  tell(event);
}

void Meter::waited(const Event& event) {
  ++lock_waits_;
  lock_wait_.add(event.milliseconds);
  end(event);
}

void Meter::compiled(const Event& event) {
  ++compiles_;
  compile_.add(event.milliseconds);
  end(event);
}

void Meter::compile_failed(const Event& event) {
  ++failed_compiles_;
  compile_.add(event.milliseconds);
  end(event);
}

void Meter::loaded(const Event& event) {
  ++loads_;
  load_.add(event.milliseconds);
  end(event);
}

void Meter::asked(const Remote::Answer& answer, Event event) {
  using Kind = Remote::Answer::Kind;
  event.milliseconds = answer.milliseconds;
  if (answer.waited > 0) {
    ++remote_waits_;
    remote_wait_.add(answer.waited);
    Event waited = event;
    waited.kind = Event::Kind::remote_waited, waited.milliseconds = answer.waited, waited.detail = {};
    tell(waited);
  }
  switch (answer.kind) {
    case Kind::not_asked:
      event.kind = Event::Kind::absent;
      break;
    case Kind::absent:
      ++remote_misses_;
      event.kind = Event::Kind::absent;
      break;
    case Kind::entry:
      found(Origin::remote);
      remote_bytes_ += answer.bytes;
      event.kind = Event::Kind::fetched;
      break;
    case Kind::untrusted:
      ++remote_untrusted_;
      event.kind = Event::Kind::untrusted, event.detail = answer.why;
      break;
    case Kind::failed:
      ++remote_errors_;
      event.kind = Event::Kind::remote_failed, event.detail = answer.why;
      break;
  }
  end(event);
}

void Meter::sent(const Remote::Sent& sent, Event event) {
  if (!sent.asked) return;
  event.milliseconds = sent.milliseconds, event.detail = sent.why;
  event.kind = sent.stored ? Event::Kind::offered : Event::Kind::remote_failed;
  ++(sent.stored ? remote_stored_ : remote_errors_);
  tell(event);
}

void Meter::Time::read(double& milliseconds, Durations& durations) const noexcept {
  milliseconds = static_cast<double>(nanoseconds_) / 1e6;
  std::ranges::copy(buckets_, durations.buckets.begin());
}

Counters Meter::read() const noexcept {
  const auto found = [&](Origin origin) { return found_[static_cast<std::size_t>(origin)].load(); };
  Counters counters;
  counters.memory_hits = found(Origin::memory);
  for (const Shard& shard : shards_) counters.memory_hits += shard.hits.load(std::memory_order_relaxed);
  counters.disk_hits = found(Origin::disk);
  counters.layer_hits = found(Origin::layer);
  counters.embedded_hits = found(Origin::embedded);
  counters.misses = misses_;
  counters.compiles = compiles_;
  counters.failed_compiles = failed_compiles_;
  compile_.read(counters.compile_ms, counters.compile_durations);
  counters.loads = loads_;
  load_.read(counters.load_ms, counters.load_durations);
  counters.fallback_launches = fallback_launches_;
  counters.lock_waits = lock_waits_;
  lock_wait_.read(counters.lock_wait_ms, counters.lock_wait_durations);
  counters.remote_hits = found(Origin::remote);
  counters.remote_misses = remote_misses_;
  counters.remote_errors = remote_errors_;
  counters.remote_untrusted = remote_untrusted_;
  counters.remote_stored = remote_stored_;
  counters.remote_bytes = remote_bytes_;
  counters.remote_waits = remote_waits_;
  remote_wait_.read(counters.remote_wait_ms, counters.remote_wait_durations);
  return counters;
}

std::string to_json(const Counters& c) {
  const auto buckets = [](const Durations& durations) { return Json::array(durations.buckets); };
  return Json({{"memory_hits", c.memory_hits},
               {"disk_hits", c.disk_hits},
               {"layer_hits", c.layer_hits},
               {"embedded_hits", c.embedded_hits},
               {"misses", c.misses},
               {"compiles", c.compiles},
               {"failed_compiles", c.failed_compiles},
               {"compile_ms", c.compile_ms},
               {"compile_durations", buckets(c.compile_durations)},
               {"loads", c.loads},
               {"load_ms", c.load_ms},
               {"load_durations", buckets(c.load_durations)},
               {"fallback_launches", c.fallback_launches},
               {"damaged_entries", c.damaged_entries},
               {"lock_waits", c.lock_waits},
               {"lock_wait_ms", c.lock_wait_ms},
               {"lock_wait_durations", buckets(c.lock_wait_durations)},
               {"remote_hits", c.remote_hits},
               {"remote_misses", c.remote_misses},
               {"remote_errors", c.remote_errors},
               {"remote_untrusted", c.remote_untrusted},
               {"remote_stored", c.remote_stored},
               {"remote_bytes", c.remote_bytes},
               {"remote_waits", c.remote_waits},
               {"remote_wait_ms", c.remote_wait_ms},
               {"remote_wait_durations", buckets(c.remote_wait_durations)}})
      .line();
}

std::string_view name(Event::Kind kind) noexcept {
  constexpr std::string_view kNames[] = {"missed",        "waiting",     "waited",      "asking",
                                         "fetched",       "absent",      "untrusted",   "remote_failed",
                                         "remote_waited", "compiling",   "compiled",    "compile_failed",
                                         "unstored",      "offered",     "loading",     "loaded",
                                         "load_failed",   "substituted", "specialised", "damaged"};
  return kNames[static_cast<int>(kind)];
}

std::string_view name(Event::Phase phase) noexcept {
  constexpr std::string_view kNames[] = {"instant", "begin", "end"};
  return kNames[static_cast<int>(phase)];
}

}  // namespace normjit
