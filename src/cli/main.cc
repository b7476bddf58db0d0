// SPDX-License-Identifier: Apache-2.0
// The normjit command-line tool.
#include <string>

#include "cli/command_line.h"

int main(int argc, char** argv) {
  normjit::cli::CommandLine line(
      "normjit generates, compiles, caches and launches LayerNorm and RMSNorm kernels for NVIDIA GPUs.",
      "normjit");
  add_prebuild(line);
  add_list(line);
  add_why(line);
  add_verify(line);
  add_prune(line);
  add_export(line);
  add_import(line);
  add_sign(line);
  add_show(line);
  add_render(line);
  add_run(line);
  add_bench(line);
  add_tune(line);
  add_remote(line);
  add_doctor(line);
  line.footer(std::string("A SPEC is ") + normjit::cli::kSpecHelp +
              R"(

Examples:
  normjit doctor
  normjit prebuild --manifest cache/manifests/reference.json --arch sm_80,sm_90
  normjit run layernorm/cols=4096/bf16/wb --rows 8192 --check

Each command has its own --help. Environment:
  NORMJIT_CACHE_DIR        the directory of the cache, else (also if empty) $XDG_CACHE_HOME/normjit, ~/.cache/normjit
  NORMJIT_LAYERS           more caches, only read: directories or packs, separated by colons
  NORMJIT_CACHE_MAX_BYTES  what the directory may take, as 256M, which it is unless set; 0 is any size
  NORMJIT_CACHE_SHARED     1 believes entries that others than you and root can write
  NORMJIT_TOOLCHAIN        exact takes only entries made by the version of NVRTC that is here
  NORMJIT_REMOTE           the URL of a store that machines share: redis://, http://, https:// or s3://
  NORMJIT_REMOTE_PACK      the URL of a pack that is fetched and used as a layer: http://, https:// or s3://
  NORMJIT_TRUST            public keys or their files, between spaces or commas: whose kernels and packs are believed
  NORMJIT_SIGN_KEY         the file of the secret key to sign with
  NORMJIT_NVRTC_PATH       a libnvrtc to compile with
  NORMJIT_TEMPLATE_DIR     make every kernel of the templates in this directory, not of the built-in ones
  NORMJIT_HOST_CXX         a C++ compiler for run --device host
  NORMJIT_LOG              debug, info, warn or error
docs/environment.md has those that only the library reads.

)" + normjit::cli::kExitCodes);
  return line.run(argc, argv);
}
