// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets have in common. libFuzzer calls LLVMFuzzerTestOneInput() with one changed input after
// another, and saves an input that ends the program.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace normjit::fuzz {

// An input as text; it ends where the sanitizer sees the first byte behind it.
inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline void expect(bool holds, const char* what, std::string_view detail = {}) {
  if (holds) return;
  std::fprintf(stderr, "Not true: %s: %.*s\n", what, static_cast<int>(detail.size()), detail.data());
  std::abort();
}

// Whether a terminal shows the text as one line: no control characters, those of U+0080 to U+009F included.
inline bool is_one_line(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : ' ');
    if (byte < ' ' || byte == 0x7f || (byte == 0xc2 && next >= 0x80 && next < 0xa0)) return false;
  }
  return true;
}

// The message of an error about an input.
inline void expect_message(std::string_view message) {
  constexpr std::size_t kLongest = 1000;
  expect(!message.empty(), "an error has a message");
  expect(is_one_line(message), "a message is one line without control characters", message);
  expect(message.size() <= kLongest, "a message has at most 1,000 bytes", message);
}

// A regular file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : file_(memfd_create("input", MFD_CLOEXEC)) {
    expect(file_ >= 0 && write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
           "there is room for a file");
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace normjit::fuzz
