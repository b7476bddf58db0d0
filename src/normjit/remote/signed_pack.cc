// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/signed_pack.h"

#include <utility>

#include "normjit/base/text.h"
#include "normjit/cache/read_file.h"

namespace normjit {

Result<void> check_signature(const Trust& trust, std::string_view bytes, std::string_view signature,
                             std::string_view pack, std::string_view where) {
  const Trusted outcome = trust.check_file(bytes, signature);
  if (outcome == Trusted::yes) return {};
  if (outcome == Trusted::unavailable) return Error{Code::CacheIo, sodium_error()};
  return Error{Code::Untrusted, concat({pack, " is not trusted: ", reason(outcome), where})};
}

Result<void> check_signed(const Trust& trust, std::string_view bytes, const std::string& path,
                          FileSystem& files, bool shared) {
  const std::string beside = concat({path, kSignatureSuffix});
  OpenFile file(files, beside, shared, OpenFile::Links::follow);
  std::string signature;
  if (!file.read_all(kMaxSignatureBytes, signature)) {
    if (file.trouble().kind != Lookup::Kind::absent) return Error{Code::CacheIo, file.trouble().error};
    return Error{Code::Untrusted, concat({"the pack ", path, " is not signed: there is no ", beside,
                                          ", and only packs of trusted keys are taken"})};
  }
  return check_signature(trust, bytes, signature, concat({"the pack ", path}), concat({" (", beside, ")"}));
}

Believes signed_by(const std::vector<std::string>& trusted, std::shared_ptr<FileSystem> files, bool shared) {
  if (trusted.empty()) return {};
  return [=, files = std::move(files)](std::string_view bytes, const std::string& path) -> Result<void> {
    const auto trust = Trust::of(trusted);
    if (!trust) return trust.error();
    return check_signed(*trust, bytes, path, *files, shared);
  };
}

}  // namespace normjit
