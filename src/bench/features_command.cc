// SPDX-License-Identifier: Apache-2.0
// `normjit-bench features`: what the model of the planner knows of plans that `normjit tune --random`
// measured, as a table that scripts/fit_plans.py fits it to.
#include "bench/features.h"
#include "cli/layers.h"
#include "cli/table.h"
#include "normjit/base/text.h"
#include "normjit/plan/cost.h"
#include "normjit/plan/features.h"
#include "verify/text_file.h"

namespace normjit::bench {

using namespace cli;

namespace {

struct FeaturesCommand : CommonOptions {
  std::string data;
  std::string arch = "sm_90";
  std::string rows = "actual";
};

int features(const FeaturesCommand& options) {
  const std::vector<MeasuredLayer> layers = parse_layers(oracle::read_text(options.data).value()).value();
  const DeviceProfile device = DeviceProfile::of(Arch::parse(options.arch).value()).value();
  std::string text = "seed,layer,spec,rows,plan,microseconds,copy,ptxas_registers,ptxas_spill_bytes";
  for (const std::string_view name : kFeatureNames) text += concat({",", name});
  text += "\n";
  for (const MeasuredLayer& layer : layers) {
    const NormSpec& spec = layer.layer.spec;
    const PlanUse use{spec, device, regime_of(spec, layer.layer.rows, device), layer.alignment};
    const LaunchFeatures launch(spec, device, options.rows == "typical" ? use.rows() : layer.layer.rows);
    for (const MeasuredPlan& measured : layer.plans) {
      text += concat({shortest(layer.seed), ",", shortest(layer.index), ",", to_text(spec), ",",
                      shortest(layer.layer.rows), ",", to_text(measured.plan), ",",
                      fixed(measured.microseconds, 3), ",", fixed(layer.copy_microseconds, 3), ",",
                      shortest(measured.registers), ",", shortest(measured.spill_bytes)});
      const Features values = launch.of(measured.plan);
      for (const float value : values.values) text += "," + shortest(value);
      text += "\n";
    }
  }
  print(text);
  return kDone;
}

}  // namespace

void add_features(CommandLine& line) {
  auto [command, options] =
      line.add("features", "Print what the planner's model knows of measured plans, as CSV", features);
  command->add_option("DATA", options.data, "What normjit tune --random wrote")->required();
  command->add_option("--arch", options.arch, "The architecture it was measured on")->capture_default_str();
  command->add_option("--rows", options.rows, "actual, or typical: those that the planner takes for the regime")
      ->check(CLI::IsMember({"actual", "typical"}))
      ->capture_default_str();
}

}  // namespace normjit::bench
