// SPDX-License-Identifier: Apache-2.0
#include "bench/plot.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/table.h"

namespace normjit::cli {
namespace {

constexpr double kWidth = 980, kHeight = 540;
constexpr double kLeft = 70, kRight = 750, kTop = 72, kBottom = 476;  // of the area with the lines
constexpr double kMost = 1.05;                                        // the fraction at the top
constexpr double kLegend = 772, kLegendStep = 22;
constexpr const char* kInk = "#24292f";
constexpr const char* kGrid = "#e1e4e8";

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

// 16384 is "16Ki"; the ticks are powers of two.
std::string tick_text(double value) {
  const char* const units[] = {"", "Ki", "Mi", "Gi"};
  int unit = 0;
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  return fixed(value, 0) + units[unit];
}

// The powers of four that enclose all widths.
class WidthScale {
 public:
  explicit WidthScale(const std::vector<PlotLine>& lines) {
    double least = 1e18, most = 0;
    for (const PlotLine& line : lines) {
      for (const PlotPoint& point : line.points) {
        least = std::min(least, point.width);
        most = std::max(most, point.width);
      }
    }
    if (most == 0) least = most = 1;
    first_ = static_cast<int>(std::floor(std::log2(least) / 2));
    last_ = std::max(first_ + 1, static_cast<int>(std::ceil(std::log2(most) / 2)));
  }

  double at(double width) const {
    return kLeft + (kRight - kLeft) * (std::log2(width) / 2 - first_) / (last_ - first_);
  }
  std::vector<double> ticks() const {
    std::vector<double> values;
    for (int i = first_; i <= last_; ++i) values.push_back(std::exp2(2 * i));
    return values;
  }

 private:
  int first_, last_;
};

double height_at(double fraction) {
  return kBottom - (kBottom - kTop) * std::clamp(fraction, 0.0, kMost) / kMost;
}

std::string place(const char* name, double value) {
  return " " + std::string(name) + "=\"" + fixed(value, 1) + "\"";
}

std::string text(double x, double y, const std::string& words, const std::string& more = "") {
  return "<text" + place("x", x) + place("y", y) + more + ">" + escaped(words) + "</text>\n";
}

std::string straight(double x1, double y1, double x2, double y2, const std::string& color,
                     const std::string& dash = "", const char* width = "1") {
  return "<line" + place("x1", x1) + place("y1", y1) + place("x2", x2) + place("y2", y2) + " stroke=\"" +
         color + "\" stroke-width=\"" + width + "\"" +
         (dash.empty() ? "" : " stroke-dasharray=\"" + dash + "\"") + "/>\n";
}

std::string mark(double x, double y, const std::string& color, bool hollow) {
  return "<circle" + place("cx", x) + place("cy", y) + " r=\"3.2\" fill=\"" + (hollow ? "#ffffff" : color) +
         "\" stroke=\"" + color + "\" stroke-width=\"1.4\"/>\n";
}

std::string axes(const WidthScale& scale) {
  std::string svg;
  for (int tenth = 0; tenth <= 10; ++tenth) {
    const double y = height_at(tenth / 10.0);
    svg += straight(kLeft, y, kRight, y, tenth == 0 || tenth == 10 ? kInk : kGrid);
    svg += text(kLeft - 8, y + 4, fixed(tenth / 10.0, 1), " text-anchor=\"end\"");
  }
  for (const double width : scale.ticks()) {
    const double x = scale.at(width);
    svg += straight(x, kTop, x, kBottom + 5, kGrid);
    svg += text(x, kBottom + 20, tick_text(width), " text-anchor=\"middle\"");
  }
  svg += text((kLeft + kRight) / 2, kBottom + 46, "columns of a row", " text-anchor=\"middle\"");
  const std::string turned =
      " text-anchor=\"middle\" transform=\"rotate(-90 20 " + fixed((kTop + kBottom) / 2, 1) + ")\"";
  svg += text(20, (kTop + kBottom) / 2, "fraction of the speed of a copy of the same bytes", turned);
  return svg;
}

std::string drawn(const PlotLine& line, const WidthScale& scale) {
  std::map<double, double> lowest;
  std::string marks;
  for (const PlotPoint& point : line.points) {
    if (line.dash.empty())
      marks += mark(scale.at(point.width), height_at(point.fraction), line.color, point.hollow);
    if (point.hollow) continue;
    const auto [at, first] = lowest.try_emplace(point.width, point.fraction);
    if (!first) at->second = std::min(at->second, point.fraction);
  }
  std::string corners;
  for (const auto& [width, fraction] : lowest) {
    corners += (corners.empty() ? "" : " ") + fixed(scale.at(width), 1) + "," + fixed(height_at(fraction), 1);
  }
  const std::string dashes = line.dash.empty() ? "" : " stroke-dasharray=\"" + line.dash + "\"";
  return "<g><title>" + escaped(line.label) + "</title>\n<polyline fill=\"none\" stroke=\"" + line.color +
         "\" stroke-width=\"" + (line.dash.empty() ? "2" : "1.6") + "\" stroke-linejoin=\"round\"" + dashes +
         " points=\"" + corners + "\"/>\n" + marks + "</g>\n";
}

std::string legend(const Plot& plot) {
  std::string svg;
  double y = kTop + 8;
  for (const PlotLine& line : plot.lines) {
    svg += straight(kLegend, y, kLegend + 28, y, line.color, line.dash, "2");
    if (line.dash.empty()) svg += mark(kLegend + 14, y, line.color, false);
    svg += text(kLegend + 36, y + 4, line.label);
    y += kLegendStep;
  }
  if (!plot.hollow_label.empty()) {
    svg += mark(kLegend + 14, y, kInk, true);
    svg += text(kLegend + 36, y + 4, plot.hollow_label);
  }
  return svg;
}

}  // namespace

std::string svg_of(const Plot& plot) {
  const WidthScale scale(plot.lines);
  const std::string size = fixed(kWidth, 0) + "\" height=\"" + fixed(kHeight, 0) + "\"";
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + fixed(kWidth, 0) + " " +
                    fixed(kHeight, 0) + "\" width=\"" + size +
                    " font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"" + kInk +
                    "\">\n" + "<rect x=\"0\" y=\"0\" width=\"" + size + " fill=\"#ffffff\"/>\n";
  svg += text(kLeft, 30, plot.title, " font-size=\"16\" font-weight=\"bold\"");
  svg += text(kLeft, 52, plot.subtitle, " fill=\"#57606a\"");
  svg += axes(scale);
  for (const PlotLine& line : plot.lines) svg += drawn(line, scale);
  return svg + legend(plot) + "</svg>\n";
}

}  // namespace normjit::cli
