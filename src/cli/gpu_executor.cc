// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <vector>

#include "cli/executor.h"
#include "cli/gpu.h"
#include "cli/measure.h"
#include "normjit/base/stopwatch.h"
#include "normjit/service/packed_tensors.h"

namespace normjit::cli {
namespace {

void check(Status status) {
  if (status.ok()) return;
  const std::string driver =
      status.driver_result != 0 ? " (CUresult " + std::to_string(status.driver_result) + ")" : "";
  throw Exception({status.code, std::string("the launch was refused: ") + status.message() + driver});
}

// A tensor on the device with the bytes of its matrix. Without memory only if the spec does not have it: a
// tensor of no rows has an address too.
class DeviceTensor {
 public:
  DeviceTensor(const Gpu& gpu, const oracle::Matrix& matrix)
      : buffer_(gpu, matrix.data() != nullptr ? std::max<std::size_t>(matrix.bytes(), 16) : 0) {
    buffer_.upload(matrix.data(), matrix.bytes());
  }
  void* data() const { return buffer_.data(); }
  void download(oracle::Matrix& to) const { buffer_.download(to.data(), to.bytes()); }

 private:
  DeviceBuffer buffer_;
};

class GpuExecutor final : public Executor {
 public:
  GpuExecutor(const Options& options, int device, int repeat, const std::optional<Plan>& plan,
              const Uses& uses)
      : options_(options), gpu_(device), repeat_(repeat), plan_(plan), uses_(uses) {}

  Execution execute(oracle::Problem& problem) override;

 private:
  double steady_call(Service& service, const NormSpec& spec, const PrepareOptions& use,
                     const Tensors& tensors, const GpuStream& stream) const;

  const Options options_;
  const Gpu gpu_;
  const int repeat_;
  const std::optional<Plan> plan_;
  const Uses uses_;
};

// The median host time of the one-call form in microseconds; 0 without calls.
double GpuExecutor::steady_call(Service& service, const NormSpec& spec, const PrepareOptions& use,
                                const Tensors& tensors, const GpuStream& stream) const {
  std::vector<double> times;
  for (int i = 0; i <= repeat_; ++i) {
    const Stopwatch call;
    if (use.plan || uses_.grouped_rows)
      check(service.prepare(spec, use).value().launch(tensors, stream.handle()));
    else
      service.layer_norm(spec, tensors, stream.handle()).value();
    if (i > 0) times.push_back(call.microseconds());  // the first one looks at the pointers
    stream.synchronize();
  }
  return times.empty() ? 0 : timing_of(std::move(times)).median;
}

Execution GpuExecutor::execute(oracle::Problem& problem) {
  const NormSpec& spec = problem.spec;
  Execution execution;

  PerOperand<std::optional<DeviceTensor>> on_gpu;
  Tensors tensors = tensors_of(problem);
  for (const OperandRow& row : kOperands) {
    on_gpu[row.operand].emplace(gpu_, problem[row.operand]);
    set_pointer(tensors, row, on_gpu[row.operand]->data());
  }
  for (std::size_t i = 0; i < kOperandCount; ++i)
    if (has(problem.in_place, i))
      set_pointer(tensors, row_of(kOperands[i].in_place), pointer_of(tensors, kOperands[i]));
  const GpuStream stream(gpu_);

  Service service(options_);
  const DeviceProfile profile = service.device(gpu_.ordinal()).value();
  execution.device = gpu_.name() + " (" + profile.text() + ")";
  const PackedTensors packed = pack(spec, tensors);
  check(packed.status);
  // The alignment that all operands allow, as a distance of rows: prepare knows the rows of x and y alone.
  const auto alignment = static_cast<std::int64_t>(problem.rows > 0 ? packed.alignment : Alignment::eight);
  PrepareOptions use{.device = gpu_.ordinal(),
                     .rows_hint = problem.rows,
                     .grouped_rows = uses_.grouped_rows || (problem.rows > 0 && packed.layout.grouped),
                     .batch_invariant = uses_.batch_invariant,
                     .plan = plan_};
  if (spec.channels_first) {
    use.plane = alignment;
  } else {
    use.x_row_stride = alignment;
    use.y_row_stride = (row_elements(row_of(Operand::y), spec) + alignment - 1) / alignment * alignment;
  }
  const Stopwatch prepare;
  const Kernel kernel = service.prepare(spec, use).value();
  execution.prepare_milliseconds = prepare.milliseconds();
  execution.plan = kernel.plan();
  execution.origin = name(kernel.origin());
  execution.workspace_bytes = kernel.workspace_bytes();

  // Enough for the one-call form too, whatever kernel it takes.
  DeviceBuffer workspace(gpu_, std::max(kernel.workspace_bytes(), service.workspace_bytes(spec).value()));
  workspace.fill(0);
  tensors.workspace = workspace.data();

  const Stopwatch first;
  check(kernel.launch(tensors, stream.handle()));
  execution.first_launch_microseconds = first.microseconds();
  stream.synchronize();
  execution.first_result_microseconds = first.microseconds();

  for (const OperandRow& row : kOperands)
    if (row.output) on_gpu[row.operand]->download(problem[row.operand]);

  const Stopwatch second;
  check(service.prepare(spec, use).value().launch(tensors, stream.handle()));
  execution.second_call_microseconds = second.microseconds();
  stream.synchronize();

  execution.steady_call_microseconds = steady_call(service, spec, use, tensors, stream);
  return execution;
}

}  // namespace

std::unique_ptr<Executor> make_gpu_executor(const Options& options, int device, int repeat,
                                            const std::optional<Plan>& plan, const Uses& uses) {
  Options settings = options;
  settings.batch_invariant |= uses.batch_invariant;  // of the one-call form
  return std::make_unique<GpuExecutor>(settings, device, repeat, plan, uses);
}

}  // namespace normjit::cli
