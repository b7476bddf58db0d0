// The reports of a Service as JSON, as the tool's --json prints them and the C interface returns them. The
// names of the members are part of both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "normjit/base/json.h"
#include "normjit/service.h"

namespace normjit {

JsonObject json_of(const DeviceProfile& device);
// `settings` are what `environment` was looked at with.
JsonObject json_of(const Environment& environment, const Options& settings);
JsonObject json_of(const PrebuildReport& report, const std::string& cache_directory);
// Entries of the directory and of the layers that `settings` has.
JsonObject json_of(const std::vector<EntryReport>& entries, const Options& settings);
JsonObject json_of(const VerifyReport& report, const Options& settings);
JsonObject json_of(const PruneReport& report, const std::string& cache_directory, bool dry_run);
JsonObject json_of(const ExportReport& report, const std::string& path);
JsonObject json_of(const ImportReport& report, const std::string& cache_directory);
// The kernels of a spec on a device, and the generic one; with `rows` above 0, only that for so many.
JsonObject json_of(const std::vector<WhyReport>& kernels, const WhyReport& generic, const NormSpec& spec,
                   const DeviceProfile& device, std::int64_t rows);

}  // namespace normjit
