// SPDX-License-Identifier: Apache-2.0
// Runs a function once per rank, each on a thread of its own, and brings results and errors home.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tests/support/local_communicator.h"

namespace lockstep::test {

/// What failed on which rank; the original error is nested inside.
class RankError : public std::runtime_error {
 public:
  RankError(std::int64_t rank, const std::string& message)
      : std::runtime_error(message), rank_(rank) {}
  std::int64_t rank() const { return rank_; }

 private:
  std::int64_t rank_;
};

/// Runs `body` for every rank of one LocalGroup and waits for all. A rank that ends, well or badly,
/// is waited for no longer: its peers get PeerLost. Returns each rank's error, null where none.
std::vector<std::exception_ptr> run_rank_threads(
    std::int64_t world_size, const std::function<void(LocalCommunicator&)>& body);

/// Throws RankError with the first error nested, if there is any; one that is not a mere
/// consequence of another rank's end (PeerLost) comes first.
void rethrow_first(const std::vector<std::exception_ptr>& errors);

template <typename R>
struct RankOutcome {
  std::optional<R> value;
  std::exception_ptr error;

  /// The error, if there is one of type `E`.
  template <typename E>
  std::optional<E> error_as() const {
    if (error != nullptr) {
      try {
        std::rethrow_exception(error);
      } catch (const E& caught) {
        return caught;
      } catch (...) {
      }
    }
    return std::nullopt;
  }
};

template <typename F>
using RankResultOf =
    std::conditional_t<std::is_void_v<std::invoke_result_t<F, LocalCommunicator&>>, std::monostate,
                       std::invoke_result_t<F, LocalCommunicator&>>;

/// One outcome per rank, errors included.
template <typename F>
std::vector<RankOutcome<RankResultOf<F>>> try_run_ranks(std::int64_t world_size, F&& body) {
  std::vector<RankOutcome<RankResultOf<F>>> outcomes(static_cast<std::size_t>(world_size));
  const auto errors = run_rank_threads(world_size, [&](LocalCommunicator& communicator) {
    auto& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    if constexpr (std::is_void_v<std::invoke_result_t<F, LocalCommunicator&>>) {
      body(communicator);
      outcome.value.emplace();
    } else {
      outcome.value.emplace(body(communicator));
    }
  });
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    outcomes[rank].error = errors[rank];
  }
  return outcomes;
}

/// One result per rank. Errors: RankError, with the rank's own error nested.
template <typename F>
std::vector<RankResultOf<F>> run_ranks(std::int64_t world_size, F&& body) {
  auto outcomes = try_run_ranks(world_size, std::forward<F>(body));
  std::vector<std::exception_ptr> errors;
  std::vector<RankResultOf<F>> results;
  for (auto& outcome : outcomes) {
    errors.push_back(outcome.error);
  }
  rethrow_first(errors);
  for (auto& outcome : outcomes) {
    results.push_back(std::move(*outcome.value));
  }
  return results;
}

}  // namespace lockstep::test
