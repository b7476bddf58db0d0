// SPDX-License-Identifier: Apache-2.0
// Makes the pack of generic kernels that becomes part of the library: pack_generic FILE. It is built of the
// library without that pack.
//
// Forward and backward, one kernel for each compute type and each architecture that this machine's NVRTC
// makes cubins for. What is in FILE already, and still fits, is not compiled again. Without NVRTC the file is
// empty, and so is what the library then has. Depends on no cache and writes to none.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "normjit/base/embedded_file.h"
#include "normjit/base/run_on_threads.h"
#include "normjit/cache/pack.h"
#include "normjit/service/binary_store.h"
#include "normjit/service/default_compiler.h"

namespace normjit {

std::span<const EmbeddedFile> embedded_packs() noexcept { return {}; }

namespace {

// The kernels that this compiler makes cubins for, each once, by id.
Result<std::vector<Identified>> generic_kernels(const BinaryStore& binaries,
                                                const Compiler::Facts& compiler) {
  constexpr NormSpec kSpecs[] = {{.columns = 1, .input = DType::f32},
                                 {.columns = 1, .input = DType::f64},
                                 {.backward = true, .columns = 1, .input = DType::f32},
                                 {.backward = true, .columns = 1, .input = DType::f64}};
  std::map<std::string, Identified> kernels;
  for (const DeviceProfile& device : DeviceProfile::known())
    for (const NormSpec& spec : kSpecs) {
      auto kernel = binaries.identify(spec, generic_plan(), device.arch);
      if (!kernel) return kernel.error();
      const bool is_known = std::ranges::find(compiler.archs, kernel->arch) != compiler.archs.end();
      if (is_known)
        kernels.emplace(kernel->id, *std::move(kernel));
      else if (&spec == &kSpecs[0])
        std::printf("%s does not know %s: no generic kernel for %s is built in\n", compiler.path.c_str(),
                    kernel->arch.name().c_str(), device.arch.name().c_str());
    }
  std::vector<Identified> all;
  for (auto& [id, kernel] : kernels) all.push_back(std::move(kernel));
  return all;
}

// The bytes of the pack. `before`: the file as it is now.
Result<std::string> make_pack(const std::shared_ptr<Compiler>& compiler, const std::string& before) {
  const auto facts = compiler->facts();
  if (!facts) return facts.error();
  BinaryStore binaries(
      compiler,
      std::make_unique<Cache>(Cache::Settings{.layers = {before}}, make_posix_file_system(), nullptr),
      /*remote=*/nullptr, /*template_directory=*/"", /*exact_toolchain=*/true,
      std::make_shared<Meter>(nullptr));
  const auto kernels = generic_kernels(binaries, *facts);
  if (!kernels) return kernels.error();

  std::mutex mutex;  // guards what the threads share
  std::size_t next = 0;
  std::map<std::string, std::string> entries;
  Result<void> failure;
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (next < kernels->size()) {
      const Identified& kernel = (*kernels)[next++];
      lock.unlock();
      const auto made = binaries.get(kernel);
      const auto found = binaries.cache().find(kernel.identity);
      lock.lock();
      if (!made)
        failure = made.error();
      else
        entries[kernel.id] = encode(found->entry);
    }
  };
  run_on_threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())), work);
  if (!failure) return failure.error();
  return encode_pack(entries);
}

// What is the same stays, with its time.
bool write_if_new(const std::string& path, const std::string& bytes) {
  {
    std::ifstream file(path, std::ios::binary);
    const std::string there(std::istreambuf_iterator<char>(file), {});
    if (file && there == bytes) return true;
  }
  const std::string temporary = path + ".tmp";
  if (std::ofstream file(temporary, std::ios::binary); !file.write(bytes.data(), std::ssize(bytes)).flush())
    return false;
  std::error_code failed;
  std::filesystem::rename(temporary, path, failed);
  return !failed;
}

int run(const std::string& path) {
  const Options environment = Options::from_environment();
  Options options;
  options.compiler_path = environment.compiler_path;
  options.cuda_home = environment.cuda_home;
  auto pack = make_pack(make_default_compiler(options, make_cuda_driver()), path);
  if (pack.code() == Code::NoCompiler || pack.code() == Code::CompilerTooOld) {
    std::printf("No generic kernel is built in: %s\n", pack.error().message.c_str());
    pack = std::string();
  }
  if (!pack || !write_if_new(path, *pack)) {
    std::fprintf(stderr, "%s cannot be made: %s\n", path.c_str(), pack ? "" : pack.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace normjit

int main(int count, char** arguments) {
  if (count == 2) return normjit::run(arguments[1]);
  std::fprintf(stderr, "usage: %s FILE.njp\n", arguments[0]);
  return 2;
}
