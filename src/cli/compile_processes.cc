#include "cli/compile_processes.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <semaphore>
#include <thread>
#include <utility>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/message.h"
#include "normjit/base/text.h"
#include "normjit/cache/system_call.h"
#include "normjit/service/default_compiler.h"

extern char** environ;

namespace normjit::cli {
namespace {

constexpr int kThreadsHere = 2;

Json request_of(const Source& source, Arch arch) {
  return {{"text", source.text},
          {"kernel", source.kernel},
          {"description", source.description},
          {"arch", arch.name()}};
}

Json answer_to(const Json& request, Compiler& compiler) {
  const Source source{request.at("text"), request.at("kernel"), request.at("description")};
  const auto binary = compiler.compile(source, Arch::parse(request.at("arch").get<std::string>()).value());
  if (!binary) return {{"code", binary.error().code}, {"error", binary.error().message}};
  return {{"binary", binary->code},
          {"ptx", binary->ptx},
          {"target", binary->target},
          {"toolchain", binary->toolchain},
          {"registers", binary->registers},
          {"spill_bytes", binary->spill_bytes},
          {"shared_bytes", binary->shared_bytes},
          {"log", binary->log}};
}

Result<Binary> binary_from(const Json& answer) {
  if (answer.contains("error")) return Error{answer.at("code").get<Code>(), answer.at("error")};
  return Binary{.code = answer.at("binary"),
                .ptx = answer.at("ptx"),
                .target = answer.at("target"),
                .toolchain = answer.at("toolchain"),
                .registers = answer.at("registers"),
                .spill_bytes = answer.at("spill_bytes"),
                .shared_bytes = answer.at("shared_bytes"),
                .log = answer.at("log")};
}

// Starts a program whose standard input is `socket`. Its pid, or -1.
pid_t start(std::vector<std::string> command, int socket) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  pid_t child = -1;
  const int error = posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? child : -1;
}

std::string ending_of(int status) {
  if (WIFSIGNALED(status)) return concat({"was killed by signal ", shortest(WTERMSIG(status))});
  return concat({"ended with status ", shortest(WEXITSTATUS(status))});
}

// One child. Used by one thread at a time; gone when the object is.
class Child {
 public:
  // Null where the system refuses a process.
  static std::unique_ptr<Child> start(const std::vector<std::string>& command) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return nullptr;
    const pid_t process = cli::start(command, ends[1]);
    close(ends[1]);
    auto child = std::make_unique<Child>(ends[0], process);
    return process > 0 ? std::move(child) : nullptr;
  }
  Child(int socket, pid_t process) : socket_(socket), process_(process) {}
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Nothing if the child dies over it.
  std::optional<Result<Binary>> compile(const Source& source, Arch arch) const {
    if (!send_message(socket_, request_of(source, arch))) return {};
    const std::optional<Json> answer = receive_message(socket_);
    if (!answer) return {};
    return binary_from(*answer);
  }

  // The child ends by itself then.
  void hang_up() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  // Waits for the child's end, and says how it came.
  std::string end() {
    hang_up();
    int status = 0;
    const pid_t process = std::exchange(process_, -1);
    if (process < 0 || uninterrupted([&] { return waitpid(process, &status, 0); }) < 0) return "is gone";
    return ending_of(status);
  }

 private:
  int socket_;
  pid_t process_;
};

class ProcessCompiler final : public Compiler {
 public:
  ProcessCompiler(std::shared_ptr<Compiler> here, std::vector<std::string> command)
      : here_(std::move(here)), command_(std::move(command)) {}
  ~ProcessCompiler() override {
    for (const auto& child : idle_) child->hang_up();  // all of them, before the first is waited for
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

  // An idle child, or a new one.
  std::unique_ptr<Child> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Child> child = std::move(idle_.back());
        idle_.pop_back();
        return child;
      }
    }
    return Child::start(command_);
  }
  void give_back(std::unique_ptr<Child> child) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(child));
  }

  const std::shared_ptr<Compiler> here_;
  const std::vector<std::string> command_;
  std::counting_semaphore<kThreadsHere> places_here_{kThreadsHere};
  std::mutex mutex_;  // guards idle_
  std::vector<std::unique_ptr<Child>> idle_;
};

// Ends this process once the other end is closed. A compile cannot be interrupted otherwise.
void end_with(int socket) {
  pollfd watched{.fd = socket, .events = POLLRDHUP, .revents = 0};
  if (uninterrupted([&] { return poll(&watched, 1, -1); }) > 0) _exit(kDone);
}

}  // namespace

std::shared_ptr<Compiler> make_process_compiler(std::shared_ptr<Compiler> here,
                                                std::vector<std::string> child) {
  return std::make_shared<ProcessCompiler>(std::move(here), std::move(child));
}

std::shared_ptr<Compiler> make_prebuild_compiler(const Options& options, std::shared_ptr<Driver> driver) {
  return make_process_compiler(make_default_compiler(options, std::move(driver)),
                               {std::filesystem::read_symlink("/proc/self/exe"), "serve-compiles"});
}

void serve_compiles(Compiler& compiler, int socket) {
  std::thread(end_with, socket).detach();
  while (const std::optional<Json> request = receive_message(socket))
    if (!send_message(socket, answer_to(*request, compiler))) break;
}

int serve_compiles(const CommonOptions& options) {
  serve_compiles(*make_default_compiler(service_options(options), make_cuda_driver()), STDIN_FILENO);
  return kDone;
}

}  // namespace normjit::cli
