// SPDX-License-Identifier: Apache-2.0
// A runtime's life with normjit: prepare all kernels when the model is loaded, freeze, capture what a request
// does as CUDA graphs, replay them on two streams. The results are compared with a float64 reference on the
// CPU; the times with those of other kernels in normjit's place.
//
//   example_transformer [BATCH [LAYERS]]     for the times; 4 and 4 unless given
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "model.h"
#include "reference.h"

namespace {

constexpr int kRequests = 20;  // that a time is the mean of

struct Named {
  Norms norms;
  const char* name;
};
constexpr Named kNorms[] = {{Norms::normjit_fused, "normjit, GELU and scale fused"},
                            {Norms::normjit_split, "normjit, then GELU and scale"},
                            {Norms::plain, "plain kernels"}};

// Random values that this dtype has exactly.
class Random {
 public:
  Random(Dtype dtype) : dtype_(dtype) {}
  HostTensor operator()(std::size_t count, float mean, float deviation) {
    std::normal_distribution<float> values(mean, deviation);
    HostTensor tensor(count);
    for (float& value : tensor) value = values(generator_);
    return from_device_bytes(dtype_, to_device_bytes(dtype_, tensor));
  }
  HostTensor matrix(std::size_t inputs, std::size_t outputs) {
    return (*this)(inputs * outputs, 0, 1 / std::sqrt(static_cast<float>(inputs)));
  }

 private:
  const Dtype dtype_;
  std::mt19937 generator_{1};
};

Weights<HostTensor> random_weights(Random& random, const Shape& shape) {
  const std::size_t width = static_cast<std::size_t>(shape.width);
  Weights<HostTensor> weights;
  for (int i = 0; i < shape.layers; ++i)
    weights.layers.push_back({random(width, 1, 0.1f), random(width, 0, 0.1f), random.matrix(width, 3 * width),
                              random.matrix(width, width), random(width, 1, 0.1f), random(width, 0, 0.1f),
                              random.matrix(width, 4 * width), random.matrix(4 * width, width)});
  for (int i = 0; i < shape.steps; ++i)
    weights.steps.push_back({random.matrix(i == 0 ? width : kChannels, 8 * kChannels),
                             random(kChannels, 1, 0.1f), random(kChannels, 0, 0.1f)});
  return weights;
}

// A lane with its graphs for one kind of normalizations.
class Request {
 public:
  Request(const Model& model, Norms norms) : model_(model), lane_(model) {
    // Once without a graph: cuBLAS chooses and loads its kernels on first use, which a capture might not
    // allow.
    lane_.enqueue_encoder(norms);
    lane_.enqueue_decoder(norms);
    synchronize();
    encoder_ = std::make_unique<Graph>(lane_.stream(), [&] { lane_.enqueue_encoder(norms); });
    decoder_ = std::make_unique<Graph>(lane_.stream(), [&] { lane_.enqueue_decoder(norms); });
  }

  void upload(const HostTensor& tokens) {
    const auto bytes = to_device_bytes(model_.dtype(), tokens);
    lane_.tokens().upload(bytes.data(), bytes.size());
    must(CUDA(cuCtxSynchronize)(), "the upload");  // the stream does not wait for it
  }
  void launch() const {
    encoder_->launch();
    decoder_->launch();
  }
  void synchronize() const { must(CUDA(cuStreamSynchronize)(lane_.stream()), "a request"); }
  HostTensor volume() const {
    std::vector<std::uint8_t> bytes(lane_.volume().bytes());
    lane_.volume().download(bytes.data(), bytes.size());
    return from_device_bytes(model_.dtype(), bytes);
  }

  CUstream stream() const { return lane_.stream(); }
  const Graph& encoder() const { return *encoder_; }
  const Graph& decoder() const { return *decoder_; }

 private:
  const Model& model_;
  Lane lane_;
  std::unique_ptr<Graph> encoder_, decoder_;
};

// The largest difference to the reference, as a part of its largest value.
double deviation(const HostTensor& found, const std::vector<double>& expected) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double here = std::abs(found[i] - expected[i]);
    difference = here <= difference ? difference : here;  // NaN counts
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference / largest;
}

// A small model, all kinds of normalizations, each on two streams at once with tokens of its own.
bool is_right(normjit::Service& service, Dtype dtype, double tolerance) {
  const Shape shape{.batch = 2, .side = 2, .width = 128, .heads = 2, .layers = 2, .steps = 2};
  Random random(dtype);
  const Weights<HostTensor> weights = random_weights(random, shape);
  const Model model(service, dtype, shape, weights);
  HostTensor tokens[2];
  std::vector<double> expected[2];
  for (int i = 0; i < 2; ++i) {
    tokens[i] = random(static_cast<std::size_t>(shape.tokens()) * shape.width, 0, 1);
    expected[i] = reference_decoder(shape, weights, reference_encoder(shape, weights, tokens[i]));
  }
  bool right = true;
  for (const auto& [norms, name] : kNorms) {
    Request requests[] = {Request(model, norms), Request(model, norms)};
    double worst = 0;
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 2; ++i) requests[i].upload(tokens[i]);
      for (const Request& request : requests) request.launch();
      for (int i = 0; i < 2; ++i) {
        requests[i].synchronize();
        const double here = deviation(requests[i].volume(), expected[i]);
        worst = here <= worst ? worst : here;
      }
    }
    const bool good = worst <= tolerance;
    std::printf("  %-4s  %-30s  %.1e  %s\n", dtype == Dtype::f32 ? "f32" : "bf16", name, worst,
                good ? "right" : "WRONG");
    right = right && good;
  }
  return right;
}

// Microseconds a request, while each of these lanes runs one request behind the other on its own stream.
double microseconds_each(const std::vector<const Request*>& lanes) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kRequests; ++i)
    for (const Request* lane : lanes) lane->launch();
  for (const Request* lane : lanes) lane->synchronize();
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  return time.count() / kRequests / static_cast<double>(lanes.size());
}

void print_times(normjit::Service& service, const Shape& shape) {
  Random random(Dtype::bf16);
  const Model model(service, Dtype::bf16, shape, random_weights(random, shape));
  service.freeze();  // from here on nothing is compiled: what is missing would be an error
  const normjit::Counters loaded = service.counters();
  std::printf(
      "bf16, %d tokens of width %d, %d layers, %d voxels of %d channels; microseconds, of encoder and "
      "decoder the median of graph replays, else the mean of %d requests\n",
      shape.tokens(), shape.width, shape.layers, shape.voxels(shape.steps), kChannels, kRequests);
  std::printf("  %-30s  %8s  %8s  %17s  %17s\n", "", "encoder", "decoder", "a request of many",
              "on two streams");
  const HostTensor tokens = random(static_cast<std::size_t>(shape.tokens()) * shape.width, 0, 1);
  for (const auto& [norms, name] : kNorms) {
    Request one(model, norms), other(model, norms);
    one.upload(tokens);
    other.upload(tokens);
    const double encoder = median_microseconds(one.stream(), [&] { one.encoder().launch(); });
    const double decoder = median_microseconds(one.stream(), [&] { one.decoder().launch(); });
    microseconds_each({&one, &other});  // warm-up
    std::printf("  %-30s  %8.0f  %8.0f  %17.0f  %17.0f\n", name, encoder, decoder, microseconds_each({&one}),
                microseconds_each({&one, &other}));
  }
  const normjit::Counters now = service.counters();
  std::printf("since freeze(): %llu compiles, %llu loads\n",
              static_cast<unsigned long long>(now.compiles - loaded.compiles),
              static_cast<unsigned long long>(now.loads - loaded.loads));
}

}  // namespace

int main(int argc, char** argv) {
  const Gpu gpu;
  if (!gpu.present()) {
    std::puts("transformer needs an NVIDIA GPU and its driver; here is none.");
    return 77;
  }
  if (!Cublas::is_here()) {
    std::puts("transformer needs cuBLAS 12 or 13 (libcublas.so); here is none.");
    return 77;
  }
  normjit::Service service;  // one for the process: it serves all models, streams and devices
  if (const normjit::Environment found = service.environment(); !found.compiler_error.empty()) {
    std::printf("transformer compiles a few kernels of its own, and finds no NVRTC: %s\n",
                found.compiler_error.c_str());
    return 77;
  }
  std::puts("largest difference to float64, as a part of the largest value; two streams at once");
  const bool f32_is_right = is_right(service, Dtype::f32, 1e-4);
  const bool bf16_is_right = is_right(service, Dtype::bf16, 5e-2);
  const int batch = argc > 1 ? std::atoi(argv[1]) : 4, layers = argc > 2 ? std::atoi(argv[2]) : 4;
  print_times(service, {.batch = std::max(batch, 1),
                        .side = 8,
                        .width = 768,
                        .heads = 12,
                        .layers = std::max(layers, 1),
                        .steps = 3});
  return f32_is_right && bf16_is_right ? 0 : 1;
}
