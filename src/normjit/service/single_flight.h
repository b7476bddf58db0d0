// One execution for all who ask for the same thing at the same time.
#pragma once

#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "normjit/result.h"

namespace normjit {

// Thread-safe. Nothing is remembered: a call that begins after an execution has ended starts another, also
// after an error. So a caller that keeps values elsewhere looks there again inside its function, since
// another execution may have ended between the caller's first look and its call.
template <class Key, class Value>
class SingleFlight {
 public:
  // The result of function(). Of the concurrent callers with one key exactly one executes its function, the
  // others wait and get a copy of its value or error. Different keys never wait for each other: no lock is
  // held while a function runs. What the function throws goes to all who share it. A function must not call
  // run() with its own key.
  Result<Value> run(const Key& key, const std::function<Result<Value>()>& function) {
    std::promise<Result<Value>> promise;
    std::shared_future<Result<Value>> flight = promise.get_future().share();
    bool leads = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = flights_.try_emplace(key, flight);
      leads = found.second;
      flight = found.first->second;
    }
    if (leads) execute(key, function, promise);
    return flight.get();
  }

 private:
  void execute(const Key& key, const std::function<Result<Value>()>& function,
               std::promise<Result<Value>>& promise) {
    std::optional<Result<Value>> result;
    std::exception_ptr thrown;
    try {
      result.emplace(function());
    } catch (...) {
      thrown = std::current_exception();
    }
    // Forgotten before it is told: who has been told and calls again starts anew.
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      flights_.erase(key);
    }
    if (result) {
      promise.set_value(*std::move(result));
    } else {
      promise.set_exception(thrown);
    }
  }

  std::mutex mutex_;
  std::map<Key, std::shared_future<Result<Value>>> flights_;  // being executed now
};

}  // namespace normjit
