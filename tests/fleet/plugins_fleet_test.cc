// SPDX-License-Identifier: Apache-2.0
// The plug-ins of remote stores against real servers, and against networks that are bad for them.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "normjit/base/stopwatch.h"
#include "normjit/remote.h"
#include "tests/support/servers.h"

namespace normjit::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;
using ::testing::TestWithParam;
using ::testing::Values;

constexpr normjit_remote_outcome kDone = NORMJIT_REMOTE_DONE, kAbsent = NORMJIT_REMOTE_ABSENT,
                                 kFailed = NORMJIT_REMOTE_FAILED, kRefused = NORMJIT_REMOTE_REFUSED;
constexpr int kTimeoutMs = 2000;  // of calls that are to succeed, on a busy machine too
constexpr int kToleranceMs = 30;  // above the time limit of a call
constexpr std::size_t kMost = 1 << 20;

// What a plug-in exports, out of the directory of this program; null where it was not built.
normjit_remote_open_function plugin(const std::string& name) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  void* const library =
      ::dlopen((here / ("libnormjit-remote-" + name + ".so")).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<normjit_remote_open_function>(::dlsym(library, "normjit_remote_open"));
}

normjit_remote_open_function plugin_of_url(const std::string& url) {
  return plugin(url.starts_with("redis") ? "redis" : "http");
}

struct Reply {
  normjit_remote_outcome outcome = kFailed;
  std::string value;
  std::string why;  // of one that failed
  double milliseconds = 0;
};

std::ostream& operator<<(std::ostream& out, const Reply& reply) {
  return out << reply.outcome << " in " << reply.milliseconds << " ms: " << reply.why;
}

// A session.
class Remote {
 public:
  explicit Remote(const std::string& url) {
    const normjit_remote_open_function open = plugin_of_url(url);
    opening_ = call([&](char* why, std::size_t size) { return open(url.c_str(), &functions_, why, size); });
    if (opening_.outcome != kDone) functions_.close = nullptr;
  }
  ~Remote() {
    if (functions_.close != nullptr) functions_.close(functions_.user);
  }
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;

  const Reply& opening() const { return opening_; }
  bool has_leases() const { return functions_.lease != nullptr; }

  Reply get(const std::string& key, std::size_t max_bytes = kMost, int timeout_ms = kTimeoutMs) {
    std::optional<std::string> value;
    const normjit_remote_sink sink = [](void* to, const void* bytes, std::size_t size) {
      auto& value = *static_cast<std::optional<std::string>*>(to);
      EXPECT_FALSE(value.has_value()) << "a second value";
      value = std::string(static_cast<const char*>(bytes), size);
    };
    Reply reply = call([&](char* why, std::size_t size) {
      return functions_.get(functions_.user, key.c_str(), max_bytes, sink, &value, timeout_ms, why, size);
    });
    EXPECT_EQ(value.has_value(), reply.outcome == kDone);
    reply.value = value.value_or("");
    return reply;
  }
  Reply put(const std::string& key, const std::string& value, int timeout_ms = kTimeoutMs) {
    return call([&](char* why, std::size_t size) {
      return functions_.put(functions_.user, key.c_str(), value.data(), value.size(), timeout_ms, why, size);
    });
  }
  Reply lease(const std::string& key, const std::string& owner, int lifetime_ms,
              int timeout_ms = kTimeoutMs) {
    return call([&](char* why, std::size_t size) {
      return functions_.lease(functions_.user, key.c_str(), owner.c_str(), lifetime_ms, timeout_ms, why,
                              size);
    });
  }
  Reply release(const std::string& key, const std::string& owner, int timeout_ms = kTimeoutMs) {
    return call([&](char* why, std::size_t size) {
      return functions_.release(functions_.user, key.c_str(), owner.c_str(), timeout_ms, why, size);
    });
  }

 private:
  // A sentence is as the header promises: one line that fits, for a failure only.
  template <class Call>
  static Reply call(const Call& function) {
    char why[200] = "";
    why[199] = 'x';
    Reply reply;
    const Stopwatch stopwatch;
    reply.outcome = function(why, 199);
    reply.milliseconds = stopwatch.milliseconds();
    EXPECT_EQ(why[199], 'x');
    reply.why = std::string(why, ::strnlen(why, 199));
    EXPECT_EQ(reply.why.empty(), reply.outcome != kFailed && reply.outcome != kRefused) << reply;
    EXPECT_LT(reply.why.size(), 199u);
    for (const char c : reply.why) EXPECT_TRUE(static_cast<unsigned char>(c) >= ' ') << reply.why;
    return reply;
  }

  normjit_remote functions_ = NORMJIT_REMOTE_INIT;
  Reply opening_;
};

std::string bytes_of(std::size_t size) {
  std::string bytes(size, 'x');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * i >> 3);
  return bytes;
}

#define NORMJIT_NEEDS_PLUGIN(name) \
  if (plugin(name) == nullptr)     \
  GTEST_SKIP() << "The plug-in " << (name) << " is not built: its client library is missing"
#define NORMJIT_NEEDS(server, program) \
  if ((server) == nullptr) GTEST_SKIP() << "The program " << (program) << " is missing"

// A server by the kind of store that it is.
struct Store {
  std::string kind;  // "redis", "http" or "s3"
  std::unique_ptr<Server> server;

  explicit Store(std::string of) : kind(std::move(of)) {
    server = kind == "redis" ? redis_server() : kind == "http" ? nginx_server() : s3_server();
  }
  std::string plugin_name() const { return kind == "redis" ? "redis" : "http"; }
  std::string program() const {
    return kind == "redis" ? "redis-server" : kind == "http" ? "nginx" : "moto_server";
  }
  // Of this port, which may be a proxy's.
  std::string url(int port) const {
    const std::string address = "127.0.0.1:" + std::to_string(port);
    if (kind == "redis") return "redis://" + address;
    if (kind == "http") return "http://" + address + "/cache/";
    return "s3://kernels/team/a?region=eu-west-1&endpoint=http://" + address;
  }
  std::string url() const { return url(server->port()); }
};

class Plugins : public TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    ::setenv("AWS_ACCESS_KEY_ID", "AKIAFLEET", 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", "secret-of-s3", 1);
    ::setenv("AWS_SESSION_TOKEN", "token-of-s3", 1);
    for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"}) ::unsetenv(name);
    ::setenv("no_proxy", "*", 1);
  }
};

INSTANTIATE_TEST_SUITE_P(Each, Plugins, Values("redis", "http", "s3"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Plugins, KeepValuesByKey) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  NORMJIT_NEEDS(store.server, store.program());
  Remote remote(store.url());
  ASSERT_EQ(remote.opening().outcome, kDone) << remote.opening();
  const std::string values[] = {"1", bytes_of(20'000), bytes_of(800'000), std::string(5000, '\0'),
                                bytes_of(3 << 20)};
  int number = 0;
  for (const std::string& value : values) {
    const std::string key = "nj1:" + std::to_string(++number) + "abc";
    EXPECT_EQ(remote.get(key).outcome, kAbsent);
    const Reply put = remote.put(key, value);
    EXPECT_EQ(put.outcome, kDone) << put;
    const Reply got = remote.get(key, value.size());
    EXPECT_EQ(got.outcome, kDone) << got;
    EXPECT_TRUE(got.value == value) << value.size() << " bytes, got " << got.value.size();
    const Reply too_large = remote.get(key, value.size() - 1);
    EXPECT_EQ(too_large.outcome, kRefused);
    EXPECT_THAT(too_large.why, HasSubstr("has a value of more than"));
    EXPECT_EQ(remote.put(key, value).outcome, kDone);
    EXPECT_TRUE(remote.get(key, 64 << 20).value == value)
        << "after a value that was too large and one that was there";
  }
}

TEST_P(Plugins, ShowTheirValuesToEachOther) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  NORMJIT_NEEDS(store.server, store.program());
  Remote one(store.url()), other(store.url());
  EXPECT_EQ(other.get("nj1:k").outcome, kAbsent);
  EXPECT_EQ(one.put("nj1:k", "of one").outcome, kDone);
  EXPECT_EQ(other.get("nj1:k").value, "of one");
}

class PluginsOfServersThatStartAgain : public Plugins {};

INSTANTIATE_TEST_SUITE_P(Each, PluginsOfServersThatStartAgain, Values("redis", "http"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PluginsOfServersThatStartAgain, FindThemAgain) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  NORMJIT_NEEDS(store.server, store.program());

  Remote remote(store.url());
  const std::string value = bytes_of(800'000);
  EXPECT_EQ(remote.put("nj1:k", value).outcome, kDone);
  store.server->stop();
  store.server->start();
  const Reply again = remote.put("nj1:l", value);
  EXPECT_EQ(again.outcome, kDone) << again;
  EXPECT_TRUE(remote.get("nj1:l").value == value);

  store.server->stop();
  for (int i = 0; i < 3; ++i) {
    const Reply down = remote.put("nj1:m", value);
    EXPECT_EQ(down.outcome, kFailed);
    EXPECT_LT(down.milliseconds, 20) << down;
    EXPECT_THAT(down.why, HasSubstr(store.server->address() + " was not reached: Connection refused"));
  }
  store.server->start();
  EXPECT_EQ(remote.put("nj1:n", value).outcome, kDone);
}

// A host's default action for SIGPIPE would end this test.
TEST_P(Plugins, SurviveConnectionsThatAreDropped) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  NORMJIT_NEEDS(store.server, store.program());
  std::signal(SIGPIPE, SIG_DFL);
  const std::string value = bytes_of(800'000);
  Remote direct(store.url());
  ASSERT_EQ(direct.put("nj1:k", value).outcome, kDone);
  for (const int bytes : {1, 2, 20, 5000, 400'000}) {
    const auto proxy = toxic_proxy(store.server->port(), "drop-after", bytes);
    NORMJIT_NEEDS(proxy, "python3");
    Remote remote(store.url(proxy->port()));
    for (int i = 0; i < 2; ++i) {
      const Reply got = remote.get("nj1:k");
      EXPECT_EQ(got.outcome, kFailed) << got << " after " << bytes;
      EXPECT_THAT(remote.put("nj1:k", value).outcome, AnyOf(kDone, kFailed)) << bytes;
    }
  }
}

TEST_P(Plugins, SurviveServersThatHangUp) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  std::signal(SIGPIPE, SIG_DFL);
  const std::string value = bytes_of(4 << 20);
  const auto proxy = toxic_proxy(1, "hang-up", 50);
  NORMJIT_NEEDS(proxy, "python3");
  Remote remote(store.url(proxy->port()));
  for (int i = 0; i < 100; ++i) {
    const Reply put = remote.put("nj1:k", value);
    EXPECT_EQ(put.outcome, kFailed) << put;
  }
}

TEST_P(Plugins, AnswerInTimeWhateverTheNetworkDoes) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  NORMJIT_NEEDS(store.server, store.program());
  const std::string value = bytes_of(800'000);
  const std::string large = bytes_of(40 << 20);
  Remote direct(store.url());
  ASSERT_EQ(direct.put("nj1:k", value).outcome, kDone);
  const std::pair<const char*, int> modes[] = {{"black-hole", 0}, {"drip", 0}, {"delay", 400}};
  for (const auto& [mode, number] : modes) {
    const auto proxy = toxic_proxy(store.server->port(), mode, number);
    NORMJIT_NEEDS(proxy, "python3");
    Remote remote(store.url(proxy->port()));
    for (const int timeout_ms : {0, 1, 20, 100, 20}) {
      std::vector<Reply> replies = {remote.get("nj1:k", kMost, timeout_ms)};
      if (std::string(mode) != "drip") {  // a drop is enough of an answer to a put
        replies.push_back(remote.put("nj1:l", value, timeout_ms));
        replies.push_back(remote.put("nj1:m", large, timeout_ms));
        if (remote.has_leases()) replies.push_back(remote.lease("lease:k", "me", 1000, timeout_ms));
        if (remote.has_leases()) replies.push_back(remote.release("lease:k", "me", timeout_ms));
      }
      for (const Reply& reply : replies) {
        EXPECT_EQ(reply.outcome, kFailed) << mode << ' ' << timeout_ms << ": " << reply;
        EXPECT_LT(reply.milliseconds, timeout_ms + kToleranceMs) << mode << ": " << reply;
        EXPECT_THAT(reply.why, HasSubstr(proxy->address())) << mode;
      }
    }
  }
  const auto slow = toxic_proxy(store.server->port(), "delay", 60);
  Remote remote(store.url(slow->port()));
  EXPECT_EQ(remote.get("nj1:k").outcome, kDone) << "a delay within the limit";
}

TEST_P(Plugins, TakeGarbageForAFailure) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  const auto proxy = toxic_proxy(1, "garbage");
  NORMJIT_NEEDS(proxy, "python3");
  Remote remote(store.url(proxy->port()));
  for (int i = 0; i < 300; ++i) {
    const Reply got = remote.get("nj1:k", kMost, 100);
    EXPECT_THAT(got.outcome, AnyOf(kFailed, kAbsent));
    EXPECT_LT(got.milliseconds, 100 + kToleranceMs);
    EXPECT_EQ(remote.put("nj1:k", "value", 100).outcome, kFailed);
  }
}

TEST_P(Plugins, BoundTheTimeToConnect) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  const SilentPort silent;
  Remote remote(store.url(silent.port()));
  for (const int timeout_ms : {kTimeoutMs, kTimeoutMs, 10, 1, 0}) {
    const Reply reply = remote.get("nj1:k", kMost, timeout_ms);
    EXPECT_EQ(reply.outcome, kFailed);
    EXPECT_LT(reply.milliseconds, std::min(timeout_ms, 50) + kToleranceMs) << reply;
    if (timeout_ms >= 10) {
      EXPECT_GT(reply.milliseconds, 9) << reply;
      EXPECT_THAT(reply.why, HasSubstr("was not reached within")) << reply;
    }
  }
}

TEST_P(Plugins, BoundTheTimeToFindAnAddress) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  std::string url = store.url(9);
  url.replace(url.find("127.0.0.1"), 9, "no-such-host.invalid");
  const Stopwatch stopwatch;
  {
    Remote remote(url);
    for (int i = 0; i < 3; ++i) {
      const Reply reply = remote.get("nj1:k");
      EXPECT_EQ(reply.outcome, kFailed);
      EXPECT_LT(reply.milliseconds, 50 + kToleranceMs) << reply;
    }
  }
  EXPECT_LT(stopwatch.milliseconds(), 3 * (50 + kToleranceMs)) << "closing waits for nothing";
}

TEST_P(Plugins, FindAHostByName) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  NORMJIT_NEEDS(store.server, store.program());
  std::string url = store.url();
  url.replace(url.find("127.0.0.1"), 9, "localhost");
  Remote remote(url);
  const Reply reply = remote.put("nj1:k", "value");
  EXPECT_EQ(reply.outcome, kDone) << reply;
}

TEST_P(Plugins, LeaveNothingToProgramsThatAreStarted) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  NORMJIT_NEEDS(store.server, store.program());
  Remote remote(store.url());
  EXPECT_EQ(remote.put("nj1:k", "value").outcome, kDone);
  int connections = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    sockaddr_storage name{};  // connections alone: libcurl 7.88 has a pair of local sockets besides
    socklen_t size = sizeof name;
    if (::getpeername(number, reinterpret_cast<sockaddr*>(&name), &size) != 0 || name.ss_family == AF_UNIX)
      continue;
    ++connections;
    EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0) << number;
  }
  if (store.kind != "s3") {  // moto closes each connection after its answer
    EXPECT_EQ(connections, 1);
  }
}

TEST_P(Plugins, RefuseAnOlderStructure) {
  const Store store(GetParam());
  NORMJIT_NEEDS_PLUGIN(store.plugin_name());
  normjit_remote remote = NORMJIT_REMOTE_INIT;
  remote.struct_size -= sizeof(void*);
  char why[200];
  EXPECT_EQ(plugin(store.plugin_name())(store.url(1).c_str(), &remote, why, sizeof why), kFailed);
  EXPECT_EQ(remote.user, nullptr);
}

TEST(PluginUrls, GoodOnesOpenAndBadOnesSayWhatIsWrong) {
  ::setenv("AWS_ACCESS_KEY_ID", "AKIAFLEET", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "secret-of-s3", 1);
  const char* const good[] = {"redis://host",
                              "redis://host/",
                              "redis://host:6379/0",
                              "redis://host/15?ttl=3600",
                              "redis://:secret@host",
                              "redis://user:secret@host:1",
                              "redis://user:s%40%2F%3a@host",
                              "redis://user:sec@ret@host",
                              "redis://[::1]",
                              "redis://[fe80::1]:7000/2",
                              "redis://a_b-c.example",
                              "http://host",
                              "http://host:80/a/b/",
                              "https://host/a%20b",
                              "https://user:secret@[::1]:8443/a",
                              "http://user@host",
                              "s3://bucket",
                              "s3://bucket/",
                              "s3://bucket/a/b-c_d.e~f",
                              "s3://bucket?region=eu-west-1",
                              "s3://bucket/a?endpoint=https://host:9000&region=auto",
                              "s3://bucket?endpoint=http%3A%2F%2Fhost"};
  for (const char* const url : good) {
    if (plugin_of_url(url) == nullptr) continue;
    const Remote remote(url);
    EXPECT_EQ(remote.opening().outcome, kDone) << url << ": " << remote.opening();
    EXPECT_LT(remote.opening().milliseconds, 500);
  }
  const std::pair<const char*, const char*> bad[] = {
      {"redis:host", "scheme"},
      {"redis://", "no valid host"},
      {"redis://ho st", "blank"},
      {"redis://host\n", "blank"},
      {"redis://h\xc3\xb6st", "ASCII"},
      {"redis://host#secret", "'#'"},
      {"redis://:6379", "no valid host"},
      {"redis://host:", "port"},
      {"redis://host:0", "port"},
      {"redis://host:65536", "port"},
      {"redis://host:6379x", "port"},
      {"redis://host:-1", "port"},
      {"redis://:sec/ret@host", "no valid host"},
      {"redis://secret@host", "user without a password"},
      {"redis://user:secret%4@host", "'%'"},
      {"redis://user:secret%zz@host", "'%'"},
      {"redis://user:secret%00@host", "'%'"},
      {"redis://[::1", "']'"},
      {"redis://[host]", "IPv6"},
      {"redis://[::1]6379", "IPv6"},
      {"redis://host/x", "number of a database"},
      {"redis://host/-1", "number of a database"},
      {"redis://host/0/1", "number of a database"},
      {"redis://host?ttl=0", "ttl"},
      {"redis://host?ttl=secret", "ttl"},
      {"redis://host?ttl", "name=value"},
      {"redis://host?password=secret", "ttl=SECONDS"},
      {"rediss://:secret@host", "stunnel"},
      {"redisx://host", "redis:"},
      {"http://", "no valid host"},
      {"http://host/a?key=secret", "'?'"},
      {"http://host/a/../b", "'..'"},
      {"ftp://host", "http:, https: or s3:"},
      {"s3://", "no valid host"},
      {"s3://user:secret@bucket", "more than a bucket"},
      {"s3://bucket:80", "more than a bucket"},
      {"s3://bucket/a%20b", "prefix"},
      {"s3://bucket/a/..", "prefix"},
      {"s3://bucket?region=eu/west", "region"},
      {"s3://bucket?endpoint=host", "endpoint"},
      {"s3://bucket?endpoint=https://user:secret@host", "endpoint"},
      {"s3://bucket?endpoint=https://host/path", "endpoint"},
      {"s3://bucket?secret=secret", "region= and endpoint="},
  };
  for (const auto& [url, words] : bad) {
    if (plugin_of_url(url) == nullptr) continue;
    const Remote remote(url);
    EXPECT_EQ(remote.opening().outcome, kFailed) << url;
    EXPECT_THAT(remote.opening().why, HasSubstr(words)) << url;
    EXPECT_THAT(remote.opening().why, Not(HasSubstr("secret"))) << url;
  }
}

// --- Redis

class RedisPlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    NORMJIT_NEEDS_PLUGIN("redis");
    NORMJIT_NEEDS(server = redis_server(), "redis-server");
    url = "redis://" + server->address();
  }
  std::string command(const std::string& words) const { return ask(server->port(), words + "\r\nQUIT\r\n"); }

  std::unique_ptr<Server> server;
  std::string url;
};

TEST_F(RedisPlugin, PutLeavesAValueThatIsThere) {
  Remote remote(url);
  EXPECT_EQ(remote.put("nj1:k", "first").outcome, kDone);
  EXPECT_EQ(remote.put("nj1:k", "second").outcome, kDone);
  EXPECT_EQ(remote.get("nj1:k").value, "first");
}

TEST_F(RedisPlugin, ValuesMayEndByThemselves) {
  Remote forever(url), for_a_while(url + "?ttl=3600");
  EXPECT_EQ(forever.put("nj1:k", "value").outcome, kDone);
  EXPECT_EQ(for_a_while.put("nj1:l", "value").outcome, kDone);
  EXPECT_THAT(command("TTL nj1:k"), HasSubstr(":-1"));
  EXPECT_THAT(command("TTL nj1:l"), AnyOf(HasSubstr(":3600"), HasSubstr(":3599")));
}

TEST_F(RedisPlugin, ValuesAreInTheDatabaseOfTheUrl) {
  Remote in_two(url + "/2"), in_zero(url + "/0"), in_none(url + "/1000");
  EXPECT_EQ(in_two.put("nj1:k", "value").outcome, kDone);
  EXPECT_EQ(in_two.get("nj1:k").value, "value");
  EXPECT_EQ(in_zero.get("nj1:k").outcome, kAbsent);
  const Reply reply = in_none.put("nj1:l", "value");
  EXPECT_EQ(reply.outcome, kFailed);
  EXPECT_THAT(reply.why, HasSubstr("refuses the database with ERR"));
  EXPECT_EQ(in_zero.get("nj1:l").outcome, kAbsent);
}

TEST_F(RedisPlugin, LeasesHaveOneOwnerAndEnd) {
  Remote one(url), other(url);
  EXPECT_EQ(one.lease("lease:k", "one", 300).outcome, kDone);
  EXPECT_EQ(other.lease("lease:k", "other", 300).outcome, kAbsent);
  EXPECT_EQ(other.lease("lease:l", "other", 300).outcome, kDone) << "another key";
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(one.lease("lease:k", "one", 300).outcome, kDone) << "once more by its owner";
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(other.lease("lease:k", "other", 300).outcome, kAbsent) << "renewed";
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(other.lease("lease:k", "other", 60'000).outcome, kDone) << "it has ended";

  EXPECT_EQ(one.release("lease:k", "one").outcome, kDone) << "of another";
  EXPECT_EQ(one.lease("lease:k", "one", 60'000).outcome, kAbsent);
  EXPECT_EQ(other.release("lease:k", "other").outcome, kDone);
  EXPECT_EQ(one.lease("lease:k", "one", 60'000).outcome, kDone);
  EXPECT_EQ(one.release("lease:nothing", "one").outcome, kDone);
  ASSERT_EQ(other.put("nj1:there", "value").outcome, kDone);
  EXPECT_EQ(one.lease("nj1:there:lease", "one", 60'000).outcome, kAbsent) << "its value is there";
}

TEST_F(RedisPlugin, AConnectionThatTheServerHasClosedIsMadeAgain) {
  Remote remote(url);
  EXPECT_EQ(remote.put("nj1:k", "value").outcome, kDone);
  for (int i = 0; i < 20; ++i) {
    command("CLIENT KILL TYPE normal SKIPME yes");
    const Reply reply = remote.get("nj1:k");
    EXPECT_EQ(reply.outcome, kDone) << reply;
  }
  // Whatever of an answer comes too late is not taken for the next one.
  for (int i = 0; i < 200; ++i) {
    remote.lease("lease:k", "me", 1000, 0);
    const Reply reply = remote.get("nj1:k");
    EXPECT_EQ(reply.value, "value") << reply;
  }
}

TEST_F(RedisPlugin, SaysWhyItIsRefused) {
  Remote remote(url);
  command("LPUSH nj1:list x");
  EXPECT_THAT(remote.get("nj1:list").why, HasSubstr("WRONGTYPE"));
  EXPECT_THAT(remote.lease("lease:k", "me", -5).why, HasSubstr("refuses with ERR"));
  command("CONFIG SET maxmemory 1");
  EXPECT_THAT(remote.put("nj1:k", "value").why, HasSubstr("its memory is full"));
  command("ACL SETUSER someone on >secret ~* +getrange");
  Remote reader("redis://someone:secret@" + server->address());
  EXPECT_EQ(reader.get("nj1:k").outcome, kAbsent);
  const Reply reply = reader.put("nj1:k", "value");
  EXPECT_THAT(reply.why, HasSubstr("NOPERM"));
  EXPECT_THAT(reply.why, Not(HasSubstr("someone")));
}

TEST_F(RedisPlugin, SaysThatTheServerIsFull) {
  command("CONFIG SET maxclients 1");
  Remote first(url), second(url), with_password("redis://:secret@" + server->address());
  EXPECT_EQ(first.get("nj1:k").outcome, kAbsent);
  EXPECT_THAT(second.get("nj1:k").why, HasSubstr("as many clients as it takes"));
  EXPECT_THAT(with_password.get("nj1:k").why, HasSubstr("as many clients as it takes"));
}

TEST_F(RedisPlugin, APasswordIsGivenAndNeverSaid) {
  const auto locked = redis_server("pass/w@rd");
  const std::string at = "@" + locked->address() + "/1";
  Remote right("redis://:pass%2Fw%40rd" + at), named("redis://default:pass%2Fw%40rd" + at),
      wrong("redis://:secret" + at), none("redis://" + locked->address() + "/1"),
      none_of_zero("redis://" + locked->address());
  EXPECT_EQ(right.put("nj1:k", bytes_of(800'000)).outcome, kDone);
  EXPECT_EQ(named.get("nj1:k").value.size(), 800'000u);
  for (const std::string& value : {std::string("small"), bytes_of(800'000)}) {
    const Reply refused = wrong.put("nj1:l", value);
    EXPECT_EQ(refused.outcome, kFailed);
    EXPECT_THAT(refused.why, HasSubstr("does not accept the user and password of the URL"));
    EXPECT_THAT(refused.why, Not(HasSubstr("secret")));
    for (Remote* const remote : {&none, &none_of_zero}) {
      const Reply reply = remote->put("nj1:l", value);
      EXPECT_EQ(reply.outcome, kFailed);
      EXPECT_THAT(reply.why, HasSubstr("requires a password, and the URL has none"));
    }
  }
  EXPECT_THAT(none_of_zero.get("nj1:l").why, HasSubstr("requires a password"));
  EXPECT_THAT(none_of_zero.lease("nj1:l", "me", 1000).why, HasSubstr("requires a password"));

  Remote needless("redis://:secret@" + server->address());
  EXPECT_THAT(needless.get("nj1:k").why, HasSubstr("does not accept"));
}

// --- HTTP and S3

class HttpPlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    NORMJIT_NEEDS_PLUGIN("http");
    NORMJIT_NEEDS(server = nginx_server("secret of nginx"), "nginx");
  }
  std::string url(const std::string& path, const std::string& user = "") const {
    return "http://" + user + server->address() + path;
  }

  std::unique_ptr<Server> server;
};

TEST_F(HttpPlugin, HasNoLeases) { EXPECT_FALSE(Remote(url("")).has_leases()); }

TEST_F(HttpPlugin, ValuesAreFilesOfAFolder) {
  Remote remote(url("/a%20b/"));
  EXPECT_EQ(remote.put("nj1:0af", "value").outcome, kDone);
  EXPECT_THAT(ask(server->port(), "GET /a%20b/nj1/0af HTTP/1.0\r\n\r\n"), HasSubstr("\r\n\r\nvalue"));
}

TEST_F(HttpPlugin, APasswordIsGivenAndNeverSaid) {
  Remote right(url("/private", "fleet:secret%20of%20nginx@")), wrong(url("/private", "fleet:secret@")),
      none(url("/private"));
  const Reply put = right.put("nj1:k", bytes_of(20'000));
  EXPECT_EQ(put.outcome, kDone) << put;
  EXPECT_EQ(right.get("nj1:k").value, bytes_of(20'000));
  for (Remote* const remote : {&wrong, &none}) {
    for (const Reply& reply : {remote->get("nj1:k"), remote->put("nj1:k", "value")}) {
      EXPECT_EQ(reply.outcome, kRefused);
      EXPECT_THAT(reply.why, HasSubstr(url("") + " answered 401"));
      EXPECT_THAT(reply.why, Not(HasSubstr("secret")));
      EXPECT_THAT(reply.why, Not(HasSubstr("fleet")));
    }
  }
}

TEST_F(HttpPlugin, OtherAnswersAreSaid) {
  Remote broken(url("/broken")), gone(url("/gone")), moved(url("/moved/elsewhere")),
      elsewhere(url("/elsewhere"));
  EXPECT_EQ(broken.get("nj1:k").why, url("") + " answered 503");
  EXPECT_EQ(broken.put("nj1:k", "value").why, url("") + " answered 503");
  EXPECT_EQ(broken.get("nj1:k").outcome, kFailed);
  EXPECT_EQ(moved.get("nj1:k").outcome, kRefused);
  EXPECT_EQ(gone.get("nj1:k").outcome, kAbsent);
  EXPECT_EQ(elsewhere.put("nj1:k", "value").outcome, kDone);
  EXPECT_THAT(moved.get("nj1:k").why, HasSubstr("answered 302, which sends elsewhere"));
  Remote polite(url("/polite")), empty(url("/empty"));
  const Reply thanks = polite.put("nj1:k", "value");
  EXPECT_EQ(thanks.outcome, kDone) << thanks;
  const Reply there = empty.put("nj1:k", "value");
  EXPECT_EQ(there.outcome, kDone) << there << "; nginx says 304 of what is there";
  EXPECT_THAT(polite.get("nj1:k", 3).why, HasSubstr("more than 3 bytes"));
  EXPECT_THAT(empty.get("nj1:k").why, HasSubstr("without a value"));
}

TEST(S3Plugin, ReadsTheEnvironmentAndKeepsWhatIsThere) {
  NORMJIT_NEEDS_PLUGIN("http");
  const auto server = s3_server();
  NORMJIT_NEEDS(server, "moto_server");
  ::setenv("AWS_ACCESS_KEY_ID", "AKIAFLEET", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "secret-of-s3", 1);
  ::setenv("AWS_ENDPOINT_URL", ("http://" + server->address()).c_str(), 1);
  {
    Remote remote("s3://kernels/team"), no_bucket("s3://no-such-bucket");
    EXPECT_EQ(remote.put("nj1:k", "first").outcome, kDone);
    EXPECT_EQ(remote.put("nj1:k", "second").outcome, kDone);
    EXPECT_EQ(remote.get("nj1:k").value, "first");
    EXPECT_EQ(no_bucket.get("nj1:k").outcome, kAbsent);
    EXPECT_THAT(no_bucket.put("nj1:k", "value").why,
                HasSubstr("s3://no-such-bucket at http://" + server->address() + " answered 404"));
  }
  EXPECT_EQ(Remote("s3://kernels").get("team:nj1:k").value, "first");
  ::unsetenv("AWS_ENDPOINT_URL");
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
  EXPECT_THAT(Remote("s3://kernels").opening().why, HasSubstr("AWS_SECRET_ACCESS_KEY"));
}

TEST(S3Plugin, SignsWhatItAsksFor) {
  NORMJIT_NEEDS_PLUGIN("http");
  const auto server = s3_server();
  NORMJIT_NEEDS(server, "moto_server");
  const std::vector<S3Credentials> credentials = make_strict(*server);
  ASSERT_FALSE(credentials.empty());
  const std::string at = "?endpoint=http://" + server->address() + "&region=us-east-1";
  int number = 0;
  for (const S3Credentials& one : credentials) {
    ::setenv("AWS_ACCESS_KEY_ID", one.id.c_str(), 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", one.secret.c_str(), 1);
    ::setenv("AWS_SESSION_TOKEN", one.token.c_str(), 1);
    Remote remote("s3://kernels/team-a/b_c.d~e" + at);
    for (const std::string& value :
         {bytes_of(20'000), bytes_of(3 << 20)}) {  // the second with "Expect: 100-continue"
      const std::string key = "nj1:" + std::to_string(++number);
      EXPECT_EQ(remote.get(key, 4 << 20).outcome, kAbsent);
      const Reply put = remote.put(key, value);
      EXPECT_EQ(put.outcome, kDone) << put;
      EXPECT_EQ(remote.put(key, "another").outcome, kDone);
      const Reply got = remote.get(key, 4 << 20);
      EXPECT_TRUE(got.value == value) << got;
    }
  }
  ::setenv("AWS_SECRET_ACCESS_KEY", "secret-of-another", 1);
  Remote wrong("s3://kernels/team" + at);
  for (const Reply& reply : {wrong.get("nj1:k"), wrong.put("nj1:k", "value")}) {
    EXPECT_EQ(reply.outcome, kRefused);
    EXPECT_THAT(reply.why, HasSubstr("answered 403 SignatureDoesNotMatch"));
  }
}

}  // namespace
}  // namespace normjit::testing
