// SPDX-License-Identifier: Apache-2.0
#include "tests/support/conformance_kernels.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "normjit/base/text.h"
#include "normjit/codegen/templates.h"
#include "verify/element.h"

namespace normjit::testing {
namespace {

bool is_nan(Comparison::Type type, std::uint64_t bits) {
  switch (type) {
    case Comparison::Type::e4m3:
      return std::isnan(oracle::e4m3_to_float(static_cast<std::uint8_t>(bits)));
    case Comparison::Type::e5m2:
      return std::isnan(oracle::e5m2_to_float(static_cast<std::uint8_t>(bits)));
    case Comparison::Type::f16:
      return std::isnan(oracle::f16_to_float(static_cast<std::uint16_t>(bits)));
    case Comparison::Type::bf16:
      return std::isnan(oracle::bf16_to_float(static_cast<std::uint16_t>(bits)));
    case Comparison::Type::f32:
      return std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    case Comparison::Type::f64:
      return std::isnan(std::bit_cast<double>(bits));
    case Comparison::Type::bits:
      break;
  }
  return false;
}

// The normal f32 numbers between zero and this one, negative below zero.
std::int64_t place(std::uint64_t bits) {
  const auto size = static_cast<std::int64_t>(bits & 0x7fffffffU);
  const std::int64_t place = size < 0x00800000 ? 0 : size - 0x007fffff;
  return (bits & 0x80000000U) != 0 ? -place : place;
}

bool agree(const Comparison& comparison, std::uint64_t a, std::uint64_t b) {
  if (a == b) return true;
  if (comparison.type == Comparison::Type::bits) return false;
  const bool a_is_nan = is_nan(comparison.type, a), b_is_nan = is_nan(comparison.type, b);
  if (a_is_nan || b_is_nan) return a_is_nan && b_is_nan;
  return comparison.ulps > 0 && std::llabs(place(a) - place(b)) <= comparison.ulps;
}

std::size_t element_bytes(Comparison::Type type) {
  switch (type) {
    case Comparison::Type::f16:
    case Comparison::Type::bf16:
      return 2;
    case Comparison::Type::f32:
      return 4;
    case Comparison::Type::f64:
      return 8;
    case Comparison::Type::e4m3:
    case Comparison::Type::e5m2:
    case Comparison::Type::bits:
      break;
  }
  return 1;
}

}  // namespace

const std::vector<ConformanceKernel>& conformance_kernels() {
  static const std::vector<ConformanceKernel> kernels = [] {
    std::vector<ConformanceKernel> all;
    for (const auto part :
         {memory_kernels, lanes_kernels, barriers_kernels, copies_kernels, clusters_kernels, numbers_kernels})
      for (ConformanceKernel& kernel : part()) all.push_back(std::move(kernel));
    return all;
  }();
  return kernels;
}

Arch target_of(const ConformanceKernel& kernel, Arch arch) {
  if (kernel.own_target) arch.suffix = 'a';
  return arch;
}

Source conformance_source(const ConformanceKernel& kernel, Arch arch) {
  return {.text = concat({"namespace normjit {\n"
                          "using Input = ",
                          kernel.input, ";\nusing Output = ", kernel.output,
                          ";\n"
                          "constexpr int kArch = ",
                          shortest(arch.number),
                          ";\n"
                          "constexpr int kBlocksPerSm = 1;\n"
                          "struct Operands {\n"
                          "  long long rows;\n"
                          "  unsigned char* workspace;\n"
                          "  const Input* x;\n"
                          "  Output* y;\n"
                          "};\n"
                          "}  // namespace normjit\n"
                          "#line 1 \"hw.cuh\"\n",
                          find_template("", "hw.cuh").value().view(), "#line 1 \"", kernel.kernel, ".cu\"\n",
                          kernel.text}),
          .kernel = kernel.kernel,
          .description = "the conformance kernel " + kernel.name};
}

std::string difference(const ConformanceKernel& kernel, const Bytes& expected, const Bytes& actual) {
  if (expected.size() != actual.size())
    return concat({shortest(actual.size()), " bytes instead of ", shortest(expected.size())});
  const std::size_t bytes = element_bytes(kernel.comparison.type);
  std::size_t differing = 0;
  std::string first;
  for (std::size_t at = 0; at < expected.size(); at += bytes) {
    std::uint64_t a = 0, b = 0;
    std::memcpy(&a, &expected[at], bytes);
    std::memcpy(&b, &actual[at], bytes);
    if (agree(kernel.comparison, a, b)) continue;
    if (differing++ > 0) continue;
    char text[100];
    std::snprintf(text, sizeof text, "element %zu is 0x%0*llx instead of 0x%0*llx", at / bytes,
                  static_cast<int>(2 * bytes), static_cast<unsigned long long>(b),
                  static_cast<int>(2 * bytes), static_cast<unsigned long long>(a));
    first = text;
  }
  if (differing == 0) return "";
  return concat({kernel.name, ": ", shortest(differing), " of ", shortest(expected.size() / bytes),
                 " elements are wrong: ", first});
}

Bytes random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> words((bytes + 7) / 8);
  for (std::uint64_t& word : words) word = random();
  Bytes all = bytes_of(words);
  all.resize(bytes);
  return all;
}

}  // namespace normjit::testing
