#include "normjit/compiler/serve_compiles.h"

#include <poll.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "normjit/base/uninterrupted.h"
#include "normjit/compiler/messages.h"

namespace normjit {
namespace {

void end_with(int socket) {
  pollfd watched{.fd = socket, .events = POLLRDHUP, .revents = 0};
  if (uninterrupted([&] { return poll(&watched, 1, -1); }) > 0) _exit(0);
}

}  // namespace

void serve_compiles(int socket, const std::function<std::shared_ptr<Compiler>(const std::string&)>& make) {
  const std::optional<Message> hello = receive_message(socket);
  if (!hello || hello->size() != 2) return;
  if ((*hello)[0] != protocol()) {
    send_message(socket, {protocol(), "it is of another version"});
    return;
  }
  const std::shared_ptr<Compiler> compiler = make((*hello)[1]);
  const auto facts = compiler->facts();
  if (!send_message(socket, {protocol(), facts ? "" : facts.error().message}) || !facts) return;
  std::thread(end_with, socket).detach();
  while (auto message = receive_message(socket)) {
    const auto request = parse_request(*std::move(message));
    if (!request || !send_message(socket, answer_of(compiler->compile(request->first, request->second))))
      return;
  }
}

}  // namespace normjit
