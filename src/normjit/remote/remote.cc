// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/remote.h"

#include <pthread.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

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

void append_to(void* to, const void* bytes, std::size_t size) {
  static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), size);
}

}  // namespace

Remote::Remote(Settings settings, std::shared_ptr<FileSystem> files, Warn warn)
    : settings_(std::move(settings)),
      files_(std::move(files)),
      warn_(std::move(warn), "remote"),
      sessions_(settings_.store ? Sessions(*settings_.store) : Sessions(settings_.url)),
      breaker_(settings_.url, settings_.store ? "" : settings_.directory, files_, settings_.shared,
               settings_.limits.breaker) {}

Remote::~Remote() {
  std::unique_lock lock(courier_->mutex);
  renew_after_fork();
  courier_->leases.clear();  // nobody is left who compiles
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

std::optional<Outcome> Remote::ask(const Sessions::Call& call) {
  if (cannot_be_opened_ || !breaker_.lets_through()) return {};
  const auto begin = Clock::now();
  Outcome outcome = sessions_.call(call);
  if (outcome.kind == NORMJIT_REMOTE_DONE || outcome.kind == NORMJIT_REMOTE_ABSENT) {
    breaker_.succeeded(Clock::now() - begin);
    return outcome;
  }
  if (!outcome.called) {
    if (outcome.why.empty()) return {};
    cannot_be_opened_ = true;
    warn_(Trouble::unusable, concat({shown(), " is not used: ", outcome.why}));
    return outcome;
  }
  outcome.kind = NORMJIT_REMOTE_FAILED;
  if (outcome.why.empty()) outcome.why = "the store gives no reason";
  if (breaker_.failed())
    warn_(Trouble::down,
          concat({shown(), " failed: ", outcome.why, "; kernels are compiled here, and it is asked again in ",
                  shortest(static_cast<double>(settings_.limits.breaker.pause.count()) / 1000), " s"}));
  return outcome;
}

Result<double> Remote::probe() {
  const Stopwatch watch;
  const Outcome outcome = sessions_.call([&](const normjit_remote& store, char* why, std::size_t size) {
    std::string ignored;
    return store.get(store.user, value_key(std::string(32, '0')).c_str(), 1, append_to, &ignored,
                     in_milliseconds(settings_.limits.look), why, size);
  });
  if (outcome.kind == NORMJIT_REMOTE_DONE || outcome.kind == NORMJIT_REMOTE_ABSENT) {
    breaker_.succeeded({});
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

Remote::Answer Remote::look(const std::string& identity) {
  if (!reads()) return {};
  const Stopwatch watch;
  const std::string key = value_key(entry_id(identity));
  std::string value;
  const auto outcome = ask([&](const normjit_remote& store, char* why, std::size_t size) {
    return store.get(store.user, key.c_str(), kMaxEntryBytes, append_to, &value,
                     in_milliseconds(settings_.limits.look), why, size);
  });
  if (!outcome) return {};
  Answer answer;
  if (outcome->kind == NORMJIT_REMOTE_DONE)
    answer = judge(std::move(value), identity);
  else if (outcome->kind == NORMJIT_REMOTE_ABSENT)
    answer.kind = Kind::absent;
  else
    answer = {.kind = Kind::failed, .why = outcome->why};
  answer.milliseconds = watch.milliseconds();
  return answer;
}

// Behind a lease it looks once more: the last holder puts its value first, and gives the lease back then.
Remote::Answer Remote::look_or_lease(const std::string& identity) {
  const Stopwatch watch;
  Answer answer = look(identity);
  if (answer.kind != Kind::absent || !takes_offers()) return answer;
  // A lease takes two more calls, and a store that answers slowly is better left alone.
  if (answer.milliseconds >= static_cast<double>(settings_.limits.breaker.slow.count())) return answer;
  const std::string id = entry_id(identity);
  const auto latest = Clock::now() + settings_.limits.patience;
  double waited = 0;
  for (std::uint64_t noise = random_number();; noise = noise * 6364136223846793005u + 1442695040888963407u) {
    std::string why;
    const Lease lease = this->lease(id, why);
    if (!why.empty()) answer = {.kind = Kind::failed, .why = why};
    if (lease == Lease::granted) answer = look(identity);
    if (lease == Lease::granted && answer.kind == Kind::entry) give_up(identity);
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
  bool can = true;
  const std::string key = lease_key(id), mine = owner();
  const auto outcome =
      ask([&](const normjit_remote& store, char* reason, std::size_t size) -> normjit_remote_outcome {
        can = store.lease != nullptr;
        if (!can) return NORMJIT_REMOTE_DONE;
        return store.lease(store.user, key.c_str(), mine.c_str(), in_milliseconds(settings_.limits.lease),
                           in_milliseconds(settings_.limits.look), reason, size);
      });
  if (outcome && outcome->kind == NORMJIT_REMOTE_FAILED) why = outcome->why;
  if (!outcome || !can || outcome->kind == NORMJIT_REMOTE_FAILED) return Lease::none;
  if (outcome->kind == NORMJIT_REMOTE_ABSENT) return Lease::held;
  const std::lock_guard lock(courier_->mutex);
  courier_->leases[id] = Clock::now() + settings_.limits.renew;
  if (!courier_->runs && !start_thread()) courier_->leases.erase(id);  // it ends by itself
  courier_->changed.notify_all();
  return Lease::granted;
}

void Remote::offer(const Entry& entry, Done done, bool wait) {
  const std::string id = entry_id(entry.identity);
  if (!takes_offers()) {
    if (done) done({.why = "there is no key to sign it with"});
    return;
  }
  const std::shared_ptr<const Keys> keys = this->keys();
  push({.id = id,
        .value = seal(encode(entry), keys->secret ? &*keys->secret : nullptr),
        .done = std::move(done)},
       wait);
}

void Remote::give_up(const std::string& identity) { push({.id = entry_id(identity)}, false); }

void Remote::push(Task task, bool wait) {
  std::unique_lock lock(courier_->mutex);
  renew_after_fork();
  task.leased = courier_->leases.contains(task.id);
  if (task.value.empty() && !task.leased) return;
  const auto full = [&] { return courier_->tasks.size() >= settings_.limits.offers; };
  while (wait && full() && courier_->runs) courier_->changed.wait(lock);
  if (full() && !task.value.empty()) {
    task.value.clear();
    lock.unlock();
    if (const Done done = std::exchange(task.done, {})) done({.why = "too many wait to be offered"});
    warn_(Trouble::unsent,
          concat({"kernels are compiled faster than ", shown(), " takes them: some are not offered"}));
    lock.lock();
  }
  courier_->tasks.push_back(std::move(task));
  std::deque<Task> unsent;
  if (!courier_->runs && !start_thread()) unsent.swap(courier_->tasks);
  courier_->changed.notify_all();
  lock.unlock();
  for (const Task& one : unsent)
    if (one.done) one.done({.why = "the system starts no thread"});
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

// With the mutex held. Signals are left to the host's threads.
bool Remote::start_thread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread([this, courier = courier_] { run(*courier); }).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  courier_->runs = started;
  return started;
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

void Remote::carry_out_tasks(Courier& courier) {
  std::unique_lock lock(courier.mutex);
  while (!courier.tasks.empty() || !courier.leases.empty()) {
    if (!courier.tasks.empty()) {
      Task task = std::move(courier.tasks.front());
      courier.tasks.pop_front();
      courier.leases.erase(task.id);
      courier.sends = true;
      courier.changed.notify_all();
      lock.unlock();
      if (!task.value.empty()) send(task);
      if (task.leased) release(task.id);
      task = {};
      lock.lock();
      courier.sends = false;
      courier.changed.notify_all();
      continue;
    }
    const auto next =
        std::ranges::min_element(courier.leases, {}, [](const auto& lease) { return lease.second; });
    if (const auto when = next->second; Clock::now() < when) {
      courier.changed.wait_until(lock, when);
      continue;
    }
    const std::string id = next->first;
    lock.unlock();
    std::string ignored;
    const bool renewed = lease(id, ignored) == Lease::granted;
    lock.lock();
    if (!renewed) courier.leases.erase(id);
  }
  courier.runs = false;
  courier.changed.notify_all();
}

void Remote::send(const Task& task) {
  const Stopwatch watch;
  const auto outcome =
      ask([&](const normjit_remote& store, char* why, std::size_t size) -> normjit_remote_outcome {
        if (store.put == nullptr) return NORMJIT_REMOTE_ABSENT;
        return store.put(store.user, value_key(task.id).c_str(), task.value.data(), task.value.size(),
                         in_milliseconds(settings_.limits.offer), why, size);
      });
  if (!task.done) return;
  task.done({.asked = outcome.has_value(),
             .stored = outcome && outcome->kind == NORMJIT_REMOTE_DONE,
             .why = outcome ? outcome->why : "it does not answer",
             .bytes = task.value.size(),
             .milliseconds = watch.milliseconds()});
}

void Remote::release(const std::string& id) {
  const std::string mine = owner();
  ask([&](const normjit_remote& store, char* why, std::size_t size) -> normjit_remote_outcome {
    if (store.release == nullptr) return NORMJIT_REMOTE_DONE;
    return store.release(store.user, lease_key(id).c_str(), mine.c_str(),
                         in_milliseconds(settings_.limits.look), why, size);
  });
}

}  // namespace normjit
