#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dlopen_test.sh PROGRAM LIBRARY: the C program in an empty folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" "$2" "$folder"
