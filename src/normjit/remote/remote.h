// SPDX-License-Identifier: Apache-2.0
// The cache that machines share: asked on the way to a compile, offered what was compiled. docs/fleets.md
// describes it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/cache/entry.h"
#include "normjit/cache/file_system.h"
#include "normjit/cache/warn_once.h"
#include "normjit/remote.h"
#include "normjit/remote/breaker.h"
#include "normjit/remote/sessions.h"
#include "normjit/remote/signature.h"

namespace normjit {

// Safe for any number of threads, and for a forked child. Every fault of the store counts as a miss: it costs
// the caller time within the limits below, never the result.
class Remote {
 public:
  struct Limits {
    // The time limit of one call: of a look, for which a caller waits, and of an offer.
    std::chrono::milliseconds look{150}, offer{1000};
    // A lease ends by itself after `lease`; its holder renews it every `renew`. Who waits for it looks every
    // `pause` to three times as much, and no longer than `patience`.
    std::chrono::milliseconds lease{2000}, renew{500}, pause{20}, patience{30'000};
    std::size_t offers = 16;  // that wait to be sent; more are dropped
    Breaker::Limits breaker = {};
  };
  struct Settings {
    std::string url = {};
    std::optional<normjit_remote> store = {};  // in place of a URL; closed at the end
    std::vector<std::string> trust = {};       // public keys, or files with one
    std::string sign_key = {};                 // a file; empty: nothing is offered
    bool unsigned_values = false;              // takes and offers values without a signature
    std::string directory = {};                // the cache directory, which keeps the verdict of a node
    bool shared = false;                       // as of the cache directory
    Limits limits = {};
  };
  // Touches nothing: no file, no library, no store. `warn` is called once per kind of trouble.
  Remote(Settings settings, std::shared_ptr<FileSystem> files, Warn warn);
  // Sends what waits to be sent.
  ~Remote();
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;

  // What a look at the store came to.
  struct Answer {
    enum class Kind {
      not_asked,  // down, or of no use: nothing would be believed
      entry,
      absent,
      untrusted,  // a value that is not believed
      failed,
    };
    Kind kind = Kind::not_asked;
    Entry entry = {};
    std::string why = {};                 // of untrusted and failed: a sentence
    std::size_t bytes = 0;                // of the value
    double milliseconds = 0, waited = 0;  // for the store; of it, for another machine's compile
  };
  // Looks for the entry of this identity. `on_ask` is called once before the store is, if it is.
  Answer look(const std::string& identity, const std::function<void()>& on_ask = {});
  // False: it was absent less than a pause of the breaker ago. For callers who ask again and again.
  bool may_have(const std::string& identity);
  // The same for a caller who compiles it if this finds none. Where another machine does, waits for it. Else
  // the caller has a lease, if the store has leases, until it calls offer() or give_up().
  Answer look_or_lease(const std::string& identity, const std::function<void()>& on_ask = {});

  // Sends an entry to the store once the caller goes on, and ends its lease. `done` is called once, with what
  // came of it, on another thread or on this one.
  struct Sent {
    bool asked = false;  // else the store is down, too many wait, or nothing may be offered
    bool stored = false;
    std::string why = {};
    std::size_t bytes = 0;
    double milliseconds = 0;
  };
  using Done = std::function<void(const Sent&)>;
  // `wait`: for room, where many are offered at once; else an offer is dropped where there is none.
  void offer(const Entry& entry, Done done, bool wait = false);
  // Ends the lease of an entry that could not be made.
  void give_up(const std::string& identity) noexcept;

  // Whether values are believed, and whether they can be offered; what is wrong, else. Reads the keys.
  struct Keys {
    Trust trust;
    std::optional<SecretKey> secret;
    std::string error;  // empty: none
  };
  std::shared_ptr<const Keys> keys();
  std::string shown() const { return sessions_.shown(); }
  // A round trip, whatever the verdict says, which changes if the store answers: milliseconds, or why it does
  // not.
  Result<double> probe();
  // Whether it may be offered anything: there is a key, and it has not just refused an offer.
  bool takes_offers();
  // Returns when nothing waits to be sent.
  void flush();

 private:
  enum class Trouble { unusable, down, untrusted, unsent, refused, write };
  // A caller waits for a look. A write that is refused says nothing about looks.
  enum class Purpose { look, write };
  enum class Lease { granted, held, none };
  using Clock = std::chrono::steady_clock;

  // What the sending thread does next: puts the value if there is one, then ends the lease.
  struct Task {
    std::string id = {}, value = {};
    Done done = {};
  };
  // Shared with the thread, whose last access to it may come after this object's end.
  struct Courier {
    ForkMutex mutex;  // guards all below
    std::condition_variable_any changed;
    std::deque<Task> tasks;
    std::map<std::string, Clock::time_point> leases;  // by id: when to renew
    bool runs = false;                                // the thread
    bool sends = false;                               // a task, or ends a lease
    std::string owner;                                // of this process's leases
    std::uint64_t generation = fork_generation();
  };

  // Whether the keys allow it.
  bool reads();
  bool may_offer();
  // Calls the store if the breaker lets it through; nothing if it does not.
  std::optional<Outcome> ask(Purpose purpose, const Sessions::Call& call,
                             const std::function<void()>& on_ask = {});
  Answer judge(std::string value, const std::string& identity);
  // `why`: of a call that failed.
  Lease lease(const std::string& id, std::string& why);
  void keep(const std::string& id);
  void wake();
  void renew_after_fork();
  void run(Courier& courier);
  void carry_out_tasks(Courier& courier);
  void send(const Task& task);
  void release(const std::string& id);
  std::string owner();

  const Settings settings_;
  WarnOnce<Trouble> warn_;
  Sessions sessions_;
  Breaker breaker_;
  std::atomic<Clock::rep> quiet_until_ = 0;  // nothing is offered until then
  ForkMutex keys_mutex_;
  std::shared_ptr<const Keys> keys_;  // null: not read yet
  ForkMutex absent_mutex_;
  std::map<std::string, Clock::time_point> absent_;  // by identity: until when it is not looked for again
  const std::shared_ptr<Courier> courier_ = std::make_shared<Courier>();
};

}  // namespace normjit
