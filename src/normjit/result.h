// SPDX-License-Identifier: Apache-2.0
// Errors as values.
//
// normjit throws nothing but std::bad_alloc. A public call returns Result<T>, which holds a T or an Error
// with a code and a message: what was requested, what is allowed and what to do. Only Result<T>::value()
// throws, for callers who prefer exceptions. A launch returns Status, which is trivial, never allocates and
// fits in a register.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "normjit/export.h"

namespace normjit {

// One code per kind of mistake. The numbers are stable: new codes are added at the end of their group.
enum class Code : std::int32_t {
  Ok = 0,

  // A NormSpec that describes no normalization.
  BadRank = 100,         // normalized_shape has no dimension or more than 8
  BadDimension = 101,    // a dimension is zero or negative
  TooManyColumns = 102,  // the product of the dimensions exceeds 2^31 - 1
  BadDType = 103,        // not one of f16, bf16, f32, f64; output: or e4m3, e5m2, s8, e2m1
  BadEpsilon = 104,      // negative, infinite or NaN
  BadAffine = 105,       // not one of none, weight, weight_bias
  BadActivation = 106,   // not one of none, relu, gelu, gelu_tanh, silu
  BadScale = 107,        // infinite or NaN
  BadSpecText = 108,     // a text that is not a spec: unknown, repeated or missing field
  BadCombination = 109,  // fields that do not go together; the message names them

  // A launch that cannot be right. Nothing has been launched.
  EmptyKernel = 200,        // a default-constructed or moved-from Kernel
  NullPointer = 201,        // a tensor that the spec needs is null
  UnexpectedPointer = 202,  // a tensor is given that the spec does not have
  Misaligned = 203,  // a pointer or row stride is less aligned than its dtype, or than the kernel needs
  BadRows = 204,     // negative
  BadStride = 205,   // rows of an output would overlap each other, a stride is negative, an offset exceeds 64
                     // bits, or n is not 1
  WorkspaceRequired = 206,  // the kernel exchanges statistics through memory and no workspace was given
  WrongDevice = 207,        // a pointer or the kernel belongs to another device than the launch
  OutOfBounds = 208,        // a tensor reaches past the end of its allocation
  Overlap = 209,            // an output overlaps another operand, and is not that operand row for row
  BadPlane = 210,           // with channels first: less than 1, or the rows are no whole planes; else: not 0

  // A plan or an architecture that normjit does not know how to serve.
  UnknownArch = 300,
  IllegalPlan = 301,
  BadTemplate = 302,  // a template file is missing, or a placeholder is unknown, missing or unused

  // The compiler.
  NoCompiler = 400,      // libnvrtc was not found; the message lists every path tried
  CompileFailed = 401,   // the message holds the log, file, line, options and spec
  CompilerTooOld = 402,  // NVRTC older than 12.0

  // The driver and the device.
  NoDriver = 500,      // libcuda.so.1 was not found
  DriverTooOld = 501,  // older than CUDA 12.0 (R525)
  NoDevice = 502,      // the driver sees no GPU, or not the requested one
  NoContext = 503,     // the calling thread has no current CUDA context and no device was named
  LoadFailed = 504,    // the driver refuses a freshly compiled kernel
  DriverError = 505,   // any other driver error; the message names it
  OutOfMemory = 506,   // the device is out of memory; in the C interface also this process
  NotResident = 507,   // blocks that must run together do not fit on the device, or on this process's share
  ForkedAfterCudaInit = 508,  // CUDA was initialised before the fork that made this process

  // The cache on disk. Only calls about the cache itself fail with these, never a prepare or launch.
  CacheIo = 600,
  Untrusted = 601,  // a signature is missing or wrong, or of a key that is not trusted

  // The mode of the service does not allow what the call needs.
  NotCached = 800,  // cached-only or frozen, and no cache has the kernel; the message names the spec
  NotReady = 801,   // the stream is being captured, and the kernel is not ready

  // Requests to the library as a whole.
  BadArgument = 700,  // an option or argument outside its documented range
};

// The name of a code as it is spelled above, or "Unknown".
NORMJIT_API std::string_view code_name(Code code) noexcept;

// Why a call failed. `message` is a complete English sentence, or several lines when it holds a compiler log.
struct Error {
  Code code = Code::Ok;
  std::string message;
};

// Thrown by Result<T>::value() and by nothing else.
class NORMJIT_API Exception : public std::runtime_error {
 public:
  explicit Exception(const Error& error);
  Code code() const noexcept { return code_; }

 private:
  Code code_;
};

namespace detail {
[[noreturn]] NORMJIT_API void raise(const Error& error);
}

// A T or an Error. A plain value: not thread-safe by itself.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : held_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const noexcept { return held_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  // The value; throws Exception if there is none.
  T& value() & { return ok() ? *std::get_if<0>(&held_) : (detail::raise(error()), *std::get_if<0>(&held_)); }
  const T& value() const& { return const_cast<Result*>(this)->value(); }
  T value() && { return std::move(static_cast<Result&>(*this).value()); }

  // Unchecked access, as of std::optional: only after ok().
  T& operator*() noexcept { return *std::get_if<0>(&held_); }
  const T& operator*() const noexcept { return *std::get_if<0>(&held_); }
  T* operator->() noexcept { return std::get_if<0>(&held_); }
  const T* operator->() const noexcept { return std::get_if<0>(&held_); }

  // The error; only when !ok().
  const Error& error() const noexcept { return *std::get_if<1>(&held_); }
  Code code() const noexcept { return ok() ? Code::Ok : error().code; }

 private:
  std::variant<T, Error> held_;
};

// Success without a value, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const noexcept { return error_.code == Code::Ok; }
  explicit operator bool() const noexcept { return ok(); }
  void value() const {
    if (!ok()) detail::raise(error_);
  }
  const Error& error() const noexcept { return error_; }
  Code code() const noexcept { return error_.code; }

 private:
  Error error_;
};

// The outcome of a launch: a code, and the driver's CUresult if the code is DriverError.
struct [[nodiscard]] Status {
  Code code = Code::Ok;
  std::int32_t driver_result = 0;

  constexpr bool ok() const noexcept { return code == Code::Ok; }
  constexpr explicit operator bool() const noexcept { return ok(); }
  // What the code means and what to do; a static text, never null.
  NORMJIT_API const char* message() const noexcept;
};

}  // namespace normjit
