#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install_test.sh BUILD CC CXX: what cmake --install makes works after it was moved: found by CMake and by pkg-config, in
# C and in C++, shared and static; and it knows nothing of where it was built.
set -eu
build=$1 cc=$2 cxx=$3
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install_test.sh: $*" >&2; exit 1; }

step() { echo "-- $*"; }

step "Installing and moving"
cmake --install "$build" --prefix "$work/first" --strip > "$work/log" || { cat "$work/log"; exit 1; }
moved="$work/moved elsewhere"
mv "$work/first" "$moved"
export CMAKE_PREFIX_PATH="$moved" LC_ALL=C
lib=$(dirname "$(find "$moved" -name 'libnormjit.so')")
compile="$moved/libexec/normjit/normjit-compile"
operator="$lib/libnormjit_onnxruntime.so"

step "What is installed has no path of this build"
for path in "$build" "$source" "$work/first"; do
  if grep -rIlF "$path/" "$moved"; then fail "$path is in these files"; fi
  for binary in "$lib/libnormjit.so" "$moved/bin/normjit" "$compile" "$operator"; do
    if strings "$binary" | grep -F "$path/"; then fail "$path is in $binary"; fi
  done
done
if readelf -d "$lib/libnormjit.so" "$moved/bin/normjit" "$compile" "$operator" | grep -E 'RPATH|RUNPATH'; then fail "a run path is left"; fi

step "The tool runs"
env -i HOME="$work" "$moved/bin/normjit" render layernorm/cols=64/f32 --arch sm_90 | grep -q __global__ || fail "no kernel is rendered"
test -s "$moved/share/normjit/manifests/reference.json" || fail "there are no manifests"
for file in LICENSE NOTICE; do
  cmp "$source/$file" "$moved/share/doc/normjit/$file" || fail "$file is not installed"
done

step "A prebuild finds its program, and starts it unless others can write it"
status=0
"$compile" < /dev/null 2> "$work/log" || status=$?
test $status = 2 || fail "normjit-compile ended with $status by itself"
if "$moved/bin/normjit" doctor > /dev/null 2>&1; then  # there is an NVRTC
  prebuild() {
    "$moved/bin/normjit" prebuild layernorm/cols=96/f32/wb --arch sm_90 -j 6 --cache-dir "$work/$1" --log info 2>&1
  }
  if prebuild first | grep normjit-compile; then fail "a prebuild does not find or use normjit-compile"; fi
  chmod g+w "$compile"
  prebuild second | grep -q 'normjit-compile does not help.*can be written by other users' ||
    fail "a prebuild starts what others can write"
  chmod g-w "$compile"
fi

step "CMake, C++"
cmake -S "$here/consumer" -B "$work/consumer" -DCMAKE_CXX_COMPILER="$cxx" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/consumer" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/consumer/with_normjit"
"$work/consumer/with_normjit_static"

step "CMake, C"
cmake -S "$here/c_consumer" -B "$work/c_consumer" -DCMAKE_C_COMPILER="$cc" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/c_consumer" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/c_consumer/with_normjit"

command -v pkg-config > /dev/null || { echo "Skipped: no pkg-config"; exit 77; }
step "pkg-config"
ln -s "$moved" "$work/plain"  # not every pkg-config gets on with blanks
export PKG_CONFIG_PATH="$work/plain/${lib#"$moved"/}/pkgconfig"
test "$(pkg-config --modversion normjit)" = "$(pkg-config --modversion normjit_static)" || fail "the versions differ"
grep -q '^License: Apache-2.0$' "$PKG_CONFIG_PATH/normjit.pc" || fail "normjit.pc names no licence"
eval "\"$cc\" -std=c11 -pedantic -Wall -Werror '$here/c_consumer/main.c' -o '$work/c' $(pkg-config --cflags --libs normjit)"
eval "\"$cxx\" -std=c++20 '$here/consumer/main.cc' -o '$work/cc' $(pkg-config --cflags --libs normjit)"
eval "\"$cxx\" -std=c++20 '$here/consumer/main.cc' -o '$work/static' $(pkg-config --cflags --libs normjit_static)"
LD_LIBRARY_PATH="$lib" "$work/c"
LD_LIBRARY_PATH="$lib" "$work/cc"
"$work/static"
