// SPDX-License-Identifier: Apache-2.0
// The calls that list, check and maintain the cache.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "normjit/cache/atomic_file.h"
#include "normjit/cache/pack.h"
#include "normjit/cache/system_call.h"
#include "normjit/cache/trim.h"
#include "normjit/remote/signature.h"
#include "normjit/remote/signed_pack.h"
#include "normjit/service/impl.h"

namespace normjit {
namespace {

EntryReport report_of(const Listed& listed) {
  EntryReport report;
  report.id = listed.id;
  report.tier = listed.tier;
  report.bytes = listed.bytes;
  report.modified = listed.modified;
  if (!listed.entry) {
    report.damaged = true;
    report.error = listed.entry.error().message;
    return report;
  }
  const auto fact = [&](std::string_view name) { return std::string(listed.entry->fact(name)); };
  const auto count = [&](std::string_view name) { return number<int>(fact(name)).value_or(-1); };
  report.spec = fact("spec");
  report.plan = plan_text_in(*listed.entry);
  report.arch = fact("arch");
  report.kernel = fact("kernel");
  report.toolchain = fact("toolchain");
  report.code = fact("code");
  report.device = fact("device");
  report.regime = fact("regime");
  report.alignment = fact("alignment");
  report.registers = count("registers");
  report.spill_bytes = count("spill_bytes");
  report.shared_bytes = count("shared_bytes");
  return report;
}

// All of them; or why one of them cannot be read, or is not to be believed.
Result<Cache::Layers> open_sources(const std::vector<std::string>& paths, const Cache& cache,
                                   const std::vector<std::string>& trusted) {
  if (const auto trust = Trust::of(trusted); !trust) return trust.error();
  const bool shared = cache.settings().shared;
  const Believes believes = signed_by(trusted, cache.files(), shared);
  Cache::Layers sources;
  for (const std::string& path : paths) {
    if (believes && path.ends_with(kPackSuffix)) {
      const auto pack = std::make_shared<const Pack>(path, cache.files(), shared, believes);
      if (auto believed = pack->check(); !believed) return believed.error();
      sources.push_back(pack);
    } else {
      sources.push_back(make_layer(path, cache.files(), shared));
    }
  }
  return sources;
}

Result<void> write_file(FileSystem& files, const std::string& path, const std::string& bytes) {
  const std::filesystem::path whole(path);
  const std::string directory = whole.has_parent_path() ? whole.parent_path().string() : ".";
  if (struct stat facts = {}; files.lstat(directory.c_str(), &facts) < 0)
    return io_error("find", directory, errno);
  AtomicFile file(files, directory, whole.filename().string());
  if (auto created = file.create(); !created) return created;
  if (auto written = file.write(bytes); !written) return written;
  return file.publish(/*replace=*/true);
}

}  // namespace

Result<std::vector<EntryReport>> Service::entries() const {
  const auto listed = impl_->binaries.cache().list();
  if (!listed) return listed.error();
  std::vector<EntryReport> reports;
  std::ranges::transform(*listed, std::back_inserter(reports), report_of);
  return reports;
}

Result<VerifyReport> Service::verify(bool quarantine) {
  Cache& cache = impl_->binaries.cache();
  VerifyReport report;
  const auto count = [&](const std::vector<Listed>& entries, bool may_move) {
    for (const Listed& listed : entries) {
      if (listed.entry) {
        ++report.entries;
        report.bytes += listed.bytes;
        continue;
      }
      const bool is_useless = listed.kind == Lookup::Kind::damaged || listed.kind == Lookup::Kind::other;
      const bool moved = may_move && is_useless && cache.directory().set_aside(listed.id);
      report.flaws.push_back({listed.path, listed.entry.error().message, moved});
    }
  };
  const auto directory = cache.directory().list();
  if (!directory) return directory.error();
  count(*directory, quarantine);
  const auto layers = cache.layers();
  for (const auto& layer : *layers) {
    if (const auto entries = layer->list())
      count(*entries, false);
    else
      report.flaws.push_back({layer->path(), entries.error().message, false});
  }
  return report;
}

Result<PruneReport> Service::prune(const PruneOptions& options) {
  Cache& cache = impl_->binaries.cache();
  if (cache.settings().directory.empty()) return PruneReport();
  TrimLimits limits{.max_bytes = options.max_bytes,
                    .stale_seconds = options.stale_seconds,
                    .all_damaged = true,
                    .dry_run = options.dry_run,
                    .shared = cache.settings().shared};
  if (options.max_bytes < 0 && cache.settings().max_bytes > 0) limits.max_bytes = cache.settings().max_bytes;
  const auto trimmed = trim(*cache.files(), cache.settings().directory, limits);
  if (!trimmed) return trimmed.error();
  const auto& [entries, damaged, temporaries, bytes, kept, kept_bytes, refused, busy] = *trimmed;
  return PruneReport{entries, damaged, temporaries, bytes, kept, kept_bytes, refused, busy};
}

Result<ExportReport> Service::export_pack(const std::string& path, const ExportOptions& options) const {
  if (!path.ends_with(kPackSuffix))
    return Error{Code::BadArgument,
                 concat({"the name of a pack must end in ", kPackSuffix, ", and '", path, "' does not"})};
  if (options.specs.empty() != options.devices.empty())
    return Error{Code::BadArgument, "give both specs and devices, or neither to export all"};
  for (const NormSpec& spec : options.specs)
    if (auto valid = validate(spec); !valid) return valid.error();

  Cache& cache = impl_->binaries.cache();
  const auto named = open_sources(options.from, cache, impl_->options.trust);
  if (!named) return named.error();
  auto listed = named->empty() ? cache.directory().list() : std::vector<Listed>();
  if (!listed) return listed.error();
  const auto layers = cache.layers();
  for (const auto& tier : named->empty() ? *layers : *named) {
    auto entries = tier->list();
    if (!entries) return entries.error();
    std::ranges::move(*entries, std::back_inserter(*listed));
  }

  // The kernels of the specs and the plans tuned for them, by id. Without specs every entry is wanted.
  std::map<std::string, std::string> wanted;
  std::vector<TunedPlan> tuned;
  const auto is_asked_for = [&](const TunedPlan& kept) {
    const auto is_its_spec = [&](const NormSpec& spec) { return canonical(spec) == kept.spec; };
    return check(kept) && std::ranges::any_of(options.specs, is_its_spec) &&
           std::ranges::count(options.devices, kept.device.arch, &DeviceProfile::arch) > 0;
  };
  for (const Listed& each : *listed) {
    const auto plan = each.entry ? tuned_plan_in(*each.entry) : std::nullopt;
    if (!plan || !is_asked_for(*plan)) continue;
    tuned.push_back(*plan);
    wanted[each.id] = "a tuned plan";
  }
  const Uses uses = uses_in(options.uses, impl_->options.batch_invariant);
  const auto kernels = options.only_tuned ? std::vector<KernelReport>()
                                          : kernels_for(options.specs, options.devices, tuned, uses);
  for (const KernelReport& kernel : kernels) {
    const auto identified = impl_->binaries.identify(kernel.spec, kernel.plan, kernel.arch);
    if (!identified) return identified.error();
    wanted[identified->id] =
        concat({to_text(kernel.spec), " on ", kernel.arch.name(), " with plan ", to_text(kernel.plan)});
  }

  ExportReport report;
  std::map<std::string, std::string> entries;
  for (const Listed& each : *listed) {
    const bool is_wanted = options.specs.empty() || wanted.contains(each.id);
    if (!is_wanted || entries.contains(each.id)) continue;
    if (options.only_tuned && each.entry && !tuned_plan_in(*each.entry)) continue;
    if (each.entry)
      entries[each.id] = encode(*each.entry);
    else
      ++report.damaged;
  }
  for (const auto& [id, kernel] : wanted)
    if (!entries.contains(id)) report.missing.push_back(kernel);
  if (!report.missing.empty()) return report;
  if (entries.empty())
    return Error{Code::BadArgument, concat({"there is nothing to export: the cache has no ",
                                            options.only_tuned ? "tuned plan" : "entry",
                                            options.specs.empty() ? "" : " of these specs"})};

  const std::string pack = encode_pack(entries);
  report.entries = static_cast<int>(entries.size());
  report.bytes = static_cast<std::int64_t>(pack.size());
  report.digest = digest(pack);
  std::string signature;
  if (!options.sign_key.empty()) {
    const auto key = SecretKey::read(options.sign_key);
    if (!key) return key.error();
    signature = key->sign_file(
        pack, concat({"normjit pack, ", shortest(report.entries), " entries, XXH128 ", report.digest}));
  }
  if (auto written = write_file(*cache.files(), path, pack); !written) return written.error();
  if (!signature.empty()) {
    const std::string beside = concat({path, kSignatureSuffix});
    if (auto written = write_file(*cache.files(), beside, signature); !written) return written.error();
  }
  return report;
}

Result<void> Service::add_layer(std::string pack, const std::string& signature) {
  const auto trust = Trust::of(impl_->options.trust);
  if (!trust) return trust.error();
  if (!trust->empty()) {
    if (signature.empty())
      return Error{Code::Untrusted,
                   "the layer in memory is not signed, and only packs of trusted keys are added"};
    if (auto trusted = check_signature(*trust, pack, signature, "the layer in memory", ""); !trusted)
      return trusted;
  }
  if (auto added = impl_->binaries.cache().add_layer(std::move(pack)); !added)
    return Error{Code::BadArgument, added.error().message};
  return {};
}

Result<ImportReport> Service::import_from(const std::vector<std::string>& sources) {
  Cache& cache = impl_->binaries.cache();
  if (cache.settings().directory.empty())
    return Error{Code::CacheIo, "there is no cache directory to import to"};
  ImportReport report;
  const auto leave_out = [&](int& count, std::string reason) {
    ++count;
    report.errors.push_back(std::move(reason));
  };
  const auto opened = open_sources(sources, cache, impl_->options.trust);
  if (!opened) return opened.error();
  for (const auto& tier : *opened) {
    const auto entries = tier->list();
    if (!entries) return entries.error();
    for (const Listed& listed : *entries) {
      if (!listed.entry) {
        leave_out(report.refused,
                  concat({listed.id, " in ", tier->path(), ": ", listed.entry.error().message}));
        continue;
      }
      const Lookup there = cache.directory().look(listed.entry->identity);
      if (there.kind == Lookup::Kind::entry) {
        ++report.present;
        continue;
      }
      // A damaged file that cannot be renamed keeps the name.
      const bool free = there.kind == Lookup::Kind::absent ||
                        (there.kind == Lookup::Kind::damaged && cache.directory().set_aside(listed.id));
      if (!free) {
        leave_out(report.unstored, there.error);
        continue;
      }
      if (const auto filled = cache.directory().fill(*listed.entry))
        ++report.imported;
      else
        leave_out(report.unstored, concat({listed.id, ": ", filled.error().message}));
    }
  }
  return report;
}

}  // namespace normjit
