// What every call of the C interface does: answers mistakes, lets no exception out, hands over texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "normjit/c_api.h"
#include "normjit/result.h"

namespace normjit::c_api {

// Stores the error's message, unless `text` is null; its code.
normjit_status answer(const Error& error, char** text) noexcept;
// BadArgument, because the argument of this name is NULL.
Error null(std::string_view name);
inline normjit_status is_null(std::string_view name, char** text) { return answer(null(name), text); }
normjit_status out_of_memory(char** text) noexcept;

template <class T>
normjit_status answer(const Result<T>& result, char** text) noexcept {
  return result ? NORMJIT_OK : answer(result.error(), text);
}

// A text for normjit_free: NORMJIT_OK, or NORMJIT_OUT_OF_MEMORY with its sentence in `error`.
normjit_status hand_over(std::string_view text, char** to, char** error) noexcept;

// The outcome of work(), which returns a normjit_status. Only memory that is used up makes normjit throw, or
// a system that starts no more threads.
template <class Work>
normjit_status guarded(char** error, const Work& work) noexcept {
  try {
    return work();
  } catch (...) {
    return out_of_memory(error);
  }
}

// --- Structures that grow ---

// Whether a struct_size can be one.
bool is_size(std::size_t size) noexcept;
// Copies a structure that a caller of any age has made. False where its struct_size is no size, or it has a
// member that this library does not know.
bool read_struct(const void* given, void* own, std::size_t own_size) noexcept;
// Why that was so: BadArgument.
Error struct_mistake(std::string_view type, const void* given);
// Writes a structure to a caller's of any age, with zeros behind it; its struct_size stays. False where the
// caller has no room for a member that is not 0; nothing is written then.
bool write_struct(const void* own, std::size_t own_size, void* to) noexcept;

// A structure of this library's own version; null as read_struct is false. `own` is room for a copy, which a
// caller of the same version does not need.
template <class Struct>
const Struct* read(const Struct& given, Struct& own) noexcept {
  if (given.struct_size == sizeof(Struct)) return &given;
  return read_struct(&given, &own, sizeof own) ? &own : nullptr;
}

}  // namespace normjit::c_api
