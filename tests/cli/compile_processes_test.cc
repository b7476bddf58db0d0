#include "cli/compile_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <fstream>
#include <future>
#include <iterator>

#include "cli/message.h"
#include "tests/support/child.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/temp_directory.h"

namespace normjit::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const Source kSource{.text = "text", .kernel = "kernel", .description = "spec as plan"};
const std::vector<std::string> kWithoutCompiler = {"/usr/bin/env", "NORMJIT_NVRTC_PATH=/no/such/libnvrtc.so",
                                                   NORMJIT_TOOL, "serve-compiles"};

// A compiler here whose two places are taken until the end.
class CompileProcesses : public ::testing::Test {
 protected:
  void start(std::vector<std::string> child) {
    compiler_ = make_process_compiler(here_, std::move(child));
    const std::size_t before = here_->calls().size();
    here_->hold();
    for (auto& running : running_)
      running = std::async(std::launch::async, [this] { return compiler_->compile(kSource, Arch{90}); });
    here_->wait_for_calls(before + std::size(running_));
  }
  void TearDown() override {
    here_->release();
    for (auto& running : running_) EXPECT_TRUE(!running.valid() || running.get().ok());
    compiler_.reset();
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
  }
  // How often the children of `script` have appended to the file.
  std::ptrdiff_t starts() const {
    std::ifstream file(directory_ / "starts");
    return std::distance(std::istreambuf_iterator<char>(file), {});
  }
  // A child that says that it has started, and goes on with `script`.
  std::vector<std::string> shell(const std::string& script) const {
    return {"/bin/sh", "-c", "printf . >> '" + directory_ / "starts" + "'; " + script};
  }

  TempDirectory directory_;
  std::shared_ptr<FakeCompiler> here_ = std::make_shared<FakeCompiler>();
  std::shared_ptr<Compiler> compiler_;
  std::future<Result<Binary>> running_[2];
};

TEST_F(CompileProcesses, TwoAtOnceStartNoChild) {
  compiler_ = make_process_compiler(here_, shell("exit 1"));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(compiler_->compile(kSource, Arch{90}).ok());
  start(shell("exit 1"));
  EXPECT_EQ(starts(), 0);
}

TEST_F(CompileProcesses, TheThirdIsAnsweredByAChildWithItsOwnError) {
  start(kWithoutCompiler);
  const auto binary = compiler_->compile(kSource, Arch{90});
  EXPECT_EQ(binary.code(), Code::NoCompiler);
  EXPECT_THAT(binary.error().message, StartsWith("The compiler library /no/such/libnvrtc.so cannot be used"));
  EXPECT_EQ(here_->calls().size(), 2u);
}

TEST_F(CompileProcesses, AnIdleChildIsUsedAgain) {
  start(shell("exec /usr/bin/env NORMJIT_NVRTC_PATH=/no/such '" NORMJIT_TOOL "' serve-compiles"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(compiler_->compile(kSource, Arch{90}).code(), Code::NoCompiler);
  EXPECT_EQ(starts(), 1);
}

TEST_F(CompileProcesses, AKernelWhoseChildDiesIsCompiledOnceMore) {
  start(shell("test -e '" + directory_ / "dead" + "' || { : > '" + directory_ / "dead" +
              "'; kill -9 $$; }; exec /usr/bin/env NORMJIT_NVRTC_PATH=/no/such '" NORMJIT_TOOL
              "' serve-compiles"));
  EXPECT_EQ(compiler_->compile(kSource, Arch{90}).code(), Code::NoCompiler);
  EXPECT_EQ(starts(), 2);
}

TEST_F(CompileProcesses, AKernelThatKillsTwoChildrenFails) {
  start(shell("kill -9 $$"));
  const auto binary = compiler_->compile(kSource, Arch{90});
  EXPECT_EQ(binary.code(), Code::CompileFailed);
  EXPECT_EQ(binary.error().message,
            "Cannot compile kernel for sm_90 (spec as plan): the process that compiled it was killed by "
            "signal 9, and so did another one.");
  EXPECT_EQ(starts(), 2);
}

TEST_F(CompileProcesses, AChildThatTalksNonsenseHasDied) {
  start(shell("head -c 1 > /dev/null; printf '\\001\\000\\000\\000\\000\\000\\000\\000\\377' >&0; exit 5"));
  const auto binary = compiler_->compile(kSource, Arch{90});
  EXPECT_EQ(binary.code(), Code::CompileFailed);
  EXPECT_THAT(binary.error().message, HasSubstr("ended with status 5"));
}

TEST_F(CompileProcesses, WhereNoChildCanBeStartedItCompilesHere) {
  start({"/no/such/program"});
  auto third = std::async(std::launch::async, [this] { return compiler_->compile(kSource, Arch{90}); });
  here_->wait_for_calls(3);
  here_->release();
  EXPECT_TRUE(third.get().ok());
}

TEST_F(CompileProcesses, WhatIsKnownOfTheCompilerIsWhatTheOneHereKnows) {
  compiler_ = make_process_compiler(here_, {"/no/such/program"});
  EXPECT_EQ(compiler_->facts().value().path, "/fake/libnvrtc.so.13");
}

class ServeCompiles : public ::testing::Test {
 protected:
  void SetUp() override {
    NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = ends[0];
    child_ = testing::start_child([&] {
      close(ends[0]);
      FakeCompiler compiler;
      if (hold_) compiler.hold();
      serve_compiles(compiler, ends[1]);
      return true;
    });
    close(ends[1]);
  }
  void TearDown() override {
    if (socket_ >= 0) close(socket_);
  }

  bool hold_ = false;
  int socket_ = -1;
  pid_t child_ = -1;
};

const Json kRequest = {
    {"text", "a\nb"}, {"kernel", "kernel"}, {"description", "spec as plan"}, {"arch", "sm_90"}};

TEST_F(ServeCompiles, AnswersWithTheBinary) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(send_message(socket_, kRequest));
    const auto answer = receive_message(socket_);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->at("binary"), "fake code of kernel for sm_90\na\nb");
    EXPECT_EQ(answer->at("toolchain"), "nvrtc 13.0");
    EXPECT_EQ(answer->at("registers"), 32);
  }
  close(std::exchange(socket_, -1));
  EXPECT_EQ(testing::outcome_of(child_), "done");
}

class ServeCompilesThatStandStill : public ServeCompiles {
 protected:
  ServeCompilesThatStandStill() { hold_ = true; }
};

TEST_F(ServeCompilesThatStandStill, EndWithTheOtherEndOfTheSocket) {
  ASSERT_TRUE(send_message(socket_, kRequest));
  close(std::exchange(socket_, -1));
  EXPECT_EQ(testing::outcome_of(child_), "done") << "and not hung";
}

}  // namespace
}  // namespace normjit::cli
