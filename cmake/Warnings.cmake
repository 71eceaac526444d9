# SPDX-License-Identifier: Apache-2.0
# The warnings every target of the project is built with, and the sanitizers where asked for.
add_library(lockstep_warnings INTERFACE)
# g++ 14, and g++ 12 with sanitizers, see uninitialised values in the standard library's own headers.
target_compile_options(lockstep_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-maybe-uninitialized
  -Werror)

add_library(lockstep_sanitize INTERFACE)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_sanitize INTERFACE
    -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(lockstep_sanitize INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
endif()
