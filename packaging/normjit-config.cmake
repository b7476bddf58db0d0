# normjit::normjit is the shared library, normjit::normjit_static the archive: each if it is installed.
include(${CMAKE_CURRENT_LIST_DIR}/normjit-targets.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/normjit_static-targets.cmake OPTIONAL RESULT_VARIABLE normjit_static)
if(normjit_static)
  include(CMakeFindDependencyMacro)
  find_dependency(Threads)
endif()
unset(normjit_static)
