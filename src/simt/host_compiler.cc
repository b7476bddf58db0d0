// SPDX-License-Identifier: Apache-2.0
#include "simt/host_compiler.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "normjit/base/text.h"
#include "simt/module.h"
#include "simt/process.h"
#include "simt/sanitizers.h"

namespace normjit::simt {
namespace {

std::string_view header(std::string_view name) {
  for (const EmbeddedFile& file : kernel_headers())
    if (file.name == name) return file.text;
  return {};
}

// All kernels as one translation unit, each in its own namespace, since their texts define the same names.
std::string unit_of(std::span<const Source> sources, bool hooks) {
  std::string text;
  const auto append = [&](std::string_view name) {
    text += concat({"#line 1 \"", name, "\"\n", header(name)});
  };
  append("runtime.h");
  if (hooks) append("access.h");
  append("hw_host.h");
  std::string table;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::string space = "kernel_" + shortest(i);
    text += concat({"namespace ", space, " {\nnamespace normjit {\nnamespace hw = ::normjit::hw;\n}\n",
                    sources[i].text, "\n}\n"});
    table += concat({"    normjit::simt::enter<&", space, "::normjit::", sources[i].kernel, ">,\n"});
  }
  text += concat({"#line 1 \"table.h\"\n", "static void (*const normjit_kernels[])(void**) = {\n", table,
                  "};\n"
                  "extern \"C\" __attribute__((visibility(\"default\")))\n"
                  "const normjit::simt::ModuleTable normjit_simt_module = {&normjit::simt::bound_runtime, "
                  "normjit_kernels};\n"});
  return text;
}

// Whether the compiler knows an option.
bool knows(const std::string& compiler, const std::string& option) {
  const auto finished = run_program({compiler, option, "-E", "-x", "c++", "/dev/null"});
  return finished && finished->exit_code == 0;
}

std::string descriptions(std::span<const Source> sources) {
  if (sources.size() == 1) return sources[0].description;
  return concat({shortest(sources.size()), " kernels, the first of them ", sources[0].description});
}

}  // namespace

std::string_view sanitizer() noexcept {
  if (__tsan_create_fiber != nullptr) return "thread";
  return __sanitizer_start_switch_fiber != nullptr ? "address" : "";
}

Result<HostCompiler> HostCompiler::find(const std::string& named) {
  const char* environment = std::getenv("NORMJIT_HOST_CXX");
  std::vector<std::string> names = {"g++", "clang++", "c++"};
  if (environment != nullptr && *environment != '\0') names = {environment};
  if (!named.empty()) names = {named};
  for (const std::string& name : names)
    if (std::string path = find_program(name); !path.empty()) {
      const bool strict = knows(path, "-fsanitize=bounds-strict");  // GCC
      return HostCompiler(std::move(path), strict);
    }
  std::string tried;
  for (const std::string& name : names) tried += (tried.empty() ? "" : ", ") + name;
  return Error{
      Code::NoCompiler,
      concat(
          {"Running kernels on the CPU needs a C++ compiler at run time, and there is none: tried ", tried,
           ". Install one (on Debian and Ubuntu: apt-get install g++), or name one in NORMJIT_HOST_CXX."})};
}

Result<std::vector<HostKernel>> HostCompiler::compile(std::span<const Source> sources, Checks checks,
                                                      const std::string& keep_directory) const {
  if (sources.empty()) return std::vector<HostKernel>{};
  const bool debug = !keep_directory.empty();
  const bool hooks = checks == Checks::memory && sanitizer().empty();
  std::error_code failure;
  std::string folder = keep_directory;
  if (debug) {
    std::filesystem::create_directories(folder, failure);
  } else {
    folder = (std::filesystem::temp_directory_path(failure) / "normjit-XXXXXX").string();
    if (!failure && mkdtemp(folder.data()) == nullptr) failure.assign(errno, std::generic_category());
  }
  if (failure)
    return Error{Code::CompileFailed,
                 concat({"There is no folder to compile in, ", folder, ": ", failure.message()})};
  // Removed by the module, or here on errors.
  const auto give_up = [&](std::string message) {
    if (!debug) std::filesystem::remove_all(folder, failure);
    return Error{Code::CompileFailed, std::move(message)};
  };

  const std::string source = folder + "/kernels.cc", library = folder + "/kernels.so";
  std::ofstream file(source);
  file << unit_of(sources, hooks);
  file.close();
  if (!file) return give_up(concat({"Cannot write ", source, "."}));

  // Contraction is for hardware that has it; CUDA's pointers alias freely. Line numbers, for the diagnosis.
  std::vector<std::string> command = {path_,
                                      "-x",
                                      "c++",
                                      "-std=c++17",
                                      "-fPIC",
                                      "-w",
                                      "-fvisibility=hidden",
                                      "-fno-exceptions",
                                      "-fno-rtti",
                                      "-ffp-contract=off",
                                      "-fno-strict-aliasing",
                                      "-fno-math-errno",
                                      "-fno-omit-frame-pointer",
                                      "-DNJ_HOST"};
  const auto add = [&](std::initializer_list<const char*> options) {
    command.insert(command.end(), options.begin(), options.end());
  };
  debug ? add({"-g", "-O0", "-DNJ_DEBUG"}) : add({"-g1", "-O1"});
  if (hooks) add({"-fsanitize=thread"});
  if (checks == Checks::memory && !hooks) command.push_back(concat({"-fsanitize=", sanitizer()}));
  // A trap needs no sanitizer's runtime. object-size also finds what bounds lets pass: one element of class
  // type, or a wide access, behind an array. It takes about a quarter more time to compile.
  if (checks == Checks::memory)
    add({"-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero,object-size",
         // GCC's bounds takes an array at the end of a structure for one of unknown length.
         strict_bounds_ ? "-fsanitize=bounds-strict" : "-fsanitize=bounds",
         "-fsanitize-undefined-trap-on-error"});
  const std::string object = folder + "/kernels.o";
  std::vector<std::string> link = {path_, "-shared", object, "-o", library, "-lm"};
  command.insert(command.end(), {"-c", source, "-o", object});
  for (const std::vector<std::string>& step : {command, link}) {
    const auto finished = run_program(step);
    if (!finished) return give_up(finished.error().message);
    if (finished->exit_code != 0) {
      std::string line;
      for (const std::string& word : step) line += (line.empty() ? "" : " ") + word;
      return give_up(concat({"The kernels do not compile for the CPU (", descriptions(sources), "):\n",
                             finished->output, line}));
    }
  }
  std::filesystem::remove(object, failure);
  auto module = Module::open(library, debug ? "" : folder, hooks);
  if (!module) return give_up(module.error().message);
  std::vector<HostKernel> kernels;
  for (std::size_t i = 0; i < sources.size(); ++i) kernels.push_back({*module, i});
  return kernels;
}

}  // namespace normjit::simt
