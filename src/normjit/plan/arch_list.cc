// SPDX-License-Identifier: Apache-2.0
#include "normjit/plan/arch_list.h"

#include <algorithm>
#include <string>

#include "normjit/base/text.h"

namespace normjit {
namespace {

void add(std::vector<DeviceProfile>& profiles, const DeviceProfile& profile) {
  if (std::find(profiles.begin(), profiles.end(), profile) == profiles.end()) profiles.push_back(profile);
}

// Adds every GPU of this machine. Without one, returns the error of device 0 and what to do.
Result<void> add_native(std::vector<DeviceProfile>& profiles, const NativeDevice& native) {
  for (int ordinal = 0;; ++ordinal) {
    const Result<DeviceProfile> profile = native(ordinal);
    if (profile) {
      add(profiles, *profile);
    } else if (ordinal == 0) {
      return Error{profile.code(),
                   "native finds no GPU; name architectures, as in sm_90,sm_100. " + profile.error().message};
    } else if (profile.code() != Code::NoDevice) {
      return profile.error();
    } else {
      return {};
    }
  }
}

}  // namespace

Result<std::vector<DeviceProfile>> parse_arch_list(std::string_view list, const NativeDevice& native) {
  std::vector<DeviceProfile> profiles;
  for (const std::string_view word : split(list, ',')) {
    if (word == "native") {
      if (const Result<void> added = add_native(profiles, native); !added) return added.error();
    } else if (word == "all" || word == "all-major") {
      int major = 0;
      for (const DeviceProfile& profile : DeviceProfile::known()) {
        if (word == "all" || profile.arch.major() != major) add(profiles, profile);
        major = profile.arch.major();
      }
    } else if (word.empty()) {
      return Error{Code::BadArgument,
                   "the list of architectures has an empty word; give a list such as sm_80,sm_90, native, "
                   "all-major, all"};
    } else {
      const Result<Arch> arch = Arch::parse(word);
      if (!arch) return arch.error();
      if (arch->suffix != '\0')
        return Error{Code::BadArgument,
                     concat({word, ": no kernel needs an architecture-specific target; name ",
                             Arch{arch->number}.name()})};
      const Result<DeviceProfile> profile = DeviceProfile::of(*arch);
      if (!profile) return profile.error();
      add(profiles, *profile);
    }
  }
  return profiles;
}

}  // namespace normjit
