#include "cli/message.h"

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "normjit/cache/system_call.h"

namespace normjit::cli {
namespace {

// Both ends run on one machine, so that its byte order will do.
using Size = std::uint64_t;
// Far above any source or cubin: a bound for what a foreign sender could make this process allocate.
constexpr Size kMostBytes = Size{256} << 20;

bool send_all(int socket, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = uninterrupted([&] { return send(socket, at, bytes, MSG_NOSIGNAL); });
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
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

}  // namespace

bool send_message(int socket, const Json& message) {
  const std::vector<std::uint8_t> bytes = Json::to_cbor(message);
  const Size size = bytes.size();
  return send_all(socket, &size, sizeof size) && send_all(socket, bytes.data(), bytes.size());
}

std::optional<Json> receive_message(int socket) {
  Size size = 0;
  if (!receive_all(socket, &size, sizeof size) || size > kMostBytes) return {};
  std::vector<std::uint8_t> bytes(size);
  if (!receive_all(socket, bytes.data(), bytes.size())) return {};
  Json message = Json::from_cbor(bytes, /*strict=*/true, /*allow_exceptions=*/false);
  if (message.is_discarded()) return {};
  return message;
}

}  // namespace normjit::cli
