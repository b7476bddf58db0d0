// SPDX-License-Identifier: Apache-2.0
#include "normjit/remote/sodium.h"

#include <atomic>
#include <memory>

#include "normjit/base/dynamic_library.h"
#include "normjit/base/fork.h"
#include "normjit/base/text.h"

namespace normjit {
namespace {

// Of 1.0.19 and newer, and of 1.0.13 to 1.0.18.
constexpr const char* kSonames[] = {"libsodium.so.26", "libsodium.so.23"};

// Set once, and never freed: a caller may hold it for as long as the process lives.
constinit std::atomic<const Sodium*> opened = nullptr;

Result<Sodium> functions_of(const DynamicLibrary& library) {
  Sodium call;
#define NORMJIT_FIND(name, function, ...)                                       \
  call.name = reinterpret_cast<decltype(call.name)>(library.symbol(#function)); \
  if (call.name == nullptr) return Error{Code::CacheIo, "it has no " #function};
  NORMJIT_SODIUM_CALLS(NORMJIT_FIND)
#undef NORMJIT_FIND
  if (call.init() < 0) return Error{Code::CacheIo, "it cannot be initialised"};
  return call;
}

}  // namespace

Result<Sodium> open_sodium(std::span<const char* const> sonames) {
  const ForkGate gate;  // for the loader's locks, and for that of sodium_init()
  std::string tried;
  for (const char* const soname : sonames) {
    std::string why;
    const DynamicLibrary library = DynamicLibrary::open(soname, &why);
    if (library) {
      auto found = functions_of(library);
      if (found) return found;
      why = found.error().message;
    }
    const std::string prefix = concat({soname, ": "});  // the loader's message may begin with it
    if (!why.starts_with(prefix)) why.insert(0, prefix);
    tried += concat({tried.empty() ? "" : "; ", why});
  }
  return Error{Code::CacheIo,
               concat({"libsodium, with which signatures are made and checked, cannot be opened (", tried,
                       "): install libsodium 1.0.13 or newer, for example the package libsodium23"})};
}

const Sodium* sodium(std::string* why) {
  if (const Sodium* const already = opened.load(std::memory_order_acquire)) return already;
  Result<Sodium> found = open_sodium(kSonames);
  if (!found) {
    if (why != nullptr) *why = found.error().message;
    return nullptr;
  }
  auto made = std::make_unique<const Sodium>(*found);
  const Sodium* first = nullptr;
  if (opened.compare_exchange_strong(first, made.get(), std::memory_order_acq_rel)) first = made.release();
  return first;
}

}  // namespace normjit
