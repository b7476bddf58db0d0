// SPDX-License-Identifier: Apache-2.0
// The commands of the tool, and what they share. Each command has a file with its options, its help and what
// it does. They throw normjit::Exception for what the library answers with an Error; CommandLine turns that
// into a message and an exit status.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/result.h"
#include "normjit/service.h"

namespace normjit::cli {

// The exit status of the tool; documented in `normjit --help`.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,       // a kernel failed, something is missing or damaged, a check found wrong numbers
  kUsage = 2,        // the command line, a manifest or an input file is wrong; zero kernels were asked for
  kEnvironment = 3,  // no compiler, no GPU, no driver or no libsodium where one is needed
  kCacheIo = 4,      // the cache or an output file cannot be read or written
  kUntrusted = 5,    // a signature is missing or wrong, or of a key that is not trusted
};

// The exit status for an error of the library.
ExitCode exit_code(Code code) noexcept;

// Prints "normjit: MESSAGE" to stderr, without control characters but line breaks, and returns the code.
ExitCode fail(ExitCode code, std::string_view message);

// What several commands take.
struct CommonOptions {
  std::optional<std::string> cache_directory;  // empty: there is none; nothing: as the environment says
  std::string log;                             // debug, info, warn, error, off; empty: NORMJIT_LOG, else warn
  bool json = false;
  std::vector<std::string> words;  // of the command line
};

class CommandLine;
// Each adds its command.
void add_prebuild(CommandLine& line);
void add_list(CommandLine& line);
void add_why(CommandLine& line);
void add_verify(CommandLine& line);
void add_prune(CommandLine& line);
void add_export(CommandLine& line);
void add_import(CommandLine& line);
void add_sign(CommandLine& line);
void add_show(CommandLine& line);
void add_render(CommandLine& line);
void add_run(CommandLine& line);
void add_bench(CommandLine& line);
void add_tune(CommandLine& line);
void add_remote(CommandLine& line);
void add_doctor(CommandLine& line);

// parse_spec and parse_plan, whose errors quote the text as oracle::shown() has it.
Result<NormSpec> spec_from(std::string_view text);
Result<Plan> plan_from(std::string_view text);
// What `remote stats` and `doctor` say of the store that machines share.
std::string remote_text(const Environment::Remote& remote);
Options service_options(const CommonOptions& options);
inline constexpr std::string_view kNoCacheDirectory =
    "there is no cache directory: set --cache-dir, NORMJIT_CACHE_DIR or HOME";
inline constexpr std::string_view kNoSignKey =
    "there is no key to sign with: set --key or NORMJIT_SIGN_KEY; `normjit sign keygen` makes one";
// Why a source of entries cannot be read: "cannot open /d/x.njp: No such file or directory". Empty: it can.
// Reads at most the index of a pack.
std::string source_error(const std::string& path, const Options& settings);
// Says on stderr which layers cannot be read, a line each, takes them out of the settings and returns how
// many.
int drop_unreadable_layers(Options& settings);
// "/d", or "/d and 2 layers".
std::string places(const Options& settings);
// Those of the manifests and then the others, without repetition.
std::vector<NormSpec> wanted_specs(const std::vector<std::string>& manifests,
                                   const std::vector<std::string>& specs);
// The devices of a list that must name exactly one; empty is this machine's first GPU, else sm_90.
DeviceProfile one_device(Service& service, const std::string& arch);
// Where the generic kernel is: "embedded, for sm_90", "in /cache, for sm_90", "not here; it would be
// compiled".
std::string generic_text(const WhyReport& generic);
// The plan that a service takes for launches of this regime and alignment, and whether tune found it.
struct PlanOfUse {
  Plan plan;
  bool tuned;
};
PlanOfUse plan_of_use(Service& service, const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                      Alignment alignment, const Uses& uses);
// To stdout, at once. Throws CacheIo where that takes no more.
void print(const std::string& text);

}  // namespace normjit::cli
