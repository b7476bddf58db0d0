#include "cli/commands.h"
#include "cli/exit_code.h"
#include "verify/text_file.h"

namespace normjit::cli {
namespace {

Alignment alignment_of_option(int elements) {
  for (const Alignment alignment : kAlignments)
    if (static_cast<int>(alignment) == elements) return alignment;
  throw Exception(
      {Code::BadArgument, "--align is " + std::to_string(elements) + "; it may be 1, 2, 4 or 8 elements"});
}

}  // namespace

int render(const RenderCommand& options) {
  if (options.rows < 0) return fail(kUsage, "--rows must be 0 or more");
  const NormSpec spec = spec_from(options.spec).value();
  const Alignment alignment = alignment_of_option(options.alignment);
  Service service(service_options(options));
  const DeviceProfile device = one_device(service, options.arch);
  const RowsRegime regime = options.rows == 0 ? RowsRegime::many : regime_of(options.rows, device);
  const RenderedKernel kernel =
      (options.plan.empty() ? service.render(spec, device, regime, alignment)
                            : service.render(spec, device, plan_from(options.plan).value()))
          .value();
  if (options.output.empty()) {
    print(kernel.text);
  } else {
    oracle::write_text(options.output, kernel.text).value();
  }
  return kDone;
}

}  // namespace normjit::cli
