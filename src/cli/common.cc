// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/commands.h"
#include "cli/manifest.h"
#include "cli/table.h"
#include "normjit/base/text.h"
#include "normjit/cache/system_call.h"
#include "normjit/cache/tier.h"
#include "normjit/plan/arch_list.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/default_log.h"
#include "normjit/spec/operands.h"
#include "verify/foreign_text.h"

namespace normjit::cli {

ExitCode exit_code(Code code) noexcept {
  switch (code) {
    case Code::Ok:
      return kDone;
    case Code::NoCompiler:
    case Code::CompilerTooOld:
    case Code::NoDriver:
    case Code::DriverTooOld:
    case Code::NoDevice:
    case Code::NoContext:
    case Code::OutOfMemory:
    case Code::ForkedAfterCudaInit:
      return kEnvironment;
    case Code::CacheIo:
      return kCacheIo;
    case Code::Untrusted:
      return kUntrusted;
    case Code::BadTemplate:
    case Code::CompileFailed:
    case Code::LoadFailed:
    case Code::NotCached:
    case Code::DriverError:
      return kFailed;
    default:
      return kUsage;  // a bad spec, plan, launch argument, architecture or option
  }
}

ExitCode fail(ExitCode code, std::string_view message) {
  const std::string line = concat({"normjit: ", oracle::printable(message), "\n"});
  std::fwrite(line.data(), 1, line.size(), stderr);
  return code;
}

namespace {

// What a message shows of a text that it may quote twice, beside the form of all texts: a screenful together.
constexpr std::size_t kLongestText = 120;

template <class T>
Result<T> parsed(Result<T> (&parse)(std::string_view), std::string_view text) {
  Result<T> value = parse(text);
  if (value) return value;
  Result<T> again = parse(oracle::shown(text, kLongestText));  // for the message alone
  return again ? value : again;
}

}  // namespace

Result<NormSpec> spec_from(std::string_view text) { return parsed(parse_spec, text); }

Result<Plan> plan_from(std::string_view text) { return parsed(parse_plan, text); }

Options service_options(const CommonOptions& options) {
  Options service = Options::from_environment();
  if (options.cache_directory) service.cache_directory = *options.cache_directory;
  if (options.log == "off") {
    service.log = nullptr;
  } else if (!options.log.empty()) {
    const std::optional<LogLevel> level = log_level(options.log);
    if (!level) {
      throw Exception(
          {Code::BadArgument, "--log is '" + options.log + "'; it may be debug, info, warn, error or off"});
    }
    service.log = default_log(*level);
  } else if (!service.log) {
    service.log = default_log(LogLevel::warn);
  }
  return service;
}

std::string source_error(const std::string& path, const Options& settings) {
  const std::shared_ptr<FileSystem> files = make_posix_file_system();
  if (path.ends_with(kPackSuffix)) return make_layer(path, files, settings.shared_cache)->look({}).error;
  std::vector<std::string> names;
  return files->list(path.c_str(), names) < 0 ? io_error("list the directory", path, errno).message : "";
}

int drop_unreadable_layers(Options& settings) {
  return static_cast<int>(std::erase_if(settings.layers, [&](const std::string& layer) {
    const std::string error = source_error(layer, settings);
    if (!error.empty()) fail(kDone, "warning: a layer of NORMJIT_LAYERS serves nothing: " + error);
    return !error.empty();
  }));
}

std::string places(const Options& settings) {
  const std::string layers = counted(std::ssize(settings.layers), "layer");
  if (settings.cache_directory.empty()) return settings.layers.empty() ? "none" : layers;
  return settings.cache_directory + (settings.layers.empty() ? "" : " and " + layers);
}

std::vector<NormSpec> wanted_specs(const std::vector<std::string>& manifests,
                                   const std::vector<std::string>& specs) {
  std::vector<NormSpec> wanted;
  for (const std::string& path : manifests) {
    const std::vector<NormSpec> listed = read_manifest(path).value();
    wanted.insert(wanted.end(), listed.begin(), listed.end());
  }
  for (const std::string& text : specs) wanted.push_back(spec_from(text).value());
  return distinct(wanted);
}

DeviceProfile one_device(Service& service, const std::string& arch) {
  const auto native = [&](int ordinal) { return service.device(ordinal); };
  if (arch.empty()) {
    const Result<DeviceProfile> device = native(0);
    return device ? *device : DeviceProfile::of(Arch{90}).value();
  }
  const std::vector<DeviceProfile> devices = parse_arch_list(arch, native).value();
  if (devices.size() != 1) {
    throw Exception(
        {Code::BadArgument, "--arch names " + std::to_string(devices.size()) +
                                " kinds of devices here; this command takes one, as in --arch sm_90"});
  }
  return devices.front();
}

PlanOfUse plan_of_use(Service& service, const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                      Alignment alignment, const Uses& uses) {
  const std::optional<Plan> tuned =
      uses.batch_invariant ? std::nullopt : service.tuned(spec, device, regime, alignment).value();
  const Plan plan = tuned.value_or(choose(spec, device, regime, alignment, uses.batch_invariant));
  return {in_groups(plan, spec, uses.grouped_rows), tuned.has_value()};
}

std::string generic_text(const WhyReport& generic) {
  if (generic.tier.empty()) return "not here; it would be compiled";
  return (generic.tier == "embedded" ? "" : "in ") + generic.tier + ", for " +
         target_of(generic.plan, generic.spec, generic.arch).name();
}

void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  throw Exception({Code::CacheIo, std::string("standard output cannot be written: ") + std::strerror(errno)});
}

}  // namespace normjit::cli
