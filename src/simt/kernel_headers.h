// SPDX-License-Identifier: Apache-2.0
// The headers that precede a kernel text on the CPU: kernel/, embedded at build time.
#pragma once

#include <span>

#include "normjit/base/embedded_file.h"

namespace normjit::simt {

std::span<const EmbeddedFile> kernel_headers() noexcept;

}  // namespace normjit::simt
