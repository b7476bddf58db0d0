// SPDX-License-Identifier: Apache-2.0
// Redis and Valkey as the store that machines share: redis://[[user]:password@]host[:port][/db][?ttl=SECONDS]
//
// A session is one connection, made by the first call and kept. Commands that the server must allow: GETRANGE
// for get, SET for put, EVAL of scripts with EXISTS, GET and SET for leases, with GET and DEL for their
// release.
//
// hiredis parses the answers. The socket is here: hiredis' own would raise SIGPIPE in the host, have a time
// limit for each read rather than for the call, and be inherited by programs that the host starts.
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <system_error>

#include "normjit/base/start_thread.h"
#include "normjit/base/uninterrupted.h"
#include "normjit/export.h"
#include "plugins/plugin.h"

namespace normjit::plugins {
namespace {

constexpr int kDefaultPort = 6379;
constexpr int kConnectMs = 50;  // a machine that takes longer is down, or too far away to be of use
// Answers other than a value are one line each. What is longer is no Redis.
constexpr std::size_t kMostOfLines = 4096;
constexpr std::size_t kMostOfValue = std::size_t{512} << 20;  // Redis has no larger ones

// Leases: only their owner may go on with one or end it, and there is none of a key whose value is there.
// KEYS[1] is the lease, KEYS[2] the value, ARGV[1] the owner, ARGV[2] the lifetime.
constexpr std::string_view kLease =
    "if redis.call('exists',KEYS[2])==1 then return 0 end "
    "local owner=redis.call('get',KEYS[1]) "
    "if owner and owner~=ARGV[1] then return 0 end "
    "redis.call('set',KEYS[1],ARGV[1],'PX',ARGV[2]) return 1";
constexpr std::string_view kRelease =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

class Deadline {
 public:
  explicit Deadline(int milliseconds)
      : at_(Clock::now() + std::chrono::milliseconds(std::max(milliseconds, 0))) {}

  // Rounded up: else the last millisecond would be spent in calls that do not wait.
  int left() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
  }
  bool passed() const { return Clock::now() >= at_; }
  std::chrono::steady_clock::time_point at() const { return at_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point at_;
};

std::string text_of_errno(int error) { return std::generic_category().message(error); }

struct Addresses {
  addrinfo* first = nullptr;
  int error = 0;  // of getaddrinfo

  Addresses() = default;
  ~Addresses() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  void find(const std::string& host, const std::string& port, int flags) noexcept {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &first);
    if (error != 0) first = nullptr;
  }
};

// Looks a name up in a thread, because getaddrinfo has no time limit. The thread owns what it needs and is
// left alone by a call that can wait no longer; the next call finds the answer.
class Lookup {
 public:
  static std::shared_ptr<Lookup> start(const std::string& host, const std::string& port) {
    auto lookup = std::make_shared<Lookup>();
    const bool started = start_thread([lookup, host, port]() noexcept {
      lookup->addresses_->find(host, port, 0);
      const std::lock_guard lock(lookup->mutex_);
      lookup->is_done_ = true;
      lookup->done_.notify_all();
    });
    if (!started) throw std::runtime_error("the system starts no thread");
    return lookup;
  }

  // What was found, or null at the deadline.
  std::unique_ptr<Addresses> wait(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    return done_.wait_until(lock, deadline.at(), [&] { return is_done_; }) ? std::move(addresses_) : nullptr;
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::unique_ptr<Addresses> addresses_ = std::make_unique<Addresses>();  // the thread's until it is done
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int number) : number_(number) {}
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Socket() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// A connection to this address by then; or none, and an errno.
Socket connected(const addrinfo& address, const Deadline& deadline, int& error) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
  const int yes = 1;
  if (socket) ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  if (!socket ||
      (::connect(socket.number(), address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS)) {
    error = errno;
    return {};
  }
  pollfd ready{socket.number(), POLLOUT, 0};
  if (uninterrupted([&] { return ::poll(&ready, 1, deadline.left()); }) <= 0) {
    error = ETIMEDOUT;
    return {};
  }
  socklen_t size = sizeof error;
  if (::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? std::move(socket) : Socket();
}

// An answer. No command here is answered by an array, so there is no other kind.
struct Answer {
  int type = 0;  // REDIS_REPLY_*; 0: something else
  long long integer = 0;
  std::string text;

  bool is_integer(long long value) const { return type == REDIS_REPLY_INTEGER && integer == value; }
  bool is_ok() const { return type == REDIS_REPLY_STATUS && text == "OK"; }
};

// What hiredis' reader calls: it makes no objects, and refuses arrays, whose announced size it would
// allocate.
Answer* answer_of(const redisReadTask* task) {
  auto* answer = static_cast<Answer*>(task->privdata);
  answer->type = task->type;
  return answer;
}
void* take_text(const redisReadTask* task, char* text, std::size_t size) {
  Answer* const answer = answer_of(task);
  try {
    answer->text.assign(text, size);
  } catch (...) {  // not through hiredis, which is C
    return nullptr;
  }
  return answer;
}
void* take_integer(const redisReadTask* task, long long value) {
  Answer* const answer = answer_of(task);
  answer->integer = value;
  return answer;
}
void* take_nil(const redisReadTask* task) {
  Answer* const answer = answer_of(task);
  answer->type = REDIS_REPLY_NIL;  // the task's is that of the text that it could have been
  return answer;
}
template <class Count>  // int or size_t, by the version of hiredis
void* take_array(const redisReadTask*, Count) {
  return nullptr;
}
void leave(void*) {}

redisReplyObjectFunctions& answer_functions() {
  static constinit redisReplyObjectFunctions functions = [] {
    redisReplyObjectFunctions set{};
    set.createString = take_text;
    set.createArray = take_array;
    set.createInteger = take_integer;
    set.createNil = take_nil;
    set.freeObject = leave;
    return set;
  }();
  return functions;
}

struct FreeReader {
  void operator()(redisReader* reader) const { redisReaderFree(reader); }
};

// Commands as they are sent. A value is never copied: it may have 64 MiB, and the time of a call is limited.
struct Request {
  std::string head;
  std::string_view value = {};
  std::string tail = {};
};

std::string word(std::string_view text) {
  return concat({"$", std::to_string(text.size()), "\r\n", text, "\r\n"});
}
std::string command(std::initializer_list<std::string_view> words) {
  std::string text = concat({"*", std::to_string(words.size()), "\r\n"});
  for (const std::string_view one : words) text += word(one);
  return text;
}

class Session {
 public:
  Session(Url url, int database, std::string ttl)
      : url_(std::move(url)), place_(url_.place()), database_(database), ttl_(std::move(ttl)) {}

  Outcome get(std::string_view key, std::size_t max_bytes, normjit_remote_sink sink, void* to, int timeout_ms,
              const Why& why) {
    // A byte more than may come is asked for: its presence says that the value is too large. An absent value
    // reads as an empty one, which no value is.
    const std::size_t last = std::min(max_bytes, kMostOfValue);
    const Request request{command({"GETRANGE", key, "0", std::to_string(last)})};
    Answer value[1];
    if (!ask(request, last + kMostOfLines, value, timeout_ms, why)) return NORMJIT_REMOTE_FAILED;
    if (value[0].type != REDIS_REPLY_STRING) return refused(value[0], why);
    if (value[0].text.empty()) return NORMJIT_REMOTE_ABSENT;
    if (value[0].text.size() > max_bytes)
      return why.refused({place_, " has a value of more than ", std::to_string(max_bytes), " bytes"});
    sink(to, value[0].text.data(), value[0].text.size());
    return NORMJIT_REMOTE_DONE;
  }

  Outcome put(std::string_view key, std::string_view value, int timeout_ms, const Why& why) {
    const std::string options = ttl_.empty() ? word("NX") : word("NX") + word("EX") + word(ttl_);
    const Request request{concat({ttl_.empty() ? "*4\r\n" : "*6\r\n", word("SET"), word(key), "$",
                                  std::to_string(value.size()), "\r\n"}),
                          value, "\r\n" + options};
    Answer set[1];
    if (!ask(request, kMostOfLines, set, timeout_ms, why)) return NORMJIT_REMOTE_FAILED;
    const bool has_older = set[0].type == REDIS_REPLY_NIL;
    return set[0].is_ok() || has_older ? NORMJIT_REMOTE_DONE : refused(set[0], why);
  }

  Outcome lease(std::string_view key, std::string_view owner, int lifetime_ms, int timeout_ms,
                const Why& why) {
    const std::string_view value = key.substr(0, key.rfind(':'));
    const Request request{command({"EVAL", kLease, "2", key, value, owner, std::to_string(lifetime_ms)})};
    Answer leased[1];
    if (!ask(request, kMostOfLines, leased, timeout_ms, why)) return NORMJIT_REMOTE_FAILED;
    if (leased[0].is_integer(1)) return NORMJIT_REMOTE_DONE;
    return leased[0].is_integer(0) ? NORMJIT_REMOTE_ABSENT : refused(leased[0], why);
  }

  Outcome release(std::string_view key, std::string_view owner, int timeout_ms, const Why& why) {
    const Request request{command({"EVAL", kRelease, "1", key, owner})};
    Answer released[1];
    if (!ask(request, kMostOfLines, released, timeout_ms, why)) return NORMJIT_REMOTE_FAILED;
    return released[0].type == REDIS_REPLY_INTEGER ? NORMJIT_REMOTE_DONE : refused(released[0], why);
  }

 private:
  enum class Ending { kAnswered, kClosed, kFailed };

  // Sends commands and takes an answer to each, of at most `limit` bytes together, over the kept connection
  // or a new one. False: `why` is written, and the connection is closed.
  bool ask(const Request& request, std::size_t limit, std::span<Answer> answers, int timeout_ms,
           const Why& why) {
    const Deadline deadline(timeout_ms);
    bool answered = false;
    try {
      for (bool kept = is_usable();; kept = false) {
        if (!kept && !open(deadline, timeout_ms, why)) break;
        const Ending ending = exchange(request, limit, answers, deadline, timeout_ms, why);
        answered = ending == Ending::kAnswered;
        // The server may have closed a connection that idled, just now. Every command may be given twice.
        if (ending != Ending::kClosed || !kept) break;
      }
    } catch (...) {
      close();  // else the next call would take the answer to this one
      throw;
    }
    if (!answered) close();
    return answered;
  }

  void close() {
    socket_ = Socket();
    reader_.reset();
  }

  // Nothing may come while nothing is asked: neither the end of the connection nor any bytes.
  bool is_usable() const {
    if (!socket_) return false;
    pollfd ready{socket_.number(), POLLIN, 0};
    return uninterrupted([&] { return ::poll(&ready, 1, 0); }) == 0;
  }

  bool open(const Deadline& deadline, int timeout_ms, const Why& why) {
    close();
    const int allowed = std::min(kConnectMs, deadline.left());
    const Deadline connecting(allowed);
    const std::string port = std::to_string(url_.port),
                      within = concat({" within ", std::to_string(allowed), " ms"});
    auto addresses = std::make_unique<Addresses>();
    addresses->find(url_.host, port, AI_NUMERICHOST);
    if (addresses->first == nullptr) {
      if (lookup_ == nullptr) lookup_ = Lookup::start(url_.host, port);
      addresses = lookup_->wait(connecting);
      if (addresses == nullptr)
        return failed(why, {place_, ": the address of its host was not found", within});
      lookup_ = nullptr;  // the next connection asks again: addresses change
      if (addresses->first == nullptr)
        return failed(
            why, {place_, ": the address of its host was not found: ", ::gai_strerror(addresses->error)});
    }
    int left = 0, error = 0;
    for (const addrinfo* at = addresses->first; at != nullptr; at = at->ai_next) ++left;
    // Each address has its share of the time, so that one that is silent does not hide the next.
    for (const addrinfo* at = addresses->first; at != nullptr && !socket_; at = at->ai_next, --left)
      socket_ = connected(*at, Deadline(connecting.left() / left), error);
    if (!socket_ && error == ETIMEDOUT) return failed(why, {place_, " was not reached", within});
    if (!socket_) return failed(why, {place_, " was not reached: ", text_of_errno(error)});
    reader_.reset(redisReaderCreateWithFunctions(&answer_functions()));
    if (reader_ == nullptr) throw std::bad_alloc();
    return greet(deadline, timeout_ms, why);
  }

  // The password and the number of the database. What is asked comes after their answers: it must not reach
  // another database, and a server that has not seen a password refuses long commands by closing the
  // connection.
  bool greet(const Deadline& deadline, int timeout_ms, const Why& why) {
    Request request;
    std::size_t count = 0;
    if (url_.password) {
      request.head = url_.user.empty() ? command({"AUTH", *url_.password})
                                       : command({"AUTH", url_.user, *url_.password});
      ++count;
    }
    if (database_ != 0) {
      request.head += command({"SELECT", std::to_string(database_)});
      ++count;
    }
    if (count == 0) return true;
    Answer answers[2];
    const std::span<Answer> wanted(answers, count);
    if (exchange(request, kMostOfLines, wanted, deadline, timeout_ms, why) != Ending::kAnswered) return false;
    const auto is_of_password =
        [](const Answer& answer) {  // of any version: WRONGPASS, or ERR and a sentence
          return answer.type == REDIS_REPLY_ERROR && (answer.text.find("PASS") != std::string::npos ||
                                                      answer.text.find("password") != std::string::npos);
        };
    if (url_.password && is_of_password(answers[0]))
      return failed(why, {place_, " does not accept the user and password of the URL"});
    if (!answers[0].is_ok())
      refused(answers[0], why, url_.password ? " the password" : " the database");
    else if (!answers[count - 1].is_ok())
      refused(answers[count - 1], why, " the database");
    else
      return true;
    return false;
  }

  Ending exchange(const Request& request, std::size_t limit, std::span<Answer> answers,
                  const Deadline& deadline, int timeout_ms, const Why& why) {
    const auto no_answer = [&] {
      why.failed({place_, kNoAnswer});
      return Ending::kFailed;
    };
    std::array<iovec, 3> parts{part(request.head), part(request.value), part(request.tail)};
    std::size_t left = request.head.size() + request.value.size() + request.tail.size();
    std::size_t received = 0, answered = 0;
    for (;;) {
      if (deadline.passed()) {
        why.failed({place_, " did not answer within ", std::to_string(timeout_ms), " ms"});
        return Ending::kFailed;
      }
      pollfd ready{socket_.number(), static_cast<short>(left == 0 ? POLLIN : POLLIN | POLLOUT), 0};
      if (uninterrupted([&] { return ::poll(&ready, 1, deadline.left()); }) <= 0) continue;
      // A server may refuse before it has everything, so what it says is read in between, and after a send
      // that fails.
      if (left > 0 && (ready.revents & POLLOUT) != 0) {
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = parts.size();
        const ssize_t sent = ::sendmsg(socket_.number(), &message, MSG_NOSIGNAL);
        if (sent > 0) left -= take_off(parts, static_cast<std::size_t>(sent));
        if (sent < 0 && errno != EAGAIN && errno != EINTR) left = 0;
      }
      if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      char some[16 * 1024];
      const ssize_t size = ::recv(socket_.number(), some, sizeof some, 0);
      if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (size <= 0) {
        why.failed({place_, " has closed the connection", size < 0 ? ": " + text_of_errno(errno) : ""});
        return received == 0 ? Ending::kClosed : Ending::kFailed;
      }
      received += static_cast<std::size_t>(size);
      if (received > limit ||
          redisReaderFeed(reader_.get(), some, static_cast<std::size_t>(size)) != REDIS_OK)
        return no_answer();
      for (void* whole = nullptr; answered < answers.size(); ++answered, whole = nullptr) {
        reader_->privdata = &answers[answered];
        if (redisReaderGetReply(reader_.get(), &whole) != REDIS_OK) return no_answer();
        if (whole == nullptr) break;
      }
      if (answered < answers.size()) continue;
      return left == 0 && reader_->pos == reader_->len ? Ending::kAnswered : no_answer();
    }
  }

  static bool failed(const Why& why, std::initializer_list<std::string_view> parts) {
    why.failed(parts);
    return false;
  }

  // The sentence for an answer that is an error. Of the server's words only the first is said, its code:
  // others may name the user or the key.
  Outcome refused(const Answer& answer, const Why& why, std::string_view where = "") const {
    if (answer.type != REDIS_REPLY_ERROR) return why.failed({place_, kNoAnswer});
    const std::string_view text = answer.text, code = text.substr(0, text.find(' '));
    if (code == "NOAUTH" || text.find("unauthenticated") != text.npos)
      return why.failed({place_, " requires a password, and the URL has none"});
    if (text.find("max number of clients") != text.npos)
      return why.failed({place_, " has as many clients as it takes"});
    const std::pair<std::string_view, std::string_view> known[] = {
        {"NOPERM", "the user may not give this command or has no right to this key"},
        {"OOM", "its memory is full"},
        {"READONLY", "it is a replica, which is only read"},
        {"LOADING", "it is still loading its data"},
        {"WRONGTYPE", "the key has something that is not a value"},
        {"MOVED", "it is one of a cluster, and the key belongs to another"},
        {"DENIED", "it is in protected mode, for its own machine only"},
    };
    // These say that nothing is served at present; others are about this command or key.
    const bool is_down = code == "LOADING" || code == "DENIED" || code == "MASTERDOWN";
    for (const auto& [name, meaning] : known)
      if (code == name) {
        const std::string sentence = concat({place_, " refuses", where, ": ", meaning, " (", code, ")"});
        return is_down ? why.failed({sentence}) : why.refused({sentence});
      }
    const bool is_code = code.size() <= 20 && consists_of(code, "");
    return why.refused({place_, " refuses", where, is_code ? " with " : "", is_code ? code : ""});
  }

  static iovec part(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

  // Takes the first bytes off, and returns how many.
  static std::size_t take_off(std::span<iovec> parts, std::size_t bytes) {
    for (std::size_t rest = bytes; iovec & part : parts) {
      const std::size_t here = std::min(part.iov_len, rest);
      part.iov_base = static_cast<char*>(part.iov_base) + here;
      part.iov_len -= here;
      rest -= here;
    }
    return bytes;
  }

  static constexpr std::string_view kNoAnswer = " gives an answer that is none of Redis";

  const Url url_;
  const std::string place_;
  const int database_;
  const std::string ttl_;  // seconds; empty: values stay
  Socket socket_;
  std::unique_ptr<redisReader, FreeReader> reader_;
  std::shared_ptr<Lookup> lookup_;  // one that has not been waited for to its end
};

// The session for this URL; or none, and `why` is written.
std::unique_ptr<Session> session_of(std::string_view text, const Why& why) {
  const auto wrong = [&](std::string_view mistake) {
    why.failed({"The URL ", mistake});
    return nullptr;
  };
  std::string mistake;
  std::optional<Url> url = parse_url(text, mistake);
  if (!url) return wrong(mistake);
  if (url->scheme == "rediss")
    return wrong(
        "begins with rediss:, and this plug-in has no TLS; give redis: and a proxy on this machine "
        "(stunnel)");
  if (url->scheme != "redis") return wrong("does not begin with redis:");
  if (!url->user.empty() && !url->password) return wrong("has a user without a password");
  if (url->port == 0) url->port = kDefaultPort;

  std::string_view path = url->path;
  if (path.starts_with('/')) path.remove_prefix(1);
  const std::optional<int> database = path.empty() ? 0 : number<int>(path);
  if (!database || *database < 0)
    return wrong("has something other than the number of a database behind its host");
  std::string ttl;
  for (const auto& [name, value] : url->query) {
    const std::optional<std::int64_t> seconds = number<std::int64_t>(value);
    if (name != "ttl") return wrong("has something other than ttl=SECONDS behind its '?'");
    if (!seconds || *seconds < 1 || *seconds > 1'000'000'000)
      return wrong("has a ttl that is no number of seconds");
    ttl = std::to_string(*seconds);
  }
  return std::make_unique<Session>(*std::move(url), *database, ttl);
}

}  // namespace
}  // namespace normjit::plugins

extern "C" NORMJIT_API normjit_remote_outcome normjit_remote_open(const char* url, normjit_remote* remote,
                                                                  char* why_text, size_t why_size) {
  using namespace normjit::plugins;
  const Why why(why_text, why_size);
  return guarded(why, [&] { return hand_over(session_of(url, why), remote, why); });
}
