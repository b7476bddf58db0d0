// SPDX-License-Identifier: Apache-2.0
// Keys and signatures of the real tool, and packs that are signed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "normjit/remote/signature.h"
#include "normjit/service.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class ToolSign : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << error;
    make_key("a");
    std::ofstream(file()) << "what is signed\n";
  }

  void make_key(const std::string& name) const {
    const ToolRun made = run_tool({"sign", "keygen", "--secret", secret(name), "--public", known(name)});
    ASSERT_EQ(made.status, 0) << made.err;
  }
  std::string secret(const std::string& name = "a") const { return directory_ / (name + ".key"); }
  std::string known(const std::string& name = "a") const { return directory_ / (name + ".pub"); }
  std::string file() const { return directory_ / "file"; }
  std::string pack() const { return directory_ / "kernels.njp"; }
  std::string signature() const { return pack() + ".minisig"; }
  std::string key_text(const std::string& name = "a") const {
    return Trust::of({known(name)}).value().keys().at(0).text();
  }
  static std::string contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Fills a cache, and writes its pack, which the key of this name signs.
  void make_signed_pack(const std::string& name = "a") const {
    Options options;
    options.cache_directory = directory_ / "source";
    Service service(options, {.compiler = std::make_shared<FakeCompiler>(), .driver = {}, .files = {}});
    const NormSpec spec{.columns = 8};
    const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
    ASSERT_EQ(service.prebuild({&spec, 1}, {&device, 1}).value().failed, 0);
    const ToolRun made =
        run_tool({"export", pack(), "--cache-dir", directory_ / "source", "--sign", "--key", secret(name)});
    ASSERT_EQ(made.status, 0) << made.err;
  }
  ToolRun import(const std::string& trust) const {
    return run_tool({"import", pack(), "--cache-dir", directory_ / "cache"}, {"NORMJIT_TRUST=" + trust});
  }
  // Expects that nothing was copied.
  void expect_refusal(const ToolRun& run, const std::string& reason) const {
    EXPECT_EQ(run.status, 5) << run.err;
    EXPECT_THAT(run.err, AllOf(StartsWith("normjit: Untrusted: "), HasSubstr(pack()), HasSubstr(reason)));
    EXPECT_FALSE(fs::exists(directory_ / "cache"));
  }

  TempDirectory directory_;
};

TEST_F(ToolSign, HelpSaysHowToUseEachCommand) {
  EXPECT_THAT(run_tool({"--help"}).out,
              AllOf(HasSubstr("\n  sign "), HasSubstr("NORMJIT_TRUST"), HasSubstr("NORMJIT_SIGN_KEY")));
  EXPECT_THAT(run_tool({"sign", "--help"}).out,
              AllOf(HasSubstr("\n  keygen "), HasSubstr("\n  file "), HasSubstr("\n  check ")));
  for (const char* command : {"keygen", "file", "check"}) {
    const ToolRun help = run_tool({"sign", command, "--help"});
    EXPECT_EQ(help.status, 0) << command;
    for (const char* part : {"Example", "Exit status", "  5  "})
      EXPECT_THAT(help.out, HasSubstr(part)) << command;
  }
}

TEST_F(ToolSign, UsageErrorsExitWith2) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"sign"},
      {"sign", "everything"},
      {"sign", "keygen"},
      {"sign", "keygen", "--secret", directory_ / "b.key"},
      {"sign", "keygen", "--secret", directory_ / "b", "--public", directory_ / "b"},
      {"sign", "file", "--key", secret()},
      {"sign", "file", file()},
      {"sign", "file", "--key", known(), file()},
      {"sign", "file", "--key", secret(), "--comment", "two\nlines", file()},
      {"sign", "file", "--key", secret(), "--comment", std::string(kMaxTrustedComment + 1, 'x'), file()},
      {"sign", "check", "--trust", known()},
      {"sign", "check", file()},
      {"sign", "check", "--trust", secret(), file()},
      {"export", pack(), "--sign"},
      {"export", pack(), "--key", secret()},
  };
  for (const auto& arguments : mistakes) {
    const ToolRun run = run_tool(arguments, {"NORMJIT_CACHE_DIR=" + directory_ / "cache"});
    EXPECT_EQ(run.status, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << testing::PrintToString(arguments);
    EXPECT_THAT(run.err, StartsWith("normjit: ")) << testing::PrintToString(arguments);
  }
  EXPECT_FALSE(fs::exists(file() + ".minisig"));
  EXPECT_THAT(run_tool({"sign", "file", file()}).err, HasSubstr("NORMJIT_SIGN_KEY"));
  EXPECT_THAT(run_tool({"sign", "check", file()}).err, HasSubstr("NORMJIT_TRUST"));
}

TEST_F(ToolSign, FilesThatCannotBeReadOrWrittenExitWith4) {
  const std::string absent = directory_ / "absent";
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"sign", "file", "--key", secret(), absent},
           {"sign", "file", "--key", absent, file()},
           {"sign", "check", "--trust", known(), absent},
           {"sign", "check", "--trust", absent, file()},
           {"sign", "keygen", "--secret", absent + "/k", "--public", absent + "/p"}}) {
    const ToolRun run = run_tool(arguments);
    EXPECT_EQ(run.status, 4) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.err, HasSubstr(absent));
  }
  EXPECT_FALSE(fs::exists(absent));
}

TEST_F(ToolSign, ASecretKeyIsForItsOwnerAndIsNotReplaced) {
  struct stat facts = {};
  ASSERT_EQ(::stat(secret().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600u);
  const std::string before = contents(secret()), known_before = contents(known());
  for (const auto& [key, text] :
       {std::pair{secret(), directory_ / "new.pub"}, {directory_ / "new.key", known()}}) {
    const ToolRun again = run_tool({"sign", "keygen", "--secret", key, "--public", text});
    EXPECT_EQ(again.status, 4);
    EXPECT_THAT(again.err, HasSubstr("--force"));
  }
  EXPECT_EQ(contents(secret()), before);
  EXPECT_EQ(contents(known()), known_before);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator()), 3);

  const ToolRun forced = run_tool({"sign", "keygen", "--secret", secret(), "--public", known(), "--force"});
  EXPECT_EQ(forced.status, 0) << forced.err;
  EXPECT_NE(contents(secret()), before);
  EXPECT_THAT(forced.out, HasSubstr(key_text()));
  EXPECT_EQ(SecretKey::read(secret()).value().public_key().text(), key_text());
  const std::string shown = forced.out + forced.err;
  EXPECT_THAT(shown, Not(HasSubstr(contents(secret()).substr(110, 20))));
}

TEST_F(ToolSign, AKeyThatOthersCanReadSignsNothing) {
  ASSERT_EQ(::chmod(secret().c_str(), 0644), 0);
  const ToolRun run = run_tool({"sign", "file", file()}, {"NORMJIT_SIGN_KEY=" + secret()});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("chmod 600"));
}

TEST_F(ToolSign, SignedFilesAreTrusted) {
  const ToolRun run =
      run_tool({"sign", "file", "--key", secret(), file(), known(), "--comment", "release 7"});
  EXPECT_EQ(run.status, 0) << run.err;
  for (const std::vector<std::string>& trust :
       std::vector<std::vector<std::string>>{{"--trust", known()}, {"--trust", key_text()}}) {
    std::vector<std::string> arguments = {"sign", "check", file(), known()};
    arguments.insert(arguments.end(), trust.begin(), trust.end());
    const ToolRun check = run_tool(arguments);
    EXPECT_EQ(check.status, 0) << check.err;
    EXPECT_EQ(check.out, file() + ": trusted: release 7\n" + known() + ": trusted: release 7\n");
  }
  make_key("b");
  EXPECT_EQ(run_tool({"sign", "check", file()}, {"NORMJIT_TRUST=" + known("b") + " " + known()}).status, 0);
  EXPECT_EQ(run_tool({"sign", "check", file()}, {"NORMJIT_TRUST=" + key_text("b") + "," + key_text()}).status,
            0);
}

TEST_F(ToolSign, OthersExitWith5) {
  make_key("b");
  const auto check = [&](const std::string& trust) {
    return run_tool({"sign", "check", "--trust", trust, file()});
  };
  EXPECT_THAT(check(known()).out, AllOf(HasSubstr(": not trusted: "), HasSubstr("No such file")));
  ASSERT_EQ(run_tool({"sign", "file", file()}, {"NORMJIT_SIGN_KEY=" + secret()}).status, 0);
  EXPECT_EQ(check(known()).status, 0);
  EXPECT_THAT(check(known("b")).out, HasSubstr("of a key that is not trusted"));
  std::ofstream(file(), std::ios::app) << "and more";
  const ToolRun run = check(known());
  EXPECT_EQ(run.status, 5);
  EXPECT_EQ(run.out, file() + ": not trusted: its signature is of other bytes\n");
  EXPECT_THAT(run.err, HasSubstr("1 of 1 not trusted"));
  std::ofstream(file() + ".minisig", std::ios::app) << "and more";
  EXPECT_THAT(check(known()).out, HasSubstr("minisign's format"));
}

TEST_F(ToolSign, ExportSignsThePackThatItWrites) {
  make_signed_pack();
  const ToolRun check = run_tool({"sign", "check", "--trust", known(), pack()});
  EXPECT_EQ(check.status, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("trusted: normjit pack, "));
  fs::remove(signature());
  const std::vector<std::string> again = {"export", pack(), "--cache-dir", directory_ / "source"};
  EXPECT_EQ(run_tool(again, {"NORMJIT_SIGN_KEY=" + secret()}).status, 0);
  EXPECT_FALSE(fs::exists(signature())) << "only with --sign";
  std::vector<std::string> sign = again;
  sign.push_back("--sign");
  EXPECT_EQ(run_tool(sign, {"NORMJIT_SIGN_KEY=" + secret()}).status, 0);
  EXPECT_TRUE(fs::exists(signature()));
}

TEST_F(ToolSign, ExportWithoutAKeyWritesNothing) {
  make_signed_pack();
  fs::remove(pack());
  fs::remove(signature());
  ASSERT_EQ(::chmod(secret().c_str(), 0640), 0);
  EXPECT_EQ(
      run_tool({"export", pack(), "--cache-dir", directory_ / "source", "--sign", "--key", secret()}).status,
      2);
  EXPECT_FALSE(fs::exists(pack()));
  EXPECT_FALSE(fs::exists(signature()));
}

TEST_F(ToolSign, ImportTakesWhatATrustedKeyHasSigned) {
  make_signed_pack();
  make_key("b");
  expect_refusal(import(known("b")), "of a key that is not trusted");
  const ToolRun run = import(known("b") + " " + known());
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr(" 0 refused, 0 not stored"));
  EXPECT_THAT(run.out, Not(StartsWith("0 imported")));
}

TEST_F(ToolSign, ImportRefusesWhatIsNotSigned) {
  make_signed_pack();
  fs::rename(signature(), directory_ / "kept");
  expect_refusal(import(known()), "is not signed");
  std::ofstream(signature()) << "no signature";
  expect_refusal(import(known()), "minisign's format");
  fs::rename(directory_ / "kept", signature());
  std::string bytes = contents(pack());
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(pack(), std::ios::binary) << bytes;
  expect_refusal(import(known()), "of other bytes");
  // Without trusted keys its entries are checked as ever, by their checksums.
  EXPECT_EQ(import("").status, 1);
}

TEST_F(ToolSign, ImportCopiesNothingIfOneSourceIsNotTrusted) {
  make_signed_pack();
  const std::string other = directory_ / "other.njp";
  fs::copy_file(pack(), other);
  const ToolRun run =
      run_tool({"import", pack(), other, "--cache-dir", directory_ / "cache"}, {"NORMJIT_TRUST=" + known()});
  EXPECT_EQ(run.status, 5);
  EXPECT_THAT(run.err, HasSubstr(other));
  EXPECT_FALSE(fs::exists(directory_ / "cache"));
}

TEST_F(ToolSign, ImportNamesATrustedKeyThatIsNone) {
  make_signed_pack();
  const ToolRun run = import("RWnonsense");
  EXPECT_EQ(run.status, 4);
  EXPECT_THAT(run.err, HasSubstr("RWnonsense"));
}

}  // namespace
}  // namespace normjit
