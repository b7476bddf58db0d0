// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/process_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <future>
#include <iterator>
#include <thread>
#include <utility>

#include "normjit/compiler/messages.h"
#include "tests/support/child.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/program.h"

namespace normjit::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Source kSource{.text = "a\nb", .kernel = "kernel", .description = "spec as plan"};
constexpr const char* kCode = "fake code of kernel for sm_90\na\nb";

// A compiler here whose two places are taken until the end.
class ProcessCompilerTest : public ::testing::Test {
 protected:
  void make(const std::string& program) {
    compiler_ = make_process_compiler(here_, {.find = [program] { return program; },
                                              .refused =
                                                  [this](const std::string& path, std::string_view why) {
                                                    refusals_.push_back(path + ": " + std::string(why));
                                                  }});
  }
  void start(const std::string& program) {
    make(program);
    here_->hold();
    for (auto& running : running_)
      running = std::async(std::launch::async, [this] { return compiler_->compile(kSource, Arch{90}); });
    here_->wait_for_calls(std::size(running_));
  }
  // The third compile, which `here` would hold for good.
  Result<Binary> compile() { return compiler_->compile(kSource, Arch{90}); }
  // A third and a fourth where `here` has to do them.
  bool compiles_here() {
    std::future<Result<Binary>> more[2];
    for (std::size_t i = 0; i < std::size(more); ++i) {
      more[i] = std::async(std::launch::async, [this] { return compile(); });
      here_->wait_for_calls(std::size(running_) + i + 1);
    }
    here_->release();
    return more[0].get().ok() && more[1].get().ok();
  }
  void TearDown() override {
    here_->release();
    for (auto& running : running_) EXPECT_TRUE(!running.valid() || running.get().ok());
    compiler_.reset();
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
  }

  Program program_;
  std::shared_ptr<FakeCompiler> here_ = std::make_shared<FakeCompiler>();
  std::shared_ptr<Compiler> compiler_;
  std::future<Result<Binary>> running_[2];
  std::vector<std::string> refusals_;
};

TEST_F(ProcessCompilerTest, TwoAtOnceStartNoChild) {
  make(program_.serving());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(compile().ok());
  start(program_.serving());
  EXPECT_EQ(program_.starts(), 0);
}

TEST_F(ProcessCompilerTest, TheThirdIsCompiledByAChild) {
  start(program_.serving());
  const Binary binary = compile().value();
  EXPECT_EQ(binary.code, kCode);
  EXPECT_FALSE(binary.ptx);
  EXPECT_EQ(binary.target, "sm_90");
  EXPECT_EQ(binary.toolchain, "nvrtc 13.0");
  EXPECT_EQ(binary.registers, 32);
  EXPECT_EQ(here_->calls().size(), 2u);
}

TEST_F(ProcessCompilerTest, AnIdleChildIsUsedAgain) {
  start(program_.serving());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(compile().value().code, kCode);
  EXPECT_EQ(program_.starts(), 1);
}

TEST_F(ProcessCompilerTest, AKernelWhoseChildDiesIsCompiledOnceMore) {
  start(program_.serving("die", /*then=*/""));
  EXPECT_EQ(compile().value().code, kCode);
  EXPECT_EQ(program_.starts(), 2);
}

TEST_F(ProcessCompilerTest, AKernelThatKillsTwoChildrenFails) {
  start(program_.serving("die"));
  const auto binary = compile();
  EXPECT_EQ(binary.code(), Code::CompileFailed);
  EXPECT_EQ(binary.error().message,
            "Cannot compile kernel for sm_90 (spec as plan): the process that compiled it was killed by "
            "signal 9, and so did another one.");
  EXPECT_EQ(program_.starts(), 2);
}

TEST_F(ProcessCompilerTest, AChildThatTalksNonsenseHasDied) {
  start(program_.serving("nonsense"));
  const auto binary = compile();
  EXPECT_EQ(binary.code(), Code::CompileFailed);
  EXPECT_THAT(binary.error().message, HasSubstr("ended with status"));
}

TEST_F(ProcessCompilerTest, WhereThereIsNoProgramItCompilesHere) {
  start("");
  EXPECT_TRUE(compiles_here());
  EXPECT_THAT(refusals_, IsEmpty()) << "whoever found none knows";
}

TEST_F(ProcessCompilerTest, WhatCannotBeStartedIsNotTriedAgain) {
  start("/no/such/program");
  EXPECT_TRUE(compiles_here());
  EXPECT_THAT(refusals_, ElementsAre("/no/such/program: the system starts no process of it"));
}

TEST_F(ProcessCompilerTest, AnotherVersionIsRefused) {
  const std::string older = program_.serving("older");
  start(older);
  EXPECT_TRUE(compiles_here());
  EXPECT_THAT(refusals_, ElementsAre(older + ": it is of another version"));
}

TEST_F(ProcessCompilerTest, WhatEndsAtOnceIsRefused) {
  const std::string ends = program_.script("exit 3");
  start(ends);
  EXPECT_TRUE(compiles_here());
  EXPECT_THAT(refusals_, ElementsAre(ends + ": it ended with status 3"));
  EXPECT_EQ(program_.starts(), 1);
}

// A file that is none of ours, but lives and answers.
TEST_F(ProcessCompilerTest, AnEchoIsRefused) {
  const std::string echo = program_.script("exec cat <&0 >&0");
  start(echo);
  EXPECT_TRUE(compiles_here());
  EXPECT_THAT(refusals_, ElementsAre(echo + ": /fake/libnvrtc.so.13"));
}

TEST_F(ProcessCompilerTest, WhatIsKnownOfTheCompilerIsWhatTheOneHereKnows) {
  make("/no/such/program");
  EXPECT_EQ(compiler_->facts().value().path, "/fake/libnvrtc.so.13");
}

TEST_F(ProcessCompilerTest, AHostMayIgnoreTheEndOfItsChildren) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  const std::string program = program_.serving("die", /*then=*/"");
  EXPECT_EQ(outcome_in_child([&] {
              std::signal(SIGCHLD, SIG_IGN);  // waitpid waits, and then knows of no child
              start(program);
              const bool compiled = compile().value().code == kCode;
              TearDown();
              return compiled && !HasFailure();
            }),
            "done");
  EXPECT_EQ(program_.starts(), 2);
}

// Children outlive neither their process nor a compile, whatever else has been forked from it.
class ProcessCompilerEnd : public ProcessCompilerTest {
 protected:
  // The fake program in this mode, which leaves a mark when it ends.
  std::string marking(const std::string& mode) const {
    return program_.script("'" NORMJIT_FAKE_COMPILE "' " + mode + "\n: > '" + program_ / "ended" + "'");
  }
  bool child_has_ended() const {
    const std::string mark = program_ / "ended";
    for (int i = 0; i < 1000 && access(mark.c_str(), F_OK) != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return access(mark.c_str(), F_OK) == 0;
  }
};

TEST_F(ProcessCompilerEnd, AForkedProcessDoesNotKeepAChildAlive) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  const Shared<pid_t> forked;
  EXPECT_EQ(outcome_in_child([&] {
              start(marking(""));
              const bool compiled = compile().value().code == kCode;
              *forked = start_child(
                  [] {
                    pause();
                    return true;
                  },
                  Ending::immediate, /*seconds=*/60);
              return compiled;
            }),
            "done");
  EXPECT_TRUE(child_has_ended());
  ASSERT_GT(*forked, 0);
  EXPECT_EQ(kill(*forked, SIGKILL), 0) << "it was there all the time";
}

TEST_F(ProcessCompilerEnd, TheProcessMayExitWhileAChildCompiles) {
  NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
  const std::string program = marking("stand-still");
  EXPECT_EQ(outcome_in_child(
                [&] {
                  start(program);
                  std::thread([this] { static_cast<void>(compile()); }).detach();
                  while (program_.starts() == 0) std::this_thread::yield();
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for the compile to begin
                  return true;
                },
                Ending::exit_handlers),
            "done")
      << "and not hung";
  EXPECT_TRUE(child_has_ended());
}

class ServeCompilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NORMJIT_SKIP_IF_FORKS_ARE_NOT_FOLLOWED();
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = ends[0];
    child_ = start_child([&] {
      close(ends[0]);
      serve_compiles(ends[1], [&](const std::string& nvrtc) {
        auto compiler = std::make_shared<FakeCompiler>();
        if (nvrtc != "right") compiler->fail({Code::NoCompiler, "cannot be opened"});
        if (hold_) compiler->hold();
        return compiler;
      });
      return true;
    });
    close(ends[1]);
  }
  void TearDown() override {
    if (socket_ >= 0) close(socket_);
  }
  std::optional<Message> ask(const Message& message) const {
    if (!send_message(socket_, message)) return {};
    return receive_message(socket_);
  }

  bool hold_ = false;
  int socket_ = -1;
  pid_t child_ = -1;
};

TEST_F(ServeCompilesTest, AnswersWithTheBinary) {
  EXPECT_EQ(ask({protocol(), "right"}), (Message{protocol(), ""}));
  for (int i = 0; i < 2; ++i) {
    auto answer = ask(request_of(kSource, Arch{90}));
    ASSERT_TRUE(answer);
    EXPECT_EQ(parse_answer(*answer).value().value().code, kCode);
  }
  close(std::exchange(socket_, -1));
  EXPECT_EQ(outcome_of(child_), "done");
}

TEST_F(ServeCompilesTest, SaysWhyItCannotCompileAndEnds) {
  EXPECT_EQ(ask({protocol(), "wrong"}), (Message{protocol(), "cannot be opened"}));
  EXPECT_EQ(outcome_of(child_), "done");
}

TEST_F(ServeCompilesTest, EndsWhereAnotherVersionAsks) {
  const auto answer = ask({"normjit 0.0.1", "right"});
  ASSERT_TRUE(answer);
  EXPECT_THAT(*answer, ElementsAre(protocol(), "it is of another version"));
  EXPECT_EQ(outcome_of(child_), "done");
}

class ServeCompilesThatStandStill : public ServeCompilesTest {
 protected:
  ServeCompilesThatStandStill() { hold_ = true; }
};

TEST_F(ServeCompilesThatStandStill, EndWithTheOtherEndOfTheSocket) {
  ASSERT_TRUE(ask({protocol(), "right"}));
  ASSERT_TRUE(send_message(socket_, request_of(kSource, Arch{90})));
  close(std::exchange(socket_, -1));
  EXPECT_EQ(outcome_of(child_), "done") << "and not hung";
}

}  // namespace
}  // namespace normjit::testing
