// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/default_compiler.h"

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <utility>

#include "normjit/base/dynamic_library.h"
#include "normjit/base/fork.h"
#include "normjit/base/text.h"
#include "normjit/cache/read_file.h"
#include "normjit/compiler/nvrtc_compiler.h"
#include "normjit/compiler/process_compiler.h"

namespace normjit {
namespace {

constexpr const char* kProgram = "normjit-compile";
// From the directory of a library or program: in the build tree and in Python's wheel; from bin and lib; from
// Debian's lib/x86_64-linux-gnu.
constexpr const char* kFolders[] = {".", "../libexec/normjit", "../../libexec/normjit"};

class HelpedCompiler final : public Compiler {
 public:
  HelpedCompiler(std::shared_ptr<Compiler> here, std::string own, LogCallback log)
      : here_(std::move(here)), own_(std::move(own)), log_(std::move(log)) {}

  Result<Binary> compile(const Source& source, Arch arch) override {
    const std::shared_ptr<Compiler> helped = helped_now();
    return (helped ? helped : here_)->compile(source, arch);
  }

  Result<Facts> facts() override { return here_->facts(); }

  std::shared_ptr<void> helpers() override {
    auto fresh = make_process_compiler(
        here_, {.find = [this] { return find(); },
                .refused = [this](const std::string& path, std::string_view why) { refuse(path, why); }});
    const std::lock_guard lock(mutex_);
    if (generation_ == fork_generation())
      if (auto held = helped_.lock()) return held;
    helped_ = fresh;
    generation_ = fork_generation();
    return fresh;
  }

 private:
  // A forked child has none: its parent's are not its own.
  std::shared_ptr<Compiler> helped_now() {
    const std::lock_guard lock(mutex_);
    return generation_ == fork_generation() ? helped_.lock() : nullptr;
  }

  std::string find() {
    FoundProgram program = find_compile_program(own_);
    if (!program.refusal.empty()) {
      refuse(program.path, program.refusal);
      return {};
    }
    if (program.path.empty())
      tell(LogLevel::info, concat({"there is no ", kProgram, " beside ", own_,
                                   " or in libexec/normjit, so a prebuild compiles in one process"}));
    return program.path;
  }
  void refuse(const std::string& path, std::string_view why) {
    tell(LogLevel::warn,
         concat({path, " does not help, so a prebuild compiles in one process and takes longer: ", why}));
  }
  void tell(LogLevel level, const std::string& text) {
    if (!told_.exchange(true) && log_) log_(level, text);
  }

  const std::shared_ptr<Compiler> here_;
  const std::string own_;
  const LogCallback log_;
  std::atomic<bool> told_ = false;
  ForkMutex mutex_;  // guards the two below
  std::weak_ptr<Compiler> helped_;
  std::uint64_t generation_ = 0;
};

}  // namespace

std::shared_ptr<Compiler> make_default_compiler(const Options& options, std::shared_ptr<Driver> driver) {
  auto nvrtc = make_nvrtc_compiler({.explicit_path = options.compiler_path,
                                    .cuda_home = options.cuda_home,
                                    .driver_cuda_version = [driver = std::move(driver)] {
                                      const auto version = driver->version();
                                      return version ? *version : 0;
                                    }});
  const void* const own_code = reinterpret_cast<const void*>(&make_default_compiler);
  return make_helped_compiler(std::move(nvrtc), file_of_address(own_code), options.log);
}

std::shared_ptr<Compiler> make_helped_compiler(std::shared_ptr<Compiler> here, std::string own,
                                               LogCallback log) {
  return std::make_shared<HelpedCompiler>(std::move(here), std::move(own), std::move(log));
}

FoundProgram find_compile_program(const std::string& own) {
  std::error_code failed;
  const auto directory = std::filesystem::canonical(own, failed).parent_path();
  if (failed) return {};
  for (const char* folder : kFolders) {
    const std::string path = (directory / folder / kProgram).lexically_normal();
    struct stat facts = {};
    if (lstat(path.c_str(), &facts) != 0) continue;
    return {path, S_ISREG(facts.st_mode) ? distrust(facts, /*shared=*/false) : "is not a regular file"};
  }
  return {};
}

}  // namespace normjit
