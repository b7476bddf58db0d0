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
  // Reads the node, compares its types with the spec and, on a GPU, makes the library's kernel ready. Throws
  // a Failure.
  Norm(const OrtApi* api, const OrtKernelInfo* info, bool on_gpu);

  // Launches on the stream of the run. Allocates nothing on the device but the results, and never waits for
  // it, once a run with such shapes has been. Throws a Failure.
  void run(OrtKernelContext* context) const;

  const Api& api() const { return api_; }
  const std::string& name() const { return name_; }  // of the node

 private:
  struct Value {
    const void* data;
    Shape shape;
  };

  void require(OrtStatus* status) const;
  void read_spec(const OrtKernelInfo* info);
  void compare_types(const OrtKernelInfo* info);
  void prepare(const OrtKernelInfo* info, int device);
  int device_of(const OrtKernelInfo* info) const;

  Shape shape_of(const OrtTensorTypeAndShapeInfo* tensor) const;
  Value value_of(const OrtKernelContext* context, std::size_t index) const;
  void place(const Input& input, const Value& value, const Shape& x, normjit_tensors& to) const;
  Shape shape_of(const Output& output, const Shape& x, std::int64_t rows) const;

  const Api api_;
  std::string name_;
  std::string text_;  // the spec's
  normjit_spec spec_ = NORMJIT_SPEC_INIT;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  int device_ = -1;  // -1: the CPU
  std::size_t workspace_bytes_ = 0;
};

}  // namespace normjit::onnxruntime
