// SPDX-License-Identifier: Apache-2.0
// A normjit-compile that compiles nothing: its compiler is the fake one, and the word behind its name says
// what becomes of a compile.
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

#include "normjit/compiler/messages.h"
#include "normjit/compiler/process_compiler.h"
#include "tests/support/fake_compiler.h"

namespace {

class Compiler final : public normjit::FakeCompiler {
 public:
  explicit Compiler(std::string_view mode) : mode_(mode) {}
  normjit::Result<normjit::Binary> compile(const normjit::Source& source, normjit::Arch arch) override {
    if (mode_ == "die") std::raise(SIGKILL);
    if (mode_ == "stand-still") hold();
    if (mode_ == "nonsense") {
      normjit::send_message(STDIN_FILENO, {"an answer", "has two", "or eight"});
      _exit(5);
    }
    return FakeCompiler::compile(source, arch);
  }

 private:
  const std::string_view mode_;
};

}  // namespace

int main(int words, char** word) {
  const std::string_view mode = words > 1 ? word[1] : "";
  if (mode == "older") {
    normjit::receive_message(STDIN_FILENO);
    normjit::send_message(STDIN_FILENO, {"normjit 0.0.1", ""});
    normjit::receive_message(STDIN_FILENO);
    return 0;
  }
  normjit::serve_compiles(STDIN_FILENO, [&](const std::string& nvrtc) {
    auto compiler = std::make_shared<Compiler>(mode);
    if (nvrtc != "/fake/libnvrtc.so.13") compiler->fail({normjit::Code::NoCompiler, "not the fake one"});
    return compiler;
  });
}
