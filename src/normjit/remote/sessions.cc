// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/sessions.h"

#include <sys/stat.h>

#include <filesystem>
#include <mutex>
#include <new>
#include <utility>

#include "normjit/base/dynamic_library.h"
#include "normjit/base/text.h"
#include "normjit/cache/read_file.h"
#include "normjit/result.h"

namespace normjit {
namespace {

constexpr std::size_t kWhy = 400;
constexpr std::size_t kVersion = 256;

// The plug-in of a URL's scheme; empty: there is none.
std::string_view plugin_of(std::string_view url) {
  const std::string_view scheme = url.substr(0, url.find("://"));
  if (scheme == "redis" || scheme == "rediss") return "redis";
  if (scheme == "http" || scheme == "https" || scheme == "s3") return "http";
  return {};
}

// Where plug-ins are installed, from the tool's directory.
#ifndef NORMJIT_PLUGINS
#define NORMJIT_PLUGINS "../lib"
#endif

// The file of a plug-in beside this library or program, or where they are installed.
Result<std::string> find_plugin(std::string_view name) {
  const std::string own = file_of_address(reinterpret_cast<const void*>(&shown_url));
  const std::string file = concat({"libnormjit-remote-", name, ".so"});
  std::error_code failed;
  const auto directory = std::filesystem::canonical(own, failed).parent_path();
  for (const char* folder : {".", NORMJIT_PLUGINS}) {
    const std::string path = (directory / folder / file).lexically_normal();
    struct stat facts = {};
    if (failed || stat(path.c_str(), &facts) != 0) continue;
    const std::string refusal =
        S_ISREG(facts.st_mode) ? distrust(facts, /*shared=*/false) : "is not a regular file";
    if (!refusal.empty()) return Error{Code::CacheIo, concat({path, " ", refusal})};
    return path;
  }
  return Error{Code::CacheIo,
               concat({"there is no ", file, " beside ", own, ": install normjit-remote-", name})};
}

// An exported function of the plug-in that serves this URL.
Result<void*> function_of(const std::string& url, const char* name) {
  const std::string_view plugin = plugin_of(url);
  if (plugin.empty())
    return Error{Code::CacheIo, concat({"'", shown_url(url),
                                        "' begins with none of redis://, http://, https:// and s3://"})};
  const auto path = find_plugin(plugin);
  if (!path) return path.error();
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open(*path, &why);
  if (!library) return Error{Code::CacheIo, concat({"cannot open ", *path, ": ", why})};
  void* const function = library.symbol(name);
  if (function == nullptr) return Error{Code::CacheIo, concat({*path, " exports no ", name})};
  return function;
}

Outcome not_called(std::string why) { return {NORMJIT_REMOTE_FAILED, std::move(why), /*called=*/false}; }

// Calls a function of a store or plug-in: function(why, why_size).
template <class Function>
Outcome timed(const Function& function) {
  char why[kWhy] = {};
  const auto begin = std::chrono::steady_clock::now();
  const normjit_remote_outcome kind = function(why, sizeof why);
  const auto took = std::chrono::steady_clock::now() - begin;
  why[kWhy - 1] = '\0';
  const bool has_reason = kind == NORMJIT_REMOTE_FAILED || kind == NORMJIT_REMOTE_REFUSED;
  return {.kind = kind, .why = has_reason ? why : "", .took = took};
}

}  // namespace

void Sink::take(void* to, const void* bytes, std::size_t size) noexcept {
  auto* const sink = static_cast<Sink*>(to);
  try {
    sink->value.assign(static_cast<const char*>(bytes), size);
  } catch (const std::bad_alloc&) {
    sink->out_of_memory = true;
  }
}

std::string shown_url(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme == url.npos) return "a URL without a scheme";
  // A password may contain any character, '?' and '#' included: all up to the last '@' goes.
  std::string_view rest = url.substr(scheme + 3);
  if (const std::size_t at = rest.rfind('@'); at != rest.npos) rest.remove_prefix(at + 1);
  return concat({url.substr(0, scheme + 3), rest.substr(0, rest.find_first_of("?#"))});
}

std::string Sessions::shown() const { return hosted_ ? "the host's store" : shown_url(url_); }

Outcome Sessions::open(normjit_remote& session) {
  const auto open_session = function_of(url_, "normjit_remote_open");
  if (!open_session) return not_called(open_session.error().message);
  char text[kWhy] = {};
  if (reinterpret_cast<normjit_remote_open_function>(*open_session)(url_.c_str(), &session, text,
                                                                    sizeof text) == NORMJIT_REMOTE_DONE)
    return {.kind = NORMJIT_REMOTE_DONE};
  return not_called(text);
}

bool Sessions::take(normjit_remote& session) {
  const std::lock_guard lock(mutex_);
  if (generation_ != fork_generation()) {
    generation_ = fork_generation();
    idle_.clear();  // the parent uses their connections
  }
  if (idle_.empty()) return false;
  session = idle_.back();
  idle_.pop_back();
  return true;
}

void Sessions::give_back(const normjit_remote& session) {
  {
    const std::lock_guard lock(mutex_);
    if (generation_ == fork_generation() && idle_.size() < kIdle) {
      idle_.push_back(session);
      return;
    }
  }
  if (session.close != nullptr) session.close(session.user);
}

// A plug-in's client library may hold locks and have exit handlers: a fork and the exit wait for the call. A
// host's function is none of ours to hold them back.
Outcome Sessions::call(const Call& call) noexcept {
  try {
    const auto on = [&](const normjit_remote& store) {
      return timed([&](char* why, std::size_t size) { return call(store, why, size); });
    };
    if (hosted_) return on(store_);
    const ForkGate gate;
    if (!gate) return {.called = false};
    normjit_remote session = NORMJIT_REMOTE_INIT;
    if (!take(session))
      if (auto opened = open(session); opened.kind != NORMJIT_REMOTE_DONE) return opened;
    Outcome outcome = on(session);
    // The client library may have registered exit handlers by now.
    if (!exit_is_watched_.exchange(true)) ForkGate::close_at_exit();
    give_back(session);
    return outcome;
  } catch (const std::bad_alloc&) {
    return {.why = "this process has no memory left"};
  }
}

Outcome fetch_file(const std::string& url, const std::string& version, std::size_t max_bytes,
                   std::chrono::milliseconds limit, std::string& bytes, std::string& new_version) noexcept {
  try {
    const std::string_view scheme = std::string_view(url).substr(0, url.find("://"));
    if (scheme != "http" && scheme != "https" && scheme != "s3")
      return not_called(concat({"'", shown_url(url), "' begins with none of http://, https:// and s3://"}));
    const ForkGate gate;
    if (!gate) return {.called = false};
    const auto function = function_of(url, "normjit_remote_fetch");
    if (!function) return not_called(function.error().message);
    const auto fetch = reinterpret_cast<normjit_remote_fetch_function>(*function);
    Sink sink;
    char text[kVersion] = {};
    Outcome outcome = timed([&](char* why, std::size_t size) {
      return fetch(url.c_str(), version.c_str(), max_bytes, Sink::take, &sink, text, sizeof text,
                   static_cast<std::int32_t>(limit.count()), why, size);
    });
    text[kVersion - 1] = '\0';
    new_version = text;
    ForkGate::close_at_exit();  // the client library may have registered exit handlers by now
    if (sink.out_of_memory) return {.why = "this process has no memory left"};
    bytes = std::move(sink.value);
    return outcome;
  } catch (const std::bad_alloc&) {
    return {.why = "this process has no memory left"};
  }
}

// What a child has of its parent's sessions stays open: to close one could end the parent's connection.
Sessions::~Sessions() {
  if (hosted_) {
    if (store_.close != nullptr) store_.close(store_.user);
    return;
  }
  if (generation_ != fork_generation() || idle_.empty()) return;
  const ForkGate gate;
  if (!gate) return;
  for (const normjit_remote& session : idle_)
    if (session.close != nullptr) session.close(session.user);
}

}  // namespace normjit
