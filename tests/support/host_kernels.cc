// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "normjit/base/text.h"
#include "normjit/codegen/generator.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/prepared.h"
#include "simt/launch.h"
#include "simt/process.h"
#include "tests/support/compare_with_reference.h"
#include "tests/support/guarded_memory.h"
#include "tests/support/random_spec.h"
#include "verify/element.h"
#include "verify/problem.h"

namespace normjit::testing {
namespace {

// Streams of random numbers, beside those of oracle::fill.
constexpr std::uint64_t kRowStream = 1000;

// The smallest number of the dtype that is not subnormal.
double smallest_normal(DType dtype) {
  return dtype == DType::f16   ? 0x1p-14
         : dtype == DType::f64 ? std::numeric_limits<double>::min()
                               : std::numeric_limits<float>::min();
}

struct Distribution {
  double mean, deviation;
};

Distribution distribution(InputKind kind, const NormSpec& spec, Random& random) {
  constexpr double kNumbers[] = {0.0, -0.0, 1.0, 3.0, 0.1, -12345.678};
  constexpr double kTinyEpsilon = 1e-9;  // below, rounding decides about rows of one number
  switch (kind) {
    case InputKind::near_epsilon:
      return {0, std::sqrt(std::max(spec.epsilon, 1e-14))};
    case InputKind::large_mean:
      return {random.coin() ? 1e4 : -1e4, 1};
    case InputKind::constant_rows:
      return {kNumbers[random.below(spec.epsilon < kTinyEpsilon ? 4 : std::size(kNumbers))], 0};
    case InputKind::subnormal:
      return {0, smallest_normal(spec.input)};
    default:
      return {0.25, 1};
  }
}

InputKind kind_of_row(const KernelCase& c, Random& random) {
  constexpr InputKind kFinite[] = {InputKind::unit, InputKind::near_epsilon, InputKind::large_mean,
                                   InputKind::constant_rows};
  return c.inputs == InputKind::mixed ? random.one_of(kFinite) : c.inputs;
}

// Copies elements of so many bytes, which are `to_step` and `from_step` apart.
void copy_columns(std::byte* to, std::int64_t to_step, const std::byte* from, std::int64_t from_step,
                  std::int64_t columns, int bytes) {
  for (std::int64_t i = 0; i < columns; ++i)
    std::memcpy(to + i * to_step * bytes, from + i * from_step * bytes, static_cast<std::size_t>(bytes));
}

// The rows of x, or of the residual, which are others.
void fill_rows(const KernelCase& c, oracle::Problem& problem, Operand operand, std::uint64_t seed) {
  const oracle::Matrix& matrix = problem[operand];
  if (matrix.empty()) return;
  Random random(seed);
  oracle::Matrix row(matrix.dtype(), 1, c.spec.columns);
  for (std::int64_t i = 0; i < c.rows; ++i) {
    const InputKind kind = kind_of_row(c, random);
    const Distribution d = distribution(kind, c.spec, random);
    oracle::fill_random(row, seed,
                        {.stream = kRowStream + static_cast<std::uint64_t>(i),
                         .mean = d.mean,
                         .deviation = d.deviation,
                         .trend = kind == InputKind::unit ? 4.0 : 0});
    copy_columns(problem.row(operand, i), problem.step(), row.data(), 1, c.spec.columns,
                 size_of(matrix.dtype()));
  }
}

// Where activations overflow, saturate or meet zero.
void make_extreme(const KernelCase& c, oracle::Problem& problem) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kWeights[] = {1, 0, -1e4, 1e-30, -1};
  constexpr double kBiases[] = {0,   -0.0, 1,   -1,   10,   -10,   89,        -89,
                                1e4, -1e4, 1e5, -1e5, 1e30, -1e30, kInfinity, -kInfinity};
  const auto repeat = [&](oracle::Matrix& to, const auto& values) {
    for (std::int64_t i = 0; i < to.elements(); ++i)
      oracle::store(to.dtype(), to.data(), i, 1,
                    &values[(static_cast<std::uint64_t>(i) + c.seed) % std::size(values)]);
  };
  repeat(problem[Operand::weight], kWeights);
  repeat(problem[Operand::bias], kBiases);
}

// The row of a case that gets a NaN or an infinity.
std::int64_t bad_row(const KernelCase& c) {
  return static_cast<std::int64_t>(c.seed % static_cast<std::uint64_t>(c.rows));
}

// x, the residual, or dy.
void spoil(const KernelCase& c, oracle::Problem& problem) {
  const Operand other = c.spec.backward ? Operand::dy : Operand::residual;
  const Operand operand = row_of(other).present(c.spec) && c.seed / 4 % 2 == 1 ? other : Operand::x;
  const double infinity = std::numeric_limits<double>::infinity();
  const double value = c.inputs == InputKind::nan_row ? std::nan("") : c.seed % 2 == 0 ? infinity : -infinity;
  const auto column = static_cast<std::int64_t>(c.seed / 2 % static_cast<std::uint64_t>(c.spec.columns));
  oracle::store(problem[operand].dtype(), problem.row(operand, bad_row(c)), column * problem.step(), 1,
                &value);
  oracle::fill_statistics(problem);
}

// A workspace with its end at a guard page, and what its launches should have left in it. Behind the part
// that must be zero it has NaNs, in every type.
struct Workspace {
  explicit Workspace(std::size_t bytes) : memory(bytes, GuardedMemory::Side::before_guard) {
    if (bytes > 0) std::memcpy(memory.data() + kEpochAt, &epoch, sizeof epoch);
    if (bytes > kMeetingBytes) std::memset(memory.data() + kMeetingBytes, 0xff, bytes - kMeetingBytes);
  }
  // After a launch of the case: the counters are zero again, and of tags the next one knows the largest.
  std::optional<std::string> left_by(const KernelCase& c);

  static constexpr std::size_t kEpochAt = 16;

  GuardedMemory memory;
  std::uint32_t epoch = 1000;  // as other kernels have left it
};

std::optional<std::string> Workspace::left_by(const KernelCase& c) {
  const std::size_t header_and_ring = std::min<std::size_t>(32 + 1024 * 32, memory.bytes());
  if (memory.bytes() == 0) return {};
  if (c.plan.exchange == Exchange::grid && !c.spec.backward) {  // gradients have no tags
    const std::int64_t teams = blocks_of(c) / c.plan.blocks_per_row;
    const std::int64_t tags = scales_rows(c.spec) ? 2 : 1;  // of a row; the first team has the most
    epoch += static_cast<std::uint32_t>(ceil_div(c.rows, teams) * tags);
  }
  std::vector<std::byte> expected(header_and_ring);
  std::memcpy(expected.data() + kEpochAt, &epoch, sizeof epoch);
  const auto wrong = std::mismatch(expected.begin(), expected.end(), memory.data()).first;
  if (wrong == expected.end()) return {};
  return concat({"byte ", shortest(wrong - expected.begin()),
                 " of the workspace, a counter's, is not as the next launch needs it"});
}

// The tensors of a problem where the kernel finds them, each beside a guard page.
class Launcher {
 public:
  Launcher(const KernelCase& c, oracle::Problem& problem, Workspace& workspace)
      : case_(c), problem_(problem), workspace_(workspace) {
    for (const OperandRow& row : kOperands) {
      const Operand at = memory_operand(row);
      const oracle::Matrix& matrix = problem[at];
      if (at == row.operand)
        memory_[at].emplace(matrix.bytes(), side(),
                            static_cast<std::size_t>(shift_of(row) * size_of(matrix.dtype())));
    }
  }

  // Anew from the problem's inputs, into poisoned outputs of the problem; the workspace as it was left.
  std::optional<std::string> run(const simt::HostKernel& kernel, std::uint64_t schedule_seed,
                                 std::chrono::milliseconds time_limit);

 private:
  GuardedMemory::Side side() const {
    return case_.guard == Guard::before ? GuardedMemory::Side::behind_guard
                                        : GuardedMemory::Side::before_guard;
  }
  static void bring(const GuardedMemory& to, const oracle::Matrix& from) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.bytes());
  }
  static void fetch(oracle::Matrix& to, const GuardedMemory& from) {
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.bytes());
  }

  const KernelCase& case_;
  oracle::Problem& problem_;
  Workspace& workspace_;
  // In place, an output lies in the memory of the input that it may be.
  Operand memory_operand(const OperandRow& row) const {
    return case_.is_in_place(row.operand) ? row.in_place : row.operand;
  }
  int shift_of(const OperandRow& row) const {
    if (row.operand == Operand::weight) return case_.weight_shift;
    if (row.operand == Operand::bias || row.operand == Operand::in_bias) return case_.bias_shift;
    return row.output ? case_.y_shift : case_.x_shift;
  }

  PerOperand<std::optional<GuardedMemory>> memory_;
};

std::optional<std::string> Launcher::run(const simt::HostKernel& kernel, std::uint64_t schedule_seed,
                                         std::chrono::milliseconds time_limit) {
  const KernelCase& c = case_;
  Tensors tensors{.rows = c.rows};
  tensors.plane = c.plane;
  std::vector<simt::Buffer> buffers;
  for (const OperandRow& row : kOperands) {
    oracle::Matrix& matrix = problem_[row.operand];
    if (row.output) matrix.poison();
    const Operand at = memory_operand(row);
    const GuardedMemory& memory = *memory_[at];
    // What the spec does not have is null, as from the service.
    if (memory.bytes() == 0) continue;
    set(tensors, row, oracle::rows_at(memory.data(), matrix.layout()));
    if (at != row.operand) continue;
    bring(memory, matrix);
    const bool shared = std::any_of(std::begin(kOperands), std::end(kOperands), [&](const auto& other) {
      return other.operand != at && memory_operand(other) == at;
    });
    buffers.push_back({memory.data(), memory.bytes(), row.name, row.output || shared, !row.output,
                       !row.output && is_columns(row, c.spec),
                       static_cast<std::size_t>(size_of(matrix.dtype()))});
  }
  if (const std::size_t bytes = workspace_bytes(c.plan, c.spec, c.device); bytes > 0)
    buffers.push_back({workspace_.memory.data(), bytes, "workspace", true, true});
  if (workspace_.memory.bytes() > 0) tensors.workspace = workspace_.memory.data();
  OperandBlock block = block_of(c.plan, c.spec, tensors);
  RuntimeSpec spec(c.spec);
  void* arguments[] = {&block, &spec};

  simt::Launch launch;
  launch.blocks = blocks_of(c);
  launch.shape = launch_shape(c.plan, c.spec);
  launch.shape.overlap_previous = c.overlaps;
  launch.arguments = arguments;
  launch.buffers = buffers;
  launch.seed = schedule_seed;
  launch.time_limit = time_limit;
  if (const auto diagnosis = simt::run(kernel, launch))
    return concat({simt::name(diagnosis->fault), ": ", diagnosis->message});
  for (const OperandRow& row : kOperands)
    if (row.output) fetch(problem_[row.operand], *memory_[memory_operand(row)]);
  return workspace_.left_by(c);
}

// What the kernel wrote for one row, of all outputs that belong to a row. What a group of rows shares with
// row `bad` belongs to that row alone.
std::vector<std::byte> bytes_of_row(const oracle::Problem& problem, std::int64_t row, std::int64_t bad) {
  std::vector<std::byte> bytes;
  for (const OperandRow& each : kOperands) {
    const oracle::Matrix& output = problem[each.operand];
    if (!each.output || output.empty() || is_single(each, problem.spec)) continue;
    const std::int64_t shared = output.shares_rows() ? output.layout().n : 1;
    if (row != bad && row / shared == bad / shared) continue;
    const bool matrix = is_matrix(each, problem.spec);
    const std::int64_t columns = matrix ? row_elements(each, problem.spec) : 1;
    const int size = size_of(output.dtype());
    if (each.extent == Extent::blocks) {
      for (std::int64_t k = 0; k < problem.spec.columns / block_columns(problem.spec); ++k) {
        const std::byte* const scale = output.data() + scale_place(problem.spec, problem.rows, row, k) * size;
        bytes.insert(bytes.end(), scale, scale + size);
      }
      continue;
    }
    const std::size_t before = bytes.size();
    bytes.resize(before + static_cast<std::size_t>(columns * size));
    copy_columns(bytes.data() + before, 1, matrix ? problem.row(each.operand, row) : output.row(row),
                 matrix ? problem.step() : 1, columns, size);
  }
  return bytes;
}

std::vector<std::vector<std::byte>> bytes_of(const oracle::Problem& problem, std::int64_t bad) {
  std::vector<std::vector<std::byte>> rows;
  for (std::int64_t row = 0; row < problem.rows; ++row) rows.push_back(bytes_of_row(problem, row, bad));
  return rows;
}

// What it wrote of sums over all rows.
std::vector<std::byte> bytes_of_sums(const oracle::Problem& problem) {
  std::vector<std::byte> bytes;
  for (const Operand operand : {Operand::dweight, Operand::dbias}) {
    const oracle::Matrix& sums = problem[operand];
    bytes.insert(bytes.end(), sums.data(), sums.data() + sums.bytes());
  }
  return bytes;
}

bool spoils(const KernelCase& c) {
  return (c.inputs == InputKind::nan_row || c.inputs == InputKind::inf_row) && c.rows > 0;
}

// With all rows finite.
Result<oracle::Problem> finite_problem(const KernelCase& c) {
  oracle::RowLayouts layouts;
  for (const OperandRow& row : kOperands)
    if (has_rows(row)) layouts[row.operand] = c.layout_of(row.operand);
  auto problem = oracle::make_problem(c.spec, c.rows, layouts, 0, c.plane);
  if (!problem) return problem;
  oracle::fill(*problem, c.seed);
  fill_rows(c, *problem, Operand::x, c.seed);
  fill_rows(c, *problem, Operand::residual, c.seed + 1'000'000);
  if (c.inputs == InputKind::extreme_affine) make_extreme(c, *problem);
  oracle::fill_statistics(*problem);
  return problem;
}

}  // namespace

Result<oracle::Problem> make_problem(const KernelCase& c) {
  auto problem = finite_problem(c);
  if (problem && spoils(c)) spoil(c, *problem);
  return problem;
}

std::optional<std::string> run_once(const KernelCase& c, oracle::Problem& problem,
                                    const simt::HostKernel& kernel, std::uint64_t schedule_seed) {
  Workspace workspace(workspace_bytes(c.plan, c.spec, c.device));
  return Launcher(c, problem, workspace).run(kernel, schedule_seed, std::chrono::seconds(60));
}

Result<std::vector<Source>> sources(std::span<const KernelCase> cases,
                                    const std::string& template_directory) {
  std::vector<Source> all;
  for (const KernelCase& c : cases) {
    auto source = generate(c.spec, c.plan, c.device.arch, template_directory);
    if (!source) return source.error();
    all.push_back(*std::move(source));
  }
  return all;
}

Result<std::string> version_of(const simt::HostCompiler& compiler) {
  const auto printed = simt::run_program({compiler.path(), "--version"});
  if (!printed) return printed.error();
  return printed->output;
}

Result<std::vector<simt::HostKernel>> compile_batch(std::span<const KernelCase> cases) {
  const auto compiler = simt::HostCompiler::find();
  if (!compiler) return compiler.error();
  const auto all = sources(cases);
  if (!all) return all.error();
  std::map<std::string_view, std::size_t> place;  // of a text among those that differ
  std::vector<Source> different;
  for (const Source& source : *all)
    if (place.emplace(source.text, different.size()).second) different.push_back(source);
  const auto kernels = compiler->compile(different);
  if (!kernels) return kernels.error();
  std::vector<simt::HostKernel> of_cases;
  for (const Source& source : *all) of_cases.push_back((*kernels)[place.at(source.text)]);
  return of_cases;
}

std::optional<std::string> run_case(const KernelCase& c, const simt::HostKernel& kernel,
                                    std::uint64_t schedule_seed, std::chrono::milliseconds time_limit) {
  auto made = finite_problem(c);
  if (!made) return made.error().message;
  oracle::Problem& problem = *made;
  Workspace workspace(workspace_bytes(c.plan, c.spec, c.device));
  Launcher launcher(c, problem, workspace);

  std::optional<std::vector<std::vector<std::byte>>> clean;  // outputs while all rows are finite
  if (spoils(c)) {
    if (auto wrong = launcher.run(kernel, schedule_seed, time_limit)) return wrong;
    clean = bytes_of(problem, bad_row(c));
    spoil(c, problem);
  }
  std::optional<std::vector<std::vector<std::byte>>> before;
  const std::int64_t bad = c.rows > 0 ? bad_row(c) : 0;
  std::vector<std::byte> sums_before;  // may change with a row that is spoiled
  for (int run = 0; run < c.runs; ++run) {
    const auto in_run = [&](const std::string& message) {
      return c.runs == 1 ? message : concat({message, " (run ", shortest(run + 1), ")"});
    };
    // Another order in every run: neither the bits of a result nor a used workspace depend on it.
    const std::uint64_t schedule = schedule_seed + static_cast<std::uint64_t>(run);
    if (const auto wrong = launcher.run(kernel, schedule, time_limit)) return in_run(*wrong);
    if (const auto wrong = first_wrong(problem)) return in_run(*wrong);
    auto bytes = bytes_of(problem, bad);
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const auto i = static_cast<std::size_t>(row);
      if (clean && row != bad_row(c) && bytes[i] != (*clean)[i])
        return in_run(concat({"row ", shortest(row), " has other bits since row ", shortest(bad_row(c)),
                              " is no longer finite"}));
      if (before && bytes[i] != (*before)[i])
        return in_run(concat({"row ", shortest(row), " has other bits than in the run before"}));
    }
    auto sums = bytes_of_sums(problem);
    if (before && sums != sums_before)
      return in_run("the sums over rows have other bits than in the run before");
    before = std::move(bytes);
    sums_before = std::move(sums);
  }
  return {};
}

std::optional<std::string> run_in_turn(std::span<const KernelCase> cases,
                                       std::span<const simt::HostKernel> kernels,
                                       std::uint64_t schedule_seed) {
  std::size_t bytes = 0;
  for (const KernelCase& c : cases) bytes = std::max(bytes, workspace_bytes(c.plan, c.spec, c.device));
  Workspace workspace(bytes);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    auto problem = make_problem(cases[i]);
    if (!problem) return problem.error().message;
    auto wrong =
        Launcher(cases[i], *problem, workspace).run(kernels[i], schedule_seed + i, std::chrono::seconds(60));
    if (!wrong) wrong = first_wrong(*problem);
    if (wrong) return concat({"launch ", shortest(i + 1), ", ", to_text(cases[i]), ": ", *wrong});
  }
  return {};
}

}  // namespace normjit::testing
