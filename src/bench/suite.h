// SPDX-License-Identifier: Apache-2.0
// What `normjit-bench suite` measures: cases of every regime, each with the speed that it should reach; and
// what a run of it found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "cli/measure.h"
#include "normjit/result.h"
#include "normjit/spec.h"

namespace normjit::bench {

// What makes a case hard, the most specific first: a case belongs to the first regime that fits.
enum class Regime : std::uint8_t {
  channels_first,  // over the channels of NCHW
  quantized,       // an output of 8 or 4 bits
  fused,           // more than a LayerNorm: RMS, a residual, a sum that is written, ...
  reference,       // the two reference workloads: 16 x 4,194,304, and 4,194,304 x 64 with GELU
  activation,      // with an activation or a scale
  decode,          // 1-256 rows of 1024-16,384 columns, 16 bits each
  few,             // 1-131 rows, 65,536 columns and wider
  odd,             // a row of x or y is no multiple of 16 bytes
  longer,          // more than 16,384 columns; "long" in text
  ordinary,        // 16-16,384 columns
  narrow,          // fewer than 16 columns
};
inline constexpr Regime kRegimes[] = {
    Regime::reference, Regime::activation,     Regime::decode,   Regime::few,
    Regime::odd,       Regime::longer,         Regime::ordinary, Regime::narrow,
    Regime::fused,     Regime::channels_first, Regime::quantized};
std::string_view name(Regime) noexcept;
std::string regime_names();                          // "reference, fused, ..."
Result<Regime> parse_regime(std::string_view text);  // BadArgument

Regime suite_regime(const NormSpec& spec, std::int64_t rows) noexcept;

// The speed that a case should reach on an NVIDIA H200.
struct Target {
  enum class Kind : std::uint8_t {
    none,          // it is reported only
    microseconds,  // at most so many
    of_copy,       // at least this fraction of the speed of a copy of the same bytes
    of_split_row,  // the same of a copy that reads x twice
    of_plain,      // at most this multiple of the time of the same case without activation and scale
    of_peers,      // at most the time of the fastest other implementation, which scripts/bench_peers.py knows
  };
  Kind kind = Kind::none;
  double bound = 0;

  friend bool operator==(const Target&, const Target&) = default;
};
std::string to_text(const Target& target);  // ">= 0.96 of copy"
Target target_of(const NormSpec& spec, std::int64_t rows) noexcept;

struct SuiteCase {
  NormSpec spec;
  std::int64_t rows = 0;
  bool drawn = false;  // at random, by the seed
  cli::MeasuredUse use = {};

  Regime regime() const noexcept { return suite_regime(spec, rows); }
  Target target() const noexcept { return target_of(spec, rows); }
};

// The same layer without activation and scale.
NormSpec plain(NormSpec spec) noexcept;

// The cases that are always the same; some of each regime but narrow.
std::vector<SuiteCase> fixed_cases();

// Cases drawn by the seed, on every machine the same: each octave of the widths 16-1,048,575 is as likely as
// any other, and so is each of the bytes moved, 8-512 MB; half of the rows are a multiple of 16 bytes.
std::vector<SuiteCase> random_cases(std::uint64_t seed, int count);

// The regime fused: each of four norms at widths of today's models and at some drawn by the seed, in 16 and
// 32 bits; odd widths; decode, also with launches that overlap; long rows; gates and modulations of diffusion
// and state-space models.
std::vector<SuiteCase> fused_cases(std::uint64_t seed);

// The regime quantized: results of 8 and 4 bits with a scale for the tensor, for each row and for each block,
// at widths of today's models and at some drawn by the seed, alone and with a residual; and decode, beside
// the same norms in 16 bits.
std::vector<SuiteCase> quantized_cases(std::uint64_t seed);

// The regime channels_first: the norms of ConvNeXt and of SAM's neck, and planes of 7 x 7.
std::vector<SuiteCase> channels_first_cases();

// Those of one regime, and the plain ones that those with an activation are compared with.
std::vector<SuiteCase> only(Regime regime, const std::vector<SuiteCase>& cases);

struct SuiteResult {
  SuiteCase what;
  std::optional<cli::BenchReport> bench;  // none: `error` says why
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
double split_row_microseconds(const cli::BenchReport& report) noexcept;

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

std::string regime_text(const SuiteCase& what);  // "fused", + with launches that overlap, * if drawn

// For people: every case, then a line for each regime.
std::string table_of(const SuiteReport& report);

// A table for each norm: a line for each size, microseconds and fraction of the copy for each dtype.
std::string compact_table_of(const SuiteReport& report);

// As JSON: the suite before and after it is measured; each case has "spec", "rows", "regime", "bytes" and
// "target".
std::string json_of(const std::vector<SuiteCase>& cases, std::uint64_t seed);
std::string json_of(const SuiteReport& report);

// The command.
void add_suite(cli::CommandLine& line);

}  // namespace normjit::bench
