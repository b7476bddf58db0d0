// SPDX-License-Identifier: Apache-2.0
// The plot of the suite: what is drawn, and that it is a document that any reader of SVG takes.
#include "bench/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

namespace normjit::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

// The first fault of an XML document, or nothing: tags that nest, attributes in quotes, no bare & or <.
std::string fault_of(const std::string& xml) {
  static const std::regex tag(R"re(<(/?)([A-Za-z]+)((?: [A-Za-z0-9:-]+="[^"<>]*")*)(/?)>)re");
  static const std::regex bad_text(R"([<>]|&(?!(amp|lt|gt|quot);))");
  std::vector<std::string> open;
  auto from = xml.begin();
  for (std::sregex_iterator at(xml.begin(), xml.end(), tag), end; at != end; ++at) {
    const std::string between(from, xml.begin() + at->position());
    if (std::regex_search(between, bad_text)) return "bad text: " + between;
    from = xml.begin() + at->position() + at->length();
    const std::string name = (*at)[2];
    if (std::regex_search((*at)[3].str(), std::regex("&(?!(amp|lt|gt|quot);)"))) return "bad attribute";
    if ((*at)[1].length() == 0) {
      if ((*at)[4].length() == 0) open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> closes nothing";
    } else {
      open.pop_back();
      if (open.empty() && std::string(from, xml.end()) != "\n") return "text after the document";
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> stays open";
}

// The numbers of all attributes of this name.
std::vector<double> numbers_of(const std::string& xml, const std::string& attribute) {
  const std::regex pattern(" " + attribute + "=\"(-?[0-9.]+)\"");
  std::vector<double> found;
  for (std::sregex_iterator at(xml.begin(), xml.end(), pattern), end; at != end; ++at)
    found.push_back(std::stod((*at)[1]));
  return found;
}

TEST(PlotChecker, FindsWhatIsWrong) {
  EXPECT_EQ(fault_of("<a><b x=\"1\"/>c</a>\n"), "");
  EXPECT_NE(fault_of("<a><b></a></b>\n"), "");
  EXPECT_NE(fault_of("<a>1 & 2</a>\n"), "");
  EXPECT_NE(fault_of("<a x=1></a>\n"), "");
  EXPECT_NE(fault_of("<a>\n"), "");
}

const Plot kPlot{
    .title = "a < b & \"c\"",
    .subtitle = "GPU",
    .hollow_label = "odd",
    .lines = {{"bf16", "#0072b2", "", {{16, 0.99, false}, {67108864, 0.5, false}, {1023, 1.7, true}}},
              {"peer", "#57606a", "7 4", {{64, -0.5, false}, {4096, 0.25, false}}}}};

TEST(Plot, IsWellFormedWhateverTheTextsHold) {
  const std::string svg = svg_of(kPlot);
  EXPECT_EQ(fault_of(svg), "");
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_EQ(fault_of(svg_of({})), "") << "without lines";
}

TEST(Plot, EverythingLiesInsideTheViewBox) {
  const std::string svg = svg_of(kPlot);
  ASSERT_THAT(svg, HasSubstr("viewBox=\"0 0 980 540\""));
  for (const char* attribute : {"x", "x1", "x2", "cx"}) {
    for (const double x : numbers_of(svg, attribute)) EXPECT_TRUE(x >= 0 && x <= 980) << attribute << x;
  }
  for (const char* attribute : {"y", "y1", "y2", "cy"}) {
    for (const double y : numbers_of(svg, attribute)) EXPECT_TRUE(y >= 0 && y <= 540) << attribute << y;
  }
}

TEST(Plot, HigherIsFasterAndRightIsWider) {
  const std::string svg = svg_of({.title = {},
                                  .subtitle = {},
                                  .hollow_label = {},
                                  .lines = {{"f32", "#d55e00", "", {{64, 0.5, false}, {4096, 0.9, false}}}}});
  const std::vector<double> x = numbers_of(svg, "cx"), y = numbers_of(svg, "cy");
  ASSERT_EQ(x.size(), 3u) << "two points and the mark of the legend";
  EXPECT_LT(x[0], x[1]);
  EXPECT_GT(y[0], y[1]);
}

TEST(Plot, ALineGoesThroughTheLowestPointOfEachWidth) {
  const Plot twice{
      .title = {},
      .subtitle = {},
      .hollow_label = {},
      .lines = {{"f32", "#d55e00", "", {{64, 0.9, false}, {64, 0.5, false}, {256, 0.7, false}}}}};
  const Plot lowest{.title = {},
                    .subtitle = {},
                    .hollow_label = {},
                    .lines = {{"f32", "#d55e00", "", {{256, 0.7, false}, {64, 0.5, false}}}}};
  const auto line = [](const std::string& svg) {
    std::smatch found;
    std::regex_search(svg, found, std::regex(" points=\"([^\"]*)\""));
    return found[1].str();
  };
  EXPECT_EQ(line(svg_of(twice)), line(svg_of(lowest)));
  EXPECT_EQ(numbers_of(svg_of(twice), "cx").size(), 4u) << "each point has its mark, and the legend one";
}

Json one(const char* spec, std::int64_t rows, double fraction) {
  return {{"spec", spec}, {"rows", rows}, {"fraction_of_copy", fraction}};
}

Json suite_of(const std::vector<Json>& cases) {
  return {
      {"device", "NVIDIA H200"}, {"driver", "580.1"}, {"date", "2026-01-31 12:00"}, {"cases", Json(cases)}};
}

std::vector<std::string> labels_of(const Plot& plot) {
  std::vector<std::string> labels;
  for (const PlotLine& line : plot.lines) labels.push_back(line.label);
  return labels;
}

TEST(PlotData, EveryDtypeHasALineOfItsLargePlainCases) {
  const Json suite = suite_of(
      {one("layernorm/cols=1024/f16/wb", 65536, 0.91), one("layernorm/cols=1024/bf16/wb", 65536, 0.92),
       one("layernorm/cols=1024/f32/wb", 65536, 0.93), one("layernorm/cols=1024/f64/wb", 65536, 0.94),
       one("layernorm/cols=1023/f64/wb", 65536, 0.8), one("layernorm/cols=1024/f32/wb", 100, 0.1),
       one("layernorm/cols=1024/f32/w", 65536, 0.1), one("layernorm/cols=1024/f32/wb/gelu", 65536, 0.1),
       one("layernorm/cols=1024/f16/w=f32/wb", 65536, 0.1),
       Json{{"spec", "layernorm/cols=512/f32/wb"}, {"rows", 65536}, {"error", "no room"}}});
  const Plot plot = plot_of(suite.dump(), "").value();
  EXPECT_THAT(labels_of(plot), ElementsAre("bf16", "f16", "f32", "f64"));
  ASSERT_EQ(plot.lines[2].points.size(), 1u);
  EXPECT_EQ(plot.lines[2].points[0].width, 1024);
  EXPECT_EQ(plot.lines[2].points[0].fraction, 0.93);
  ASSERT_EQ(plot.lines[3].points.size(), 2u);
  EXPECT_FALSE(plot.lines[3].points[0].hollow);
  EXPECT_TRUE(plot.lines[3].points[1].hollow);
  EXPECT_EQ(plot.hollow_label, "odd widths");
  EXPECT_THAT(plot.subtitle, HasSubstr("NVIDIA H200"));
  const std::string svg = svg_of(plot);
  EXPECT_EQ(fault_of(svg), "");
  for (const char* dtype : {">bf16<", ">f16<", ">f32<", ">f64<"}) EXPECT_THAT(svg, HasSubstr(dtype));
}

TEST(PlotData, PeersAreLinesOfBf16) {
  const Json suite = suite_of({one("layernorm/cols=1024/bf16/wb", 65536, 0.9)});
  const auto peer = [](const char* spec, Json times) {
    return Json{{"spec", spec}, {"rows", 65536}, {"copy_us", 50.0}, {"peers", std::move(times)}};
  };
  const Json peers = {
      {"cases",
       std::vector<Json>{peer("layernorm/cols=1024/f32/wb", {{"eager", 60.0}}),
                         peer("layernorm/cols=1024/bf16/wb", {{"eager", 100.0}, {"triton", nullptr}}),
                         peer("layernorm/cols=2048/bf16/wb", {{"eager", 200.0}, {"triton", 50.0}})}}};
  const Plot plot = plot_of(suite.dump(), peers.dump()).value();
  EXPECT_THAT(labels_of(plot), ElementsAre("bf16", "eager, bf16", "triton, bf16"));
  ASSERT_EQ(plot.lines[1].points.size(), 2u);
  EXPECT_EQ(plot.lines[1].points[0].fraction, 0.5);
  EXPECT_EQ(plot.lines[1].points[1].fraction, 0.25);
  ASSERT_EQ(plot.lines[2].points.size(), 1u) << "where it failed there is no point";
  EXPECT_FALSE(plot.lines[1].dash.empty());
  EXPECT_NE(plot.lines[1].dash, plot.lines[2].dash);
  EXPECT_EQ(plot.hollow_label, "");
}

TEST(PlotData, OtherTextsAreNamedAsWhatTheyShouldBe) {
  const std::string suite = suite_of({one("layernorm/cols=1024/bf16/wb", 65536, 0.9)}).dump();
  for (const char* text : {"", "no JSON", "{}", "[1]"}) {
    const Result<Plot> plot = plot_of(text, "");
    ASSERT_FALSE(plot) << text;
    EXPECT_EQ(plot.code(), Code::BadArgument);
    EXPECT_THAT(plot.error().message, HasSubstr("normjit-bench suite"));
  }
  const Result<Plot> peers = plot_of(suite, "{}");
  ASSERT_FALSE(peers);
  EXPECT_THAT(peers.error().message, HasSubstr("bench_peers.py"));
  const Result<Plot> bad_spec = plot_of(suite_of({one("layernorm/cols=0/f32", 1, 1)}).dump(), "");
  ASSERT_FALSE(bad_spec);
  EXPECT_EQ(bad_spec.code(), Code::BadArgument);
  const Result<Plot> nothing = plot_of(suite_of({one("layernorm/cols=1024/f32/wb", 8, 1)}).dump(), "");
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().message, HasSubstr("nothing to plot"));
  EXPECT_THAT(nothing.error().message, Not(HasSubstr("these are not")));
}

}  // namespace
}  // namespace normjit::cli
