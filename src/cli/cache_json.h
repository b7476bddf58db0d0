// The reports about the cache as JSON texts, as --json prints them. The field names are part of the tool's
// interface.
#pragma once

#include <string>
#include <vector>

#include "cli/reports.h"
#include "normjit/service.h"

namespace normjit::cli {

std::string json_of(const PrebuildReport& report, const std::string& cache_directory);
// Entries of the directory and of the layers that `settings` has.
std::string json_of(const std::vector<EntryReport>& entries, const Options& settings);
std::string json_of(const SpecWhyReport& report);
std::string json_of(const VerifyReport& report, const Options& settings);
std::string json_of(const PruneReport& report, const std::string& cache_directory, bool dry_run);
std::string json_of(const PackReport& report);
std::string json_of(const ImportReport& report, const std::string& cache_directory);

}  // namespace normjit::cli
