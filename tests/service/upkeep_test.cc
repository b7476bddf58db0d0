// SPDX-License-Identifier: Apache-2.0
// Looking after the cache through a Service: tiers, verify, prune, export, import.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "normjit/service.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;
using Kind = RecordingFileSystem::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NormSpec kSpec{.columns = 4096};
constexpr NormSpec kOther{.columns = 64};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void damage(const std::string& path) { fs::resize_file(path, fs::file_size(path) - 1); }

class UpkeepTest : public ::testing::Test {
 protected:
  UpkeepTest() { machine_.files->skip_flushes(); }

  // A Service with this cache on the same machine.
  Service service(const std::string& directory, std::vector<std::string> layers = {}) {
    Options options = machine_.options();
    options.cache_directory = directory.empty() ? "" : elsewhere_ / directory;
    options.layers = std::move(layers);
    return Service(options, machine_.seams());
  }
  std::string path_of(const EntryReport& entry) { return machine_.directory / (entry.id + ".njk"); }
  void prebuild(Service service, const NormSpec& spec) {
    const auto report = service.prebuild({&spec, 1}, {&device_, 1});
    ASSERT_TRUE(report.ok());
    ASSERT_EQ(report->unstored + report->failed, 0);
  }

  // The machine with another version of the compiler, which makes other code.
  Seams older_seams() const {
    class OlderCompiler final : public FakeCompiler {
     public:
      Result<Binary> compile(const Source& source, Arch arch) override {
        auto binary = FakeCompiler::compile(source, arch);
        if (binary) {
          binary->toolchain = "nvrtc 12.0";
          binary->code += "older";
        }
        return binary;
      }
    };
    Seams older = machine_.seams();
    older.compiler = std::make_shared<OlderCompiler>();
    return older;
  }

  FakeMachine machine_;
  const TempDirectory elsewhere_;
  const DeviceProfile device_ = profile_of(90);
};

// The deployment without a compiler.

TEST_F(UpkeepTest, APackAloneServesEveryKernel) {
  prebuild(machine_.service(), kSpec);
  prebuild(machine_.service(), kOther);
  const std::string pack = elsewhere_ / "kernels.njp";
  ASSERT_TRUE(machine_.service().export_pack(pack).ok());
  fs::remove_all(machine_.directory.path());
  const int compiles = machine_.compiles();
  machine_.compiler->fail({Code::NoCompiler, "no libnvrtc"});

  for (const char* directory : {"", "cache"}) {
    Service only_pack = service(directory, {pack});
    for (const NormSpec& spec : {kSpec, kOther})
      for (const std::int64_t rows : {0, 1, 100, 1'000'000})
        for (const int alignment : {16, 8, 4}) {
          const auto kernel = only_pack.prepare(spec, {.rows_hint = rows, .pointer_alignment = alignment});
          ASSERT_TRUE(kernel.ok()) << kernel.error().message;
          EXPECT_TRUE(kernel->origin() == Origin::layer || kernel->origin() == Origin::disk);
        }
  }
  EXPECT_EQ(machine_.compiles(), compiles);
  EXPECT_EQ(service("", {pack}).prepare({.columns = 77}).code(), Code::NoCompiler)
      << "and says what is missing";
  EXPECT_THAT(machine_.warnings(), IsEmpty());
}

TEST_F(UpkeepTest, AHitInALayerFillsTheDirectory) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  const std::vector<std::string> layers = {machine_.directory.path()};
  EXPECT_EQ(service("cache", layers).prepare(kSpec).value().origin(), Origin::layer);
  EXPECT_EQ(service("cache", layers).prepare(kSpec).value().origin(), Origin::disk);
  EXPECT_EQ(service("cache").prepare(kSpec).value().origin(), Origin::disk);
  EXPECT_EQ(machine_.compiles(), 1);
}

TEST_F(UpkeepTest, AnEntryOfALayerThatTheDriverRefusesIsReplacedInTheDirectory) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  const std::vector<std::string> layers = {machine_.directory.path()};
  machine_.driver->refuse_load(2);
  EXPECT_EQ(service("cache", layers).prepare(kSpec).value().origin(), Origin::compiled);
  EXPECT_EQ(service("cache", layers).prepare(kSpec).value().origin(), Origin::disk);
  EXPECT_EQ(machine_.compiles(), 2);
}

TEST_F(UpkeepTest, OnlyTheExactCompilersEntriesWhereThatIsAsked) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  Options exact = machine_.options();
  exact.exact_toolchain = true;
  const auto origin = [&] { return Service(exact, machine_.seams()).prepare(kSpec).value().origin(); };
  EXPECT_EQ(origin(), Origin::disk) << "made by the same";

  const std::string path = path_of(machine_.service().entries()->at(0));
  fs::remove(path);
  ASSERT_TRUE(Service(machine_.options(), older_seams()).prepare(kSpec).ok());
  EXPECT_EQ(machine_.service().entries()->at(0).toolchain, "nvrtc 12.0");
  EXPECT_EQ(machine_.service().prepare(kSpec).value().origin(), Origin::disk) << "any will do";

  EXPECT_EQ(origin(), Origin::compiled);
  EXPECT_EQ(machine_.service().entries()->at(0).toolchain, "nvrtc 13.0") << "in the place of the other";
  EXPECT_EQ(origin(), Origin::disk);
  machine_.compiler->fail({Code::NoCompiler, "no libnvrtc"});
  EXPECT_EQ(origin(), Origin::disk) << "nobody could make it anew";
}

TEST_F(UpkeepTest, AnExactEntryOfALayerServesBehindAnOlderOneOfTheDirectory) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  Options options = machine_.options();
  options.cache_directory = elsewhere_ / "cache";
  ASSERT_TRUE(Service(options, older_seams()).prepare(kSpec).ok());
  options.layers = {machine_.directory.path()};
  EXPECT_EQ(Service(options, machine_.seams()).prepare(kSpec).value().origin(), Origin::disk);
  options.exact_toolchain = true;
  EXPECT_EQ(Service(options, machine_.seams()).prepare(kSpec).value().origin(), Origin::layer);
  const auto why = Service(options, machine_.seams()).why(kSpec, device_).value();
  const auto there = std::ranges::find(why, machine_.directory.path(), &WhyReport::tier);
  EXPECT_NE(there, why.end());
}

TEST_F(UpkeepTest, InThePlaceOfARefusedEntryAnotherTiersOtherCodeServes) {
  ASSERT_TRUE(Service(machine_.options(), older_seams()).prepare(kSpec).ok());
  ASSERT_TRUE(service("cache").prepare(kSpec).ok());
  const int compiles = machine_.compiles();
  machine_.driver->refuse_load(machine_.loads() + 1);
  EXPECT_EQ(service("cache", {machine_.directory.path()}).prepare(kSpec).value().origin(), Origin::layer);
  EXPECT_EQ(machine_.compiles(), compiles);
}

// Looking.

TEST_F(UpkeepTest, EntriesTellTheirTier) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  ASSERT_TRUE(machine_.service().export_pack(elsewhere_ / "a.njp").ok());
  Service both = service("cache", {machine_.directory.path(), elsewhere_ / "a.njp", elsewhere_ / "none"});
  ASSERT_TRUE(both.prepare(kOther).ok());
  const auto entries = both.entries().value();
  ASSERT_THAT(entries, SizeIs(3));
  EXPECT_EQ(entries[0].tier, elsewhere_ / "cache");
  EXPECT_EQ(entries[1].tier, machine_.directory.path());
  EXPECT_EQ(entries[2].tier, elsewhere_ / "a.njp");
  EXPECT_EQ(entries[1].id, entries[2].id);
  EXPECT_EQ(entries[1].bytes, entries[2].bytes);
}

TEST_F(UpkeepTest, TheEnvironmentTellsOfLayers) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  std::ofstream(elsewhere_ / "bad.njp") << "no pack";
  const auto found = service("cache", {machine_.directory.path(), elsewhere_ / "bad.njp"}).environment();
  ASSERT_THAT(found.layers, SizeIs(2));
  EXPECT_EQ(found.layers[0].path, machine_.directory.path());
  EXPECT_EQ(found.layers[0].entries, 1);
  EXPECT_EQ(found.layers[0].error, "");
  EXPECT_EQ(found.layers[1].entries, 0);
  EXPECT_THAT(found.layers[1].error, HasSubstr("bad.njp"));
}

TEST_F(UpkeepTest, VerifyFindsDamageInEveryTierAndMovesItsOwn) {
  for (const NormSpec& spec : {kSpec, kOther}) ASSERT_TRUE(machine_.service().prepare(spec).ok());
  VerifyReport report = machine_.service().verify().value();
  EXPECT_EQ(report.entries, 2);
  EXPECT_THAT(report.flaws, IsEmpty());

  const std::string path = path_of(machine_.service().entries()->at(0));
  damage(path);
  report = machine_.service().verify().value();
  EXPECT_EQ(report.entries, 1);
  ASSERT_THAT(report.flaws, SizeIs(1));
  EXPECT_EQ(report.flaws[0].path, path);
  EXPECT_NE(report.flaws[0].reason, "");
  EXPECT_FALSE(report.flaws[0].quarantined);
  EXPECT_TRUE(fs::exists(path));

  report = service("cache", {machine_.directory.path()}).verify(/*quarantine=*/true).value();
  ASSERT_THAT(report.flaws, SizeIs(1));
  EXPECT_FALSE(report.flaws[0].quarantined) << "a layer is only read";
  EXPECT_TRUE(fs::exists(path));

  report = machine_.service().verify(/*quarantine=*/true).value();
  ASSERT_THAT(report.flaws, SizeIs(1));
  EXPECT_TRUE(report.flaws[0].quarantined);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_THAT(machine_.service().verify()->flaws, IsEmpty());
}

TEST_F(UpkeepTest, VerifyMovesNothingThatItCannotRead) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  machine_.files->fail(Kind::read, EIO);
  const VerifyReport report = machine_.service().verify(/*quarantine=*/true).value();
  ASSERT_THAT(report.flaws, SizeIs(1));
  EXPECT_FALSE(report.flaws[0].quarantined);
  EXPECT_EQ(machine_.service().verify()->entries, 1);
  machine_.files->fail(Kind::list, EACCES);
  EXPECT_EQ(machine_.service().verify().code(), Code::CacheIo);
}

// Pruning.

TEST_F(UpkeepTest, PruneKeepsToTheBoundOfTheOptions) {
  for (int i = 1; i <= 10; ++i) ASSERT_TRUE(machine_.service().prepare({.columns = 64 * i}).ok());
  PruneReport report = machine_.service().prune().value();
  EXPECT_EQ(report.kept, 10);
  EXPECT_EQ(report.entries, 0);

  Options options = machine_.options();
  options.max_cache_bytes = report.kept_bytes / 2;
  const PruneReport foreseen = Service(options, machine_.seams()).prune({.dry_run = true}).value();
  EXPECT_EQ(machine_.service().entries()->size(), 10u);
  report = Service(options, machine_.seams()).prune().value();
  EXPECT_EQ(report.entries, foreseen.entries);
  EXPECT_EQ(report.bytes, foreseen.bytes);
  EXPECT_LE(report.kept_bytes, options.max_cache_bytes);
  EXPECT_EQ(machine_.service().entries()->size(), std::size_t(report.kept));
  EXPECT_EQ(machine_.service().prune({.max_bytes = 0})->kept, 0);
  EXPECT_THAT(machine_.service().entries().value(), IsEmpty());
}

TEST_F(UpkeepTest, PruneClearsAwayWhatWasLeft) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  const std::string path = path_of(machine_.service().entries()->at(0));
  damage(path);
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  std::ofstream(path + ".0123456789abcdef.tmp") << "half";
  PruneReport report = machine_.service().prune().value();
  EXPECT_EQ(report.damaged, 1);
  EXPECT_EQ(report.temporaries, 0) << "it may be under way";
  report = machine_.service().prune({.stale_seconds = 0}).value();
  EXPECT_EQ(report.temporaries, 1);
  EXPECT_EQ(report.kept, 1);
  EXPECT_EQ(machine_.service().prepare(kSpec).value().origin(), Origin::disk);
}

TEST_F(UpkeepTest, PruneWithoutADirectoryDoesNothing) {
  EXPECT_EQ(machine_.service_without_cache().prune()->kept, 0);
  EXPECT_EQ(service("none").prune()->kept, 0);
  EXPECT_FALSE(fs::exists(elsewhere_ / "none"));
}

// Export and import.

TEST_F(UpkeepTest, TheSameEntriesMakeTheSamePack) {
  prebuild(machine_.service(), kSpec);
  prebuild(machine_.service(), kOther);
  prebuild(service("reverse"), kOther);
  prebuild(service("reverse"), kSpec);
  ASSERT_TRUE(machine_.service().export_pack(elsewhere_ / "a.njp").ok());
  const auto report = service("reverse").export_pack(elsewhere_ / "b.njp");
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(read(elsewhere_ / "a.njp"), read(elsewhere_ / "b.njp"));
  EXPECT_EQ(report->entries, int(machine_.service().entries()->size()));
  EXPECT_EQ(report->bytes, std::int64_t(fs::file_size(elsewhere_ / "b.njp")));
  // Out of a pack the same again.
  ASSERT_TRUE(
      service("")
          .export_pack(elsewhere_ / "c.njp", {.from = {elsewhere_ / "a.njp"}, .specs = {}, .devices = {}})
          .ok());
  EXPECT_EQ(read(elsewhere_ / "a.njp"), read(elsewhere_ / "c.njp"));
}

TEST_F(UpkeepTest, ExportTakesWhatIsAskedForOrNothing) {
  prebuild(machine_.service(), kSpec);
  prebuild(machine_.service(), kOther);
  const ExportOptions one{.from = {}, .specs = {kSpec}, .devices = {device_}};
  const auto report = machine_.service().export_pack(elsewhere_ / "one.njp", one);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->entries, int(plans(kSpec, device_).size()));
  EXPECT_THAT(report->missing, IsEmpty());

  ExportOptions more = one;
  more.specs.push_back({.columns = 77});
  const auto incomplete = machine_.service().export_pack(elsewhere_ / "more.njp", more);
  ASSERT_TRUE(incomplete.ok());
  EXPECT_EQ(incomplete->missing.size(), plans({.columns = 77}, device_).size());
  EXPECT_THAT(incomplete->missing[0], HasSubstr("cols=77"));
  EXPECT_FALSE(fs::exists(elsewhere_ / "more.njp"));
}

TEST_F(UpkeepTest, ExportTakesTheKernelsOfTheUses) {
  prebuild(machine_.service(), kSpec);
  const Uses grouped{.grouped_rows = true};
  ExportOptions wanted{.from = {}, .specs = {kSpec}, .devices = {device_}, .uses = grouped};
  const auto missing = machine_.service().export_pack(elsewhere_ / "grouped.njp", wanted);
  ASSERT_TRUE(missing.ok());
  EXPECT_EQ(missing->missing.size(), plans(kSpec, device_, grouped).size());
  EXPECT_THAT(missing->missing[0], HasSubstr("grouped_rows=1"));

  ASSERT_TRUE(machine_.service().prebuild({&kSpec, 1}, {&device_, 1}, {.uses = grouped}).ok());
  const auto there = machine_.service().export_pack(elsewhere_ / "grouped.njp", wanted);
  ASSERT_TRUE(there.ok());
  EXPECT_EQ(there->entries, int(plans(kSpec, device_, grouped).size())) << "and not the others";
  wanted.uses = {.batch_invariant = true};
  const auto invariant = machine_.service().export_pack(elsewhere_ / "invariant.njp", wanted);
  ASSERT_TRUE(invariant.ok());
  EXPECT_EQ(invariant->entries, int(plans(kSpec, device_, wanted.uses).size()));
  EXPECT_LT(invariant->entries, int(plans(kSpec, device_).size()));
}

TEST_F(UpkeepTest, ExportTakesTunedPlansAlone) {
  prebuild(machine_.service(), kSpec);
  const auto none = machine_.service().export_pack(
      elsewhere_ / "none.njp", {.from = {}, .specs = {}, .devices = {}, .only_tuned = true});
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("no tuned plan"));

  TunedPlan tuned{.spec = kSpec, .device = device_};
  for (const Candidate& one : candidates(kSpec, device_, tuned.regime, tuned.alignment))
    if (one.plan.exchange == Exchange::none && one.cost > 1) tuned.plan = one.plan;
  ASSERT_TRUE(machine_.service().remember(tuned).ok());
  ExportOptions wanted{.from = {}, .specs = {}, .devices = {}, .only_tuned = true};
  const auto all = machine_.service().export_pack(elsewhere_ / "all.njp", wanted);
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(all->entries, 1);
  wanted.specs = {kSpec};
  wanted.devices = {device_};
  const auto of_spec = machine_.service().export_pack(elsewhere_ / "spec.njp", wanted);
  ASSERT_TRUE(of_spec.ok());
  EXPECT_EQ(read(elsewhere_ / "spec.njp"), read(elsewhere_ / "all.njp"));

  // Where it is a layer, the plan is known.
  Service fleet = service("fleet");
  EXPECT_EQ(fleet.tuned(kSpec, device_, tuned.regime, tuned.alignment).value(), std::nullopt);
  ASSERT_TRUE(fleet.import_from({elsewhere_ / "all.njp"}).ok());
  Service later = service("fleet");
  EXPECT_EQ(later.tuned(kSpec, device_, tuned.regime, tuned.alignment).value(), tuned.plan);
}

TEST_F(UpkeepTest, ExportLeavesOutWhatIsUnsound) {
  for (const NormSpec& spec : {kSpec, kOther}) ASSERT_TRUE(machine_.service().prepare(spec).ok());
  damage(path_of(machine_.service().entries()->at(0)));
  const auto report = machine_.service().export_pack(elsewhere_ / "a.njp");
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->entries, 1);
  EXPECT_EQ(report->damaged, 1);
}

TEST_F(UpkeepTest, ExportRefusesWhatMakesNoSense) {
  Service service = machine_.service();
  EXPECT_EQ(service.export_pack(elsewhere_ / "a.njp").code(), Code::BadArgument) << "there is nothing";
  ASSERT_TRUE(service.prepare(kSpec).ok());
  EXPECT_EQ(service.export_pack(elsewhere_ / "a.zip").code(), Code::BadArgument);
  EXPECT_EQ(service.export_pack(elsewhere_ / "a.njp", {.from = {}, .specs = {kSpec}, .devices = {}}).code(),
            Code::BadArgument);
  EXPECT_EQ(
      service.export_pack(elsewhere_ / "a.njp", {.from = {elsewhere_ / "none"}, .specs = {}, .devices = {}})
          .code(),
      Code::CacheIo);
  machine_.files->fail_creation(ENOSPC);
  EXPECT_EQ(service.export_pack(elsewhere_ / "a.njp").code(), Code::CacheIo);
  EXPECT_TRUE(fs::is_empty(elsewhere_.path()));
}

TEST_F(UpkeepTest, ImportAddsWhatIsSoundAndKeepsWhatIsThere) {
  for (const NormSpec& spec : {kSpec, kOther}) ASSERT_TRUE(machine_.service().prepare(spec).ok());
  ASSERT_TRUE(machine_.service().prepare({.columns = 128}).ok());
  damage(path_of(machine_.service().entries()->at(1)));
  Service target = service("cache");
  ImportReport report = target.import_from({machine_.directory.path()}).value();
  EXPECT_EQ(report.imported, 2);
  EXPECT_EQ(report.present, 0);
  EXPECT_EQ(report.refused, 1);
  EXPECT_THAT(report.errors, ElementsAre(HasSubstr(machine_.directory.path())));
  report = target.import_from({machine_.directory.path()}).value();
  EXPECT_EQ(report.imported, 0);
  EXPECT_EQ(report.present, 2);
}

TEST_F(UpkeepTest, ImportMovesDamageOutOfTheWayAndNothingElse) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  Service target = service("cache");
  ASSERT_TRUE(target.import_from({machine_.directory.path()}).ok());
  const std::string path = elsewhere_ / ("cache/" + target.entries()->at(0).id + ".njk");
  damage(path);
  EXPECT_EQ(target.import_from({machine_.directory.path()})->imported, 1);
  EXPECT_THAT(target.verify()->flaws, IsEmpty());

  fs::permissions(path, fs::perms{0666});
  const ImportReport report = target.import_from({machine_.directory.path()}).value();
  EXPECT_EQ(report.imported, 0);
  EXPECT_EQ(report.unstored, 1);
  EXPECT_THAT(report.errors, ElementsAre(HasSubstr(path)));
}

TEST_F(UpkeepTest, ImportTellsWhatItCannotDo) {
  ASSERT_TRUE(machine_.service().prepare(kSpec).ok());
  EXPECT_EQ(machine_.service_without_cache().import_from({machine_.directory.path()}).code(), Code::CacheIo);
  EXPECT_EQ(service("cache").import_from({elsewhere_ / "none"}).code(), Code::CacheIo);
  machine_.files->fail_creation(EROFS);
  const ImportReport report = service("cache").import_from({machine_.directory.path()}).value();
  EXPECT_EQ(report.imported, 0);
  EXPECT_EQ(report.unstored, 1);
  EXPECT_THAT(report.errors, SizeIs(1));
}

}  // namespace
}  // namespace normjit::testing
