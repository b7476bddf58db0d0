// SPDX-License-Identifier: Apache-2.0
// Makes a service from the environment and the caller's options.
#include <string>
#include <utility>

#include "normjit/base/text.h"
#include "normjit/c_api/call.h"
#include "normjit/c_api/values.h"

namespace normjit::c_api {
namespace {

LogCallback log_of(normjit_log_callback call, void* user) {
  return [call, user](LogLevel level, std::string_view text) {
    call(user, number_of(level), std::string(text).c_str());
  };
}

EventCallback event_callback_of(normjit_event_callback call, void* user) {
  return [call, user](const Event& event) {
    const std::string kind(name(event.kind)), spec(event.spec), plan(event.plan), arch(event.arch),
        detail(event.detail);
    const normjit_event told = {.struct_size = sizeof told,
                                .kind = kind.c_str(),
                                .spec = spec.c_str(),
                                .plan = plan.c_str(),
                                .arch = arch.c_str(),
                                .detail = detail.c_str(),
                                .milliseconds = event.milliseconds,
                                .phase = number_of(event.phase)};
    call(user, &told);
  };
}

// Ok, or what is wrong with the numbers of the options.
Result<void> check(const normjit_options& o) {
  for (const auto& [name, value] :
       {std::pair{"ignore_environment", o.ignore_environment}, std::pair{"shared_cache", o.shared_cache},
        std::pair{"exact_toolchain", o.exact_toolchain}, std::pair{"batch_invariant", o.batch_invariant},
        std::pair{"remote_unsigned", o.remote_unsigned}})
    if (!is_within(value, NORMJIT_NO))
      return out_of_range(name, value, "NORMJIT_YES (1), NORMJIT_NO (2), or 0 for the default");
  if (!is_within(o.mode, NORMJIT_CACHED_ONLY))
    return out_of_range("mode", o.mode,
                        "NORMJIT_EAGER (1), NORMJIT_LAZY (2), NORMJIT_CACHED_ONLY (3), or 0 for the default");
  if (o.max_cache_bytes < -1)
    return out_of_range("max_cache_bytes", o.max_cache_bytes,
                        "a number of bytes, -1 for no bound, or 0 for the default");
  return {};
}

void set(const char* given, std::string& option) {
  if (given != nullptr) option = given;
}

void set_switch(std::int32_t given, bool& option) {
  if (given != 0) option = given == NORMJIT_YES;
}

Result<Options> options_of(const normjit_options* given) {
  if (given == nullptr) return Options::from_environment();
  const auto o = struct_of("normjit_options", *given);
  if (!o) return o.error();
  if (auto valid = check(*o); !valid) return valid.error();

  Options options = o->ignore_environment == NORMJIT_YES ? Options{} : Options::from_environment();
  options.mode = enum_of(o->mode, options.mode);
  set_switch(o->shared_cache, options.shared_cache);
  set_switch(o->exact_toolchain, options.exact_toolchain);
  set_switch(o->batch_invariant, options.batch_invariant);
  set(o->cache_directory, options.cache_directory);
  if (o->layers != nullptr) options.layers = paths_of(o->layers);
  if (o->max_cache_bytes != 0) options.max_cache_bytes = o->max_cache_bytes == -1 ? 0 : o->max_cache_bytes;
  set(o->miss_log, options.miss_log);
  set(o->remote, options.remote);
  set(o->remote_pack, options.remote_pack);
  if (o->remote_store != nullptr) {
    auto store = struct_of("normjit_remote", *o->remote_store);
    if (!store) return store.error();
    if (store->get == nullptr) return null("normjit_remote.get");
    options.remote_store = *store;
  }
  set_switch(o->remote_unsigned, options.remote_unsigned);
  set(o->compiler_path, options.compiler_path);
  set(o->cuda_home, options.cuda_home);
  set(o->template_directory, options.template_directory);
  if (o->trust != nullptr) options.trust = words_of(o->trust);
  set(o->sign_key, options.sign_key);
  if (o->log != nullptr) options.log = log_of(o->log, o->log_user);
  if (o->on_event != nullptr) options.on_event = event_callback_of(o->on_event, o->event_user);
  return options;
}

}  // namespace
}  // namespace normjit::c_api

using namespace normjit;
using namespace normjit::c_api;

normjit_status normjit_service_create(const normjit_options* options, normjit_service** service,
                                      char** error) {
  return guarded(error, {{"service", service}}, [&]() -> Result<void> {
    auto settings = options_of(options);
    if (!settings) return settings.error();
    *service = new normjit_service(*std::move(settings));
    return {};
  });
}

void normjit_service_destroy(normjit_service* service) { delete service; }
