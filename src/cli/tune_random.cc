// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "cli/layers.h"
#include "cli/table.h"
#include "cli/trials.h"
#include "normjit/base/stopwatch.h"
#include "normjit/plan/footprint.h"
#include "verify/text_file.h"

namespace normjit::cli {
namespace {

using Trial = TuneReport::Trial;

// What the file has of this seed, by index; ends it behind its last whole layer.
std::set<int> measured_before(const std::string& path, std::uint64_t seed) {
  if (access(path.c_str(), F_OK) != 0) return {};
  std::string text = oracle::read_text(path).value();
  const std::size_t end = text.rfind("\nend\n");
  const std::size_t whole = end == std::string::npos ? 0 : end + 5;
  if (whole < text.size()) {
    text.resize(whole);
    oracle::write_text(path, text).value();
  }
  std::set<int> known;
  for (const MeasuredLayer& layer : parse_layers(text).value())
    if (layer.seed == seed) known.insert(layer.index);
  return known;
}

struct Range {
  std::int64_t least = 1, most = std::numeric_limits<std::int64_t>::max();
  bool contains(std::int64_t value) const { return least <= value && value <= most; }
};

// "17-132", "64", or all numbers where the text is empty.
std::optional<Range> range_of(const std::string& text) {
  if (text.empty()) return Range{};
  const std::size_t dash = text.find('-');
  const auto least = number<std::int64_t>(text.substr(0, dash));
  const auto most = dash == std::string::npos ? least : number<std::int64_t>(text.substr(dash + 1));
  if (!least || !most || *least < 1 || *most < *least) return {};
  return Range{*least, *most};
}

// Adds what ptxas said of the kernels, as far as the cache knows it.
void add_ptxas_reports(const std::string& path, Service& service) {
  std::map<std::pair<std::string, std::string>, const EntryReport*> kernels;
  const auto entries = service.entries();
  if (!entries) return;
  for (const EntryReport& entry : *entries) kernels[{entry.spec, entry.plan}] = &entry;
  std::vector<MeasuredLayer> layers = parse_layers(oracle::read_text(path).value()).value();
  for (MeasuredLayer& layer : layers)
    for (MeasuredPlan& measured : layer.plans) {
      const auto found =
          kernels.find({to_text(source_spec(measured.plan, layer.layer.spec)),
                        to_text(in_groups(measured.plan, layer.layer.spec, layer.layer.use.sample > 1))});
      if (found == kernels.end() || measured.registers >= 0) continue;
      measured.registers = found->second->registers;
      measured.spill_bytes = found->second->spill_bytes;
    }
  oracle::write_text(path, text_of(layers)).value();
}

MeasuredLayer measured(const Case& of, const Layer& layer, std::uint64_t seed, int index) {
  MeasuredLayer made;
  made.gpu = of.report.device;
  made.seed = seed;
  made.index = index;
  made.layer = layer;
  made.alignment = of.report.alignment;
  for (const Trial& trial : of.report.trials) {
    if (trial.replays == 0) continue;
    made.plans.push_back({.plan = trial.plan, .microseconds = trial.kernel.median});
    if (trial.finalist) made.copy_microseconds = trial.copy.median;
  }
  return made;
}

}  // namespace

int tune_random(const TuneCommand& options) {
  constexpr int kTop = 8, kDrawn = 6;
  if (options.data.empty())
    return fail(kUsage, "--random needs --data, the file that keeps what is measured");
  const std::optional<Range> columns = range_of(options.columns), rows = range_of(options.rows);
  if (!columns || !rows)
    return fail(kUsage, concat({"--", columns ? "rows" : "columns",
                                " of --random must be one number, or the least and the most, as in 17-132"}));
  const auto is_wanted = [&](const Layer& layer) {
    const std::string text = to_text(layer.spec);
    const bool has_all = std::ranges::all_of(
        options.only, [&](const std::string& part) { return text.find(part) != std::string::npos; });
    return has_all && columns->contains(layer.spec.columns) && rows->contains(layer.rows) &&
           !(options.odd && layer.spec.columns % 8 == 0);
  };
  const std::set<int> known = measured_before(options.data, options.seed);
  const Gpu gpu(options.device);
  const Options settings = service_options(options);
  const HelpedService helped(settings);
  Service& service = *helped.service;
  const DeviceProfile profile = service.device(options.device).value();
  Copies copies(settings, gpu, profile);
  const std::vector<Layer> layers = random_layers(options.seed, options.random);
  std::vector<int> wanted;
  std::vector<Case> cases;
  for (int i = 0, place = 0; i < options.random; ++i) {
    const Layer& layer = layers[static_cast<std::size_t>(i)];
    if (!is_wanted(layer)) continue;
    const bool every = place++ < options.every;
    if (known.contains(i)) continue;
    const Trials trials{.top = options.top.value_or(kTop),
                        .drawn = kDrawn,
                        .seed = options.seed * 1'000'003 + static_cast<std::uint64_t>(i),
                        .every = every};
    cases.push_back(make_case(layer.spec, layer.rows, layer.use, gpu, profile, trials));
    wanted.push_back(i);
  }
  std::ofstream file(options.data, std::ios::binary | std::ios::app);
  if (!file) return fail(kCacheIo, "cannot write to " + options.data);
  if (!cases.empty())
    file << "gpu " << cases.front().report.device << "\nseed " << options.seed << "\n" << std::flush;
  double waited = 0;  // seconds
  const Stopwatch watch;
  {
    Preparation preparation(service, options.device, profile, cases, /*shows=*/false);
    Progress progress(isatty(STDERR_FILENO) != 0);
    for (std::size_t at = 0; at < cases.size(); ++at) {
      Case& of = cases[at];
      const Stopwatch waiting;
      preparation.await(at);
      waited += waiting.seconds();
      std::string said;
      try {
        Workbench bench(gpu, profile, copies, of.report.spec, of.report.rows, of.use);
        measure(bench, of, options.repeat.value_or(kRepeatOfMany), /*shows=*/false);
        MeasuredLayer layer =
            measured(of, layers[static_cast<std::size_t>(wanted[at])], options.seed, wanted[at]);
        said = of.report.winner ? verdict(of.report) : "no plan could be measured";
        if (!layer.plans.empty()) file << lines_of(layer) << std::flush;
      } catch (const Exception& error) {
        said = error.what();
      }
      of.kernels.clear();
      of.prepared = 0;
      progress.show(static_cast<int>(at) + 1, static_cast<int>(cases.size()), "layers measured",
                    to_text(of.report.spec) + "  " + said);
    }
  }
  file.close();
  if (!file) return fail(kCacheIo, "cannot write to " + options.data);
  add_ptxas_reports(options.data, service);
  print(concat({shortest(cases.size()), " layers in ", fixed(watch.seconds(), 0), " s, of which ",
                fixed(waited, 0), " s waiting for kernels\n"}));
  return kDone;
}

}  // namespace normjit::cli
