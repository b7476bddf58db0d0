// SPDX-License-Identifier: Apache-2.0
// Every system call of the cache fails in every way under a Service: each prepare gives the right kernel, and
// the calls that look after the cache do their work or say that they could not.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "normjit/service.h"
#include "tests/support/every_fault.h"
#include "tests/support/fake_machine.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;

constexpr NormSpec kSpec{.columns = 4096};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// What an undisturbed machine makes.
struct Right {
  std::string name, entry, code, pack;

  Right() {
    FakeMachine machine;
    Service service = machine.service();
    EXPECT_TRUE(service.prepare(kSpec).ok());
    code = machine.driver->loads().at(0).code;
    for (const auto& file : fs::directory_iterator(machine.directory.path()))
      if (file.path().extension() == ".njk") name = file.path().filename();
    entry = read(machine.directory / name);
    EXPECT_TRUE(service.export_pack(machine.directory / "one.njp").ok());
    pack = read(machine.directory / "one.njp");
  }
};

const Right& right() {
  static const Right right;
  return right;
}

class ServiceScene;
struct Story {
  const char* name;
  void (*prepare)(ServiceScene&);
  Outcome (*act)(ServiceScene&);
};

class ServiceScene final : public Scene {
 public:
  explicit ServiceScene(const Story& story) : story_(story) {
    files->skip_flushes();
    options.cache_directory = temp / "cache";
    story.prepare(*this);
  }
  Outcome act() override { return story_.act(*this); }
  void check() override {
    prepare();
    const std::size_t compiles = compiler->calls().size();
    prepare();
    EXPECT_EQ(compiler->calls().size(), compiles) << "the directory is no good any more";
    EXPECT_EQ(read(options.cache_directory + "/" + right().name), right().entry);
    EXPECT_TRUE(service().verify(/*quarantine=*/true).ok());
    EXPECT_TRUE(service().prune({.stale_seconds = 0}).ok());
    EXPECT_TRUE(service().verify().value().flaws.empty());
    for (const auto& file : fs::directory_iterator(options.cache_directory)) {
      EXPECT_TRUE(file.path().extension() == ".njk" || file.path().filename() == "lock") << file.path();
    }
  }

  Service service() { return Service(options, {.compiler = compiler, .driver = driver, .files = files}); }
  // As a new process: the kernel is there and right. Whether it came out of the cache.
  bool prepare() {
    const auto kernel = service().prepare(kSpec);
    EXPECT_TRUE(kernel.ok()) << kernel.error().message;
    if (!kernel) return false;
    EXPECT_EQ(driver->loads().back().code, right().code);
    return kernel->origin() != Origin::compiled;
  }
  bool is_kept() const { return fs::exists(options.cache_directory + "/" + right().name); }

  const TempDirectory temp = TempDirectory::in_memory();
  const std::shared_ptr<FakeCompiler> compiler = std::make_shared<FakeCompiler>();
  const std::shared_ptr<FakeDriver> driver = std::make_shared<FakeDriver>(std::vector{profile_of(90)});
  Options options;

 private:
  const Story& story_;
};

Outcome make(ServiceScene& scene) {
  scene.prepare();
  return scene.is_kept() ? Outcome::served : Outcome::refused;
}
Outcome find(ServiceScene& scene) { return scene.prepare() ? Outcome::served : Outcome::missed; }

void warm(ServiceScene& scene) { write(scene.options.cache_directory + "/" + right().name, right().entry); }
void damaged(ServiceScene& scene) { write(scene.options.cache_directory + "/" + right().name, "damaged"); }
void packed(ServiceScene& scene) {
  write(scene.temp / "one.njp", right().pack);
  scene.options.layers = {scene.temp / "one.njp"};
}
void layered(ServiceScene& scene) {
  write(scene.temp / ("layer/" + right().name), right().entry);
  scene.options.layers = {scene.temp / "layer"};
}

const Story kStories[] = {
    {"a new kernel", [](ServiceScene&) {}, make},
    {"a known kernel", warm, find},
    {"a damaged kernel", damaged, make},
    {"a kernel of a layer", layered, find},
    {"a kernel of a pack", packed, find},
    {"a kernel that the driver refuses",
     [](ServiceScene& scene) {
       warm(scene);
       scene.driver->refuse_load(1);
     },
     [](ServiceScene& scene) {
       const auto kernel = scene.service().prepare(kSpec);
       if (!kernel) {
         EXPECT_EQ(kernel.code(), Code::LoadFailed);
         EXPECT_EQ(scene.driver->loads().size(), 1u) << "it was compiled and still refused";
         return Outcome::missed;
       }
       EXPECT_EQ(kernel->origin(), Origin::compiled);
       EXPECT_EQ(scene.driver->loads().back().code, right().code);
       return Outcome::served;
     }},
    {"a kernel of another compiler",
     [](ServiceScene& scene) {
       warm(scene);
       scene.options.exact_toolchain = true;
     },
     find},
    {"a prebuild", [](ServiceScene&) {},
     [](ServiceScene& scene) {
       const DeviceProfile device = profile_of(90);
       const NormSpec few_plans{.columns = 3};
       const auto report =
           scene.service().prebuild({&few_plans, 1}, {&device, 1}, {.jobs = 1, .progress = {}});
       EXPECT_TRUE(report.ok());
       EXPECT_EQ(report->failed, 0);
       EXPECT_EQ(report->cached + report->compiled, report->requested);
       return report->unstored == 0 ? Outcome::served : Outcome::refused;
     }},
    {"entries",
     [](ServiceScene& scene) {
       warm(scene);
       packed(scene);
     },
     [](ServiceScene& scene) {
       const auto entries = scene.service().entries();
       if (!entries) return Outcome::refused;
       int sound = 0;
       for (const EntryReport& entry : *entries) {
         EXPECT_NE(entry.damaged, entry.error.empty());
         sound += !entry.damaged && entry.spec == to_text(kSpec);
       }
       return sound == 2 ? Outcome::served : Outcome::missed;
     }},
    {"verify",
     [](ServiceScene& scene) {
       warm(scene);
       write(scene.options.cache_directory + "/0123456789abcdef0123456789abcdef.njk", "damaged");
     },
     [](ServiceScene& scene) {
       const auto report = scene.service().verify(/*quarantine=*/true);
       if (!report) return Outcome::refused;
       const bool all = report->entries == 1 && report->flaws.size() == 1 && report->flaws[0].quarantined;
       EXPECT_TRUE(scene.is_kept() || !fs::exists(scene.options.cache_directory)) << "a sound one stays";
       return all ? Outcome::served : Outcome::missed;
     }},
    {"export", warm,
     [](ServiceScene& scene) {
       const std::string path = scene.temp / "all.njp";
       const auto report = scene.service().export_pack(path);
       if (report) {
         EXPECT_EQ(read(path), right().pack);
       }
       if (fs::exists(path)) {
         EXPECT_EQ(read(path), right().pack) << "whole or not at all";
       }
       return report ? Outcome::served : Outcome::refused;
     }},
    {"import",
     [](ServiceScene& scene) {
       packed(scene);
       scene.options.layers.clear();
     },
     [](ServiceScene& scene) {
       const auto report = scene.service().import_from({scene.temp / "one.njp"});
       if (!report) return Outcome::refused;
       EXPECT_EQ(report->imported + report->present + report->refused + report->unstored, 1);
       EXPECT_EQ(report->refused + report->unstored, static_cast<int>(report->errors.size()));
       return report->imported == 1 ? Outcome::served : Outcome::missed;
     }},
    {"a tuned plan", [](ServiceScene&) {},
     [](ServiceScene& scene) {
       const DeviceProfile device = profile_of(90);
       const TunedPlan tuned{.spec = kSpec,
                             .device = device,
                             .regime = RowsRegime::few,
                             .alignment = Alignment::one,
                             .plan = choose(kSpec, device, RowsRegime::few, Alignment::one),
                             .rows = 1,
                             .fraction_of_copy = 0.5};
       const auto kept = scene.service().remember(tuned);
       if (!kept) {
         EXPECT_EQ(kept.code(), Code::CacheIo);
       }
       fs::remove_all(scene.options.cache_directory);  // or check() finds what it does not know
       return kept ? Outcome::served : Outcome::refused;
     }},
};

TEST(ServiceFaults, CostNothingButTime) {
  Tally all;
  for (const Story& story : kStories) {
    SCOPED_TRACE(story.name);
    all += strike_everywhere(
        [&] { return std::make_unique<ServiceScene>(story); },
        [](Scene& scene) { fs::remove_all(static_cast<ServiceScene&>(scene).options.cache_directory); });
    if (HasFailure()) return;
  }
  std::printf("service: %s\n", all.text().c_str());
}

}  // namespace
}  // namespace normjit::testing
