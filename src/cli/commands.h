// The commands of the tool, one function each: options in, exit status out. They throw normjit::Exception for
// what the library answers with an Error; CommandLine turns that into a message and an exit status.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/service.h"
#include "verify/problem.h"

namespace normjit::cli {

// What several commands take.
struct CommonOptions {
  std::optional<std::string> cache_directory;  // empty: there is none; nothing: as the environment says
  std::string log;                             // debug, info, warn, error, off; empty: NORMJIT_LOG, else warn
  bool json = false;
  std::vector<std::string> words;  // of the command line
};

struct PrebuildCommand : CommonOptions {
  std::vector<std::string> specs, manifests;
  std::string archs = "native";
  int jobs = 0;
  bool dry_run = false, check = false;
};
int prebuild(const PrebuildCommand& options);

struct ListCommand : CommonOptions {
  std::string sort = "spec";  // id, spec, size or age
  bool layers = false;
};
int list(const ListCommand& options);

struct WhyCommand : CommonOptions {
  std::string spec;
  std::string arch;       // empty: this machine's GPU, else sm_90
  std::int64_t rows = 0;  // 0: every kernel of the spec
};
int why(const WhyCommand& options);

struct VerifyCommand : CommonOptions {
  bool quarantine = false;
};
int verify(const VerifyCommand& options);

struct PruneCommand : CommonOptions {
  std::string max_bytes;  // "256M"; empty: as the environment says
  bool all = false;
  std::int64_t stale_seconds = PruneOptions{}.stale_seconds;
  bool dry_run = false;
};
int prune(const PruneCommand& options);

struct ExportCommand : CommonOptions {
  std::string pack;
  std::vector<std::string> specs, manifests;
  std::string archs;  // empty: native, with specs
  std::vector<std::string> from;
};
int export_pack(const ExportCommand& options);

struct ImportCommand : CommonOptions {
  std::vector<std::string> sources;
};
int import_from(const ImportCommand& options);

struct ShowCommand : CommonOptions {
  std::string spec;
  std::string arch;  // as of why
  std::int64_t rows = 0;
};
int show(const ShowCommand& options);

struct RenderCommand : CommonOptions {
  std::string spec;
  std::string arch;  // as of why
  std::int64_t rows = 0;
  int alignment = 8;
  std::string plan;    // empty: the planner's choice
  std::string output;  // empty: standard output
};
int render(const RenderCommand& options);

// The option of `run` that names the .npy file of an operand: "--x", "--mean-out"; that of y is "--out".
std::string option_of(const OperandRow& row);
struct RunCommand : CommonOptions {
  std::string spec;
  std::int64_t rows = -1;         // -1: as many as --x has
  PerOperand<std::string> files;  // .npy files: inputs, empty for random; outputs to write
  oracle::RowStrides row_strides;
  std::uint64_t seed = 1;
  bool check = false;
  std::int64_t check_rows = std::numeric_limits<std::int64_t>::max();
  std::string plan;           // empty: the planner's choice
  std::string device = "0";   // the CUDA ordinal of a GPU, or "host"
  std::optional<int> repeat;  // a GPU only; none: 20
  // With --device host only; empty: as HostOptions has it, on the default profile of sm_90.
  std::string arch, schedules, checks, keep_directory;
};
int run(const RunCommand& options);

struct BenchCommand : CommonOptions {
  std::vector<std::string> specs;
  std::string rows;  // comma-separated; empty: as many as make x 256 MiB
  std::string plan;  // empty: the planner's choice
  int repeat = 50;
  int device = 0;
};
int bench(const BenchCommand& options);

struct TuneCommand : CommonOptions {
  std::vector<std::string> specs;
  std::string rows;  // as of bench
  int repeat = 30;
  int top = 0;  // measure only so many plans; 0: all
  int device = 0;
  bool dry_run = false;
};
int tune(const TuneCommand& options);

int doctor(const CommonOptions& options);

// Each adds its command.
class CommandLine;
void add_prebuild(CommandLine& line);
void add_list(CommandLine& line);
void add_why(CommandLine& line);
void add_verify(CommandLine& line);
void add_prune(CommandLine& line);
void add_export(CommandLine& line);
void add_import(CommandLine& line);
void add_show(CommandLine& line);
void add_render(CommandLine& line);
void add_run(CommandLine& line);
void add_bench(CommandLine& line);
void add_tune(CommandLine& line);
void add_doctor(CommandLine& line);

// What the commands share.
// parse_spec and parse_plan, whose errors quote the text as oracle::shown() has it.
Result<NormSpec> spec_from(std::string_view text);
Result<Plan> plan_from(std::string_view text);
Options service_options(const CommonOptions& options);
inline constexpr std::string_view kNoCacheDirectory =
    "there is no cache directory: set --cache-dir, NORMJIT_CACHE_DIR or HOME";
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
// To stdout, at once. Throws CacheIo where that takes no more.
void print(const std::string& text);

}  // namespace normjit::cli
