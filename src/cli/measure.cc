// SPDX-License-Identifier: Apache-2.0
#include "cli/measure.h"

#include <algorithm>
#include <string_view>

#include "cli/commands.h"
#include "normjit/base/text.h"
#include "verify/problem.h"

namespace normjit::cli {
namespace {

constexpr std::size_t kAlignment = 256;      // of each tensor, as cuMemAlloc gives it
constexpr std::int64_t kMostLaunches = 512;  // in a graph; 0.7 ms of the smallest kernels
constexpr std::int64_t kFewestLaunches = 8;  // so that starting the graph weighs little
constexpr int kWarmUps = 3;
constexpr int kCopyReplays = 5;  // of each shape of the copy, behind two that warm up
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;  // far beyond any memory, far below overflow

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Random elements from the host, repeated on the device: a gigabyte of them takes the host seconds.
void fill(DeviceBuffer& buffer, std::size_t at, std::int64_t elements, DType dtype,
          const oracle::Distribution& distribution) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  oracle::Matrix piece(dtype, 1, std::min(elements, kMost));
  oracle::fill_random(piece, /*seed=*/1, distribution);
  buffer.upload(piece.data(), piece.bytes(), at);
  buffer.repeat(piece.bytes(), at, static_cast<std::size_t>(elements) * size_of(dtype));
}

// Of an operand of which the rows of a sample share one row; of an output that is the sum over the sample.
std::int64_t elements_of(const OperandRow& row, const NormSpec& spec, std::int64_t rows,
                         std::int64_t sample) noexcept {
  return normjit::elements_of(row, spec, may_be_of_samples(row) ? rows / sample : rows);
}

// One set of inputs, repeated over the whole buffer.
void fill_sets(DeviceBuffer& buffer, const SetLayout& layout, const NormSpec& spec, std::int64_t rows,
               std::int64_t sample) {
  for (const OperandRow& row : kOperands)
    if (!row.output && row.present(spec))
      fill(buffer, layout.at[row.operand], elements_of(row, spec, rows, sample), row.dtype(spec),
           oracle::distribution_of(row.operand, spec));
  buffer.repeat(layout.bytes, 0, buffer.bytes());
}

}  // namespace

Json json_of(const Timing& timing) {
  return {{"median_us", timing.median}, {"min_us", timing.min}, {"max_us", timing.max}};
}

std::vector<std::int64_t> parse_rows_list(const std::string& list) {
  std::vector<std::int64_t> rows;
  for (const std::string_view word : split(list, ',')) {
    const std::optional<std::int64_t> value = number<std::int64_t>(word);
    if (!value || *value < 1) {
      throw Exception(
          {Code::BadArgument, "--rows is '" + list + "'; it must be numbers from 1 on, as in 1,16384"});
    }
    rows.push_back(*value);
  }
  return rows;
}

std::int64_t default_rows(const NormSpec& spec, std::int64_t plane) noexcept {
  const std::int64_t together = std::max<std::int64_t>(1, plane);
  const std::int64_t rows = (std::int64_t{256} << 20) / (spec.columns * size_of(spec.input));
  return std::max(together, rows / together * together);
}

std::vector<MeasuredCase> measured_cases(const std::vector<NormSpec>& specs, const std::string& rows,
                                         std::int64_t plane) {
  std::vector<std::int64_t> numbers;
  if (!rows.empty()) numbers = parse_rows_list(rows);
  std::vector<MeasuredCase> cases;
  for (const NormSpec& spec : specs)
    for (const std::int64_t number : rows.empty() ? std::vector{default_rows(spec, plane)} : numbers)
      cases.push_back({spec, number});
  return cases;
}

std::int64_t bytes_moved(const NormSpec& spec, std::int64_t rows, std::int64_t sample) noexcept {
  std::int64_t bytes = 0;
  for (const OperandRow& row : kOperands)
    if (row.present(spec)) bytes += elements_of(row, spec, rows, sample) * size_of(row.dtype(spec));
  return bytes;
}

std::int64_t rows_that_move(const NormSpec& spec, std::int64_t bytes) noexcept {
  const std::int64_t row = bytes_moved(spec, 2) - bytes_moved(spec, 1);
  const std::int64_t weights = bytes_moved(spec, 1) - row;
  return std::max<std::int64_t>(1, (bytes - weights + row / 2) / row);
}

SetLayout layout_of(const NormSpec& spec, std::int64_t rows, std::int64_t sample) noexcept {
  SetLayout layout;
  for (const OperandRow& row : kOperands) {
    if (!row.present(spec)) continue;
    layout.at[row.operand] = layout.bytes;
    layout.bytes +=
        aligned(static_cast<std::size_t>(elements_of(row, spec, rows, sample)) * size_of(row.dtype(spec)));
  }
  return layout;
}

std::int64_t rotation_sets(std::size_t set_bytes, std::int64_t l2_bytes, std::size_t memory) noexcept {
  const std::size_t cold = 4 * static_cast<std::size_t>(l2_bytes);
  const auto wanted = static_cast<std::int64_t>(std::max<std::size_t>(2, (cold + set_bytes - 1) / set_bytes));
  const auto possible = static_cast<std::int64_t>(std::max<std::size_t>(1, memory / set_bytes));
  return std::min({wanted, possible, kMostLaunches});
}

Timing timing_of(std::vector<double> samples) noexcept {
  std::sort(samples.begin(), samples.end());
  const std::size_t half = samples.size() / 2;
  const double median = samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
  return {.median = median, .min = samples.front(), .max = samples.back()};
}

Tensors tensors_of(const NormSpec& spec, const SetLayout& layout, std::int64_t rows, std::byte* begin,
                   std::int64_t sample, std::int64_t plane) noexcept {
  Tensors tensors{.rows = rows};
  tensors.plane = plane;
  for (const OperandRow& row : kOperands) {
    if (!row.present(spec)) continue;
    const std::byte* const at = begin + layout.at[row.operand];
    if (sample > 1 && is_matrix(row, spec) && may_be_of_samples(row))
      set(tensors, row, InputRows(at, sample, spec.columns, 0));
    else
      set(tensors, row, at);
  }
  return tensors;
}

void check_use(const NormSpec& spec, std::int64_t rows, const MeasuredUse& use) {
  if (rows > kMostElements / spec.columns)
    throw Exception({Code::BadArgument, "--rows " + std::to_string(rows) + " is more than any GPU can hold"});
  if (use.sample < 1 || rows % use.sample != 0)
    throw Exception(
        {Code::BadRows, concat({shortest(rows), " rows are no samples of ", shortest(use.sample), " rows"})});
  if (!has_whole_samples(spec.channels_first, rows, use.plane))
    throw Exception(
        {Code::BadPlane, concat({"--plane is ", shortest(use.plane), ", and ", to_text(spec),
                                 spec.channels_first ? " needs positions of a sample that divide its "
                                                     : " has no planes for its ",
                                 shortest(rows), " rows"})});
}

// The copy has buffers of its own.
Workbench::Workbench(const Gpu& gpu, const DeviceProfile& profile, Copies& copies, const NormSpec& spec,
                     std::int64_t rows, const MeasuredUse& use)
    : gpu_(gpu),
      layout_(layout_of(spec, rows, use.sample)),
      copy_layout_(copy_streams(spec, use.sample), bytes_moved(spec, rows, use.sample)),
      stream_(gpu) {
  facts_.spec = spec;
  facts_.rows = rows;
  facts_.device = gpu.name() + " (" + profile.text() + ")";
  facts_.use = use;
  facts_.bytes = bytes_moved(spec, rows, use.sample);
  const std::size_t memory = gpu.free_memory() / 10 * 9;
  const std::int64_t count =
      rotation_sets(std::max(layout_.bytes, copy_layout_.bytes), profile.l2_bytes, memory / 2);
  facts_.buffer_sets = count;
  facts_.launches = count * ((kFewestLaunches + count - 1) / count);

  sets_.emplace(gpu, layout_.bytes * static_cast<std::size_t>(count));
  copies_.emplace(gpu, copy_layout_.bytes * static_cast<std::size_t>(count));
  fill_sets(*sets_, layout_, spec, rows, use.sample);
  copies_->fill(0x3c);
  const std::int64_t cold = 4 * profile.l2_bytes;
  if (static_cast<std::int64_t>(std::min(layout_.bytes, copy_layout_.bytes)) * count < cold)
    other_.emplace(gpu, static_cast<std::size_t>(cold));

  const CopyKernel* fastest = nullptr;
  double least = 0;
  for (const CopyKernel& copy : copies.of(copy_streams(spec, use.sample), use.overlap)) {
    const GpuGraph graph(gpu_, stream_, [&] { enqueue(copy); });
    std::vector<double> times;
    for (int i = -2; i < kCopyReplays; ++i) {
      const double time = replay(graph);
      if (i >= 0) times.push_back(time);
    }
    const double median = timing_of(std::move(times)).median;
    if (fastest != nullptr && median >= least) continue;
    fastest = &copy;
    least = median;
  }
  facts_.copy_shape = fastest->shape();
  copy_microseconds_ = least;
  copying_.emplace(gpu_, stream_, [&] { enqueue(*fastest); });
}

void Workbench::enqueue(const CopyKernel& copy) const {
  for (std::int64_t i = 0; i < facts_.launches; ++i) {
    auto* set = static_cast<std::byte*>(copies_->data()) +
                static_cast<std::size_t>(i % facts_.buffer_sets) * copy_layout_.bytes;
    copy.launch(set, copy_layout_, stream_.handle());
  }
}

std::unique_ptr<GpuGraph> Workbench::graph_of(const Kernel& kernel) const {
  return std::make_unique<GpuGraph>(gpu_, stream_, [&] {
    for (std::int64_t i = 0; i < facts_.launches; ++i) {
      auto* set = static_cast<std::byte*>(sets_->data()) + (i % facts_.buffer_sets) * layout_.bytes;
      Tensors tensors =
          tensors_of(facts_.spec, layout_, facts_.rows, set, facts_.use.sample, facts_.use.plane);
      tensors.workspace = workspace_->data();
      if (const Status status =
              kernel.launch(tensors, stream_.handle(), {.overlap_previous = facts_.use.overlap});
          !status) {
        if (status.code == Code::DriverError)
          gpu_.check(static_cast<CUresult>(status.driver_result), "the launch");
        throw Exception({status.code, std::string("the launch was refused: ") + status.message()});
      }
    }
  });
}

double Workbench::replay(const GpuGraph& graph) const {
  if (other_) other_->fill(0);
  return graph.replay_microseconds() / static_cast<double>(facts_.launches);
}

void Workbench::make_room(const Kernel& kernel) {
  if (!workspace_ || workspace_->bytes() < kernel.workspace_bytes())
    workspace_.emplace(gpu_, kernel.workspace_bytes());
  workspace_->fill(0);
}

std::vector<double> Workbench::times(const Kernel& kernel, int replays, double hopeless) {
  make_room(kernel);
  const std::unique_ptr<GpuGraph> launching = graph_of(kernel);
  replay(*launching);  // warms up
  std::vector<double> times = {replay(*launching), replay(*launching)};
  if (const double least = std::min(times[0], times[1]); least > hopeless) return {least};
  while (static_cast<int>(times.size()) < replays) times.push_back(replay(*launching));
  return times;
}

std::vector<BenchReport> Workbench::measure_in_turn(const std::vector<Kernel>& kernels, int replays) {
  std::vector<std::unique_ptr<GpuGraph>> graphs;
  // All take the same workspace, which each leaves as it found it.
  make_room(*std::max_element(kernels.begin(), kernels.end(), [](const Kernel& a, const Kernel& b) {
    return a.workspace_bytes() < b.workspace_bytes();
  }));
  for (const Kernel& kernel : kernels) graphs.push_back(graph_of(kernel));
  std::vector<std::vector<double>> times(kernels.size());
  std::vector<double> copy_times;
  for (int i = -kWarmUps; i < replays; ++i) {
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      const double time = replay(*graphs[k]);
      if (i >= 0) times[k].push_back(time);
    }
    const double time = replay(*copying_);
    if (i >= 0) copy_times.push_back(time);
  }
  std::vector<BenchReport> reports;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    BenchReport& report = reports.emplace_back(facts_);
    report.plan = kernels[k].plan();
    report.replays = replays;
    report.kernel = timing_of(std::move(times[k]));
    report.copy = timing_of(copy_times);
  }
  return reports;
}

BenchReport measure(Service& service, const Gpu& gpu, Copies& copies, const NormSpec& spec, std::int64_t rows,
                    int replays, const MeasuredUse& use, const std::optional<Plan>& plan) {
  check_use(spec, rows, use);
  PrepareOptions options{.device = gpu.ordinal(), .rows_hint = rows, .plan = plan};
  options.grouped_rows = use.sample > 1;
  options.plane = use.plane;
  const Kernel kernel = service.prepare(spec, options).value();
  Workbench bench(gpu, kernel.device(), copies, spec, rows, use);
  return bench.measure(kernel, replays);
}

}  // namespace normjit::cli
