// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <cstdio>
#include <exception>
#include <new>
#include <sstream>

#include "normjit/base/text.h"
#include "verify/foreign_text.h"

namespace normjit::cli {

void add_json(CLI::App* command, CommonOptions& options) {
  command->add_flag("--json", options.json, "Print the report as JSON");
}

void add_uses(CLI::App* command, Uses& uses, const std::string& when) {
  command->add_flag("--batch-invariant", uses.batch_invariant,
                    when + "Only the kernels that batch-invariant services and calls take");
  command->add_flag("--grouped-rows", uses.grouped_rows,
                    when + "Kernels for operands whose rows come in groups, in place of the others");
}

CommandLine::CommandLine(const char* description, const char* program) : app_(description, program) {
  app_.add_flag("--version", version_, "Print the version");
  app_.require_subcommand(0, 1);
}

CLI::App* CommandLine::add(const char* name, const char* description, std::shared_ptr<CommonOptions> options,
                           std::function<int()> action) {
  CLI::App* command = app_.add_subcommand(name, description);
  command->add_option_function<std::string>(
      "--cache-dir", [=](const std::string& directory) { options->cache_directory = directory; },
      "Directory of the cache, '' for none; else NORMJIT_CACHE_DIR, $XDG_CACHE_HOME/normjit, "
      "~/.cache/normjit");
  command->add_option("--log", options->log,
                      "Log to stderr: debug, info, warn, error or off; else NORMJIT_LOG, warn");
  commands_.push_back({command, std::move(options), std::move(action)});
  return command;
}

CLI::App* CommandLine::add_group(const char* name, const char* description) {
  CLI::App* const group = app_.add_subcommand(name, description);
  group->require_subcommand(1);
  return group;
}

// A mistake in what was given is one sentence, which quotes the mistake.
constexpr std::size_t kLongestMessage = 4000;

int CommandLine::parse_and_run(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      std::ostringstream help;
      app_.exit(error, help);
      print(help.str());
      return kDone;
    }
    const std::string program = app_.get_name();
    return fail(kUsage, concat({oracle::shown(error.what(), kLongestMessage), "\nRun ", program,
                                " --help, or ", program, " COMMAND --help."}));
  }
  if (version_) {
    print(app_.get_name() + " " NORMJIT_VERSION "\n");
    return kDone;
  }
  for (const Command& command : commands_) {
    if (!command.app->parsed()) continue;
    command.options->words.assign(argv, argv + argc);
    return command.action();
  }
  std::fputs(app_.help().c_str(), stderr);
  return kUsage;
}

int CommandLine::run(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const Exception& error) {
    const ExitCode code = exit_code(error.code());
    return fail(code, code == kUsage ? oracle::shown(error.what(), kLongestMessage) : error.what());
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "there is not enough memory for this; ask for less at once: fewer specs, or rows");
  } catch (const std::exception& error) {  // the standard library: no more threads
    return fail(kFailed, error.what());
  }
}

}  // namespace normjit::cli
