// SPDX-License-Identifier: Apache-2.0
// The same kernel texts on the GPU and on the CPU: random ones, with the same plans, on the same numbers.
//
//   NORMJIT_TEST_SEED=N   the same kernels again; without it, others every time
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>
#include <tuple>

#include "normjit/base/run_on_threads.h"
#include "normjit/driver/driver.h"
#include "normjit/service/default_compiler.h"
#include "normjit/service/prepared.h"
#include "tests/support/compare_with_reference.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"
#include "tests/support/host_kernels.h"
#include "verify/check.h"
#include "verify/element.h"
#include "verify/gradients.h"

namespace normjit::testing {
namespace {

constexpr std::size_t kSpecs = 200;
constexpr std::size_t kBatch = 25;  // kernels a host compile

// One case, as it goes through both.
struct Pair {
  KernelCase c;
  Source source;
  Result<Binary> binary = Error{};
  simt::HostKernel on_host;
};

// Whether two results may come from the same exact value: both lie within `tolerance` of it.
bool close(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::fabs(a - b) <= 2 * tolerance;
}

struct Comparison {
  std::int64_t values = 0, equal = 0;
  double largest_share = 0;  // of the tolerance
  std::string wrong;
};

std::string message(const KernelCase& c, const char* output, std::int64_t row, std::size_t column, double gpu,
                    double cpu) {
  return to_text(c) + ": " + output + "[" + std::to_string(row) + ", " + std::to_string(column) + "] is " +
         std::to_string(gpu) + " on the GPU and " + std::to_string(cpu) + " on the CPU";
}

// One value of both, which may lie `tolerance` from the exact one.
void count(const KernelCase& c, const char* output, std::int64_t row, std::size_t column, double gpu,
           double host, double tolerance, Comparison& to) {
  ++to.values;
  to.equal += gpu == host || (std::isnan(gpu) && std::isnan(host)) ? 1 : 0;
  if (gpu != host && tolerance > 0)
    to.largest_share = std::max(to.largest_share, std::fabs(gpu - host) / tolerance);
  if (!close(gpu, host, tolerance) && to.wrong.empty()) to.wrong = message(c, output, row, column, gpu, host);
}

// dx, dgate, dweight and dbias. Where the exact value is not finite, the order of additions decides what
// there is.
void compare_gradients(const KernelCase& c, const oracle::Problem& gpu, const oracle::Problem& host,
                       Comparison& to) {
  const auto columns = static_cast<std::size_t>(c.spec.columns);
  std::vector<double> a(columns), b(columns);
  std::vector<oracle::GradientValue> expected(columns), dgate(columns);
  const auto compare_all = [&](const char* output, DType dtype, std::int64_t row) {
    for (std::size_t i = 0; i < columns; ++i)
      if (std::isfinite(expected[i].value) && std::isfinite(a[i]) && std::isfinite(b[i]))
        count(c, output, row, i, a[i], b[i], oracle::tolerance(c.spec, dtype, expected[i]), to);
  };
  for (std::int64_t row = 0; row < c.rows && writes_dx(c.spec); ++row) {
    const oracle::RowInputs inputs = oracle::inputs_of(gpu, row);
    const bool has_dgate = row_of(Operand::dgate).present(c.spec);
    oracle::reference_dx(c.spec, inputs, oracle::row_gradients(c.spec, inputs), 0, c.spec.columns,
                         expected.data(), has_dgate ? dgate.data() : nullptr);
    const auto compare_matrix = [&](Operand output, const char* name) {
      const DType type = row_of(output).dtype(c.spec);
      oracle::load(type, gpu.row(output, row), 0, c.spec.columns, gpu.step(), a.data());
      oracle::load(type, host.row(output, row), 0, c.spec.columns, host.step(), b.data());
      compare_all(name, type, row);
    };
    compare_matrix(Operand::dx, "dx");
    if (!has_dgate) continue;
    expected.swap(dgate);
    compare_matrix(Operand::dgate, "dgate");
    expected.swap(dgate);
  }
  const oracle::ColumnGradients sums = oracle::column_gradients(gpu);
  for (const auto& [output, name, values] : {std::tuple(Operand::dweight, "dweight", &sums.weight),
                                             std::tuple(Operand::dbias, "dbias", &sums.bias)}) {
    if (values->empty()) continue;
    expected = *values;
    oracle::load(c.spec.gradient_type, gpu[output].data(), 0, c.spec.columns, 1, a.data());
    oracle::load(c.spec.gradient_type, host[output].data(), 0, c.spec.columns, 1, b.data());
    compare_all(name, c.spec.gradient_type, 0);
  }
}

void compare(const KernelCase& c, const oracle::Problem& gpu, const oracle::Problem& host, Comparison& to) {
  if (c.spec.backward) return compare_gradients(c, gpu, host, to);
  const auto columns = static_cast<std::size_t>(c.spec.columns);
  std::vector<double> a(columns), b(columns), sums(columns), errors(columns);
  std::vector<oracle::ReferenceValue> expected(columns);
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const oracle::RowInputs inputs = oracle::inputs_of(gpu, row);
    if (c.spec.sum) {  // one addition and one rounding leave no choice, but a product with a gate does
      const DType type = sum_type(c.spec);
      oracle::load(type, gpu.row(Operand::sum, row), 0, c.spec.columns, gpu.step(), a.data());
      oracle::load(type, host.row(Operand::sum, row), 0, c.spec.columns, gpu.step(), b.data());
      oracle::reference_sums(c.spec, inputs, 0, c.spec.columns, sums.data());
      oracle::reference_sum_errors(c.spec, inputs, 0, c.spec.columns, sums.data(), errors.data());
      for (std::size_t i = 0; i < columns; ++i) {
        const double unit = errors[i] > 0 ? oracle::unit_in_last_place(sum_type(c.spec), sums[i]) : 0;
        if (!close(a[i], b[i], unit + errors[i]) && to.wrong.empty())
          to.wrong = message(c, "sum", row, i, a[i], b[i]);
      }
    }
    oracle::load(c.spec.output, gpu.row(Operand::y, row), 0, c.spec.columns, gpu.step(), a.data());
    oracle::load(c.spec.output, host.row(Operand::y, row), 0, c.spec.columns, gpu.step(), b.data());
    oracle::reference_values(c.spec, inputs, oracle::row_statistics(c.spec, inputs), 0, c.spec.columns,
                             expected.data());
    for (std::size_t i = 0; i < columns; ++i) {
      // Of 8 bits a step, where results lie on both sides of a tie.
      const double tolerance = is_narrow(c.spec.output) && std::isfinite(a[i])
                                   ? oracle::unit_in_last_place(c.spec.output, a[i])
                                   : oracle::tolerance(c.spec, expected[i]);
      count(c, "y", row, i, a[i], b[i], tolerance, to);
    }
  }
}

class RandomKernelsGpu : public GpuTest {
 protected:
  // Cases that this GPU can run: their own numbers of multiprocessors only decide how many blocks share the
  // work.
  std::vector<Pair> make_cases(const DeviceProfile& gpu) {
    std::vector<Pair> pairs;
    // Data whose result rounding alone does not decide.
    constexpr InputKind kInputs[] = {InputKind::unit, InputKind::nan_row, InputKind::inf_row,
                                     InputKind::large_mean};
    for (std::uint64_t i = 0; pairs.size() < kSpecs; ++i) {
      const std::uint64_t seed = test_seed() * 1'000'003 + i;
      KernelCase c = i % 2 == 0 ? random_case(seed)
                                : random_case(seed, kAllStrategies[i / 2 % std::size(kAllStrategies)]);
      const int multiprocessors = c.device.sm_count;
      c.device = gpu;
      c.device.sm_count = multiprocessors;
      c.inputs = kInputs[i % 4];
      // The variance of one column is 0. Without epsilon the result is 0 / 0, or, where a compiler fuses the
      // product with a gate into the difference from the mean, the rounding error of that product over
      // itself.
      const bool undefined = c.spec.norm == Norm::layer && c.spec.columns == 1 && c.spec.epsilon == 0;
      if (legal(c) && c.rows > 0 && !undefined) pairs.push_back({.c = c, .source = {}, .on_host = {}});
    }
    return pairs;
  }

  oracle::Problem run_on_gpu(const Pair& pair, Driver& driver) {
    const KernelCase& c = pair.c;
    oracle::Problem problem = make_problem(c).value();
    LaunchShape shape = launch_shape(c.plan, c.spec);
    shape.overlap_previous = c.overlaps;
    const auto loaded = driver.load(pair.binary->code, pair.source.kernel, 0, shape);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    GpuProblem on_gpu(problem, {.shift = c.x_shift, .in_place = c.in_place, .sum_in_place = c.sum_in_place});
    DeviceMemory workspace(workspace_bytes(c.plan, c.spec, c.device));
    workspace.fill(0);
    must(CUDA(cuCtxSynchronize)(), "the upload");
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace.data();
    OperandBlock block = block_of(c.plan, c.spec, tensors);
    RuntimeSpec runtime_spec(c.spec);
    void* arguments[] = {&block, &runtime_spec};
    const GpuStream stream;
    must(static_cast<CUresult>((*loaded)->launch(blocks_of(c), shape, stream, arguments)),
         "cuLaunchKernelEx");
    stream.synchronize();
    on_gpu.fetch();
    EXPECT_TRUE(workspace.canaries_live());
    return problem;
  }
};

TEST_F(RandomKernelsGpu, MatchTheExecutor) {
  const auto host_compiler = simt::HostCompiler::find();
  if (host_compiler.code() == Code::NoCompiler) GTEST_SKIP() << host_compiler.error().message;
  const auto driver = make_cuda_driver();
  std::vector<Pair> pairs = make_cases(driver->profile(0).value());

  const auto nvrtc = make_default_compiler(Options::from_environment(), driver);
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::string trouble;
  run_on_threads(static_cast<int>(std::thread::hardware_concurrency()), [&] {
    for (std::size_t first; (first = next.fetch_add(kBatch)) < pairs.size();) {
      const auto batch = std::span(pairs).subspan(first, std::min(kBatch, pairs.size() - first));
      std::vector<KernelCase> cases;
      for (const Pair& pair : batch) cases.push_back(pair.c);
      const auto texts = sources(cases);
      const auto kernels = compile_batch(cases);
      if (!texts || !kernels) {
        const std::lock_guard lock(mutex);
        trouble = texts ? kernels.error().message : texts.error().message;
        return;
      }
      for (std::size_t i = 0; i < batch.size(); ++i) {
        batch[i].source = (*texts)[i];
        batch[i].on_host = (*kernels)[i];
        batch[i].binary = nvrtc->compile(batch[i].source,
                                         target_of(batch[i].c.plan, batch[i].c.spec, batch[i].c.device.arch));
      }
    }
  });
  ASSERT_EQ(trouble, "");

  Comparison all;
  for (const Pair& pair : pairs) {
    ASSERT_TRUE(pair.binary) << pair.binary.error().message;
    const oracle::Problem on_gpu = run_on_gpu(pair, *driver);
    oracle::Problem on_host = make_problem(pair.c).value();
    const auto fault = run_once(pair.c, on_host, pair.on_host, 2 * pair.c.seed + 1);
    EXPECT_FALSE(fault) << to_text(pair.c) << ": " << *fault;
    const auto wrong = first_wrong(on_gpu);
    EXPECT_FALSE(wrong) << to_text(pair.c) << " on the GPU: " << *wrong;
    compare(pair.c, on_gpu, on_host, all);
  }
  EXPECT_EQ(all.wrong, "");
  std::printf(
      "%zu kernels, %lld values on both: %.2f %% equal bit for bit, the largest difference %.2g of the "
      "tolerance\n",
      pairs.size(), static_cast<long long>(all.values),
      100.0 * static_cast<double>(all.equal) / static_cast<double>(all.values), all.largest_share);
}

}  // namespace
}  // namespace normjit::testing
