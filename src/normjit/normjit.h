// SPDX-License-Identifier: Apache-2.0
// normjit: LayerNorm kernels for NVIDIA GPUs, generated at run time. This header includes the whole public
// API.
#pragma once

#include "normjit/arch.h"
#include "normjit/device.h"
#include "normjit/plan.h"
#include "normjit/result.h"
#include "normjit/service.h"
#include "normjit/spec.h"
