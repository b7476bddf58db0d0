#include "cli/cli.h"

#include <string>

#include "cli/command_line.h"
#include "normjit/base/text.h"

namespace normjit::cli {

void add_show(CommandLine& line) {
  auto [command, options] = line.add("show", "Show the plans of a spec and whether they are cached", show);
  command->add_option("SPEC", options.spec, kSpecHelp)->required();
  command->add_option("--arch", options.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option(
      "--rows", options.rows,
      "Also show the blocks of a launch with so many rows, what its plan is estimated to cost, and "
      "the best plans that it beat");
  add_json(command, options);
  command->footer(
      std::string("Example:\n  normjit show layernorm/cols=4096/bf16/wb --arch sm_90 --rows 8192\n\n") +
      kExitCodes);
}

void add_render(CommandLine& line) {
  auto [command, options] = line.add("render", "Print the CUDA C++ source of a kernel", render);
  command->add_option("SPEC", options.spec, kSpecHelp)->required();
  command->add_option("--arch", options.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option("--rows", options.rows, "The kernel for so many rows; 0 is many")
      ->capture_default_str();
  command
      ->add_option("--align", options.alignment,
                   "Elements an access that pointers and strides allow: 1, 2, 4, 8")
      ->capture_default_str();
  command->add_option("--plan", options.plan,
                      "This plan, as show prints it, instead of the planner's choice");
  command->add_option("-o,--output", options.output, "Write to a file");
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

void add_run(CommandLine& line) {
  auto [command, options] =
      line.add("run", "Run a spec on a GPU, or emulated on the CPU, on .npy files or random data", cli::run);
  command->add_option("SPEC", options.spec, kSpecHelp)->required();
  command->add_option("--rows", options.rows, "Rows; may be left out with --x");
  for (const OperandRow& row : kOperands)
    command->add_option(option_of(row), options.files[row.operand], description_of(row));
  for (const OperandRow& row : kOperands)
    if (row.extent == Extent::matrix)
      command->add_option(
          concat({"--", row.name, "-row-stride"}), options.row_strides[row.operand],
          concat({"Elements between rows of ", row.name, " on the device; else the columns"}));
  command->add_option("--plan", options.plan,
                      "This plan, as show prints it, instead of the planner's choice");
  command->add_option("--seed", options.seed, "Of the random data for what has no file")
      ->capture_default_str();
  command->add_flag("--check", options.check,
                    "Compare with a float64 reference on the host; exit status 1 if wrong");
  command->add_option("--check-rows", options.check_rows,
                      "Compare only so many rows, spread evenly; else all");
  command
      ->add_option(
          "--device", options.device,
          "CUDA ordinal of a GPU, or host: run the kernel on the CPU instead, which needs g++ or clang++")
      ->capture_default_str();
  command->add_option("--repeat", options.repeat, "On a GPU, time so many later calls; else 20");
  add_json(command, options);
  const auto add_host = [&](const char* name, std::string& value, const char* description) {
    return command->add_option(name, value, description)->group("With --device host");
  };
  add_host("--arch", options.arch, "The architecture whose kernel to run, or native; else sm_90");
  add_host(
      "--schedule", options.schedules,
      "Seeds of the order that threads run in, comma-separated; each one is a launch whose result must be "
      "the same; else 0");
  add_host("--checks", options.checks,
           "on: bounds, alignment, initialisation and races of every access are checked, and undefined "
           "behaviour; off: several times faster; else on as long as x and y have up to 64 MiB")
      ->check(CLI::IsMember({"on", "off"}));
  add_host("--keep", options.keep_directory,
           "Compile for a debugger, and keep source and library in this directory");
  command->footer(std::string(R"(Examples:
  normjit run layernorm/cols=64/f32/wb/gelu --rows 4194304 --check
  normjit run layernorm/cols=4096/f16/wb --x x.npy --weight w.npy --bias b.npy --out y.npy
  normjit run layernorm/cols=4096/f16/wb --rows 8 --device host --schedule 0,1,2 --check

Allowed error of --check on unit-scale data: f32 1e-5; f16 and bf16 one unit in the last place or 2e-6, whichever is
larger; f64 1e-12. It grows with |scale|, large weights and biases, and a large common offset of a row.

)") + kExitCodes);
}

void add_bench(CommandLine& line) {
  auto [command, options] =
      line.add("bench", "Time kernels on a GPU against a plain copy of as many bytes", bench);
  command->add_option("SPEC", options.specs, kSpecHelp)->required();
  command->add_option("--rows", options.rows,
                      "Comma-separated numbers of rows; else as many as make x 256 MiB");
  command->add_option("--plan", options.plan,
                      "This plan, as show and tune print it, instead of the planner's choice");
  command->add_option("--repeat", options.repeat, "Replays that the median is of")->capture_default_str();
  command->add_option("--device", options.device, "CUDA ordinal of the GPU")->capture_default_str();
  add_json(command, options);
  const auto moved = [&, command = command](const char* option, const char* place) {
    command
        ->add_flag_callback(
            option,
            [=] {
              throw Exception(
                  {Code::BadArgument,
                   concat({option, " is a program of its own: run `normjit-bench ", place, "`"})});
            })
        ->group("");  // not in the help
  };
  moved("--suite", "suite");
  moved("--startup", "startup");
  command->footer(std::string(R"(Example:
  normjit bench layernorm/cols=4194304/f32/wb --rows 16

Each sample is the replay of a CUDA graph whose launches rotate through more buffers than the L2 cache holds; replays of
the copy alternate with it. "of copy" is the copy's median time over the kernel's.

)") + kExitCodes);
}

void add_tune(CommandLine& line) {
  auto [command, options] =
      line.add("tune", "Measure every legal plan on a GPU and keep the best beside the cache", tune);
  command->add_option("SPEC", options.specs, kSpecHelp)->required();
  command->add_option("--rows", options.rows,
                      "Comma-separated numbers of rows; else as many as make x 256 MiB");
  command->add_option("--repeat", options.repeat, "Replays of the best plans that their median is of")
      ->capture_default_str();
  command
      ->add_option("--top", options.top, "Measure only so many plans, those the model ranks first; 0 is all")
      ->capture_default_str();
  command->add_option("--device", options.device, "CUDA ordinal of the GPU")->capture_default_str();
  command->add_flag("--dry-run", options.dry_run, "Measure and print; keep nothing");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit tune layernorm/cols=4096/bf16/wb --rows 1,128,16384
  normjit tune layernorm/cols=1023/f16/wb --dry-run

All plans are measured as bench does; then the best five, and the one that the planner's rules choose, once more. A plan
that is more than 1 % faster than theirs is kept in the cache directory: later processes on GPUs with exactly this
profile take it for this spec, alignment and kind of row count (lone, few or many), and prebuild builds it. Of several
--rows of one kind the last one decides. "model" is the fraction of a copy's speed that the planner expects.

)") + kExitCodes);
}

void add_doctor(CommandLine& line) {
  auto [command, options] =
      line.add("doctor", "Say what normjit finds here and what to do about what is missing", doctor);
  add_json(command, options);
  command->footer(std::string("Exit status 0 if prebuild can work here.\n\n") + kExitCodes);
}

int run(int argc, char** argv) {
  CommandLine line("normjit generates, compiles, caches and launches LayerNorm kernels for NVIDIA GPUs.",
                   "normjit");
  add_prebuild(line);
  add_list(line);
  add_why(line);
  add_verify(line);
  add_prune(line);
  add_export(line);
  add_import(line);
  add_show(line);
  add_render(line);
  add_run(line);
  add_bench(line);
  add_tune(line);
  add_doctor(line);
  line.footer(std::string("A SPEC is ") + kSpecHelp +
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
  return line.run(argc, argv);
}

}  // namespace normjit::cli
