// Whatever can execute a problem. `normjit run` makes the data, hands it to an executor, checks and writes
// the result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/problem.h"
#include "normjit/plan.h"
#include "normjit/service.h"

namespace normjit::cli {

// How an execution went. Times are the caller's, on the host.
struct Execution {
  std::string device;  // "NVIDIA H200 (sm_90, 132 SMs, ...)"
  Plan plan;
  std::string origin;  // of the kernel: "disk", "memory" or "compiled"
  std::size_t workspace_bytes = 0;
  double prepare_milliseconds = 0;  // Service::prepare in this fresh process: find or compile, load, set up
  double first_launch_microseconds = 0;  // the first Kernel::launch, until it returns
  double first_result_microseconds = 0;  // the same, until the GPU has finished
  double second_call_microseconds = 0;   // prepare and launch again, until launch returns
  double steady_call_microseconds = 0;   // Service::layer_norm, the median of later calls
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Computes the outputs of the problem, which come poisoned, from its inputs. Throws normjit::Exception.
  virtual Execution execute(Problem& problem) = 0;
};

// Executes on a GPU of this machine. `repeat` is the number of steady calls, 0 for none. Throws where there
// is no such GPU, so that nobody makes data for nothing.
std::unique_ptr<Executor> make_gpu_executor(const Options& options, int device, int repeat);

}  // namespace normjit::cli
