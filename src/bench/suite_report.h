// SPDX-License-Identifier: Apache-2.0
// What a run of the suite found: each case against its target.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/suite.h"
#include "cli/measure.h"

namespace normjit::cli {

struct SuiteResult {
  SuiteCase what;
  std::optional<BenchReport> bench;  // none: `error` says why
  std::string error;
  std::optional<double> value;  // what the target bounds; none where it was not measured
  std::optional<bool> met;      // none without a target or a value
};

struct SuiteReport {
  std::string device;  // "NVIDIA H200 (sm_90, 132 SMs, ...)"
  std::string driver;  // "580.159.04, CUDA 13.0"
  std::string date;    // UTC, "2026-01-31 12:00"
  std::uint64_t seed = 0;
  std::vector<SuiteResult> results;
};

// The time that reading x twice would take at the speed of the copy, in microseconds.
double split_row_microseconds(const BenchReport& report) noexcept;

// Sets value and met of every result.
void judge(std::vector<SuiteResult>& results);

struct RegimeSummary {
  Regime regime;
  int cases = 0, failed = 0;
  int judged = 0, met = 0;     // with a target, and at it
  double worst = 0, mean = 0;  // the lowest fraction of copy and the geometric mean of all; 0 of none
  std::string worst_case;      // its spec and rows
};
// The regimes that have cases, in the order of kRegimes.
std::vector<RegimeSummary> summarize(const std::vector<SuiteResult>& results);

// For people: every case, then a line for each regime.
std::string table_of(const SuiteReport& report);

// As JSON: the suite before and after it is measured; each case has "spec", "rows", "regime", "bytes" and
// "target".
std::string json_of(const std::vector<SuiteCase>& cases, std::uint64_t seed);
std::string json_of(const SuiteReport& report);

}  // namespace normjit::cli
