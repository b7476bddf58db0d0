#include "cli/commands.h"
#include "cli/copy_kernel.h"
#include "cli/exit_code.h"
#include "cli/json_reports.h"
#include "cli/measure.h"
#include "cli/rows_list.h"
#include "cli/table.h"

namespace normjit::cli {
namespace {

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

}  // namespace

int bench(const BenchCommand& options) {
  if (options.repeat < 1) return fail(kUsage, "--repeat must be 1 or more");
  std::vector<NormSpec> specs;
  for (const std::string& text : options.specs) specs.push_back(spec_from(text).value());
  std::vector<std::int64_t> rows_wanted;
  if (!options.rows.empty()) rows_wanted = parse_rows_list(options.rows);

  std::optional<Plan> plan;
  if (!options.plan.empty()) plan = plan_from(options.plan).value();

  const Options settings = service_options(options);
  const Gpu gpu(options.device);
  Service service(settings);
  const CopyKernel copy(settings, gpu, service.device(options.device).value().arch);
  std::vector<BenchReport> reports;
  for (const NormSpec& spec : specs) {
    const std::vector<std::int64_t> each =
        rows_wanted.empty() ? std::vector{default_rows(spec)} : rows_wanted;
    for (const std::int64_t rows : each)
      reports.push_back(measure(service, gpu, copy, spec, rows, options.repeat, plan));
  }
  print(options.json ? json_of(reports) : text_of(reports));
  return kDone;
}

}  // namespace normjit::cli
