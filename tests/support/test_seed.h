// SPDX-License-Identifier: Apache-2.0
// One seed for all random data of a test program, and how much of it is tried.
#pragma once

#include <cstdint>

namespace normjit::testing {

// NORMJIT_TEST_SEED, else a new one in every process. Printed when first asked for.
std::uint64_t test_seed();

// NORMJIT_TEST_PART, N: of what has no kept verdict, and of random cases, one of N is tried. Else 1: all.
std::uint64_t test_part();

}  // namespace normjit::testing
