# SPDX-License-Identifier: Apache-2.0
# NCCL and the CUDA runtime, both optional. Sets LOCKSTEP_WITH_NCCL; makes lockstep_nccl.
set(LOCKSTEP_NCCL "AUTO" CACHE STRING "NCCL transport: ON, OFF, or AUTO (if CUDA and NCCL are found)")
set(LOCKSTEP_CUDA_DIR "$ENV{CUDA_HOME}" CACHE STRING
  "Folders with the include and lib folders of CUDA and NCCL, where they are in no usual place")
set_property(CACHE LOCKSTEP_NCCL PROPERTY STRINGS AUTO ON OFF)
if(NOT LOCKSTEP_NCCL MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LOCKSTEP_NCCL is ${LOCKSTEP_NCCL}; it takes ON, OFF or AUTO")
endif()

set(LOCKSTEP_WITH_NCCL OFF)
if(NOT LOCKSTEP_NCCL STREQUAL "OFF")
  set(lockstep_cuda_hints
    HINTS ${LOCKSTEP_CUDA_DIR} /usr/local/cuda PATH_SUFFIXES include lib64 lib)
  find_path(LOCKSTEP_CUDA_INCLUDE_DIR cuda_runtime_api.h ${lockstep_cuda_hints})
  find_path(LOCKSTEP_NCCL_INCLUDE_DIR nccl.h ${lockstep_cuda_hints})
  # Wheels have the library under its full name only.
  find_library(LOCKSTEP_CUDART_LIBRARY
    NAMES cudart libcudart.so.13 libcudart.so.12 ${lockstep_cuda_hints})
  find_library(LOCKSTEP_NCCL_LIBRARY NAMES nccl libnccl.so.2 ${lockstep_cuda_hints})
  if(LOCKSTEP_CUDA_INCLUDE_DIR AND LOCKSTEP_NCCL_INCLUDE_DIR AND LOCKSTEP_CUDART_LIBRARY
      AND LOCKSTEP_NCCL_LIBRARY)
    set(LOCKSTEP_WITH_NCCL ON)
  elseif(LOCKSTEP_NCCL STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_NCCL is ON, but something is missing: "
      "cuda_runtime_api.h (${LOCKSTEP_CUDA_INCLUDE_DIR}), nccl.h (${LOCKSTEP_NCCL_INCLUDE_DIR}), "
      "libcudart (${LOCKSTEP_CUDART_LIBRARY}), libnccl (${LOCKSTEP_NCCL_LIBRARY}). "
      "LOCKSTEP_CUDA_DIR may name the folders they are in.")
  endif()
endif()
message(STATUS "Lockstep: NCCL transport: ${LOCKSTEP_WITH_NCCL}")

if(LOCKSTEP_WITH_NCCL)
  add_library(lockstep_nccl INTERFACE)
  target_include_directories(lockstep_nccl SYSTEM INTERFACE
    ${LOCKSTEP_NCCL_INCLUDE_DIR} ${LOCKSTEP_CUDA_INCLUDE_DIR})
  target_link_libraries(lockstep_nccl INTERFACE ${LOCKSTEP_NCCL_LIBRARY} ${LOCKSTEP_CUDART_LIBRARY})
  # A LibTorch with CUDA knows which stream a thread is using. Nothing of ours calls torch_cuda, so
  # that a linker would leave it out, and with it all of LibTorch's kernels for GPUs.
  find_library(LOCKSTEP_C10_CUDA_LIBRARY c10_cuda HINTS ${LOCKSTEP_TORCH_DIR} PATH_SUFFIXES lib)
  find_library(LOCKSTEP_TORCH_CUDA_LIBRARY torch_cuda HINTS ${LOCKSTEP_TORCH_DIR} PATH_SUFFIXES lib)
  if(LOCKSTEP_C10_CUDA_LIBRARY AND LOCKSTEP_TORCH_CUDA_LIBRARY)
    target_link_libraries(lockstep_nccl INTERFACE ${LOCKSTEP_C10_CUDA_LIBRARY}
      "-Wl,--no-as-needed,${LOCKSTEP_TORCH_CUDA_LIBRARY},--as-needed")
    target_compile_definitions(lockstep_nccl INTERFACE LOCKSTEP_WITH_C10_CUDA)
  endif()
endif()
