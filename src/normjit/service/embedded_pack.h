// SPDX-License-Identifier: Apache-2.0
// The generic kernels inside the library.
#pragma once

#include <span>
#include <string_view>

#include "normjit/base/embedded_file.h"

namespace normjit {

// One pack (cache/pack.h), made at build time by scripts/pack_generic.cc; empty if the library was built
// without NVRTC.
std::span<const EmbeddedFile> embedded_packs() noexcept;

// Its bytes.
inline std::string_view embedded_pack() noexcept {
  const auto packs = embedded_packs();
  return packs.empty() ? std::string_view() : packs.front().text;
}

}  // namespace normjit
