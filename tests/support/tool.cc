// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/support/temp_directory.h"

namespace normjit {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

ToolRun run_program(const std::string& program, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment, const std::string& out) {
  std::vector<std::string> command = {program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  // Each once: of two, getenv() takes the first one, and a shell the last one.
  const auto is_given = [&](const std::string& name) {
    return std::any_of(environment.begin(), environment.end(),
                       [&](const std::string& one) { return one.starts_with(name); });
  };
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string inherited = *variable;
    if (!inherited.starts_with("NORMJIT_") && !is_given(inherited.substr(0, inherited.find('=') + 1)))
      variables.push_back(inherited);
  }

  const TempDirectory directory;  // files, not pipes: nothing can block
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, (out.empty() ? directory / "out" : out).c_str(),
                                   O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, (directory / "err").c_str(), O_WRONLY | O_CREAT,
                                   0600);
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), &files, nullptr, pointers(command).data(),
                                pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  EXPECT_EQ(error, 0) << program;
  if (error != 0) return {};
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(directory / "out"),
          contents(directory / "err")};
}

ToolRun run_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                 const std::string& out) {
  return run_program(NORMJIT_TOOL, arguments, environment, out);
}

ToolRun run_bench(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                  const std::string& out) {
  return run_program(NORMJIT_BENCH, arguments, environment, out);
}

}  // namespace normjit
