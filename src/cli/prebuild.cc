// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "cli/command_line.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "normjit/cache/directory.h"
#include "normjit/plan/arch_list.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

struct PrebuildCommand : CommonOptions {
  std::vector<std::string> specs, manifests;
  std::string archs = "native";
  int jobs = 0;
  Uses uses;
  bool dry_run = false, check = false;
};

// What a person wants to see: in a dry run every kernel, else those that failed, then the sum.
std::string text_of(const PrebuildReport& report, const Options& settings, bool dry_run) {
  std::string text;
  if (dry_run) {
    Table table({"outcome", "arch", "id", "spec", "plan"});
    for (const KernelReport& kernel : report.results) {
      table.add({std::string(name(kernel.outcome)), kernel.arch.name(), kernel.id, to_text(kernel.spec),
                 to_text(kernel.plan)});
    }
    text += table.text();
  }
  for (const KernelReport& kernel : report.results) {
    if (kernel.outcome != KernelReport::Outcome::failed) continue;
    text += "failed: " + kernel.arch.name() + " " + to_text(kernel.spec) + " " + to_text(kernel.plan) +
            "\n  " + kernel.error + "\n";
  }
  text += std::to_string(report.requested) + " kernels: " + std::to_string(report.cached) + " cached, ";
  text +=
      dry_run ? std::to_string(report.missing) + " missing" : std::to_string(report.compiled) + " compiled";
  text += ", " + std::to_string(report.failed) + " failed in " + fixed(report.seconds, 2) + " s; cache " +
          places(settings) + "\n";
  return text;
}

// Whether the directory takes a file; makes it if it is missing.
Result<void> try_to_write(const Options& settings) {
  return Directory(settings.cache_directory, make_posix_file_system(), {}, {.shared = settings.shared_cache})
      .probe();
}

ExitCode outcome_of(const PrebuildReport& report, const PrebuildCommand& options, Service& service) {
  if (report.failed > 0) {
    const Environment environment = service.environment();
    if (environment.compiler_path.empty()) return fail(kEnvironment, environment.compiler_error);
    return fail(kFailed, std::to_string(report.failed) + " kernels failed");
  }
  if (report.unstored > 0) {
    return fail(kCacheIo,
                std::to_string(report.unstored) +
                    " kernels were compiled, but the cache could not keep them. Check the free space and "
                    "permissions of the cache directory, or name another with --cache-dir");
  }
  if (options.check && report.missing > 0) {
    return fail(kFailed, std::to_string(report.missing) +
                             " kernels are missing; the same command without --check builds them");
  }
  return kDone;
}

int prebuild(const PrebuildCommand& options) {
  const std::vector<NormSpec> specs = wanted_specs(options.manifests, options.specs);
  if (specs.empty())
    return fail(kUsage, "there is nothing to build: name specs or a --manifest that has some");
  Options service_settings = service_options(options);
  const std::string& cache_directory = service_settings.cache_directory;
  const bool dry_run = options.dry_run || options.check;
  // Layers alone will do where nothing is kept.
  if (cache_directory.empty() && (!dry_run || service_settings.layers.empty()))
    return fail(kCacheIo, kNoCacheDirectory);
  drop_unreadable_layers(service_settings);
  Service service(service_settings);
  const std::vector<DeviceProfile> devices =
      parse_arch_list(options.archs, [&](int ordinal) { return service.device(ordinal); }).value();
  // Where nothing can be kept nothing is compiled, but all may be there already.
  const Result<void> writable = dry_run ? Result<void>() : try_to_write(service_settings);

  PrebuildReport report;
  {
    Progress progress(isatty(STDERR_FILENO) != 0);
    PrebuildOptions settings{
        .jobs = options.jobs, .uses = options.uses, .dry_run = dry_run || !writable, .progress = {}};
    if (!settings.dry_run) {
      settings.progress = [&](const KernelReport& kernel, int done, int total) {
        progress.show(kernel, done, total);
      };
    }
    report = service.prebuild(specs, devices, settings).value();
  }
  print(options.json ? json_of(report, cache_directory).text() : text_of(report, service_settings, dry_run));
  if (!writable && report.missing > 0)
    return fail(kCacheIo,
                "nothing was compiled, as the cache could not keep it: " + writable.error().message +
                    ". Make the directory writable, or name another with --cache-dir");
  return outcome_of(report, options, service);
}

}  // namespace

void add_prebuild(CommandLine& line) {
  auto [command, options] =
      line.add("prebuild", "Put every kernel that specs can ask for into the cache; needs no GPU", prebuild);
  command->add_option("SPEC", options.specs, kSpecHelp);
  command
      ->add_option("--manifest", options.manifests,
                   "A file of specs: JSON, JSON lines, or a spec a line; repeatable; - is stdin")
      ->allow_extra_args(false);
  command
      ->add_option("--arch", options.archs,
                   "Comma-separated: sm_90 and the like, native (the GPUs here), all-major, all")
      ->capture_default_str();
  command->add_option("-j,--jobs", options.jobs, "Compile so many kernels at once; 0 is one per core")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_uses(command, options.uses);
  command->add_flag("--dry-run", options.dry_run, "Say what is cached and what is missing; compile nothing");
  command->add_flag("--check", options.check, "As --dry-run, with exit status 1 if anything is missing");
  add_json(command, options);
  command->footer(std::string(R"(Examples:
  normjit prebuild layernorm/cols=64/f32/wb/gelu --arch sm_80,sm_90
  normjit prebuild --manifest cache/manifests/reference.json --arch all-major -j 8
  normjit prebuild --manifest shapes.json --arch sm_90 --check

)") + kExitCodes);
}

}  // namespace normjit::cli
