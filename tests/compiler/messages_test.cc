// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>

namespace normjit {
namespace {

class Messages : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  void TearDown() override {
    for (const int end : ends_) close(end);
  }
  // What is received where the other end sends these bytes and is gone.
  std::optional<Message> received(const std::string& bytes) {
    EXPECT_EQ(send(ends_[0], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    shutdown(ends_[0], SHUT_WR);
    return receive_message(ends_[1]);
  }
  static std::string sizes(std::initializer_list<std::uint64_t> numbers) {
    std::string bytes;
    for (const std::uint64_t size : numbers) bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    return bytes;
  }

  int ends_[2];
};

TEST_F(Messages, ArriveAsTheyWereSent) {
  const Message sent[] = {
      {}, {""}, {"one"}, {std::string("a\0b", 3), "", std::string(5 << 20, 'x')}, {"last"}};
  std::thread sender([&] {
    for (const Message& message : sent) EXPECT_TRUE(send_message(ends_[0], message));
  });
  for (const Message& message : sent) EXPECT_EQ(receive_message(ends_[1]), message);
  sender.join();
}

TEST_F(Messages, TheEndOfTheOtherEndIsNoMessageAndNoSignal) {
  close(std::exchange(ends_[1], -1));
  EXPECT_FALSE(send_message(ends_[0], {"one"}));
  EXPECT_FALSE(receive_message(ends_[0]));
}

TEST_F(Messages, OneThatIsCutIsNone) { EXPECT_FALSE(received(sizes({16, 8}) + "seven b")); }
TEST_F(Messages, OneWithoutAWholeSizeIsNone) { EXPECT_FALSE(received(sizes({4}) + "four")); }
TEST_F(Messages, ATextLongerThanItsMessageIsNone) { EXPECT_FALSE(received(sizes({11, 4}) + "abc")); }
TEST_F(Messages, OneThatIsTooLongIsNotWaitedFor) {
  const std::string size = sizes({std::uint64_t{1} << 40});
  ASSERT_EQ(send(ends_[0], size.data(), size.size(), 0), 8);
  EXPECT_FALSE(receive_message(ends_[1]));
}

TEST(CompileMessages, ARequestIsReadAsItWasWritten) {
  const Source source{.text = "text", .kernel = "kernel", .description = "spec"};
  const auto read = parse_request(request_of(source, Arch{90, 'a'}));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->first.text, "text");
  EXPECT_EQ(read->first.kernel, "kernel");
  EXPECT_EQ(read->first.description, "spec");
  EXPECT_EQ(read->second, (Arch{90, 'a'}));
  EXPECT_FALSE(parse_request({"text", "kernel", "spec"}));
  EXPECT_FALSE(parse_request({"text", "kernel", "spec", "sm_none"}));
}

TEST(CompileMessages, AnAnswerIsReadAsItWasWritten) {
  const Binary binary{.code = std::string("\0\1", 2),
                      .ptx = true,
                      .target = "compute_90",
                      .toolchain = "nvrtc 13.0",
                      .registers = 40,
                      .spill_bytes = -1,
                      .shared_bytes = 1024,
                      .log = "log"};
  const Binary read = parse_answer(answer_of(binary)).value().value();
  EXPECT_EQ(read.code, binary.code);
  EXPECT_TRUE(read.ptx);
  EXPECT_EQ(read.target, binary.target);
  EXPECT_EQ(read.toolchain, binary.toolchain);
  EXPECT_EQ(read.registers, 40);
  EXPECT_EQ(read.spill_bytes, -1);
  EXPECT_EQ(read.shared_bytes, 1024);
  EXPECT_EQ(read.log, "log");

  const Error error{Code::CompileFailed, "why"};
  const Error read_error = parse_answer(answer_of(error)).value().error();
  EXPECT_EQ(read_error.code, Code::CompileFailed);
  EXPECT_EQ(read_error.message, "why");

  EXPECT_FALSE(parse_answer({}));
  EXPECT_FALSE(parse_answer({"four hundred", "why"}));
  EXPECT_FALSE(parse_answer({"code", "0", "sm_90", "nvrtc 13.0", "many", "0", "0", ""}));
}

}  // namespace
}  // namespace normjit
