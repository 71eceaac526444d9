// SPDX-License-Identifier: Apache-2.0
// What real ranks wrote down (core/training_record.h), read back.
#pragma once

#include <cstdint>
#include <string>
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

/// One file.
struct RankRecord {
  std::string file;
  std::int64_t world_size = 0;
  std::vector<RecordedState> states;  ///< in the order of the file
  /// Rank, collectives, ending, error, `at_step` (the one in progress), and of `steps` the numbers.
  /// Without an end: kFailed after a wait that failed, else kWaiting, with `waiting` (without the
  /// ranks that are waited for) if it waits.
  RankRun run;
  bool has_end = false;
  bool is_cut = false;  ///< the last line was not written to its end, and is left out
};

/// The records "*.jsonl" of a folder, by rank. Errors: UsageError for a folder without any or that
/// cannot be read, two records of a rank, world sizes that differ, a rank outside of it, and, with
/// file and line, for what is no such record.
std::vector<RankRecord> read_records(const std::string& folder);

}  // namespace lockstep::harness
