// SPDX-License-Identifier: Apache-2.0
// How a remote store is reached: a host's structure, or a plug-in that is opened when it is first needed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/remote.h"

namespace normjit {

// What a store hands over: &Sink::take and the Sink are what its functions are given. Nothing is thrown into
// their code.
struct Sink {
  std::string value = {};
  bool out_of_memory = false;

  static void take(void* to, const void* bytes, std::size_t size) noexcept;
};

// What a call of a store came to.
struct Outcome {
  normjit_remote_outcome kind = NORMJIT_REMOTE_FAILED;
  std::string why = {};  // a sentence, of FAILED and REFUSED
  // False: the store cannot be opened; or, without `why`, the process is exiting.
  bool called = true;
  std::chrono::nanoseconds took = {};  // of the function alone
};

// Thread-safe. A forked child opens sessions of its own.
class Sessions {
 public:
  // A plug-in is the file libnormjit-remote-NAME.so beside this library, which nobody but this user and root
  // may be able to write. Touches nothing.
  explicit Sessions(std::string url) : url_(std::move(url)) {}
  // A host's structure, whose close() is called at the end.
  explicit Sessions(const normjit_remote& store) : store_(store), hosted_(true) {}
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  // Calls a function of the store; `why` is room for its reason. FAILED also where the store cannot be
  // opened.
  using Call =
      std::function<normjit_remote_outcome(const normjit_remote& store, char* why, std::size_t why_size)>;
  Outcome call(const Call& call) noexcept;

  // The store as it may be shown: a URL without user, password and query.
  std::string shown() const;

 private:
  static constexpr std::size_t kIdle = 8;

  bool take(normjit_remote& session);
  void give_back(const normjit_remote& session);
  Outcome open(normjit_remote& session);

  const std::string url_;
  const normjit_remote store_ = NORMJIT_REMOTE_INIT;
  const bool hosted_ = false;
  std::atomic<bool> exit_is_watched_ = false;
  ForkMutex mutex_;
  std::vector<normjit_remote> idle_;
  std::uint64_t generation_ = fork_generation();
};

// Takes the file at a URL, unless it is still of this version ("": none), by a plug-in
// (normjit_remote_fetch_function). DONE: `bytes` and `new_version` are set.
Outcome fetch_file(const std::string& url, const std::string& version, std::size_t max_bytes,
                   std::chrono::milliseconds limit, std::string& bytes, std::string& new_version) noexcept;

// The URL without user, password and query. Where those are not encoded as they should be, less of it.
std::string shown_url(std::string_view url);

}  // namespace normjit
