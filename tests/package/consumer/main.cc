// SPDX-License-Identifier: Apache-2.0
// The C++ API as an installed package has it: renders a kernel, for which neither GPU nor compiler is needed.
#include <normjit/normjit.h>

#include <cstdio>

int main() {
  const normjit::Service service(normjit::Options{});
  const auto device = normjit::DeviceProfile::of({90}).value();
  const auto kernel =
      service.render({.columns = 64}, device, normjit::RowsRegime::many, normjit::Alignment::eight);
  if (!kernel) {
    std::fprintf(stderr, "%s\n", kernel.error().message.c_str());
    return 1;
  }
  std::printf("%zu bytes of CUDA\n", kernel->text.size());
  return kernel->text.find("__global__") == std::string::npos;
}
