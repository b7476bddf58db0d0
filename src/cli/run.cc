// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "cli/command_line.h"
#include "cli/executor.h"
#include "cli/table.h"
#include "normjit/base/json.h"
#include "normjit/base/text.h"
#include "verify/check.h"
#include "verify/npy.h"

namespace normjit::cli {
namespace {

struct RunCommand : CommonOptions {
  std::string spec;
  std::int64_t rows = -1;         // -1: as many as --x has
  std::int64_t plane = 0;         // with channels first; 0: that of --x
  PerOperand<std::string> files;  // .npy files: inputs, empty for random; outputs to write
  PerOperand<std::int64_t> row_strides;
  PerOperand<std::string> addresses;  // "N,OUTER,INNER" of the rows; empty: by the row stride
  PerOperand<bool> in_place{};        // of outputs
  Uses uses;
  std::uint64_t seed = 1;
  bool check = false;
  std::int64_t check_rows = std::numeric_limits<std::int64_t>::max();
  std::string plan;           // empty: the planner's choice
  std::string device = "0";   // the CUDA ordinal of a GPU, or "host"
  std::optional<int> repeat;  // a GPU only; none: 20
  // With --device host only; empty: as HostOptions has it, on the default profile of sm_90.
  std::string arch, schedules, checks, keep_directory;
};

struct RunReport {
  NormSpec spec;
  std::int64_t rows = 0;
  Execution execution;
  std::optional<oracle::CheckReport> check;
};

// "--in-bias", "--out", "--sum-out"
std::string option_of(const OperandRow& row) {
  if (row.operand == Operand::y) return "--out";
  std::string option = concat({"--", row.name, row.output ? "-out" : ""});
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}
std::string address_option_of(const OperandRow& row) { return option_of(row) + "-address"; }
std::string stride_option_of(const OperandRow& row) { return concat({"--", row.name, "-row-stride"}); }
std::string in_place_option_of(const OperandRow& row) { return option_of(row) + "-in-place"; }

Error wrong(std::string message) { return {Code::BadArgument, std::move(message)}; }

// The options that do not fit the spec, before anything is allocated.
void check_operand(const RunCommand& options, const NormSpec& spec, const OperandRow& row) {
  const bool strided = options.row_strides[row.operand] != kContiguous;
  const bool addressed = !options.addresses[row.operand].empty();
  if (!options.files[row.operand].empty() && !row.present(spec))
    throw Exception(wrong(concat({option_of(row), " is given, but ", to_text(spec), " has no ", row.name})));
  if (addressed && (!row.present(spec) || !is_matrix(row, spec)))
    throw Exception(
        wrong(concat({address_option_of(row), " is given, but in ", to_text(spec), " ", row.name,
                      row.present(spec) ? " is a vector; /w:rows gives it rows" : " is not there"})));
  if (addressed && strided)
    throw Exception(
        wrong(concat({"give ", address_option_of(row), " or ", stride_option_of(row), ", not both"})));
  if (options.in_place[row.operand] && (addressed || strided))
    throw Exception(wrong(concat({"with ", in_place_option_of(row), ", the rows of ", row.name,
                                  " are those of ", row_of(row.in_place).name, "; give them alone"})));
}

void check_options(const RunCommand& options, const NormSpec& spec) {
  if (options.rows < 0 && options.files[Operand::x].empty())
    throw Exception(wrong("say how many rows with --rows, or give --x"));
  if (options.rows < 0 && !options.addresses[Operand::x].empty())
    throw Exception(
        wrong("say how many rows with --rows: with --x-address, the file is a buffer around them"));
  for (const OperandRow& row : kOperands) check_operand(options, spec, row);
  if (options.check_rows < 1) throw Exception(wrong("--check-rows must be 1 or more"));
  if (options.repeat && *options.repeat < 0) throw Exception(wrong("--repeat must be 0 or more"));
}

std::optional<Plan> plan_of(const RunCommand& options) {
  if (options.plan.empty()) return {};
  return plan_from(options.plan).value();
}

std::unique_ptr<Executor> gpu_executor(const RunCommand& options, const Options& settings, int device) {
  const std::pair<const char*, const std::string&> others[] = {{"--arch", options.arch},
                                                               {"--schedule", options.schedules},
                                                               {"--checks", options.checks},
                                                               {"--keep", options.keep_directory}};
  for (const auto& [name, value] : others) {
    if (!value.empty()) {
      throw Exception(wrong(std::string(name) + " is only for --device host, and this is for GPU " +
                            options.device + "; leave " + name + " out, or add --device host"));
    }
  }
  constexpr int kRepeat = 20;
  return make_gpu_executor(settings, device, options.repeat.value_or(kRepeat), plan_of(options),
                           options.uses);
}

std::unique_ptr<Executor> host_executor(const RunCommand& options, const Options& settings) {
  if (options.repeat)
    throw Exception(wrong("--repeat times later calls on a GPU; with --device host leave it out"));
  Service service(settings);
  HostOptions host{.device = one_device(service, options.arch.empty() ? "sm_90" : options.arch)};
  if (!options.schedules.empty()) host.schedules = parse_schedules(options.schedules).value();
  if (!options.checks.empty()) host.checks = options.checks == "on";
  host.keep_directory = options.keep_directory;
  host.plan = plan_of(options);
  host.uses = options.uses;
  return make_host_executor(settings, std::move(host));
}

// "N,OUTER,INNER", with the elements of the file that is the buffer.
oracle::RowLayout address_from(const OperandRow& row, const std::string& text, std::int64_t buffer) {
  std::vector<std::int64_t> numbers;
  for (const std::string_view word : split(text, ',')) {
    const std::optional<std::int64_t> value = number<std::int64_t>(word);
    if (value && *value >= 0) numbers.push_back(*value);
  }
  if (numbers.size() != 3 || split(text, ',').size() != 3)
    throw Exception(
        wrong(concat({address_option_of(row), " is '", text,
                      "'; it must be N,OUTER,INNER, three numbers from 0 on, as in 32,6144,128"})));
  return {std::max<std::int64_t>(1, numbers[0]), numbers[1], numbers[2], buffer};
}

// The shape of x and of each other matrix, and the rows and the plane that it means.
struct Shape {
  std::int64_t rows, plane;
  std::vector<std::int64_t> of_x;
};

using InputFiles = PerOperand<std::optional<oracle::NpyFile>>;

InputFiles open_inputs(const RunCommand& options) {
  InputFiles files;
  for (const OperandRow& row : kOperands)
    if (!row.output && !options.files[row.operand].empty())
      files[row.operand] = oracle::NpyFile::open(options.files[row.operand]).value();
  return files;
}

oracle::Problem problem_of(const RunCommand& options, const NormSpec& spec, const Shape& shape,
                           const InputFiles& files) {
  oracle::RowLayouts layouts;
  OperandSet in_place = 0;
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    layouts.of[i] = options.row_strides.of[i];
    const std::string& address = options.addresses.of[i];
    if (!address.empty())
      layouts.of[i] = address_from(kOperands[i], address, files.of[i] ? files.of[i]->elements() : 0);
    in_place |= set_of(i, options.in_place.of[i]);
  }
  return oracle::make_problem(spec, shape.rows, layouts, in_place, shape.plane).value();
}

// A file says nothing of what lies between rows or how overlapping rows agree, unless it is the buffer.
void read_input(const OperandRow& row, bool is_buffer, oracle::NpyFile& file, oracle::Matrix& to) {
  if (is_buffer) {
    file.read_buffer(to).value();
    return;
  }
  if (to.rows_overlap()) {
    throw Exception(wrong(concat({option_of(row), " needs a ", stride_option_of(row),
                                  " of at least the columns; rows that overlap get random data only"})));
  }
  if (to.row_stride() > to.columns()) to.poison();
  file.read(to).value();
}

std::string place(const oracle::Deviation& at) {
  return "row " + std::to_string(at.row) + ", column " + std::to_string(at.column);
}

// "y        largest error 3.1e-07 at row 0, column 5 (tolerance 1.0e-05): got 1.5, expected 1.5"
std::string text_of(const std::string& tensor, const oracle::Comparison& comparison) {
  if (comparison.values == 0) return "";
  const auto describe = [](const oracle::Deviation& value) {
    char text[256];
    std::snprintf(text, sizeof text, "%.3g at %s (tolerance %.3g): got %.9g, expected %.9g", value.error,
                  place(value).c_str(), value.tolerance, value.got, value.expected);
    return std::string(text);
  };
  std::string text = tensor + "largest error " + describe(comparison.largest) + "\n";
  if (comparison.wrong > 0) {
    text += "           " + std::to_string(comparison.wrong) + " of " + std::to_string(comparison.values) +
            " values are wrong, the first by " + describe(comparison.first_wrong) + "\n";
  }
  return text;
}

// To the width of the first column, and at least a blank.
std::string padded(std::string_view name) {
  return std::string(name).append(std::max<std::size_t>(11, name.size() + 1) - name.size(), ' ');
}

std::string text_of(const oracle::CheckReport& check, std::int64_t rows) {
  std::string text = "check      " + std::to_string(check.rows) + " of " + std::to_string(rows) +
                     " rows against the float64 reference: " + (check.ok() ? "ok" : "WRONG") + "\n";
  for (const OperandRow& row : kOperands)
    if (row.output) text += text_of(padded(row.name), check[row.operand]);
  if (check.overwritten > 0) {
    text += "           " + std::to_string(check.overwritten) +
            " bytes between the rows of outputs were overwritten\n";
  }
  return text;
}

std::string times_on_gpu(const Execution& execution) {
  std::string text = "prepare    " + fixed(execution.prepare_milliseconds, 2) + " ms, kernel from the " +
                     execution.origin + "\n";
  text += "launch     " + fixed(execution.first_launch_microseconds, 1) + " us, result after " +
          fixed(execution.first_result_microseconds, 1) + " us\n";
  text +=
      "then       " + fixed(execution.second_call_microseconds, 1) + " us for the second prepare and launch";
  if (execution.steady_call_microseconds > 0) {
    text += ", " + fixed(execution.steady_call_microseconds, 1) + " us a call later";
  }
  return text + "\n";
}

std::string times_on_host(const Execution& execution, const Emulation& emulation) {
  std::string text = "prepare    " + fixed(execution.prepare_milliseconds, 0) + " ms, compiled with " +
                     emulation.compiler + "\n";
  if (!emulation.keep_directory.empty()) {
    text += "kept       " + emulation.keep_directory + "/kernels.cc and kernels.so, for a debugger\n";
  }
  for (const Emulation::Launch& launch : emulation.launches)
    text += "run        " + fixed(launch.milliseconds, 0) + " ms with " + launch.schedule + "\n";
  if (emulation.launches.size() > 1) text += "           the same bits each time\n";
  return text;
}

std::string text_of(const RunReport& report) {
  const Execution& execution = report.execution;
  std::string text = "spec       " + to_text(report.spec) + "\n";
  text += "rows       " + std::to_string(report.rows) + "\n";
  text += "device     " + execution.device + "\n";
  text += "plan       " + to_text(execution.plan) + "\n";
  text += execution.emulation ? times_on_host(execution, *execution.emulation) : times_on_gpu(execution);
  if (report.check) text += text_of(*report.check, report.rows);
  return text;
}

// With channels first, the plane of x in a file of [samples, columns, ...].
std::int64_t plane_of(const std::vector<std::int64_t>& shape, const NormSpec& spec) {
  if (shape.size() < 2 || shape[1] != spec.columns) return 0;
  return std::accumulate(shape.begin() + 2, shape.end(), std::int64_t{1}, std::multiplies<>());
}

Shape shape_of(const RunCommand& options, const NormSpec& spec, const std::optional<oracle::NpyFile>& x) {
  const bool is_shaped = x && options.addresses[Operand::x].empty();
  std::int64_t plane = options.plane;
  if (spec.channels_first && is_shaped) {
    const std::int64_t own = plane_of(x->shape(), spec);
    if (own == 0 || (plane != 0 && plane != own))
      throw Exception(wrong(x->path() + " does not have the shape [samples, " + std::to_string(spec.columns) +
                            ", plane], as channels first (/cf) need it" +
                            (own == 0 ? "" : "; its plane is " + std::to_string(own))));
    plane = own;
  }
  if (!is_shaped && plane < 1) return {options.rows, plane, {options.rows, spec.columns}};
  if (!is_shaped) return {options.rows, plane, {options.rows / plane, spec.columns, plane}};
  const std::int64_t positions = spec.channels_first ? plane : 1;
  const std::int64_t rows = x->rows_of(spec.columns * positions).value() * positions;
  if (options.rows >= 0 && options.rows != rows) {
    throw Exception(wrong(x->path() + " has " + std::to_string(rows) + " rows of " +
                          std::to_string(spec.columns) + " columns, but --rows is " +
                          std::to_string(options.rows)));
  }
  return {rows, plane, x->shape()};
}

// Of an output in a file.
std::vector<std::int64_t> shape_of(const OperandRow& row, const oracle::Problem& problem,
                                   const Shape& shape) {
  switch (row.extent) {
    case Extent::rows:
      return {shape.rows};
    case Extent::one:
      return {};
    case Extent::columns:
      return {problem.spec.columns};
    case Extent::blocks:
      return block_scale_shape(problem.spec, problem.rows).value();
    default: {
      std::vector<std::int64_t> of_matrix = shape.of_x;
      const int together = columns_in(row.dtype(problem.spec));
      if (of_matrix.back() % together != 0) return {shape.rows, row_elements(row, problem.spec)};
      of_matrix.back() /= together;
      return of_matrix;
    }
  }
}

// As rows of x's shape, or as the buffer in which --out-address or the input's address lays them.
void write_output(const RunCommand& options, const OperandRow& row, const oracle::Problem& problem,
                  const InputFiles& files, const Shape& shape) {
  const oracle::Matrix& matrix = problem[row.operand];
  const std::string& path = options.files[row.operand];
  const Operand laid_as = options.in_place[row.operand] ? row.in_place : row.operand;
  if (options.addresses[laid_as].empty()) {
    oracle::write_npy(path, matrix, shape_of(row, problem, shape)).value();
    return;
  }
  const auto& input = files[laid_as];
  oracle::write_npy_buffer(path, matrix, input ? input->shape() : std::vector{matrix.elements()}).value();
}

Json json_of(const oracle::Deviation& deviation) {
  return {{"row", deviation.row},           {"column", deviation.column}, {"got", deviation.got},
          {"expected", deviation.expected}, {"error", deviation.error},   {"tolerance", deviation.tolerance}};
}

Json json_of(const oracle::Comparison& comparison) {
  Json json = {{"values", comparison.values}, {"wrong", comparison.wrong}};
  if (comparison.values > 0) json.add("largest_error", json_of(comparison.largest));
  if (comparison.wrong > 0) json.add("first_wrong", json_of(comparison.first_wrong));
  return json;
}

Json json_of(const oracle::CheckReport& check) {
  Json json = {{"ok", check.ok()}, {"rows", check.rows}};
  for (const OperandRow& row : kOperands)
    if (row.operand == Operand::y || check[row.operand].values > 0)
      json.add(row.name, json_of(check[row.operand]));
  return json.add("overwritten_gap_bytes", check.overwritten);
}

void add_to(Json& json, const Emulation& emulation) {
  const auto launch_json = [](const Emulation::Launch& launch) -> Json {
    return {{"seed", launch.seed}, {"schedule", launch.schedule}, {"run_ms", launch.milliseconds}};
  };
  json.add("checks", emulation.checks)
      .add("compiler", emulation.compiler)
      .add("launches", Json::array(emulation.launches, launch_json));
  if (!emulation.keep_directory.empty()) json.add("kept_in", emulation.keep_directory);
}

std::string json_of(const RunReport& report) {
  const Execution& execution = report.execution;
  Json json = {{"spec", to_text(report.spec)},
               {"rows", report.rows},
               {"device", execution.device},
               {"emulated", execution.emulation.has_value()},
               {"plan", to_text(execution.plan)},
               {"kernel_from", execution.origin},
               {"workspace_bytes", execution.workspace_bytes},
               {"prepare_ms", execution.prepare_milliseconds}};
  if (execution.emulation) {
    add_to(json, *execution.emulation);
  } else {
    json.add("first_launch_us", execution.first_launch_microseconds)
        .add("first_result_us", execution.first_result_microseconds)
        .add("second_call_us", execution.second_call_microseconds)
        .add("steady_call_us", execution.steady_call_microseconds);
  }
  if (report.check) json.add("check", json_of(*report.check));
  return json.text();
}

int run(const RunCommand& options) {
  const NormSpec spec = spec_from(options.spec).value();
  check_options(options, spec);
  const std::optional<int> gpu = parse_device(options.device).value();
  InputFiles files = open_inputs(options);
  const Shape shape = shape_of(options, spec, files[Operand::x]);
  oracle::Problem problem = problem_of(options, spec, shape, files);
  const Options settings = service_options(options);
  std::unique_ptr<Executor> executor;
  try {
    executor = gpu ? gpu_executor(options, settings, *gpu) : host_executor(options, settings);
  } catch (const Exception& error) {
    if (!gpu || exit_code(error.code()) != kEnvironment) throw;
    return fail(kEnvironment,
                std::string(error.what()) + "\nWithout a GPU, --device host runs the kernel on the CPU.");
  }

  OperandSet from_files = 0;
  for (std::size_t i = 0; i < kOperandCount; ++i) from_files |= set_of(i, files.of[i].has_value());
  fill_inputs(problem, options.seed, from_files);
  for (const OperandRow& row : kOperands)
    if (auto& file = files[row.operand])
      read_input(row, !options.addresses[row.operand].empty(), *file, problem[row.operand]);
  fill_statistics(problem, from_files);
  reset_outputs(problem);

  RunReport report{.spec = spec, .rows = shape.rows, .execution = executor->execute(problem), .check = {}};
  if (const auto& emulation = report.execution.emulation; emulation && !emulation->fault.empty()) {
    return fail(kFailed,
                emulation->fault + "\nTo see it again: " +
                    replay_command(options.words, emulation->fault_seeds, settings.template_directory));
  }
  for (const OperandRow& row : kOperands)
    if (row.output && !options.files[row.operand].empty()) write_output(options, row, problem, files, shape);
  if (options.check) report.check = check(problem, options.check_rows);
  print(options.json ? json_of(report) : text_of(report));
  if (report.check && !report.check->ok()) return fail(kFailed, "the result differs from the reference");
  return kDone;
}

std::string description_of(const OperandRow& row) {
  if (row.output)
    return concat(
        {"Write ", row.name,
         " to a .npy file; bf16 in and out is uint16 bit patterns, e4m3, e5m2, e2m1 and e8m0 are uint8"});
  const std::string_view shape = row.extent == Extent::matrix || row.extent == Extent::shared
                                     ? ", of any shape whose trailing dimensions make the columns"
                                 : row.extent == Extent::one ? ", one number"
                                                             : "";
  return concat({"A .npy file of ", row.name, shape});
}

}  // namespace

void add_run(CommandLine& line) {
  auto [command, options] =
      line.add("run", "Run a spec on a GPU, or emulated on the CPU, on .npy files or random data", run);
  command->add_option("SPEC", options.spec, kSpecHelp)->required();
  command->add_option("--rows", options.rows, "Rows; may be left out with --x");
  command->add_option("--plane", options.plane, std::string(kPlaneHelp) + "; else those of --x");
  for (const OperandRow& row : kOperands)
    command->add_option(option_of(row), options.files[row.operand], description_of(row));
  options.row_strides.of.fill(kContiguous);
  for (const OperandRow& row : kOperands)
    if (row.extent == Extent::matrix)
      command->add_option(stride_option_of(row), options.row_strides[row.operand],
                          concat({"Elements between rows of ", row.name,
                                  " on the device, with /cf between samples; else there are no gaps"}));
  for (const OperandRow& row : kOperands)
    if (has_rows(row))
      command->add_option(address_option_of(row), options.addresses[row.operand],
                          concat({"N,OUTER,INNER, in elements: where the rows of ", row.name,
                                  " begin; its file is then the buffer around them"}));
  for (const OperandRow& row : kOperands)
    if (row.in_place != row.operand)
      command->add_flag(in_place_option_of(row), options.in_place[row.operand],
                        concat({"Write ", row.name, " over ", row_of(row.in_place).name}));
  command->add_flag("--batch-invariant", options.uses.batch_invariant,
                    "The kernel whose bits do not depend on the number of rows");
  command->add_flag("--grouped-rows", options.uses.grouped_rows,
                    "The kernel for rows in groups, also where no operand has N above 1");
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
  // clang before 16 captures no structured binding.
  const auto add_host = [command = command](const char* name, std::string& value, const char* description) {
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
  normjit run rmsnorm/cols=4096/bf16/add/sum/w --rows 64 --out-in-place --sum-out-in-place --check
  normjit run rmsnorm_bwd/cols=4096/bf16/dsum/w --rows 64 --dx-out-in-place --check
  normjit run rmsnorm_bwd/cols=4096/bf16/gate:silu/w/need=dx --rows 64 --dgate-out-in-place --check
  normjit run rmsnorm/cols=128/bf16/w --rows 256 --x-address 32,6144,128 --out-in-place --check

Row r of an operand begins (r / N) * OUTER + (r % N) * INNER elements behind the first row. The last example normalizes
the 32 query heads of each of 8 tokens where they are, in rows of 6144 elements that also have keys and values.

Allowed error of --check on unit-scale data: f32 1e-5; f16 and bf16 one unit in the last place or 2e-6, whichever is
larger; f64 1e-12; 8 and 4 bits 1e-5 before they are rounded. It grows with |scale|, large weights and biases, and a
large common offset of a row. Of gradients f32 1e-5, 16 bits one unit in the last place, f64 1e-12, of the size of the
terms, which for dweight and dbias are those of all rows.

)") + kExitCodes);
}

}  // namespace normjit::cli
