// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt_driver.h"

#include <cstring>
#include <utility>

#include "normjit/base/text.h"
#include "normjit/plan.h"
#include "simt/launch.h"
#include "tests/support/guarded_memory.h"

namespace normjit::testing {
namespace {

constexpr int kLaunchFailed = 719;  // CUDA_ERROR_LAUNCH_FAILED
constexpr std::size_t kAlignment = 16;

// The container: a line that tells it from everything else, one each for architecture and kernel, then the
// text and nothing behind it.
constexpr std::string_view kMagic = "normjit kernel for the CPU, version 1";

std::string pack(const Source& source, Arch arch) {
  return concat({kMagic, "\n", arch.name(), "\n", source.kernel, "\n", shortest(source.text.size()), "\n",
                 source.text});
}

// Nothing for what pack() did not make for this kernel and architecture, its specific target, or the oldest
// compatible one.
std::optional<Source> unpack(std::string_view code, const std::string& kernel, Arch arch) {
  Arch architecture_specific = arch;
  architecture_specific.suffix = 'a';
  const Arch oldest = target_of(generic_plan(), {}, arch);
  std::string_view line[4];
  for (std::string_view& each : line) {
    const std::size_t end = code.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    each = code.substr(0, end);
    code.remove_prefix(end + 1);
  }
  if (line[0] != kMagic ||
      (line[1] != arch.name() && line[1] != architecture_specific.name() && line[1] != oldest.name()) ||
      line[2] != kernel || number<std::size_t>(line[3]) != code.size())
    return std::nullopt;
  return Source{.text = std::string(code), .kernel = kernel, .description = "kernel " + kernel};
}

std::string key_of(const Source& source) { return concat({source.kernel, "\n", source.text}); }

}  // namespace

Result<Binary> SimtCompiler::compile(const Source& source, Arch arch) {
  const std::lock_guard lock(mutex_);
  compiles_.push_back(arch);
  Binary binary;
  binary.code = pack(source, arch);
  binary.target = arch.name();
  binary.toolchain = "simt 1";
  return binary;
}

Result<Compiler::Facts> SimtCompiler::facts() {
  Facts facts{.path = "the CPU", .major = 13, .minor = 0, .archs = {}};
  for (const DeviceProfile& device : DeviceProfile::known()) facts.archs.push_back(device.arch);
  return facts;
}

std::vector<Arch> SimtCompiler::compiles() const {
  const std::lock_guard lock(mutex_);
  return compiles_;
}

// Ends at a page that nobody may touch, or as close to it as its alignment allows.
class SimtDriver::Memory {
 public:
  Memory(std::size_t bytes, SimtMemory use)
      : use_(std::move(use)),
        memory_(bytes, GuardedMemory::Side::before_guard, distance(bytes, use_.shift)) {}

  void* begin() const { return memory_.data(); }
  std::size_t bytes() const { return memory_.bytes(); }
  int device() const { return use_.device; }
  simt::Buffer buffer() const {
    return {begin(), bytes(), use_.name, use_.writable, use_.initialized, use_.early, use_.element};
  }

 private:
  static std::size_t distance(std::size_t bytes, std::size_t shift) {
    return (kAlignment - (bytes + shift) % kAlignment) % kAlignment;
  }

  const SimtMemory use_;
  const GuardedMemory memory_;
};

class SimtDriver::Kernel final : public LoadedKernel {
 public:
  Kernel(std::shared_ptr<State> state, simt::HostKernel kernel, int device)
      : state_(std::move(state)), kernel_(std::move(kernel)), device_(device) {}

  int launch(std::uint32_t blocks, const LaunchShape& shape, Stream stream,
             void** arguments) const noexcept override {
    std::vector<std::shared_ptr<const Memory>> memory;  // kept until the launch is over
    std::vector<simt::Buffer> buffers;
    simt::Launch launch;
    launch.blocks = blocks;
    launch.shape = shape;
    launch.arguments = arguments;
    std::mutex* order = nullptr;
    {
      const std::lock_guard lock(state_->mutex);
      ++state_->launches;
      launch.seed = state_->seed;
      for (const auto& [address, each] : state_->memory)
        if (each->device() == device_) {
          memory.push_back(each);
          buffers.push_back(each->buffer());
        }
      auto& of_stream = state_->streams[stream];
      if (!of_stream) of_stream = std::make_unique<std::mutex>();
      order = of_stream.get();
    }
    // No buffers at all would allow every access.
    if (buffers.empty()) buffers.push_back({.begin = this, .bytes = 0, .name = "this driver's memory"});
    launch.buffers = buffers;
    std::optional<simt::Diagnosis> wrong;
    {
      const std::lock_guard lock(*order);
      wrong = simt::run(kernel_, launch);
    }
    if (!wrong) return 0;
    const std::lock_guard lock(state_->mutex);
    state_->diagnosis = std::move(wrong);
    return kLaunchFailed;
  }

  // As many as the emulation can run together.
  Result<int> resident_blocks(const LaunchShape& shape) const override {
    return simt::most_threads_together() / shape.threads;
  }

 private:
  const std::shared_ptr<State> state_;
  const simt::HostKernel kernel_;
  const int device_;
};

SimtDriver::SimtDriver(std::vector<DeviceProfile> devices, simt::HostCompiler compiler, simt::Checks checks)
    : devices_(std::move(devices)), compiler_(std::move(compiler)), checks_(checks) {}

void SimtDriver::set_current_device(std::optional<int> device) {
  const std::lock_guard lock(state_->mutex);
  state_->current = device;
}

void SimtDriver::set_seed(std::uint64_t seed) {
  const std::lock_guard lock(state_->mutex);
  state_->seed = seed;
}

void* SimtDriver::allocate(std::size_t bytes, const SimtMemory& use) {
  const auto memory = std::make_shared<const Memory>(bytes, use);
  const std::lock_guard lock(state_->mutex);
  state_->memory[reinterpret_cast<std::uintptr_t>(memory->begin())] = memory;
  return memory->begin();
}

void SimtDriver::free(void* address) {
  const std::lock_guard lock(state_->mutex);
  state_->memory.erase(reinterpret_cast<std::uintptr_t>(address));
}

Result<void> SimtDriver::compile_ahead(std::span<const Source> sources) {
  const auto made = compiler_.compile(sources, checks_);
  if (!made) return made.error();
  const std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < sources.size(); ++i)
    state_->kernels.insert_or_assign(key_of(sources[i]), (*made)[i]);
  state_->compiled += static_cast<int>(sources.size());
  return {};
}

int SimtDriver::loads() const {
  const std::lock_guard lock(state_->mutex);
  return state_->loads;
}

int SimtDriver::compiled() const {
  const std::lock_guard lock(state_->mutex);
  return state_->compiled;
}

int SimtDriver::launches() const {
  const std::lock_guard lock(state_->mutex);
  return state_->launches;
}

std::optional<simt::Diagnosis> SimtDriver::last_diagnosis() const {
  const std::lock_guard lock(state_->mutex);
  return state_->diagnosis;
}

Result<int> SimtDriver::version() { return 13000; }

Result<int> SimtDriver::device_count() {
  if (devices_.empty()) return Error{Code::NoDevice, "There is no emulated GPU."};
  return static_cast<int>(devices_.size());
}

Result<int> SimtDriver::current_device() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->current) return Error{Code::NoContext, "No context of an emulated GPU is current."};
  return *state_->current;
}

Driver::Current SimtDriver::current() noexcept {
  const Result<int> device = current_device();
  if (!device) return {};
  return {*device, &devices_[static_cast<std::size_t>(*device)]};
}

Result<DeviceProfile> SimtDriver::profile(int device) {
  if (device < 0 || device >= static_cast<int>(devices_.size()))
    return Error{Code::NoDevice, concat({"There is no emulated GPU ", shortest(device), "."})};
  return devices_[static_cast<std::size_t>(device)];
}

Result<std::string> SimtDriver::device_name(int device) {
  const auto found = profile(device);
  if (!found) return found.error();
  return concat({"emulated GPU ", shortest(device)});
}

Result<simt::HostKernel> SimtDriver::host_kernel(const Source& source) {
  const std::string key = key_of(source);
  return flights_.run(key, [&]() -> Result<simt::HostKernel> {
    {
      const std::lock_guard lock(state_->mutex);
      if (const auto found = state_->kernels.find(key); found != state_->kernels.end()) return found->second;
    }
    if (auto made = compile_ahead({&source, 1}); !made) return made.error();
    const std::lock_guard lock(state_->mutex);
    return state_->kernels.at(key);
  });
}

Result<std::shared_ptr<LoadedKernel>> SimtDriver::load(std::string_view code, const std::string& kernel,
                                                       int device, const LaunchShape&) {
  const auto of = profile(device);
  if (!of) return of.error();
  const auto source = unpack(code, kernel, of->arch);
  if (!source)
    return Error{Code::LoadFailed, concat({"The emulated GPU does not take the code of kernel ", kernel,
                                           ": it must come from SimtCompiler, be whole, and be made for ",
                                           of->arch.name(), "."})};
  auto made = host_kernel(*source);
  if (!made) return made.error();
  const std::lock_guard lock(state_->mutex);
  ++state_->loads;
  return std::shared_ptr<LoadedKernel>(std::make_shared<Kernel>(state_, *std::move(made), device));
}

Result<Allocation> SimtDriver::allocation(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(state_->mutex);
  auto found = state_->memory.upper_bound(at);
  if (found == state_->memory.begin()) return Allocation{};
  const auto& [begin, memory] = *--found;
  if (at - begin >= memory->bytes()) return Allocation{};
  return Allocation{true, memory->device(), memory->bytes() - (at - begin)};
}

int SimtDriver::clear(void* memory, std::size_t bytes, Stream stream) noexcept {
  constexpr int kInvalidValue = 1;
  const auto facts = allocation(memory);
  if (!facts || !facts->device_accessible || facts->bytes_left < bytes) return kInvalidValue;
  std::mutex* order;
  {
    const std::lock_guard lock(state_->mutex);
    auto& of_stream = state_->streams[stream];
    if (!of_stream) of_stream = std::make_unique<std::mutex>();
    order = of_stream.get();
  }
  const std::lock_guard lock(*order);
  std::memset(memory, 0, bytes);
  return 0;
}

std::string SimtDriver::describe(int result) {
  const std::lock_guard lock(state_->mutex);
  if (result != kLaunchFailed || !state_->diagnosis) return concat({"CUresult ", shortest(result)});
  return concat(
      {"CUDA_ERROR_LAUNCH_FAILED: ", name(state_->diagnosis->fault), ": ", state_->diagnosis->message});
}

}  // namespace normjit::testing
