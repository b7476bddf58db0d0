#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# parent_test.sh OPTION...: normjit as a part of another project, by add_subdirectory and by FetchContent: leaves that project as it
# was, and is built and linked. The options are cmake's.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for by in add_subdirectory FetchContent; do
  echo "-- $by"
  cmake -S "$here/parent" -B "$work/$by" -DBY=$by -DNORMJIT_SOURCE="$source" -DNORMJIT_EMBED_GENERIC=OFF "$@" \
    > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
echo "-- building"
cmake --build "$work/FetchContent" --parallel "$(nproc)" --target parent > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/FetchContent/parent"
# Nothing of normjit's is installed with its parent.
cmake --install "$work/FetchContent" --prefix "$work/installed" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
if [ -e "$work/installed" ]; then find "$work/installed"; exit 1; fi
