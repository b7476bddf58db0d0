#include "normjit/service.h"

#include <algorithm>
#include <bit>

#include "normjit/base/text.h"
#include "normjit/service/impl.h"

namespace normjit {

Service::Service(Options options, Seams seams)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(seams))) {}
Service::~Service() = default;
Service::Service(Service&&) noexcept = default;
Service& Service::operator=(Service&&) noexcept = default;

Result<Kernel> Service::prepare(const NormSpec& spec, const PrepareOptions& options) {
  if (auto valid = validate(spec); !valid) return valid.error();
  const int alignment = options.pointer_alignment;
  if (alignment < 1 || !std::has_single_bit(static_cast<unsigned>(alignment)))
    return Error{Code::BadArgument, concat({"pointer_alignment is ", shortest(alignment),
                                            "; it must be a power of two, in bytes"})};
  if (options.rows_hint < 0)
    return Error{Code::BadArgument, concat({"rows_hint is ", shortest(options.rows_hint), "; 0 means many"})};

  const auto device = impl_->device_or_current(options.device);
  if (!device) return device.error();
  const auto profile = impl_->driver->profile(*device);
  if (!profile) return profile.error();
  const std::int64_t rows = options.rows_hint == 0 ? profile->sm_count : options.rows_hint;

  // The kernel for stand-in tensors of just this alignment.
  auto* pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(alignment));
  auto* output = reinterpret_cast<void*>(3 * static_cast<std::uintptr_t>(alignment));  // not in place
  Tensors tensors{.x = pointer, .y = output, .rows = 2};
  if (spec.affine != Affine::none) tensors.weight = pointer;
  if (spec.affine == Affine::weight_bias) tensors.bias = pointer;
  if (spec.statistics) tensors.mean = tensors.rstd = reinterpret_cast<void*>(std::uintptr_t{16});
  tensors.x_row_stride = options.x_row_stride;
  tensors.y_row_stride = options.y_row_stride;
  tensors.workspace = reinterpret_cast<void*>(std::uintptr_t{16});  // the kernel says how much it needs
  if (options.plan) return impl_->pinned_kernel(canonical(spec), *options.plan, *device, *profile);
  return impl_->kernel_for(canonical(spec), *device, *profile, rows, tensors);
}

Result<void> Service::layer_norm(const NormSpec& spec, const Tensors& tensors, Stream stream,
                                 const LaunchOptions& options) {
  Strides strides;
  if (const Launcher* ready = impl_->ready_kernel(spec, tensors, strides)) {
    impl_->meter->hit();
    const Status status = ready->launch(tensors, strides, stream, options);
    if (status) return {};
    return impl_->after_launch(status, canonical(spec), tensors, stream, options);
  }
  if (auto valid = validate(spec); !valid) return valid;
  if (tensors.rows == 0) return {};
  return impl_->first_launch(canonical(spec), tensors, stream, options);
}

void Service::freeze(Frozen when_missing) { impl_->frozen = when_missing; }
void Service::wait_for_compiles() { impl_->wait_for_compiles(); }

Counters Service::counters() const {
  Counters counters = impl_->meter->read();
  const Cache::Counts cache = impl_->binaries.cache().counts();
  counters.damaged_entries = cache.damaged_entries;
  counters.lock_waits = cache.lock_waits;
  counters.lock_wait_ms = std::chrono::duration<double, std::milli>(cache.lock_wait).count();
  return counters;
}

Result<std::size_t> Service::workspace_bytes(const NormSpec& spec) {
  if (auto valid = validate(spec); !valid) return valid.error();
  const auto profile = device();
  if (!profile) return profile.error();
  std::size_t most = 0;
  for (const Plan& plan : plans(spec, *profile))
    most = std::max(most, normjit::workspace_bytes(plan, spec, *profile));
  for (const RowsRegime regime : kRowsRegimes)
    for (const Alignment alignment : kAlignments)
      if (const auto plan = impl_->tuned.find(canonical(spec), *profile, regime, alignment))
        most = std::max(most, normjit::workspace_bytes(*plan, spec, *profile));
  return most;
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
  const auto device = impl_->device_or_current(ordinal);
  if (!device) return device.error();
  return impl_->driver->profile(*device);
}

Result<RenderedKernel> Service::render(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                       Alignment alignment) const {
  const auto kept = tuned(spec, device, regime, alignment);
  if (!kept) return kept.error();
  return render(spec, device, kept->value_or(choose(canonical(spec), device, regime, alignment)));
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
