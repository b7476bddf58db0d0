// SPDX-License-Identifier: Apache-2.0
// The parts of ONNX Runtime's C interface that the custom operator uses. No package for Python brings the
// headers of that interface, and its structures only grow at their ends, so what is needed is declared here:
// functions by their places in OrtApi, all but one of them there since API version 18 (ONNX Runtime 1.18).
// tests/python/onnx_test.py calls each of them in the real library.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Known by pointer only.
struct OrtApi;
struct OrtAllocator;
struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtMemoryInfo;
struct OrtSessionOptions;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;

struct OrtApiBase {
  const OrtApi* (*get_api)(std::uint32_t version);  // null: the runtime is older
  const char* (*version)();
};

// An operator, as of API version 18. Enumerations are passed as int. Members that are not used are null.
struct OrtCustomOp {
  std::uint32_t version;
  void* create_kernel;
  const char* (*name)(const OrtCustomOp*);
  const char* (*provider)(const OrtCustomOp*);  // null: the CPU
  int (*input_type)(const OrtCustomOp*, std::size_t index);
  std::size_t (*input_count)(const OrtCustomOp*);
  int (*output_type)(const OrtCustomOp*, std::size_t index);
  std::size_t (*output_count)(const OrtCustomOp*);
  void* compute;
  void (*destroy)(void* kernel);
  int (*input_kind)(const OrtCustomOp*, std::size_t index);
  int (*output_kind)(const OrtCustomOp*, std::size_t index);
  int (*input_memory)(const OrtCustomOp*, std::size_t index);
  int (*variadic_input_least)(const OrtCustomOp*);
  int (*variadic_input_is_of_one_type)(const OrtCustomOp*);
  int (*variadic_output_least)(const OrtCustomOp*);
  int (*variadic_output_is_of_one_type)(const OrtCustomOp*);
  OrtStatus* (*create_kernel_v2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*compute_v2)(void* kernel, OrtKernelContext*);
  void* infer_output_shape;
  int (*first_version)(const OrtCustomOp*);
  int (*last_version)(const OrtCustomOp*);
  void* may_inplace;
  void* release_may_inplace;
  void* alias_map;
  void* release_alias_map;
};

}  // extern "C"

namespace normjit::onnxruntime {

inline constexpr std::uint32_t kApiVersion = 18;
inline constexpr std::uint32_t kApiVersionWithSizes = 24;  // Api::sizes_of

// OrtErrorCode
enum Code : int { kFail = 1, kInvalidArgument = 2, kNotImplemented = 9, kInvalidGraph = 10 };

// ONNXTensorElementDataType, whose numbers are those of ONNX itself.
enum Element : int {
  kUndefined = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kFloat16 = 10,
  kDouble = 11,
  kBfloat16 = 16,
  kFloat8E4M3 = 17,
  kFloat8E5M2 = 19,
};

inline constexpr int kVariadic = 2;       // OrtCustomOpInputOutputCharacteristic
inline constexpr int kDefaultMemory = 0;  // OrtMemType: that of the execution provider

// The functions. Those that return a status return null where they succeed.
class Api {
 public:
  explicit Api(const OrtApi* api) : functions_(reinterpret_cast<void* const*>(api)) {}

  OrtStatus* create_status(int code, const char* message) const { return call<0, OrtStatus*>(code, message); }
  const char* message_of(const OrtStatus* status) const { return call<2, const char*>(status); }
  void release(OrtStatus* status) const { call<93, void>(status); }

  OrtStatus* create_domain(const char* name, OrtCustomOpDomain** domain) const {
    return call<26, OrtStatus*>(name, domain);
  }
  OrtStatus* add(OrtCustomOpDomain* domain, const OrtCustomOp* op) const {
    return call<27, OrtStatus*>(domain, op);
  }
  OrtStatus* add(OrtSessionOptions* options, OrtCustomOpDomain* domain) const {
    return call<28, OrtStatus*>(options, domain);
  }

  // Of a tensor.
  OrtStatus* data_of(const OrtValue* value, void** data) const {
    return call<51, OrtStatus*>(const_cast<OrtValue*>(value), data);
  }
  OrtStatus* shape_of(const OrtValue* value, OrtTensorTypeAndShapeInfo** info) const {  // to be released
    return call<65, OrtStatus*>(value, info);
  }
  OrtStatus* element_of(const OrtTensorTypeAndShapeInfo* info, int* element) const {
    return call<60, OrtStatus*>(info, element);
  }
  OrtStatus* rank_of(const OrtTensorTypeAndShapeInfo* info, std::size_t* rank) const {
    return call<61, OrtStatus*>(info, rank);
  }
  OrtStatus* dimensions_of(const OrtTensorTypeAndShapeInfo* info, std::int64_t* dims,
                           std::size_t rank) const {
    return call<62, OrtStatus*>(info, dims, rank);
  }
  void release(OrtTensorTypeAndShapeInfo* info) const { call<99, void>(info); }
  // The same of a tensor at once, and without a copy. Since API version 24.
  OrtStatus* sizes_of(const OrtValue* value, int* element, const std::int64_t** dims,
                      std::size_t* rank) const {
    return call<414, OrtStatus*>(value, element, dims, rank);
  }

  // Of a node, as a kernel for it is made.
  OrtStatus* string_attribute(const OrtKernelInfo* info, const char* name, char* text,
                              std::size_t* size) const {  // text null: only its size, with the last 0
    return call<87, OrtStatus*>(info, name, text, size);
  }
  OrtStatus* input_count(const OrtKernelInfo* info, std::size_t* count) const {
    return call<230, OrtStatus*>(info, count);
  }
  OrtStatus* output_count(const OrtKernelInfo* info, std::size_t* count) const {
    return call<231, OrtStatus*>(info, count);
  }
  OrtStatus* input_type(const OrtKernelInfo* info, std::size_t index, OrtTypeInfo** type) const {
    return call<234, OrtStatus*>(info, index, type);
  }
  OrtStatus* output_type(const OrtKernelInfo* info, std::size_t index, OrtTypeInfo** type) const {
    return call<235, OrtStatus*>(info, index, type);
  }
  // *tensor is a part of the type, or null.
  OrtStatus* tensor_of(const OrtTypeInfo* type, const OrtTensorTypeAndShapeInfo** tensor) const {
    return call<55, OrtStatus*>(type, tensor);
  }
  void release(OrtTypeInfo* type) const { call<98, void>(type); }
  // Whether an input is an initializer; *value is then that.
  OrtStatus* constant_input(const OrtKernelInfo* info, std::size_t index, int* is_constant,
                            const OrtValue** value) const {
    return call<249, OrtStatus*>(info, index, is_constant, value);
  }
  OrtStatus* node_name(const OrtKernelInfo* info, char* name, std::size_t* size) const {
    return call<244, OrtStatus*>(info, name, size);
  }
  // That of the execution provider's memory, to be released.
  OrtStatus* allocator_of(const OrtKernelInfo* info, OrtAllocator** allocator) const {
    return call<278, OrtStatus*>(info, kDefaultMemory, allocator);
  }
  OrtStatus* memory_of(const OrtAllocator* allocator, const OrtMemoryInfo** memory) const {
    return call<77, OrtStatus*>(allocator, memory);
  }
  OrtStatus* device_of(const OrtMemoryInfo* memory, int* device) const {
    return call<72, OrtStatus*>(memory, device);
  }
  void release(OrtAllocator* allocator) const { call<132, void>(allocator); }

  // Of a run.
  OrtStatus* input(const OrtKernelContext* context, std::size_t index, const OrtValue** value) const {
    return call<90, OrtStatus*>(context, index, value);
  }
  OrtStatus* output(OrtKernelContext* context, std::size_t index, const std::int64_t* dims, std::size_t rank,
                    OrtValue** value) const {
    return call<91, OrtStatus*>(context, index, dims, rank, value);
  }
  OrtStatus* stream_of(const OrtKernelContext* context, void** stream) const {
    return call<193, OrtStatus*>(context, stream);
  }

 private:
  template <std::size_t place, class Result, class... Arguments>
  Result call(Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(functions_[place])(arguments...);
  }

  void* const* functions_;
};

}  // namespace normjit::onnxruntime
