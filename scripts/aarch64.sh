#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-builds the library, the tool and the plug-ins for 64-bit ARM with Debian's g++-aarch64-linux-gnu, in build-aarch64/,
# and tries the tool with qemu-aarch64: it renders a kernel, and runs some on the CPU against the reference.
#
#   scripts/aarch64.sh
#
# The libraries that the build needs lie in .deps/aarch64, where mmdebstrap unpacks them; nothing of aarch64 is installed.
# Exit code 3: something is missing that only you can install.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/setup.sh
. "$here/setup.sh"
sysroot=$root/.deps/aarch64 folder=$root/build-aarch64
case ${1:-} in
  '') ;;
  -h | --help) help "$here/aarch64.sh"; exit ;;
  *) echo "aarch64.sh takes no arguments." >&2; exit 2 ;;
esac

set_up cross
if [[ ! -d $sysroot/usr/lib/aarch64-linux-gnu ]]; then
  step "Fetching the libraries of aarch64 into .deps/"
  rm -rf "$sysroot"
  mkdir -p "$sysroot"
  quietly mmdebstrap --variant=extract --arch=arm64 \
    --include=libc6-dev,libstdc++-12-dev,libcli11-dev,libcurl4-openssl-dev,libhiredis-dev,libsodium23,libspdlog-dev,libxxhash-dev,nlohmann-json3-dev \
    bookworm "$sysroot"
fi

step "Building in build-aarch64/"
unset CXX
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
quietly cmake -S "$root" -B "$folder" -G Ninja "-DCMAKE_TOOLCHAIN_FILE=$here/aarch64.cmake" "-DNORMJIT_SYSROOT=$sysroot" \
  "-DNORMJIT_CUDA_INCLUDE=$cuda_include" "-DNORMJIT_NVRTC_INCLUDE=$nvrtc_include" \
  -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" -DNORMJIT_BUILD_TESTS=OFF -DNORMJIT_EMBED_GENERIC=OFF \
  "${launcher[@]}"
cmake --build "$folder" --parallel "$(nproc)" --target normjit_installable
for binary in "$folder"/{libnormjit.so,normjit,normjit-compile,libnormjit-remote-redis.so,libnormjit-remote-http.so}; do
  readelf -h "$binary" | grep -q AArch64 || { echo "$binary is not of aarch64" >&2; exit 1; }
done

step "Trying the tool with qemu"
export NORMJIT_HOST_CXX=aarch64-linux-gnu-g++
tool() { qemu-aarch64-static -L "$sysroot" "$folder/normjit" "$@"; }
tool --version
tool render layernorm/cols=4096/bf16/wb --arch sm_90 | grep -c __global__
for spec in layernorm/cols=64/f32/wb/gelu layernorm/cols=4096/bf16/wb rmsnorm/cols=1023/f16/add/sum/w; do
  tool run "$spec" --rows 3 --check --device host
done
