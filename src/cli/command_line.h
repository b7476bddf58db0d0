// SPDX-License-Identifier: Apache-2.0
// The command line of a program that has commands: normjit, and normjit-bench in bench/.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"

namespace normjit::cli {

inline constexpr const char* kSpecHelp =
    "layernorm|rmsnorm[_bwd]/cols=N/IN[/out=T][/w=T][/dw=T][/res=T][/mod=T]/eps=E[/inb]"
    "[/gate|/gateafter, with :silu, :sigmoid or :tanh, :table][/add|/addafter][/sum][/dsum]"
    "[/round=sum+norm+y][/w|/wb|/w1|/wb1, with :rows][/mod|/mods|/mod0|/mods0, with :table]"
    "[/relu|/gelu|/gelu_tanh|/silu][/scale=S][/q=tensor, with :inv|/q=row, with :ub"
    "|/q=16|/q=32|/q=64|/q=128, with :p2, :e8m0 or :e4m3, :cols, :cols4 or :sw]"
    "[/also=T][/amax][/stats][/cf][/need=dx, also dw, db, dx+dw, dx+db, dw+db]; "
    "types are f16, bf16, f32, f64, and of out e4m3, e5m2, s8, e2m1; shape=64x256x256 may stand for cols=";

// Of --sample-rows and --plane.
inline constexpr const char* kSampleRowsHelp =
    "Rows that share one row of gate, scale and shift, as the tokens of a sample do";
inline constexpr const char* kPlaneHelp = "With channels first (/cf), the rows of a sample: height * width";

// Ends the --help of each command.
inline constexpr const char* kExitCodes = R"(Exit status:
  0  done
  1  a kernel failed, something is missing or damaged, or a check found wrong numbers
  2  the command line, a manifest or an input file is wrong, or there is nothing to build
  3  no NVRTC to compile with, no GPU for `native`, no driver for run, bench and tune, no C++ compiler for --device host,
     no libsodium to sign or to check signatures with
  4  the cache or an output file cannot be read or written
  5  a signature is missing or wrong, or of a key that is not trusted)";

// Adds --json, for a command that prints a report.
void add_json(CLI::App* command, CommonOptions& options);
// Adds --batch-invariant and --grouped-rows. `when` stands in front of what they say.
void add_uses(CLI::App* command, Uses& uses, const std::string& when = "");

// The commands of a program: for each its options, its help and its action.
class CommandLine {
 public:
  CommandLine(const char* description, const char* program);

  // A command with the options that all have, and where to store its own.
  template <class Options>
  std::pair<CLI::App*, Options&> add(const char* name, const char* description,
                                     int (*action)(const Options&)) {
    const auto options = std::make_shared<Options>();
    return {add(name, description, options, [=] { return action(*options); }), *options};
  }
  // A command that has commands of its own, as `normjit sign`; and one of these, which has no options but its
  // own.
  CLI::App* add_group(const char* name, const char* description);
  template <class Options>
  std::pair<CLI::App*, Options&> add_to(CLI::App* group, const char* name, const char* description,
                                        int (*action)(const Options&)) {
    const auto options = std::make_shared<Options>();
    CLI::App* const command = group->add_subcommand(name, description);
    commands_.push_back({command, options, [=] { return action(*options); }});
    return {command, *options};
  }
  // Ends the --help of the program.
  void footer(const std::string& text) { app_.footer(text); }

  // Parses the arguments, runs one command and returns the exit status of the process. Data goes to stdout;
  // progress, logs and error messages go to stderr. Never throws.
  int run(int argc, char** argv);

 private:
  struct Command {
    CLI::App* app;
    std::shared_ptr<CommonOptions> options;
    std::function<int()> action;
  };

  CLI::App* add(const char* name, const char* description, std::shared_ptr<CommonOptions> options,
                std::function<int()> action);
  int parse_and_run(int argc, char** argv);

  CLI::App app_;
  bool version_ = false;
  std::vector<Command> commands_;
};

}  // namespace normjit::cli
