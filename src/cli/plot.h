// Draws fractions of the copy's speed over the width of the rows, as SVG.
#pragma once

#include <string>
#include <vector>

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

}  // namespace normjit::cli
