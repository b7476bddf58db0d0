// SPDX-License-Identifier: Apache-2.0
// Tensors through PyTorch's C interface: what they are, how they lie in memory, and new ones.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "connection.h"

namespace normjit_torch {

// Values on the stack of a boxed kernel: a number or handle in its lowest bytes; an optional one in memory
// that the kernel releases, or null. (PyTorch's own functions for that have another name in each version.)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
template <class T>
StableIValue to_stable(T value) {
  StableIValue stable = 0;
  std::memcpy(&stable, &value, sizeof value);
  return stable;
}
template <class T>
T from_stable(StableIValue stable) {
  T value;
  std::memcpy(&value, &stable, sizeof value);
  return value;
}
template <class T>
T take_optional(StableIValue stable, T otherwise) {
  const std::unique_ptr<StableIValue> held(from_stable<StableIValue*>(stable));
  return held ? from_stable<T>(*held) : otherwise;
}
// As PyTorch takes an optional result, which it releases.
inline StableIValue to_optional() { return to_stable<StableIValue*>(nullptr); }
template <class T>
StableIValue to_optional(T value) {
  return to_stable(new StableIValue(to_stable(value)));
}

// Owns a tensor's handle. (torch::stable::Tensor shares it, for one more allocation each.)
class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle = nullptr) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }

  explicit operator bool() const { return handle_ != nullptr; }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
  void* data() const {
    void* data = nullptr;
    require(aoti_torch_get_data_ptr(handle_, &data), "asking for the data");
    return data;
  }

 private:
  AtenTensorHandle handle_;
};

// What is known of a tensor, for as long as it lives.
struct Facts {
  std::int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  std::int32_t dtype = 0, device_type = 0, device = 0;
};

inline Facts facts_of(const Tensor& tensor) {
  Facts f;
  const AtenTensorHandle t = tensor.get();
  if (aoti_torch_get_dim(t, &f.dims) || aoti_torch_get_sizes(t, &f.sizes) ||
      aoti_torch_get_strides(t, &f.strides) || aoti_torch_get_dtype(t, &f.dtype) ||
      aoti_torch_get_device_type(t, &f.device_type) || aoti_torch_get_device_index(t, &f.device))
    fail("normjit: an argument is no strided tensor");
  return f;
}

// "[2, 3]"
inline std::string text_of(const std::int64_t* sizes, std::int64_t dims) {
  std::string text = "[";
  for (std::int64_t i = 0; i < dims; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

// An uninitialized contiguous tensor beside another, with these sizes.
inline Tensor make(const Facts& beside, std::int64_t dims, const std::int64_t* sizes, std::int32_t dtype) {
  constexpr std::int64_t kUsual = 8;
  std::array<std::int64_t, kUsual> few;
  std::vector<std::int64_t> many(dims > kUsual ? dims : 0);
  std::int64_t* strides = dims > kUsual ? many.data() : few.data();
  for (std::int64_t i = dims - 1, stride = 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(sizes[i], 1);
  }
  AtenTensorHandle made = nullptr;
  if (aoti_torch_empty_strided(dims, sizes, strides, dtype, beside.device_type, beside.device, &made))
    fail(reason_of_pytorch
             ? reason_of_pytorch()
             : "CUDA out of memory. normjit got none for a result or a copy; PyTorch has written the "
               "reason to stderr.");
  return Tensor(made);
}

// A contiguous copy of a tensor, which expands to these sizes. (Memory is taken by itself, as of other
// operators it is not known whether they failed for the lack of it.)
inline Tensor copy_of(const Tensor& tensor, const Facts& f, std::int64_t dims, const std::int64_t* sizes) {
  Tensor made = make(f, dims, sizes, f.dtype);
  require(aoti_torch_copy_(made.get(), tensor.get(), /*non_blocking=*/0), "copying an input");
  return made;
}

}  // namespace normjit_torch
