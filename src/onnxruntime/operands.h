// SPDX-License-Identifier: Apache-2.0
// The operands of a spec as inputs and outputs of a node: those that the spec has, in the order of
// docs/algebra.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "normjit/c_api.h"
#include "onnxruntime/ort_api.h"

namespace normjit::onnxruntime {

// The sizes of a tensor, without memory of its own: a run has several.
class Shape {
 public:
  static constexpr std::size_t kMostDimensions = 16;

  Shape() = default;
  Shape(const std::int64_t* sizes, std::size_t rank) : rank_(rank) { std::copy_n(sizes, rank, sizes_); }

  std::size_t rank() const { return rank_; }
  const std::int64_t* begin() const { return sizes_; }
  const std::int64_t* end() const { return sizes_ + rank_; }
  std::int64_t operator[](std::size_t i) const { return sizes_[i]; }
  std::int64_t& operator[](std::size_t i) { return sizes_[i]; }
  bool operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  std::int64_t sizes_[kMostDimensions] = {};
  std::size_t rank_ = 0;
};

std::int64_t elements_of(const Shape& shape);
std::string text_of(const Shape& shape);  // "[2, 3]"

enum class Extent {
  rows,    // a row for each row of x; an input may be broadcast to x's shape
  vector,  // as many elements as a row
  one,     // one element
  row,     // one element for each row: x's shape with 1 for each dimension of a row
  blocks,  // scales of blocks: as normjit_block_scale_shape says
};

struct Input {
  const char* name;
  Extent extent;
  std::int32_t type;                                    // of normjit
  normjit_input_rows normjit_tensors::*rows = nullptr;  // where a tensor goes: one of these two
  const void* normjit_tensors::*pointer = nullptr;
};

struct Output {
  const char* name;
  Extent extent;
  std::int32_t type;
  normjit_output_rows normjit_tensors::*rows = nullptr;
  void* normjit_tensors::*pointer = nullptr;
};

// Of a canonical spec that is not a backward one.
std::vector<Input> inputs_of(const normjit_spec& spec);
std::vector<Output> outputs_of(const normjit_spec& spec);

// The ONNX type of a normjit dtype. kUndefined if ONNX Runtime has no tensors of it.
Element element_of(std::int32_t type);
std::string name_of(int element);  // "float16"

// How many of x's first dimensions count rows: the others are a row. Nothing if no last dimensions have
// `columns` elements.
std::optional<std::size_t> row_dimensions(const Shape& x, std::int64_t columns);

// Where the rows of a contiguous tensor are that is broadcast to x, as ONNX broadcasts. Nothing if it cannot
// be broadcast, or two strides do not lead to all rows. The pointer is left null.
std::optional<normjit_input_rows> broadcast_rows(const Shape& own, const Shape& x,
                                                 std::size_t row_dimensions);

}  // namespace normjit::onnxruntime
