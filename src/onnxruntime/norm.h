// SPDX-License-Identifier: Apache-2.0
// The kernel of a node normjit::Norm.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "normjit/c_api.h"
#include "onnxruntime/connection.h"
#include "onnxruntime/operands.h"
#include "onnxruntime/ort_api.h"

namespace normjit::onnxruntime {

// Any number of threads may run one kernel at once: nothing of it changes after it was made.
class Norm {
 public:
  // Reads the node, compares its types with the spec and, on a GPU, makes the library's kernel ready.
  // has_sizes: the runtime has Api::sizes_of. Throws a Failure.
  Norm(const OrtApi* api, const OrtKernelInfo* info, bool on_gpu, bool has_sizes);

  // Launches on the stream of the run. Allocates nothing on the device but the results, and never waits for
  // it, once a run with such shapes has been. Throws a Failure.
  void run(OrtKernelContext* context) const;

  const Api& api() const { return api_; }
  const std::string& name() const { return name_; }  // of the node

 private:
  // x of a run, and how many of its first dimensions count rows.
  struct Rows {
    Shape shape;
    std::size_t row_dimensions;
  };

  void require(OrtStatus* status) const;
  void read_spec(const OrtKernelInfo* info);
  void compare_types(const OrtKernelInfo* info);
  void check_constants(const OrtKernelInfo* info);
  void prepare(const OrtKernelInfo* info, int device);
  int device_of(const OrtKernelInfo* info) const;
  Shape static_shape_of_x(const OrtKernelInfo* info) const;

  Shape shape_of(const OrtTensorTypeAndShapeInfo* tensor) const;
  Shape shape_of(const OrtValue* value) const;
  const OrtValue* input(const OrtKernelContext* context, std::size_t index) const;
  const void* data_of(const OrtValue* value) const;
  Rows rows_of(const Shape& x) const;
  void check_elements(const Input& input, const Shape& shape) const;
  void place_rows(const Input& input, const Shape& shape, const Rows& x, normjit_tensors& to) const;
  void place_input(const OrtKernelContext* context, std::size_t index, const Rows& x,
                   normjit_tensors& to) const;
  void place_output(OrtKernelContext* context, std::size_t index, const Rows& x, normjit_tensors& to) const;
  void launch(const OrtKernelContext* context, normjit_tensors& tensors) const;

  const Api api_;
  const bool has_sizes_;
  std::string name_;
  std::string text_;  // the spec's
  normjit_spec spec_ = NORMJIT_SPEC_INIT;
  std::vector<Input> inputs_;
  std::vector<bool> is_checked_;  // for each input: it is an initializer of the right size
  std::vector<Output> outputs_;
  int device_ = -1;  // -1: the CPU
  std::size_t workspace_bytes_ = 0;
};

}  // namespace normjit::onnxruntime
