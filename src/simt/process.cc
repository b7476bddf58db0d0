// SPDX-License-Identifier: Apache-2.0
#include "simt/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "normjit/base/text.h"

extern char** environ;

namespace normjit::simt {

std::string find_program(const std::string& name) {
  const auto runnable = [](const std::string& path) { return access(path.c_str(), X_OK) == 0; };
  if (name.find('/') != std::string::npos) return runnable(name) ? name : "";
  const char* path = std::getenv("PATH");
  for (const std::string_view folder : split(path ? path : "/usr/local/bin:/usr/bin:/bin", ':'))
    if (const std::string file = concat({folder.empty() ? "." : folder, "/", name}); runnable(file))
      return file;
  return {};
}

Result<Finished> run_program(const std::vector<std::string>& command) {
  const auto failed = [&](int error) {
    return Error{Code::NoCompiler, concat({"Cannot run ", command[0], ": ", std::strerror(error), "."})};
  };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failed(errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, command[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);

  Finished finished;
  if (error == 0) {
    char piece[4096];
    for (ssize_t n; (n = read(ends[0], piece, sizeof piece)) != 0;) {
      if (n > 0) finished.output.append(piece, static_cast<std::size_t>(n));
      if (n < 0 && errno != EINTR) break;
    }
  }
  close(ends[0]);
  if (error != 0) return failed(error);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

}  // namespace normjit::simt
