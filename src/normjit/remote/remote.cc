// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/remote.h"

#include <pthread.h>
#include <sys/random.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "normjit/base/start_thread.h"
#include "normjit/base/stopwatch.h"
#include "normjit/base/text.h"
#include "normjit/cache/tier.h"
#include "normjit/remote/value.h"

namespace normjit {
namespace {

using Kind = Remote::Answer::Kind;
using std::chrono::milliseconds;

std::int32_t in_milliseconds(milliseconds time) { return static_cast<std::int32_t>(time.count()); }

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number)
    number = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return number;
}

// No normjit_remote_outcome: the store does not have this function.
constexpr normjit_remote_outcome kCannot = 0;

}  // namespace

Remote::Remote(Settings settings, std::shared_ptr<FileSystem> files, Warn warn)
    : settings_(std::move(settings)),
      warn_(std::move(warn), "remote"),
      sessions_(settings_.store ? Sessions(*settings_.store) : Sessions(settings_.url)),
      breaker_(shown_url(settings_.url), settings_.store ? "" : settings_.directory, std::move(files),
               settings_.shared, settings_.limits.breaker) {}

Remote::~Remote() {
  std::unique_lock lock(courier_->mutex);
  renew_after_fork();
  courier_->leases.clear();  // no caller compiles any more
  courier_->changed.notify_all();
  while (courier_->runs) courier_->changed.wait(lock);
}

void Remote::flush() {
  std::unique_lock lock(courier_->mutex);
  renew_after_fork();
  while (courier_->runs && (!courier_->tasks.empty() || courier_->sends)) courier_->changed.wait(lock);
}

std::shared_ptr<const Remote::Keys> Remote::keys() {
  {
    const std::lock_guard lock(keys_mutex_);
    if (keys_) return keys_;
  }
  auto read = std::make_shared<Keys>();
  const auto refuse = [&](const std::string& why) {
    if (read->error.empty()) read->error = why;
  };
  if (!settings_.trust.empty() || !settings_.sign_key.empty()) refuse(sodium_error());
  std::vector<PublicKey> trusted;
  if (read->error.empty() && !settings_.sign_key.empty()) {
    auto key = SecretKey::read(settings_.sign_key);
    if (key) {
      // Who can sign anything need not be told to believe itself.
      trusted.push_back(key->public_key());
      read->secret = std::move(*key);
    } else {
      refuse(key.error().message);
    }
  }
  if (read->error.empty()) {
    if (const auto trust = Trust::of(settings_.trust)) {
      trusted.insert(trusted.end(), trust->keys().begin(), trust->keys().end());
      read->trust = Trust(std::move(trusted));
    } else {
      refuse(trust.error().message);
    }
  }
  if (read->error.empty() && read->trust.empty() && !settings_.unsigned_values)
    refuse(
        "no key is trusted, so nothing in it would be believed: name public keys in NORMJIT_TRUST, or set "
        "NORMJIT_REMOTE_UNSIGNED=1 where everybody who can write there may decide what runs on this GPU");
  if (!read->error.empty()) warn_(Trouble::unusable, concat({shown(), " is not used: ", read->error}));
  const std::lock_guard lock(keys_mutex_);
  if (!keys_) keys_ = std::move(read);
  return keys_;
}

std::optional<Outcome> Remote::ask(Purpose purpose, const Sessions::Call& call,
                                   const std::function<void()>& on_ask) {
  if (!breaker_.lets_through()) return {};
  if (on_ask) on_ask();
  Outcome outcome = sessions_.call(call);
  if (outcome.kind == kCannot) return {};
  if (!outcome.called) {
    if (outcome.why.empty()) return {};
    breaker_.pause();
    warn_(Trouble::unusable, concat({shown(), " is not used: ", outcome.why}));
    return outcome;
  }
  const std::string again =
      concat({" in ", shortest(static_cast<double>(settings_.limits.breaker.pause.count()) / 1000), " s"});
  const bool refused = outcome.kind == NORMJIT_REMOTE_REFUSED;
  const bool served = outcome.kind == NORMJIT_REMOTE_DONE || outcome.kind == NORMJIT_REMOTE_ABSENT;
  if (served || refused) {
    // Of leases too a caller may wait, but counted they would shut the store of a fleet whose machines are
    // slow themselves.
    std::optional<std::chrono::nanoseconds> waited;
    if (purpose == Purpose::look) waited = outcome.took;
    if (breaker_.succeeded(waited))
      warn_(Trouble::down, concat({shown(), " answers slowly, and is asked again", again}));
  }
  if (served) return outcome;
  if (outcome.why.empty()) outcome.why = "the store gives no reason";
  if (purpose == Purpose::write) {
    // Looks may go well all the same. Rights and room do not change from one kernel to the next.
    quiet_until_ = (Clock::now() + settings_.limits.breaker.pause).time_since_epoch().count();
    warn_(Trouble::write,
          concat({outcome.why, "; nothing is offered to it, until it is tried again", again}));
  } else if (refused) {
    warn_(Trouble::refused, concat({outcome.why, "; the kernel is compiled here"}));
  } else {
    outcome.kind = NORMJIT_REMOTE_FAILED;
    if (breaker_.failed())
      warn_(Trouble::down, concat({shown(), " failed: ", outcome.why,
                                   "; kernels are compiled here, and it is asked again", again}));
  }
  return outcome;
}

bool Remote::takes_offers() { return may_offer() && Clock::now().time_since_epoch().count() >= quiet_until_; }

bool Remote::may_offer() {
  const auto keys = this->keys();
  return keys->error.empty() && (settings_.unsigned_values || keys->secret);
}

bool Remote::reads() {
  const auto keys = this->keys();
  return keys->error.empty() && (settings_.unsigned_values || !keys->trust.empty());
}

Result<double> Remote::probe() {
  const Stopwatch watch;
  const Outcome outcome = sessions_.call([&](const normjit_remote& store, char* why, std::size_t size) {
    Sink ignored;
    return store.get(store.user, value_key(std::string(32, '0')).c_str(), 4096, Sink::take, &ignored,
                     in_milliseconds(settings_.limits.look), why, size);
  });
  if (outcome.called && outcome.kind != NORMJIT_REMOTE_FAILED) {
    breaker_.close();
    return watch.milliseconds();
  }
  return Error{Code::CacheIo, concat({shown(), ": ", outcome.why})};
}

// Signature first: nothing else of a foreign value is looked at before.
Remote::Answer Remote::judge(std::string value, const std::string& identity) {
  Answer answer{.kind = Kind::untrusted, .bytes = value.size()};
  const Sealed sealed = unseal(value);
  const auto refuse = [&](std::string why) {
    answer.why = std::move(why);
    warn_(Trouble::untrusted,
          concat({"a value of ", shown(), " is not used, and the kernel is compiled here: ", answer.why}));
    return std::move(answer);
  };
  if (sealed.signature.empty() && !settings_.unsigned_values) return refuse("unsigned");
  if (!sealed.signature.empty()) {
    const Trust& trust = keys()->trust;
    const Trusted trusted = trust.empty() && settings_.unsigned_values
                                ? Trusted::yes
                                : trust.check(sealed.entry_file, sealed.signature);
    switch (trusted) {
      case Trusted::yes:
        break;
      case Trusted::malformed:
        return refuse("malformed signature");
      case Trusted::unknown_key:
        return refuse("signed by a key that is not trusted");
      case Trusted::wrong:
        return refuse("wrong signature");
      case Trusted::unavailable:
        return refuse("libsodium is not available");
    }
  }
  Lookup lookup = verify(std::string(sealed.entry_file), identity, "it");
  if (lookup.kind != Lookup::Kind::entry)
    return refuse(lookup.kind == Lookup::Kind::other ? "another entry than its key says" : "damaged");
  answer.kind = Kind::entry;
  answer.entry = std::move(lookup.entry);
  return answer;
}

Remote::Answer Remote::look(const std::string& identity, const std::function<void()>& on_ask) {
  if (!reads()) return {};
  const Stopwatch watch;
  const std::string key = value_key(entry_id(identity));
  Sink sink;
  const auto outcome = ask(
      Purpose::look,
      [&](const normjit_remote& store, char* why, std::size_t size) {
        return store.get(store.user, key.c_str(), kMaxEntryBytes, Sink::take, &sink,
                         in_milliseconds(settings_.limits.look), why, size);
      },
      on_ask);
  if (!outcome) return {};
  if (sink.out_of_memory) throw std::bad_alloc();
  Answer answer;
  if (outcome->kind == NORMJIT_REMOTE_DONE)
    answer = judge(std::move(sink.value), identity);
  else if (outcome->kind == NORMJIT_REMOTE_ABSENT)
    answer.kind = Kind::absent;
  else
    answer = {.kind = Kind::failed, .why = outcome->why};
  answer.milliseconds = watch.milliseconds();
  if (answer.kind == Kind::absent) {
    constexpr std::size_t kMostAbsent = 10'000;
    const std::lock_guard lock(absent_mutex_);
    if (absent_.size() >= kMostAbsent) absent_.clear();
    absent_[identity] = Clock::now() + settings_.limits.breaker.pause;
  }
  return answer;
}

bool Remote::may_have(const std::string& identity) {
  const std::lock_guard lock(absent_mutex_);
  const auto found = absent_.find(identity);
  if (found == absent_.end()) return true;
  if (Clock::now() < found->second) return false;
  absent_.erase(found);
  return true;
}

// A lease is not granted where the value is there: the last holder puts it, and gives its lease back then.
Remote::Answer Remote::look_or_lease(const std::string& identity, const std::function<void()>& on_ask) {
  const Stopwatch watch;
  Answer answer = look(identity, on_ask);
  if (answer.kind != Kind::absent || !takes_offers()) return answer;
  const std::string id = entry_id(identity);
  const auto latest = Clock::now() + settings_.limits.patience;
  double waited = 0;
  for (std::uint64_t noise = random_number();; noise = noise * 6364136223846793005u + 1442695040888963407u) {
    std::string why;
    const Lease lease = this->lease(id, why);
    if (!why.empty()) answer = {.kind = Kind::failed, .why = why};
    if (lease == Lease::granted) keep(id);
    if (lease != Lease::held || Clock::now() >= latest) break;
    const Stopwatch pause;
    std::this_thread::sleep_for(settings_.limits.pause * (1 + static_cast<double>(noise >> 32) / 0x1p31));
    waited += pause.milliseconds();
    answer = look(identity);
    if (answer.kind != Kind::absent) break;
  }
  answer.milliseconds = watch.milliseconds();
  answer.waited = waited;
  return answer;
}

std::string Remote::owner() {
  const std::lock_guard lock(courier_->mutex);
  renew_after_fork();
  if (courier_->owner.empty()) courier_->owner = shortest(random_number());
  return courier_->owner;
}

Remote::Lease Remote::lease(const std::string& id, std::string& why) {
  const std::string key = lease_key(id), mine = owner();
  const auto outcome = ask(Purpose::write, [&](const normjit_remote& store, char* reason, std::size_t size) {
    return store.lease == nullptr
               ? kCannot
               : store.lease(store.user, key.c_str(), mine.c_str(), in_milliseconds(settings_.limits.lease),
                             in_milliseconds(settings_.limits.look), reason, size);
  });
  if (!outcome) return Lease::none;
  if (outcome->kind == NORMJIT_REMOTE_DONE) return Lease::granted;
  if (outcome->kind == NORMJIT_REMOTE_ABSENT) return Lease::held;
  why = outcome->why;
  return Lease::none;
}

// Has the lease renewed until the caller offers the entry or gives it up. Without a thread it ends by itself.
void Remote::keep(const std::string& id) {
  {
    const std::lock_guard lock(courier_->mutex);
    renew_after_fork();
    courier_->leases[id] = Clock::now() + settings_.limits.renew;
  }
  wake();
}

void Remote::offer(const Entry& entry, Done done, bool wait) {
  const std::string id = entry_id(entry.identity);
  if (!takes_offers()) {
    if (done) done({.why = may_offer() ? "it refused the last offer" : "there is no key to sign it with"});
    give_up(entry.identity);
    return;
  }
  const std::shared_ptr<const Keys> keys = this->keys();
  Task task{.id = id,
            .value = seal(encode(entry), keys->secret ? &*keys->secret : nullptr),
            .done = std::move(done)};
  bool dropped = false;
  {
    std::unique_lock lock(courier_->mutex);
    renew_after_fork();
    const auto full = [&] { return courier_->tasks.size() >= settings_.limits.offers; };
    while (wait && full() && courier_->runs) courier_->changed.wait(lock);
    dropped = full();
    if (!dropped) courier_->tasks.push_back(std::move(task));
  }
  if (!dropped) return wake();
  if (task.done) task.done({.why = "too many wait to be offered"});
  warn_(Trouble::unsent,
        concat({"kernels are compiled faster than ", shown(), " takes them: some are not offered"}));
  give_up(entry.identity);
}

void Remote::give_up(const std::string& identity) noexcept try {
  {
    const std::lock_guard lock(courier_->mutex);
    renew_after_fork();
    const std::string id = entry_id(identity);
    if (courier_->leases.erase(id) == 0) return;
    courier_->tasks.push_back({.id = id});
  }
  wake();
} catch (const std::bad_alloc&) {  // it ends by itself
}

// Starts the sending thread if it does not run. If the system starts no thread, the tasks are dropped.
void Remote::wake() {
  {
    const std::lock_guard lock(courier_->mutex);
    courier_->changed.notify_all();
    if (std::exchange(courier_->runs, true)) return;
  }
  if (start_thread([this, courier = courier_] { run(*courier); })) return;
  std::deque<Task> unsent;
  {
    const std::lock_guard lock(courier_->mutex);
    courier_->runs = false;
    unsent.swap(courier_->tasks);
    courier_->leases.clear();
    courier_->changed.notify_all();
  }
  for (const Task& task : unsent)
    if (task.done) task.done({.why = "the system starts no thread"});
}

void Remote::renew_after_fork() {
  if (courier_->generation == fork_generation()) return;
  courier_->generation = fork_generation();
  std::construct_at(&courier_->changed);  // its waiters were threads of the parent
  courier_->tasks.clear();
  courier_->leases.clear();
  courier_->owner.clear();
  courier_->runs = courier_->sends = false;
}

// Memory that is exhausted is a failure like any other: what waits is not sent.
void Remote::run(Courier& courier) {
  pthread_setname_np(pthread_self(), "normjit-remote");
  try {
    carry_out_tasks(courier);
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(courier.mutex);
    courier.tasks.clear();
    courier.leases.clear();
    courier.runs = courier.sends = false;
    courier.changed.notify_all();
  }
}

// What is due is renewed before the next task: a task may take a second.
void Remote::carry_out_tasks(Courier& courier) {
  std::unique_lock lock(courier.mutex);
  while (!courier.tasks.empty() || !courier.leases.empty()) {
    const auto next =
        std::ranges::min_element(courier.leases, {}, [](const auto& lease) { return lease.second; });
    const bool leased = next != courier.leases.end();
    if (leased && next->second <= Clock::now()) {
      const std::string id = next->first;
      next->second = Clock::now() + settings_.limits.renew;
      lock.unlock();
      std::string ignored;
      const bool renewed = lease(id, ignored) == Lease::granted;
      lock.lock();
      if (!renewed) courier.leases.erase(id);
    } else if (!courier.tasks.empty()) {
      Task task = std::move(courier.tasks.front());
      courier.tasks.pop_front();
      // Without a value the lease has been given up.
      const bool ends_lease = task.value.empty() || courier.leases.erase(task.id) > 0;
      courier.sends = true;
      courier.changed.notify_all();
      lock.unlock();
      if (!task.value.empty()) send(task);
      if (ends_lease) release(task.id);
      task = {};
      lock.lock();
      courier.sends = false;
      courier.changed.notify_all();
    } else {
      const auto when = next->second;
      courier.changed.wait_until(lock, when);
    }
  }
  courier.runs = false;
  courier.changed.notify_all();
}

void Remote::send(const Task& task) {
  const Stopwatch watch;
  const auto outcome = ask(Purpose::write, [&](const normjit_remote& store, char* why, std::size_t size) {
    return store.put == nullptr
               ? kCannot
               : store.put(store.user, value_key(task.id).c_str(), task.value.data(), task.value.size(),
                           in_milliseconds(settings_.limits.offer), why, size);
  });
  if (!task.done) return;
  task.done({.asked = outcome.has_value(),
             .stored = outcome && outcome->kind == NORMJIT_REMOTE_DONE,
             .why = outcome ? outcome->why : "it is down, or takes nothing",
             .bytes = task.value.size(),
             .milliseconds = watch.milliseconds()});
}

void Remote::release(const std::string& id) {
  const std::string mine = owner();
  ask(Purpose::write, [&](const normjit_remote& store, char* why, std::size_t size) {
    return store.release == nullptr ? kCannot
                                    : store.release(store.user, lease_key(id).c_str(), mine.c_str(),
                                                    in_milliseconds(settings_.limits.look), why, size);
  });
}

}  // namespace normjit
