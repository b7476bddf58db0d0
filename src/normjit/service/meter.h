// SPDX-License-Identifier: Apache-2.0
// The counters of a Service, and its events.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "normjit/base/stopwatch.h"
#include "normjit/remote/remote.h"
#include "normjit/service.h"
#include "normjit/telemetry.h"

namespace normjit {

// Thread-safe, without a lock.
class Meter {
 public:
  explicit Meter(EventCallback tell) : tell_(std::move(tell)) {}

  // A launch or prepare that found its kernel in memory. Each thread counts in a shard, so that threads do
  // not wait for each other's cache lines.
  void hit() noexcept { shards_[shard()].hits.fetch_add(1, std::memory_order_relaxed); }
  void fallback_launch() noexcept { fallback_launches_.fetch_add(1, std::memory_order_relaxed); }

  void found(Origin origin) noexcept;
  void missed(const Event& event);
  // The ends of what begin() was told of.
  void waited(const Event& event);
  void compiled(const Event& event);
  void compile_failed(const Event& event);
  void loaded(const Event& event);
  // What asking the remote store came to, and an offer. `event`: the kernel, and the store as its detail.
  void asked(const Remote::Answer& answer, Event event);
  void sent(const Remote::Sent& sent, Event event);
  void tell(const Event& event) const {
    if (tell_) tell_(event);
  }
  void begin(Event event) const {
    event.phase = Event::Phase::begin;
    tell(event);
  }
  void end(Event event) const {
    event.phase = Event::Phase::end;
    tell(event);
  }

  // All counters but that of damaged entries.
  Counters read() const noexcept;

 private:
  using Count = std::atomic<std::uint64_t>;
  struct alignas(64) Shard {
    Count hits = 0;
  };
  static constexpr std::size_t kShards = 64;
  static std::size_t shard() noexcept;

  // What takes time: its sum, and its durations.
  class Time {
   public:
    void add(double milliseconds) noexcept {
      nanoseconds_ += static_cast<std::uint64_t>(milliseconds * 1e6);
      ++buckets_[Durations::bucket_of(milliseconds)];
    }
    void read(double& milliseconds, Durations& durations) const noexcept;

   private:
    Count nanoseconds_ = 0;
    std::array<Count, Durations{}.buckets.size()> buckets_{};
  };

  const EventCallback tell_;
  std::array<Shard, kShards> shards_{};
  std::array<Count, 6> found_{};  // by Origin
  Count misses_ = 0, compiles_ = 0, failed_compiles_ = 0, loads_ = 0, lock_waits_ = 0, fallback_launches_ = 0;
  Count remote_misses_ = 0, remote_errors_ = 0, remote_untrusted_ = 0, remote_stored_ = 0, remote_bytes_ = 0,
        remote_waits_ = 0;
  Time compile_, load_, lock_wait_, remote_wait_;
};

}  // namespace normjit
