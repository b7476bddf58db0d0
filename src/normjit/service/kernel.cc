// SPDX-License-Identifier: Apache-2.0
// Checking and launching a prepared kernel.
#include <algorithm>
#include <vector>

#include "normjit/base/text.h"
#include "normjit/service/prepared.h"

namespace normjit {
RuntimeSpec::RuntimeSpec(const NormSpec& spec) noexcept
    : epsilon(spec.epsilon),
      scale(spec.scale),
      columns(static_cast<std::int32_t>(spec.columns)),
      activation(static_cast<std::int32_t>(spec.activation)),
      residual_at(static_cast<std::int32_t>(spec.residual)),
      gate_at(static_cast<std::int32_t>(spec.gate)),
      gate_function(static_cast<std::int32_t>(spec.gate_function)),
      quantization(static_cast<std::int32_t>(spec.quantization)),
      block(block_columns(spec)),
      scale_format(static_cast<std::int32_t>(spec.scale_format)),
      scale_layout(static_cast<std::int32_t>(spec.scale_layout)),
      input(spec.input),
      output(spec.output),
      weight(spec.weight),
      residual(spec.residual_type),
      modulation(spec.modulation_type),
      also(also_type(spec)),
      gradient(spec.gradient_type),
      is_rms(spec.norm == Norm::rms),
      weight_offset(spec.weight_offset),
      plain_modulation(spec.plain_modulation),
      rounds_sum(normjit::rounds_sum(spec)),
      rounds_norm(normjit::rounds_norm(spec)),
      rounds_y(normjit::rounds_y(spec)),
      inverse_scale(spec.inverse_scale),
      channels_first(spec.channels_first) {}

Status Kernel::launch(const Tensors& t, Stream stream, const LaunchOptions& options) const noexcept {
  if (!prepared_) return {Code::EmptyKernel};
  const Prepared& p = *prepared_;
  PackedTensors packed;
  p.rules.pack(t, packed);
  if (!packed.status) return packed.status;
  if (t.rows == 0) return launch_no_rows(p.spec, t, *p.driver, stream);
  if (const Status status = p.launcher.admit(packed); !status) return status;
  if (p.launcher.is_fallback) {
    if (!options.miss_in_capture && p.driver->is_capturing(stream)) return {Code::NotReady};
    p.meter->fallback_launch();
  }
  return p.launcher.launch(packed, stream, options);
}

namespace {

// The memory of an operand in a launch: groups of n rows. Groups are `outer` bytes apart, rows in them
// `inner`. With channels first a sample counts as a row.
struct Part {
  Operand operand, in_place;  // of OperandRow; the operand itself where it may not be in place
  bool output = false;
  const void* begin = nullptr;
  std::int64_t groups = 1, n = 1, outer = 0, inner = 0;
  std::int64_t row_bytes = 0;

  // From the first to the last.
  std::int64_t bytes() const { return (groups - 1) * outer + (n - 1) * inner + row_bytes; }
  std::int64_t row_of(std::int64_t group, std::int64_t i) const { return group * outer + i * inner; }
  bool is_in_place_of(const Part& other) const {
    return in_place == other.operand && begin == other.begin && n == other.n && outer == other.outer &&
           inner == other.inner && row_bytes == other.row_bytes;
  }
};

// Of an operand that the spec has, in a launch of at least one row.
Part part_of(const OperandRow& row, const Kernel::Prepared& p, const Tensors& t) {
  const int log2_size = p.rules.log2_size(row.operand);
  const bool matrix = is_matrix(row, p.spec);
  Part part{.operand = row.operand,
            .in_place = p.rules.may_be_in_place(row) ? row.in_place : row.operand,
            .output = row.output,
            .begin = pointer_of(t, row),
            .row_bytes = elements_of(row, p.spec, matrix ? 1 : t.rows) << log2_size};
  const auto address = matrix ? p.rules.address_of(t, row) : std::nullopt;
  if (address && p.spec.channels_first) {
    part.groups = t.rows / t.plane;
    part.outer = address->outer << log2_size;
    part.row_bytes *= t.plane;
  } else if (address) {
    part.groups = t.rows / address->n;
    part.n = address->n;
    part.outer = address->outer << log2_size;
    part.inner = address->inner << log2_size;
  }
  return part;
}

// Whether one of the rows first .. last, `stride` bytes apart and `row_bytes` long, shares a byte with
// `bytes` bytes that begin at `at`. All is measured from where row 0 begins.
bool meets(std::int64_t first, std::int64_t last, std::int64_t stride, std::int64_t row_bytes,
           std::int64_t at, std::int64_t bytes) {
  if (stride == 0) return at < row_bytes && at + bytes > 0;
  const auto floor = [&](std::int64_t offset) { return offset / stride - (offset % stride < 0); };
  // The rows r that meet it have r * stride + row_bytes > at and r * stride < at + bytes.
  return std::max(first, floor(at - row_bytes) + 1) <= std::min(last, floor(at + bytes - 1));
}

// Whether two operands share a byte; what lies between their rows does not count.
bool overlap(const Part& a, const Part& b) {
  const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(b.begin) -
                                            reinterpret_cast<std::uintptr_t>(a.begin));
  if (at >= a.bytes() || -at >= b.bytes()) return false;
  // Rows of one stride are as far apart as their numbers: row 0 of b stands for all.
  if (a.n == 1 && b.n == 1 && a.outer == b.outer)
    return meets(1 - b.groups, a.groups - 1, a.outer, a.row_bytes, at, b.row_bytes);
  for (std::int64_t group = 0; group < b.groups; ++group)
    for (std::int64_t i = 0; i < b.n; ++i)
      for (std::int64_t j = 0; j < a.n; ++j)  // the rows of a with this number in their groups
        if (meets(0, a.groups - 1, a.outer, a.row_bytes, at + b.row_of(group, i) - a.row_of(0, j),
                  b.row_bytes))
          return true;
  return false;
}

}  // namespace

Result<void> Kernel::check(const Tensors& t) const {
  const auto failed = [](Code code, std::string_view what) { return Error{code, std::string(what)}; };
  if (!prepared_) return failed(Code::EmptyKernel, Status{Code::EmptyKernel}.message());
  const Prepared& p = *prepared_;
  PackedTensors packed;
  p.rules.pack(t, packed);
  if (packed.status && t.rows == 0)
    return has_sums(p.spec, t) ? Result<void>()
                               : failed(Code::NullPointer, Status{Code::NullPointer}.message());
  const Status status = packed.status ? p.launcher.admit(packed) : packed.status;
  if (!status)
    return failed(status.code, concat({status.message(), " The kernel is ", to_text(p.plan),
                                       "; its workspace has ", shortest(p.workspace_bytes), " bytes."}));

  std::vector<Part> parts;
  for (std::size_t i = 0; i < kOperandCount; ++i) {
    if (has(p.rules.operands(), i)) parts.push_back(part_of(kOperands[i], p, t));
  }
  if (p.workspace_bytes != 0) {
    parts.push_back({.operand = Operand::workspace,
                     .in_place = Operand::workspace,
                     .output = true,
                     .begin = t.workspace,
                     .row_bytes = static_cast<std::int64_t>(p.workspace_bytes)});
  }
  for (const Part& part : parts) {
    const auto found = p.driver->allocation(part.begin);
    if (!found) return found.error();
    if (!found->device_accessible || (found->device >= 0 && found->device != p.device))
      return failed(Code::WrongDevice,
                    concat({name(part.operand),
                            found->device >= 0 ? " is memory of device " + shortest(found->device)
                                               : std::string(" is not memory that a GPU can reach"),
                            "; this kernel runs on device ", shortest(p.device)}));
    if (found->bytes_left < static_cast<std::uint64_t>(part.bytes()))
      return failed(Code::OutOfBounds,
                    concat({name(part.operand), " needs ", shortest(part.bytes()),
                            " bytes and its allocation ends after ", shortest(found->bytes_left)}));
  }
  for (const Part& output : parts) {
    if (!output.output) continue;
    for (const Part& other : parts) {
      if (other.operand != output.operand && !output.is_in_place_of(other) && overlap(output, other))
        return failed(Code::Overlap, concat({name(output.operand), " overlaps ", name(other.operand), ". ",
                                             Status{Code::Overlap}.message()}));
    }
  }
  return {};
}

Result<std::size_t> Kernel::node_offset(Operand operand) const {
  if (!prepared_) return Error{Code::EmptyKernel, Status{Code::EmptyKernel}.message()};
  const Prepared& p = *prepared_;
  const auto number = static_cast<std::size_t>(operand);
  const bool there = operand == Operand::workspace
                         ? p.workspace_bytes != 0
                         : number < kOperandCount && has(p.rules.operands(), number);
  if (!there)
    return Error{Code::UnexpectedPointer,
                 concat({"this kernel, of ", to_text(p.spec), ", has no ", name(operand)})};
  return OperandBlock::offset_of(operand, kernel_layout(p.plan, p.spec));
}

namespace {
// What an empty Kernel answers.
constexpr NormSpec kNoSpec{};
constexpr Plan kNoPlan{};
constexpr DeviceProfile kNoDevice{};
}  // namespace

std::size_t Kernel::workspace_bytes() const noexcept { return prepared_ ? prepared_->workspace_bytes : 0; }
const NormSpec& Kernel::spec() const noexcept { return prepared_ ? prepared_->spec : kNoSpec; }
const Plan& Kernel::plan() const noexcept { return prepared_ ? prepared_->plan : kNoPlan; }
const DeviceProfile& Kernel::device() const noexcept { return prepared_ ? prepared_->profile : kNoDevice; }

bool Kernel::is_fallback() const noexcept { return prepared_ && prepared_->launcher.is_fallback; }
Origin Kernel::origin() const noexcept { return prepared_ ? prepared_->origin : Origin::compiled; }

std::string_view name(Operand operand) noexcept {
  if (operand == Operand::workspace) return "workspace";
  return static_cast<std::size_t>(operand) < kOperandCount ? row_of(operand).name : "?";
}

std::string_view name(Origin origin) noexcept {
  constexpr std::string_view kNames[] = {"memory", "disk", "layer", "compiled", "embedded", "remote"};
  return kNames[static_cast<int>(origin)];
}

}  // namespace normjit
