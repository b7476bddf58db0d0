// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/remote_pack.h"

#include <sys/stat.h>

#include <deque>
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

// "https://host/kernels.njp.minisig?query".
std::string signature_url(const std::string& url) {
  const std::size_t end = url.find('?');
  return concat({url.substr(0, end), kSignatureSuffix, end == url.npos ? "" : url.substr(end)});
}

// Where no key is trusted, and a signature is asked for.
Result<void> believe_nothing(std::string_view, const std::string& path) {
  return Error{Code::Untrusted, concat({"the pack ", path, " is not used, since no key is trusted"})};
}

}  // namespace

// Neither the password nor a token in the query may be guessed from a file's name.
RemotePack::RemotePack(Settings settings, std::shared_ptr<FileSystem> files, Warn warn, Fetch fetch)
    : settings_(std::move(settings)),
      files_(std::move(files)),
      fetch_(std::move(fetch)),
      id_(digest(concat({"normjit-pack ", shown()}))),
      fetched_(concat({"pack ", shown()}), settings_.directory, files_, settings_.shared,
               {.pause = settings_.limits.pause}),
      warn_(std::move(warn), "remote pack") {
  Believes believes;
  if (is_signed())
    believes =
        settings_.trust.empty() ? believe_nothing : signed_by(settings_.trust, files_, settings_.shared);
  layer_ = std::make_shared<const Fetched>(path_to(settings_.directory, id_, kPackSuffix), files_,
                                           settings_.shared, std::move(believes));
}

std::string RemotePack::shown() const { return shown_url(settings_.url); }

// Others wait for the first one, and then see that nothing is due. That is looked at again soon: another
// process may have fetched.
void RemotePack::refresh() noexcept try {
  if (!is_due()) return;
  const KeyLock lock = this->lock();
  if (!fetched_.lets_through()) {
    pause_for(settings_.limits.pause / 30);
  } else if (const auto fetched = fetch_now(); !fetched) {
    warn_(fetched.code() == Code::Untrusted ? Trouble::untrusted : Trouble::failed,
          concat({fetched.error().message, "; kernels are compiled instead"}));
  }
  ++changes_;
} catch (const std::bad_alloc&) {  // a pack that cannot be had
}

Result<void> RemotePack::fetch() {
  const KeyLock lock = this->lock();
  return fetch_now();
}

KeyLock RemotePack::lock() const {
  if (settings_.directory.empty()) return {};
  return KeyLock::of_id(*files_, settings_.directory, id_, settings_.shared, 2 * settings_.limits.fetch);
}

// What can be known before anything is asked for.
Result<void> RemotePack::usable() const {
  if (settings_.directory.empty())
    return Error{Code::BadArgument, "a pack is fetched to the cache directory, and there is none"};
  if (!is_signed()) return {};
  if (settings_.trust.empty())
    return Error{Code::BadArgument,
                 concat({shown(), " is not fetched, since no key is trusted: set NORMJIT_TRUST"})};
  if (const std::string error = sodium_error(); !error.empty()) return Error{Code::CacheIo, error};
  return {};
}

// A pack that is signed is new if its signature is. That comes first: it is small, and tells whose it is.
Result<void> RemotePack::fetch_now() {
  const auto done = [&](Result<void> outcome) {
    // However it ended, there is a pause. It begins when the pack can be found.
    fetched_.failed();
    pause_for(settings_.limits.pause);
    return outcome;
  };
  if (auto usable = this->usable(); !usable) return done(std::move(usable));
  const auto trust = Trust::of(settings_.trust);
  if (!trust) return done(trust.error());

  std::string pack, signature, version, ignored;
  const auto take = [&](const std::string& url, const std::string& known, std::int64_t most,
                        std::string& bytes, std::string& new_version) {
    return fetch_(url, known, static_cast<std::size_t>(most), settings_.limits.fetch, bytes, new_version);
  };
  Outcome outcome = is_signed() ? take(signature_url(settings_.url), this->version(), kMaxSignatureBytes,
                                       signature, version)
                                : take(settings_.url, this->version(), kMaxSignedPackBytes, pack, version);
  if (!outcome.called && outcome.why.empty()) return {};  // the process ends
  if (outcome.kind == NORMJIT_REMOTE_UNCHANGED) return done({});
  if (is_signed() && outcome.kind == NORMJIT_REMOTE_ABSENT)
    return done(
        Error{Code::Untrusted, concat({shown(), " is not signed: there is no ", kSignatureSuffix,
                                       " file beside it, and only packs of trusted keys are taken"})});
  if (is_signed() && outcome.kind == NORMJIT_REMOTE_DONE) {
    const Trusted whose = trust->check_file("", signature);
    if (whose == Trusted::malformed || whose == Trusted::unknown_key)
      return done(Error{Code::Untrusted, concat({shown(), " is not trusted: ", reason(whose)})});
    outcome = take(settings_.url, "", kMaxSignedPackBytes, pack, ignored);
  }
  if (outcome.kind == NORMJIT_REMOTE_ABSENT)
    return done(Error{Code::CacheIo, concat({"there is no ", shown()})});
  if (outcome.kind != NORMJIT_REMOTE_DONE) return done(Error{Code::CacheIo, outcome.why});
  if (is_signed())
    if (auto trusted = check_signature(*trust, pack, signature, shown(), ""); !trusted)
      return done(std::move(trusted));
  if (auto sound = Pack(shown(), std::string_view(pack)).check(); !sound) return done(std::move(sound));
  return done(keep(pack, signature, version));
}

// All are written before one gets its name: a full disk changes nothing. Who looks between two names finds a
// pack with another's signature, and believes it a second later.
Result<void> RemotePack::keep(const std::string& pack, const std::string& signature,
                              const std::string& version) const {
  std::deque<AtomicFile> written;
  const auto write = [&](std::string_view suffix, const std::string& bytes) -> Result<void> {
    AtomicFile& file =
        written.emplace_back(*files_, settings_.directory, file_name(id_, suffix), settings_.shared);
    if (auto created = file.create(); !created) return created;
    return file.write(bytes);
  };
  if (is_signed())
    if (auto done = write(concat({kPackSuffix, kSignatureSuffix}), signature); !done) return done;
  if (auto done = write(kPackSuffix, pack); !done) return done;
  if (auto done = write(kVersionSuffix, version); !done) return done;
  for (AtomicFile& file : written)
    if (auto done = file.publish(/*replace=*/true); !done) return done;
  return {};
}

// Of what has been fetched; empty unless the pack is there, sound and believed.
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
