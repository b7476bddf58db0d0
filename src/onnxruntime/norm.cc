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
  for (std::size_t i = 2; i < x.rank(); ++i) plane *= x[i];
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

// Releases what the runtime has handed out.
template <class T>
auto owned(const Api& api, T* given) {
  const auto release = [&api](T* held) { api.release(held); };
  return std::unique_ptr<T, decltype(release)>(given, release);
}

}  // namespace

void Norm::require(OrtStatus* status) const {
  if (status == nullptr) return;
  const std::string text = api_.message_of(status);
  api_.release(status);
  throw Failure(kFail, text);
}

Norm::Norm(const OrtApi* api, const OrtKernelInfo* info, bool on_gpu, bool has_sizes)
    : api_(api), has_sizes_(has_sizes) {
  name_ = text_from([&](char* text, std::size_t* size) { require(api_.node_name(info, text, size)); });
  try {
    if (!on_gpu && !may_compute_on_cpu())
      throw Failure(
          kNotImplemented,
          "it is on the CPU, and normjit's kernels are for NVIDIA GPUs. Put CUDAExecutionProvider first "
          "in the providers of the session, or run the model as it was before python -m normjit.onnx.");
    read_spec(info);
    compare_types(info);
    check_constants(info);
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
      const std::string name = std::string(what) + " " + operands[i].name;
      OrtTypeInfo* type = nullptr;
      if (OrtStatus* const status = type_at(i, &type); status != nullptr) {
        api_.release(status);
        throw Failure(kInvalidGraph, text_ + ": the " + name + " is missing, or has no type");
      }
      const auto owner = owned(api_, type);
      const OrtTensorTypeAndShapeInfo* tensor = nullptr;
      require(api_.tensor_of(type, &tensor));
      int element = kUndefined;
      if (tensor != nullptr) require(api_.element_of(tensor, &element));
      const Element wanted = element_of(operands[i].type);
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
  const auto owner = owned(api_, allocator);
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
  constexpr std::int64_t kTypicalRows = 1024;  // where the model does not say how many
  options.rows_hint = kTypicalRows;
  const Shape x = static_shape_of_x(info);
  if (x.rank() > 0 && std::all_of(x.begin(), x.end(), [](std::int64_t size) { return size > 0; })) {
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

// -1: known in a run.
Shape Norm::static_shape_of_x(const OrtKernelInfo* info) const {
  OrtTypeInfo* type = nullptr;
  require(api_.input_type(info, 0, &type));
  const auto owner = owned(api_, type);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  require(api_.tensor_of(type, &tensor));
  return shape_of(tensor);
}

// What does not change is looked at once.
void Norm::check_constants(const OrtKernelInfo* info) {
  is_checked_.assign(inputs_.size(), false);
  for (std::size_t i = 1; i < inputs_.size(); ++i) {
    if (inputs_[i].extent == Extent::rows) continue;
    int is_constant = 0;
    const OrtValue* value = nullptr;
    require(api_.constant_input(info, i, &is_constant, &value));
    if (is_constant == 0 || value == nullptr) continue;
    check_elements(inputs_[i], shape_of(value));
    is_checked_[i] = true;
  }
}

Shape Norm::shape_of(const OrtTensorTypeAndShapeInfo* tensor) const {
  std::size_t rank = 0;
  require(api_.rank_of(tensor, &rank));
  if (rank > Shape::kMostDimensions) throw Failure(kInvalidArgument, "a tensor has more than 16 dimensions");
  std::int64_t sizes[Shape::kMostDimensions] = {};
  require(api_.dimensions_of(tensor, sizes, rank));
  return {sizes, rank};
}

Shape Norm::shape_of(const OrtValue* value) const {
  if (has_sizes_) {
    int element = kUndefined;
    const std::int64_t* sizes = nullptr;
    std::size_t rank = 0;
    require(api_.sizes_of(value, &element, &sizes, &rank));
    if (rank > Shape::kMostDimensions)
      throw Failure(kInvalidArgument, "a tensor has more than 16 dimensions");
    return {sizes, rank};
  }
  OrtTensorTypeAndShapeInfo* info = nullptr;
  require(api_.shape_of(value, &info));
  const auto owner = owned(api_, info);
  return shape_of(info);
}

const OrtValue* Norm::input(const OrtKernelContext* context, std::size_t index) const {
  const OrtValue* value = nullptr;
  require(api_.input(context, index, &value));
  if (value == nullptr)
    throw Failure(kInvalidArgument, "the input " + std::string(inputs_[index].name) + " is missing");
  return value;
}

const void* Norm::data_of(const OrtValue* value) const {
  void* data = nullptr;
  require(api_.data_of(value, &data));
  return data;
}

Norm::Rows Norm::rows_of(const Shape& x) const {
  if (spec_.channels_first) {
    if (x.rank() > 2 && x[1] == spec_.columns) return {x, 0};
    throw Failure(kInvalidArgument, text_ + ": x has the shape " + text_of(x) +
                                        ", whose second dimension is not " + std::to_string(spec_.columns) +
                                        " elements");
  }
  if (const auto count = row_dimensions(x, spec_.columns)) return {x, *count};
  throw Failure(kInvalidArgument, text_ + ": x has the shape " + text_of(x) +
                                      ", whose last dimensions are not " + std::to_string(spec_.columns) +
                                      " elements");
}

void Norm::check_elements(const Input& input, const Shape& shape) const {
  const std::int64_t wanted = input.extent == Extent::one ? 1 : spec_.columns;
  if (elements_of(shape) != wanted)
    throw Failure(kInvalidArgument, text_ + ": the input " + input.name + " has the shape " + text_of(shape) +
                                        ", and " + std::to_string(wanted) + " elements are needed");
}

void Norm::place_rows(const Input& input, const Shape& shape, const Rows& x, normjit_tensors& to) const {
  normjit_input_rows& rows = to.*input.rows;
  if (shape == x.shape) return;  // contiguous, as it is by default
  if (spec_.channels_first && elements_of(shape) == spec_.columns * to.plane) {
    rows.outer = 0;  // one sample for all
    return;
  }
  const auto found = spec_.channels_first ? std::nullopt : broadcast_rows(shape, x.shape, x.row_dimensions);
  if (!found)
    throw Failure(
        kInvalidArgument,
        text_ + ": the input " + input.name + " has the shape " + text_of(shape) + ", and for an x of " +
            text_of(x.shape) +
            (spec_.channels_first ? " that shape or one sample is needed"
                                  : " a shape is needed that is broadcast to it along leading dimensions "
                                    "alone, by at most two strides"));
  rows = *found;
}

void Norm::place_input(const OrtKernelContext* context, std::size_t index, const Rows& x,
                       normjit_tensors& to) const {
  const Input& operand = inputs_[index];
  const OrtValue* const value = input(context, index);
  if (operand.extent == Extent::rows)
    place_rows(operand, shape_of(value), x, to);
  else if (!is_checked_[index])
    check_elements(operand, shape_of(value));
  if (operand.pointer != nullptr)
    to.*operand.pointer = data_of(value);
  else
    (to.*operand.rows).pointer = data_of(value);
}

void Norm::place_output(OrtKernelContext* context, std::size_t index, const Rows& x,
                        normjit_tensors& to) const {
  const Output& operand = outputs_[index];
  Shape shape = x.shape;
  if (operand.extent == Extent::one) {
    constexpr std::int64_t kOne = 1;
    shape = {&kOne, 1};
  } else if (operand.extent == Extent::blocks) {
    std::int64_t sizes[3] = {};
    std::size_t rank = 0;
    library().ask(
        [&](char** error) { return library().block_scale_shape(&spec_, to.rows, sizes, &rank, error); });
    shape = {sizes, rank};
  } else if (operand.extent == Extent::row && spec_.channels_first) {
    shape[1] = 1;
  } else if (operand.extent == Extent::row) {
    for (std::size_t i = x.row_dimensions; i < shape.rank(); ++i) shape[i] = 1;
  }
  OrtValue* value = nullptr;
  require(api_.output(context, index, shape.begin(), shape.rank(), &value));
  void* data = nullptr;
  require(api_.data_of(value, &data));
  if (operand.pointer != nullptr)
    to.*operand.pointer = data;
  else
    (to.*operand.rows).pointer = data;
}

void Norm::run(OrtKernelContext* context) const {
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  const OrtValue* const value = input(context, 0);
  const Rows x = rows_of(shape_of(value));
  tensors.x.pointer = data_of(value);
  tensors.rows = elements_of(x.shape) / spec_.columns;
  if (spec_.channels_first) tensors.plane = plane_of(x.shape);
  for (std::size_t i = 1; i < inputs_.size(); ++i) place_input(context, i, x, tensors);
  for (std::size_t i = 0; i < outputs_.size(); ++i) place_output(context, i, x, tensors);
  launch(context, tensors);
}

void Norm::launch(const OrtKernelContext* context, normjit_tensors& tensors) const {
  void* stream = nullptr;  // as it stays on the CPU
  require(api_.stream_of(context, &stream));
  std::optional<OnDevice> here;
  if (device_ >= 0) here.emplace(device_);
  if (tensors.rows == 0) {  // nothing is launched, and nothing was the largest
    if (spec_.amax && device_ >= 0) zero(tensors.amax, sizeof(float), stream);
    if (spec_.amax && device_ < 0) std::memset(tensors.amax, 0, sizeof(float));
    return;
  }
  const Library& normjit = library();
  std::vector<char> own;  // on the CPU, for this launch alone
  if (device_ >= 0) {
    if (workspace_bytes_ != 0) tensors.workspace = workspace_of(device_, stream, workspace_bytes_);
  } else {
    std::size_t bytes = 0;
    normjit.ask(
        [&](char** error) { return normjit.workspace_bytes(normjit.service, &spec_, &bytes, error); });
    own.resize(bytes);
    if (bytes != 0) tensors.workspace = own.data();
  }
  // A capture without its kernel would fail the whole graph: what no run before has made ready is made now.
  normjit_launch_options options = NORMJIT_LAUNCH_OPTIONS_INIT;
  options.miss_in_capture = 1;
  normjit.ask(
      [&](char** error) { return normjit.norm(normjit.service, &spec_, &tensors, stream, &options, error); });
}

}  // namespace normjit::onnxruntime
