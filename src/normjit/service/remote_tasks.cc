// SPDX-License-Identifier: Apache-2.0
// Service::remote(): copies kernels between the cache and the store that machines share.
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/service/impl.h"

namespace normjit {
namespace {

using Outcome = RemoteReport::Outcome;
using Found = Remote::Answer::Kind;

// A kernel, and its entry where the cache has one.
struct Item {
  std::string identity;
  std::optional<Entry> here;
};

// Nothing waits to be sent at its end.
struct Flushed {
  ~Flushed() { remote.flush(); }
  Remote& remote;
};

// What the store has of a kernel; its entry, if that is sound.
Remote::Answer look(Remote& remote, const Item& item, RemoteReport::Kernel& kernel) {
  Remote::Answer answer = remote.look(item.identity);
  kernel.why = answer.kind == Found::not_asked ? "the store is down" : answer.why;
  if (answer.kind == Found::entry) kernel.outcome = Outcome::present;
  if (answer.kind == Found::absent) kernel.outcome = Outcome::absent;
  if (answer.kind == Found::untrusted) kernel.outcome = Outcome::untrusted;
  return answer;
}

void fetch(Cache& cache, Remote& remote, const Item& item, RemoteReport::Kernel& kernel) {
  if (item.here) {
    kernel.outcome = Outcome::present;
    return;
  }
  const Remote::Answer answer = look(remote, item, kernel);
  if (answer.kind != Found::entry) return;
  const bool kept = cache.take_over(answer.entry);
  kernel.outcome = kept ? Outcome::copied : Outcome::failed;
  if (!kept) kernel.why = "the cache directory did not keep it";
}

// Looks first, since most stores would take the bytes before they say that they have them. A store that does
// not answer refuses the offer, too. `mutex` guards the kernel.
void send(Remote& remote, const Item& item, RemoteReport::Kernel& kernel, std::mutex& mutex) {
  const Found found = look(remote, item, kernel).kind;
  if (found == Found::entry) return;
  if (!item.here) {
    kernel.outcome = Outcome::absent;
    kernel.why = {};
    return;
  }
  if (found == Found::untrusted) return;
  remote.offer(
      *item.here,
      [&kernel, &mutex](const Remote::Sent& sent) {
        const std::lock_guard lock(mutex);
        kernel.outcome = sent.stored ? Outcome::copied : Outcome::failed;
        kernel.why = sent.why;
      },
      /*wait=*/true);
}

}  // namespace

std::string_view name(RemoteReport::Outcome outcome) noexcept {
  constexpr std::string_view kNames[] = {"present", "copied", "absent", "untrusted", "failed"};
  return kNames[static_cast<int>(outcome)];
}

Result<RemoteReport> Service::remote(RemoteTask task, std::span<const NormSpec> specs,
                                     std::span<const DeviceProfile> devices, const Uses& given) {
  Remote* const remote = impl_->binaries.remote();
  if (remote == nullptr)
    return Error{Code::BadArgument,
                 "no store is configured: set NORMJIT_REMOTE to its URL, as in redis://host:6379/0"};
  if (specs.empty() != devices.empty())
    return Error{Code::BadArgument, specs.empty() ? "devices are given, and no specs for them"
                                                  : "specs are given, and no devices for them"};
  if (specs.empty() && task == RemoteTask::get)
    return Error{Code::BadArgument, "nothing to get: name the specs and the architectures"};
  for (const NormSpec& spec : specs)
    if (auto valid = validate(spec); !valid) return valid.error();
  if (const auto keys = remote->keys(); !keys->error.empty())
    return Error{Code::CacheIo, concat({remote->shown(), " cannot be used: ", keys->error})};
  if (const auto answers = remote->probe(); !answers) return answers.error();

  Cache& cache = impl_->binaries.cache();
  RemoteReport report;
  std::vector<Item> items;
  const auto add = [&](std::string identity, std::string spec, std::string plan, std::string arch,
                       std::optional<Entry> here) {
    report.kernels.push_back({entry_id(identity),
                              std::move(spec),
                              std::move(plan),
                              std::move(arch),
                              RemoteReport::Outcome::failed,
                              {}});
    items.push_back({std::move(identity), std::move(here)});
  };
  if (specs.empty()) {
    const auto listed = cache.list();
    if (!listed) return listed.error();
    std::set<std::string> seen;  // a layer may have what the directory has
    for (const Listed& each : *listed) {
      if (!each.entry || each.entry->fact("code") == "plan" || !seen.insert(each.id).second) continue;
      const auto fact = [&](std::string_view name) { return std::string(each.entry->fact(name)); };
      add(each.entry->identity, fact("spec"), fact("plan"), fact("arch"), *each.entry);
    }
  } else {
    const Uses uses = uses_in(given, impl_->options.batch_invariant);
    for (const KernelReport& kernel : kernels_for(specs, devices, impl_->tuned.list(), uses)) {
      const auto identified = impl_->binaries.identify(kernel.spec, kernel.plan, kernel.arch);
      if (!identified) return identified.error();
      const Cache::Look look = impl_->binaries.look(*identified);
      add(identified->identity, to_text(kernel.spec), to_text(kernel.plan), kernel.arch.name(),
          look.lookup.kind == Lookup::Kind::entry ? std::optional(look.lookup.entry) : std::nullopt);
    }
  }

  std::mutex mutex;
  const Flushed flushed{*remote};  // offers write into the report
  for (std::size_t i = 0; i < items.size(); ++i) {
    RemoteReport::Kernel& kernel = report.kernels[i];
    switch (task) {
      case RemoteTask::get:
        fetch(cache, *remote, items[i], kernel);
        break;
      case RemoteTask::put:
        send(*remote, items[i], kernel, mutex);
        break;
      case RemoteTask::verify:
        look(*remote, items[i], kernel);
        break;
    }
  }
  remote->flush();
  return report;
}

}  // namespace normjit
