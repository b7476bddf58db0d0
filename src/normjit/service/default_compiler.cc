#include "normjit/service/default_compiler.h"

#include "normjit/compiler/nvrtc_compiler.h"

namespace normjit {

std::shared_ptr<Compiler> make_default_compiler(const Options& options, std::shared_ptr<Driver> driver) {
  return make_nvrtc_compiler({.explicit_path = options.compiler_path,
                              .cuda_home = options.cuda_home,
                              .driver_cuda_version = [driver = std::move(driver)] {
                                const auto version = driver->version();
                                return version ? *version : 0;
                              }});
}

}  // namespace normjit
