// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"
#include "verify/text_file.h"

namespace normjit::cli {
namespace {

struct RenderCommand : CommonOptions {
  std::string spec;
  std::string arch;  // empty: this machine's GPU, else sm_90
  std::int64_t rows = 0;
  int alignment = 8;
  std::string plan;    // empty: the planner's choice
  std::string output;  // empty: standard output
};

Alignment alignment_of_option(int elements) {
  for (const Alignment alignment : kAlignments)
    if (static_cast<int>(alignment) == elements) return alignment;
  throw Exception(
      {Code::BadArgument, "--align is " + std::to_string(elements) + "; it may be 1, 2, 4 or 8 elements"});
}

int render(const RenderCommand& options) {
  if (options.rows < 0) return fail(kUsage, "--rows must be 0 or more");
  const NormSpec spec = spec_from(options.spec).value();
  const Alignment alignment = alignment_of_option(options.alignment);
  Service service(service_options(options));
  const DeviceProfile device = one_device(service, options.arch);
  const RowsRegime regime = options.rows == 0 ? RowsRegime::many : regime_of(spec, options.rows, device);
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

}  // namespace

void add_render(CommandLine& line) {
  auto [command, options] = line.add("render", "Print the CUDA C++ source of a kernel", render);
  command->add_option("SPEC", options.spec, kSpecHelp)->required();
  command->add_option("--arch", options.arch, "One architecture, or native; else the GPU here, else sm_90");
  command->add_option("--rows", options.rows, "The kernel for so many rows; 0 is many")
      ->capture_default_str();
  command
      ->add_option("--align", options.alignment,
                   "Elements an access that pointers and strides allow: 1, 2, 4, 8")
      ->capture_default_str();
  command->add_option("--plan", options.plan,
                      "This plan, as show prints it, instead of the planner's choice");
  command->add_option("-o,--output", options.output, "Write to a file");
  command->footer(
      std::string("Example:\n  normjit render layernorm/cols=64/f32/wb/gelu --arch sm_90 -o kernel.cu\n\n") +
      kExitCodes);
}

}  // namespace normjit::cli
