// SPDX-License-Identifier: Apache-2.0
// The chapter of docs/fleets.md on images: its commands are run as they stand, but for names. Nothing is
// downloaded: base images are made of files of this machine.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/remote/signature.h"
#include "normjit/service.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/nvrtc.h"
#include "tests/support/pages.h"
#include "tests/support/servers.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Names = std::set<std::string>;

constexpr const char* kSpec = "layernorm/cols=2/f32/eps=1e-05";
constexpr const char* kOtherSpec = "layernorm/cols=3/f32/eps=1e-05";

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

Names files_below(const std::string& folder) {
  Names names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    names.insert(fs::relative(entry.path(), folder));
  return names;
}

// Where the loader has found the libsodium of this process.
std::string sodium_path() {
  for (const char* const name : {"libsodium.so.26", "libsodium.so.23"}) {
    void* const library = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    link_map* map = nullptr;
    if (library != nullptr && ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) return map->l_name;
  }
  return "";
}

// The NVRTC that the tool finds; empty if there is none.
std::string nvrtc_path() {
  const Options options = Options::from_environment();
  const auto facts =
      make_nvrtc_compiler(
          {.explicit_path = options.compiler_path, .cuda_home = options.cuda_home, .driver_cuda_version = {}})
          ->facts();
  return facts.ok() ? facts->path : "";
}

// Makes the image localhost/$name of files that are here: a shell, the tool and libsodium, and NVRTC if
// $nvrtc is its path.
constexpr const char* kMakeBase = R"sh(
mkdir -p root/tmp root/usr/local/bin
chmod 1777 root/tmp
cp -L "$tool" root/usr/local/bin/normjit
if [ -n "$nvrtc" ]; then
  cp -L "$nvrtc" "$(dirname "$(realpath "$nvrtc")")"/libnvrtc-builtins.so.* root/usr/local/bin
fi
libraries=$(ldd /bin/sh "$tool" "$sodium" $nvrtc | sed -n 's|^\t[^/]*\(/[^ ]*\) (0x.*|\1|p' | sort -u)
cp -L --parents /bin/sh "$sodium" $libraries root
printf 'FROM scratch\nCOPY root /\n' > base.Containerfile
buildah build --quiet -f base.Containerfile -t "localhost/$name" .
rm -r root base.Containerfile
)sh";

// A machine with images, caches and settings of its own, which asks one registry without TLS.
class Machine {
 public:
  explicit Machine(const std::string& registry) {
    fs::create_directories(home() + "/.config/containers");
    for (const char* const name : {"/run", "/tmp"}) {
      fs::create_directory(home() + name);
      fs::permissions(home() + name, fs::perms::owner_all);  // others are not taken for XDG_RUNTIME_DIR
    }
    fs::create_directories(work());
    write(home() + "/storage.conf", concat({"[storage]\ndriver = \"vfs\"\ngraphroot = \"", home(),
                                            "/images\"\nrunroot = \"", home(), "/run\"\n"}));
    write(home() + "/.config/containers/registries.conf",
          concat({"[[registry]]\nlocation = \"", registry, "\"\ninsecure = true\n"}));
    for (const char* const name : {"kernels.Containerfile", "service.Containerfile"})
      write(*this / name, source_text(std::string("examples/image/") + name));
    write(*this / "layers.json", concat({"[\"", kSpec, "\"]\n"}));
  }
  // Images of users other than root have directories that their owner cannot write.
  ~Machine() {
    if (::geteuid() != 0) run("chmod -R u+w \"$HOME\"");
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Runs commands in the folder of this machine, five minutes at most.
  ToolRun run(const std::string& commands) const {
    const std::string variables =
        concat({"export HOME='", home(), "' XDG_CACHE_HOME='", home(), "/cache' XDG_RUNTIME_DIR='", home(),
                "/run' TMPDIR='", home(), "/tmp' CONTAINERS_STORAGE_CONF='", home(),
                "/storage.conf' BUILDAH_ISOLATION=chroot PATH='",
                fs::path(NORMJIT_TOOL).parent_path().native(), "':\"$PATH\"\ncd '", work(), "'\n"});
    return run_program(program_path("timeout"), {"-k", "10", "300", "/bin/sh", "-ec", variables + commands});
  }
  // localhost/NAME, with NVRTC if this is its path.
  void make_base(const std::string& name, const std::string& nvrtc = "") const {
    const ToolRun made = run(concat({"name=", name, " tool='", NORMJIT_TOOL, "' sodium='", sodium_path(),
                                     "' nvrtc='", nvrtc, "'\n", kMakeBase}));
    ASSERT_EQ(made.status, 0) << made.err;
  }
  std::string operator/(const std::string& name) const { return work() + "/" + name; }

 private:
  std::string home() const { return directory_ / "home"; }
  std::string work() const { return directory_ / "work"; }

  const TempDirectory directory_;
};

class Image : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* const name : {"buildah", "skopeo", "docker-registry"})
      if (program_path(name).empty()) GTEST_SKIP() << "Skipped: there is no " << name;
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << "Skipped: " << error;
    registry_ = registry_server();
    if (::geteuid() != 0 &&
        machine().run("buildah unshare sh -c 'test $(wc -l < /proc/self/uid_map) -gt 1'").status != 0)
      GTEST_SKIP() << "Skipped: /etc/subuid has no users for buildah, and this is not root";
    ASSERT_EQ(run_tool({"sign", "keygen", "--secret", secret(), "--public", known()}).status, 0);
  }

  Machine machine() const { return Machine(registry_->address()); }
  std::string secret() const { return directory_ / "release.key"; }
  std::string known() const { return directory_ / "release.pub"; }
  // What a machine knows that uses kernels.
  void hand_out(const Machine& builder, const Machine& to) const {
    fs::copy_file(known(), to / "release.pub");
    fs::copy_file(builder / "kernels.digest", to / "kernels.digest");
  }
  // The block of the page that begins like this, with this registry and these base images.
  std::string commands(const std::string& first) const {
    const std::string page =
        part_of(source_text("docs/fleets.md"), "\n## A pack in an image", "\n## Broadcast");
    std::string block = block_of(page, first);
    for (const char* const base : {"normjit", "runtime"}) {
      const std::string name = concat({"=registry.example/team/", base});
      if (block.find(name) != std::string::npos)
        block = replaced(block, name, std::string("=localhost/") + base);
    }
    return block.find("registry.example") == std::string::npos
               ? block
               : replaced(block, "registry.example", registry_->address());
  }
  // Takes the pack out of the registry, uses it and imports it.
  void use(const Machine& machine) const {
    const ToolRun out = machine.run(commands("skopeo copy "));
    ASSERT_EQ(out.status, 0) << out.err;
    EXPECT_EQ(files_below(machine / "normjit"), (Names{"kernels.njp", "kernels.njp.minisig"}));
    const ToolRun used = machine.run(commands("NORMJIT_LAYERS="));
    EXPECT_EQ(used.status, 0) << used.err;
    EXPECT_THAT(used.out, AllOf(HasSubstr(" 0 missing"), HasSubstr(" 0 refused, 0 not stored")));
  }

  const TempDirectory directory_;
  std::unique_ptr<Server> registry_;
};

TEST_F(Image, KernelsOfTheContainerfileServeMachinesThatCompileNothing) {
  const std::string nvrtc = nvrtc_path();
  if (nvrtc.empty()) GTEST_SKIP() << "Skipped: there is no NVRTC on this machine";
  const Machine builder = machine();
  ASSERT_NO_FATAL_FAILURE(builder.make_base("normjit", nvrtc));
  fs::copy_file(secret(), builder / "release.key");
  std::string digests[2];
  for (std::string& digest : digests) {
    const ToolRun built =
        builder.run(commands("buildah build --timestamp 0 -f kernels.Containerfile --build-arg"));
    ASSERT_EQ(built.status, 0) << built.out << built.err;
    EXPECT_THAT(built.out + built.err, HasSubstr(" 0 cached, "));
    digest = contents(builder / "kernels.digest");
  }
  EXPECT_EQ(digests[0], digests[1]) << "the same kernels";

  const Machine other = machine();
  hand_out(builder, other);
  ASSERT_NO_FATAL_FAILURE(use(other));
  const std::string pack = other / "normjit/kernels.njp";
  const ToolRun prepared =
      run_tool({"prebuild", kSpec, "--arch", "sm_90", "--json", "--cache-dir", other / "empty"},
               {"NORMJIT_LAYERS=" + pack, "NORMJIT_NVRTC_PATH=/nonexistent/libnvrtc.so"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  const Json report = Json::parse(prepared.out);
  EXPECT_EQ(report.at("compiled"), 0);
  EXPECT_GT(report.at("cached"), 0);
}

TEST_F(Image, AServiceIsBuiltOnlyWithATrustedPackThatHasAllKernels) {
  const std::string nvrtc = nvrtc_path();
  if (nvrtc.empty()) GTEST_SKIP() << "Skipped: there is no NVRTC on this machine";
  const Machine builder = machine();
  ASSERT_NO_FATAL_FAILURE(builder.make_base("normjit", nvrtc));
  fs::copy_file(secret(), builder / "release.key");
  const ToolRun built =
      builder.run(commands("buildah build --timestamp 0 -f kernels.Containerfile --build-arg"));
  ASSERT_EQ(built.status, 0) << built.out << built.err;

  const Machine other = machine();  // without NVRTC
  hand_out(builder, other);
  ASSERT_NO_FATAL_FAILURE(other.make_base("normjit"));
  ASSERT_EQ(other.run("buildah tag localhost/normjit localhost/runtime").status, 0);
  const std::string build = commands("buildah build -f service.Containerfile");

  const std::string layers = contents(other / "layers.json"), key = contents(other / "release.pub");
  write(other / "layers.json", concat({"[\"", kSpec, "\", \"", kOtherSpec, "\"]\n"}));
  const ToolRun lacking = other.run(build);
  EXPECT_NE(lacking.status, 0);
  EXPECT_THAT(lacking.out + lacking.err, HasSubstr("missing"));
  write(other / "layers.json", layers);
  ASSERT_EQ(run_tool({"sign", "keygen", "--secret", directory_ / "other.key", "--public",
                      other / "release.pub", "--force"})
                .status,
            0);
  const ToolRun stranger = other.run(build);
  EXPECT_NE(stranger.status, 0);
  EXPECT_THAT(stranger.out + stranger.err, HasSubstr("of a key that is not trusted"));
  write(other / "release.pub", key);
  const ToolRun good = other.run(build);
  ASSERT_EQ(good.status, 0) << good.out << good.err;

  const ToolRun service =
      other.run(concat({"buildah from --name service ", registry_->address(),
                        "/team/service:7\nbuildah run service normjit why ", kSpec, " --arch sm_90\n"}));
  EXPECT_EQ(service.status, 0) << service.err;
  EXPECT_THAT(service.out, HasSubstr("/opt/normjit/kernels.njp"));
  EXPECT_EQ(other.run("buildah rm service").status, 0);
}

TEST_F(Image, APackThatExistsNeedsNoBaseImage) {
  const Machine builder = machine(), other = machine();
  if (builder.run("buildah build --help | grep -q -e --build-context").status != 0)
    GTEST_SKIP() << "Skipped: this buildah has no --build-context";
  Options options;
  options.cache_directory = directory_ / "cache";
  Service service(options, {.compiler = std::make_shared<FakeCompiler>(), .driver = {}, .files = {}});
  const NormSpec spec = parse_spec(kSpec).value();
  const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
  ASSERT_EQ(service.prebuild({&spec, 1}, {&device, 1}).value().failed, 0);
  fs::create_directory(builder / "packed");
  const ToolRun exported = run_tool({"export", builder / "packed/kernels.njp", "--cache-dir",
                                     options.cache_directory, "--sign", "--key", secret()});
  ASSERT_EQ(exported.status, 0) << exported.err;
  const ToolRun built =
      builder.run(commands("buildah build --timestamp 0 -f kernels.Containerfile --target pack") +
                  "buildah push --digestfile kernels.digest " + registry_->address() + "/team/kernels:7\n");
  ASSERT_EQ(built.status, 0) << built.out << built.err;

  hand_out(builder, other);
  ASSERT_NO_FATAL_FAILURE(use(other));
  const std::string pack = other / "normjit/kernels.njp";
  for (const char* const name : {"kernels.njp", "kernels.njp.minisig"})
    EXPECT_EQ(contents(other / "normjit/" + name), contents(builder / "packed/" + name));

  // What changes on the way is refused, whatever changes it.
  const auto import = [&] {
    return run_tool({"import", pack, "--cache-dir", other / "imported"}, {"NORMJIT_TRUST=" + known()});
  };
  const std::string bytes = contents(pack);
  std::string changed = bytes;
  changed[bytes.size() / 2] ^= 1;
  write(pack, changed);
  const ToolRun refused = import();
  EXPECT_EQ(refused.status, 5);
  EXPECT_THAT(refused.err, HasSubstr("of other bytes"));
  EXPECT_FALSE(fs::exists(other / "imported"));
  write(pack, bytes);
  EXPECT_EQ(import().status, 0);
}

}  // namespace
}  // namespace normjit::testing
