// SPDX-License-Identifier: Apache-2.0
// A scope in which the executor's own code runs on a fiber: a signal must not end the launch there.
#pragma once

#include "simt/execution.h"

namespace normjit::simt {

class Inside {
 public:
  explicit Inside(Execution& execution) : execution_(execution), before_(execution.in_kernel_) {
    execution_.in_kernel_ = 0;
  }
  ~Inside() { execution_.in_kernel_ = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Execution& execution_;
  const std::sig_atomic_t before_;
};

}  // namespace normjit::simt
