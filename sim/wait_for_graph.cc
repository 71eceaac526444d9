// SPDX-License-Identifier: Apache-2.0
// The wait-for graph as text.
#include "sim/wait_for_graph.h"

#include <fmt/ranges.h>

#include <cstddef>
#include <exception>

#include "core/check.h"

namespace lockstep::sim {
namespace {

std::string error_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

// "collective 3, all_reduce (...)"
std::string waiting_text(const RankResult& rank) {
  LOCKSTEP_CHECK(rank.waiting_in.has_value(), "a waiting rank waits in something");
  return fmt::format("collective {}, {}", rank.waiting_in->seq, to_string(*rank.waiting_in));
}

std::string end_text(const RankResult& rank) {
  switch (rank.end) {
    case RankEnd::kFinished:
      return "finished";
    case RankEnd::kFailed:
      return fmt::format("failed: {}", error_text(rank.error));
    case RankEnd::kWaiting:
      return fmt::format("waits in {}, for rank{} {}", waiting_text(rank),
                         rank.waiting_for.size() == 1 ? "" : "s",
                         fmt::join(rank.waiting_for, ", "));
    case RankEnd::kDied:
      return "died";
  }
  throw InvariantError("unknown rank end");
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace

std::string wait_for_text(const WorldResult& result) {
  std::string text;
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    text += fmt::format("rank {} {}\n", rank, end_text(result.ranks[rank]));
  }
  return text;
}

std::string wait_for_dot(const WorldResult& result) {
  std::string text = "digraph wait_for {\n";
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const RankResult& from = result.ranks[rank];
    const bool waits = from.end == RankEnd::kWaiting;
    const std::string label =
        fmt::format("rank {}\n{}", rank, waits ? "waits in " + waiting_text(from) : end_text(from));
    text += fmt::format("  r{} [shape={}, label={}];\n", rank, waits ? "box" : "ellipse",
                        quoted(label));
    for (const std::int64_t to : from.waiting_for) {
      text += fmt::format("  r{} -> r{};\n", rank, to);
    }
  }
  return text + "}\n";
}

}  // namespace lockstep::sim
