// SPDX-License-Identifier: Apache-2.0
// The messages between a prebuild and the program normjit-compile, over a socket.
//
// A message is a list of texts: 8 bytes with the size of what follows, then for each text 8 bytes with its
// size and its bytes. Both ends run on one machine, so the byte order is that machine's. The prebuild begins:
//
//   protocol(), path of libnvrtc            -> protocol(), reason why it cannot compile (empty: it can)
//   text, kernel, description, architecture -> the eight fields of a Binary, or code and message of an Error
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "normjit/arch.h"
#include "normjit/base/source.h"
#include "normjit/compiler/compiler.h"
#include "normjit/result.h"

namespace normjit {

using Message = std::vector<std::string>;

// False if the other end is closed. Raises no signal.
bool send_message(int socket, const Message& message);

// Waits for the next message. Nothing if the other end is closed or sends no valid message.
std::optional<Message> receive_message(int socket);

// The version of normjit, the format of the messages and the options that decide the code. Two ends work
// together only if their protocols are equal.
std::string protocol();

Message request_of(const Source& source, Arch arch);
// Nothing if the message is no request.
std::optional<std::pair<Source, Arch>> parse_request(Message message);

Message answer_of(const Result<Binary>& binary);
// Nothing if the message is no answer.
std::optional<Result<Binary>> parse_answer(Message message);

}  // namespace normjit
