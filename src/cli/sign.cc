// SPDX-License-Identifier: Apache-2.0
// Keys and signatures, in minisign's formats.
#include <sys/stat.h>

#include <filesystem>
#include <memory>

#include "cli/command_line.h"
#include "normjit/base/text.h"
#include "normjit/cache/atomic_file.h"
#include "normjit/cache/read_file.h"
#include "normjit/cache/system_call.h"
#include "normjit/remote/secret_bytes.h"
#include "normjit/remote/signature.h"
#include "verify/foreign_text.h"

namespace normjit::cli {
namespace {

constexpr std::string_view kSuffix = ".minisig";
// Signing reads a file as a whole.
constexpr std::int64_t kMaxFileBytes = std::int64_t{4} << 30;
constexpr std::int64_t kMaxSignatureBytes = 65536;

// A file in an existing directory, complete or not at all.
class OutputFile {
 public:
  OutputFile(FileSystem& files, const std::string& path, unsigned mode)
      : files_(files),
        path_(path),
        whole_(path),
        file_(files, directory(), whole_.filename().string(), false, mode) {}

  void write(std::string_view bytes) {
    struct stat facts = {};
    if (files_.lstat(directory().c_str(), &facts) < 0) throw Exception(io_error("find", directory(), errno));
    file_.create().value();
    file_.write(bytes).value();
  }
  void publish(bool replace) {
    file_.publish(replace).value();
    if (file_.was_taken()) throw Exception(taken());
  }
  // Throws where there is such a file already.
  void expect_free() const {
    struct stat facts = {};
    if (files_.lstat(path_.c_str(), &facts) == 0) throw Exception(taken());
  }

 private:
  std::string directory() const { return whole_.has_parent_path() ? whole_.parent_path().string() : "."; }
  Error taken() const {
    return {Code::CacheIo,
            path_ + " exists already, and stays; name another file, or replace it with --force"};
  }

  FileSystem& files_;
  const std::string path_;
  const std::filesystem::path whole_;
  AtomicFile file_;
};

// Reads a whole file, which any user may own: a file to sign, or one whose signature is checked.
Result<std::string> read_whole(FileSystem& files, const std::string& path, std::int64_t limit) {
  OpenFile file(files, path, /*shared=*/true, OpenFile::Links::follow);
  std::string bytes;
  if (!file.read_all(limit, bytes)) return Error{Code::CacheIo, file.trouble().error};
  return bytes;
}

// --- keygen

struct KeygenCommand : CommonOptions {
  std::string secret, public_key;
  bool force = false;
};

int keygen(const KeygenCommand& options) {
  const auto plain = [](const std::string& path) { return std::filesystem::weakly_canonical(path); };
  if (plain(options.secret) == plain(options.public_key))
    return fail(kUsage, "--secret and --public name the same file; the two keys need one each");
  const auto files = make_posix_file_system();
  constexpr unsigned kOwnerOnly = 0600;
  OutputFile secret(*files, options.secret, kOwnerOnly), known(*files, options.public_key, AtomicFile::kMode);
  if (!options.force) {
    secret.expect_free();
    known.expect_free();
  }
  if (const std::string error = sodium_error(); !error.empty()) return fail(kEnvironment, error);
  const SecretKey key = SecretKey::generate().value();
  known.write(key.public_file_text());
  std::string text = key.file_text();
  try {
    secret.write(text);
  } catch (...) {
    wipe(text);
    throw;
  }
  wipe(text);
  secret.publish(options.force);
  known.publish(options.force);
  print("public key " + key.public_key().text() + "\nsecret key in " + options.secret + ", public key in " +
        options.public_key + "\n");
  return kDone;
}

// --- file

struct FileCommand : CommonOptions {
  std::string key, comment;
  std::vector<std::string> paths;
};

int sign_files(const FileCommand& options) {
  const std::string path = options.key.empty() ? Options::from_environment().sign_key : options.key;
  if (path.empty()) return fail(kUsage, kNoSignKey);
  if (oracle::printable(options.comment) != options.comment ||
      options.comment.find('\n') != std::string::npos)
    return fail(kUsage, "--comment has control characters; it is one line of text");
  if (options.comment.size() > kMaxTrustedComment)
    return fail(kUsage, concat({"--comment has ", shortest(options.comment.size()), " bytes; it may have ",
                                shortest(kMaxTrustedComment)}));
  if (const std::string error = sodium_error(); !error.empty()) return fail(kEnvironment, error);
  const SecretKey key = SecretKey::read(path).value();
  const auto files = make_posix_file_system();
  for (const std::string& each : options.paths) {
    const std::string bytes = read_whole(*files, each, kMaxFileBytes).value();
    OutputFile signature(*files, each + std::string(kSuffix), AtomicFile::kMode);
    signature.write(key.sign_file(bytes, options.comment));
    signature.publish(/*replace=*/true);
    print(oracle::printable(each) + std::string(kSuffix) + ": signed by " + key.public_key().name() + "\n");
  }
  return kDone;
}

// --- check

struct CheckCommand : CommonOptions {
  std::vector<std::string> trust, paths;
};

int check(const CheckCommand& options) {
  const std::vector<std::string> trusted =
      options.trust.empty() ? Options::from_environment().trust : options.trust;
  if (trusted.empty())
    return fail(kUsage,
                "there is no key to trust: set --trust or NORMJIT_TRUST to public keys or their files");
  const Trust trust = Trust::of(trusted).value();
  if (const std::string error = sodium_error(); !error.empty()) return fail(kEnvironment, error);
  const auto files = make_posix_file_system();
  int untrusted = 0;
  for (const std::string& path : options.paths) {
    const std::string bytes = read_whole(*files, path, kMaxFileBytes).value();
    const auto signature = read_whole(*files, path + std::string(kSuffix), kMaxSignatureBytes);
    std::string comment;
    const Trusted outcome = signature ? trust.check_file(bytes, *signature, &comment) : Trusted::malformed;
    untrusted += outcome != Trusted::yes;
    const std::string said = outcome == Trusted::yes ? "trusted" + (comment.empty() ? "" : ": " + comment)
                             : signature             ? "not trusted: " + std::string(reason(outcome))
                                                     : "not trusted: " + signature.error().message;
    print(oracle::printable(path + ": " + said) + "\n");
  }
  if (untrusted == 0) return kDone;
  return fail(kUntrusted, concat({shortest(untrusted), " of ", shortest(options.paths.size()),
                                  " not trusted; take them from their maker again, or trust another key"}));
}

}  // namespace

void add_sign(CommandLine& line) {
  CLI::App* const group =
      line.add_group("sign", "Make keys, sign files and check signatures, as minisign does");
  group->footer(std::string(R"(Examples:
  normjit sign keygen --secret release.key --public release.pub
  normjit sign file --key release.key kernels.njp
  normjit sign check --trust release.pub kernels.njp

Keys and signatures are those of minisign, and need libsodium on this machine.

)") + kExitCodes);

  auto [make, keys] = line.add_to(
      group, "keygen", "Make a key: a secret one to sign with, a public one to check with", keygen);
  make->add_option("--secret", keys.secret, "The file for the secret key, which only you can then read")
      ->required();
  make->add_option("--public", keys.public_key, "The file for the public key")->required();
  make->add_flag("--force", keys.force, "Replace files that exist");
  make->footer(std::string(R"(Example:
  normjit sign keygen --secret release.key --public release.pub

The secret key has no password: whoever can read its file can sign.

)") + kExitCodes);

  auto [sign, what] = line.add_to(group, "file", "Sign files: writes PATH.minisig beside each", sign_files);
  sign->add_option("PATH", what.paths, "The files to sign")->required();
  sign->add_option("--key", what.key, "The file of the secret key; else NORMJIT_SIGN_KEY");
  sign->add_option("--comment", what.comment, "One line that is signed too, and that check prints");
  sign->footer(std::string(R"(Example:
  normjit sign file --key release.key kernels.njp --comment 'kernels of release 7'

)") + kExitCodes);

  auto [verify, whom] =
      line.add_to(group, "check", "Check the signature in PATH.minisig of each file", check);
  verify->add_option("PATH", whom.paths, "The files to check")->required();
  verify
      ->add_option("--trust", whom.trust, "A public key (RW...) or its file; repeatable; else NORMJIT_TRUST")
      ->allow_extra_args(false);
  verify->footer(std::string(R"(Examples:
  normjit sign check --trust release.pub kernels.njp
  NORMJIT_TRUST='one.pub two.pub' normjit sign check *.njp

Exit status 5 if a signature is missing or wrong, or of a key that is not trusted.

)") + kExitCodes);
}

}  // namespace normjit::cli
