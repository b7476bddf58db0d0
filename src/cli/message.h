// Messages between a process of the tool and its children, over a socket: each one is a JSON value as CBOR,
// with its size in front.
#pragma once

#include <optional>

#include "cli/json_text.h"

namespace normjit::cli {

// False if the other end is gone: no signal is raised.
bool send_message(int socket, const Json& message);

// Waits for the next one. Nothing once the other end is gone, or sends what is no message.
std::optional<Json> receive_message(int socket);

}  // namespace normjit::cli
