# SPDX-License-Identifier: Apache-2.0
# Cross-building for 64-bit ARM with Debian's g++-aarch64-linux-gnu, against the libraries of a folder:
#
#   cmake -S . -B build-aarch64 -DCMAKE_TOOLCHAIN_FILE=scripts/aarch64.cmake -DNORMJIT_SYSROOT=FOLDER
#
# scripts/aarch64.sh fills such a folder, builds and tests. What was built is run by qemu-aarch64 where it is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES NORMJIT_SYSROOT)
if(NOT IS_DIRECTORY "${NORMJIT_SYSROOT}/usr/lib/aarch64-linux-gnu")
  message(FATAL_ERROR "NORMJIT_SYSROOT must name a folder that has usr/lib/aarch64-linux-gnu; scripts/aarch64.sh makes one")
endif()
set(CMAKE_SYSROOT ${NORMJIT_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(NORMJIT_QEMU NAMES qemu-aarch64-static qemu-aarch64)
mark_as_advanced(NORMJIT_QEMU)
if(NORMJIT_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${NORMJIT_QEMU} -L ${NORMJIT_SYSROOT})
endif()
