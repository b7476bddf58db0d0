// SPDX-License-Identifier: Apache-2.0
#include "cli/copy.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "normjit/service/default_compiler.h"
#include "normjit/spec/operands.h"

namespace normjit::cli {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr int kWidest = 16;  // bytes of a vector

// `body` for each vector i that a thread moves of a stream. Its vectors k are a block's width apart, so that
// the accesses of a warp are contiguous.
std::string loop(int parts, const std::string& body) {
  const std::string of = std::to_string(parts);
  return "#pragma unroll\n    for (int k = 0; k < " + of +
         " * kVectors; ++k) {\n      const unsigned long long i = " + of +
         " * first + k * kThreads + threadIdx.x;\n      if (i < " + of + " * vectors) " + body + "\n    }\n";
}

}  // namespace

int CopyStreams::parts() const {
  return std::accumulate(writes.begin(), writes.end(), std::accumulate(reads.begin(), reads.end(), 0));
}

CopyStreams copy_streams(const NormSpec& spec, std::int64_t sample) {
  CopyStreams streams;
  for (const OperandRow& row : kOperands)
    if (row.present(spec) && is_matrix(row, spec) && !(sample > 1 && may_be_of_samples(row)))
      (row.output ? streams.writes : streams.reads)
          .push_back(2 * size_of(row.dtype(spec)) / columns_in(row.dtype(spec)));
  int smallest = *std::min_element(streams.reads.begin(), streams.reads.end());
  for (const int size : streams.writes) smallest = std::min(smallest, size);
  for (int& size : streams.reads) size /= smallest;
  for (int& size : streams.writes) size /= smallest;
  return streams;
}

std::string to_text(const CopyShape& shape) {
  std::string text = "t=" + std::to_string(shape.threads) + " bytes=" + std::to_string(shape.vector_bytes) +
                     " vectors=" + std::to_string(shape.vectors);
  return shape.blocks_per_sm > 0 ? text + " b=" + std::to_string(shape.blocks_per_sm) : text;
}

CopyLayout::CopyLayout(const CopyStreams& streams, std::int64_t all)
    : smallest(std::max<std::int64_t>(kWidest, all / streams.parts() / kWidest * kWidest)) {
  const auto place = [&](int parts) {
    at.push_back(bytes);
    const auto size = static_cast<std::size_t>(smallest) * static_cast<std::size_t>(parts);
    bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::for_each(streams.reads.begin(), streams.reads.end(), place);
  std::for_each(streams.writes.begin(), streams.writes.end(), place);
}

std::string copy_source(const CopyStreams& streams, const CopyShape& shape, bool overlap) {
  const auto count = [](std::size_t n) { return std::to_string(n); };
  const std::size_t reads = streams.reads.size(), writes = streams.writes.size();
  const bool wide = shape.vector_bytes == 16;
  std::string text = std::string("using Vector = ") + (wide ? "uint4" : "uint2") + ";\n";
  text += "constexpr int kThreads = " + std::to_string(shape.threads) +
          ", kVectors = " + std::to_string(shape.vectors) + ";\n";
  text += "struct Streams { Vector* at[" + count(reads + writes) + "]; };\n";
  text += "__device__ void add(Vector& to, const Vector& v) { to.x += v.x; to.y += v.y;";
  text += wide ? " to.z += v.z; to.w += v.w; }\n" : " }\n";
  text += "extern \"C\" __global__ void __launch_bounds__(kThreads)\n";
  text += "normjit_copy(Streams streams, unsigned long long vectors) {\n";
  // The next launch may begin as soon as the one before this has finished; it waits for this one here.
  if (overlap) {
    text +=
        "  asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
        "  asm volatile(\"griddepcontrol.launch_dependents;\");\n";
  }
  text += "  constexpr unsigned long long kChunk = kThreads * kVectors;\n";
  text +=
      "  for (unsigned long long first = blockIdx.x * kChunk; first < vectors;\n"
      "       first += gridDim.x * kChunk) {\n";
  for (std::size_t r = 0; r < reads; ++r) {
    text += "    Vector r" + count(r) + "[" + std::to_string(streams.reads[r]) + " * kVectors] = {};\n";
    text += loop(streams.reads[r], "r" + count(r) + "[k] = __ldcs(streams.at[" + count(r) + "] + i);");
  }
  // Everything is added to the first kVectors of r0.
  for (std::size_t r = 0; r < reads; ++r) {
    const std::string begin = r == 0 ? "kVectors" : "0";
    text += "#pragma unroll\n    for (int k = " + begin + "; k < " + std::to_string(streams.reads[r]) +
            " * kVectors; ++k) add(r0[k % kVectors], r" + count(r) + "[k]);\n";
  }
  for (std::size_t w = 0; w < writes; ++w)
    text += loop(streams.writes[w], "__stcs(streams.at[" + count(reads + w) + "] + i, r0[k % kVectors]);");
  // Where a norm writes no matrix, only sums over rows (need=dw), something must depend on the loads all the
  // same, or they would be left out.
  if (writes == 0)
    text +=
        "#pragma unroll\n    for (int k = 1; k < kVectors; ++k) add(r0[0], r0[k]);\n"
        "    if (r0[0].x == 0x9e3779b9u && r0[0].y == 0x7f4a7c15u) __stcs(streams.at[0] + first, r0[0]);\n";
  return text + "  }\n}\n";
}

void CopyKernel::launch(void* part, const CopyLayout& layout, Stream stream) const {
  std::array<void*, kOperandCount> at{};
  for (std::size_t i = 0; i < layout.at.size(); ++i) at[i] = static_cast<std::byte*>(part) + layout.at[i];
  unsigned long long vectors = static_cast<unsigned long long>(layout.smallest / shape_.vector_bytes);
  void* arguments[] = {at.data(), &vectors};
  const auto chunk = static_cast<unsigned long long>(shape_.threads) * shape_.vectors;
  unsigned long long blocks = (vectors + chunk - 1) / chunk;
  if (shape_.blocks_per_sm > 0)
    blocks = std::min<unsigned long long>(blocks, static_cast<unsigned>(shape_.blocks_per_sm * sm_count_));
  const LaunchShape launch{.threads = shape_.threads, .overlap_previous = overlap_};
  const int result = kernel_->launch(static_cast<std::uint32_t>(blocks), launch, stream, arguments);
  gpu_.check(static_cast<CUresult>(result), "the launch of the copy kernel");
}

Copies::Copies(const Options& options, const Gpu& gpu, const DeviceProfile& device)
    : options_(options), gpu_(gpu), device_(device) {}

const std::vector<CopyKernel>& Copies::of(const CopyStreams& streams, bool overlap) {
  overlap = overlap && device_.arch.number >= 90;
  const auto [found, added] = kernels_.try_emplace({streams, overlap});
  if (!added && !found->second.empty()) return found->second;
  const std::shared_ptr<Driver> driver = make_cuda_driver();
  const std::shared_ptr<Compiler> compiler = make_default_compiler(options_, driver);
  std::vector<CopyKernel> kernels;
  for (const CopyShape& shape : kCopyShapes) {
    const Source source{.text = copy_source(streams, shape, overlap),
                        .kernel = "normjit_copy",
                        .description = "the copy kernel of bench"};
    const Binary binary = compiler->compile(source, device_.arch).value();
    const LaunchShape launch{.threads = shape.threads, .overlap_previous = overlap};
    kernels.emplace_back(gpu_, driver->load(binary.code, source.kernel, gpu_.ordinal(), launch).value(),
                         shape, device_.sm_count, overlap);
  }
  return found->second = std::move(kernels);
}

}  // namespace normjit::cli
