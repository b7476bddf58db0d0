#include "cli/cli.h"

#include <cstdio>
#include <exception>
#include <new>
#include <sstream>

#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/suite.h"
#include "normjit/base/text.h"
#include "verify/foreign_text.h"

namespace normjit::cli {

void CommandLine::add_json(CLI::App* command, CommonOptions& options) {
  command->add_flag("--json", options.json, "Print the report as JSON");
}

CommandLine::CommandLine() {
  app_.add_flag("--version", version_, "Print the version");
  app_.require_subcommand(0, 1);
  add_prebuild();
  add_list();
  add_why();
  add_verify();
  add_prune();
  add_export();
  add_import();
  add_show();
  add_render();
  add_run();
  add_bench();
  add_startup_step();
  add_tune();
  add_doctor();
  app_.footer(std::string("A SPEC is ") + kSpecHelp +
              R"(

Examples:
  normjit doctor
  normjit prebuild --manifest cache/manifests/reference.json --arch sm_80,sm_90
  normjit run layernorm/cols=4096/bf16/wb --rows 8192 --check

Each command has its own --help. Environment:
  NORMJIT_CACHE_DIR        the directory of the cache, else (also if empty) $XDG_CACHE_HOME/normjit, ~/.cache/normjit
  NORMJIT_LAYERS           more caches, only read: directories or packs, separated by colons
  NORMJIT_CACHE_MAX_BYTES  what the directory may take, as 256M, which it is unless set; 0 is any size
  NORMJIT_CACHE_SHARED     1 believes entries that others than you and root can write
  NORMJIT_TOOLCHAIN        exact takes only entries made by the version of NVRTC that is here
  NORMJIT_NVRTC_PATH       a libnvrtc to compile with
  NORMJIT_TEMPLATE_DIR     make every kernel of the templates in this directory, not of the built-in ones
  NORMJIT_HOST_CXX         a C++ compiler for run --device host
  NORMJIT_LOG              debug, info, warn or error

)" + kExitCodes);
}

CLI::App* CommandLine::add(const char* name, const char* description, CommonOptions& options,
                           std::function<int()> action) {
  CLI::App* command = app_.add_subcommand(name, description);
  command->add_option_function<std::string>(
      "--cache-dir", [&](const std::string& directory) { options.cache_directory = directory; },
      "Directory of the cache, '' for none; else NORMJIT_CACHE_DIR, $XDG_CACHE_HOME/normjit, "
      "~/.cache/normjit");
  command->add_option("--log", options.log,
                      "Log to stderr: debug, info, warn, error or off; else NORMJIT_LOG, warn");
  commands_.emplace_back(command, std::move(action));
  return command;
}

void CommandLine::add_show() {
  CLI::App* command = add("show", "Show the plans of a spec and whether they are cached", show_,
                          [this] { return show(show_); });
  command->add_option("SPEC", show_.spec, kSpecHelp)->required();
  command->add_option("--arch", show_.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option(
      "--rows", show_.rows,
      "Also show the blocks of a launch with so many rows, what its plan is estimated to cost, and "
      "the best plans that it beat");
  add_json(command, show_);
  command->footer(
      std::string("Example:\n  normjit show layernorm/cols=4096/bf16/wb --arch sm_90 --rows 8192\n\n") +
      kExitCodes);
}

void CommandLine::add_render() {
  CLI::App* command =
      add("render", "Print the CUDA C++ source of a kernel", render_, [this] { return render(render_); });
  command->add_option("SPEC", render_.spec, kSpecHelp)->required();
  command->add_option("--arch", render_.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option("--rows", render_.rows, "The kernel for so many rows; 0 is many")
      ->capture_default_str();
  command
      ->add_option("--align", render_.alignment,
                   "Elements an access that pointers and strides allow: 1, 2, 4, 8")
      ->capture_default_str();
  command->add_option("--plan", render_.plan,
                      "This plan, as show prints it, instead of the planner's choice");
  command->add_option("-o,--output", render_.output, "Write to a file");
  command->footer(
      std::string("Example:\n  normjit render layernorm/cols=64/f32/wb/gelu --arch sm_90 -o kernel.cu\n\n") +
      kExitCodes);
}

namespace {
std::string description_of(const OperandRow& row) {
  if (row.output)
    return concat({"Write ", row.name, " to a .npy file; bf16 in and out is uint16 bit patterns"});
  const std::string_view shape =
      row.extent == Extent::matrix ? ", of any shape whose trailing dimensions make the columns" : "";
  return concat({"A .npy file of ", row.name, shape});
}
}  // namespace

void CommandLine::add_run() {
  CLI::App* command = add("run", "Run a spec on a GPU, or emulated on the CPU, on .npy files or random data",
                          run_, [this] { return cli::run(run_); });
  command->add_option("SPEC", run_.spec, kSpecHelp)->required();
  command->add_option("--rows", run_.rows, "Rows; may be left out with --x");
  for (const OperandRow& row : kOperands)
    command->add_option(option_of(row), run_.files[row.operand], description_of(row));
  for (const OperandRow& row : kOperands)
    if (row.extent == Extent::matrix)
      command->add_option(
          concat({"--", row.name, "-row-stride"}), run_.row_strides[row.operand],
          concat({"Elements between rows of ", row.name, " on the device; else the columns"}));
  command->add_option("--plan", run_.plan, "This plan, as show prints it, instead of the planner's choice");
  command->add_option("--seed", run_.seed, "Of the random data for what has no file")->capture_default_str();
  command->add_flag("--check", run_.check,
                    "Compare with a float64 reference on the host; exit status 1 if wrong");
  command->add_option("--check-rows", run_.check_rows, "Compare only so many rows, spread evenly; else all");
  command
      ->add_option(
          "--device", run_.device,
          "CUDA ordinal of a GPU, or host: run the kernel on the CPU instead, which needs g++ or clang++")
      ->capture_default_str();
  command->add_option("--repeat", run_.repeat, "On a GPU, time so many later calls; else 20");
  add_json(command, run_);
  const auto add_host = [&](const char* name, std::string& value, const char* description) {
    return command->add_option(name, value, description)->group("With --device host");
  };
  add_host("--arch", run_.arch, "The architecture whose kernel to run, or native; else sm_90");
  add_host(
      "--schedule", run_.schedules,
      "Seeds of the order that threads run in, comma-separated; each one is a launch whose result must be "
      "the same; else 0");
  add_host("--checks", run_.checks,
           "on: bounds, alignment, initialisation and races of every access are checked, and undefined "
           "behaviour; off: several times faster; else on as long as x and y have up to 64 MiB")
      ->check(CLI::IsMember({"on", "off"}));
  add_host("--keep", run_.keep_directory,
           "Compile for a debugger, and keep source and library in this directory");
  command->footer(std::string(R"(Examples:
  normjit run layernorm/cols=64/f32/wb/gelu --rows 4194304 --check
  normjit run layernorm/cols=4096/f16/wb --x x.npy --weight w.npy --bias b.npy --out y.npy
  normjit run layernorm/cols=4096/f16/wb --rows 8 --device host --schedule 0,1,2 --check

Allowed error of --check on unit-scale data: f32 1e-5; f16 and bf16 one unit in the last place or 2e-6, whichever is
larger; f64 1e-12. It grows with |scale|, large weights and biases, and a large common offset of a row.

)") + kExitCodes);
}

void CommandLine::add_bench() {
  CLI::App* command = add("bench", "Time kernels on a GPU against a plain copy of as many bytes", bench_,
                          [this] { return bench(bench_); });
  command->add_option("SPEC", bench_.specs, kSpecHelp);
  command->add_option("--rows", bench_.rows,
                      "Comma-separated numbers of rows; else as many as make x 256 MiB");
  command->add_option("--plan", bench_.plan,
                      "This plan, as show and tune print it, instead of the planner's choice");
  command->add_option(
      "--repeat", bench_.repeat,
      "Replays that the median is of; else 50, and 30 for each case of the suite; with --startup "
      "processes, else 5");
  command->add_option("--device", bench_.device, "CUDA ordinal of the GPU")->capture_default_str();
  add_json(command, bench_);
  command
      ->add_flag("--suite", bench_.suite,
                 "Instead of specs, time cases of every regime and 40 random ones against their targets")
      ->group("The suite");
  const auto add_suite = [&](const char* name, auto& value, const std::string& description) {
    return command->add_option(name, value, description)->group("The suite");
  };
  command->add_flag("--list", bench_.list, "Print the cases of the suite only; needs no GPU")
      ->group("The suite");
  add_suite("--seed", bench_.seed, "Of the random cases; else another one each time, which is printed")
      ->check(CLI::NonNegativeNumber);
  add_suite("--regime", bench_.regime, "Only the cases of one: " + regime_names());
  add_suite("--output", bench_.output, "Store the results in this file, or in suite.json in this directory")
      ->capture_default_str();
  add_suite("--plot", bench_.plot, "Draw the results as SVG into this file");
  add_suite("--from", bench_.from,
            "Draw stored results instead of measuring: suite.json, or suite.json,peers.json with those of "
            "scripts/bench_peers.py");
  command
      ->add_flag("--startup", bench_.startup,
                 "Instead of kernels, time the first calls of fresh processes and a prebuild; needs no GPU")
      ->group("First calls");
  command
      ->add_option("--kernels", bench_.kernels, "Of the prebuild: so many or a few more; else 200, 0 is none")
      ->group("First calls");
  command->footer(std::string(R"(Examples:
  normjit bench layernorm/cols=4194304/f32/wb --rows 16
  normjit bench --suite --seed 1 --output suite.json --plot suite.svg
  normjit bench --plot suite.svg --from suite.json,peers.json
  normjit bench --startup --json

Each sample is the replay of a CUDA graph whose launches rotate through more buffers than the L2 cache holds; replays of
the copy alternate with it. "of copy" is the copy's median time over the kernel's. A target that is not reached does
not change the exit status.

--startup measures each step in fresh processes, with temporary caches and files that the system has in memory already.
NVRTC's own load is opening it, and by how much its first compile, of an empty kernel, takes longer than its second. A
first call goes from a new Service to the return of the first launch, with CUDA initialised before. Without a GPU a
stand-in for the driver loads at once, and what counts the driver is not judged.

)") + kExitCodes);
}

void CommandLine::add_startup_step() {
  CLI::App* command = add("startup-step", "One step of bench --startup, in a process of its own",
                          startup_step_, [this] { return startup_step(startup_step_); });
  command->group("");  // not in the help: only bench --startup runs it
  command->add_option("STEP", startup_step_.step)->required();
  command->add_option("--spec", startup_step_.spec);
  command->add_option("--rows", startup_step_.rows);
  command->add_option("--nvrtc", startup_step_.nvrtc);
  command->add_option("--layer", startup_step_.layer);
  command->add_option("--kernels", startup_step_.kernels);
  command->add_option("--jobs", startup_step_.jobs);
}

void CommandLine::add_tune() {
  CLI::App* command = add("tune", "Measure every legal plan on a GPU and keep the best beside the cache",
                          tune_, [this] { return tune(tune_); });
  command->add_option("SPEC", tune_.specs, kSpecHelp)->required();
  command->add_option("--rows", tune_.rows,
                      "Comma-separated numbers of rows; else as many as make x 256 MiB");
  command->add_option("--repeat", tune_.repeat, "Replays of the best plans that their median is of")
      ->capture_default_str();
  command->add_option("--top", tune_.top, "Measure only so many plans, those the model ranks first; 0 is all")
      ->capture_default_str();
  command->add_option("--device", tune_.device, "CUDA ordinal of the GPU")->capture_default_str();
  command->add_flag("--dry-run", tune_.dry_run, "Measure and print; keep nothing");
  add_json(command, tune_);
  command->footer(std::string(R"(Examples:
  normjit tune layernorm/cols=4096/bf16/wb --rows 1,128,16384
  normjit tune layernorm/cols=1023/f16/wb --dry-run

All plans are measured as bench does; then the best five, and the one that the planner's rules choose, once more. A plan
that is more than 1 % faster than theirs is kept in the cache directory: later processes on GPUs with exactly this
profile take it for this spec, alignment and kind of row count (lone, few or many), and prebuild builds it. Of several
--rows of one kind the last one decides. "model" is the fraction of a copy's speed that the planner expects.

)") + kExitCodes);
}

void CommandLine::add_doctor() {
  CLI::App* command = add("doctor", "Say what normjit finds here and what to do about what is missing",
                          doctor_, [this] { return doctor(doctor_); });
  add_json(command, doctor_);
  command->footer(std::string("Exit status 0 if prebuild can work here.\n\n") + kExitCodes);
}

// A mistake in what was given is one sentence, which quotes the mistake.
constexpr std::size_t kLongestMessage = 4000;

int CommandLine::run(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      std::ostringstream help;
      app_.exit(error, help);
      print(help.str());
      return kDone;
    }
    return fail(kUsage, oracle::shown(error.what(), kLongestMessage) +
                            "\nRun normjit --help, or normjit COMMAND --help.");
  }
  run_.command.assign(argv, argv + argc);
  if (version_) {
    print("normjit " NORMJIT_VERSION "\n");
    return kDone;
  }
  for (const auto& [command, action] : commands_)
    if (command->parsed()) return action();
  std::fputs(app_.help().c_str(), stderr);
  return kUsage;
}

int run(int argc, char** argv) {
  try {
    return CommandLine().run(argc, argv);
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
