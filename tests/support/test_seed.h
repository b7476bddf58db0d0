// SPDX-License-Identifier: Apache-2.0
// One seed for all random data of a test program.
#pragma once

#include <cstdint>

namespace normjit::testing {

// NORMJIT_TEST_SEED, else a new one in every process. Printed when first asked for.
std::uint64_t test_seed();

}  // namespace normjit::testing
