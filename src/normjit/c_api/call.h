// SPDX-License-Identifier: Apache-2.0
// What the handles of the C interface are, and what every call does: answers mistakes, lets no exception out,
// hands over texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "normjit/c_api.h"
#include "normjit/result.h"
#include "normjit/service.h"

// What the handles are.
struct normjit_service {
  // `seams` are for tests, which make their handles by themselves.
  explicit normjit_service(normjit::Options with, normjit::Seams seams = {})
      : options(with), service(std::move(with), std::move(seams)) {}

  const normjit::Options options;
  normjit::Service service;
};

struct normjit_kernel {
  normjit::Kernel kernel;
};

namespace normjit::c_api {

// BadArgument: the argument of this name is NULL.
Error null(std::string_view name);
// "NAME is VALUE; it is ALLOWED".
Error out_of_range(std::string_view name, std::int64_t value, std::string_view allowed,
                   Code code = Code::BadArgument);

// The status of an error. Stores its message, unless `text` is null.
normjit_status answer(const Error& error, char** text) noexcept;
normjit_status out_of_memory(char** text) noexcept;

// Makes a copy of the text for normjit_free. Ok; throws std::bad_alloc.
Result<void> hand_over(std::string_view text, char** to);
// Stores the value, if there is one.
template <class T>
Result<void> store(const Result<T>& result, T* to) {
  if (!result) return result.error();
  *to = *result;
  return {};
}

struct Argument {
  std::string_view name;
  const void* pointer;
};
// Answers the first required argument that is NULL, else work(), which returns a Result<void>. normjit throws
// only if memory is exhausted, or if the system starts no more threads.
template <class Work>
normjit_status guarded(char** error, std::initializer_list<Argument> required, const Work& work) noexcept {
  try {
    for (const auto& [name, pointer] : required)
      if (pointer == nullptr) return answer(null(name), error);
    const Result<void> done = work();
    return done ? NORMJIT_OK : answer(done.error(), error);
  } catch (...) {
    return out_of_memory(error);
  }
}

// --- Structures that grow ---

// Whether a struct_size is possible.
bool is_size(std::size_t size) noexcept;
// Copies a structure of a caller of any version. False: its struct_size is not possible, or it sets a member
// that this library does not know.
bool read_struct(const void* given, void* own, std::size_t own_size) noexcept;
// Why read_struct returned false: BadArgument.
Error struct_mistake(std::string_view type, const void* given);
// Writes a structure to that of a caller of any version, and zeros behind it; its struct_size stays. False,
// with nothing written: the caller has no room for a member that is not 0.
bool write_struct(const void* own, std::size_t own_size, void* to) noexcept;
// The same without the members that the caller has no room for.
void write_known_part(const void* own, std::size_t own_size, void* to) noexcept;

// A structure as this library's version has it; null where read_struct is false. `own` is room for a copy,
// which a caller of the same version does not need.
template <class Struct>
const Struct* read(const Struct& given, Struct& own) noexcept {
  if (given.struct_size == sizeof(Struct)) return &given;
  return read_struct(&given, &own, sizeof own) ? &own : nullptr;
}
// The same as a copy, with the reason of a failure. `type` is the structure's name.
template <class Struct>
Result<Struct> struct_of(std::string_view type, const Struct& given) {
  Struct own;
  if (!read_struct(&given, &own, sizeof own)) return struct_mistake(type, &given);
  return own;
}

}  // namespace normjit::c_api
