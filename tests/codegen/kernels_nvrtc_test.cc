// SPDX-License-Identifier: Apache-2.0
// Every kernel compiles with no more than a few spilled words, a variable and a warning, and its machine code
// fits the launch that its plan describes: every strategy with every dtype and activation on every
// architecture, every plan, every mixture of dtypes. Verdicts that are known from earlier runs are believed,
// see tests/support/verdict_cache.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/codegen/generator.h"
#include "normjit/compiler/cubin.h"
#include "normjit/plan.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/prepared.h"
#include "normjit/spec/tables.h"
#include "tests/support/launch_facts.h"
#include "tests/support/nvrtc.h"
#include "tests/support/random_spec.h"
#include "tests/support/verdict_cache.h"

namespace normjit {

// In the names of tests.
static void PrintTo(const DeviceProfile& device, std::ostream* to) { *to << device.arch.name(); }

namespace {

struct Job {
  NormSpec spec;
  Plan plan;
  DeviceProfile device;
};

// A row length, and a plan that choose() has for it.
struct Shape {
  std::int64_t columns;
  Plan plan;
};

// One shape for each plan that one of many row lengths reaches, for specs like this one. The lengths are
// whole and with a tail; neighbours differ by one part in `steps`.
std::vector<Shape> shapes_of(NormSpec spec, const DeviceProfile& device, std::int64_t steps) {
  std::vector<Shape> shapes;
  const int block = std::max(1, block_columns(spec));
  const auto add = [&](std::int64_t columns) {
    spec.columns = std::max<std::int64_t>(block, columns / block * block);
    if (!validate(spec)) return;  // too many columns for this norm
    for (const Plan& plan : plans(spec, device))
      if (std::find_if(shapes.begin(), shapes.end(), [&](const Shape& s) { return s.plan == plan; }) ==
          shapes.end())
        shapes.push_back({spec.columns, plan});
  };
  for (std::int64_t columns = 1; columns < 32; ++columns) add(columns);
  for (std::int64_t columns = 32; columns < (std::int64_t{1} << 23);
       columns += std::max<std::int64_t>(8, columns / steps / 8 * 8))
    for (const std::int64_t tail : {0, 1, 4}) add(columns + tail);
  return shapes;
}

constexpr std::int64_t kSteps = 6, kFewSteps = 3;

// What a kernel is made of besides the numbers of its plan: the parts of the templates, and the vector width.
std::tuple<Exchange, bool, int> form_of(const Plan& plan) {
  return {plan.exchange, plan.unaligned, plan.vector};
}

// For each form of a strategy, the shape whose threads hold the most: where a spill is likeliest.
std::vector<Shape> fullest_shapes(const std::vector<Shape>& shapes, Strategy strategy) {
  std::vector<Shape> fullest;
  for (const Shape& shape : shapes) {
    if (shape.plan.strategy != strategy) continue;
    const auto same = std::find_if(fullest.begin(), fullest.end(),
                                   [&](const Shape& s) { return form_of(s.plan) == form_of(shape.plan); });
    const auto held = [](const Plan& p) {
      return std::pair(p.per_thread * rows_per_thread(p), p.threads * p.blocks_per_sm);
    };
    if (same == fullest.end()) {
      fullest.push_back(shape);
    } else if (held(shape.plan) > held(same->plan)) {
      *same = shape;
    }
  }
  return fullest;
}

constexpr Strategy kStrategies[] = {Strategy::warp_rows, Strategy::staged_rows, Strategy::block_row,
                                    Strategy::persistent_row, Strategy::split_row};

// Whether some length must have a plan of the strategy: rows stream through shared memory only where the
// hardware can copy into it by itself, and some f64 rows not even there.
bool is_possible(Strategy strategy, const NormSpec& spec, const DeviceProfile& device) {
  return strategy != Strategy::persistent_row ||
         (device.arch.number >= 90 && compute_type(spec) == DType::f32 && !spills_in_ring(spec, device.arch));
}

// The best plans of a strategy that the model prefers for no length; others may be tuned to.
std::vector<Shape> second_best(NormSpec spec, const DeviceProfile& device, Strategy strategy) {
  std::vector<Shape> shapes;
  for (const std::int64_t columns : {33, 1001, 40'000}) {
    spec.columns = columns;
    for (const RowsRegime regime : {RowsRegime::few, RowsRegime::many}) {
      const std::vector<Candidate> all = candidates(spec, device, regime, Alignment::eight);
      const auto best = std::ranges::find(all, strategy, [](const Candidate& c) { return c.plan.strategy; });
      if (best != all.end()) shapes.push_back({columns, best->plan});
    }
  }
  return shapes;
}

// What is wrong with a kernel; empty if nothing is.
std::string trouble_of(Compiler& compiler, const Job& job, const Source& source) {
  const Arch target = target_of(job.plan, job.spec, job.device.arch);
  const auto binary = compiler.compile(source, target);
  if (!binary) return binary.error().message;

  std::string trouble;
  const auto add = [&](std::initializer_list<std::string_view> what) {
    trouble += concat({trouble.empty() ? "" : ", ", concat(what)});
  };
  if (binary->ptx || binary->target != target.name()) add({"compiled for ", binary->target});
  const auto facts = cubin_facts(binary->code, source.kernel);
  if (facts) {
    for (const std::string& line :
         testing::launch_trouble(*facts, job.plan, job.spec, job.device, launch_shape(job.plan, job.spec)))
      add({line});
    if (facts->registers != binary->registers || facts->shared_bytes != binary->shared_bytes)
      add({"the cubin and the log of ptxas disagree on registers or shared memory"});
  } else {
    add({"the cubin says nothing of the kernel"});
  }
  constexpr int kFewBytes = 192;  // stores and loads of a few words: tests/support/launch_facts.cc
  if (binary->spill_bytes > kFewBytes) add({shortest(binary->spill_bytes), " bytes spilled"});
  if (binary->code.find(".nv.global") != std::string::npos)
    add({"variables in global memory, which the driver's load takes long for"});
  if (binary->log.find("warning") != std::string::npos) add({"a warning:\n", binary->log});
  if (trouble.empty()) return "";
  return concat({job.device.arch.name(), " ", to_text(job.spec), " as ", to_text(job.plan), ": ", trouble,
                 " (", shortest(binary->registers), " registers)"});
}

class Kernels : public testing::NvrtcTest {
 protected:
  void SetUp() override {
    NvrtcTest::SetUp();
    if (IsSkipped()) return;
    for (const DeviceProfile& device : DeviceProfile::known())
      if (knows(device.arch)) devices_.push_back(device);
    ASSERT_FALSE(devices_.empty());
    // Releases that differ in their last number only have one name, but not one size.
    toolchain_ = concat({facts_.toolchain(), " ", shortest(std::filesystem::file_size(facts_.path))});
  }

  // What is wrong with a kernel, empty if nothing is; and whether that was known.
  struct Verdict {
    std::string trouble;
    bool known = false, left_out = false;
  };
  Verdict verdict_of(const Job& job) {
    const auto source = generate(job.spec, job.plan, job.device.arch, "");
    if (!source) return {source.error().message};
    const std::string key = known_.key({source->text, source->kernel, toolchain_, job.device.arch.name(),
                                        to_text(job.plan), to_text(job.spec)});
    const bool was_fine = known_.has(key);
    if (was_fine && !known_.is_due(key)) return {.trouble = {}, .known = true, .left_out = false};
    if (!was_fine && !known_.is_in_part(key)) return {.trouble = {}, .known = false, .left_out = true};
    std::string trouble = trouble_of(*compiler_, job, *source);
    if (trouble.empty()) {
      known_.keep(key);
    } else if (was_fine) {
      known_.discard();
      trouble += concat({"; an earlier run found nothing wrong, and kept ", key, " in ",
                         testing::verdict_folder(), ", whose keys of kernels are discarded now"});
    }
    return {.trouble = std::move(trouble), .known = false, .left_out = false};
  }

  // Compiles on all cores and reports every kernel with which something is wrong.
  void expect_all_clean(const std::vector<Job>& jobs) {
    std::atomic<std::size_t> next = 0, known = 0, left_out = 0;
    std::mutex mutex;
    std::vector<std::string> troubles;
    const auto work = [&] {
      for (std::size_t i; (i = next++) < jobs.size();) {
        Verdict verdict = verdict_of(jobs[i]);
        known += verdict.known;
        left_out += verdict.left_out;
        if (verdict.trouble.empty()) continue;
        const std::lock_guard lock(mutex);
        troubles.push_back(std::move(verdict.trouble));
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();

    std::sort(troubles.begin(), troubles.end());
    std::string all;
    for (const std::string& trouble : troubles) all += trouble + "\n";
    EXPECT_TRUE(troubles.empty()) << troubles.size() << " of " << jobs.size() << " kernels:\n" << all;
    RecordProperty("kernels", static_cast<int>(jobs.size()));
    std::printf("%zu kernels: %zu known, %zu compiled, %zu left out\n", jobs.size(), known.load(),
                jobs.size() - known - left_out, left_out.load());
  }

  // The shapes of a spec whose turn it is on architecture a: of as many as there are architectures one.
  void add_shapes(std::vector<Job>& jobs, NormSpec spec, std::size_t a, std::int64_t steps) const {
    const std::vector<Shape> shapes = shapes_of(spec, devices_[a], steps);
    for (std::size_t i = a; i < shapes.size(); i += devices_.size()) {
      spec.columns = shapes[i].columns;
      jobs.push_back({spec, shapes[i].plan, devices_[a]});
    }
  }

  const testing::VerdictCache known_{"kernels", NORMJIT_TEST_CODE};
  std::string toolchain_;
  std::vector<DeviceProfile> devices_;  // those that this NVRTC compiles for
};

// The fields that no test goes through one by one, so that all combinations come up.
void vary(NormSpec& spec, std::size_t turn) {
  spec.affine = kAffines[turn % std::size(kAffines)].value;
  spec.statistics = turn / 3 % 2 == 0;
  spec.scale = turn / 6 % 2 == 0 ? 1 : 0.7;
}

// One of the shapes of a spec, which takes its turn, with the fields varied.
Job varied_job(const NormSpec& spec, const std::vector<Shape>& shapes, std::size_t turn,
               const DeviceProfile& device) {
  const Shape& shape = shapes[turn % shapes.size()];
  NormSpec varied = spec;
  varied.columns = shape.columns;
  vary(varied, turn);
  varied.affine = spec.affine;  // on which the shapes depend
  return {varied, shape.plan, device};
}

// One test for each known architecture, since together they take longest of all.
class KernelsFor : public Kernels, public ::testing::WithParamInterface<DeviceProfile> {};

INSTANTIATE_TEST_SUITE_P(Each, KernelsFor, ::testing::ValuesIn(DeviceProfile::known()),
                         [](const auto& tested) { return tested.param.arch.name(); });

// The vector width goes round with the architecture.
TEST_P(KernelsFor, EveryStrategyDTypeAndActivation) {
  const DeviceProfile& device = GetParam();
  const auto own = std::find(devices_.begin(), devices_.end(), device);
  if (own == devices_.end()) GTEST_SKIP() << "This NVRTC makes no code for " << device.arch.name() << ".";
  const auto first_turn = static_cast<std::size_t>(own - devices_.begin());
  std::vector<Job> jobs;
  for (const auto& dtype : kInputDTypeRows)
    for (const Choice<Activation>& activation : kActivations) {
      const NormSpec spec{
          .columns = 1, .input = dtype.value, .affine = Affine::weight_bias, .activation = activation.value};
      const std::vector<Shape> all = shapes_of(spec, device, kFewSteps);
      for (const Strategy strategy : kStrategies) {
        std::vector<Shape> shapes = fullest_shapes(all, strategy);
        if (shapes.empty()) shapes = second_best(spec, device, strategy);
        if (shapes.empty()) {
          ASSERT_FALSE(is_possible(strategy, spec, device))
              << to_text(spec) << " has no plan of " << name(strategy);
          continue;
        }
        const std::size_t turn = first_turn + jobs.size();
        jobs.push_back(varied_job(spec, shapes, turn, device));
      }
    }
  expect_all_clean(jobs);
}

// Every plan that choose() has for many lengths, each on one of the architectures, which have one activation
// each.
TEST_F(Kernels, EveryPlan) {
  std::vector<Job> jobs;
  for (const DType dtype : {DType::f16, DType::f32, DType::f64})
    for (std::size_t a = 0; a < devices_.size(); ++a) {
      NormSpec spec{.columns = 1,
                    .input = dtype,
                    .affine = Affine::weight_bias,
                    .activation = kActivations[a % std::size(kActivations)].value};
      add_shapes(jobs, spec, a, kSteps);
    }
  expect_all_clean(jobs);
}

TEST_F(Kernels, EveryMixtureOfDTypes) {
  std::vector<Job> jobs;
  for (const auto& in : kInputDTypeRows)
    for (const auto& out : kInputDTypeRows)
      for (const auto& weight : kInputDTypeRows) {
        NormSpec spec{.columns = 1,
                      .input = in.value,
                      .output = out.value,
                      .weight = weight.value,
                      .affine = Affine::weight_bias,
                      .activation = kActivations[jobs.size() % std::size(kActivations)].value};
        const DeviceProfile& device = devices_[jobs.size() % devices_.size()];
        const std::vector<Shape> all = shapes_of(spec, device, kFewSteps);
        for (const Strategy strategy : kStrategies) {
          const std::vector<Shape> shapes = fullest_shapes(all, strategy);
          if (shapes.empty()) continue;  // wide weights leave some strategies no room
          const Shape& shape = shapes[jobs.size() % shapes.size()];
          spec.columns = shape.columns;
          jobs.push_back({spec, shape.plan, device});
        }
      }
  expect_all_clean(jobs);
}

TEST_F(Kernels, TheGenericOnes) {
  std::vector<Job> jobs;
  for (const DeviceProfile& device : devices_)
    for (const DType dtype : {DType::f32, DType::f64})
      for (const bool backward : {false, true})
        jobs.push_back({{.backward = backward, .columns = 4096, .input = dtype}, generic_plan(), device});
  expect_all_clean(jobs);
}

// ---- The root mean square, residuals and sums ----

// What a norm may have around it, in turn.
void vary_norm(NormSpec& spec, std::size_t turn) {
  constexpr NormSpec kAround[] = {
      {.norm = Norm::rms, .residual = Residual::before, .sum = true},
      {.norm = Norm::rms},
      {.norm = Norm::rms, .residual = Residual::before, .rounding = Rounding::sum, .weight_offset = true},
      {.norm = Norm::layer, .residual = Residual::before, .sum = true},
      {.norm = Norm::layer, .in_bias = true, .residual = Residual::before},
      {.norm = Norm::rms, .residual = Residual::after, .weight_offset = true},
      {.norm = Norm::rms, .rounding = Rounding::norm, .affine_rows = true},
      {.norm = Norm::layer, .modulation = Modulation::scale_shift},
      {.norm = Norm::layer,
       .gate = Gate::before,
       .gate_table = true,
       .residual = Residual::before,
       .sum = true,
       .modulation = Modulation::scale_shift,
       .modulation_table = true},
      {.norm = Norm::rms, .gate = Gate::after, .gate_function = GateFunction::silu},
      {.norm = Norm::rms, .gate = Gate::before, .gate_function = GateFunction::silu, .affine_rows = true},
      {.norm = Norm::rms,
       .gate = Gate::after,
       .gate_function = GateFunction::tanh,
       .gate_table = true,
       .residual = Residual::after,
       .modulation = Modulation::scale,
       .plain_modulation = true},
  };
  const NormSpec& around = kAround[turn % std::size(kAround)];
  spec.norm = around.norm;
  spec.residual = around.residual;
  spec.residual_type = turn % 3 == 0 ? DType::f32 : spec.input;
  spec.sum = around.sum;
  spec.in_bias = around.in_bias;
  spec.gate = around.gate;
  spec.gate_function = around.gate_function;
  spec.gate_table = around.gate_table;
  spec.modulation = around.modulation;
  spec.plain_modulation = around.plain_modulation;
  spec.modulation_table = around.modulation_table;
  spec.modulation_type = turn % 5 == 0 ? DType::f32 : spec.input;
  if (spec.gate == Gate::after) spec.activation = Activation::none;
  spec.weight_offset = around.weight_offset;
  spec.affine_rows = around.affine_rows;
  spec.rounding = around.rounding;
  if (!validate(spec)) spec.rounding = Rounding::none;
  spec = canonical(spec);
}

// The strategy goes round with the architecture, too.
TEST_P(KernelsFor, EveryNormDTypeActivationAndAffine) {
  const DeviceProfile& device = GetParam();
  const auto own = std::find(devices_.begin(), devices_.end(), device);
  if (own == devices_.end()) GTEST_SKIP() << "This NVRTC makes no code for " << device.arch.name() << ".";
  const auto first_turn = static_cast<std::size_t>(own - devices_.begin());
  std::vector<Job> jobs;
  for (const auto& dtype : kInputDTypeRows)
    for (const Choice<Activation>& activation : kActivations)
      for (const Choice<Affine>& affine : kAffines) {
        NormSpec spec{.columns = 1,
                      .input = dtype.value,
                      .output = dtype.value,
                      .weight = dtype.value,
                      .affine = affine.value,
                      .activation = activation.value};
        const std::size_t turn = first_turn + jobs.size();
        vary_norm(spec, turn);
        const std::vector<Shape> all = shapes_of(spec, device, kFewSteps);
        const Strategy strategy = kStrategies[turn % std::size(kStrategies)];
        std::vector<Shape> shapes = fullest_shapes(all, strategy);
        if (shapes.empty()) shapes = fullest_shapes(all, Strategy::block_row);
        ASSERT_FALSE(shapes.empty()) << "block_row is never chosen for " << to_text(spec);
        Job job = varied_job(spec, shapes, turn, device);
        job.plan.grouped_rows = turn % 4 == 0;
        jobs.push_back(std::move(job));
      }
  expect_all_clean(jobs);
}

// As EveryPlan, for every mixture of two dtypes.
TEST_F(Kernels, EveryPlanOfOtherNorms) {
  std::vector<Job> jobs;
  std::size_t turn = 0;
  for (const auto& in : kInputDTypeRows)
    for (const auto& out : kInputDTypeRows)
      for (const DType weight : {in.value, DType::f32}) {
        const std::size_t a = turn++ % devices_.size();
        NormSpec spec{.columns = 1,
                      .input = in.value,
                      .output = out.value,
                      .weight = weight,
                      .affine = Affine::weight_bias,
                      .activation = kActivations[turn % std::size(kActivations)].value};
        vary_norm(spec, turn);
        add_shapes(jobs, spec, a, kFewSteps);
      }
  expect_all_clean(jobs);
}

// Every plan for channels first, of all dtypes, each on one of the architectures.
TEST_F(Kernels, EveryPlanOfChannelsFirst) {
  std::vector<Job> jobs;
  std::size_t turn = 0;
  for (const auto& in : kInputDTypeRows)
    for (const auto& out : kInputDTypeRows)
      for (const DType weight : {in.value, DType::f32})
        for (const bool plain : {true, false}) {
          const std::size_t a = turn++ % devices_.size();
          NormSpec spec{.columns = 1,
                        .input = in.value,
                        .output = out.value,
                        .weight = weight,
                        .affine = Affine::weight_bias,
                        .activation = kActivations[plain ? 0 : turn % std::size(kActivations)].value};
          if (!plain) vary_norm(spec, turn);
          make_channels_first(spec);
          add_shapes(jobs, canonical(spec), a, kFewSteps);
        }
  expect_all_clean(jobs);
}

// Every plan for results of 8 bits, each on one of the architectures.
TEST_F(Kernels, EveryPlanOfQuantizedResults) {
  std::vector<Job> jobs;
  std::size_t turn = 0;
  for (const DType out : {DType::e4m3, DType::e5m2, DType::s8})
    for (const Quantization quantization : {Quantization::row, Quantization::tensor, Quantization::none})
      for (const DType in : {DType::bf16, DType::f16, DType::f32}) {
        if (out == DType::s8 && quantization == Quantization::none) continue;
        const std::size_t a = turn++ % devices_.size();
        const bool plain = turn % 2 == 0;
        NormSpec spec{.norm = turn % 3 == 0 ? Norm::layer : Norm::rms,
                      .columns = 1,
                      .input = in,
                      .output = out,
                      .weight = turn % 4 == 0 ? DType::f32 : in,
                      .affine = Affine::weight_bias,
                      .activation = kActivations[plain ? 0 : turn % std::size(kActivations)].value,
                      .quantization = quantization};
        if (!plain) vary_norm(spec, turn);
        if (quantization != Quantization::none && turn % 3 == 0) spec.rounding = Rounding::y;
        add_shapes(jobs, canonical(spec), a, kSteps);
      }
  expect_all_clean(jobs);
}

// Every plan for blocks with scales, for second results and for the largest result, likewise.
TEST_F(Kernels, EveryPlanOfBlocksAndSecondResults) {
  constexpr Quantization kOf[] = {Quantization::block_16,  Quantization::block_32, Quantization::block_64,
                                  Quantization::block_128, Quantization::row,      Quantization::tensor,
                                  Quantization::none};
  std::vector<Job> jobs;
  std::size_t turn = 0;
  for (const Quantization quantization : kOf)
    for (const DType in : {DType::bf16, DType::f16, DType::f32}) {
      const std::size_t a = turn++ % devices_.size();
      const bool plain = turn % 2 == 0;
      NormSpec spec{.norm = turn % 3 == 0 ? Norm::layer : Norm::rms,
                    .columns = 1,
                    .input = in,
                    .output = quantization == Quantization::none
                                  ? in
                                  : std::array{DType::e4m3, DType::s8, DType::e5m2}[turn % 3],
                    .weight = turn % 4 == 0 ? DType::f32 : in,
                    .affine = Affine::weight_bias,
                    .activation = kActivations[plain ? 0 : turn % std::size(kActivations)].value,
                    .quantization = quantization};
      if (!plain) vary_norm(spec, turn);
      if (scales_blocks(spec)) {
        spec.scale_format = quantization == Quantization::block_16   ? ScaleFormat::e4m3
                            : quantization == Quantization::block_32 ? ScaleFormat::e8m0
                                                                     : kScaleFormats[turn % 3].value;
        spec.scale_layout = kScaleLayouts[turn % (block_columns(spec) > 32 ? 2 : 4)].value;
        if (spec.scale_format == ScaleFormat::e4m3 && spec.scale_layout == ScaleLayout::packed_columns)
          spec.scale_layout = ScaleLayout::swizzled;
      }
      spec.amax = quantization == Quantization::none || (quantization == Quantization::tensor && plain);
      if (quantization != Quantization::none && (turn % 2 == 0 || !scales_blocks(spec)))
        spec.also = std::array{Also::bf16, Also::f16, Also::f32}[turn % 3];
      add_shapes(jobs, canonical(spec), a, kFewSteps);
      if (quantization != Quantization::block_16 && quantization != Quantization::block_32) continue;
      spec.output = DType::e2m1;
      add_shapes(jobs, canonical(spec), (a + devices_.size() / 2) % devices_.size(), kFewSteps);
    }
  expect_all_clean(jobs);
}

// Of the plans that the planner weighs for gradients of a spec every eighth: one that spills would be tuned
// to. Exchanges take turns: what threads hold does not depend on them.
void add_gradients(std::vector<Job>& jobs, const NormSpec& spec, const DeviceProfile& device,
                   std::size_t turn) {
  std::vector<Plan> seen;
  for (const RowsRegime regime : kRowsRegimes)
    for (const Alignment alignment : kAlignments)
      for (const Candidate& one : candidates(spec, device, regime, alignment)) {
        Plan either = one.plan;
        if (either.exchange != Exchange::cluster) either.exchange = Exchange::none;
        if (std::find(seen.begin(), seen.end(), either) != seen.end()) continue;
        seen.push_back(either);
        // The sums over rows need an exchange or not; without any there is none. Clusters always have one.
        if ((seen.size() + turn) % 8 != 0) continue;
        Plan met = either;
        if (met.exchange == Exchange::none) met.exchange = Exchange::grid;
        const bool meets = seen.size() / 8 % 2 == 0 && check(met, spec, device);
        jobs.push_back({spec, meets ? met : either, device});
      }
}
constexpr std::int64_t kColumnsOfGradients[] = {7, 64, 100, 768, 1000, 4096, 5120, 16'384, 65'537, 4'194'304};

// Of random specs, each on one of the architectures.
TEST_F(Kernels, EveryPlanOfGradients) {
  std::vector<Job> jobs;
  for (std::size_t turn = 0; turn < 40; ++turn) {
    Random random(turn);
    NormSpec spec = random_spec(random, {.every_norm = true});
    spec.input = kInputDTypeRows[turn % 4].value;
    if (turn % 2 == 0) spec.output = spec.weight = spec.input;  // as frameworks have it
    if (turn % 4 != 0) spec.affine = Affine::weight_bias;
    make_backward(spec, random);
    if (turn % 5 == 2) spec.weight = DType::f32;  // beside rows of 16 bits, as training has it
    spec.columns = kColumnsOfGradients[turn % std::size(kColumnsOfGradients)];
    spec.gate = Gate::none;
    spec.modulation = Modulation::none;
    spec.need = Need::all;
    add_gradients(jobs, canonical(spec), devices_[(turn * 5 + 6) % devices_.size()], turn);
  }
  EXPECT_GT(jobs.size(), 150u);
  expect_all_clean(jobs);
}

// With a gate before or behind the norm, and of some needs.
TEST_F(Kernels, EveryPlanOfGatedGradients) {
  std::vector<Job> jobs;
  for (std::size_t turn = 0; turn < 32; ++turn) {
    const DType type = kInputDTypeRows[turn % 4].value;
    NormSpec spec{.norm = turn / 4 % 2 == 0 ? Norm::rms : Norm::layer,
                  .backward = true,
                  .columns = kColumnsOfGradients[turn * 3 % std::size(kColumnsOfGradients)],
                  .input = type,
                  .gate = turn / 2 % 3 == 0 ? Gate::none
                          : turn % 2 == 0   ? Gate::before
                                            : Gate::after,
                  .gate_function = kGateFunctions[(turn / 3 + 1) % 4].value,
                  .dsum = turn % 3 == 0,
                  .affine = turn % 5 == 0 ? Affine::weight : Affine::weight_bias,
                  .statistics = turn % 3 == 1};
    if (turn % 6 == 5) spec.weight = spec.gradient_type = spec.modulation_type = DType::f32;
    if (spec.gate != Gate::after && turn % 7 == 0) spec.activation = kActivations[turn / 7 % 5].value;
    if (spec.gate == Gate::none || turn % 8 == 0) spec.need = kNeeds[turn % std::size(kNeeds)].value;
    if (written_gradients(spec) == 0) spec.need = Need::dx;
    spec.dsum = spec.dsum && writes_dx(spec);
    add_gradients(jobs, canonical(spec), devices_[(turn * 5 + 3) % devices_.size()], turn);
  }
  EXPECT_GT(jobs.size(), 150u);
  expect_all_clean(jobs);
}

// With a modulation, of each row or of groups of rows.
TEST_F(Kernels, EveryPlanOfModulatedGradients) {
  constexpr std::int64_t kColumns[] = {7, 64, 100, 768, 1000, 1152, 3072, 5120};
  std::vector<Job> jobs;
  for (std::size_t turn = 0; turn < 40; ++turn) {
    const DType type = kInputDTypeRows[turn % 4].value;
    NormSpec spec{.norm = turn / 4 % 2 == 0 ? Norm::rms : Norm::layer,
                  .backward = true,
                  .columns = kColumns[turn * 3 / 2 % std::size(kColumns)],
                  .input = type,
                  .dsum = turn % 3 == 0,
                  .affine = kAffines[turn / 2 % 3].value,
                  .modulation = turn % 5 == 0 ? Modulation::scale : Modulation::scale_shift,
                  .plain_modulation = turn % 7 == 0,
                  .modulation_table = turn % 4 == 3,
                  .activation = turn % 3 == 2 ? kActivations[turn / 3 % 5].value : Activation::none,
                  .statistics = turn % 5 == 2};
    if (turn % 6 == 5) spec.weight = spec.gradient_type = spec.modulation_type = DType::f32;
    if (turn % 8 == 0) spec.need = Need::dx;
    const std::size_t before = jobs.size();
    add_gradients(jobs, canonical(spec), devices_[(turn * 5 + 3) % devices_.size()], turn);
    std::erase_if(jobs, [](const Job& job) { return !check(job.plan, job.spec, job.device); });
    for (std::size_t i = before; i < jobs.size(); ++i) jobs[i].plan.grouped_rows = (i + turn) % 4 != 0;
  }
  EXPECT_GT(jobs.size(), 100u);
  expect_all_clean(jobs);
}

// Whatever the combination; among it epsilons and scales that only a double holds, huge rows, no weights.
TEST_F(Kernels, RandomSpecs) {
  std::vector<Job> jobs;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    Random random(seed);
    const NormSpec spec = canonical(random_spec(random, {.channels_first = true, .every_norm = true}));
    const DeviceProfile& device = devices_[random.below(devices_.size())];
    jobs.push_back(
        {spec, choose(spec, device, random.one_of(kRowsRegimes), random.one_of(kAlignments)), device});
  }
  expect_all_clean(jobs);
}

}  // namespace
}  // namespace normjit
