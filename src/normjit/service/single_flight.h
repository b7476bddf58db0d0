// One execution for all who ask for the same thing at the same time.
#pragma once

#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "normjit/base/fork.h"
#include "normjit/result.h"

namespace normjit {

// Thread-safe. Nothing is remembered: a call that begins after an execution has ended starts another, also
// after an error. So a caller that keeps values elsewhere looks there again inside its function, since
// another execution may have ended between the caller's first look and its call. In a forked child the
// executions of its parent, whose threads it does not have, are as if they had never begun.
template <class Key, class Value>
class SingleFlight {
 public:
  // The result of function(). Of the concurrent callers with one key exactly one executes its function, the
  // others wait and get a copy of its value or error. Different keys never wait for each other: no lock is
  // held while a function runs. What the function throws goes to all who share it. A function must not call
  // run() with its own key.
  Result<Value> run(const Key& key, const std::function<Result<Value>()>& function) {
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
    return leads ? lead(key, function, flight.generation, promise) : flight.result.get();
  }

 private:
  struct Flight {
    std::shared_future<Result<Value>> result;
    std::uint64_t generation;  // of the process that executes
    bool shared = false;       // somebody waits for the result
  };

  Result<Value> lead(const Key& key, const std::function<Result<Value>()>& function, std::uint64_t generation,
                     std::promise<Result<Value>>& promise) {
    std::optional<Result<Value>> result;
    std::exception_ptr thrown;
    try {
      result.emplace(function());
    } catch (...) {
      thrown = std::current_exception();
    }
    // Forgotten before it is told: who has been told and calls again starts anew. What has another generation
    // is the flight of a child that was forked by the function.
    bool shared = false;
    {
      const std::lock_guard lock(mutex_);
      const auto found = flights_.find(key);
      if (found != flights_.end() && found->second.generation == generation) {
        shared = found->second.shared;
        flights_.erase(found);
      }
    }
    // A copy only for those who wait: of 60 KB of code it takes 40 us of a cold process.
    if (shared && thrown)
      promise.set_exception(thrown);
    else if (shared)
      promise.set_value(*result);
    if (thrown) std::rethrow_exception(thrown);
    return *std::move(result);
  }

  ForkMutex mutex_;
  std::map<Key, Flight> flights_;  // being executed now
};

}  // namespace normjit
