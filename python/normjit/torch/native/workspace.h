// SPDX-License-Identifier: Apache-2.0
// The memory in which the blocks of some kernels meet: one for each launch that may be under way. It is
// zeroed once, and in a CUDA graph before each launch.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "tensor.h"

namespace normjit_torch {

// How much a spec needs on the current device. Remembered by each thread, as asking takes longer than a
// launch. (Bytes between members may tell equal specs apart, which only costs a question.)
inline std::int64_t workspace_bytes(normjit_service* service, const normjit_spec& spec, int device) {
  struct Known {
    normjit_service* service;
    normjit_spec spec;
    int device;
    std::int64_t bytes;
  };
  using Words = std::array<std::uint64_t, sizeof(normjit_spec) / sizeof(std::uint64_t)>;
  static_assert(sizeof(Words) == sizeof spec);
  Words words;
  std::memcpy(&words, &spec, sizeof words);
  std::uint64_t mixed = static_cast<std::uint64_t>(device);
  for (const std::uint64_t word : words) mixed = (mixed ^ word) * 0x9E3779B97F4A7C15u;
  constexpr int kLog2Places = 6;
  thread_local std::array<Known, 1 << kLog2Places> known{};  // no service is null
  Known& place = known[mixed >> (64 - kLog2Places)];
  if (place.service == service && place.device == device && std::memcmp(&place.spec, &spec, sizeof spec) == 0)
    return place.bytes;
  std::size_t bytes = 0;
  ask(device, [&](char** error) { return normjit.workspace_bytes(service, &spec, &bytes, error); });
  place = {service, spec, device, static_cast<std::int64_t>(bytes)};
  return place.bytes;
}

// A workspace for one launch. The part that must be zero is, by a node of its own in front of that launch.
inline Tensor workspace_of_launch(std::int64_t bytes, const Facts& beside, void* stream) {
  Tensor made = make(beside, 1, &bytes, aoti_torch_dtype_uint8());
  zero(made.data(), std::min(static_cast<std::size_t>(bytes), NORMJIT_WORKSPACE_ZEROED), stream);
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
