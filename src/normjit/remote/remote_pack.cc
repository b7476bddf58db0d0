// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/remote_pack.h"

#include <sys/stat.h>

#include <new>
#include <utility>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/cache/atomic_file.h"
#include "normjit/cache/file_names.h"
#include "normjit/cache/key_lock.h"
#include "normjit/cache/pack.h"
#include "normjit/cache/read_file.h"
#include "normjit/remote/signature.h"
#include "normjit/remote/signed_pack.h"

namespace normjit {
namespace {

// Beside the pack: the version that the server gave it.
constexpr std::string_view kVersionSuffix = ".etag";
constexpr std::int64_t kMaxVersionBytes = 1024;

// A pack that may not be there yet.
class Fetched final : public Tier {
 public:
  Fetched(const std::string& path, std::shared_ptr<FileSystem> files, bool shared, Believes believes)
      : files_(files), pack_(path, std::move(files), shared, std::move(believes)) {}

  const std::string& path() const override { return pack_.path(); }
  Lookup look(const std::string& identity) const override { return pack_.look(identity); }
  Result<std::vector<Listed>> list() const override {
    if (struct stat facts = {}; files_->lstat(path().c_str(), &facts) != 0) return std::vector<Listed>();
    return pack_.list();
  }

 private:
  const std::shared_ptr<FileSystem> files_;
  const Pack pack_;
};

// What came of a fetch does not matter: there is a pause behind it. It begins when the pack can be found, and
// before the lock is given up.
struct Paused {
  ~Paused() { fetched.failed(); }
  Breaker& fetched;
};

// "https://host/kernels.njp.minisig?query".
std::string signature_url(const std::string& url) {
  const std::size_t end = url.find('?');
  return concat({url.substr(0, end), kSignatureSuffix, end == url.npos ? "" : url.substr(end)});
}

}  // namespace

RemotePack::RemotePack(Settings settings, std::shared_ptr<FileSystem> files, Warn warn, Fetch fetch)
    : settings_(std::move(settings)),
      files_(std::move(files)),
      fetch_(std::move(fetch)),
      id_(digest(concat({"normjit-pack ", settings_.url}))),
      fetched_(concat({"pack ", settings_.url}), settings_.directory, files_, settings_.shared,
               {.pause = settings_.limits.pause}),
      warn_(std::move(warn), "remote pack"),
      layer_(std::make_shared<const Fetched>(
          path_to(settings_.directory, id_, kPackSuffix), files_, settings_.shared,
          settings_.unsigned_values ? Believes() : signed_by(settings_.trust, files_, settings_.shared))) {}

std::string RemotePack::shown() const { return shown_url(settings_.url); }

void RemotePack::refresh() noexcept try {
  if (!fetched_.lets_through()) return;
  if (const auto fetched = fetch(); !fetched)
    warn_(fetched.code() == Code::Untrusted ? Trouble::untrusted : Trouble::failed,
          concat({fetched.error().message, "; kernels are compiled instead"}));
} catch (const std::bad_alloc&) {  // a pack that cannot be had
}

Result<void> RemotePack::fetch() {
  if (settings_.directory.empty())
    return Error{Code::BadArgument, "a pack is fetched to the cache directory, and there is none"};
  if (settings_.trust.empty() && !settings_.unsigned_values)
    return Error{Code::BadArgument,
                 concat({shown(), " is not fetched, since no key is trusted: set NORMJIT_TRUST"})};
  const KeyLock lock =
      KeyLock::of_id(*files_, settings_.directory, id_, settings_.shared, 2 * settings_.limits.fetch);
  if (lock.waited().count() > 0 && !fetched_.lets_through()) return {};  // another process has fetched it
  const Paused paused{fetched_};
  std::string bytes, version;
  const Outcome outcome =
      fetch_(settings_.url, this->version(), settings_.limits.bytes, settings_.limits.fetch, bytes, version);
  if (outcome.kind == NORMJIT_REMOTE_UNCHANGED) return {};
  if (outcome.kind == NORMJIT_REMOTE_ABSENT) return Error{Code::CacheIo, concat({"there is no ", shown()})};
  if (outcome.kind != NORMJIT_REMOTE_DONE) return Error{Code::CacheIo, outcome.why};

  const auto signature = settings_.unsigned_values ? Result<std::string>("") : fetch_signature();
  if (!signature) return signature.error();
  if (auto sound = check(bytes, *signature); !sound) return sound;
  // A reader in between finds an older pack with the new signature, or the new one: it believes neither
  // wrongly.
  if (!signature->empty())
    if (auto kept = publish(concat({kPackSuffix, kSignatureSuffix}), *signature); !kept) return kept;
  if (auto kept = publish(kPackSuffix, bytes); !kept) return kept;
  return publish(kVersionSuffix, version);
}

Result<std::string> RemotePack::fetch_signature() const {
  std::string signature, version;
  const Outcome outcome = fetch_(signature_url(settings_.url), "", kMaxSignatureBytes, settings_.limits.fetch,
                                 signature, version);
  if (outcome.kind == NORMJIT_REMOTE_DONE) return signature;
  if (outcome.kind == NORMJIT_REMOTE_ABSENT)
    return Error{Code::Untrusted, concat({shown(), " is not signed: there is no ", kSignatureSuffix,
                                          " file beside it, and only packs of trusted keys are taken"})};
  return Error{Code::CacheIo, outcome.why};
}

Result<void> RemotePack::check(const std::string& bytes, const std::string& signature) const {
  if (!settings_.unsigned_values) {
    const auto trust = Trust::of(settings_.trust);
    if (!trust) return trust.error();
    if (auto trusted = check_signature(*trust, bytes, signature, shown(), ""); !trusted) return trusted;
  }
  return Pack(shown(), std::string_view(bytes)).check();
}

Result<void> RemotePack::publish(std::string_view suffix, const std::string& bytes) const {
  AtomicFile file(*files_, settings_.directory, file_name(id_, suffix), settings_.shared);
  if (auto created = file.create(); !created) return created;
  if (auto written = file.write(bytes); !written) return written;
  return file.publish(/*replace=*/true);
}

// Empty unless its pack is there, sound and believed: its signature may be new while its bytes are not.
std::string RemotePack::version() const {
  if (struct stat facts = {}; files_->lstat(layer_->path().c_str(), &facts) != 0) return {};
  if (layer_->look({}).kind != Lookup::Kind::absent) return {};
  const std::string path = path_to(settings_.directory, id_, kVersionSuffix);
  OpenFile file(*files_, path, settings_.shared);
  std::string version;
  if (!file.read_all(kMaxVersionBytes, version)) return {};
  // It becomes a header of a request.
  for (const char c : version)
    if (c < ' ' || c > '~') return {};
  return version;
}

}  // namespace normjit
