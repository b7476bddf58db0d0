// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/command_line.h"
#include "cli/table.h"
#include "normjit/base/text.h"
#include "normjit/plan/arch_list.h"
#include "normjit/service/report_json.h"

namespace normjit::cli {
namespace {

using Outcome = RemoteReport::Outcome;

constexpr std::string_view kNoStore =
    "no store is configured: set NORMJIT_REMOTE to its URL, as in redis://host:6379/0";

std::ptrdiff_t count(const RemoteReport& report, Outcome outcome) {
  return std::ranges::count(report.kernels, outcome, &RemoteReport::Kernel::outcome);
}

struct RemoteCommand : CommonOptions {
  std::vector<std::string> specs, manifests;
  std::string archs;
  Uses uses;
};

std::string text_of(const RemoteReport& report, RemoteTask task) {
  const auto with = [&](Outcome outcome) { return std::to_string(count(report, outcome)); };
  std::string text;
  for (const RemoteReport::Kernel& kernel : report.kernels) {
    if (kernel.outcome == Outcome::present || kernel.outcome == Outcome::copied) continue;
    text += concat({name(kernel.outcome), ": ", kernel.id, " ", kernel.arch, " ", kernel.spec, " ",
                    kernel.plan, kernel.why.empty() ? "" : "\n  ", kernel.why, "\n"});
  }
  text += counted(std::ssize(report.kernels), "kernel") + ": " + with(Outcome::present) +
          (task == RemoteTask::get   ? " in the cache already"
           : task == RemoteTask::put ? " in the store already"
                                     : " sound");
  if (task != RemoteTask::verify) text += ", " + with(Outcome::copied) + " copied";
  return text + ", " + with(Outcome::absent) + " absent, " + with(Outcome::untrusted) + " not trusted, " +
         with(Outcome::failed) + " failed\n";
}

int carry_out(const RemoteCommand& options, RemoteTask task) {
  const std::vector<NormSpec> specs = wanted_specs(options.manifests, options.specs);
  if (!specs.empty() && options.archs.empty()) return fail(kUsage, "--arch is missing, as in --arch sm_90");
  if (specs.empty() && !options.archs.empty()) return fail(kUsage, "--arch needs specs, or a --manifest");
  Options settings = service_options(options);
  if (settings.remote.empty()) return fail(kUsage, kNoStore);
  if (settings.cache_directory.empty() && task != RemoteTask::verify)
    return fail(kCacheIo, kNoCacheDirectory);
  drop_unreadable_layers(settings);
  Service service(settings);
  const std::vector<DeviceProfile> devices =
      specs.empty()
          ? std::vector<DeviceProfile>()
          : parse_arch_list(options.archs, [&](int ordinal) { return service.device(ordinal); }).value();
  const RemoteReport report = service.remote(task, specs, devices, options.uses).value();
  print(options.json ? json_of(report).text() : text_of(report, task));
  if (count(report, Outcome::untrusted) > 0)
    return fail(kUntrusted,
                "the store has values that are not believed: remove them there, or trust another key");
  if (count(report, Outcome::failed) > 0)
    return fail(kCacheIo, "not all kernels could be copied or looked at");
  if (count(report, Outcome::absent) > 0 && task == RemoteTask::get)
    return fail(kFailed, "the store lacks kernels; normjit prebuild compiles them, and offers them to it");
  return kDone;
}

int get(const RemoteCommand& options) { return carry_out(options, RemoteTask::get); }
int put(const RemoteCommand& options) { return carry_out(options, RemoteTask::put); }
int verify(const RemoteCommand& options) { return carry_out(options, RemoteTask::verify); }

int stats(const CommonOptions& options) {
  const Options settings = service_options(options);
  if (settings.remote.empty()) return fail(kUsage, kNoStore);
  const Environment::Remote remote = Service(settings).environment().remote;
  print(options.json ? json_of(remote).text() : remote_text(remote));
  return remote.error.empty() ? kDone : fail(kEnvironment, "the store is not used: " + remote.error);
}

void add_kernels(CLI::App* command, RemoteCommand& options) {
  command->add_option("SPEC", options.specs, kSpecHelp);
  command
      ->add_option("--manifest", options.manifests,
                   "A file of specs: JSON, JSON lines, or a spec a line; repeatable; - is stdin")
      ->allow_extra_args(false);
  command->add_option("--arch", options.archs,
                      "Comma-separated: sm_90 and the like, native (the GPUs here), all-major, all");
  add_uses(command, options.uses);
  add_json(command, options);
}

}  // namespace

std::string remote_text(const Environment::Remote& remote) {
  std::string text = "remote     " + remote.url + "\n";
  const auto line = [&](const std::string& one) { text += "           " + one + "\n"; };
  if (!remote.error.empty())
    line(remote.error);
  else
    line("answers in " + fixed(remote.milliseconds, 2) + " ms");
  std::string trusted;
  for (const std::string& key : remote.trusted) trusted += " " + key;
  line(!trusted.empty()         ? "believes what is signed by" + trusted
       : remote.unsigned_values ? "believes everything: whoever can write there decides what runs on this GPU"
                                : "believes nothing: name public keys in NORMJIT_TRUST");
  if (!trusted.empty() && remote.unsigned_values) line("believes what is not signed, too");
  line(!remote.signs_as.empty() ? "offers what it compiles, signed by " + remote.signs_as
       : remote.unsigned_values ? "offers what it compiles, unsigned"
                                : "offers nothing: it has no NORMJIT_SIGN_KEY");
  return text;
}

void add_remote(CommandLine& line) {
  CLI::App* const group = line.add_group("remote", "Look at the store that machines share, and copy kernels");
  group->footer(std::string(R"(Examples:
  NORMJIT_REMOTE=redis://cache:6379/0 normjit remote stats
  normjit remote put
  normjit remote get layernorm/cols=4096/f16/wb --arch sm_90

NORMJIT_REMOTE is its URL; NORMJIT_TRUST and NORMJIT_SIGN_KEY are the keys (docs/fleets.md).

)") + kExitCodes);

  auto [state, common] =
      line.add_to(group, "stats", "Say whether it answers, what is believed and what is offered", stats);
  add_json(state, common);
  state->footer(std::string("Exit status 3 if the store is not used or does not answer.\n\n") + kExitCodes);

  auto [fetch, wanted] = line.add_to(group, "get", "Copy kernels from it to the cache; compile none", get);
  add_kernels(fetch, wanted);
  fetch->footer(std::string(R"(Example:
  normjit remote get --manifest cache/manifests/reference.json --arch sm_90

Exit status 1 if the store lacks a kernel.

)") + kExitCodes);

  auto [send, given] = line.add_to(group, "put", "Copy kernels of the cache to it, by default all", put);
  add_kernels(send, given);
  send->footer(std::string(R"(Examples:
  normjit remote put
  normjit remote put --manifest cache/manifests/reference.json --arch sm_90

`normjit prebuild` does so, too, and compiles what is missing.

)") + kExitCodes);

  auto [check, those] =
      line.add_to(group, "verify", "Check what it has of kernels, by default of those of the cache", verify);
  add_kernels(check, those);
  check->footer(std::string(R"(Example:
  normjit remote verify

Exit status 5 if it has a value that is not believed.

)") + kExitCodes);
}

}  // namespace normjit::cli
