// SPDX-License-Identifier: Apache-2.0
// libnormjit and CUDA's driver, which the operator finds by itself when the first session needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "normjit/c_api.h"
#include "onnxruntime/ort_api.h"

namespace normjit::onnxruntime {

// Becomes an OrtStatus, with the node's name in front.
struct Failure : std::runtime_error {
  Failure(Code code, const std::string& text) : std::runtime_error(text), code(code) {}
  const Code code;
};

// The functions of libnormjit, and the one service of this process, which works as the environment says.
struct Library {
  decltype(&::normjit_norm) norm;
  decltype(&::normjit_prepare) prepare;
  decltype(&::normjit_kernel_release) kernel_release;
  decltype(&::normjit_spec_parse) spec_parse;
  decltype(&::normjit_workspace_bytes) workspace_bytes;
  decltype(&::normjit_block_scale_shape) block_scale_shape;
  decltype(&::normjit_status_message) status_message;
  decltype(&::normjit_free) free;
  normjit_service* service;

  // Calls a function: call(&error) returns its status. Throws a Failure with the sentence that came with it.
  template <class Call>
  void ask(const Call& call) const {
    char* error = nullptr;
    if (const normjit_status status = call(&error); status != NORMJIT_OK) fail(status, error);
  }
  // Throws the sentence of a status, and releases it.
  [[noreturn]] void fail(normjit_status status, char* error) const;
};

// Opens libnormjit, and keeps it: the file in NORMJIT_LIBRARY; else libnormjit.so.1 beside this library, or
// where the loader looks. Throws a Failure that says what was tried. Thread-safe.
const Library& library();

// Makes a device's primary context, in which ONNX Runtime works, the current one for as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int pushed_ = -1;
};

// The workspace of a stream of the current device, of at least so many bytes, zeroed. Launches of a stream
// come one after another, so all operators share it; it stays until the process ends. Only the first call for
// a stream allocates. Throws a Failure without memory, and in a stream that is being captured without one.
void* workspace_of(int device, void* stream, std::size_t bytes);

// Zeroes memory of the current device, in the order of the stream.
void zero(void* memory, std::size_t bytes, void* stream);

}  // namespace normjit::onnxruntime
