// SPDX-License-Identifier: Apache-2.0
// The commands that look after the cache, of the real tool on caches whose machine code is make-believe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "normjit/base/digest.h"
#include "normjit/base/embedded_file.h"
#include "normjit/cache/file_system.h"
#include "normjit/cache/key_lock.h"
#include "normjit/service.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;
using Json = nlohmann::json;

// Of fewer kernels, and of more.
constexpr const char* kSmall = "layernorm/cols=8/f32/eps=1e-05";
constexpr const char* kLarge = "layernorm/cols=4096/bf16/eps=1e-05/wb";

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ToolCache : public testing::Test {
 protected:
  // The command with a cache of the test's own.
  ToolRun run(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) const {
    arguments.insert(arguments.end(), {"--cache-dir", cache()});
    return run_tool(arguments, environment);
  }
  // Its report, which comes with this exit status.
  Json report(std::vector<std::string> arguments, int status = 0,
              const std::vector<std::string>& environment = {}) const {
    arguments.push_back("--json");
    const ToolRun run = this->run(arguments, environment);
    EXPECT_EQ(run.status, status) << testing::PrintToString(arguments) << run.err;
    return Json::parse(run.out);
  }

  std::string cache() const { return directory_ / "cache"; }
  std::string layer() const { return directory_ / "layer"; }
  std::string pack() const { return directory_ / "kernels.njp"; }
  // With `layers` and without any other place for a cache, compiler or toolkit.
  static std::vector<std::string> only(const std::string& layers) {
    return {"NORMJIT_LAYERS=" + layers,
            "XDG_CACHE_HOME=", "HOME=", "NORMJIT_NVRTC_PATH=/nonexistent/libnvrtc.so"};
  }

  // Puts every kernel of these specs for sm_90 into a directory.
  static void fill(const std::string& directory, const std::vector<std::string>& specs) {
    Options options;
    options.cache_directory = directory;
    Service service(options, {.compiler = std::make_shared<FakeCompiler>(), .driver = {}, .files = {}});
    const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
    for (const std::string& spec : specs) {
      const NormSpec parsed = parse_spec(spec).value();
      ASSERT_EQ(service.prebuild({&parsed, 1}, {&device, 1}).value().failed, 0);
    }
  }
  // The entries of a directory, by name.
  static std::vector<std::string> entries(const std::string& directory) {
    std::vector<std::string> paths;
    for (const auto& file : fs::directory_iterator(directory))
      if (file.path().extension() == ".njk") paths.push_back(file.path());
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  // Cuts the first one short.
  static std::string damage(const std::string& directory) {
    const std::string path = entries(directory).at(0);
    fs::resize_file(path, fs::file_size(path) - 1);
    return path;
  }
  static void set_age(const std::string& path, std::chrono::seconds age) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
  }

  TempDirectory directory_;
};

TEST_F(ToolCache, WhyAndShowSayWhereTheGenericKernelIs) {
  const bool embedded = !embedded_pack().empty();
  const std::string place = embedded ? "embedded, for sm_80\n" : "not here; it would be compiled\n";
  EXPECT_THAT(run({"why", kSmall, "--arch", "sm_89"}).out, HasSubstr("generic kernel: " + place));
  EXPECT_THAT(run({"show", kSmall, "--arch", "sm_89"}).out, HasSubstr("generic    " + place));
  for (const std::string command : {"why", "show"})
    EXPECT_EQ(report({command, kSmall, "--arch", "sm_89"}, command == "why" ? 1 : 0).at("generic").at("tier"),
              embedded ? "embedded" : "");
}

TEST_F(ToolCache, DoctorNamesVariablesThatItDoesNotUnderstand) {
  const ToolRun doctor = run({"doctor"}, {"NORMJIT_MODE=lasy"});
  EXPECT_THAT(doctor.out,
              HasSubstr("\nignored    NORMJIT_MODE is 'lasy', and may be eager, lazy or cached-only"));
  EXPECT_EQ(doctor.err.find("lasy"), std::string::npos) << "once is enough";
  EXPECT_EQ(Json::parse(run({"doctor", "--json"}, {"NORMJIT_MODE=lasy"}).out).at("ignored").size(), 1u);
  EXPECT_THAT(run({"show", kSmall, "--arch", "sm_90"}, {"NORMJIT_MODE=lasy"}).err, HasSubstr("lasy"));
}

TEST_F(ToolCache, HelpSaysHowToUseEachCommand) {
  const ToolRun help = run_tool({"--help"});
  for (const char* name :
       {"NORMJIT_LAYERS", "NORMJIT_CACHE_MAX_BYTES", "NORMJIT_CACHE_SHARED", "NORMJIT_TOOLCHAIN"})
    EXPECT_THAT(help.out, HasSubstr(name));
  for (const char* command : {"list", "why", "verify", "prune", "export", "import"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + command));
    const ToolRun own = run_tool({command, "--help"});
    EXPECT_EQ(own.status, 0) << command;
    for (const char* part : {"--cache-dir", "--json", "Example", "Exit status"})
      EXPECT_THAT(own.out, HasSubstr(part)) << command;
  }
}

TEST_F(ToolCache, UsageErrorsExitWith2) {
  const std::string empty = directory_ / "empty.json";
  std::ofstream(empty) << R"({"normjit_manifest": 1, "specs": []})";
  const std::vector<std::vector<std::string>> mistakes = {
      {"list", "--sort", "name"},
      {"list", "--sort"},
      {"why"},
      {"why", "layernorm/cols=0/f32"},
      {"why", kSmall, "--arch", "sm_80,sm_90"},
      {"why", kSmall, "--arch", "sm_90", "--rows", "-1"},
      {"verify", "unexpected"},
      {"prune", "--max-bytes", "12x"},
      {"prune", "--max-bytes", "-1"},
      {"prune", "--max-bytes", "0"},
      {"prune", "--max-bytes", "99999999999999999999"},
      {"prune", "--max-bytes", "1M", "--all"},
      {"prune", "--stale", "-1"},
      {"export"},
      {"export", "-"},
      {"export", pack(), "layernorm/cols=0/f32", "--arch", "sm_90"},
      {"export", pack(), kSmall, "--arch", "sm_12"},
      {"export", pack(), "--arch", "sm_90"},
      {"export", pack(), "--manifest", empty, "--arch", "sm_90"},
      {"export", pack(), "--manifest", directory_ / "absent.json", "--arch", "sm_90"},
      {"export", directory_ / "kernels.zip"},
      {"export", pack()},  // of an empty cache
      {"import"},
  };
  for (const auto& arguments : mistakes) {
    const ToolRun run = this->run(arguments);
    EXPECT_EQ(run.status, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << testing::PrintToString(arguments);
    EXPECT_THAT(run.err, StartsWith("normjit: ")) << testing::PrintToString(arguments);
  }
  EXPECT_FALSE(fs::exists(pack()));
  EXPECT_FALSE(fs::exists(cache()));
  EXPECT_THAT(run({"prune", "--max-bytes", "0"}).err, HasSubstr("--all"));
}

TEST_F(ToolCache, WithoutACacheDirectoryTheyExitWith4) {
  const std::vector<std::string> homeless = {"NORMJIT_CACHE_DIR=", "XDG_CACHE_HOME=", "HOME="};
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"list", "--layers"}, {"verify"}, {"prune"}, {"export", pack()}, {"import", layer()}}) {
    const ToolRun run = run_tool(arguments, homeless);
    EXPECT_EQ(run.status, 4) << arguments[0];
    EXPECT_THAT(run.err, HasSubstr("there is no cache directory")) << arguments[0];
  }
}

// --- list

TEST_F(ToolCache, ListIsSortedAsAsked) {
  fill(cache(), {kSmall, kLarge});
  const std::vector<std::string> files = entries(cache());
  ASSERT_GT(files.size(), 2u);
  // The later by name, the older.
  for (std::size_t i = 0; i < files.size(); ++i) set_age(files[i], std::chrono::hours(24 * (1 + i)));

  const auto listed = [&](const char* order, const char* field) {
    const Json found = report({"list", "--sort", order});
    std::vector<Json> values;
    for (const Json& entry : found.at("entries")) values.push_back(entry.at(field));
    EXPECT_THAT(values, SizeIs(files.size()));
    return values;
  };
  const auto ids = listed("id", "id");
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  const auto specs = listed("spec", "spec");
  EXPECT_TRUE(std::is_sorted(specs.begin(), specs.end()));
  const auto sizes = listed("size", "bytes");
  EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
  const auto dates = listed("age", "modified");
  EXPECT_TRUE(std::is_sorted(dates.begin(), dates.end()));
  EXPECT_THAT(dates[0].get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..Z"));
  EXPECT_EQ(report({"list"}).at("entries"), report({"list", "--sort", "spec"}).at("entries"));
}

TEST_F(ToolCache, ListShowsDatesByAgeOnly) {
  fill(cache(), {kSmall});
  const std::chrono::sys_seconds date(std::chrono::seconds(1'000'000'000));
  for (const std::string& file : entries(cache()))
    fs::last_write_time(file, std::chrono::file_clock::from_sys(date));
  EXPECT_THAT(run({"list", "--sort", "age"}).out, HasSubstr("  2001-09-09T01:46:40Z  "));
  EXPECT_THAT(run({"list"}).out, Not(HasSubstr("2001-")));
  EXPECT_EQ(report({"list"}).at("entries").at(0).at("modified"), "2001-09-09T01:46:40Z");
}

TEST_F(ToolCache, ListShowsLayersOnlyIfAsked) {
  fill(cache(), {kSmall});
  fill(layer(), {kLarge});
  const std::vector<std::string> layers = {"NORMJIT_LAYERS=" + layer()};
  const Json own = report({"list"}, 0, layers);
  EXPECT_THAT(own.at("entries"), SizeIs(entries(cache()).size()));
  EXPECT_THAT(own.at("layers"), IsEmpty());

  const Json all = report({"list", "--layers"}, 0, layers);
  EXPECT_THAT(all.at("entries"), SizeIs(entries(cache()).size() + entries(layer()).size()));
  EXPECT_EQ(all.at("layers"), Json({layer()}));
  for (const Json& entry : all.at("entries"))
    EXPECT_EQ(entry.at("tier"), entry.at("spec") == kSmall ? cache() : layer());
  const ToolRun text = run({"list", "--layers"}, layers);
  EXPECT_THAT(text.out, HasSubstr("  tier\n"));
  EXPECT_THAT(text.out, HasSubstr("  " + layer() + "\n"));
  EXPECT_THAT(text.out, EndsWith(cache() + " and 1 layer\n"));
  EXPECT_EQ(run_tool({"list", "--layers"}, only(layer())).status, 0) << "a layer alone can be listed";
}

// --- why

TEST_F(ToolCache, WhySaysWhereAKernelIs) {
  fill(cache(), {kLarge});
  const Json found = report({"why", kLarge, "--arch", "sm_90"});
  EXPECT_EQ(found.at("spec"), kLarge);
  EXPECT_EQ(found.at("device").at("arch"), "sm_90");
  EXPECT_EQ(found.at("missing"), 0);
  ASSERT_THAT(found.at("kernels"), SizeIs(entries(cache()).size()));
  for (const Json& kernel : found.at("kernels")) {
    EXPECT_EQ(kernel.at("tier"), cache());
    EXPECT_EQ(kernel.at("id").get<std::string>().size(), 32u);
    EXPECT_THAT(kernel.at("identity").get<std::string>(), HasSubstr("arch=sm_90"));
    EXPECT_NE(kernel.at("uses"), "");
    EXPECT_THAT(kernel.at("differences"), IsEmpty());
  }
  const ToolRun text = run({"why", kLarge, "--arch", "sm_90"});
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, HasSubstr("0 would be compiled\n"));
  EXPECT_THAT(text.err, IsEmpty());
}

TEST_F(ToolCache, WhyNamesTheLayer) {
  fill(layer(), {kSmall});
  const Json found = report({"why", kSmall, "--arch", "sm_90"}, 0, {"NORMJIT_LAYERS=" + layer()});
  for (const Json& kernel : found.at("kernels")) EXPECT_EQ(kernel.at("tier"), layer());
  EXPECT_FALSE(fs::exists(cache())) << "it writes nothing";
}

TEST_F(ToolCache, WhyNamesTheFieldsThatDiffer) {
  fill(cache(), {"layernorm/cols=8/f32/eps=1e-06"});
  const Json found = report({"why", kSmall, "--arch", "sm_90"}, 1);
  EXPECT_GT(found.at("missing"), 0);
  for (const Json& kernel : found.at("kernels")) {
    EXPECT_EQ(kernel.at("tier"), "");
    EXPECT_NE(kernel.at("nearest"), "");
    EXPECT_THAT(kernel.at("differences"),
                Contains(Json({{"field", "epsilon"}, {"asked", "1e-05"}, {"stored", "1e-06"}})));
  }
  const ToolRun text = run({"why", kSmall, "--arch", "sm_90"});
  EXPECT_EQ(text.status, 1);
  EXPECT_THAT(text.out, testing::ContainsRegex("epsilon +1e-05 +1e-06\n"));
  EXPECT_THAT(text.err, HasSubstr("normjit prebuild " + std::string(kSmall) + " --arch sm_90"));
}

// Other kernels of the spec, which differ in the plan, are no nearer.
TEST_F(ToolCache, WhyTellsThatTheTemplatesChanged) {
  fill(cache(), {kLarge});
  const std::string templates = directory_ / "templates";
  fs::copy(NORMJIT_SOURCE_DIR "/templates", templates, fs::copy_options::recursive);
  const std::vector<std::string> environment = {"NORMJIT_TEMPLATE_DIR=" + templates};
  EXPECT_EQ(report({"why", kLarge, "--arch", "sm_90"}, 0, environment).at("missing"), 0)
      << "a copy is as good";

  std::ofstream(templates + "/number.cuh", std::ios::app) << "// changed\n";
  const Json found = report({"why", kLarge, "--arch", "sm_90"}, 1, environment);
  EXPECT_EQ(found.at("missing"), found.at("kernels").size());
  for (const Json& kernel : found.at("kernels")) {
    ASSERT_THAT(kernel.at("differences"), SizeIs(1));
    EXPECT_EQ(kernel.at("differences").at(0).at("field"), "source");
    EXPECT_THAT(kernel.at("reason").get<std::string>(), HasSubstr("source"));
  }
}

TEST_F(ToolCache, WhyOfAnEmptyCacheExitsWith1) {
  const Json found = report({"why", kSmall, "--arch", "sm_90"}, 1);
  for (const Json& kernel : found.at("kernels")) {
    EXPECT_EQ(kernel.at("nearest"), "");
    EXPECT_NE(kernel.at("reason"), "");
  }
  EXPECT_EQ(run_tool({"why", kSmall, "--arch", "sm_90"}, only("")).status, 1) << "needs no directory";
  EXPECT_FALSE(fs::exists(cache()));
}

TEST_F(ToolCache, WhyOfSomeRowsIsOneKernel) {
  fill(cache(), {kLarge});
  ASSERT_GT(report({"why", kLarge, "--arch", "sm_90"}).at("kernels").size(), 1u);
  const Json found = report({"why", kLarge, "--arch", "sm_90", "--rows", "100000"});
  EXPECT_EQ(found.at("rows"), 100000);
  ASSERT_THAT(found.at("kernels"), SizeIs(1));
  const Json shown = report({"show", kLarge, "--arch", "sm_90"});
  for (const Json& use : shown.at("uses")) {
    if (use.at("regime") == "many" && use.at("alignment") == 8) {
      EXPECT_EQ(found.at("kernels").at(0).at("id"), use.at("id"));
    }
  }
}

// --- verify

TEST_F(ToolCache, VerifyOfASoundCacheExitsWith0) {
  EXPECT_EQ(report({"verify"}).at("entries"), 0) << "no directory yet";
  fill(cache(), {kLarge});
  fill(layer(), {kSmall});
  const Json found = report({"verify"}, 0, {"NORMJIT_LAYERS=" + layer()});
  EXPECT_EQ(found.at("entries"), entries(cache()).size() + entries(layer()).size());
  EXPECT_GT(found.at("bytes"), 0);
  EXPECT_THAT(found.at("flaws"), IsEmpty());
  EXPECT_THAT(run({"verify"}).out, HasSubstr("0 flaws in " + cache()));
}

TEST_F(ToolCache, VerifyNamesDamageAndMovesItAsideIfAsked) {
  fill(cache(), {kLarge});
  const std::string path = damage(cache());
  const ToolRun text = run({"verify"});
  EXPECT_EQ(text.status, 1);
  EXPECT_THAT(text.out, StartsWith(path + "\n"));
  EXPECT_THAT(text.out, HasSubstr("1 flaw in"));
  EXPECT_THAT(text.err, HasSubstr("--quarantine"));
  EXPECT_TRUE(fs::exists(path)) << "only looked";

  const Json found = report({"verify", "--quarantine"}, 1);
  ASSERT_THAT(found.at("flaws"), SizeIs(1));
  EXPECT_EQ(found.at("flaws").at(0).at("path"), path);
  EXPECT_EQ(found.at("flaws").at(0).at("quarantined"), true);
  EXPECT_NE(found.at("flaws").at(0).at("reason"), "");
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(fs::path(path).replace_extension(".damaged")));
  EXPECT_EQ(run({"verify"}).status, 0);
}

TEST_F(ToolCache, VerifyLeavesLayersAsTheyAre) {
  fill(layer(), {kSmall});
  const std::string path = damage(layer());
  const ToolRun text = run({"verify", "--quarantine"}, {"NORMJIT_LAYERS=" + layer()});
  EXPECT_EQ(text.status, 1);
  EXPECT_THAT(text.out, HasSubstr(path));
  EXPECT_THAT(text.err, HasSubstr("a flawed layer has to be made again"));
  EXPECT_TRUE(fs::exists(path));
}

// --- prune

TEST_F(ToolCache, PruneRemovesTheOldestFirst) {
  fill(cache(), {kLarge});
  const std::vector<std::string> files = entries(cache());
  for (std::size_t i = 0; i < files.size(); ++i) set_age(files[i], std::chrono::hours(100 - i));
  const auto bytes = report({"verify"}).at("bytes").get<std::int64_t>();

  const Json all_fit = report({"prune"});
  EXPECT_EQ(all_fit.at("removed").at("entries"), 0);
  EXPECT_EQ(all_fit.at("kept").at("entries"), files.size());
  EXPECT_EQ(all_fit.at("kept").at("bytes"), bytes);

  const std::string bound = std::to_string(bytes - 1);
  const Json looked = report({"prune", "--max-bytes", bound, "--dry-run"});
  EXPECT_EQ(looked.at("dry_run"), true);
  EXPECT_GT(looked.at("removed").at("entries"), 0);
  EXPECT_EQ(entries(cache()), files);

  Json removed = report({"prune", "--max-bytes", bound});
  EXPECT_EQ(removed.at("removed"), looked.at("removed"));
  EXPECT_EQ(removed.at("kept"), looked.at("kept"));
  const auto gone = removed.at("removed").at("entries").get<std::size_t>();
  EXPECT_EQ(entries(cache()), std::vector<std::string>(files.begin() + gone, files.end()));
  EXPECT_EQ(removed.at("refused"), 0);
  EXPECT_EQ(removed.at("busy"), false);
}

TEST_F(ToolCache, PruneTakesItsBoundFromTheEnvironment) {
  fill(cache(), {kLarge});
  EXPECT_GT(report({"prune", "--dry-run"}, 0, {"NORMJIT_CACHE_MAX_BYTES=1K"}).at("removed").at("entries"), 0);
  EXPECT_EQ(report({"prune"}, 0, {"NORMJIT_CACHE_MAX_BYTES=0"}).at("removed").at("entries"), 0) << "no bound";
  EXPECT_EQ(
      report({"prune", "--max-bytes", "1G"}, 0, {"NORMJIT_CACHE_MAX_BYTES=1K"}).at("removed").at("entries"),
      0);
}

TEST_F(ToolCache, PruneOfAllLeavesWhatIsNotOurs) {
  fill(cache(), {kLarge});
  std::ofstream(cache() + "/notes.txt") << "the user's own";
  const std::size_t count = entries(cache()).size();
  const ToolRun text = run({"prune", "--all"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, StartsWith("removed " + std::to_string(count) +
                                   " entries, 0 damaged files and 0 temporaries: "));
  EXPECT_THAT(text.out, HasSubstr("\nkept 0 entries, 0 bytes in " + cache()));
  EXPECT_THAT(entries(cache()), IsEmpty());
  EXPECT_TRUE(fs::exists(cache() + "/notes.txt"));
}

TEST_F(ToolCache, PruneClearsAwayWhatWasLeft) {
  fill(cache(), {kSmall});
  damage(cache());
  ASSERT_EQ(run({"verify", "--quarantine"}).status, 1);
  const std::string id(32, 'a');
  const std::string temporary = cache() + "/" + id + ".njk.0123456789abcdef.tmp";
  std::ofstream(temporary) << "half an entry";
  set_age(temporary, std::chrono::minutes(5));

  const Json first = report({"prune"});
  EXPECT_EQ(first.at("removed").at("damaged"), 1);
  EXPECT_EQ(first.at("removed").at("temporaries"), 0) << "its process may live";
  const Json second = report({"prune", "--stale", "60"});
  EXPECT_EQ(second.at("removed").at("temporaries"), 1);
  EXPECT_FALSE(fs::exists(temporary));
}

TEST_F(ToolCache, PruneLeavesTheWorkToWhoIsAtIt) {
  fill(cache(), {kSmall});
  const std::shared_ptr<FileSystem> files = make_posix_file_system();
  const KeyLock held = KeyLock::of_trimmer(*files, cache(), /*shared=*/false);
  EXPECT_EQ(report({"prune", "--all"}).at("busy"), true);
  EXPECT_THAT(run({"prune", "--all"}).out, StartsWith("another process is trimming " + cache()));
  EXPECT_FALSE(entries(cache()).empty());
}

// --- export and import

TEST_F(ToolCache, ExportOfTheSameEntriesIsTheSameFile) {
  fill(cache(), {kLarge, kSmall});
  fill(layer(), {kSmall, kLarge});
  for (const std::string& file : entries(layer())) set_age(file, std::chrono::hours(1000));
  const Json written = report({"export", pack()});
  EXPECT_EQ(written.at("pack"), pack());
  EXPECT_EQ(written.at("entries"), entries(cache()).size());
  EXPECT_EQ(written.at("bytes"), fs::file_size(pack()));
  EXPECT_EQ(written.at("xxh128"), digest(contents(pack())));
  EXPECT_EQ(written.at("damaged"), 0);
  EXPECT_THAT(written.at("missing"), IsEmpty());

  const std::string other = directory_ / "other.njp";
  const ToolRun again = run({"export", other, "--from", layer()});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(contents(other), contents(pack()));
  EXPECT_THAT(again.out, StartsWith(other + ": "));
  EXPECT_THAT(again.out, HasSubstr("XXH128 " + written.at("xxh128").get<std::string>()));
}

TEST_F(ToolCache, ExportMergesPacks) {
  fill(cache(), {kSmall});
  fill(layer(), {kLarge});
  const std::string one = directory_ / "one.njp", two = directory_ / "two.njp";
  ASSERT_EQ(run({"export", one, "--from", cache()}).status, 0);
  ASSERT_EQ(run({"export", two, "--from", layer()}).status, 0);
  const Json both = report({"export", pack(), "--from", one, "--from", two});
  EXPECT_EQ(both.at("entries"), entries(cache()).size() + entries(layer()).size());
  const Json swapped = report({"export", directory_ / "swapped.njp", "--from", two, "--from", one});
  EXPECT_EQ(swapped.at("xxh128"), both.at("xxh128"));
}

TEST_F(ToolCache, ExportOfSpecsTakesOnlyTheirs) {
  fill(cache(), {kSmall, kLarge});
  const std::string manifest = directory_ / "specs.json";
  std::ofstream(manifest) << R"({"normjit_manifest": 1, "specs": ["layernorm/cols=8/f32"]})";
  const Json one = report({"export", pack(), "--manifest", manifest, "--arch", "sm_90"});
  EXPECT_LT(one.at("entries"), entries(cache()).size());
  const Json listed = report({"list", "--layers"}, 0, {"NORMJIT_LAYERS=" + pack()});
  for (const Json& entry : listed.at("entries")) {
    if (entry.at("tier") == pack()) {
      EXPECT_EQ(entry.at("spec"), kSmall);
    }
  }
}

TEST_F(ToolCache, ExportWritesNoPackWithGaps) {
  fill(cache(), {kSmall});
  const std::vector<std::string> gaps = {"export", pack(), kSmall, kLarge, "--arch", "sm_90"};
  const Json found = report(gaps, 1);
  EXPECT_FALSE(found.at("missing").empty());
  EXPECT_EQ(found.at("written"), false);
  EXPECT_EQ(found.at("xxh128"), "");
  EXPECT_THAT(found.at("missing").at(0).get<std::string>(), HasSubstr(kLarge));
  const ToolRun text = run(gaps);
  EXPECT_THAT(text.out, StartsWith("missing: "));
  EXPECT_THAT(text.err, HasSubstr("prebuild"));
  EXPECT_FALSE(fs::exists(pack()));
  std::ofstream(pack()) << "an older pack";
  EXPECT_EQ(run(gaps).status, 1);
  EXPECT_EQ(contents(pack()), "an older pack");
  EXPECT_EQ(run({"export", directory_ / "none.njp", kLarge, "--arch", "sm_90"}).status, 1)
      << "nothing but gaps";
}

TEST_F(ToolCache, ExportLeavesOutWhatIsDamaged) {
  fill(cache(), {kSmall, kLarge});
  damage(cache());
  const Json found = report({"export", pack()}, 1);
  EXPECT_EQ(found.at("damaged"), 1);
  EXPECT_EQ(found.at("entries"), entries(cache()).size() - 1);
  EXPECT_TRUE(fs::exists(pack()));
  EXPECT_THAT(run({"export", pack()}).err, HasSubstr("normjit verify"));
}

TEST_F(ToolCache, ExportToNowhereExitsWith4) {
  fill(cache(), {kSmall});
  std::ofstream(directory_ / "file") << "no directory";
  EXPECT_EQ(run({"export", directory_ / "file/kernels.njp"}).status, 4);
  EXPECT_EQ(run({"export", pack(), "--from", directory_ / "absent.njp"}).status, 4);
}

TEST_F(ToolCache, ImportCopiesWhatIsNotThere) {
  fill(layer(), {kSmall, kLarge});
  ASSERT_EQ(run_tool({"export", pack(), "--cache-dir", layer()}).status, 0);
  fill(cache(), {kSmall});
  const auto here = entries(cache()).size(), all = entries(layer()).size();
  const Json first = report({"import", pack()});
  EXPECT_EQ(first.at("imported"), all - here);
  EXPECT_EQ(first.at("present"), here);
  EXPECT_EQ(first.at("refused"), 0);
  ASSERT_THAT(entries(cache()), SizeIs(all));
  for (std::size_t i = 0; i < all; ++i)
    EXPECT_EQ(contents(entries(cache())[i]), contents(entries(layer())[i]));

  const ToolRun second = run({"import", layer(), pack()});
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_THAT(second.out, StartsWith("0 imported, "));
}

TEST_F(ToolCache, ImportRefusesWhatIsDamaged) {
  fill(layer(), {kSmall, kLarge});
  damage(layer());
  const Json found = report({"import", layer()}, 1);
  EXPECT_EQ(found.at("refused"), 1);
  EXPECT_EQ(found.at("imported"), entries(layer()).size() - 1);
  EXPECT_THAT(found.at("errors"), SizeIs(1));
  EXPECT_THAT(run({"import", layer()}).out, StartsWith("left out: "));
}

TEST_F(ToolCache, ImportOfWhatIsNoSourceExitsWith2) {
  fill(layer(), {kSmall});
  ASSERT_EQ(run_tool({"export", pack(), "--cache-dir", layer()}).status, 0);
  const std::string bytes = contents(pack());
  const std::string cut = directory_ / "cut.njp", open = directory_ / "open.njp",
                    folder = directory_ / "folder.njp";
  std::ofstream(cut, std::ios::binary) << bytes.substr(0, bytes.size() - 1);
  fs::copy_file(pack(), open);
  fs::permissions(open, fs::perms(0666));
  fs::create_directory(folder);
  for (const std::string& source : {directory_ / "absent.njp", directory_ / "absent", cut, open, folder}) {
    const ToolRun run = this->run({"import", pack(), source});
    EXPECT_EQ(run.status, 2) << source;
    EXPECT_THAT(run.err, HasSubstr(source));
    EXPECT_FALSE(fs::exists(cache())) << "nothing is copied";
  }
  EXPECT_THAT(run_tool({"import", "--help"}).out, HasSubstr("2 if a source cannot be read"));
  EXPECT_EQ(run({"import", pack()}).status, 0);
}

TEST_F(ToolCache, ImportWithoutTargetExitsWith4) {
  fill(layer(), {kSmall});
  std::ofstream(directory_ / "file") << "no directory";
  EXPECT_EQ(run_tool({"import", layer(), "--cache-dir", directory_ / "file/cache"}).status, 4);
}

// --- the other commands and layers

TEST_F(ToolCache, LayersThatCannotBeReadAreNamed) {
  fill(cache(), {kSmall});
  ASSERT_EQ(run({"export", pack()}).status, 0);
  const std::string bytes = contents(pack());
  const std::string cut = directory_ / "cut.njp", fifo = directory_ / "fifo.njp",
                    absent = directory_ / "absent.njp";
  std::ofstream(cut, std::ios::binary) << bytes.substr(0, bytes.size() - 1);
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  fs::create_directory(layer());
  const std::vector<std::string> bad = {cut, fifo, absent, directory_ / "absent"};
  std::string layers = layer() + ":" + pack();
  for (const std::string& path : bad) layers += ":" + path;
  const std::vector<std::string> environment = {"NORMJIT_LAYERS=" + layers};
  const auto warnings = [&](const ToolRun& run) {
    for (const std::string& path : bad) EXPECT_THAT(run.err, HasSubstr(path));
    return std::count(run.err.begin(), run.err.end(), '\n');
  };
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"prebuild", kSmall, "--arch", "sm_90", "--check"},
                                             {"why", kSmall, "--arch", "sm_90"},
                                             {"show", kSmall, "--arch", "sm_90"},
                                             {"list", "--layers"}}) {
    const ToolRun run = this->run(command, environment);
    EXPECT_EQ(run.status, command[0] == "list" ? 1 : 0) << command[0] << run.err;
    EXPECT_EQ(warnings(run), std::ssize(bad)) << command[0] << "\n" << run.err;
  }
  EXPECT_THAT(run({"list"}, environment).err, IsEmpty()) << "without --layers they do not matter";
  EXPECT_THAT(run({"prebuild", kSmall, "--arch", "sm_90"}, {"NORMJIT_LAYERS=" + pack()}).err,
              Not(HasSubstr("warning")));
}

TEST_F(ToolCache, AFullCacheNeedsNoWritableDirectory) {
  fill(layer(), {kSmall});
  const ToolRun run =
      run_tool({"prebuild", kSmall, "--arch", "sm_90", "--cache-dir", "/dev/null"}, only(layer()));
  EXPECT_EQ(run.status, 0) << run.err;
}

TEST_F(ToolCache, ALayerIsEnoughForPrebuild) {
  fill(layer(), {kLarge});
  ASSERT_EQ(run_tool({"export", pack(), "--cache-dir", layer()}).status, 0);
  const std::vector<std::string> check = {"prebuild", kLarge, "--arch", "sm_90", "--check"};
  const ToolRun alone = run_tool(check, only(pack()));
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_THAT(alone.out, EndsWith("cache 1 layer\n"));
  EXPECT_EQ(run_tool(check, only("")).status, 4);
  EXPECT_EQ(run(check, only(pack())).status, 0);

  const Json built = report({"prebuild", kLarge, "--arch", "sm_90"}, 0, only(pack()));
  EXPECT_EQ(built.at("cached"), built.at("requested"));
  EXPECT_EQ(built.at("compiled"), 0);
}

TEST_F(ToolCache, DoctorShowsLayersAndRules) {
  fill(layer(), {kLarge});
  std::ofstream(pack()) << "no pack";
  const std::vector<std::string> environment = {"NORMJIT_LAYERS=" + layer() + ":" + pack(),
                                                "NORMJIT_CACHE_MAX_BYTES=1536M", "NORMJIT_CACHE_SHARED=1",
                                                "NORMJIT_TOOLCHAIN=exact"};
  const int status = run({"doctor"}).status;  // 3 where there is no compiler
  const Json found = report({"doctor"}, status, environment);
  EXPECT_EQ(found.at("cache").at("max_bytes"), std::int64_t{1536} << 20);
  EXPECT_EQ(found.at("cache").at("shared"), true);
  EXPECT_EQ(found.at("cache").at("exact_toolchain"), true);
  ASSERT_THAT(found.at("layers"), SizeIs(2));
  EXPECT_EQ(found.at("layers").at(0).at("path"), layer());
  EXPECT_EQ(found.at("layers").at(0).at("entries"), entries(layer()).size());
  EXPECT_EQ(found.at("layers").at(0).at("error"), "");
  EXPECT_EQ(found.at("layers").at(1).at("entries"), 0);
  EXPECT_NE(found.at("layers").at(1).at("error"), "");

  const ToolRun text = run({"doctor"}, environment);
  EXPECT_EQ(text.status, status) << "a bad layer stops nothing";
  EXPECT_THAT(text.out, HasSubstr("at most 1536M; shared"));
  EXPECT_THAT(text.out, HasSubstr("exact: "));
  EXPECT_THAT(text.out, HasSubstr("layer      " + layer() + ", "));
  EXPECT_THAT(text.out, HasSubstr("nothing is taken from it"));
  EXPECT_THAT(run({"doctor"}).out, HasSubstr("at most 256M; believes only"));
  EXPECT_THAT(run({"doctor"}, {"NORMJIT_CACHE_MAX_BYTES=0"}).out, HasSubstr("of any size"));
}

}  // namespace
}  // namespace normjit
