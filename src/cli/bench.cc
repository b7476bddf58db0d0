#include <algorithm>
#include <string_view>

#include "cli/commands.h"
#include "cli/copy_kernel.h"
#include "cli/exit_code.h"
#include "cli/json_reports.h"
#include "cli/measure.h"
#include "cli/table.h"
#include "normjit/base/text.h"

namespace normjit::cli {
namespace {

std::vector<std::int64_t> parse_rows(const std::string& list) {
  std::vector<std::int64_t> rows;
  for (const std::string_view word : split(list, ',')) {
    const std::optional<std::int64_t> value = number<std::int64_t>(word);
    if (!value || *value < 1) {
      throw Exception(
          {Code::BadArgument, "--rows is '" + list + "'; it must be numbers from 1 on, as in 1,16384"});
    }
    rows.push_back(*value);
  }
  return rows;
}

// As many rows as make x 256 MiB, which is far more than the caches hold.
std::int64_t default_rows(const LayerNormSpec& spec) {
  return std::max<std::int64_t>(1, (std::int64_t{256} << 20) / (spec.columns * size_of(spec.input)));
}

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
  if (options.specs.empty()) return fail(kUsage, "name at least one spec");
  if (options.repeat < 1) return fail(kUsage, "--repeat must be 1 or more");
  std::vector<LayerNormSpec> specs;
  for (const std::string& text : options.specs) specs.push_back(parse_spec(text).value());
  std::vector<std::int64_t> rows_wanted;
  if (!options.rows.empty()) rows_wanted = parse_rows(options.rows);

  std::optional<Plan> plan;
  if (!options.plan.empty()) plan = parse_plan(options.plan).value();

  const Options settings = service_options(options);
  const Gpu gpu(options.device);
  Service service(settings);
  const CopyKernel copy(settings, gpu, service.device(options.device).value().arch);
  std::vector<BenchReport> reports;
  for (const LayerNormSpec& spec : specs) {
    const std::vector<std::int64_t> each =
        rows_wanted.empty() ? std::vector{default_rows(spec)} : rows_wanted;
    for (const std::int64_t rows : each)
      reports.push_back(measure(service, gpu, copy, spec, rows, options.repeat, plan));
  }
  print(options.json ? json_of(reports) : text_of(reports));
  return kDone;
}

}  // namespace normjit::cli
