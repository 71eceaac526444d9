// SPDX-License-Identifier: Apache-2.0
// How a rank that will never get on is taken down.
#pragma once

#include <exception>

namespace lockstep::sim {

/// Thrown out of a seam (wait, launch, yield, sleep) on a rank that has been given up, so that its
/// stack unwinds. Derived from std::exception because LibTorch's engine carries only those out of a
/// backward in good order; not from lockstep::Error, so that no script takes it for one.
class Cancelled final : public std::exception {
 public:
  const char* what() const noexcept override { return "the simulated rank was cancelled"; }
};

}  // namespace lockstep::sim
