// SPDX-License-Identifier: Apache-2.0
// Files that scripts/embed_files.cmake makes part of the program at build time.
#pragma once

#include <span>
#include <string_view>

namespace normjit {

struct EmbeddedFile {
  std::string_view name;  // "hw.cuh", "schedule/ring.cuh"
  std::string_view text;
};

// The generic kernels: one pack (cache/pack.h), made at build time by scripts/pack_generic.cc; empty if the
// library was built without NVRTC.
std::span<const EmbeddedFile> embedded_packs() noexcept;

// Its bytes.
inline std::string_view embedded_pack() noexcept {
  const auto packs = embedded_packs();
  return packs.empty() ? std::string_view() : packs.front().text;
}

}  // namespace normjit
