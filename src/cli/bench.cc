// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"
#include "cli/measure.h"
#include "cli/table.h"

namespace normjit::cli {
namespace {

struct BenchCommand : CommonOptions {
  std::vector<std::string> specs;
  std::string rows;  // comma-separated; empty: as many as make x 256 MiB
  std::string plan;  // empty: the planner's choice
  int repeat = 50;
  int device = 0;
  MeasuredUse use;
};

std::string text_of(const std::vector<BenchReport>& reports) {
  Table table({"spec", ">rows", ">us", ">min", ">max", ">copy us", ">GB/s", ">of copy", ">sets", "plan"});
  for (const BenchReport& report : reports) {
    table.add({to_text(report.spec), std::to_string(report.rows), fixed(report.kernel.median, 2),
               fixed(report.kernel.min, 2), fixed(report.kernel.max, 2), fixed(report.copy.median, 2),
               fixed(report.gigabytes_per_second(), 0), fixed(100 * report.fraction_of_copy(), 1) + " %",
               std::to_string(report.buffer_sets), to_text(report.plan)});
  }
  return reports.front().device + "\n" + table.text();
}

std::string json_of(const std::vector<BenchReport>& reports) {
  const auto one = [](const BenchReport& report) -> Json {
    return {{"spec", to_text(report.spec)},
            {"rows", report.rows},
            {"device", report.device},
            {"plan", to_text(report.plan)},
            {"overlap", report.use.overlap},
            {"sample_rows", report.use.sample},
            {"plane", report.use.plane},
            {"bytes", report.bytes},
            {"buffer_sets", report.buffer_sets},
            {"launches_per_graph", report.launches},
            {"replays", report.replays},
            {"kernel", json_of(report.kernel)},
            {"copy", json_of(report.copy)},
            {"copy_shape", to_text(report.copy_shape)},
            {"gb_per_s", report.gigabytes_per_second()},
            {"copy_gb_per_s", report.copy_gigabytes_per_second()},
            {"fraction_of_copy", report.fraction_of_copy()}};
  };
  return Json({{"results", Json::array(reports, one)}}).text();
}

int bench(const BenchCommand& options) {
  if (options.repeat < 1) return fail(kUsage, "--repeat must be 1 or more");
  std::vector<NormSpec> specs;
  for (const std::string& text : options.specs) specs.push_back(spec_from(text).value());
  const std::vector<MeasuredCase> cases = measured_cases(specs, options.rows, options.use.plane);
  std::optional<Plan> plan;
  if (!options.plan.empty()) plan = plan_from(options.plan).value();

  const Options settings = service_options(options);
  const Gpu gpu(options.device);
  Service service(settings);
  Copies copies(settings, gpu, service.device(options.device).value());
  std::vector<BenchReport> reports;
  for (const auto& [spec, rows] : cases)
    reports.push_back(measure(service, gpu, copies, spec, rows, options.repeat, options.use, plan));
  print(options.json ? json_of(reports) : text_of(reports));
  return kDone;
}

}  // namespace

void add_bench(CommandLine& line) {
  auto [command, options] = line.add("bench", "Time kernels on a GPU against a copy of as many bytes", bench);
  command->add_option("SPEC", options.specs, kSpecHelp)->required();
  command->add_option("--rows", options.rows,
                      "Comma-separated numbers of rows; else as many as make x 256 MiB");
  command->add_option("--sample-rows", options.use.sample, kSampleRowsHelp);
  command->add_option("--plane", options.use.plane, kPlaneHelp);
  command->add_option("--plan", options.plan,
                      "This plan, as show and tune print it, instead of the planner's choice");
  command->add_option("--repeat", options.repeat, "Replays that the median is of")->capture_default_str();
  command->add_flag(
      "--overlap", options.use.overlap,
      "Launches may start before the one in front has finished (programmatic dependent launch)");
  command->add_option("--device", options.device, "CUDA ordinal of the GPU")->capture_default_str();
  add_json(command, options);
  for (const std::string other : {"suite", "startup"}) {
    const Error error{Code::BadArgument,
                      "--" + other + " is another program: run `normjit-bench " + other + "`"};
    command->add_flag_callback("--" + other, [=] { throw Exception(error); })->group("");  // not in the help
  }
  command->footer(std::string(R"(Example:
  normjit bench layernorm/cols=4194304/f32/wb --rows 16

Each sample is the replay of a CUDA graph whose launches rotate through more buffers than the L2 cache holds; replays of
the copy alternate with it. The copy reads and writes as many streams as the kernel; of several shapes of it the fastest
is taken. "of copy" is the copy's median time over the kernel's.

)") + kExitCodes);
}

}  // namespace normjit::cli
