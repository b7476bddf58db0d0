// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/plot.h"
#include "cli/commands.h"
#include "cli/measure.h"

namespace normjit::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kFewestBytes = 64'000'000;
constexpr DType kDTypes[] = {DType::bf16, DType::f16, DType::f32, DType::f64};  // bf16 first, as promised

const char* color_of(DType dtype) {  // told apart also by who does not see red and green
  switch (dtype) {
    case DType::bf16:
      return "#0072b2";
    case DType::f16:
      return "#009e73";
    case DType::f32:
      return "#d55e00";
    case DType::f64:
      break;
  }
  return "#cc79a7";
}

// A case that belongs on the line of its dtype.
struct Spot {
  DType dtype;
  double width;
  bool odd;  // its rows are no multiple of 16 bytes
};

std::optional<Spot> spot_of(const Json& one) {
  const NormSpec spec = spec_from(one.at("spec").get<std::string>()).value();
  const NormSpec usual{.columns = spec.columns, .input = spec.input, .affine = Affine::weight_bias};
  if (!(spec == usual) || bytes_moved(spec, one.at("rows")) <= kFewestBytes) return {};
  return Spot{spec.input, static_cast<double>(spec.columns), spec.columns * size_of(spec.input) % 16 != 0};
}

void add_dtypes(const Json& suite, Plot& plot) {
  for (const DType dtype : kDTypes) {
    PlotLine line{.label = std::string(name(dtype)), .color = color_of(dtype), .dash = {}, .points = {}};
    for (const Json& one : suite.at("cases")) {
      const std::optional<Spot> spot = spot_of(one);
      if (!spot || spot->dtype != dtype || !one.contains("fraction_of_copy")) continue;
      line.points.push_back({spot->width, one.at("fraction_of_copy"), spot->odd});
    }
    if (!line.points.empty()) plot.lines.push_back(std::move(line));
  }
}

// The peers' lines of one dtype, in the order in which the first case names them.
std::vector<PlotLine> lines_of_peers(const Json& peers, DType dtype) {
  constexpr const char* kDashes[] = {"7 4", "2 3", "9 3 2 3", "4 2"};
  constexpr const char* kColors[] = {"#8c959f", "#57606a", "#24292f", "#b08800"};
  std::vector<PlotLine> lines;
  for (const Json& one : peers.at("cases")) {
    const std::optional<Spot> spot = spot_of(one);
    if (!spot || spot->dtype != dtype || spot->odd) continue;
    for (const auto& [peer, microseconds] : one.at("peers").items()) {
      if (microseconds.is_null()) continue;  // it failed there
      const std::string label = peer + ", " + std::string(name(dtype));
      auto line = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.label == label; });
      if (line == lines.end()) {
        const std::size_t style = lines.size() % std::size(kDashes);
        line = lines.insert(lines.end(), {label, kColors[style], kDashes[style], {}});
      }
      line->points.push_back(
          {spot->width, one.at("copy_us").get<double>() / microseconds.get<double>(), false});
    }
  }
  return lines;
}

void add_peers(const Json& peers, Plot& plot) {
  for (const DType dtype : kDTypes) {
    std::vector<PlotLine> lines = lines_of_peers(peers, dtype);
    if (lines.empty()) continue;
    std::move(lines.begin(), lines.end(), std::back_inserter(plot.lines));
    return;
  }
}

bool any_hollow(const Plot& plot) {
  for (const PlotLine& line : plot.lines)
    for (const PlotPoint& point : line.points)
      if (point.hollow) return true;
  return false;
}

}  // namespace

Result<Plot> plot_of(const std::string& suite, const std::string& peers) {
  const char* reading = "the results of normjit-bench suite";
  try {
    const Json found = Json::parse(suite);
    Plot plot{.title = "LayerNorm with weight and bias, more than 64 MB moved",
              .subtitle = {},
              .hollow_label = {},
              .lines = {}};
    plot.subtitle = found.at("device").get<std::string>() + ", driver " +
                    found.at("driver").get<std::string>() + ", " + found.at("date").get<std::string>();
    add_dtypes(found, plot);
    reading = "the results of scripts/bench_peers.py";
    if (!peers.empty()) add_peers(Json::parse(peers), plot);
    if (plot.lines.empty()) {
      return Error{Code::BadArgument,
                   "no case moves more than 64 MB with weight and bias and nothing else; there is nothing to "
                   "plot. Run normjit-bench suite without --regime, or with another"};
    }
    if (any_hollow(plot)) plot.hollow_label = "odd widths";
    return plot;
  } catch (const nlohmann::json::exception& error) {
    return Error{Code::BadArgument, std::string("these are not ") + reading + ": " + error.what()};
  } catch (const Exception& error) {
    return Error{Code::BadArgument, std::string("these are not ") + reading + ": " + error.what()};
  }
}

}  // namespace normjit::cli
