// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_seed.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace normjit::testing {

std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("NORMJIT_TEST_SEED");
    const std::uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("NORMJIT_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return seed;
  }();
  return seed;
}

std::uint64_t test_part() {
  const char* const given = std::getenv("NORMJIT_TEST_PART");
  return given == nullptr ? 1 : std::max(std::strtoull(given, nullptr, 10), 1ULL);
}

}  // namespace normjit::testing
