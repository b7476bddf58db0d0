// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <vector>

#include "cli/executor.h"
#include "cli/gpu.h"
#include "cli/measure.h"
#include "normjit/base/stopwatch.h"

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
      : buffer_(gpu, matrix.columns() > 0 ? std::max<std::size_t>(matrix.bytes(), 16) : 0) {
    buffer_.upload(matrix.data(), matrix.bytes());
  }
  void* data() const { return buffer_.data(); }
  void download(oracle::Matrix& to) const { buffer_.download(to.data(), to.bytes()); }

 private:
  DeviceBuffer buffer_;
};

class GpuExecutor final : public Executor {
 public:
  GpuExecutor(const Options& options, int device, int repeat, const std::optional<Plan>& plan)
      : options_(options), gpu_(device), repeat_(repeat), plan_(plan) {}

  Execution execute(oracle::Problem& problem) override;

 private:
  double steady_call(Service& service, const NormSpec& spec, const PrepareOptions& use,
                     const Tensors& tensors, const GpuStream& stream) const;

  const Options options_;
  const Gpu gpu_;
  const int repeat_;
  const std::optional<Plan> plan_;
};

// The median host time of the one-call form in microseconds; 0 without calls.
double GpuExecutor::steady_call(Service& service, const NormSpec& spec, const PrepareOptions& use,
                                const Tensors& tensors, const GpuStream& stream) const {
  std::vector<double> times;
  for (int i = 0; i <= repeat_; ++i) {
    const Stopwatch call;
    if (use.plan)
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
    const oracle::Matrix& matrix = problem[row.operand];
    on_gpu[row.operand].emplace(gpu_, matrix);
    set(tensors, row, on_gpu[row.operand]->data(), matrix.row_stride());
  }
  const GpuStream stream(gpu_);

  Service service(options_);
  const DeviceProfile profile = service.device(gpu_.ordinal()).value();
  execution.device = gpu_.name() + " (" + profile.text() + ")";
  const PrepareOptions use{.device = gpu_.ordinal(),
                           .rows_hint = problem.rows,
                           .x_row_stride = tensors.x.outer,
                           .y_row_stride = tensors.y.outer,
                           .plan = plan_};
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
                                            const std::optional<Plan>& plan) {
  return std::make_unique<GpuExecutor>(options, device, repeat, plan);
}

}  // namespace normjit::cli
