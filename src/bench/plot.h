// SPDX-License-Identifier: Apache-2.0
// Draws fractions of the copy's speed over the width of the rows, as SVG.
#pragma once

#include <string>
#include <vector>

#include "normjit/result.h"

namespace normjit::cli {

struct PlotPoint {
  double width = 0;     // columns, > 0
  double fraction = 0;  // of the copy's speed; drawn between 0 and 1.05
  bool hollow = false;  // a mark beside the line, not on it
};

struct PlotLine {
  std::string label;
  std::string color;  // "#0072b2"
  std::string dash;   // as of stroke-dasharray; empty: a solid line with marks
  std::vector<PlotPoint> points;
};

struct Plot {
  std::string title, subtitle;
  std::string hollow_label;  // what hollow marks mean; empty: no such entry in the legend
  std::vector<PlotLine> lines;
};

// A whole document. A line goes from width to width through the lowest point of each; widths are on a
// logarithmic scale. The background is white, so that it reads the same on a dark page.
std::string svg_of(const Plot& plot);

// From what `normjit-bench suite` and scripts/bench_peers.py have stored.
// One line for each dtype, through its cases that move more than 64 MB with weight and bias and nothing else;
// and for each peer one through those of bf16, or of the first dtype that the peers have. `peers` may be
// empty. BadArgument, which names what is wrong, for texts that are something else.
Result<Plot> plot_of(const std::string& suite, const std::string& peers);

}  // namespace normjit::cli
