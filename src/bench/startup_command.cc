// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/startup.h"
#include "cli/command_line.h"
#include "cli/measure.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "simt/process.h"

namespace normjit::bench {

using namespace cli;

namespace {

using Json = nlohmann::json;

constexpr const char* kSpecs[] = {"layernorm/cols=64/f32/wb/gelu", "layernorm/cols=4096/bf16/wb",
                                  "layernorm/cols=4194304/f32/wb"};

struct StartupCommand : CommonOptions {
  std::vector<std::string> specs;
  std::string rows;  // one number; empty: as many as make x 256 MiB
  int repeat = 5;
  int kernels = 200;  // of the prebuild; 0: no prebuild
};

std::string mistake_of(const StartupCommand& options) {
  if (options.repeat < 1) return "--repeat must be 1 or more";
  if (options.kernels < 0) return "--kernels must be 0 or more";
  if (options.cache_directory) return "--cache-dir is not for startup, whose caches are fresh and temporary";
  return {};
}

// A directory of this run's own, removed at the end.
class Scratch {
 public:
  Scratch() : path_((std::filesystem::temp_directory_path() / "normjit-startup-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr)
      throw Exception({Code::CacheIo, "cannot make " + path_ + ": " + std::strerror(errno)});
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // A directory or file in it; the same name is the same one.
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// What a child could not do ends the benchmark, with the child's exit status.
struct ChildFailed {
  int status;
  std::string message;
};

// Runs one step in a fresh process of this program.
Json run_step(std::vector<std::string> arguments) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  arguments.insert(arguments.begin(), {self, "startup-step"});
  const simt::Finished child = simt::run_program(arguments).value();
  if (child.exit_code != kDone) {
    constexpr std::string_view kPrefix = "normjit: ";
    std::string message = child.output.substr(0, child.output.find_last_not_of('\n') + 1);
    if (message.starts_with(kPrefix)) message.erase(0, kPrefix.size());
    throw ChildFailed{child.exit_code, message};
  }
  return Json::parse(child.output);
}

class Startup {
 public:
  explicit Startup(const StartupCommand& options) : repeat_(options.repeat), kernels_(options.kernels) {
    std::vector<std::string> texts = options.specs;
    if (texts.empty()) texts.assign(std::begin(kSpecs), std::end(kSpecs));
    for (const std::string& text : texts) specs_.push_back(parse_spec(text).value());
    if (!options.rows.empty()) {
      const std::vector<std::int64_t> rows = parse_rows_list(options.rows);
      if (rows.size() != 1) throw Exception({Code::BadArgument, "startup takes one number of --rows"});
      rows_ = rows[0];
    }
    steps_ = 1 + 5 * repeat_ * static_cast<int>(specs_.size()) + (kernels_ > 0 ? 2 : 0);
  }

  StartupReport run() {
    StartupReport report;
    const Json machine = step("look", "look", {});
    report.device = machine.at("device");
    report.compiler = machine.at("compiler");
    nvrtc_ = machine.at("nvrtc");
    if (!machine.at("no_gpu").is_null()) report.no_gpu = machine.at("no_gpu");
    report.repeat = repeat_;
    if (report.no_gpu.empty()) {
      steps_ += repeat_;
      for (int i = 0; i < repeat_; ++i) sample("cuda", "cuda_ms", step("CUDA", "cuda", {}));
      report.cuda = median("cuda");
    }
    for (const NormSpec& spec : specs_) report.results.push_back(measure(spec));
    if (kernels_ > 0) report.prebuild = prebuild();
    return report;
  }

 private:
  Json step(const std::string& what, const std::string& name, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), name);
    Json json = run_step(arguments);
    progress_.show(++done_, steps_, "steps", what);
    return json;
  }

  void sample(const std::string& series, const char* key, const Json& json) {
    samples_[series].push_back(json.at(key).get<double>());
  }
  // Of a series, which begins anew.
  double median(const std::string& series) {
    return timing_of(std::move(samples_.extract(series).mapped())).median;
  }

  // The steps take turns, so that all see the same machine.
  StartupResult measure(const NormSpec& spec) {
    StartupResult result{
        .spec = spec, .rows = rows_ > 0 ? rows_ : default_rows(spec), .plan = {}, .parts = {}};
    check_use(spec, result.rows);
    const std::string id = std::to_string(++specs_seen_), pack = scratch_ / (id + ".njp");
    const std::vector<std::string> use = {"--spec", to_text(spec), "--rows", std::to_string(result.rows)};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), use.begin(), use.end());
      return more;
    };
    constexpr const char* kParts[] = {"service_us", "tuned_us", "choose_us",
                                      "render_us",  "read_us",  "load_us"};
    for (int i = 0; i < repeat_; ++i) {
      const std::string cache = scratch_ / (id + "-" + std::to_string(i));
      const Json raw = step("raw compile", "raw", with({"--nvrtc", nvrtc_}));
      sample("load", "load_ms", raw);
      sample("compile", "compile_ms", raw);
      const Json cold = step("cold first call", "first", with({"--cache-dir", cache}));
      expect(cold, "compiled");
      sample("cold", "first_ms", cold);
      result.plan = cold.at("plan");
      const Json disk = step("first call from disk", "first", with({"--cache-dir", cache}));
      expect(disk, "disk");
      sample("disk", "first_ms", disk);
      sample("later", "later_us", disk);
      const Json parts = step("its parts", "parts", with({"--cache-dir", cache}));
      for (const char* part : kParts) sample(part, part, parts);
      if (i == 0) export_to(pack, cache);
      const Json packed = step("first call from a pack", "first", with({"--layer", pack}));
      expect(packed, "layer");
      sample("pack", "first_ms", packed);
    }
    result.nvrtc_load = median("load");
    result.raw_compile = median("compile");
    result.cold = median("cold");
    result.disk = median("disk");
    result.pack = median("pack");
    result.later = median("later");
    result.parts = {median("service_us"), median("tuned_us"), median("choose_us"),
                    median("render_us"),  median("read_us"),  median("load_us")};
    return result;
  }

  static void expect(const Json& json, const char* origin) {
    if (json.at("origin") == origin) return;
    throw Exception({Code::CacheIo, std::string("a kernel that should come from '") + origin +
                                        "' came from '" + json.at("origin").get<std::string>() +
                                        "'; is there room for the temporary cache?"});
  }

  static void export_to(const std::string& pack, const std::string& cache) {
    Options settings = Options::from_environment();
    settings.cache_directory = cache;
    settings.layers.clear();
    Service(settings).export_pack(pack, {}).value();
  }

  PrebuildSpeed prebuild() {
    const auto build = [&](const std::string& what, const std::string& jobs) {
      return step(
          what, "build",
          {"--kernels", std::to_string(kernels_), "--jobs", jobs, "--cache-dir", scratch_ / ("jobs" + jobs)});
    };
    const Json all = build("prebuild on all cores", "0"), alone = build("prebuild on one core", "1");
    return {.kernels = all.at("kernels"),
            .specs = all.at("specs"),
            .strategies = all.at("strategies"),
            .cores = all.at("cores"),
            .one_thread = alone.at("sum_s"),
            .side_by_side = all.at("sum_s"),
            .wall = all.at("wall_s")};
  }

  const int repeat_, kernels_;
  std::vector<NormSpec> specs_;
  std::int64_t rows_ = 0;  // 0: each spec's own
  std::string nvrtc_;
  int steps_ = 0, done_ = 0, specs_seen_ = 0;
  std::map<std::string, std::vector<double>> samples_;
  const Scratch scratch_;
  Progress progress_{isatty(STDERR_FILENO) != 0};
};

int startup(const StartupCommand& options) {
  if (const std::string mistake = mistake_of(options); !mistake.empty()) return fail(kUsage, mistake);
  StartupReport report;
  try {
    report = Startup(options).run();
  } catch (const ChildFailed& child) {
    return fail(static_cast<ExitCode>(child.status), child.message);
  }
  print(options.json ? json_of(report) : text_of(report));
  return kDone;
}

}  // namespace

void add_startup(CommandLine& line) {
  auto [command, options] =
      line.add("startup", "Time the first calls of fresh processes and a prebuild; needs no GPU", startup);
  command->add_option("SPEC", options.specs, kSpecHelp);
  command->add_option("--rows", options.rows, "Rows of each spec; else as many as make x 256 MiB");
  command->add_option("--repeat", options.repeat, "Processes that a median is of")->capture_default_str();
  command
      ->add_option("--kernels", options.kernels, "Of the prebuild: so many or a few more; 0 is no prebuild")
      ->capture_default_str();
  add_json(command, options);
  command->footer(std::string(R"(Example:
  normjit-bench startup --json

Each step is measured in fresh processes, with temporary caches and files that the system has in memory already. NVRTC's
own load is opening it, and by how much its first compile, of an empty kernel, takes longer than its second. A first
call goes from a new Service to the return of the first launch, with CUDA initialised before. Without a GPU a stand-in
for the driver loads at once, and what counts the driver is not judged.

)") + kExitCodes);
}

}  // namespace normjit::bench
