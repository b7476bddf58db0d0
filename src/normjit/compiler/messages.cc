// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/messages.h"

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "normjit/base/text.h"
#include "normjit/base/uninterrupted.h"

namespace normjit {
namespace {

using Size = std::uint64_t;
// Far above any source or cubin. Limits what a faulty sender can make this process allocate.
constexpr Size kMostBytes = Size{256} << 20;

bool send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent =
        uninterrupted([&] { return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool receive_all(int socket, void* to, std::size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t received = uninterrupted([&] { return recv(socket, at, bytes, 0); });
    if (received <= 0) return false;
    at += received;
    bytes -= static_cast<std::size_t>(received);
  }
  return true;
}

void append_size(std::string& bytes, Size size) {
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
}

}  // namespace

bool send_message(int socket, const Message& message) {
  Size size = 0;
  for (const std::string& text : message) size += sizeof size + text.size();
  std::string bytes;
  bytes.reserve(sizeof size + size);
  append_size(bytes, size);
  for (const std::string& text : message) {
    append_size(bytes, text.size());
    bytes += text;
  }
  return send_all(socket, bytes);
}

std::optional<Message> receive_message(int socket) {
  Size size = 0;
  if (!receive_all(socket, &size, sizeof size) || size > kMostBytes) return {};
  std::string bytes(size, '\0');
  if (!receive_all(socket, bytes.data(), bytes.size())) return {};
  Message message;
  for (std::string_view rest = bytes; !rest.empty();) {
    if (rest.size() < sizeof size) return {};
    std::memcpy(&size, rest.data(), sizeof size);
    rest.remove_prefix(sizeof size);
    if (size > rest.size()) return {};
    message.emplace_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return message;
}

std::string protocol() {
  return concat({"normjit " NORMJIT_VERSION ", messages 1, ", semantic_options(Arch{90})});
}

Message request_of(const Source& source, Arch arch) {
  return {source.text, source.kernel, source.description, arch.name()};
}

std::optional<std::pair<Source, Arch>> parse_request(Message message) {
  if (message.size() != 4) return {};
  const Result<Arch> arch = Arch::parse(message[3]);
  if (!arch) return {};
  return std::pair(Source{std::move(message[0]), std::move(message[1]), std::move(message[2])}, *arch);
}

Message answer_of(const Result<Binary>& binary) {
  if (!binary) return {shortest(static_cast<int>(binary.error().code)), binary.error().message};
  return {binary->code,
          binary->ptx ? "1" : "0",
          binary->target,
          binary->toolchain,
          shortest(binary->registers),
          shortest(binary->spill_bytes),
          shortest(binary->shared_bytes),
          binary->log};
}

std::optional<Result<Binary>> parse_answer(Message message) {
  if (message.size() == 2) {
    const auto code = number<int>(message[0]);
    if (!code) return {};
    return Result<Binary>(Error{static_cast<Code>(*code), std::move(message[1])});
  }
  if (message.size() != 8) return {};
  const auto registers = number<int>(message[4]), spill = number<int>(message[5]),
             shared = number<int>(message[6]);
  if (!registers || !spill || !shared) return {};
  return Result<Binary>(Binary{.code = std::move(message[0]),
                               .ptx = message[1] == "1",
                               .target = std::move(message[2]),
                               .toolchain = std::move(message[3]),
                               .registers = *registers,
                               .spill_bytes = *spill,
                               .shared_bytes = *shared,
                               .log = std::move(message[7])});
}

}  // namespace normjit
