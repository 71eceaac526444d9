// SPDX-License-Identifier: Apache-2.0
// What real ranks wrote down (core/training_record.h), read back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/run.h"

namespace lockstep::harness {

struct RecordedTensor {
  std::string name;
  /// What is compared: "Float [4, 8], xxh3 108a35bdbf51cf86"; "absent".
  std::string content;
};

/// What a rank held after a step.
struct RecordedState {
  std::string what;  ///< "gradients", "parameters", "optimizer", ...
  std::int64_t step = 0;
  bool own = false;  ///< ranks may differ in it
  std::vector<RecordedTensor> tensors;
};

/// One file. Text in it is printable and has no line ends.
struct RankRecord {
  std::string file;
  std::int64_t rank = 0, world_size = 0;
  std::vector<RecordedState> states;          ///< in the order of the file
  std::vector<CollectiveRecord> collectives;  ///< by seq; with op or root in the name
  std::vector<std::int64_t> roots;            ///< of the same; -1: unknown, or none
  std::vector<std::int64_t> waits;            ///< seqs of waits that are not over, ascending
  std::vector<std::pair<std::int64_t, std::string>> failed_waits;  ///< seq, error
  std::optional<Ending> end;                                       ///< kFinished or kFailed
  std::string error;                                               ///< of kFailed
  bool is_cut = false;  ///< the last line was not written to its end, and is left out
};

/// World sizes beyond this are taken for a mistake.
inline constexpr std::int64_t kRecordedRanksMax = 65'536;

/// The records of a folder, by rank: its files rank-R.jsonl. One without a complete first line is
/// left out, for its rank has only come so far. Errors: UsageError for a folder that cannot be read
/// or has no record, world sizes that differ, and, with file and line, for what is no record.
std::vector<RankRecord> read_records(const std::string& folder);

}  // namespace lockstep::harness
