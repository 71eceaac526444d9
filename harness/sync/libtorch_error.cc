// SPDX-License-Identifier: Apache-2.0
// Which piece of a message stands for which kind.
#include "harness/sync/libtorch_error.h"

#include <array>
#include <utility>

namespace lockstep::harness {

std::string libtorch_error_kind(std::string_view message) {
  // The first piece found decides: K4 contains the piece of K1, too.
  static constexpr std::array<std::pair<std::string_view, const char*>, 7> kPieces = {{
      {"training graph has changed in this iteration", "static_graph_changed"},
      {"finished reduction in the prior iteration", "reduction_unfinished"},
      {"mark a variable ready only once", "ready_twice"},
      {"gradient which is undefined, but still allreduced", "undefined_gradient"},
      {"is not the expected DDP bucket view", "not_a_bucket_view"},
      {"expects same model across all ranks", "model_mismatch"},
      {"of the same param in process 0", "model_mismatch"},
  }};
  for (const auto& [piece, kind] : kPieces) {
    if (message.find(piece) != std::string_view::npos) {
      return kind;
    }
  }
  return "libtorch";
}

}  // namespace lockstep::harness
