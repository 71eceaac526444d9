# SPDX-License-Identifier: Apache-2.0
# How the project's libraries and tests are declared.

# Files that need <torch/torch.h> (12 s to read) share one precompiled header.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/lockstep_pch.cc "")
add_library(lockstep_pch OBJECT ${CMAKE_CURRENT_BINARY_DIR}/lockstep_pch.cc)
target_link_libraries(lockstep_pch PRIVATE lockstep_torch fmt::fmt lockstep_warnings lockstep_sanitize)
target_precompile_headers(lockstep_pch PRIVATE
  <torch/torch.h> <fmt/format.h> <algorithm> <functional> <map> <memory> <optional> <string> <vector>)

# lockstep_compile(TARGET): include root, warnings, sanitizers, the shared precompiled header.
function(lockstep_compile target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE
    $<BUILD_INTERFACE:lockstep_warnings> $<BUILD_INTERFACE:lockstep_sanitize>)
  target_precompile_headers(${target} REUSE_FROM lockstep_pch)
endfunction()

# lockstep_test(NAME name LABEL label SOURCES ... [LINK ...]): one test binary for a folder.
function(lockstep_test)
  cmake_parse_arguments(arg "" "NAME;LABEL" "SOURCES;LINK;DEFINITIONS" ${ARGN})
  add_executable(${arg_NAME} ${arg_SOURCES})
  lockstep_compile(${arg_NAME})
  target_compile_definitions(${arg_NAME} PRIVATE ${arg_DEFINITIONS})
  target_link_libraries(${arg_NAME} PRIVATE lockstep_test_support ${arg_LINK})
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
  # One seed for all runs; RapidCheck prints it with a failure. Draw another with RC_PARAMS.
  set_tests_properties(${arg_NAME} PROPERTIES LABELS ${arg_LABEL}
    ENVIRONMENT RC_PARAMS=seed=20261129)
endfunction()
