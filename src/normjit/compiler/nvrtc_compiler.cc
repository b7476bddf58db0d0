// SPDX-License-Identifier: Apache-2.0
#include "normjit/compiler/nvrtc_compiler.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>

#include "normjit/base/fork.h"
#include "normjit/base/text.h"
#include "normjit/compiler/cubin.h"
#include "normjit/compiler/target.h"

namespace normjit {
namespace {

// One nvrtcProgram. After a failed step, call no further step.
class Program {
 public:
  explicit Program(const NvrtcTable& call) : call_(call) {}
  ~Program() {
    if (program_ != nullptr) call_.destroy_program(&program_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult create(const Source& source) {
    const std::string file = source.kernel + ".cu";  // the name in errors outside every #line
    return call_.create_program(&program_, source.text.c_str(), file.c_str(), 0, nullptr, nullptr);
  }
  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> arguments;
    for (const std::string& option : options) arguments.push_back(option.c_str());
    return call_.compile_program(program_, static_cast<int>(arguments.size()), arguments.data());
  }
  // Empty if NVRTC has none.
  std::string log() const { return text(call_.log_size, call_.log); }
  std::string ptx() const { return text(call_.ptx_size, call_.ptx); }
  std::string cubin() const { return bytes(call_.cubin_size, call_.cubin); }

 private:
  template <class Size, class Get>
  std::string bytes(Size size, Get get) const {
    std::size_t count = 0;
    if (size(program_, &count) != NVRTC_SUCCESS) return {};
    std::string held(count, '\0');
    if (count > 0 && get(program_, held.data()) != NVRTC_SUCCESS) return {};
    return held;
  }
  // Without the terminating zero that NVRTC counts.
  template <class Size, class Get>
  std::string text(Size size, Get get) const {
    std::string held = bytes(size, get);
    while (!held.empty() && held.back() == '\0') held.pop_back();
    return held;
  }

  const NvrtcTable& call_;
  nvrtcProgram program_ = nullptr;
};

Error exiting() {
  return {Code::NoCompiler,
          "This process is exiting and compiles nothing more. Join the threads that use normjit before main "
          "returns."};
}

Error unknown_arch(Arch arch, const Nvrtc& nvrtc) {
  std::string known;
  for (Arch each : nvrtc.archs) known += concat({known.empty() ? "" : ", ", each.name()});
  return {Code::UnknownArch, concat({"NVRTC ", nvrtc.version(), " (", nvrtc.path, ") cannot compile for ",
                                     arch.name(), ": it knows ", known,
                                     ", and nothing older. Use an older NVRTC: set NORMJIT_NVRTC_PATH or "
                                     "Options::compiler_path to it."})};
}

Error compile_failed(const Source& source, Arch arch, std::string_view flaw, const std::string& log,
                     const std::vector<std::string>& options, const Nvrtc& nvrtc) {
  return {Code::CompileFailed,
          concat({"Cannot compile ", source.kernel, " for ", arch.name(), " (", source.description,
                  "): ", flaw, ".\n", log, log.empty() || log.ends_with('\n') ? "" : "\n",
                  "options: ", joined(options), "\ncompiler: NVRTC ", nvrtc.version(), ", ", nvrtc.path})};
}

// The reason why the code is not for the target; empty if it is.
std::string flaw_of(const Binary& binary, const Target& target) {
  if (binary.code.empty()) return "NVRTC returned no code";
  if (target.ptx) return {};
  const int architecture = cubin_architecture(binary.code);
  if (architecture < 0)
    return concat({"NVRTC returned ", shortest(binary.code.size()), " bytes that are not a cubin"});
  if (architecture != 0 && architecture != target.arch.number) {
    return concat({"NVRTC returned a cubin for sm_", shortest(architecture)});
  }
  return {};
}

// The count before `unit`: 1024 for " bytes smem" in "Used 16 registers, 1024 bytes smem".
std::optional<int> number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return std::nullopt;
  line = line.substr(0, end);
  const auto count = number<int>(line.substr(line.rfind(' ') + 1));  // npos + 1 is 0
  return count && *count >= 0 ? count : std::nullopt;
}

class NvrtcCompiler : public Compiler {
 public:
  explicit NvrtcCompiler(std::function<Result<Nvrtc>()> open) : open_(std::move(open)) {}

  Result<Binary> compile(const Source& source, Arch arch) override {
    const ForkGate gate;
    if (!gate) return exiting();
    const auto opened = nvrtc();
    if (!opened) return opened.error();
    const Nvrtc& nvrtc = **opened;
    const std::optional<Target> target = choose_target(arch, nvrtc.archs);
    if (!target) return unknown_arch(arch, nvrtc);
    const auto options = compile_options(target->name(), nvrtc.major, nvrtc.minor);

    Binary binary;
    binary.ptx = target->ptx;
    binary.target = target->name();
    binary.toolchain = concat({"nvrtc ", nvrtc.version()});
    Program program(nvrtc.call);
    nvrtcResult result = program.create(source);
    if (result == NVRTC_SUCCESS) {
      result = program.compile(options);
      binary.log = program.log();
    }
    // The first compile of each kind of target makes NVRTC register exit handlers (13.0: 14 for sm_90, 16
    // more for sm_100a).
    ForkGate::close_at_exit();
    std::string flaw;
    if (result == NVRTC_SUCCESS) {
      binary.code = target->ptx ? program.ptx() : program.cubin();
      flaw = flaw_of(binary, *target);
    } else {
      flaw = nvrtc.call.error_string(result);
    }
    if (!flaw.empty()) return compile_failed(source, arch, flaw, binary.log, options, nvrtc);

    const PtxasFacts facts = parse_ptxas_log(binary.log, source.kernel);
    binary.registers = facts.registers;
    binary.spill_bytes = facts.spill_bytes;
    binary.shared_bytes = facts.shared_bytes;
    return binary;
  }

  Result<Facts> facts() override {
    const ForkGate gate;
    if (!gate) return exiting();
    const auto opened = nvrtc();
    if (!opened) return opened.error();
    const Nvrtc& nvrtc = **opened;
    return Facts{.path = nvrtc.path, .major = nvrtc.major, .minor = nvrtc.minor, .archs = nvrtc.archs};
  }

 private:
  // Immutable once found, so callers use it without the lock.
  Result<const Nvrtc*> nvrtc() {
    const std::lock_guard lock(mutex_);
    if (!nvrtc_) {
      Result<Nvrtc> opened = open_();
      if (!opened) return opened.error();
      nvrtc_ = std::move(*opened);
    }
    return &*nvrtc_;
  }

  const std::function<Result<Nvrtc>()> open_;
  std::mutex mutex_;  // guards nvrtc_; held only inside the gate, never while compiling
  std::optional<Nvrtc> nvrtc_;
};

}  // namespace

// The log, whose layout is the same from CUDA 12.0 to 13.0:
//   ptxas info    : Compiling entry function 'k' for 'sm_90'
//   ptxas info    : Function properties for k
//   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//   ptxas info    : Used 16 registers, used 1 barriers, 1024 bytes smem
PtxasFacts parse_ptxas_log(std::string_view log, std::string_view kernel) {
  PtxasFacts facts;
  const std::string quoted = concat({"'", kernel, "'"});
  bool ours = false;
  for (std::string_view line : split(log, '\n')) {
    if (line.find("Compiling entry function") != std::string_view::npos) {
      ours = line.find(quoted) != std::string_view::npos;
    }
    if (!ours) continue;
    const auto stores = number_before(line, " bytes spill stores");
    const auto loads = number_before(line, " bytes spill loads");
    if (stores && loads) {
      const std::int64_t all = std::int64_t{std::max(facts.spill_bytes, 0)} + *stores + *loads;
      facts.spill_bytes = static_cast<int>(std::min<std::int64_t>(all, std::numeric_limits<int>::max()));
    }
    if (const auto registers = number_before(line, " registers")) {
      facts.registers = *registers;
      facts.shared_bytes = number_before(line, " bytes smem").value_or(0);  // absent: the kernel has none
    }
  }
  return facts;
}

std::shared_ptr<Compiler> make_nvrtc_compiler(NvrtcSearch search) {
  return make_nvrtc_compiler_from([search = std::move(search)] { return find_nvrtc(search); });
}

std::shared_ptr<Compiler> make_nvrtc_compiler_from(std::function<Result<Nvrtc>()> open) {
  return std::make_shared<NvrtcCompiler>(std::move(open));
}

}  // namespace normjit
