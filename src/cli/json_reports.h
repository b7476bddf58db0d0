// The reports that only the tool has as JSON texts, as --json prints them. The field names are part of the
// tool's interface.
#pragma once

#include <string>
#include <vector>

#include "cli/reports.h"
#include "cli/suite_report.h"
#include "normjit/service.h"

namespace normjit::cli {

std::string json_of(const ShowReport& report);
std::string json_of(const RunReport& report);
std::string json_of(const std::vector<BenchReport>& reports);
// The suite before and after it is measured; each case has "spec", "rows", "regime", "bytes" and "target".
std::string json_of(const std::vector<SuiteCase>& cases, std::uint64_t seed);
std::string json_of(const SuiteReport& report);
std::string json_of(const std::vector<TuneReport>& reports, const std::string& cache_directory);

}  // namespace normjit::cli
