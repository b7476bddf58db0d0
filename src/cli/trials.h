// SPDX-License-Identifier: Apache-2.0
// What both kinds of `tune` do: the plans that are tried of a spec, their kernels, which are made ready while
// others are measured, and the measurement.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/command_line.h"
#include "cli/measure.h"
#include "cli/progress.h"
#include "cli/tuning.h"
#include "normjit/compiler/compiler.h"

namespace normjit::cli {

constexpr int kRepeat = 30, kRepeatOfMany = 7;  // replays of the best plans: of one spec; of each of many

struct TuneCommand : CommonOptions {
  std::vector<std::string> specs, manifests;
  std::string rows;  // comma-separated; empty: as many as make x 256 MiB. Of --random: LEAST-MOST
  std::optional<int> repeat;
  std::optional<int> top;  // measure only so many plans; 0: all
  int device = 0;
  MeasuredUse use;
  bool dry_run = false;
  // Of layers drawn at random.
  int random = 0;  // how many; 0: SPEC is tuned
  std::uint64_t seed = 1;
  int every = 0;                  // of so many of them every legal plan is measured
  std::string data;               // the file that keeps the times
  std::vector<std::string> only;  // only layers whose spec has all of these in its text,
  std::string columns;            // has so many columns, LEAST-MOST,
  bool odd = false;               // and no multiple of 8 of them
};

// `tune --random`.
int tune_random(const TuneCommand& options);

// One spec with one number of rows, and the kernels of its trials; empty where one cannot be had.
struct Case {
  TuneReport report;
  MeasuredUse use;
  std::vector<Kernel> kernels;
  std::size_t prepared = 0;  // kernels that were had, or could not be
};

// A service whose compiles go to other processes too, which keep all cores busy.
struct HelpedService {
  explicit HelpedService(const Options& settings);

  const std::shared_ptr<Driver> driver;
  const std::shared_ptr<Compiler> compiler;
  const std::shared_ptr<void> helpers;
  const std::unique_ptr<Service> service;
};

// Which plans are tried.
struct Trials {
  int top = 0;             // so many that the model ranks first; 0: all
  int drawn = 0;           // and so many others of all legal ones
  std::uint64_t seed = 0;  // that these are drawn with
  bool every = false;      // all legal ones
};

// The GPU with its profile, for reports.
std::string device_text(const Gpu& gpu, const DeviceProfile& profile);

// A case whose kernels are still to be prepared. Throws what check_use() does.
Case make_case(const NormSpec& spec, std::int64_t rows, const MeasuredUse& use, const Gpu& gpu,
               const DeviceProfile& profile, const Trials& trials);

// Finds or compiles, and loads, the kernels of all cases on all cores but one, case by case, while the
// calling thread measures those that are ready.
class Preparation {
 public:
  // `shows`: prints each kernel.
  Preparation(Service& service, int device, const DeviceProfile& profile, std::vector<Case>& cases,
              bool shows);
  ~Preparation();

  // Waits for the kernels of a case. Cases are asked for in their order.
  void await(std::size_t at);

 private:
  static constexpr std::size_t kAhead = 64;  // cases that are made ready ahead

  struct Place {
    std::size_t at, i;  // of the case, and of the trial in it
  };

  void work();
  // The next kernel to prepare; nothing once there is none.
  std::optional<Place> next();

  Service& service_;
  const int device_;
  const DeviceProfile& profile_;
  std::vector<Case>& cases_;
  const bool shows_;
  std::vector<Place> all_;
  std::mutex mutex_;  // guards what follows, and `prepared` of the cases
  std::condition_variable changed_;
  Progress progress_;
  std::size_t next_ = 0, measured_ = 0;
  int done_ = 0;
  bool stops_ = false;
  std::vector<std::jthread> threads_;  // joined first
};

// Two rounds: all plans shortly, then the best of them, and the rules' choice, in turn for `repeat` replays.
// A plan that does not run says why in its trial. `shows`: prints each.
void measure(Workbench& bench, Case& of, int repeat, bool shows);

}  // namespace normjit::cli
