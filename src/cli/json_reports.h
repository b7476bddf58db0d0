// The reports that only the tool has as JSON texts, as --json prints them. The field names are part of the
// tool's interface.
#pragma once

#include <string>
#include <vector>

#include "cli/json_text.h"
#include "cli/reports.h"
#include "normjit/service.h"

namespace normjit::cli {

Json json_of(const Timing& timing);
std::string json_of(const ShowReport& report);
std::string json_of(const RunReport& report);
std::string json_of(const std::vector<BenchReport>& reports);
std::string json_of(const std::vector<TuneReport>& reports, const std::string& cache_directory);

}  // namespace normjit::cli
