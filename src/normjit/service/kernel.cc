// Checking and launching a prepared kernel.
#include <algorithm>

#include "normjit/base/text.h"
#include "normjit/service/prepared.h"

namespace normjit {
namespace {

constexpr int kCudaOutOfMemory = 2;
constexpr std::uint64_t kWorkspaceAlignment = 16;

std::uint64_t address(const void* pointer) noexcept { return reinterpret_cast<std::uintptr_t>(pointer); }

// Whether the last element of the last row has an offset that fits in 64 bits, in bytes.
bool offsets_fit(std::int64_t rows, std::int64_t stride, std::int64_t columns, DType dtype) noexcept {
  std::int64_t elements = 0, bytes = 0;
  return !__builtin_mul_overflow(rows - 1, stride, &elements) &&
         !__builtin_add_overflow(elements, columns, &elements) &&
         !__builtin_mul_overflow(elements, std::int64_t{size_of(dtype)}, &bytes);
}

// A tensor that must be there exactly when the spec has it.
Code presence(const void* pointer, bool wanted) noexcept {
  if (wanted && !pointer) return Code::NullPointer;
  if (!wanted && pointer) return Code::UnexpectedPointer;
  return Code::Ok;
}

}  // namespace

LaunchShape launch_shape(const Plan& plan, const LayerNormSpec& spec) noexcept {
  return {.threads = plan.threads,
          .dynamic_shared_bytes = shared_bytes(plan, spec),
          .cluster_blocks = plan.exchange == Exchange::cluster ? plan.slices : 1,
          .cooperative = plan.exchange == Exchange::grid};
}

Strides strides_of(const LayerNormSpec& spec, const Tensors& t) noexcept {
  if (t.rows == 1) return {spec.columns, spec.columns};
  return {t.x_row_stride == kContiguous ? spec.columns : t.x_row_stride,
          t.y_row_stride == kContiguous ? spec.columns : t.y_row_stride};
}

RuntimeSpec::RuntimeSpec(const LayerNormSpec& spec) noexcept
    : epsilon(spec.epsilon),
      scale(spec.scale),
      columns(static_cast<std::int32_t>(spec.columns)),
      activation(static_cast<std::int32_t>(spec.activation)),
      input(spec.input),
      output(spec.output),
      weight(spec.weight) {}

// In the order of NJ_KERNEL and NJ_GENERIC_KERNEL.
ArgumentList::ArgumentList(const Tensors& t, Strides of_launch, const RuntimeSpec& spec) noexcept
    : strides(of_launch),
      pointers{const_cast<void**>(&t.x),
               const_cast<void**>(&t.weight),
               const_cast<void**>(&t.bias),
               const_cast<void**>(&t.y),
               const_cast<void**>(&t.mean),
               const_cast<void**>(&t.rstd),
               const_cast<std::int64_t*>(&t.rows),
               &strides.x,
               &strides.y,
               const_cast<void**>(&t.workspace),
               const_cast<RuntimeSpec*>(&spec)} {}

Status check_tensors(const LayerNormSpec& spec, const Tensors& t) noexcept {
  if (t.rows < 0) return {Code::BadRows};
  if (t.rows == 0) return {};
  for (const Code code :
       {presence(t.x, true), presence(t.y, true), presence(t.weight, spec.affine != Affine::none),
        presence(t.bias, spec.affine == Affine::weight_bias), presence(t.mean, spec.statistics),
        presence(t.rstd, spec.statistics)})
    if (code != Code::Ok) return {code};

  const Strides strides = strides_of(spec, t);
  if (strides.x < 0 || strides.y < spec.columns ||
      !offsets_fit(t.rows, strides.x, spec.columns, spec.input) ||
      !offsets_fit(t.rows, strides.y, spec.columns, spec.output))
    return {Code::BadStride};

  // In place, a row must be written where it was read.
  if (t.x == t.y && (strides.x != strides.y || size_of(spec.input) != size_of(spec.output)))
    return {Code::BadStride};

  const auto statistics_size = static_cast<std::uint64_t>(size_of(compute_type(spec)));
  if ((address(t.mean) | address(t.rstd)) % statistics_size != 0) return {Code::Misaligned};
  if (address(t.workspace) % kWorkspaceAlignment != 0) return {Code::Misaligned};
  return {};
}

Alignment alignment_of(const LayerNormSpec& spec, const Tensors& t) noexcept {
  const Strides strides = strides_of(spec, t);
  const auto allowed = [](const void* pointer, std::int64_t stride, DType dtype) {
    return alignment_of(address(pointer) | static_cast<std::uint64_t>(stride * size_of(dtype)), dtype);
  };
  return std::min({allowed(t.x, t.rows == 1 ? 0 : strides.x, spec.input),
                   allowed(t.y, t.rows == 1 ? 0 : strides.y, spec.output), allowed(t.weight, 0, spec.weight),
                   allowed(t.bias, 0, spec.weight)});
}

namespace {

// Ok, or why this very kernel cannot run on these tensors.
Status admit(const Kernel::Prepared& p, const Tensors& t) noexcept {
  if (const Status status = check_tensors(p.spec, t); !status || t.rows == 0) return status;
  if (p.generation != fork_generation()) return {Code::ForkedAfterCudaInit};
  if (static_cast<int>(alignment_of(p.spec, t)) < (p.plan.shifted ? 1 : p.plan.vector))
    return {Code::Misaligned};
  if (p.workspace_bytes != 0 && !t.workspace) return {Code::WorkspaceRequired};
  return {};
}

}  // namespace

Status Kernel::launch(const Tensors& t, Stream stream, const LaunchOptions& options) const noexcept {
  if (!prepared_) return {Code::EmptyKernel};
  const Prepared& p = *prepared_;
  if (const Status status = admit(p, t); !status || t.rows == 0) return status;

  ArgumentList arguments(t, strides_of(p.spec, t), p.runtime_spec);
  const auto blocks = static_cast<std::uint32_t>(grid_blocks(p.plan, p.spec, p.profile, t.rows));
  LaunchShape shape = p.shape;
  shape.overlap_previous = options.overlap_previous && p.profile.arch.number >= 90;
  const int result = p.loaded->launch(blocks, shape, stream, arguments.pointers);
  if (result == 0) return {};
  if (p.plan.exchange != Exchange::none && refuses_to_run_together(result))
    return {Code::NotResident, result};
  return {result == kCudaOutOfMemory ? Code::OutOfMemory : Code::DriverError, result};
}

Result<void> Kernel::check(const Tensors& t) const {
  const auto failed = [](Code code, std::string_view what) { return Error{code, std::string(what)}; };
  if (!prepared_) return failed(Code::EmptyKernel, Status{Code::EmptyKernel}.message());
  const Prepared& p = *prepared_;
  if (const Status status = admit(p, t); !status)
    return failed(status.code, concat({status.message(), " The kernel is ", to_text(p.plan),
                                       "; its workspace has ", shortest(p.workspace_bytes), " bytes."}));
  if (t.rows == 0) return {};

  const Strides strides = strides_of(p.spec, t);
  const auto size = [](DType dtype) { return static_cast<std::uint64_t>(size_of(dtype)); };
  const auto bytes = [&](std::int64_t stride, DType dtype) {
    return static_cast<std::uint64_t>((t.rows - 1) * stride + p.spec.columns) * size(dtype);
  };
  const std::uint64_t columns = static_cast<std::uint64_t>(p.spec.columns);
  const std::uint64_t statistics = static_cast<std::uint64_t>(t.rows) * size(compute_type(p.spec));
  const struct {
    const char* name;
    const void* pointer;
    std::uint64_t bytes;
  } needed[] = {{"x", t.x, bytes(strides.x, p.spec.input)},
                {"y", t.y, bytes(strides.y, p.spec.output)},
                {"weight", t.weight, columns * size(p.spec.weight)},
                {"bias", t.bias, columns * size(p.spec.weight)},
                {"mean", t.mean, statistics},
                {"rstd", t.rstd, statistics},
                {"workspace", p.workspace_bytes ? t.workspace : nullptr, p.workspace_bytes}};
  for (const auto& tensor : needed) {
    if (!tensor.pointer) continue;
    const auto found = p.driver->allocation(tensor.pointer);
    if (!found) return found.error();
    if (!found->device_accessible || (found->device >= 0 && found->device != p.device))
      return failed(Code::WrongDevice,
                    concat({tensor.name,
                            found->device >= 0 ? " is memory of device " + shortest(found->device)
                                               : std::string(" is not memory that a GPU can reach"),
                            "; this kernel runs on device ", shortest(p.device)}));
    if (found->bytes_left < tensor.bytes)
      return failed(Code::OutOfBounds,
                    concat({tensor.name, " needs ", shortest(tensor.bytes),
                            " bytes and its allocation ends after ", shortest(found->bytes_left)}));
  }
  return {};
}

namespace {
// What an empty Kernel answers.
constexpr LayerNormSpec kNoSpec{};
constexpr Plan kNoPlan{};
constexpr DeviceProfile kNoDevice{};
}  // namespace

std::size_t Kernel::workspace_bytes() const noexcept { return prepared_ ? prepared_->workspace_bytes : 0; }
const LayerNormSpec& Kernel::spec() const noexcept { return prepared_ ? prepared_->spec : kNoSpec; }
const Plan& Kernel::plan() const noexcept { return prepared_ ? prepared_->plan : kNoPlan; }
const DeviceProfile& Kernel::device() const noexcept { return prepared_ ? prepared_->profile : kNoDevice; }

Origin Kernel::origin() const noexcept { return prepared_ ? prepared_->origin : Origin::compiled; }

std::string_view name(Origin origin) noexcept {
  constexpr std::string_view kNames[] = {"memory", "disk", "layer", "compiled", "embedded"};
  return kNames[static_cast<int>(origin)];
}

}  // namespace normjit
