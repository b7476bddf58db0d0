// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_store.h"

#include <cstdio>
#include <thread>

namespace normjit::testing {

struct FakeStore::Functions {
  static FakeStore& of(void* user) { return *static_cast<FakeStore*>(user); }

  static normjit_remote_outcome get(void* user, const char* key, std::size_t max_bytes,
                                    normjit_remote_sink sink, void* to, std::int32_t, char* why,
                                    std::size_t why_size) {
    FakeStore& store = of(user);
    if (const auto trouble = store.trouble(store.calls_.get, why, why_size)) return trouble;
    std::string value;
    {
      const std::lock_guard lock(store.mutex_);
      const auto found = store.values_.find(key);
      if (found == store.values_.end()) {
        store.values_.merge(store.later_values_);
        return NORMJIT_REMOTE_ABSENT;
      }
      value = found->second;
    }
    if (value.size() > max_bytes) return NORMJIT_REMOTE_REFUSED;
    sink(to, value.data(), value.size());
    return NORMJIT_REMOTE_DONE;
  }

  static normjit_remote_outcome put(void* user, const char* key, const void* bytes, std::size_t size,
                                    std::int32_t, char* why, std::size_t why_size) {
    FakeStore& store = of(user);
    if (const auto trouble = store.trouble(store.calls_.put, why, why_size)) return trouble;
    std::unique_lock lock(store.mutex_);
    store.changed_.wait(lock, [&] { return !store.held_; });
    store.values_.try_emplace(key, static_cast<const char*>(bytes), size);
    return NORMJIT_REMOTE_DONE;
  }

  static normjit_remote_outcome lease(void* user, const char* key, const char* owner,
                                      std::int32_t lifetime_ms, std::int32_t, char* why,
                                      std::size_t why_size) {
    FakeStore& store = of(user);
    if (const auto trouble = store.trouble(store.calls_.lease, why, why_size)) return trouble;
    const std::lock_guard lock(store.mutex_);
    const std::string_view text = key;
    if (store.values_.contains(std::string(text.substr(0, text.rfind(':'))))) return NORMJIT_REMOTE_ABSENT;
    Lease& held = store.leases_[key];
    if (held.end > Clock::now() && held.owner != owner) return NORMJIT_REMOTE_ABSENT;
    held = {owner, Clock::now() + std::chrono::milliseconds(lifetime_ms)};
    return NORMJIT_REMOTE_DONE;
  }

  static normjit_remote_outcome release(void* user, const char* key, const char* owner, std::int32_t,
                                        char* why, std::size_t why_size) {
    FakeStore& store = of(user);
    if (const auto trouble = store.trouble(store.calls_.release, why, why_size)) return trouble;
    const std::lock_guard lock(store.mutex_);
    const auto held = store.leases_.find(key);
    if (held != store.leases_.end() && held->second.owner == owner) store.leases_.erase(held);
    return NORMJIT_REMOTE_DONE;
  }

  static void close(void* user) {
    FakeStore& store = of(user);
    const std::lock_guard lock(store.mutex_);
    ++store.calls_.close;
  }
};

normjit_remote FakeStore::remote() {
  normjit_remote remote = NORMJIT_REMOTE_INIT;
  remote.user = this;
  remote.get = Functions::get;
  remote.put = Functions::put;
  if (has_leases) {
    remote.lease = Functions::lease;
    remote.release = Functions::release;
  }
  remote.close = Functions::close;
  return remote;
}

normjit_remote_outcome FakeStore::trouble(int& count, char* why, std::size_t why_size) {
  if (const int delay = delay_ms_; delay > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay));
  const std::lock_guard lock(mutex_);
  ++count;
  const bool refuses = why_.empty() && &count != &calls_.get && !refusal_.empty();
  if (why_.empty() && !refuses) return 0;
  std::snprintf(why, why_size, "%s", refuses ? refusal_.c_str() : why_.c_str());
  return refuses ? NORMJIT_REMOTE_REFUSED : NORMJIT_REMOTE_FAILED;
}

void FakeStore::refuse_writes(std::string why) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(why);
}

void FakeStore::fail(std::string why) {
  const std::lock_guard lock(mutex_);
  why_ = std::move(why);
}

void FakeStore::set_behind_a_look(const std::string& key, std::string value) {
  const std::lock_guard lock(mutex_);
  later_values_[key] = std::move(value);
}

void FakeStore::hold_puts() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeStore::release_puts() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

std::map<std::string, std::string> FakeStore::values() const {
  const std::lock_guard lock(mutex_);
  return values_;
}

void FakeStore::set(const std::string& key, std::string value) {
  const std::lock_guard lock(mutex_);
  values_[key] = std::move(value);
}

void FakeStore::clear() {
  const std::lock_guard lock(mutex_);
  values_.clear();
}

void FakeStore::take_lease(const std::string& key, std::chrono::milliseconds lifetime) {
  const std::lock_guard lock(mutex_);
  leases_[key] = {"another machine", Clock::now() + lifetime};
}

bool FakeStore::has_lease(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto held = leases_.find(key);
  return held != leases_.end() && held->second.end > Clock::now();
}

FakeStore::Calls FakeStore::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

}  // namespace normjit::testing
