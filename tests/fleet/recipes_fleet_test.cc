// SPDX-License-Identifier: Apache-2.0
// The recipes of docs/fleets.md, read from the page: servers are started with them as they stand, but for
// ports, folders and addresses, and the tool takes kernels there and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/remote/signature.h"
#include "normjit/service.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/pages.h"
#include "tests/support/servers.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tool.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::vector<std::string>;

constexpr const char* kSpec = "layernorm/cols=64/f32/eps=1e-05";

class Recipes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string error = sodium_error(); !error.empty()) GTEST_SKIP() << "Skipped: " << error;
    ASSERT_EQ(run_tool({"sign", "keygen", "--secret", secret(), "--public", known()}).status, 0);
    Options options;
    options.cache_directory = directory_ / "builder";
    Service service(options, {.compiler = std::make_shared<FakeCompiler>(), .driver = {}, .files = {}});
    const NormSpec spec = parse_spec(kSpec).value();
    const DeviceProfile device = DeviceProfile::of(Arch{90}).value();
    ASSERT_EQ(service.prebuild({&spec, 1}, {&device, 1}).value().failed, 0);
  }

  // Why a store cannot be tried here; empty if it can.
  static std::string missing(const std::string& plugin, const std::vector<std::string>& programs) {
    for (const std::string& program : programs)
      if (program_path(program).empty()) return "Skipped: there is no " + program;
    return has_plugin(plugin) ? "" : "Skipped: the plug-in " + plugin + " is not built";
  }
  std::string secret() const { return directory_ / "release.key"; }
  std::string known() const { return directory_ / "release.pub"; }
  std::string block(const std::string& first) const { return block_of(page_, first); }
  // The URL that the page says with this host, at this address.
  std::string url(const std::string& host, const std::string& address) const {
    std::smatch found;
    const std::regex named("`NORMJIT_REMOTE='?([^'`]*" + host + "[^'`]*)'?`");
    EXPECT_TRUE(std::regex_search(page_, found, named)) << host;
    return replaced(found[1], host, address);
  }
  ToolRun put(const std::string& url, Variables variables = {}) const {
    variables.push_back("NORMJIT_SIGN_KEY=" + secret());
    return remote({"put"}, url, "builder", variables);
  }
  ToolRun get(const std::string& url, const std::string& cache, Variables variables = {}) const {
    variables.push_back("NORMJIT_TRUST=" + known());
    return remote({"get", kSpec, "--arch", "sm_90"}, url, cache, variables);
  }
  // Files of a cache directory that are entries, with what is in them.
  std::map<std::string, std::string> entries(const std::string& cache) const {
    std::map<std::string, std::string> entries;
    for (const auto& entry : fs::directory_iterator(directory_ / cache)) {
      std::ifstream in(entry.path(), std::ios::binary);
      if (entry.path().extension() == ".njk")
        entries[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
    }
    return entries;
  }
  void expect_round_trip(const std::string& url, const Variables& writer = {},
                         const Variables& reader = {}) const {
    const ToolRun none = get(url, "before", reader);
    EXPECT_EQ(none.status, 1) << none.out << none.err;
    const ToolRun there = put(url, writer);
    ASSERT_EQ(there.status, 0) << there.out << there.err;
    const ToolRun back = get(url, "after", reader);
    ASSERT_EQ(back.status, 0) << back.out << back.err;
    EXPECT_FALSE(entries("builder").empty());
    EXPECT_EQ(entries("builder"), entries("after"));
  }

  const std::string page_ = part_of(source_text("docs/fleets.md"), "\n## Recipes", "\nValues have");
  const TempDirectory directory_;

 private:
  ToolRun remote(std::vector<std::string> arguments, const std::string& url, const std::string& cache,
                 Variables variables) const {
    arguments.insert(arguments.begin(), "remote");
    variables.insert(variables.end(), {"NORMJIT_REMOTE=" + url, "NORMJIT_CACHE_DIR=" + (directory_ / cache),
                                       "AWS_SESSION_TOKEN=", "no_proxy=*"});
    return run_tool(arguments, variables);
  }
};

TEST_F(Recipes, Redis) {
  if (const std::string why = missing("redis", {"redis-server"}); !why.empty()) GTEST_SKIP() << why;
  std::string command = block("redis-server ");
  command.pop_back();
  auto directory = std::make_unique<TempDirectory>();
  const std::string port = std::to_string(free_port());
  command = concat({"exec ", command, " --bind 127.0.0.1 --port ", port, " --dir '", directory->path(), "'"});
  const Server server({"/bin/sh", "-c", command}, number<int>(port).value(), std::move(directory));
  expect_round_trip(url("cache.example:6379", server.address()));
  EXPECT_THAT(ask(server.port(), "CONFIG GET maxmemory*\r\nCONFIG GET save\r\nQUIT\r\n"),
              AllOf(HasSubstr("allkeys-lru"), HasSubstr("save\r\n$0\r\n"),
                    Not(HasSubstr("maxmemory\r\n$1\r\n0\r\n"))));
}

TEST_F(Recipes, Nginx) {
  if (const std::string why = missing("http", {"nginx"}); !why.empty()) GTEST_SKIP() << why;
  auto directory = std::make_unique<TempDirectory>(), strict = std::make_unique<TempDirectory>();
  const std::string lines = block("location "), builders = "allow 10.0.0.0/24;";
  const std::string here =
      replaced(replaced(lines, "/srv;", directory->path() + ";"), builders, "allow 127.0.0.0/24;");
  const std::string files = directory->path() + "/kernels";
  const auto server = nginx_server_of(here, std::move(directory));
  expect_round_trip(url("web.example", server->address()));
  EXPECT_TRUE(fs::is_directory(files));

  // Of other machines it is a store to read.
  const auto of_others = nginx_server_of(
      replaced(lines, "/srv;", fs::path(files).parent_path().native() + ";"), std::move(strict));
  const std::string reading = url("web.example", of_others->address());
  EXPECT_EQ(get(reading, "other").status, 0);
  EXPECT_EQ(entries("other"), entries("builder"));
  fs::remove_all(files);
  const ToolRun refused = put(reading);
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.out + refused.err, HasSubstr("answered 403"));
  EXPECT_FALSE(fs::exists(files));
}

TEST_F(Recipes, S3) {
  if (const std::string why = missing("http", {"moto_server", "aws"}); !why.empty())
    GTEST_SKIP() << why << " (pip install 'moto[server]' awscli)";
  const auto server = s3_server(Bucket::none);
  const std::string endpoint = "http://" + server->address();
  const Variables cli = {"AWS_ENDPOINT_URL=" + endpoint,
                         "AWS_DEFAULT_REGION=us-east-1",
                         "AWS_ACCESS_KEY_ID=any",
                         "AWS_SECRET_ACCESS_KEY=any",
                         "AWS_PAGER=",
                         "AWS_SESSION_TOKEN=",
                         "no_proxy=*"};
  const auto run = [&](const std::string& commands) {
    ToolRun done = run_program("/bin/sh", {"-ec", commands}, cli);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  };
  // The key of a new user.
  const auto user = [&](const std::string& name) -> Variables {
    const auto key =
        nlohmann::json::parse(run(concat({"aws iam create-user --user-name ", name, " > /dev/null\n",
                                          "aws iam create-access-key --output json --user-name ", name})))
            .at("AccessKey");
    return {"AWS_ACCESS_KEY_ID=" + key.at("AccessKeyId").get<std::string>(),
            "AWS_SECRET_ACCESS_KEY=" + key.at("SecretAccessKey").get<std::string>()};
  };
  const Variables builder = user("builder"), machine = user("machine");
  run(block("aws s3api create-bucket "));
  EXPECT_THAT(run("aws s3api get-bucket-lifecycle-configuration --output json --bucket kernels"),
              AllOf(HasSubstr("\"Days\": "), HasSubstr("\"team/\"")));

  // From now on it looks at keys and policies.
  EXPECT_THAT(ask(server->port(), concat({"POST /moto-api/reset-auth HTTP/1.0\r\nHost: ", server->address(),
                                          "\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n0"})),
              HasSubstr(" 200 "));
  const std::string store = url("https://s3.example", endpoint);
  EXPECT_NE(put(store, machine).status, 0) << "a machine may not write";
  expect_round_trip(store, builder, machine);
  EXPECT_NE(put(replaced(store, "kernels/team", "kernels/other"), builder).status, 0) << "another's prefix";
}

}  // namespace
}  // namespace normjit::testing
