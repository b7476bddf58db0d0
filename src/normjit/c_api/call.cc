// SPDX-License-Identifier: Apache-2.0
#include "normjit/c_api/call.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "normjit/base/text.h"

namespace normjit::c_api {
namespace {

// Longer than every structure of any version: a greater struct_size was not initialised.
constexpr std::size_t kLongest = 4096;

// The text where there is no memory for one. normjit_free does not release it.
char g_no_memory[] = "the process has no memory left, or the system starts no more threads";

char* copy_of(std::string_view text) noexcept {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  text.copy(copy, text.size());
  copy[text.size()] = '\0';
  return copy;
}

std::size_t size_of(const void* given) noexcept {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  return size;
}

// Whether a structure has a byte from `begin` on that is not 0.
bool has_more(const void* given, std::size_t begin, std::size_t end) noexcept {
  const auto* const bytes = static_cast<const unsigned char*>(given);
  return std::any_of(bytes + begin, bytes + end, [](unsigned char byte) { return byte != 0; });
}

}  // namespace

bool is_size(std::size_t size) noexcept { return size >= sizeof size && size <= kLongest; }

Error null(std::string_view name) { return {Code::BadArgument, concat({name, " is NULL"})}; }

Error out_of_range(std::string_view name, std::int64_t value, std::string_view allowed, Code code) {
  return {code, concat({name, " is ", shortest(value), "; it is ", allowed})};
}

normjit_status answer(const Error& error, char** text) noexcept {
  if (text != nullptr) {
    char* const copy = copy_of(error.message);
    if (copy == nullptr) return out_of_memory(text);
    *text = copy;
  }
  return static_cast<normjit_status>(error.code);
}

normjit_status out_of_memory(char** text) noexcept {
  if (text != nullptr) *text = g_no_memory;
  return NORMJIT_OUT_OF_MEMORY;
}

Result<void> hand_over(std::string_view text, char** to) {
  char* const copy = copy_of(text);
  if (copy == nullptr) throw std::bad_alloc();
  *to = copy;
  return {};
}

bool read_struct(const void* given, void* own, std::size_t own_size) noexcept {
  const std::size_t size = size_of(given);
  if (!is_size(size)) return false;
  const std::size_t known = std::min(size, own_size);
  if (has_more(given, known, size)) return false;
  std::memset(own, 0, own_size);
  std::memcpy(own, given, known);
  return true;
}

Error struct_mistake(std::string_view type, const void* given) {
  const std::size_t size = size_of(given);
  if (!is_size(size))
    return {Code::BadArgument, concat({"struct_size of ", type, " is ", shortest(size),
                                       "; begin with its _INIT macro, or set it to sizeof(", type, ")"})};
  return {Code::BadArgument, concat({type, " has a member that is not 0 and that this library, version ",
                                     NORMJIT_VERSION, ", does not know"})};
}

bool write_struct(const void* own, std::size_t own_size, void* to) noexcept {
  if (has_more(own, std::min(size_of(to), own_size), own_size)) return false;
  write_known_part(own, own_size, to);
  return true;
}

void write_known_part(const void* own, std::size_t own_size, void* to) noexcept {
  const std::size_t room = size_of(to), known = std::min(room, own_size), head = sizeof room;
  std::memcpy(static_cast<char*>(to) + head, static_cast<const char*>(own) + head, known - head);
  std::memset(static_cast<char*>(to) + known, 0, room - known);
}

}  // namespace normjit::c_api

void normjit_free(char* text) {
  if (text != normjit::c_api::g_no_memory) std::free(text);
}
