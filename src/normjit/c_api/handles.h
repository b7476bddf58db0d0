// SPDX-License-Identifier: Apache-2.0
// What the handles of the C interface are.
#pragma once

#include <utility>

#include "normjit/c_api.h"
#include "normjit/service.h"

struct normjit_service {
  // `seams` are for tests, which make their handles by themselves.
  explicit normjit_service(normjit::Options with, normjit::Seams seams = {})
      : options(with), service(std::move(with), std::move(seams)) {}

  const normjit::Options options;
  normjit::Service service;
};

struct normjit_kernel {
  normjit::Kernel kernel;
};
