// SPDX-License-Identifier: Apache-2.0
// A remote store in memory, with everything that can go wrong with one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "normjit/remote.h"

namespace normjit::testing {

// Thread-safe; its remotes must not outlive it.
class FakeStore {
 public:
  // The functions of this store; without leases if it has none.
  normjit_remote remote();

  // Makes every call fail with this sentence; empty: no longer.
  void fail(std::string why);
  // Makes puts, leases and releases refuse with this sentence.
  void refuse_writes(std::string why);
  // Makes every call take so long.
  void delay(std::chrono::milliseconds time) { delay_ms_ = static_cast<int>(time.count()); }
  // Makes puts stand still until release().
  void hold_puts();
  void release_puts();

  std::map<std::string, std::string> values() const;
  void set(const std::string& key, std::string value);
  void clear();
  // Sets a value right behind the next look, which does not see it.
  void set_behind_a_look(const std::string& key, std::string value);
  // Takes a lease for another machine.
  void take_lease(const std::string& key, std::chrono::milliseconds lifetime);
  bool has_lease(const std::string& key) const;

  struct Calls {
    int get = 0, put = 0, lease = 0, release = 0, close = 0;
    int all() const { return get + put + lease + release; }
  };
  Calls calls() const;

  bool has_leases = true;

 private:
  using Clock = std::chrono::steady_clock;
  struct Lease {
    std::string owner;
    Clock::time_point end;
  };
  struct Functions;

  // The outcome of a call that fails or refuses; 0: it does neither.
  normjit_remote_outcome trouble(int& count, char* why, std::size_t why_size);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_, later_values_;
  std::map<std::string, Lease> leases_;
  Calls calls_;
  std::string why_, refusal_;
  bool held_ = false;
  std::atomic<int> delay_ms_ = 0;
};

}  // namespace normjit::testing
