// SPDX-License-Identifier: Apache-2.0
// Contexts and several GPUs: the caller's context stays current, kernels serve every context of their device
// and no other device, and one Service serves all of them at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/contexts.h"
#include "tests/support/cuda_calls.h"
#include "tests/support/gpu.h"
#include "tests/support/temp_directory.h"

#define NORMJIT_SKIP_WITHOUT_TWO_GPUS() \
  if (device_count() < 2) GTEST_SKIP() << "This needs two GPUs; here is one."

namespace normjit::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr NormSpec kRow{.columns = 5000, .affine = Affine::weight_bias};
// Little and much shared memory, blocks that run together, a workspace; which, is the planner's business.
const NormSpec kSpecs[] = {{.columns = 64, .affine = Affine::weight_bias},
                           kRow,
                           {.columns = 32768, .affine = Affine::weight_bias},
                           {.columns = 300001, .affine = Affine::weight_bias, .statistics = true}};
constexpr std::int64_t kRows = 20;

class ContextsGpuTest : public GpuTest {
 protected:
  // Launches a kernel in the current context, with memory and workspace of that context, and expects it
  // right.
  static void launch_here(const Kernel& kernel, oracle::Problem& problem) {
    GpuProblem on_gpu(problem);
    DeviceMemory workspace(std::max<std::size_t>(16, kernel.workspace_bytes()));
    workspace.fill(0);
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace.data();
    problem[Operand::y].poison();
    on_gpu.upload();
    const GpuStream stream;
    const Status status = kernel.launch(tensors, stream);
    ASSERT_TRUE(status) << to_text(kernel.spec()) << ": " << status.message() << " " << status.driver_result;
    on_gpu.fetch();
    expect_right(problem);
  }
};

// Every public call that may come near the driver. What it answers is not looked at: it is called where it
// must fail, too.
std::vector<std::pair<std::string, std::function<void()>>> public_calls(Service& service,
                                                                        const Kernel& kernel,
                                                                        const Tensors& tensors, int devices,
                                                                        const std::string& folder) {
  std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"Service", [] { Service(Options{}); }},
      {"prepare", [&] { (void)service.prepare({.columns = 100}); }},
      {"prepare again", [&] { (void)service.prepare(kRow); }},
      {"layer_norm", [&] { (void)service.layer_norm(kRow, tensors, nullptr); }},
      {"layer_norm of something wrong", [&] { (void)service.layer_norm({.columns = 7}, tensors, nullptr); }},
      {"launch", [&] { (void)kernel.launch(tensors, nullptr); }},
      {"check", [&] { (void)kernel.check(tensors); }},
      {"workspace_bytes", [&] { (void)service.workspace_bytes(kRow); }},
      {"device", [&] { (void)service.device(); }},
      {"environment", [&] { (void)service.environment(); }},
      {"prebuild",
       [&] {
         const NormSpec one{.columns = 101};
         const DeviceProfile profile = kernel.device();
         (void)service.prebuild({&one, 1}, {&profile, 1});
       }},
      {"render", [&] { (void)service.render(kRow, kernel.device(), RowsRegime::many, Alignment::one); }},
      {"tuned", [&] { (void)service.tuned(kRow, kernel.device(), RowsRegime::many, Alignment::one); }},
      {"why", [&] { (void)service.why(kRow, kernel.device()); }},
      {"entries", [&] { (void)service.entries(); }},
      {"verify", [&] { (void)service.verify(); }},
      {"export_pack", [&, folder] { (void)service.export_pack(folder + "/all.njp"); }},
      {"import_from", [&, folder] { (void)service.import_from({folder + "/all.njp"}); }},
      {"prune", [&] { (void)service.prune(); }},
      {"counters", [&] { (void)service.counters(); }},
      {"freeze", [&] { service.freeze(Frozen::no); }},
      {"wait_for_compiles", [&] { service.wait_for_compiles(); }},
  };
  for (int device = 0; device < devices; ++device) {
    const std::string name = " for device " + std::to_string(device);
    calls.emplace_back("prepare" + name,
                       [&, device] { (void)service.prepare({.columns = 102 + device}, {.device = device}); });
    calls.emplace_back("device" + name, [&, device] { (void)service.device(device); });
  }
  return calls;
}

TEST_F(ContextsGpuTest, NoPublicCallChangesTheCurrentContext) {
  const int devices = device_count();
  oracle::Problem problem = make(kRow, kRows);
  const GpuProblem in_primary(problem);
  const Kernel kernel = service().prepare(kRow).value();

  const auto expect_unchanged = [&](const std::string& scene) {
    SCOPED_TRACE(scene);
    const TempDirectory folder;  // where nothing has been made ready yet
    Service fresh(options(folder / "cache"));
    std::optional<GpuProblem> here;  // a kernel reaches the memory of its own context only
    if (current_context() != nullptr) here.emplace(problem);
    const Tensors& tensors = here ? here->tensors() : in_primary.tensors();
    for (const auto& [name, call] : public_calls(fresh, kernel, tensors, devices, folder.path())) {
      const std::vector<CUcontext> before = context_stack();
      call();
      EXPECT_EQ(context_stack(), before) << name;
    }
    if (here) {
      EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS) << "the launches";
    }
  };
  expect_unchanged("device 0");
  {
    const OwnContext own(0);
    ASSERT_EQ(context_stack().size(), 2U);
    expect_unchanged("a context of its own on top of device 0");
  }
  for (int device = 1; device < devices; ++device) {
    const PrimaryContext other(device);
    const WithContext with(other.get());
    expect_unchanged("device " + std::to_string(device));
  }
  const WithContext none(nullptr);
  ASSERT_THAT(context_stack(), IsEmpty());
  expect_unchanged("no context");
}

TEST_F(ContextsGpuTest, AKernelServesAContextThatIsNotThePrimaryOne) {
  for (const NormSpec& spec : kSpecs) {
    oracle::Problem problem = make(spec, kRows);
    const Kernel in_primary = service().prepare(spec, {.rows_hint = kRows}).value();
    launch_here(in_primary, problem);
    const OwnContext own(0);
    launch_here(in_primary, problem);
    Service here(options(""));
    launch_here(here.prepare(spec, {.rows_hint = kRows}).value(), problem);
  }
}

TEST_F(ContextsGpuTest, AKernelOutlivesTheContextThatItWasPreparedIn) {
  for (const NormSpec& spec : kSpecs) {
    oracle::Problem problem = make(spec, kRows);
    Kernel kernel;
    {
      const OwnContext first(0);
      Service there(options(""));
      kernel = there.prepare(spec, {.rows_hint = kRows}).value();
      launch_here(kernel, problem);
    }
    launch_here(kernel, problem);  // in the primary one
    const OwnContext second(0);
    launch_here(kernel, problem);
  }
}

// As frameworks do at their end, and some between two models: the primary context goes, and comes anew.
TEST_F(ContextsGpuTest, AKernelAndAServiceOutliveThePrimaryContext) {
  Service lasting(options(""));
  for (const NormSpec& spec : kSpecs) {
    oracle::Problem problem = make(spec, kRows);
    const Kernel kernel = lasting.prepare(spec, {.rows_hint = kRows}).value();
    launch_here(kernel, problem);

    must(CUDA(cuCtxSetCurrent)(nullptr), "cuCtxSetCurrent");
    must(CUDA(cuDevicePrimaryCtxRelease)(0), "cuDevicePrimaryCtxRelease");
    unsigned flags = 0;
    int active = 1;
    must(CUDA(cuDevicePrimaryCtxGetState)(0, &flags, &active), "cuDevicePrimaryCtxGetState");
    EXPECT_EQ(active, 0) << "or this tests nothing";
    CUcontext anew = nullptr;
    must(CUDA(cuDevicePrimaryCtxRetain)(&anew, 0), "cuDevicePrimaryCtxRetain");
    must(CUDA(cuCtxSetCurrent)(anew), "cuCtxSetCurrent");

    launch_here(kernel, problem);
    GpuProblem on_gpu(problem);
    DeviceMemory workspace(std::max<std::size_t>(16, lasting.workspace_bytes(spec).value()));
    workspace.fill(0);
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace.data();
    ASSERT_TRUE(lasting.layer_norm(spec, tensors, nullptr).ok());
    on_gpu.fetch();
    expect_right(problem);
  }
}

TEST_F(ContextsGpuTest, EachDeviceHasItsOwnFacts) {
  for (int device = 0; device < device_count(); ++device) {
    const DeviceProfile profile = service().device(device).value();
    int sms = 0, major = 0, minor = 0;
    must(CUDA(cuDeviceGetAttribute)(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
         "cuDeviceGetAttribute");
    must(CUDA(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
         "cuDeviceGetAttribute");
    must(CUDA(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device),
         "cuDeviceGetAttribute");
    EXPECT_EQ(profile.sm_count, sms);
    EXPECT_EQ(profile.arch.number, 10 * major + minor);
    EXPECT_EQ(service().prepare(kRow, {.device = device}).value().device(), profile);
  }
  EXPECT_EQ(service().device(device_count()).code(), Code::NoDevice);
  EXPECT_EQ(service().prepare(kRow, {.device = device_count()}).code(), Code::NoDevice);
}

TEST_F(ContextsGpuTest, EightThreadsLaunchOnTwoGpusAtOnce) {
  NORMJIT_SKIP_WITHOUT_TWO_GPUS();
  constexpr int kThreads = 8, kRounds = 200;
  const PrimaryContext contexts[] = {PrimaryContext(0), PrimaryContext(1)};
  const TempDirectory cache;
  Service one_for_all(options(cache.path()));
  std::vector<oracle::Problem> problems;
  for (int i = 0; i < kThreads; ++i) problems.push_back(make(kSpecs[i / 2 % std::size(kSpecs)], kRows + i));
  const auto body = [&](int i) {
    must(CUDA(cuCtxSetCurrent)(contexts[i % 2].get()), "cuCtxSetCurrent");
    oracle::Problem& problem = problems[i];
    GpuProblem on_gpu(problem);
    DeviceMemory workspace(std::max<std::size_t>(16, one_for_all.workspace_bytes(problem.spec).value()));
    workspace.fill(0);
    Tensors tensors = on_gpu.tensors();
    tensors.workspace = workspace.data();
    const GpuStream stream;
    const Kernel kernel = one_for_all.prepare(problem.spec, {.rows_hint = problem.rows}).value();
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_TRUE(one_for_all.layer_norm(problem.spec, tensors, stream).ok());
      ASSERT_TRUE(kernel.launch(tensors, stream));
    }
    on_gpu.fetch();
    EXPECT_THAT(context_stack(), ElementsAre(contexts[i % 2].get()));
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
  for (const oracle::Problem& problem : problems) expect_right(problem);
}

TEST_F(ContextsGpuTest, AKernelIsRefusedInAContextOfAnotherGpu) {
  NORMJIT_SKIP_WITHOUT_TWO_GPUS();
  const PrimaryContext other(1);
  for (const NormSpec& spec : kSpecs) {
    oracle::Problem problem = make(spec, kRows);
    const Kernel kernel = service().prepare(spec, {.rows_hint = kRows}).value();
    const Kernel for_other = service().prepare(spec, {.device = 1, .rows_hint = kRows}).value();
    {
      const WithContext with(other.get());
      GpuProblem on_other(problem);
      Tensors tensors = on_other.tensors();
      tensors.workspace = const_cast<void*>(tensors.x.pointer);  // never read
      EXPECT_EQ(kernel.launch(tensors, nullptr).code, Code::WrongDevice);
      EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS) << "nothing has happened there";
      launch_here(for_other, problem);
    }
    GpuProblem here(problem);
    EXPECT_FALSE(for_other.check(here.tensors()).ok());
    launch_here(kernel, problem);
  }
}

// Memory of one GPU and the context of another: found before the first launch.
TEST_F(ContextsGpuTest, MemoryOfAnotherGpuIsRefused) {
  NORMJIT_SKIP_WITHOUT_TWO_GPUS();
  oracle::Problem problem = make(kRow, kRows);
  GpuProblem on_first(problem);
  const PrimaryContext other(1);
  const WithContext with(other.get());
  EXPECT_EQ(service().layer_norm(kRow, on_first.tensors(), nullptr).code(), Code::WrongDevice);
  EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS);
}

}  // namespace
}  // namespace normjit::testing
