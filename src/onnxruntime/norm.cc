// SPDX-License-Identifier: Apache-2.0
#include "onnxruntime/norm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

namespace normjit::onnxruntime {
namespace {

// Tests have a libnormjit that computes on the CPU.
bool may_compute_on_cpu() {
  const char* const asked = std::getenv("NORMJIT_ONNXRUNTIME_CPU");
  return asked != nullptr && std::strcmp(asked, "1") == 0;
}

std::int64_t plane_of(const Shape& x) {
  std::int64_t plane = 1;
  for (std::size_t i = 2; i < x.size(); ++i) plane *= x[i];
  return plane;
}

template <class Operand>
std::string names_of(const std::vector<Operand>& operands) {
  std::string names;
  for (const Operand& operand : operands) {
    if (!names.empty()) names += ", ";
    names += operand.name;
  }
  return names;
}

// A text that ONNX Runtime copies in two calls: read(text, size).
template <class Read>
std::string text_from(const Read& read) {
  std::size_t size = 0;
  read(nullptr, &size);
  std::string text(size, 0);
  if (size == 0) return text;
  read(text.data(), &size);
  text.resize(size - 1);  // without the last 0
  return text;
}

}  // namespace

void Norm::require(OrtStatus* status) const {
  if (status == nullptr) return;
  const std::string text = api_.message_of(status);
  api_.release(status);
  throw Failure(kFail, text);
}

Norm::Norm(const OrtApi* api, const OrtKernelInfo* info, bool on_gpu) : api_(api) {
  name_ = text_from([&](char* text, std::size_t* size) { require(api_.node_name(info, text, size)); });
  try {
    if (!on_gpu && !may_compute_on_cpu())
      throw Failure(
          kNotImplemented,
          "it is on the CPU, and normjit's kernels are for NVIDIA GPUs. Put CUDAExecutionProvider first "
          "in the providers of the session, or run the model as it was before python -m normjit.onnx.");
    read_spec(info);
    compare_types(info);
    const int device = device_of(info);
    if (on_gpu) prepare(info, device);
  } catch (const Failure& failure) {
    throw Failure(failure.code, "normjit::Norm (node \"" + name_ + "\"): " + failure.what());
  }
}

void Norm::read_spec(const OrtKernelInfo* info) {
  std::size_t size = 0;
  if (OrtStatus* const status = api_.string_attribute(info, "spec", nullptr, &size); status != nullptr) {
    api_.release(status);
    throw Failure(
        kInvalidGraph,
        "it has no attribute spec, a string such as \"layernorm/cols=768/f16/wb\" (docs/algebra.md)");
  }
  text_ = text_from(
      [&](char* text, std::size_t* room) { require(api_.string_attribute(info, "spec", text, room)); });
  char* error = nullptr;
  const normjit_status status = library().spec_parse(text_.c_str(), &spec_, &error);
  if (status != NORMJIT_OK) {
    const std::string why = error != nullptr ? error : library().status_message(status);
    library().free(error);
    throw Failure(kInvalidGraph, why);
  }
  if (spec_.backward)
    throw Failure(kInvalidGraph, text_ + " computes gradients; this operator is for inference");
  inputs_ = inputs_of(spec_);
  outputs_ = outputs_of(spec_);
}

void Norm::compare_types(const OrtKernelInfo* info) {
  const auto compare = [&](const auto& operands, const char* what, std::size_t count, auto type_at) {
    if (count != operands.size())
      throw Failure(kInvalidGraph, text_ + " has the " + what + "s " + names_of(operands) +
                                       ", and the node has " + std::to_string(count) + " " + what + "s");
    for (std::size_t i = 0; i < operands.size(); ++i) {
      OrtTypeInfo* type = nullptr;
      require(type_at(i, &type));
      const auto release = [this](OrtTypeInfo* given) { api_.release(given); };
      const std::unique_ptr<OrtTypeInfo, decltype(release)> owner(type, release);
      const OrtTensorTypeAndShapeInfo* tensor = nullptr;
      require(api_.tensor_of(type, &tensor));
      int element = kUndefined;
      if (tensor != nullptr) require(api_.element_of(tensor, &element));
      const Element wanted = element_of(operands[i].type);
      const std::string name = std::string(what) + " " + operands[i].name;
      if (wanted == kUndefined)
        throw Failure(kInvalidGraph, text_ + ": the " + name + " has no tensor type in ONNX Runtime");
      if (element != wanted)
        throw Failure(kInvalidGraph, text_ + ": the " + name + " must be of " + name_of(wanted) +
                                         ", not of " + name_of(element));
    }
  };
  std::size_t inputs = 0, outputs = 0;
  require(api_.input_count(info, &inputs));
  require(api_.output_count(info, &outputs));
  compare(inputs_, "input", inputs,
          [&](std::size_t i, OrtTypeInfo** type) { return api_.input_type(info, i, type); });
  compare(outputs_, "output", outputs,
          [&](std::size_t i, OrtTypeInfo** type) { return api_.output_type(info, i, type); });
}

int Norm::device_of(const OrtKernelInfo* info) const {
  OrtAllocator* allocator = nullptr;
  require(api_.allocator_of(info, &allocator));
  const auto release = [this](OrtAllocator* given) { api_.release(given); };
  const std::unique_ptr<OrtAllocator, decltype(release)> owner(allocator, release);
  const OrtMemoryInfo* memory = nullptr;
  require(api_.memory_of(allocator, &memory));
  int device = 0;
  require(api_.device_of(memory, &device));
  return device;
}

// What the session needs later, now: a session is made once, and its first run should not compile.
void Norm::prepare(const OrtKernelInfo* info, int device) {
  device_ = device;
  const OnDevice here(device_);
  library().ask([&](char** error) {
    return library().workspace_bytes(library().service, &spec_, &workspace_bytes_, error);
  });

  normjit_prepare_options options = NORMJIT_PREPARE_OPTIONS_INIT;
  options.device = device_;
  OrtTypeInfo* type = nullptr;
  require(api_.input_type(info, 0, &type));
  const auto release = [this](OrtTypeInfo* given) { api_.release(given); };
  const std::unique_ptr<OrtTypeInfo, decltype(release)> owner(type, release);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  require(api_.tensor_of(type, &tensor));
  const Shape x = shape_of(tensor);  // -1: known in a run
  if (!x.empty() && std::all_of(x.begin(), x.end(), [](std::int64_t size) { return size > 0; })) {
    options.rows_hint = elements_of(x) / spec_.columns;
    if (spec_.channels_first) options.plane = plane_of(x);
  }
  normjit_kernel* kernel = nullptr;
  char* error = nullptr;
  const normjit_status status = library().prepare(library().service, &spec_, &options, &kernel, &error);
  if (status == NORMJIT_NOT_READY) {  // a thread compiles
    library().free(error);
    return;
  }
  if (status != NORMJIT_OK) library().fail(status, error);
  library().kernel_release(kernel);  // the service keeps it
}

Shape Norm::shape_of(const OrtTensorTypeAndShapeInfo* tensor) const {
  std::size_t rank = 0;
  require(api_.rank_of(tensor, &rank));
  Shape shape(rank);
  require(api_.dimensions_of(tensor, shape.data(), rank));
  return shape;
}

Norm::Value Norm::value_of(const OrtKernelContext* context, std::size_t index) const {
  const OrtValue* value = nullptr;
  require(api_.input(context, index, &value));
  if (value == nullptr)
    throw Failure(kInvalidArgument, "the input " + std::string(inputs_[index].name) + " is missing");
  OrtTensorTypeAndShapeInfo* info = nullptr;
  require(api_.shape_of(value, &info));
  const auto release = [this](OrtTensorTypeAndShapeInfo* given) { api_.release(given); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(info, release);
  void* data = nullptr;
  require(api_.data_of(value, &data));
  return {data, shape_of(info)};
}

void Norm::place(const Input& input, const Value& value, const Shape& x, normjit_tensors& to) const {
  const auto refuse = [&](const std::string& wanted) {
    throw Failure(kInvalidArgument, text_ + ": the input " + input.name + " has the shape " +
                                        text_of(value.shape) + ", and " + wanted + " for an x of " +
                                        text_of(x));
  };
  if (input.extent != Extent::rows) {
    const std::int64_t wanted = input.extent == Extent::one ? 1 : spec_.columns;
    if (elements_of(value.shape) != wanted) refuse(std::to_string(wanted) + " elements are needed");
    if (input.pointer != nullptr)
      to.*input.pointer = value.data;
    else
      (to.*input.rows).pointer = value.data;
    return;
  }
  normjit_input_rows& rows = to.*input.rows;
  if (spec_.channels_first) {  // contiguous, or one sample for all
    if (elements_of(value.shape) == spec_.columns * to.plane)
      rows.outer = 0;
    else if (value.shape != x)
      refuse("that shape or one sample is needed");
  } else {
    const auto found = broadcast_rows(value.shape, x, *row_dimensions(x, spec_.columns));
    if (!found)
      refuse("a shape that is broadcast along leading dimensions alone, by at most two strides, is needed");
    rows = *found;
  }
  rows.pointer = value.data;
}

Shape Norm::shape_of(const Output& output, const Shape& x, std::int64_t rows) const {
  switch (output.extent) {
    case Extent::one:
      return {1};
    case Extent::blocks: {
      std::int64_t shape[3] = {};
      std::size_t rank = 0;
      library().ask(
          [&](char** error) { return library().block_scale_shape(&spec_, rows, shape, &rank, error); });
      return Shape(shape, shape + rank);
    }
    case Extent::row: {
      Shape shape = x;
      if (spec_.channels_first)
        shape[1] = 1;
      else
        std::fill(shape.begin() + static_cast<std::ptrdiff_t>(*row_dimensions(x, spec_.columns)), shape.end(),
                  1);
      return shape;
    }
    default:
      return x;
  }
}

void Norm::run(OrtKernelContext* context) const {
  const Value x = value_of(context, 0);
  const bool fits = spec_.channels_first ? x.shape.size() > 2 && x.shape[1] == spec_.columns
                                         : row_dimensions(x.shape, spec_.columns).has_value();
  if (!fits)
    throw Failure(kInvalidArgument,
                  text_ + ": x has the shape " + text_of(x.shape) + ", whose " +
                      (spec_.channels_first ? "second dimension is not " : "last dimensions are not ") +
                      std::to_string(spec_.columns) + " elements");
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  tensors.rows = elements_of(x.shape) / spec_.columns;
  if (spec_.channels_first) tensors.plane = plane_of(x.shape);
  tensors.x.pointer = x.data;
  for (std::size_t i = 1; i < inputs_.size(); ++i) place(inputs_[i], value_of(context, i), x.shape, tensors);
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Shape shape = shape_of(outputs_[i], x.shape, tensors.rows);
    OrtValue* value = nullptr;
    require(api_.output(context, i, shape.data(), shape.size(), &value));
    void* data = nullptr;
    require(api_.data_of(value, &data));
    if (outputs_[i].pointer != nullptr)
      tensors.*outputs_[i].pointer = data;
    else
      (tensors.*outputs_[i].rows).pointer = data;
  }

  void* stream = nullptr;  // as it stays on the CPU
  require(api_.stream_of(context, &stream));
  std::optional<OnDevice> here;
  if (device_ >= 0) here.emplace(device_);
  if (tensors.rows == 0) {  // nothing is launched, and nothing was the largest
    if (spec_.amax && device_ >= 0) zero(tensors.amax, sizeof(float), stream);
    if (spec_.amax && device_ < 0) std::memset(tensors.amax, 0, sizeof(float));
    return;
  }
  std::vector<char> own;  // on the CPU, for this launch alone
  if (device_ >= 0) {
    if (workspace_bytes_ != 0) tensors.workspace = workspace_of(device_, stream, workspace_bytes_);
  } else {
    std::size_t bytes = 0;
    library().ask(
        [&](char** error) { return library().workspace_bytes(library().service, &spec_, &bytes, error); });
    own.resize(bytes);
    if (bytes != 0) tensors.workspace = own.data();
  }
  // A capture without its kernel would fail the whole graph: what no run before has made ready is made now.
  normjit_launch_options options = NORMJIT_LAUNCH_OPTIONS_INIT;
  options.miss_in_capture = 1;
  library().ask([&](char** error) {
    return library().norm(library().service, &spec_, &tensors, stream, &options, error);
  });
}

}  // namespace normjit::onnxruntime
