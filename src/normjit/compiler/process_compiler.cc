// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/process_compiler.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "normjit/base/fork.h"
#include "normjit/base/text.h"
#include "normjit/base/uninterrupted.h"
#include "normjit/compiler/messages.h"

extern char** environ;

namespace normjit {
namespace {

constexpr int kPlacesHere = 2;

// Starts a program whose standard input is `socket`. Its pid, or -1.
pid_t spawn(std::string program, int socket) {
  char* const arguments[] = {program.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  pid_t child = -1;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? child : -1;
}

std::string ending_of(int status) {
  if (WIFSIGNALED(status)) return concat({"was killed by signal ", shortest(WTERMSIG(status))});
  return concat({"ended with status ", shortest(WEXITSTATUS(status))});
}

// One child process; the destructor ends it. Used by one thread at a time. A ForkLock, so that a forked
// process closes its copy of the socket: with that copy open the child would outlive this process.
class Child final : ForkLock {
 public:
  // Null if the system refuses a process, or this process is exiting.
  static std::unique_ptr<Child> start(const std::string& program) {
    const ForkGate gate;  // no fork before the socket is enlisted
    int ends[2];
    if (!gate || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return nullptr;
    const pid_t process = spawn(program, ends[1]);
    close(ends[1]);
    auto child = std::make_unique<Child>(ends[0], process);
    return process > 0 ? std::move(child) : nullptr;
  }
  Child(int socket, pid_t process) : socket_(socket), process_(process) { enlist(); }
  ~Child() {
    end();
    withdraw();
  }

  // The reason why the child cannot serve; empty if it can.
  std::string greet(const std::string& nvrtc) {
    std::optional<Message> hello;
    if (send_message(socket_, {protocol(), nvrtc})) hello = receive_message(socket_);
    if (!hello) return concat({"it ", end()});
    if (hello->size() != 2 || hello->front() != protocol()) return "it is of another version";
    return hello->back();
  }

  // Nothing if the child dies meanwhile.
  std::optional<Result<Binary>> compile(const Source& source, Arch arch) const {
    if (!send_message(socket_, request_of(source, arch))) return {};
    std::optional<Message> answer = receive_message(socket_);
    if (!answer) return {};
    return parse_answer(*std::move(answer));
  }

  // Closes the connection, after which the child ends by itself, even if a copy of the socket is still open.
  void hang_up() {
    if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
    drop_socket();
  }
  // Hangs up, waits for the child and says how it ended; "is gone" if the host has already waited for it.
  std::string end() {
    hang_up();
    int status = 0;
    const pid_t process = std::exchange(process_, -1);
    if (process < 0 || uninterrupted([&] { return waitpid(process, &status, 0); }) < 0) return "is gone";
    return ending_of(status);
  }

 private:
  void take() noexcept override {}
  void give_back() noexcept override {}
  void renew() noexcept override {
    drop_socket();
    process_ = -1;
  }
  void drop_socket() noexcept {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }

  int socket_;
  pid_t process_;
};

class ProcessCompiler final : public Compiler {
 public:
  ProcessCompiler(std::shared_ptr<Compiler> here, CompileProgram program)
      : here_(std::move(here)), program_(std::move(program)) {}
  ~ProcessCompiler() override {
    for (const auto& child : idle_) child->hang_up();  // so that they end at the same time
  }

  Result<Binary> compile(const Source& source, Arch arch) override {
    if (!places_here_.try_acquire()) return compile_elsewhere(source, arch);
    auto binary = here_->compile(source, arch);
    places_here_.release();
    return binary;
  }

  Result<Facts> facts() override { return here_->facts(); }

 private:
  Result<Binary> compile_elsewhere(const Source& source, Arch arch) {
    std::string ending;
    for (int attempt = 0; attempt < 2; ++attempt) {
      std::unique_ptr<Child> child = take();
      if (!child) return here_->compile(source, arch);
      if (auto answer = child->compile(source, arch)) {
        give_back(std::move(child));
        return *std::move(answer);
      }
      ending = child->end();
    }
    return Error{Code::CompileFailed,
                 concat({"Cannot compile ", source.kernel, " for ", arch.name(), " (", source.description,
                         "): the process that compiled it ", ending, ", and so did another one."})};
  }

  // Returns an idle child or starts one; null if none can be started.
  std::unique_ptr<Child> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Child> child = std::move(idle_.back());
        idle_.pop_back();
        return child;
      }
    }
    if (no_more_) return nullptr;
    std::unique_ptr<Child> child = start();
    if (!child) no_more_ = true;
    return child;
  }
  void give_back(std::unique_ptr<Child> child) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(child));
  }

  std::unique_ptr<Child> start() const {
    const auto nvrtc = here_->facts();  // children use the same library as this process
    if (!nvrtc) return nullptr;         // the next compile here returns the same error
    const std::string path = program_.find();
    if (path.empty()) return nullptr;
    std::unique_ptr<Child> child = Child::start(path);
    const std::string why = child ? child->greet(nvrtc->path) : "the system starts no process of it";
    if (why.empty()) return child;
    program_.refused(path, why);
    return nullptr;
  }

  const std::shared_ptr<Compiler> here_;
  const CompileProgram program_;
  std::counting_semaphore<kPlacesHere> places_here_{kPlacesHere};
  std::atomic<bool> no_more_ = false;  // no further child is started
  std::mutex mutex_;                   // guards idle_
  std::vector<std::unique_ptr<Child>> idle_;
};

// Ends this process as soon as the other end of `socket` is closed.
void end_with(int socket) {
  pollfd watched{.fd = socket, .events = POLLRDHUP, .revents = 0};
  if (uninterrupted([&] { return poll(&watched, 1, -1); }) > 0) _exit(0);
}

}  // namespace

std::shared_ptr<Compiler> make_process_compiler(std::shared_ptr<Compiler> here, CompileProgram program) {
  return std::make_shared<ProcessCompiler>(std::move(here), std::move(program));
}

void serve_compiles(int socket, const std::function<std::shared_ptr<Compiler>(const std::string&)>& make) {
  const std::optional<Message> hello = receive_message(socket);
  if (!hello || hello->size() != 2) return;
  if ((*hello)[0] != protocol()) {
    send_message(socket, {protocol(), "it is of another version"});
    return;
  }
  const std::shared_ptr<Compiler> compiler = make((*hello)[1]);
  const auto facts = compiler->facts();
  if (!send_message(socket, {protocol(), facts ? "" : facts.error().message}) || !facts) return;
  std::thread(end_with, socket).detach();
  while (auto message = receive_message(socket)) {
    const auto request = parse_request(*std::move(message));
    if (!request || !send_message(socket, answer_of(compiler->compile(request->first, request->second))))
      return;
  }
}

}  // namespace normjit
