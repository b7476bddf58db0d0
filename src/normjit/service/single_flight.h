// SPDX-License-Identifier: Apache-2.0
// One execution for all threads that ask for the same thing at the same time.
#pragma once

#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "normjit/base/fork.h"
#include "normjit/result.h"

namespace normjit {

// Thread-safe. Keeps no results: a call that begins after an execution has ended starts another one, also
// after an error. A caller that keeps values elsewhere therefore looks there again inside its function:
// another execution may have ended between its first look and its call. A forked child does not have the
// threads that execute for its parent, and starts anew.
template <class Key, class Value>
class SingleFlight {
 public:
  // The result of function(), a Result<Value>. Of the concurrent callers with one key exactly one executes
  // its function; the others wait, and get a copy of its value, error or exception. Callers with different
  // keys never wait for each other: no lock is held while a function runs. A function must not call run()
  // with its own key.
  template <class Function>
  Result<Value> run(const Key& key, const Function& function) {
    std::promise<Result<Value>> promise;
    Flight flight{promise.get_future().share(), fork_generation()};
    bool leads = false;
    {
      const std::lock_guard lock(mutex_);
      auto [found, added] = flights_.try_emplace(key, flight);
      leads = added || found->second.generation != flight.generation;
      if (leads) {
        found->second = flight;
      } else {
        found->second.shared = true;
        flight = found->second;
      }
    }
    if (!leads) return flight.result.get();

    std::optional<Result<Value>> result;
    std::exception_ptr thrown;
    try {
      result.emplace(function());
    } catch (...) {
      thrown = std::current_exception();
    }
    // A copy only for threads that wait: 60 KB of code take 40 us of a cold process.
    const bool shared = end(key, flight.generation);
    if (shared && thrown)
      promise.set_exception(thrown);
    else if (shared)
      promise.set_value(*result);
    if (thrown) std::rethrow_exception(thrown);
    return *std::move(result);
  }

 private:
  struct Flight {
    std::shared_future<Result<Value>> result;
    std::uint64_t generation;  // of the process that executes
    bool shared = false;       // a thread waits for the result
  };

  // Removes a flight before its result is published, so that a caller that has the result and calls again
  // starts anew. Returns whether a thread waits. A flight of another generation stays: the function has
  // forked, and it is the child's.
  bool end(const Key& key, std::uint64_t generation) {
    const std::lock_guard lock(mutex_);
    const auto found = flights_.find(key);
    if (found == flights_.end() || found->second.generation != generation) return false;
    const bool shared = found->second.shared;
    flights_.erase(found);
    return shared;
  }

  ForkMutex mutex_;
  std::map<Key, Flight> flights_;  // being executed now
};

}  // namespace normjit
