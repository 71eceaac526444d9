// SPDX-License-Identifier: Apache-2.0
// Threads for ranks.
#include "tests/support/run_ranks.h"

#include <fmt/format.h>

#include <memory>
#include <thread>

#include "core/error.h"

namespace lockstep::test {

std::vector<std::exception_ptr> run_rank_threads(
    std::int64_t world_size, const std::function<void(LocalCommunicator&)>& body) {
  const auto group = std::make_shared<LocalGroup>(world_size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        LocalCommunicator communicator(group, rank);
        body(communicator);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
      group->leave(rank);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

namespace {

struct Described {
  std::string message;
  bool is_consequence = false;
};

Described describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost& caught) {
    return {caught.what(), true};
  } catch (const std::exception& caught) {
    return {caught.what(), false};
  } catch (...) {
    return {"unknown exception", false};
  }
}

[[noreturn]] void throw_nested(std::size_t rank, const std::exception_ptr& error,
                               const std::string& message) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    std::throw_with_nested(
        RankError(static_cast<std::int64_t>(rank), fmt::format("rank {}: {}", rank, message)));
  }
}

}  // namespace

void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  std::optional<std::size_t> first;
  std::string first_message;
  bool first_is_consequence = false;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank] == nullptr) {
      continue;
    }
    const Described described = describe(errors[rank]);
    if (!first.has_value() || (first_is_consequence && !described.is_consequence)) {
      first = rank;
      first_message = described.message;
      first_is_consequence = described.is_consequence;
    }
  }
  if (first.has_value()) {
    throw_nested(*first, errors[*first], first_message);
  }
}

}  // namespace lockstep::test
