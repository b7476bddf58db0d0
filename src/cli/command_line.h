// The command line of the tool. Only the files that define its commands include this.
#pragma once

#include <CLI/CLI.hpp>
#include <deque>
#include <functional>
#include <utility>

#include "cli/commands.h"

namespace normjit::cli {

inline constexpr const char* kSpecHelp =
    "layernorm/cols=N/IN[/out=T][/w=T]/eps=E[/w|/wb][/relu|/gelu|/gelu_tanh|/silu][/scale=S][/stats]; "
    "types are f16, bf16, f32, f64; shape=64x256x256 may stand for cols=";

// Ends the --help of each command.
inline constexpr const char* kExitCodes = R"(Exit status:
  0  done
  1  a kernel failed, something is missing or damaged, or a check found wrong numbers
  2  the command line, a manifest or an input file is wrong, or there is nothing to build
  3  no NVRTC to compile with, no GPU for `native`, no driver for run, bench and tune, no C++ compiler for --device host
  4  the cache or an output file cannot be read or written)";

// For each command its options, its help and what to do.
class CommandLine {
 public:
  CommandLine();
  int run(int argc, char** argv);

 private:
  // A command with the options that all have.
  CLI::App* add(const char* name, const char* description, CommonOptions& options,
                std::function<int()> action);
  static void add_json(CLI::App* command, CommonOptions& options);

  // Those that look after the cache.
  void add_prebuild();
  void add_list();
  void add_why();
  void add_verify();
  void add_prune();
  void add_export();
  void add_import();

  void add_show();
  void add_render();
  void add_run();
  void add_bench();
  void add_startup_step();
  void add_tune();
  void add_doctor();

  CLI::App app_{"normjit generates, compiles, caches and launches LayerNorm kernels for NVIDIA GPUs.",
                "normjit"};
  bool version_ = false;
  std::deque<std::pair<CLI::App*, std::function<int()>>> commands_;

  PrebuildCommand prebuild_;
  ListCommand list_;
  WhyCommand why_;
  VerifyCommand verify_;
  PruneCommand prune_;
  ExportCommand export_;
  ImportCommand import_;
  CommonOptions doctor_;
  ShowCommand show_;
  RenderCommand render_;
  RunCommand run_;
  BenchCommand bench_;
  StartupStep startup_step_;
  TuneCommand tune_;
};

}  // namespace normjit::cli
