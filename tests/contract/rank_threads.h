// SPDX-License-Identifier: Apache-2.0
// Ranks of a real transport as threads of one process, and what they throw.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::test {

/// Runs `body(rank)` on `world_size` threads. Result: [world_size], what each threw, or null.
inline std::vector<std::exception_ptr> run_threads(std::int64_t world_size,
                                                   const std::function<void(std::int64_t)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&errors, &body, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

/// Rethrows the first error, if any, on the calling thread.
inline void rethrow_any(const std::vector<std::exception_ptr>& errors) {
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

constexpr char kNoError[] = "no error";

/// What `action` throws as `E`, or a text that says what happened instead, maybe kNoError.
template <typename E, typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return kNoError;
}

}  // namespace lockstep::test
