// SPDX-License-Identifier: Apache-2.0
// Random legal specs, for tests of properties that every spec must have.
//
// A test makes each spec from its own small seed and names it, so that a failure can be repeated alone:
//
//   for (std::uint64_t seed = 0; seed < 1000; ++seed) {
//     SCOPED_TRACE(testing::Message() << "seed " << seed);
//     Random random(seed);
//     const NormSpec spec = random_spec(random);
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>

#include "normjit/spec.h"

namespace normjit {

// Random numbers that are the same with every standard library (the distributions of <random> are not).
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t bits() { return engine_(); }
  // 0 .. bound - 1, as good as uniform for bounds far below 2^64.
  std::uint64_t below(std::uint64_t bound) { return bits() % bound; }
  // first .. last.
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(last - first) + 1));
  }
  bool coin() { return below(2) == 0; }
  template <class T, std::size_t n>
  const T& one_of(const T (&values)[n]) {
    return values[below(n)];
  }
  template <class T, std::size_t n>
  const T& one_of(const std::array<T, n>& values) {
    return values[below(n)];
  }

 private:
  std::mt19937_64 engine_;
};

struct SpecRange {
  std::int64_t most_columns = std::numeric_limits<std::int32_t>::max();
  // Epsilon and scale as real layers have them, for tests that compute; else anything legal, down to
  // subnormal numbers and up to the largest.
  bool tame = false;
  // Also the root mean square, and what is added, rounded and written besides x and y.
  bool channels_first = false;  // with every_norm, sometimes
  bool every_norm = false;
  bool backward = false;  // with every_norm, sometimes
};

// A legal spec, not always canonical. Every value of every field, mixed dtypes, and columns that are one,
// odd, powers of two and their neighbours, and huge all come up often.
NormSpec random_spec(Random& random, const SpecRange& range = {});

// A number of columns as random_spec draws it: small, round, nearly round and any size are equally likely.
std::int64_t random_columns(Random& random, std::int64_t most);

// Sets channels_first, and drops what it excludes.
void make_channels_first(NormSpec& spec);

// Makes it a valid backward spec: of the same norm, columns, types of 16 bits or more, weight and bias,
// activation and scale, with gradients of any type, dsum or not, a gate, a modulation or none, and any
// gradients needed.
void make_backward(NormSpec& spec, Random& random);

}  // namespace normjit
