// SPDX-License-Identifier: Apache-2.0
#include "normjit/cache/cache.h"

#include <utility>

#include "normjit/base/text.h"
#include "normjit/cache/pack.h"

namespace normjit {

using Kind = Lookup::Kind;

std::optional<Memory::Kept> Memory::find(const std::string& identity) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(identity);
  if (found == kept_.end()) return {};
  return found->second;
}

void Memory::keep(const Entry& entry, bool only_here) {
  const std::lock_guard lock(mutex_);
  if (const auto old = kept_.find(entry.identity); old != kept_.end()) {
    if (!old->second.only_here) {
      spare_bytes_ -= old->second.entry.body.size();
      std::erase(spare_, entry.identity);
    }
    kept_.erase(old);
  }
  kept_.emplace(entry.identity, Kept{entry, only_here});
  if (only_here) return;
  spare_.push_back(entry.identity);
  spare_bytes_ += entry.body.size();
  while (spare_bytes_ > kSpareBytes) {
    const auto oldest = kept_.find(spare_.front());
    spare_bytes_ -= oldest->second.entry.body.size();
    kept_.erase(oldest);
    spare_.pop_front();
  }
}

Cache::Cache(Settings settings, std::shared_ptr<FileSystem> files, Warn warn)
    : settings_(std::move(settings)),
      files_(std::move(files)),
      directory_(settings_.directory, files_, warn,
                 {.max_bytes = settings_.max_bytes, .shared = settings_.shared}),
      warn_(std::move(warn)) {
  Layers layers;
  for (const std::string& path : settings_.layers)
    if (!path.empty()) layers.push_back(make_layer(path, files_, settings_.shared, settings_.believes));
  layers_ = std::make_shared<const Layers>(std::move(layers));
  if (!settings_.embedded.empty()) embedded_ = std::make_unique<Pack>("embedded", settings_.embedded);
}

std::shared_ptr<const Cache::Layers> Cache::layers() const {
  const std::lock_guard lock(mutex_);
  return layers_;
}

Result<void> Cache::add_layer(std::string pack) {
  const auto bytes = std::make_shared<const std::string>(std::move(pack));
  // Without a number, which only a pack gets that is added.
  if (auto valid = Pack("the layer in memory", bytes).check(); !valid) return valid;
  // A pack has a ForkMutex of its own, and must not be made under this one. So two threads that add packs may
  // add the second number first.
  add_layer(std::make_shared<const Pack>(concat({"memory layer ", shortest(++memory_layers_)}), bytes));
  return {};
}

void Cache::add_layer(std::shared_ptr<const Tier> layer) {
  for (std::shared_ptr<const Layers> before = layers();;) {
    auto longer = std::make_shared<Layers>(*before);
    longer->push_back(layer);
    std::shared_ptr<const Layers> after = std::move(longer);
    const std::lock_guard lock(mutex_);
    if (layers_ == before) {
      layers_.swap(after);
      return;
    }
    before = layers_;
  }
}

std::optional<Cache::Found> Cache::find(const std::string& identity, const Accepts& accepts,
                                        const Warn& on_damaged) {
  const auto will_do = [&](const Entry& entry) { return !accepts || accepts(entry); };
  if (auto kept = memory_.find(identity); kept && will_do(kept->entry))
    return Found{std::move(kept->entry), Place::memory, !kept->only_here};
  if (Entry entry; directory_.find(identity, entry, on_damaged) && will_do(entry))
    return Found{std::move(entry), Place::directory};
  const auto layers = this->layers();
  for (const auto& layer : *layers) {
    if (auto entry = find_in(*layer, identity, accepts, on_damaged)) {
      static_cast<void>(directory_.fill(*entry));  // best effort
      return Found{*std::move(entry), Place::layer};
    }
  }
  if (embedded_)
    if (auto entry = find_in(*embedded_, identity, accepts, on_damaged))
      return Found{*std::move(entry), Place::embedded};
  return {};
}

std::optional<Entry> Cache::find_in(const Tier& tier, const std::string& identity, const Accepts& accepts,
                                    const Warn& on_damaged) {
  Lookup lookup = tier.look(identity);
  if (lookup.kind == Kind::entry && (!accepts || accepts(lookup.entry))) return std::move(lookup.entry);
  if (lookup.kind == Kind::entry || lookup.kind == Kind::absent) return {};
  if (lookup.kind == Kind::damaged) {
    ++damaged_;
    if (on_damaged) on_damaged(lookup.error);
  }
  if (&tier == embedded_.get())
    warn_(Trouble::embedded, lookup.error + "; the compiler is used");
  else
    warn_(Trouble::layer, lookup.error + "; it stays as it is; the next layer or the compiler is used");
  return {};
}

bool Cache::store(const Entry& entry, bool replace, const Warn& on_refused) {
  const bool stored = directory_.store(entry, replace, on_refused);
  memory_.keep(entry, /*only_here=*/!stored);
  return stored;
}

bool Cache::take_over(const Entry& entry, bool replace) {
  const bool stored = !settings_.directory.empty() &&
                      (replace ? directory_.store(entry, replace) : directory_.fill(entry).ok());
  if (!stored) memory_.keep(entry, /*only_here=*/true);
  return stored;
}

KeyLock Cache::lock(const std::string& identity, const std::function<void()>& on_wait) {
  if (settings_.directory.empty()) return {};
  KeyLock lock = KeyLock::of_id(*files_, settings_.directory, entry_id(identity), settings_.shared,
                                settings_.patience, on_wait);
  if (lock.state() == KeyLock::State::busy) {
    warn_(Trouble::stalled, "another process has locked the entry " + entry_id(identity) + " for " +
                                std::to_string(lock.waited().count() / 1'000'000) +
                                " ms: it is stopped, or the machine is very busy; going on without the lock");
  }
  return lock;
}

Result<std::vector<Listed>> Cache::list() const {
  Result<std::vector<Listed>> entries = directory_.list();
  if (!entries) return entries;
  const auto layers = this->layers();
  for (const auto& layer : *layers) {
    Result<std::vector<Listed>> more = layer->list();
    if (!more) continue;
    for (Listed& listed : *more) entries->push_back(std::move(listed));
  }
  return entries;
}

Cache::Look Cache::look(const std::string& identity, const Accepts& accepts) const {
  Look first;
  const auto ends_at = [&](const std::string& tier, Lookup lookup) {
    const bool will_do = lookup.kind == Kind::entry && (!accepts || accepts(lookup.entry));
    if (will_do || first.lookup.kind == Kind::absent) first = {tier, std::move(lookup)};
    return will_do;
  };
  if (auto kept = memory_.find(identity))
    if (ends_at("memory", {.kind = Kind::entry, .entry = std::move(kept->entry)})) return first;
  if (ends_at(directory_.path(), directory_.look(identity))) return first;
  const auto layers = this->layers();
  for (const auto& layer : *layers)
    if (ends_at(layer->path(), layer->look(identity))) return first;
  if (embedded_) ends_at(embedded_->path(), embedded_->look(identity));
  return first;
}

}  // namespace normjit
