// SPDX-License-Identifier: Apache-2.0
#include "tests/support/servers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "normjit/base/text.h"

namespace normjit::testing {
namespace {

constexpr int kStartSeconds = 30;  // Python's imports on a busy machine

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A socket that is connected to this port, or -1.
int connected(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
  ::close(socket);
  return -1;
}

std::string text_of(const std::string& path) {
  return (std::stringstream() << std::ifstream(path).rdbuf()).str();
}

}  // namespace

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

std::string program_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  const std::string folders = concat({path == nullptr ? "" : path, ":/usr/sbin:/usr/local/sbin"});
  for (const std::string_view folder : split(folders, ':')) {
    const std::string candidate = concat({folder, "/", name});
    if (!folder.empty() && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

std::string ask(int port, const std::string& request) {
  const int socket = connected(port);
  if (socket < 0) return "";
  std::string answer;
  EXPECT_EQ(::send(socket, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  char some[4096];
  for (pollfd ready{socket, POLLIN, 0}; ::poll(&ready, 1, 5000) > 0;) {
    const ssize_t size = ::recv(socket, some, sizeof some, 0);
    if (size <= 0) break;
    answer.append(some, static_cast<std::size_t>(size));
  }
  ::close(socket);
  return answer;
}

Server::Server(std::vector<std::string> command, int port, std::unique_ptr<TempDirectory> directory,
               std::vector<std::string> environment)
    : command_(std::move(command)),
      environment_(std::move(environment)),
      port_(port),
      directory_(std::move(directory)) {
  start();
}

void Server::start() {
  const std::string log = *directory_ / "log";
  std::vector<char*> words;
  for (std::string& word : command_) words.push_back(word.data());
  words.push_back(nullptr);
  process_ = ::fork();
  if (process_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // also when the test crashes
    for (std::string& variable : environment_) ::putenv(variable.data());
    const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(output, 1);
    ::dup2(output, 2);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kStartSeconds);
  while (std::chrono::steady_clock::now() < end && ::waitpid(process_, nullptr, WNOHANG) == 0) {
    const int socket = connected(port_);
    if (socket >= 0) {
      ::close(socket);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << command_[0] << " does not start:\n" << text_of(log);
}

void Server::stop() {
  if (process_ <= 0) return;
  ::kill(-process_, SIGKILL);
  ::kill(process_, SIGKILL);  // before it had a group
  ::waitpid(process_, nullptr, 0);
  process_ = -1;
}

// A full queue of connections that nobody accepts: Linux drops what else comes.
SilentPort::SilentPort() : port_(free_port()) {
  const sockaddr_in address = loopback(port_);
  const auto size = static_cast<socklen_t>(sizeof address);
  sockets_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(sockets_[0], reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(sockets_[0], 0), 0);
  for (int i = 0; i < 4; ++i) {
    sockets_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::connect(sockets_.back(), reinterpret_cast<const sockaddr*>(&address), size);
  }
}

SilentPort::~SilentPort() {
  for (const int socket : sockets_) ::close(socket);
}

bool has_plugin(const std::string& name) {
  return std::filesystem::exists(std::filesystem::path(NORMJIT_TOOL).parent_path() /
                                 ("libnormjit-remote-" + name + ".so"));
}

std::unique_ptr<Server> redis_server(const std::string& password) {
  const std::string program = program_path("redis-server");
  if (program.empty()) return nullptr;
  auto directory = std::make_unique<TempDirectory>();
  const int port = free_port();
  std::vector<std::string> command = {program,          "--port", std::to_string(port), "--bind", "127.0.0.1",
                                      "--save",         "",       "--appendonly",       "no",     "--dir",
                                      directory->path()};
  if (!password.empty()) command.insert(command.end(), {"--requirepass", password});
  return std::make_unique<Server>(std::move(command), port, std::move(directory));
}

std::unique_ptr<Server> nginx_server(const std::string& password) {
  auto directory = std::make_unique<TempDirectory>();
  const std::string here = directory->path();
  std::ofstream(here + "/users") << "fleet:{PLAIN}" << password << "\n";
  return nginx_server_of(concat({R"(
    client_max_body_size 64m; root )",
                                 here, R"(/files;
    dav_methods PUT DELETE; create_full_put_path on;
    location /private/ { auth_basic fleet; auth_basic_user_file )",
                                 here, R"(/users; }
    location /broken/ { return 503; }
    location /gone/ { return 410; }
    location /polite/ { if ($request_method = PUT) { return 201 "thank you"; } return 200 "value"; }
    location /empty/ { return 200; }
    location /moved/ { rewrite ^/moved(/.*)$ $1 redirect; }
)"}),
                         std::move(directory));
}

std::unique_ptr<Server> nginx_server_of(const std::string& lines, std::unique_ptr<TempDirectory> directory) {
  const std::string program = program_path("nginx");
  if (program.empty()) return nullptr;
  const std::string port = std::to_string(free_port()), here = directory->path();
  // One process, which may write here whoever runs the test.
  std::ofstream(here + "/nginx.conf") << concat({R"(
daemon off; master_process off; pid nginx.pid; error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server {
    listen 127.0.0.1:)",
                                                 port, ";\n", lines, "  }\n}\n"});
  return std::make_unique<Server>(std::vector<std::string>{program, "-p", here, "-c", here + "/nginx.conf"},
                                  number<int>(port).value(), std::move(directory));
}

std::unique_ptr<Server> s3_server(Bucket bucket) {
  const std::string program = program_path("moto_server");
  if (program.empty()) return nullptr;
  const int port = free_port();
  auto server = std::make_unique<Server>(
      std::vector<std::string>{program, "-H", "127.0.0.1", "-p", std::to_string(port)}, port,
      std::make_unique<TempDirectory>());
  if (bucket == Bucket::none) return server;
  const std::string made =
      ask(port, "PUT /kernels HTTP/1.0\r\nHost: " + server->address() + "\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(made.substr(8, 5), " 200 ") << made;
  return server;
}

std::unique_ptr<Server> registry_server() {
  const std::string program = program_path("docker-registry");
  if (program.empty()) return nullptr;
  auto directory = std::make_unique<TempDirectory>();
  const std::string port = std::to_string(free_port()), settings = *directory / "settings.yml";
  std::ofstream(settings) << concat({"version: 0.1\nstorage: {filesystem: {rootdirectory: '",
                                     directory->path(), "'}}\nhttp: {addr: '127.0.0.1:", port, "'}\n"});
  return std::make_unique<Server>(std::vector<std::string>{program, "serve", settings},
                                  number<int>(port).value(), std::move(directory));
}

std::vector<S3Credentials> make_strict(const Server& s3) {
  const std::string command = concat(
      {"python3 '", NORMJIT_SOURCE_DIR, "/tests/support/strict_s3.py' ", std::to_string(s3.port()), " 2>&1"});
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (int c; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  if (pipe == nullptr || ::pclose(pipe) != 0) {
    ADD_FAILURE() << text;
    return {};
  }
  const std::vector<std::string_view> lines = split(text, '\n');
  if (lines.size() < 5) return {};
  const auto line = [&](std::size_t i) { return std::string(lines[i]); };
  return {{line(0), line(1), ""}, {line(2), line(3), line(4)}};
}

std::unique_ptr<Server> toxic_proxy(int target, const std::string& mode, int number) {
  const std::string program = program_path("python3");
  if (program.empty()) return nullptr;
  const int port = free_port();
  return std::make_unique<Server>(
      std::vector<std::string>{program, NORMJIT_SOURCE_DIR "/tests/support/toxic_proxy.py",
                               std::to_string(port), std::to_string(target), mode, std::to_string(number)},
      port, std::make_unique<TempDirectory>());
}

}  // namespace normjit::testing
