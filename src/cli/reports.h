// What the commands find out, where the library has no report of its own, before it becomes a table or JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/executor.h"
#include "normjit/device.h"
#include "normjit/plan.h"
#include "normjit/spec.h"
#include "verify/check.h"

namespace normjit::cli {

// A spec on a device: the plan for each use, with its cache entry.
struct ShowReport {
  NormSpec spec;
  DeviceProfile device;
  std::int64_t rows = 0;  // 0: not asked for
  struct Use {
    RowsRegime regime;
    Alignment alignment;
    Plan plan;
    std::size_t workspace_bytes = 0;
    std::int64_t blocks = 0;  // for `rows`
    bool tuned = false;       // kept by tune, not the planner's choice
    std::string id;           // of the cache entry
    bool cached = false;
  };
  std::vector<Use> uses;
  // With `rows`: what the planner weighs for them where the tensors are contiguous, the best first, which is
  // its choice.
  Alignment contiguous = Alignment::eight;
  std::vector<Candidate> weighed;
  WhyReport generic;  // the kernel that serves where these cannot
};

struct RunReport {
  NormSpec spec;
  std::int64_t rows = 0;
  Execution execution;
  std::optional<oracle::CheckReport> check;
};

// Times of one launch in microseconds.
struct Timing {
  double median = 0, min = 0, max = 0;
};

struct BenchReport {
  NormSpec spec;
  std::int64_t rows = 0;
  std::string device;
  Plan plan;
  std::int64_t bytes = 0;                      // that must move: x, y, weight, bias and statistics once
  std::int64_t buffer_sets = 0, launches = 0;  // of a graph
  int replays = 0;
  Timing kernel, copy;

  double gigabytes_per_second() const { return static_cast<double>(bytes) / kernel.median / 1e3; }
  double copy_gigabytes_per_second() const { return static_cast<double>(bytes) / copy.median / 1e3; }
  double fraction_of_copy() const { return copy.median / kernel.median; }
};

// The plans of one use, measured. The planner's choice is the first trial, the others follow as the model of
// the planner ranks them.
struct TuneReport {
  struct Trial {
    Plan plan;
    double cost = 0;  // by the model: its time relative to that of a copy of the same bytes,
    std::string why;  // and what decides it
    Timing kernel = {}, copy = {};
    int replays = 0;        // that the times are of; 0: it did not run
    bool finalist = false;  // measured in the second round too
    std::string error = {};

    double fraction_of_copy() const { return copy.median / kernel.median; }
    double estimated_fraction() const { return 1 / cost; }
  };

  NormSpec spec;
  std::int64_t rows = 0;
  std::string device;
  RowsRegime regime = RowsRegime::many;
  Alignment alignment = Alignment::eight;
  std::vector<Trial> trials;
  std::optional<std::size_t> winner;  // index; none ran: nothing
  bool stored = false;
};

}  // namespace normjit::cli
