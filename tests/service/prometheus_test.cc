// SPDX-License-Identifier: Apache-2.0
// The counters as a page for Prometheus, read by a strict parser of its text format, and by promtool where it
// is installed (Debian: prometheus).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "normjit/service.h"
#include "tests/support/temp_directory.h"

namespace normjit::testing {
namespace {

using ::testing::HasSubstr;

using Labels = std::vector<std::pair<std::string, std::string>>;
struct Sample {
  std::string name;
  Labels labels;
  double value;
};
struct Metric {
  std::string type;
  std::vector<Sample> samples;
};

// Reads the labels of a sample, from behind the brace to behind the other one.
Labels read_labels(const std::string& line, std::size_t& at) {
  Labels labels;
  static const std::regex name("[a-zA-Z_][a-zA-Z0-9_]*");
  while (at < line.size()) {
    const std::size_t equals = line.find('=', at);
    EXPECT_NE(equals, std::string::npos) << line;
    if (equals == std::string::npos) break;
    auto& [key, value] = labels.emplace_back(line.substr(at, equals - at), "");
    EXPECT_TRUE(std::regex_match(key, name)) << line;
    EXPECT_EQ(line[equals + 1], '"') << line;
    for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] != '\\') {
        value += line[at];
        continue;
      }
      const char escaped = line[++at];
      EXPECT_TRUE(escaped == '\\' || escaped == '"' || escaped == 'n') << line;
      value += escaped == 'n' ? '\n' : escaped;
    }
    if (line[++at] == '}') break;
    EXPECT_EQ(line[at], ',') << line;
    ++at;
  }
  ++at;
  return labels;
}

// The metrics of a page, whose every line must be right.
std::map<std::string, Metric> read(const std::string& page) {
  EXPECT_TRUE(page.ends_with("\n"));
  std::map<std::string, Metric> metrics;
  std::string current, helped;
  std::set<std::string> series;
  std::istringstream lines(page);
  static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) ([^\\\\]+)"),
      type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      helped = match[1];
      continue;
    }
    if (std::regex_match(line, match, type)) {
      current = match[1];
      EXPECT_EQ(helped, current) << "each metric has a HELP in front of its TYPE";
      EXPECT_TRUE(metrics.try_emplace(current, Metric{match[2], {}}).second) << current << " comes twice";
      continue;
    }
    std::size_t at = line.find_first_of("{ ");
    EXPECT_NE(at, std::string::npos) << line;
    if (at == std::string::npos) continue;
    Sample sample{line.substr(0, at), {}, 0};
    if (line[at] == '{') sample.labels = read_labels(line, ++at);
    EXPECT_EQ(line[at], ' ') << line;
    EXPECT_TRUE(series.insert(line.substr(0, at)).second) << line << ": this series comes twice";
    const std::string number = line.substr(at + 1);
    char* end = nullptr;
    sample.value = std::strtod(number.c_str(), &end);
    EXPECT_TRUE(!number.empty() && *end == '\0') << line;
    Metric& metric = metrics[current];
    if (metric.type == "histogram")
      EXPECT_THAT(sample.name, ::testing::AnyOf(current + "_bucket", current + "_sum", current + "_count"));
    else
      EXPECT_EQ(sample.name, current);
    metric.samples.push_back(sample);
  }
  return metrics;
}

// A histogram's buckets, and that they are one.
void expect_histogram(const Metric& metric, std::uint64_t count, double seconds) {
  ASSERT_EQ(metric.samples.size(), Durations{}.buckets.size() + 2);
  double last_bound = 0, last_value = 0;
  for (std::size_t i = 0; i < Durations{}.buckets.size(); ++i) {
    const Sample& sample = metric.samples[i];
    const auto& [name, value] = sample.labels.back();
    EXPECT_EQ(name, "le");
    const double bound = std::strtod(value.c_str(), nullptr);
    EXPECT_GT(bound, last_bound);
    EXPECT_GE(sample.value, last_value) << "the buckets are cumulative";
    last_bound = bound, last_value = sample.value;
  }
  EXPECT_EQ(metric.samples[Durations::kBounds.size()].labels.back().second, "+Inf");
  EXPECT_EQ(last_value, static_cast<double>(count));
  const Sample &sum = metric.samples.end()[-2], &all = metric.samples.back();
  EXPECT_THAT(sum.name, ::testing::EndsWith("_sum"));
  EXPECT_NEAR(sum.value, seconds, 1e-12);
  EXPECT_THAT(all.name, ::testing::EndsWith("_count"));
  EXPECT_EQ(all.value, static_cast<double>(count));
}

Counters some_counters() {
  Counters c;
  c.memory_hits = 18'446'744'073'709'551'615u, c.disk_hits = 2, c.layer_hits = 3, c.embedded_hits = 4,
  c.misses = 5;
  c.compiles = 3, c.failed_compiles = 1, c.compile_ms = 1234.5;
  c.compile_durations.buckets[6] = 3, c.compile_durations.buckets[8] = 1;
  c.loads = 2, c.load_ms = 0.25, c.load_durations.buckets[0] = 2;
  c.fallback_launches = 7, c.damaged_entries = 8;
  c.lock_waits = 1, c.lock_wait_ms = 40'000, c.lock_wait_durations.buckets.back() = 1;
  c.remote_hits = 9, c.remote_misses = 10, c.remote_errors = 11, c.remote_untrusted = 12,
  c.remote_stored = 13;
  c.remote_bytes = 14, c.remote_waits = 0;
  return c;
}

TEST(Prometheus, APageHasEveryCounter) {
  const std::map<std::string, Metric> metrics = read(to_prometheus(some_counters()).value());
  const auto value = [&](const std::string& name) {
    EXPECT_EQ(metrics.at(name).type, "counter");
    EXPECT_THAT(name, ::testing::EndsWith("_total"));
    EXPECT_EQ(metrics.at(name).samples.size(), 1U);
    return metrics.at(name).samples.at(0).value;
  };
  EXPECT_EQ(value("normjit_misses_total"), 5);
  EXPECT_EQ(value("normjit_compiles_total"), 3);
  EXPECT_EQ(value("normjit_failed_compiles_total"), 1);
  EXPECT_EQ(value("normjit_fallback_launches_total"), 7);
  EXPECT_EQ(value("normjit_damaged_entries_total"), 8);
  EXPECT_EQ(value("normjit_remote_misses_total"), 10);
  EXPECT_EQ(value("normjit_remote_errors_total"), 11);
  EXPECT_EQ(value("normjit_remote_untrusted_total"), 12);
  EXPECT_EQ(value("normjit_remote_stored_total"), 13);
  EXPECT_EQ(value("normjit_remote_read_bytes_total"), 14);
  std::map<std::string, double> hits;
  for (const Sample& sample : metrics.at("normjit_hits_total").samples)
    hits[sample.labels.at(0).second] = sample.value;
  EXPECT_EQ(hits, (std::map<std::string, double>{
                      {"memory", 0x1p64}, {"disk", 2}, {"layer", 3}, {"embedded", 4}, {"remote", 9}}));
  expect_histogram(metrics.at("normjit_compile_seconds"), 4, 1.2345);
  expect_histogram(metrics.at("normjit_load_seconds"), 2, 0.00025);
  expect_histogram(metrics.at("normjit_lock_wait_seconds"), 1, 40);
  expect_histogram(metrics.at("normjit_remote_wait_seconds"), 0, 0);
  EXPECT_EQ(metrics.size(), 16U) << "a metric that no line above looks at";
}

// A member that to_json has, and the page has not, would be missed here.
TEST(Prometheus, NothingOfTheJsonIsLeftOut) {
  const std::string json = to_json(some_counters());
  EXPECT_EQ(std::count(json.begin(), json.end(), ':'), 26) << "a counter was added: add it to the page, too\n"
                                                           << json;
}

TEST(Prometheus, EverySeriesHasTheLabels) {
  const Label labels[] = {{"model", "a \"b\"\\\nc\xc3\xa9"}, {"_rank0", ""}};
  const Labels expected = {{"model", "a \"b\"\\\nc\xc3\xa9"}, {"_rank0", ""}};
  const std::string page = to_prometheus(Counters{}, labels).value();
  std::size_t series = 0;
  for (const auto& [name, metric] : read(page))
    for (const Sample& sample : metric.samples) {
      ASSERT_GE(sample.labels.size(), 2U) << sample.name;
      EXPECT_EQ(Labels(sample.labels.begin(), sample.labels.begin() + 2), expected) << sample.name;
      ++series;
    }
  EXPECT_EQ(series, 1 + 5 + 10 + 4 * (Durations{}.buckets.size() + 2)) << "whatever has happened";
}

TEST(Prometheus, LabelsThatAreNoneAreNamed) {
  const auto refused = [](std::vector<Label> labels) {
    const Result<std::string> page = to_prometheus(Counters{}, labels);
    EXPECT_EQ(page.code(), Code::BadArgument);
    return page.error().message;
  };
  for (const std::string_view name : {"", "1a", "a b", "a-b", "__a", "\xc3\xa9", "a:b"})
    EXPECT_THAT(refused({{name, "v"}}), HasSubstr("'" + std::string(name) + "'"));
  for (const std::string_view name : {"le", "tier", "version"})
    EXPECT_THAT(refused({{"ok", "v"}, {name, "v"}}), HasSubstr("own"));
  EXPECT_THAT(refused({{"a", "1"}, {"b", "2"}, {"a", "1"}}), HasSubstr("twice"));
  EXPECT_THAT(refused({{"a", "\xff"}}), HasSubstr("UTF-8"));
}

TEST(Prometheus, ADurationIsInTheFirstBucketThatHoldsIt) {
  EXPECT_EQ(Durations::bucket_of(0), 0U);
  EXPECT_EQ(Durations::bucket_of(Durations::kBounds[0]), 0U) << "le: less or equal";
  EXPECT_EQ(Durations::bucket_of(Durations::kBounds[0] * 1.001), 1U);
  EXPECT_EQ(Durations::bucket_of(Durations::kBounds.back()), Durations::kBounds.size() - 1);
  EXPECT_EQ(Durations::bucket_of(1e9), Durations::kBounds.size());
}

TEST(Prometheus, PromtoolHasNothingToSay) {
  if (std::system("command -v promtool >/dev/null") != 0) GTEST_SKIP() << "no promtool (Debian: prometheus)";
  const TempDirectory folder;
  const Label labels[] = {{"model", "a \"b\"\\\nc"}, {"rank", "0"}};
  std::ofstream(folder / "page") << to_prometheus(some_counters(), labels).value();
  EXPECT_EQ(std::system(("promtool check metrics < '" + (folder / "page") + "'").c_str()), 0);
  std::ofstream(folder / "wrong") << "# TYPE a counter\na 1\n";  // without help and _total
  EXPECT_NE(std::system(("promtool check metrics < '" + (folder / "wrong") + "' 2>/dev/null").c_str()), 0);
}

}  // namespace
}  // namespace normjit::testing
