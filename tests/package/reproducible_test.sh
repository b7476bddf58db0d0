#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# reproducible_test.sh: what is installed, with its debug information, and the wheel are the same, byte for byte, when they are
# built twice: at other times, in folders of other names, in another time zone and language. CUDA_HOME: the headers and NVRTC.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C "$source" archive --format=tar --prefix=normjit/ --output="$work/source.tar" HEAD
SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
python3 -m venv "$work/venv"

# build FOLDER: to FOLDER/prefix and FOLDER/wheel. Nothing of it comes from another folder; what both have is compiled once.
build() {
  local folder=$1 wheel=$1/normjit/build-wheel
  mkdir -p "$wheel"
  tar -C "$folder" -xf "$work/source.tar"
  export CXX=${CXX:-c++} CXXFLAGS="-g1 -ffile-prefix-map=$folder=." CCACHE_DIR=$folder/ccache CCACHE_NOHASHDIR=1
  if command -v ccache > /dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
  cmake -S "$folder/normjit" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DNORMJIT_BUILD_TOOL=OFF -DNORMJIT_BUILD_TESTS=OFF
  cmake --build "$folder/build" --parallel "$(nproc)" --target normjit_installable
  cmake --install "$folder/build" --prefix "$folder/prefix"
  cp -p "$folder/build/generic.njp" "$wheel"
  "$work/venv/bin/pip" wheel -q --no-deps -w "$folder/wheel" "$folder/normjit"
}
(build "$work/first")
(export TZ=Pacific/Auckland LC_ALL=C; umask 077; build "$work/another_folder")

diff -r "$work/first/prefix" "$work/another_folder/prefix"
diff -r "$work/first/wheel" "$work/another_folder/wheel"
test -n "$(find "$work/first/prefix" -name libnormjit.so)"
(cd "$work/first" && find prefix wheel -name '*normjit*.so*' -o -name '*.a' -o -name '*.whl' -o -name normjit-compile | sort | xargs sha256sum)
echo "The library and the wheel are the same twice."
