// SPDX-License-Identifier: Apache-2.0
// Servers that tests talk to: child processes on free ports of 127.0.0.1, which end with the test.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"

namespace normjit::testing {

// A port of 127.0.0.1 that nothing listens on.
int free_port();

// The path of a program in PATH or where servers lie; empty if there is none.
std::string program_path(const std::string& name);

// Sends bytes to this port and returns what comes until the server closes, at most 5 s later.
std::string ask(int port, const std::string& request);

class Server {
 public:
  // Starts `command`, which listens on this port, with these variables ("NAME=value") besides the
  // environment's. Waits until it takes connections; a test fails if that takes more than 30 s. Files of the
  // server may lie in `directory`.
  Server(std::vector<std::string> command, int port, std::unique_ptr<TempDirectory> directory,
         std::vector<std::string> environment = {});
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }
  // "127.0.0.1:PORT"
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Kills it, as a machine that goes down would.
  void stop();
  // Starts it again.
  void start();

 private:
  std::vector<std::string> command_, environment_;
  int port_;
  std::unique_ptr<TempDirectory> directory_;
  pid_t process_ = -1;
};

// A port whose connections are never made, as those to a machine that does not answer.
class SilentPort {
 public:
  SilentPort();
  ~SilentPort();
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;

  int port() const { return port_; }

 private:
  int port_;
  std::vector<int> sockets_;
};

// Whether a plug-in is built, "redis" or "http": beside the tool.
bool has_plugin(const std::string& name);

// Keeps nothing on disk. Null, as below, if its program is missing.
std::unique_ptr<Server> redis_server(const std::string& password = "");

// Takes PUT and DELETE everywhere. Below /private/ it asks for the user `fleet` and this password; below
// /broken/ it answers 503, below /gone/ 410, below /polite/ a PUT by words, below /empty/ by nothing, below
// /moved/ it redirects.
std::unique_ptr<Server> nginx_server(const std::string& password = "secret-of-nginx");

// nginx whose server has these lines, besides a port. It knows nothing of PUT but by them.
std::unique_ptr<Server> nginx_server_of(const std::string& lines, std::unique_ptr<TempDirectory> directory);

// S3 with an empty bucket "kernels", or without a bucket.
enum class Bucket { kernels, none };
std::unique_ptr<Server> s3_server(Bucket bucket = Bucket::kernels);

// A registry of OCI images, which speaks HTTP.
std::unique_ptr<Server> registry_server();

struct S3Credentials {
  std::string id, secret, token;
};
// From now on this S3 checks the signature of each request: credentials that it takes, a user's and temporary
// ones. Empty if that does not succeed.
std::vector<S3Credentials> make_strict(const Server& s3);

// toxic_proxy.py in front of a port.
std::unique_ptr<Server> toxic_proxy(int target, const std::string& mode, int number = 0);

}  // namespace normjit::testing
