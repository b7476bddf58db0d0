// SPDX-License-Identifier: Apache-2.0
#include "normjit/service.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "normjit/base/text.h"
#include "normjit/plan/footprint.h"
#include "normjit/service/impl.h"
#include "normjit/spec/operands.h"

namespace normjit {
namespace {

// What the operands of launches like these allow together. BadStride; Misaligned.
Result<Alignment> alignment_of(const NormSpec& spec, const PrepareOptions& options) {
  const auto refuse = [&](Code code) {
    return Error{code, concat({to_text(spec), ": ", Status{code}.message()})};
  };
  if (options.plane < 0 || (options.plane > 0 && !spec.channels_first)) return refuse(Code::BadPlane);
  Alignment alignment = Alignment::eight;
  for (const OperandRow& row : kOperands) {
    if (!row.present(spec) || is_scalar(row)) continue;
    const DType dtype = row.dtype(spec);
    std::int64_t stride = 0;
    if (spec.channels_first) {
      if (is_matrix(row, spec))
        stride = options.plane & 15;  // what counts of it, in bytes too
      else if ((options.pointer_alignment & (size_of(dtype) - 1)) == 0)
        continue;  // single elements
    } else if (is_matrix(row, spec)) {
      stride = row.operand == Operand::x   ? options.x_row_stride
               : row.operand == Operand::y ? options.y_row_stride
                                           : kContiguous;
      const std::int64_t elements = row_elements(row, spec);
      if (stride == kContiguous) stride = elements;
      // The end of a second row has an offset that fits in 64 bits, in bytes.
      const std::int64_t most = std::numeric_limits<std::int64_t>::max() / size_of(dtype) - elements;
      if (stride < (row.output ? elements : 0) || stride > most) return refuse(Code::BadStride);
    }
    const auto bytes = static_cast<std::uint64_t>(stride * size_of(dtype) | options.pointer_alignment);
    alignment = std::min(alignment, normjit::alignment_of(bytes, dtype));
  }
  if (alignment == Alignment{0}) return refuse(Code::Misaligned);
  return alignment;
}

}  // namespace

Service::Service(Options options, Seams seams)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(seams))) {}
Service::~Service() = default;
Service::Service(Service&&) noexcept = default;
Service& Service::operator=(Service&&) noexcept = default;

Result<Kernel> Service::prepare(const NormSpec& spec, const PrepareOptions& options) {
  if (auto valid = validate(spec); !valid) return valid.error();
  if (options.pointer_alignment < 1 || !std::has_single_bit(static_cast<unsigned>(options.pointer_alignment)))
    return Error{Code::BadArgument, concat({"pointer_alignment is ", shortest(options.pointer_alignment),
                                            "; it must be a power of two, in bytes"})};
  if (options.rows_hint < 0)
    return Error{Code::BadArgument, concat({"rows_hint is ", shortest(options.rows_hint), "; 0 means many"})};

  const auto found = impl_->device(options.device);
  if (!found) return found.error();
  const auto& [device, profile] = *found;
  const NormSpec canonical = normjit::canonical(spec);
  if (options.plan) {
    const auto made = impl_->kernel_of(canonical, *options.plan, device, profile, {});
    if (!made) return made.error();
    return made->kernel;
  }
  const auto alignment = alignment_of(canonical, options);
  if (!alignment) return alignment.error();
  // With a workspace: the kernel says how much it needs.
  const bool invariant = options.batch_invariant || impl_->options.batch_invariant;
  const Use use{.spec = canonical,
                .device = device,
                .regime = options.rows_hint == 0
                              ? RowsRegime::many
                              : Use::regime_for(canonical, options.rows_hint, profile, invariant),
                .alignment = *alignment,
                .workspace = true,
                .grouped_rows = needs_grouped_rows(canonical, options.grouped_rows),
                .batch_invariant = invariant};
  return impl_->kernel_for(use, profile);
}

Result<void> Service::norm(const NormSpec& spec, const Tensors& tensors, Stream stream,
                           const LaunchOptions& options) {
  PackedTensors packed;
  if (const Launcher* ready = impl_->ready_kernel(spec, tensors, packed)) {
    impl_->meter->hit();
    const Status status = ready->launch(packed, stream, options);
    if (status) return {};
    return impl_->after_launch(status, canonical(spec), tensors, stream, options);
  }
  if (auto valid = validate(spec); !valid) return valid;
  if (tensors.rows == 0)
    return impl_->after_launch(launch_no_rows(canonical(spec), tensors, *impl_->driver, stream),
                               canonical(spec), tensors, stream, options);
  return impl_->first_launch(canonical(spec), tensors, stream, options);
}

void Service::freeze(Frozen when_missing) { impl_->frozen = when_missing; }
void Service::wait_for_compiles() { impl_->wait_for_compiles(); }

Counters Service::counters() const {
  Counters counters = impl_->meter->read();
  counters.damaged_entries = impl_->binaries.cache().damaged_entries();
  return counters;
}

Result<std::size_t> Service::workspace_bytes(const NormSpec& spec) {
  if (auto valid = validate(spec); !valid) return valid.error();
  return impl_->workspace_bytes(canonical(spec));
}

Result<void> Service::remember(const TunedPlan& tuned) {
  if (auto valid = validate(tuned.spec); !valid) return valid;
  TunedPlan kept = tuned;
  kept.spec = canonical(tuned.spec);
  return impl_->tuned.store(kept);
}

Result<std::optional<Plan>> Service::tuned(const NormSpec& spec, const DeviceProfile& device,
                                           RowsRegime regime, Alignment alignment) const {
  if (auto valid = validate(spec); !valid) return valid.error();
  return impl_->tuned.find(canonical(spec), device, regime, alignment);
}

Result<DeviceProfile> Service::device(int ordinal) {
  const auto found = impl_->device(ordinal);
  if (!found) return found.error();
  return found->profile;
}

Result<RenderedKernel> Service::render(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                       Alignment alignment) const {
  if (auto valid = validate(spec); !valid) return valid.error();
  const bool invariant = impl_->options.batch_invariant;
  const NormSpec whole = canonical(spec);
  if (invariant)
    regime = RowsRegime::many;
  else if (const auto kept = impl_->tuned.find(whole, device, regime, alignment))
    return render(whole, device, *kept);
  auto rendered = render(whole, device, choose(whole, device, regime, alignment, invariant));
  if (rendered.code() != Code::IllegalPlan) return rendered;
  // As prepare does on a device that has no room for blocks that share rows.
  return render(whole, device, fallback(whole, device, regime, alignment, invariant));
}

Result<RenderedKernel> Service::render(const NormSpec& spec, const DeviceProfile& device,
                                       const Plan& plan) const {
  if (auto valid = validate(spec); !valid) return valid.error();
  if (auto legal = check(plan, canonical(spec), device); !legal) return legal.error();
  auto kernel = impl_->binaries.identify(canonical(spec), plan, device.arch);
  if (!kernel) return kernel.error();
  return RenderedKernel{plan, kernel->draft.source().text, std::move(kernel->draft.kernel)};
}

}  // namespace normjit
