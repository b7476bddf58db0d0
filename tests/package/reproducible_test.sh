#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# reproducible_test.sh CUDA_INCLUDE NVRTC_INCLUDE: what is installed, with its debug information, and the wheel are the same,
# byte for byte, when they are built twice: at other times, in folders of other names, in another time zone and language.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct)
export SOURCE_DATE_EPOCH CCACHE_DISABLE=1
python3 -m venv "$work/venv"

# build FOLDER: to FOLDER/prefix and FOLDER/wheel.
build() {
  local folder=$1
  mkdir -p "$folder"
  git -C "$source" archive --format=tar --prefix=normjit/ HEAD | tar -C "$folder" -xf -
  cmake -S "$folder/normjit" -B "$folder/build" -DNORMJIT_CUDA_INCLUDE="$cuda" -DNORMJIT_NVRTC_INCLUDE="$nvrtc" \
    -DNORMJIT_BUILD_TOOL=OFF -DNORMJIT_BUILD_TESTS=OFF \
    "-DCMAKE_CXX_FLAGS=-g1 -ffile-prefix-map=$folder=."
  cmake --build "$folder/build" --parallel "$(nproc)" --target normjit_installable
  cmake --install "$folder/build" --prefix "$folder/prefix"
  "$work/venv/bin/pip" wheel -q --no-deps -w "$folder/wheel" "$folder/normjit"
}
cuda=$1 nvrtc=$2
build "$work/first"
(export TZ=Pacific/Auckland LC_ALL=C; umask 077; build "$work/another_folder")

diff -r "$work/first/prefix" "$work/another_folder/prefix"
diff -r "$work/first/wheel" "$work/another_folder/wheel"
test -s "$work/first/prefix/lib/libnormjit.so" || test -n "$(find "$work/first/prefix" -name libnormjit.so)"
(cd "$work/first" && find prefix wheel -name '*normjit*.so*' -o -name '*.a' -o -name '*.whl' -o -name normjit-compile | sort | xargs sha256sum)
echo "The library and the wheel are the same twice."
