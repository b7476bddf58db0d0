#include "normjit/service/kernels_for.h"

#include <set>
#include <string>

#include "normjit/base/text.h"

namespace normjit {

std::vector<KernelReport> kernels_for(std::span<const NormSpec> specs, std::span<const DeviceProfile> devices,
                                      std::span<const TunedPlan> tuned) {
  std::vector<KernelReport> all;
  std::set<std::string> seen;
  const auto add = [&](const NormSpec& spec, Arch arch, const Plan& plan) {
    if (!seen.insert(concat({to_text(spec), " ", arch.name(), " ", to_text(plan)})).second) return;
    KernelReport report;
    report.spec = spec;
    report.arch = arch;
    report.plan = plan;
    all.push_back(std::move(report));
  };
  for (const NormSpec& given : specs) {
    const NormSpec spec = canonical(given);
    for (const DeviceProfile& device : devices) {
      for (const Plan& plan : plans(spec, device)) add(spec, device.arch, plan);
      for (const TunedPlan& kept : tuned)
        if (kept.spec == spec && kept.device.arch == device.arch) add(spec, device.arch, kept.plan);
    }
  }
  return all;
}

}  // namespace normjit
