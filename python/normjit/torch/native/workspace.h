// SPDX-License-Identifier: Apache-2.0
// The memory in which the blocks of some kernels meet: zeroed once, one for each launch that may be under
// way.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "tensor.h"

namespace normjit_torch {

inline bool same(const normjit_spec& a, const normjit_spec& b) {
  return a.columns == b.columns && a.epsilon == b.epsilon && a.scale == b.scale && a.input == b.input &&
         a.output == b.output && a.weight == b.weight && a.affine == b.affine &&
         a.activation == b.activation && a.statistics == b.statistics;
}

// How much a spec needs on the current device. Remembered by each thread, as asking takes longer than a
// launch.
inline std::int64_t workspace_bytes(const normjit_spec& spec, int device) {
  struct Known {
    normjit_spec spec;
    int device;
    std::int64_t bytes;
  };
  constexpr std::size_t kRowDepth = 64;
  thread_local std::array<Known, kRowDepth> known{};  // no spec has 0 columns
  const auto mixed = static_cast<std::uint64_t>(spec.columns * 64 + spec.input * 8 + spec.affine + device);
  Known& place = known[(mixed * 0x9E3779B97F4A7C15u) >> 58];
  if (place.device == device && same(place.spec, spec)) return place.bytes;
  std::size_t bytes = 0;
  ask(device, [&](char** error) { return normjit.workspace_bytes(normjit.service, &spec, &bytes, error); });
  place = {spec, device, static_cast<std::int64_t>(bytes)};
  return place.bytes;
}

inline Tensor zeros(std::int64_t bytes, const Facts& beside) {
  Tensor made = make(beside, 1, &bytes, aoti_torch_dtype_uint8());
  require(aoti_torch_zero_(made.get()), "zeroing a workspace");
  return made;
}

// The workspace of a stream, whose launches follow each other; it stays until the process ends. The list only
// grows, so that it needs no lock, which a forked child might find taken.
inline void* workspace_of(int device, void* stream, std::int64_t bytes) {
  struct Held {
    int device;
    void* stream;
    std::int64_t bytes;
    void* memory;
    Held* next;
  };
  static std::atomic<Held*> first{nullptr};
  constexpr std::int64_t kLeast = 256 << 10;  // so that one serves every plan of today
  for (const Held* held = first.load(); held; held = held->next)
    if (held->device == device && held->stream == stream && held->bytes >= bytes) return held->memory;
  bytes = std::max(bytes, kLeast);
  auto* held =
      new Held{device, stream, bytes, lasting_zeros(static_cast<std::size_t>(bytes), stream), first.load()};
  while (!first.compare_exchange_weak(held->next, held)) {
  }
  return held->memory;
}

}  // namespace normjit_torch
