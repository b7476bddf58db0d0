// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "normjit/driver/driver.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/temp_directory.h"
#include "verify/check.h"

namespace normjit::testing {
namespace {

constexpr std::size_t kMargin = 512;  // canary bytes on each side; keeps the driver's alignment of 256
constexpr unsigned char kCanary = 0xa5;

bool alive(CUdeviceptr from, std::size_t bytes) {
  std::vector<unsigned char> found(bytes);
  must(CUDA(cuMemcpyDtoH)(found.data(), from, bytes), "cuMemcpyDtoH");
  return std::all_of(found.begin(), found.end(), [](unsigned char byte) { return byte == kCanary; });
}

std::string text(const oracle::Deviation& d) {
  char line[160];
  std::snprintf(line, sizeof line, "row %lld column %lld: %.9g, expected %.9g within %.3g",
                static_cast<long long>(d.row), static_cast<long long>(d.column), d.got, d.expected,
                d.tolerance);
  return line;
}

void expect_close(const char* tensor, const oracle::Comparison& compared) {
  EXPECT_EQ(compared.wrong, 0) << tensor << ": of " << compared.values << " values; first "
                               << text(compared.first_wrong) << "; largest error at "
                               << text(compared.largest);
}

}  // namespace

void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  CUDA(cuGetErrorName)(result, &name);
  throw std::runtime_error(std::string(call) + ": " + (name ? name : "unknown error"));
}

DeviceMemory::DeviceMemory(std::size_t bytes, std::size_t shift) : bytes_(bytes) {
  const std::size_t all = bytes + shift + 2 * kMargin;
  must(CUDA(cuMemAlloc)(&allocation_, all), "cuMemAlloc");
  address_ = allocation_ + kMargin + shift;
  must(CUDA(cuMemsetD8)(address_ - kMargin, kCanary, kMargin), "cuMemsetD8");
  must(CUDA(cuMemsetD8)(address_ + bytes_, kCanary, kMargin), "cuMemsetD8");
}

DeviceMemory::~DeviceMemory() { CUDA(cuMemFree)(allocation_); }

void DeviceMemory::fill(unsigned char byte) {
  if (bytes_ > 0) must(CUDA(cuMemsetD8)(address_, byte, bytes_), "cuMemsetD8");
  must(CUDA(cuCtxSynchronize)(), "cuMemsetD8");  // other streams do not wait for it
}

void DeviceMemory::upload(const void* from, std::size_t bytes) {
  if (bytes > 0) must(CUDA(cuMemcpyHtoD)(address_, from, bytes), "cuMemcpyHtoD");
}

void DeviceMemory::download(void* to, std::size_t bytes, std::size_t at) const {
  if (bytes > 0) must(CUDA(cuMemcpyDtoH)(to, address_ + at, bytes), "cuMemcpyDtoH");
}

bool DeviceMemory::canaries_live() const {
  return alive(address_ - kMargin, kMargin) && alive(address_ + bytes_, kMargin);
}

GpuStream::GpuStream() { must(CUDA(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); }
GpuStream::~GpuStream() { CUDA(cuStreamDestroy)(stream_); }
void GpuStream::synchronize() const { must(CUDA(cuStreamSynchronize)(stream_), "the launch"); }

GpuProblem::GpuProblem(oracle::Problem& problem, const Placement& placement) : problem_(problem) {
  const auto add = [&](std::vector<Tensor>& to, oracle::Matrix& matrix) -> void* {
    if (matrix.columns() == 0) return nullptr;  // not of this spec
    const auto shift = static_cast<std::size_t>(placement.shift) * size_of(matrix.dtype());
    to.push_back({&matrix, std::make_unique<DeviceMemory>(matrix.bytes(), shift)});
    return to.back().memory->data();
  };
  for (const OperandRow& row : kOperands) {
    oracle::Matrix& matrix = problem[row.operand];
    const Operand result = problem.spec.backward ? Operand::dx : Operand::y;
    const bool in_place =
        (row.operand == result && placement.in_place) ||
        ((row.operand == Operand::sum || row.operand == Operand::dgate) && placement.sum_in_place);
    const void* const at =
        in_place ? pointer_of(tensors_, row_of(row.in_place)) : add(row.output ? outputs_ : inputs_, matrix);
    if (matrix.columns() > 0) set(tensors_, row, oracle::rows_at(at, matrix.layout()));
  }
  tensors_.rows = problem.rows;
  tensors_.plane = problem.plane;
  upload();
}

void GpuProblem::upload() {
  for (const std::vector<Tensor>* tensors : {&inputs_, &outputs_})
    for (const Tensor& tensor : *tensors)
      tensor.memory->upload(tensor.matrix->data(), tensor.matrix->bytes());
  must(CUDA(cuCtxSynchronize)(), "the upload");  // streams do not wait for the copies
}

void GpuProblem::fetch() {
  must(CUDA(cuCtxSynchronize)(), "the launch");
  for (const OperandRow& row : kOperands) {
    oracle::Matrix& to = problem_[row.operand];
    for (const Tensor& input : inputs_)
      if (row.output && input.memory->data() == pointer_of(tensors_, row))
        input.memory->download(to.data(), to.bytes());
  }
  for (const Tensor& tensor : outputs_)
    tensor.memory->download(tensor.matrix->data(), tensor.matrix->bytes());
  for (const std::vector<Tensor>* tensors : {&inputs_, &outputs_})
    for (const Tensor& tensor : *tensors) EXPECT_TRUE(tensor.memory->canaries_live());
}

void GpuTest::SetUp() {
  if (const auto count = make_cuda_driver()->device_count(); !count) GTEST_SKIP() << count.error().message;
  must(CUDA(cuDevicePrimaryCtxRetain)(&context_, 0), "cuDevicePrimaryCtxRetain");
  must(CUDA(cuCtxSetCurrent)(context_), "cuCtxSetCurrent");
  static const TempDirectory cache;
  service_.emplace(options(cache.path()));
}

void GpuTest::TearDown() {
  if (context_ == nullptr) return;
  drop_workspace();
  service_.reset();
  CUDA(cuCtxSetCurrent)(nullptr);
  CUDA(cuDevicePrimaryCtxRelease)(0);
}

Options GpuTest::options(const std::string& cache_directory) {
  Options options = Options::from_environment();
  options.cache_directory = cache_directory;
  options.log = [](LogLevel level, std::string_view text) { EXPECT_LT(level, LogLevel::warn) << text; };
  return options;
}

oracle::Problem GpuTest::make(const NormSpec& spec, std::int64_t rows, std::int64_t x_row_stride,
                              std::int64_t y_row_stride, std::int64_t plane) {
  const oracle::RowLayouts layouts{{Operand::x, x_row_stride}, {Operand::y, y_row_stride}};
  oracle::Problem problem = oracle::make_problem(spec, rows, layouts, 0, plane).value();
  oracle::fill(problem, test_seed() + problems_++);
  return problem;
}

void GpuTest::drop_workspace() {
  EXPECT_TRUE(!workspace_ || workspace_->canaries_live()) << "a kernel wrote beside the workspace";
  workspace_.reset();
}

void* GpuTest::workspace(const NormSpec& spec) {
  const std::size_t bytes = service().workspace_bytes(spec).value();
  if (bytes == 0) return nullptr;
  if (!workspace_ || workspace_->bytes() < bytes) {
    drop_workspace();
    workspace_ = std::make_unique<DeviceMemory>(bytes);
    workspace_->fill(0);
    must(CUDA(cuCtxSynchronize)(), "cuMemsetD8");
  }
  return workspace_->data();
}

void GpuTest::run(oracle::Problem& problem, const Placement& placement) {
  const GpuStream stream;
  GpuProblem on_gpu(problem, placement);
  Tensors tensors = on_gpu.tensors();
  tensors.workspace = workspace(problem.spec);
  const auto launched = service().layer_norm(problem.spec, tensors, stream);
  ASSERT_TRUE(launched.ok()) << launched.error().message;
  on_gpu.fetch();
  expect_right(problem);
}

void GpuTest::run(const NormSpec& spec, std::int64_t rows) {
  oracle::Problem problem = make(spec, rows);
  run(problem);
}

void GpuTest::expect_right(const oracle::Problem& problem) {
  SCOPED_TRACE(to_text(problem.spec) + ", " + std::to_string(problem.rows) +
               " rows, NORMJIT_TEST_SEED=" + std::to_string(test_seed()));
  const oracle::CheckReport report = oracle::check(problem, problem.rows);
  for (const OperandRow& row : kOperands)
    if (row.output) expect_close(std::string(row.name).c_str(), report[row.operand]);
  EXPECT_EQ(report.overwritten, 0) << "bytes between the rows of outputs";
}

}  // namespace normjit::testing
