# SPDX-License-Identifier: Apache-2.0
# How the project's libraries and tests are declared.

# Two precompiled headers, because reading LibTorch takes longer than compiling what uses it. They
# leave out <torch/torch.h>, which costs every file another 2 s; include the module you need.
set(lockstep_torch_headers <torch/autograd.h> <torch/nn/module.h> <torch/optim.h> <torch/types.h>)
set(lockstep_std_headers <algorithm> <functional> <map> <memory> <optional> <string> <vector>)
# Written where it is missing only: a newer one would have everything built again.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/lockstep_pch.cc CONTENT "")

# lockstep_pch(TARGET LIBRARIES ... HEADERS ...): a precompiled header for others to reuse.
function(lockstep_pch target)
  cmake_parse_arguments(arg "" "" "LIBRARIES;HEADERS;OPTIONS" ${ARGN})
  add_library(${target} OBJECT ${CMAKE_BINARY_DIR}/lockstep_pch.cc)
  target_link_libraries(${target} PRIVATE
    lockstep_torch fmt::fmt lockstep_warnings lockstep_sanitize ${arg_LIBRARIES})
  target_compile_options(${target} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${target} PRIVATE
    ${lockstep_torch_headers} <fmt/format.h> ${lockstep_std_headers} ${arg_HEADERS})
endfunction()

lockstep_pch(lockstep_pch)
if(LOCKSTEP_WITH_TESTS)
  # A test is run for seconds and compiled for longer: optimising it fully does not pay.
  set(lockstep_test_options $<$<CONFIG:Release>:-O1>)
  lockstep_pch(lockstep_test_pch
    LIBRARIES GTest::gtest GTest::gmock rapidcheck
    HEADERS <gmock/gmock.h> <gtest/gtest.h> <rapidcheck.h>
    OPTIONS ${lockstep_test_options})
endif()

# lockstep_compile(TARGET [PCH]): include root, warnings, sanitizers, the shared precompiled header.
function(lockstep_compile target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE
    $<BUILD_INTERFACE:lockstep_warnings> $<BUILD_INTERFACE:lockstep_sanitize>)
  set(pch ${ARGN} lockstep_pch)
  list(GET pch 0 pch)
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# lockstep_test(NAME name LABEL label SOURCES ... [LINK ...]): one test binary for a folder.
function(lockstep_test)
  cmake_parse_arguments(arg "" "NAME;LABEL" "SOURCES;LINK;DEFINITIONS" ${ARGN})
  add_executable(${arg_NAME} ${arg_SOURCES})
  lockstep_compile(${arg_NAME} lockstep_test_pch)
  target_compile_options(${arg_NAME} PRIVATE ${lockstep_test_options})
  target_compile_definitions(${arg_NAME} PRIVATE ${arg_DEFINITIONS})
  target_link_libraries(${arg_NAME} PRIVATE lockstep_test_support ${arg_LINK})
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
  # One seed for all runs; RapidCheck prints it with a failure. Draw another with RC_PARAMS.
  set_tests_properties(${arg_NAME} PROPERTIES LABELS ${arg_LABEL}
    ENVIRONMENT "RC_PARAMS=seed=20261129;TSAN_OPTIONS=history_size=7 suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
endfunction()
