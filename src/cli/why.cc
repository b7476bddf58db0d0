// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>

#include "cli/command_line.h"
#include "cli/table.h"
#include "normjit/service/report_json.h"
#include "normjit/service/use.h"

namespace normjit::cli {
namespace {

struct WhyCommand : CommonOptions {
  std::string spec;
  std::string arch;       // empty: this machine's GPU, else sm_90
  std::int64_t rows = 0;  // 0: every kernel of the spec
  Uses uses;
};

// A spec on a device: where its kernels are.
struct SpecWhyReport {
  NormSpec spec;
  DeviceProfile device;
  std::int64_t rows = 0;           // 0: not asked for
  std::vector<WhyReport> kernels;  // for `rows` of contiguous tensors only one
  WhyReport generic;               // the kernel that serves where these cannot

  // How many would be compiled.
  std::int64_t missing() const {
    return std::count_if(kernels.begin(), kernels.end(), [](const WhyReport& k) { return k.tier.empty(); });
  }
};

// The plan of a launch with so many rows of contiguous tensors, as prepare takes it.
Plan plan_for(Service& service, const SpecWhyReport& report, const Uses& uses) {
  const RowsRegime regime = Use::regime_for(report.spec, report.rows, report.device, uses.batch_invariant);
  return plan_of_use(service, report.spec, report.device, regime, contiguous_alignment(report.spec), uses)
      .plan;
}

std::string text_of(const WhyReport& kernel) {
  std::string text = to_text(kernel.plan) + "\n  for   " + kernel.uses + "\n  id    " + kernel.id + "\n  " +
                     (kernel.tier.empty() ? "MISS  " : "here  ") + kernel.reason + "\n";
  if (kernel.differences.empty()) return text;
  Table table({"field", "asked", "stored in " + kernel.nearest});
  for (const WhyReport::Difference& difference : kernel.differences)
    table.add({difference.field, difference.asked, difference.stored});
  std::istringstream lines(table.text());
  for (std::string line; std::getline(lines, line);) text += "        " + line + "\n";
  return text;
}

std::string text_of(const SpecWhyReport& report) {
  std::string text = "spec    " + to_text(report.spec) + "\ndevice  " + report.device.text() + "\n\n";
  for (const WhyReport& kernel : report.kernels) text += text_of(kernel) + "\n";
  return text + counted(std::ssize(report.kernels), "kernel") + ", " + std::to_string(report.missing()) +
         " would be compiled\ngeneric kernel: " + generic_text(report.generic) + "\n";
}

int why(const WhyCommand& options) {
  if (options.rows < 0) return fail(kUsage, "--rows must be 0 or more");
  const NormSpec spec = spec_from(options.spec).value();
  Options settings = service_options(options);
  drop_unreadable_layers(settings);
  Service service(settings);
  const Uses uses = uses_in(options.uses, settings.batch_invariant);
  SpecWhyReport report{.spec = spec,
                       .device = one_device(service, options.arch),
                       .rows = options.rows,
                       .kernels = {},
                       .generic = {}};
  report.kernels = service.why(spec, report.device, uses).value();
  report.generic = service.why(spec, report.device, generic_plan()).value();
  if (report.rows > 0) {
    const Plan plan = plan_for(service, report, uses);
    std::erase_if(report.kernels, [&](const WhyReport& kernel) { return !(kernel.plan == plan); });
  }
  print(options.json ? json_of(report.kernels, report.generic, spec, report.device, report.rows).text()
                     : text_of(report));
  if (report.missing() == 0) return kDone;
  return fail(kFailed, counted(report.missing(), "kernel") + " would be compiled; `normjit prebuild " +
                           to_text(spec) + " --arch " + report.device.arch.name() + "` does it now");
}

}  // namespace

void add_why(CommandLine& line) {
  auto [command, options] =
      line.add("why", "Say where the kernels of a spec are, or why they would be compiled", why);
  command->add_option("SPEC", options.spec, kSpecHelp)->required();
  command->add_option("--arch", options.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option("--rows", options.rows,
                      "Only the kernel for so many rows of contiguous, aligned tensors; else all");
  add_uses(command, options.uses);
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit why layernorm/cols=4096/bf16/wb --arch sm_90
  normjit why layernorm/cols=4096/bf16/wb --rows 16384

Compiles and writes nothing. A kernel that is nowhere is compared with the entry that is most like it. Exit status 1
if a kernel would be compiled.

)") + kExitCodes);
}

}  // namespace normjit::cli
