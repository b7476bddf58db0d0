// SPDX-License-Identifier: Apache-2.0
// Service::environment(): what normjit finds on this machine.
#include <algorithm>

#include "normjit/base/text.h"
#include "normjit/service/impl.h"

namespace normjit {
namespace {

void add_embedded(const Listed& listed, Environment& found) {
  if (!listed.entry) {
    found.embedded_error = concat({"embedded entry ", listed.id, ": ", listed.entry.error().message});
  } else if (const auto arch = Arch::parse(listed.entry->fact("arch"));
             arch && std::ranges::find(found.embedded_archs, *arch) == found.embedded_archs.end()) {
    found.embedded_archs.push_back(*arch);
  }
}

}  // namespace

Environment Service::environment() {
  Environment found;
  found.version = NORMJIT_VERSION;
  found.cache_directory = impl_->options.cache_directory;
  if (auto usable = impl_->binaries.cache().directory().probe(); !usable)
    found.cache_error = usable.error().message;
  if (RemotePack* const pack = impl_->binaries.remote_pack()) {
    found.remote_pack = {pack->shown(), pack->layer()->path(), ""};
    if (auto fetched = pack->fetch(); !fetched) found.remote_pack.error = fetched.error().message;
  }
  const auto layers = impl_->binaries.cache().layers();
  for (const auto& layer : *layers) {
    const auto entries = layer->list();
    found.layers.push_back({layer->path(), entries ? static_cast<int>(entries->size()) : 0,
                            entries ? "" : entries.error().message});
  }

  if (Remote* const remote = impl_->binaries.remote()) {
    found.remote.url = remote->shown();
    found.remote.unsigned_values = impl_->options.remote_unsigned;
    const auto keys = remote->keys();
    for (const PublicKey& key : keys->trust.keys()) found.remote.trusted.push_back(key.name());
    if (keys->secret) found.remote.signs_as = keys->secret->public_key().name();
    found.remote.error = keys->error;
    if (const auto trip = keys->error.empty() ? remote->probe() : Result<double>(0.0))
      found.remote.milliseconds = *trip;
    else
      found.remote.error = trip.error().message;
  }

  if (const Tier* const embedded = impl_->binaries.cache().embedded()) {
    if (const auto entries = embedded->list()) {
      for (const Listed& listed : *entries) add_embedded(listed, found);
      std::ranges::sort(found.embedded_archs, {}, &Arch::number);
    } else {
      found.embedded_error = entries.error().message;
    }
  }

  const auto version = [](int major, int minor) { return concat({shortest(major), ".", shortest(minor)}); };
  if (const auto facts = impl_->compiler->facts()) {
    found.compiler_path = facts->path;
    found.compiler_version = version(facts->major, facts->minor);
    found.compiler_archs = facts->archs;
  } else {
    found.compiler_error = facts.error().message;
  }

  Driver& driver = *impl_->driver;
  const auto cuda = driver.version();
  if (!cuda) {
    found.driver_error = cuda.error().message;
    return found;
  }
  found.driver_version = version(*cuda / 1000, *cuda % 1000 / 10);
  const auto devices = driver.device_count();
  if (!devices) found.driver_error = devices.error().message;
  for (int i = 0; devices && i < *devices; ++i) {
    const auto profile = driver.profile(i);
    const auto name = driver.device_name(i);
    if (profile && name)
      found.devices.push_back({i, *name, *profile});
    else
      found.driver_error = profile ? name.error().message : profile.error().message;
  }
  return found;
}

}  // namespace normjit
