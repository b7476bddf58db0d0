// Checking and launching a prepared kernel.
#include <algorithm>

#include "normjit/base/text.h"
#include "normjit/service/prepared.h"

namespace normjit {
Strides strides_of(const NormSpec& spec, const Tensors& tensors) noexcept {
  return TensorRules(spec).strides(tensors);
}

Status check_tensors(const NormSpec& spec, const Tensors& tensors) noexcept {
  const TensorRules rules(spec);
  return rules.check(tensors, rules.strides(tensors));
}

Alignment alignment_of(const NormSpec& spec, const Tensors& tensors) noexcept {
  const TensorRules rules(spec);
  return rules.alignment(tensors, rules.strides(tensors));
}

RuntimeSpec::RuntimeSpec(const NormSpec& spec) noexcept
    : epsilon(spec.epsilon),
      scale(spec.scale),
      columns(static_cast<std::int32_t>(spec.columns)),
      activation(static_cast<std::int32_t>(spec.activation)),
      input(spec.input),
      output(spec.output),
      weight(spec.weight) {}

Status Kernel::launch(const Tensors& t, Stream stream, const LaunchOptions& options) const noexcept {
  if (!prepared_) return {Code::EmptyKernel};
  const Prepared& p = *prepared_;
  const Strides strides = p.rules.strides(t);
  if (const Status status = p.rules.check(t, strides); !status || t.rows == 0) return status;
  if (const Status status = p.launcher.admit(t, p.rules.alignment(t, strides)); !status) return status;
  if (p.launcher.is_fallback) {
    if (!options.miss_in_capture && p.driver->is_capturing(stream)) return {Code::NotReady};
    p.meter->fallback_launch();
  }
  return p.launcher.launch(t, strides, stream, options);
}

Result<void> Kernel::check(const Tensors& t) const {
  const auto failed = [](Code code, std::string_view what) { return Error{code, std::string(what)}; };
  if (!prepared_) return failed(Code::EmptyKernel, Status{Code::EmptyKernel}.message());
  const Prepared& p = *prepared_;
  const Strides strides = p.rules.strides(t);
  Status status = p.rules.check(t, strides);
  if (status && t.rows == 0) return {};
  if (status) status = p.launcher.admit(t, p.rules.alignment(t, strides));
  if (!status)
    return failed(status.code, concat({status.message(), " The kernel is ", to_text(p.plan),
                                       "; its workspace has ", shortest(p.workspace_bytes), " bytes."}));

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

std::string_view name(Origin origin) noexcept {
  constexpr std::string_view kNames[] = {"memory", "disk", "layer", "compiled", "embedded"};
  return kNames[static_cast<int>(origin)];
}

}  // namespace normjit
