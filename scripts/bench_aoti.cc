// SPDX-License-Identifier: Apache-2.0
// Host times of calls in C++ without Python, in microseconds: of the C interface, of the operators in
// libnormjit_torch.so by PyTorch's dispatcher, and of the program of examples/torch/aoti, also in a CUDA
// graph. Medians of 50 rounds of 50 calls. It is built as that example is, with the headers of normjit and
// CUDA.
//
//   bench_aoti libnormjit.so libnormjit_torch.so model.pt2
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <normjit/c_api.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kRows = 10, kColumns = 256;
constexpr char kSpec[] = "rmsnorm/cols=256/f32/add/sum";

template <class Call>
void print_time(const char* what, const Call& call) {
  constexpr int kRounds = 50, kCalls = 50;
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  for (int i = 0; i < 1000; ++i) call();
  stream.synchronize();
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    times.push_back(took.count() / kCalls);
    stream.synchronize();
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  std::printf("%-60s %6.2f us\n", what, times[kRounds / 2]);
  std::fflush(stdout);
}

void* opened(const char* path) {
  void* const library = dlopen(path, RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

// normjit by its C interface.
class Normjit {
 public:
  explicit Normjit(void* library) : norm_(reinterpret_cast<decltype(norm_)>(dlsym(library, "normjit_norm"))) {
    char* error = nullptr;
    const auto create =
        reinterpret_cast<decltype(&normjit_service_create)>(dlsym(library, "normjit_service_create"));
    const auto parse = reinterpret_cast<decltype(&normjit_spec_parse)>(dlsym(library, "normjit_spec_parse"));
    if (create(nullptr, &service_, &error) != NORMJIT_OK || parse(kSpec, &spec_, &error) != NORMJIT_OK)
      throw std::runtime_error(error);
  }

  void norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& y, const at::Tensor& sum,
            void* stream) const {
    normjit_tensors tensors = NORMJIT_TENSORS_INIT;
    tensors.rows = kRows;
    tensors.x.pointer = x.data_ptr();
    tensors.residual.pointer = residual.data_ptr();
    tensors.y.pointer = y.data_ptr();
    tensors.sum.pointer = sum.data_ptr();
    char* error = nullptr;
    if (norm_(service_, &spec_, &tensors, stream, nullptr, &error) != NORMJIT_OK)
      throw std::runtime_error(error);
  }

 private:
  decltype(&normjit_norm) norm_;
  normjit_service* service_ = nullptr;
  normjit_spec spec_ = NORMJIT_SPEC_INIT;
};

std::vector<c10::IValue> called(const c10::OperatorHandle& op, std::vector<c10::IValue> stack) {
  op.callBoxed(stack);
  return stack;
}

void check(const char* what, const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted) {
  bool same = found.size() == wanted.size();
  for (std::size_t i = 0; same && i < found.size(); ++i) same = at::equal(found[i], wanted[i]);
  if (!same) throw std::runtime_error(std::string(what) + ": other results");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr, "bench_aoti libnormjit.so libnormjit_torch.so model.pt2\n");
    return 2;
  }
  const Normjit normjit(opened(argv[1]));
  if (const char* const why =
          reinterpret_cast<const char* (*)()>(dlsym(opened(argv[2]), "normjit_torch_error"))())
    throw std::runtime_error(why);

  const c10::InferenceMode inference;
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard on_stream(stream);
  const at::Tensor x = at::randn({kRows, kColumns}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  const at::Tensor residual = at::randn_like(x);
  const at::Tensor y = at::empty_like(x), sum = at::empty_like(x);

  print_time("C interface: RMSNorm of a sum", [&] { normjit.norm(x, residual, y, sum, stream.stream()); });
  print_time("at::empty_like, twice", [&] { at::empty_like(x), at::empty_like(x); });
  print_time("C interface with two new tensors",
             [&] { normjit.norm(x, residual, at::empty_like(x), at::empty_like(x), stream.stream()); });

  const c10::OperatorHandle norm = c10::Dispatcher::singleton().findSchemaOrThrow("normjit::norm", "");
  const c10::IValue none;
  const auto call_norm = [&] {
    return called(norm, {std::string(kSpec), x, none, none, none, residual, none, none, none, none, none,
                         none, none, none, none, false});
  };
  check("normjit::norm", call_norm().at(0).toTensorVector(), {y, sum});
  print_time("normjit::norm, the same by the dispatcher", call_norm);
  const c10::OperatorHandle layer_norm =
      c10::Dispatcher::singleton().findSchemaOrThrow("normjit::layer_norm", "");
  print_time("normjit::layer_norm by the dispatcher", [&] {
    return called(layer_norm, {x, 1, none, none, 1e-5, 1, 1.0, none});
  });
  print_time("at::layer_norm", [&] { at::layer_norm(x, {kColumns}); });
  print_time("at::rms_norm of x + residual", [&] { at::rms_norm(x + residual, {kColumns}, {}, 1e-5); });

  torch::inductor::AOTIModelPackageLoader program(argv[3]);
  const std::vector<at::Tensor> wanted = program.run({x}, stream.stream());
  print_time("the program: LayerNorm with GELU, RMSNorm of a sum",
             [&] { program.run({x}, stream.stream()); });

  torch::inductor::AOTIModelPackageLoader capturable(argv[3], "model", /*run_single_threaded=*/true);
  capturable.run({x}, stream.stream());  // makes everything ready
  stream.synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const std::vector<at::Tensor> found = capturable.run({x}, stream.stream());
  graph.capture_end();
  for (const at::Tensor& each : found) each.zero_();
  graph.replay();
  check("the program in a CUDA graph", found, wanted);
  print_time("the program in a CUDA graph", [&] { graph.replay(); });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
