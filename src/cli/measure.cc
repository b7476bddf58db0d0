#include "cli/measure.h"

#include <algorithm>

#include "cli/problem.h"

namespace normjit::cli {
namespace {

constexpr std::size_t kAlignment = 256;        // of each tensor, as cuMemAlloc gives it
constexpr std::int64_t kMostLaunches = 16384;  // in a graph; some 20 ms of the smallest kernels
constexpr std::int64_t kFewestLaunches = 8;    // so that starting the graph weighs little
constexpr int kWarmUps = 3;
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;  // far beyond any memory, far below overflow

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// One input set from the host, repeated over the whole buffer.
void fill_sets(DeviceBuffer& buffer, const SetLayout& layout, const LayerNormSpec& spec, std::int64_t rows) {
  Problem problem = make_problem(spec, rows, kContiguous, kContiguous).value();
  fill(problem, /*seed=*/1);
  buffer.upload(problem.x.data(), problem.x.bytes(), layout.x);
  buffer.upload(problem.weight.data(), problem.weight.bytes(), layout.weight);
  buffer.upload(problem.bias.data(), problem.bias.bytes(), layout.bias);
  buffer.repeat(layout.bytes);
}

Tensors tensors_of(const LayerNormSpec& spec, const SetLayout& layout, std::int64_t rows, std::byte* set) {
  Tensors tensors{.x = set + layout.x, .y = set + layout.y, .rows = rows};
  if (spec.affine != Affine::none) tensors.weight = set + layout.weight;
  if (spec.affine == Affine::weight_bias) tensors.bias = set + layout.bias;
  if (spec.statistics) tensors.mean = set + layout.mean;
  if (spec.statistics) tensors.rstd = set + layout.rstd;
  return tensors;
}

}  // namespace

std::int64_t bytes_moved(const LayerNormSpec& spec, std::int64_t rows) noexcept {
  const int vectors = spec.affine == Affine::none ? 0 : spec.affine == Affine::weight ? 1 : 2;
  std::int64_t bytes = rows * spec.columns * (size_of(spec.input) + size_of(spec.output));
  bytes += vectors * spec.columns * size_of(spec.weight);
  if (spec.statistics) bytes += 2 * rows * size_of(compute_type(spec));
  return bytes;
}

SetLayout layout_of(const LayerNormSpec& spec, std::int64_t rows) noexcept {
  SetLayout layout;
  const auto place = [&](std::size_t& at, std::int64_t elements, DType dtype) {
    at = layout.bytes;
    layout.bytes += aligned(static_cast<std::size_t>(elements) * size_of(dtype));
  };
  place(layout.x, rows * spec.columns, spec.input);
  place(layout.y, rows * spec.columns, spec.output);
  if (spec.affine != Affine::none) place(layout.weight, spec.columns, spec.weight);
  if (spec.affine == Affine::weight_bias) place(layout.bias, spec.columns, spec.weight);
  if (spec.statistics) place(layout.mean, rows, compute_type(spec));
  if (spec.statistics) place(layout.rstd, rows, compute_type(spec));
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

BenchReport measure(Service& service, const Gpu& gpu, const CopyKernel& copy, const LayerNormSpec& spec,
                    std::int64_t rows, int replays, const std::optional<Plan>& plan) {
  if (rows > kMostElements / spec.columns) {
    throw Exception({Code::BadArgument, "--rows " + std::to_string(rows) + " is more than any GPU can hold"});
  }
  const DeviceProfile profile = service.device(gpu.ordinal()).value();
  const Kernel kernel =
      service.prepare(spec, {.device = gpu.ordinal(), .rows_hint = rows, .plan = plan}).value();

  BenchReport report;
  report.spec = spec;
  report.rows = rows;
  report.plan = kernel.plan();
  report.replays = replays;
  report.device = gpu.name() + " (" + profile.text() + ")";
  report.bytes = bytes_moved(spec, rows);

  // The copy has buffers of its own: it reads one half of the bytes and writes the other.
  const SetLayout layout = layout_of(spec, rows);
  const std::size_t half = std::max<std::size_t>(16, static_cast<std::size_t>(report.bytes) / 2 / 16 * 16);
  const std::size_t copy_set = 2 * aligned(half);
  const std::size_t memory = gpu.free_memory() / 10 * 9;
  report.buffer_sets = rotation_sets(std::max(layout.bytes, copy_set), profile.l2_bytes, memory / 2);
  report.launches = report.buffer_sets * ((kFewestLaunches + report.buffer_sets - 1) / report.buffer_sets);

  DeviceBuffer sets(gpu, layout.bytes * static_cast<std::size_t>(report.buffer_sets));
  DeviceBuffer copies(gpu, copy_set * static_cast<std::size_t>(report.buffer_sets));
  DeviceBuffer workspace(gpu, kernel.workspace_bytes());
  fill_sets(sets, layout, spec, rows);
  copies.fill(0x3c);
  workspace.fill(0);

  const GpuStream stream(gpu);
  const GpuGraph kernels(gpu, stream, [&] {
    for (std::int64_t i = 0; i < report.launches; ++i) {
      auto* set = static_cast<std::byte*>(sets.data()) + (i % report.buffer_sets) * layout.bytes;
      Tensors tensors = tensors_of(spec, layout, rows, set);
      tensors.workspace = workspace.data();
      if (const Status status = kernel.launch(tensors, stream.handle()); !status) {
        throw Exception({status.code, std::string("the launch was refused: ") + status.message()});
      }
    }
  });
  const GpuGraph copying(gpu, stream, [&] {
    for (std::int64_t i = 0; i < report.launches; ++i) {
      auto* set = static_cast<std::byte*>(copies.data()) + (i % report.buffer_sets) * copy_set;
      copy.launch(set, set + copy_set / 2, half, stream.handle());
    }
  });

  std::vector<double> kernel_times, copy_times;
  for (int i = -kWarmUps; i < replays; ++i) {
    const double kernel_time = kernels.replay_microseconds() / static_cast<double>(report.launches);
    const double copy_time = copying.replay_microseconds() / static_cast<double>(report.launches);
    if (i < 0) continue;
    kernel_times.push_back(kernel_time);
    copy_times.push_back(copy_time);
  }
  report.kernel = timing_of(std::move(kernel_times));
  report.copy = timing_of(std::move(copy_times));
  return report;
}

}  // namespace normjit::cli
