// SPDX-License-Identifier: Apache-2.0
// What the plug-ins of remote stores (normjit/remote.h) share: the sentence for the caller, the end of
// exceptions, and URLs. Header-only: a plug-in links nothing of normjit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/remote.h"

namespace normjit::plugins {

using Outcome = normjit_remote_outcome;

// The caller's room for a sentence.
class Why {
 public:
  Why(char* text, std::size_t size) noexcept : text_(text), size_(text == nullptr ? 0 : size) {}

  // Write the sentence, cut to the room, on one line. FAILED, REFUSED.
  Outcome failed(std::initializer_list<std::string_view> parts) const noexcept {
    write(parts);
    return NORMJIT_REMOTE_FAILED;
  }
  Outcome refused(std::initializer_list<std::string_view> parts) const noexcept {
    write(parts);
    return NORMJIT_REMOTE_REFUSED;
  }

 private:
  void write(std::initializer_list<std::string_view> parts) const noexcept {
    std::size_t end = 0;
    for (const std::string_view part : parts) {
      for (const char c : part)
        if (end + 1 < size_) text_[end++] = static_cast<unsigned char>(c) < ' ' || c == 127 ? ' ' : c;
    }
    if (size_ > 0) text_[end] = 0;
  }

  char* text_;
  std::size_t size_;
};

// body(), or FAILED if it throws: nothing is thrown into C.
template <class Body>
Outcome guarded(const Why& why, const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return why.failed({"The plug-in has no memory left"});
  } catch (...) {
    return why.failed({"The plug-in met an error of the system"});  // std::thread: no more threads
  }
}

// scheme://[[user]:password@]host[:port][/path][?name=value[&name=value]...]
struct Url {
  std::string scheme;
  std::string user;                                        // decoded
  std::optional<std::string> password;                     // decoded
  std::string host;                                        // without brackets
  int port = 0;                                            // 0: not said
  std::string path;                                        // as written, empty or from its '/' on
  std::vector<std::pair<std::string, std::string>> query;  // values decoded

  // What a sentence may say of it: scheme, host and port.
  std::string place() const {
    const bool brackets = host.find(':') != host.npos;
    return concat({scheme, "://", brackets ? "[" : "", host, brackets ? "]" : "", port != 0 ? ":" : "",
                   port != 0 ? std::to_string(port) : ""});
  }
};

inline bool consists_of(std::string_view text, std::string_view more_than_letters_and_digits) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           more_than_letters_and_digits.find(c) != std::string_view::npos;
  });
}

// "%2F" as "/". Nothing if a '%' has no two digits behind it, or stands for a 0 byte, which would end a C
// text.
inline std::optional<std::string> decoded(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      plain += text[at];
      continue;
    }
    unsigned char byte = 0;
    const std::string_view digits = text.substr(at + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (error != std::errc() || digits.size() != 2 || end != digits.data() + 2 || byte == 0)
      return std::nullopt;
    plain += static_cast<char>(byte);
    at += 2;
  }
  return plain;
}

// The parts of a URL; or nothing, and the mistake: words behind "The URL ", which quote nothing of it.
inline std::optional<Url> parse_url(std::string_view text, std::string& mistake) {
  const auto wrong = [&](std::string_view words) {
    mistake = words;
    return std::nullopt;
  };
  Url url;
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127 && c != '#'; }))
    return wrong("has a blank, a '#' or a byte that is not ASCII");
  const std::size_t colon = text.find("://");
  if (colon == text.npos || colon == 0) return wrong("does not begin with a scheme, as in redis://host");
  url.scheme = text.substr(0, colon);
  text.remove_prefix(colon + 3);

  std::string_view authority = text.substr(0, text.find_first_of("/?"));
  text.remove_prefix(authority.size());
  if (const std::size_t at = authority.rfind('@'); at != authority.npos) {
    const std::string_view info = authority.substr(0, at);
    authority.remove_prefix(at + 1);
    const std::size_t end = info.find(':');
    const std::optional<std::string> user = decoded(info.substr(0, end));
    if (end != info.npos) url.password = decoded(info.substr(end + 1));
    if (!user || (end != info.npos && !url.password))
      return wrong("has a user or password with a '%' that does not begin the code of a byte");
    url.user = *user;
  }

  std::string_view port;
  bool has_port = false;
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == authority.npos) return wrong("has a '[' without its ']'");
    url.host = authority.substr(1, end - 1);
    authority.remove_prefix(end + 1);
    has_port = !authority.empty();
    if (url.host.find(':') == url.host.npos || !consists_of(url.host, ":.%-_") ||
        (has_port && authority[0] != ':'))
      return wrong("has no IPv6 address in its brackets");
    port = authority.substr(has_port ? 1 : 0);
  } else {
    const std::size_t end = authority.find(':');
    url.host = authority.substr(0, end);
    has_port = end != authority.npos;
    if (has_port) port = authority.substr(end + 1);
    if (url.host.empty() || url.host.size() > 255 || !consists_of(url.host, ".-_"))
      return wrong("has no valid host");
  }
  if (has_port) {
    const std::optional<int> value = number<int>(port);
    if (!value || *value < 1 || *value > 65535) return wrong("has no valid port behind its host");
    url.port = *value;
  }

  const std::size_t mark = text.find('?');
  url.path = text.substr(0, mark);
  if (mark == text.npos) return url;
  for (const std::string_view pair : split(text.substr(mark + 1), '&')) {
    const std::size_t end = pair.find('=');
    const std::optional<std::string> value = decoded(end == pair.npos ? "" : pair.substr(end + 1));
    if (end == pair.npos || end == 0 || !value)
      return wrong("has something other than name=value behind its '?'");
    url.query.emplace_back(pair.substr(0, end), *value);
  }
  return url;
}

// What a plug-in opens: fills `remote` with the functions of this session, which has get and put, and may
// have lease and release; their arguments are those of the C functions. Without a session `why` has been
// written.
template <class Session>
Outcome hand_over(std::unique_ptr<Session> made, normjit_remote* remote, const Why& why) {
  if (made == nullptr) return NORMJIT_REMOTE_FAILED;
  if (remote->struct_size < sizeof *remote)
    return why.failed({"The plug-in is newer than the library that opens it"});
  remote->get = [](void* user, const char* key, std::size_t max_bytes, normjit_remote_sink sink, void* to,
                   std::int32_t timeout_ms, char* text, std::size_t size) {
    const Why why(text, size);
    return guarded(
        why, [&] { return static_cast<Session*>(user)->get(key, max_bytes, sink, to, timeout_ms, why); });
  };
  remote->put = [](void* user, const char* key, const void* bytes, std::size_t count, std::int32_t timeout_ms,
                   char* text, std::size_t size) {
    const Why why(text, size);
    const std::string_view value(static_cast<const char*>(bytes), count);
    return guarded(why, [&] { return static_cast<Session*>(user)->put(key, value, timeout_ms, why); });
  };
  remote->lease = nullptr;
  remote->release = nullptr;
  if constexpr (requires { &Session::lease; }) {
    remote->lease = [](void* user, const char* key, const char* owner, std::int32_t lifetime_ms,
                       std::int32_t timeout_ms, char* text, std::size_t size) {
      const Why why(text, size);
      return guarded(
          why, [&] { return static_cast<Session*>(user)->lease(key, owner, lifetime_ms, timeout_ms, why); });
    };
    remote->release = [](void* user, const char* key, const char* owner, std::int32_t timeout_ms, char* text,
                         std::size_t size) {
      const Why why(text, size);
      return guarded(why, [&] { return static_cast<Session*>(user)->release(key, owner, timeout_ms, why); });
    };
  }
  remote->close = [](void* user) { delete static_cast<Session*>(user); };
  remote->user = made.release();
  return NORMJIT_REMOTE_DONE;
}

}  // namespace normjit::plugins
