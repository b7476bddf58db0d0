// SPDX-License-Identifier: Apache-2.0
// The reports of a Service as JSON, which the tool's --json prints and the C interface returns. The names of
// the members are part of both interfaces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "normjit/base/json.h"
#include "normjit/service.h"

namespace normjit {

Json json_of(const DeviceProfile& device);
// `settings` are those of the Service that returned `environment`.
Json json_of(const Environment& environment, const Options& settings);
Json json_of(const PrebuildReport& report, const std::string& cache_directory);
// The entries of the directory and layers of `settings`.
Json json_of(const std::vector<EntryReport>& entries, const Options& settings);
Json json_of(const VerifyReport& report, const Options& settings);
Json json_of(const PruneReport& report, const std::string& cache_directory, bool dry_run);
Json json_of(const ExportReport& report, const std::string& path);
Json json_of(const RemoteReport& report);
Json json_of(const Environment::Remote& remote);
Json json_of(const ImportReport& report, const std::string& cache_directory);
// The kernels of a spec on a device, and the generic one. With `rows` above 0: only the kernel for that many
// rows.
Json json_of(const std::vector<WhyReport>& kernels, const WhyReport& generic, const NormSpec& spec,
             const DeviceProfile& device, std::int64_t rows);

}  // namespace normjit
