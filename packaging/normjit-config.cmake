# SPDX-License-Identifier: Apache-2.0
# normjit::normjit is the shared library, normjit::normjit_static the archive: each if it is installed.
include(${CMAKE_CURRENT_LIST_DIR}/normjit-targets.cmake OPTIONAL RESULT_VARIABLE normjit_shared)
include(${CMAKE_CURRENT_LIST_DIR}/normjit_static-targets.cmake OPTIONAL RESULT_VARIABLE normjit_static)
if(normjit_static)
  include(CMakeFindDependencyMacro)
  find_dependency(Threads)
endif()
if(NOT normjit_shared AND NOT normjit_static)
  set(normjit_FOUND FALSE)
  set(normjit_NOT_FOUND_MESSAGE "Neither the shared library nor the archive is installed.")
endif()
unset(normjit_shared)
unset(normjit_static)
