# SPDX-License-Identifier: Apache-2.0
# Everything that comes from the distribution. scripts/packages holds the matching package names.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
# A check of GPUs does without what it cannot find, and says so.
set(lockstep_required REQUIRED)
if(LOCKSTEP_GPU_CHECK)
  set(lockstep_required QUIET)
  set(LOCKSTEP_WITH_GLOO OFF)
  set(LOCKSTEP_WITH_TESTS OFF)
  set(LOCKSTEP_WITH_BENCH OFF)
  find_package(GTest QUIET)
endif()
find_package(tomlplusplus ${lockstep_required})
find_package(CLI11 ${lockstep_required})
find_package(nlohmann_json ${lockstep_required})
find_package(pugixml ${lockstep_required})
if(tomlplusplus_FOUND AND CLI11_FOUND AND nlohmann_json_FOUND AND pugixml_FOUND)
  set(LOCKSTEP_WITH_HARNESS ON)
endif()

# LibTorch's own package file pulls in far more than a user of the shared libraries needs, and
# differs between distributions; the three libraries and two include folders are all there is.
set(LOCKSTEP_TORCH_DIR "$ENV{LOCKSTEP_TORCH_DIR}" CACHE PATH
  "Folder with LibTorch's include and lib folders; empty: the distribution's")
find_path(LOCKSTEP_TORCH_INCLUDE_DIR torch/csrc/autograd/function.h
  HINTS ${LOCKSTEP_TORCH_DIR} PATH_SUFFIXES include REQUIRED)
set(CMAKE_CXX_STANDARD ${LOCKSTEP_CXX_STANDARD})
if(NOT CMAKE_CXX_STANDARD)
  set(CMAKE_CXX_STANDARD 17)
  if(EXISTS ${LOCKSTEP_TORCH_INCLUDE_DIR}/torch/headeronly/version.h)
    set(CMAKE_CXX_STANDARD 20) # LibTorch 2.14
  endif()
endif()
find_path(LOCKSTEP_TORCH_API_DIR torch/torch.h
  PATHS ${LOCKSTEP_TORCH_INCLUDE_DIR}/torch/csrc/api/include REQUIRED)
find_library(LOCKSTEP_TORCH_LIBRARY torch HINTS ${LOCKSTEP_TORCH_DIR} PATH_SUFFIXES lib REQUIRED)
find_library(LOCKSTEP_TORCH_CPU_LIBRARY torch_cpu HINTS ${LOCKSTEP_TORCH_DIR} PATH_SUFFIXES lib REQUIRED)
find_library(LOCKSTEP_C10_LIBRARY c10 HINTS ${LOCKSTEP_TORCH_DIR} PATH_SUFFIXES lib REQUIRED)
add_library(lockstep_torch INTERFACE)
# As system includes: LibTorch's headers do not pass our warnings.
target_include_directories(lockstep_torch SYSTEM INTERFACE
  ${LOCKSTEP_TORCH_INCLUDE_DIR} ${LOCKSTEP_TORCH_API_DIR})
target_link_libraries(lockstep_torch INTERFACE
  ${LOCKSTEP_TORCH_LIBRARY} ${LOCKSTEP_TORCH_CPU_LIBRARY} ${LOCKSTEP_C10_LIBRARY} Threads::Threads)

# PyTorch's own reducer, for the subject "torch"; optional.
find_file(LOCKSTEP_TORCH_REDUCER_HEADER torch/csrc/distributed/c10d/reducer.hpp
  PATHS ${LOCKSTEP_TORCH_INCLUDE_DIR})
if(LOCKSTEP_TORCH_REDUCER_HEADER)
  set(LOCKSTEP_WITH_TORCH_REDUCER ON)
  # Where LibTorch logs with it, and tells of everything that a reducer is asked to do.
  find_library(LOCKSTEP_GLOG_LIBRARY glog)
endif()

find_path(LOCKSTEP_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(LOCKSTEP_XXHASH_LIBRARY xxhash REQUIRED)
add_library(lockstep_xxhash INTERFACE)
target_include_directories(lockstep_xxhash SYSTEM INTERFACE ${LOCKSTEP_XXHASH_INCLUDE_DIR})
target_link_libraries(lockstep_xxhash INTERFACE ${LOCKSTEP_XXHASH_LIBRARY})

if(LOCKSTEP_WITH_GLOO)
  find_path(LOCKSTEP_GLOO_INCLUDE_DIR gloo/context.h REQUIRED)
  find_library(LOCKSTEP_GLOO_LIBRARY gloo REQUIRED)
  add_library(lockstep_gloo INTERFACE)
  target_include_directories(lockstep_gloo SYSTEM INTERFACE ${LOCKSTEP_GLOO_INCLUDE_DIR})
  target_link_libraries(lockstep_gloo INTERFACE ${LOCKSTEP_GLOO_LIBRARY})
endif()

find_package(rapidcheck ${lockstep_required})
if(LOCKSTEP_WITH_TESTS)
  find_package(GTest REQUIRED)
endif()
