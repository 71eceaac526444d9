// SPDX-License-Identifier: Apache-2.0
// What one rank of a real training run writes down, for `lockstep audit` to judge.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Writes DIRECTORY/rank-R.jsonl, one JSON object a line, each written out before the call returns,
/// so that what a killed process did is there:
///
///   {"schema": 1, "rank": 0, "world_size": 4}                                       the first line
///   {"collective": "all_reduce", "op": "sum", "site": "bucket", "step": 3,
///    "bucket": 0, "numel": 212, "dtype": "Float"}        issued; counted from 0 in order: its seq
///   {"wait": 6}                                          a wait for seq 6 begins
///   {"waited": 6}                                        and is over; with "error" if it failed
///   {"state": "parameters", "step": 3, "tensors":
///    [{"name": "fc.weight", "dtype": "Float", "sizes": [4, 8], "xxh3": "108a35bdbf51cf86"}, ...]}
///                       what all ranks must hold alike after a step; each rank's own: "own": true
///   {"end": "finished"}, or {"end": "failed", "error": "..."}                        the last line
///
/// "xxh3" is XXH3 (64 bits, seed 0) of the elements in row-major order, little-endian, 16
/// hexadecimal digits; null for a tensor that is not there, as a gradient. Any program may write
/// such files. Lines of collectives may be left out on all ranks; in them all keys but the first
/// may be left out, and a broadcast has "root" in the place of "op".
///
/// Threads: any; the communicator's are those of the one that was given.
class TrainingRecord {
 public:
  /// Makes the directory if its parent is there. `communicator` outlives this. Its rank and world
  /// size are those of the record. Errors: UsageError if the file is there already, for it is of an
  /// earlier run, or cannot be made.
  TrainingRecord(const std::string& directory, Communicator& communicator);
  /// A record that was neither finished nor failed says nothing of an end.
  ~TrainingRecord();
  TrainingRecord(const TrainingRecord&) = delete;
  TrainingRecord& operator=(const TrainingRecord&) = delete;

  /// Passes everything on, and writes down what was issued and waited for. Give it to DDP.
  Communicator& communicator();

  /// After a step's update and before gradients are zeroed: gradients, parameters and, as each
  /// rank's own, buffers. Where no gradients were averaged in the step, as under no_sync, these are
  /// the rank's own too: record states of one's choice. Errors: those of `state`.
  void step(std::int64_t step, const torch::nn::Module& module);

  /// Other tensors that all ranks must hold alike after a step, as "optimizer". Undefined ones are
  /// absent. Errors: UsageError for a step below 0, steps of one kind of state that do not ascend,
  /// two tensors of one name, and after the end. Error if the file cannot be written, at this call
  /// and every later one.
  void state(std::int64_t step, const std::string& what,
             const std::vector<std::pair<std::string, at::Tensor>>& tensors);

  /// Ends the record, once; what the communicator does from then on is not noted. Errors:
  /// UsageError after the end; Error as above, so catch what is being handled first.
  void finish();
  void fail(const std::string& error);

 private:
  class File;
  class Recorded;
  class RecordedWork;

  void write_state(std::int64_t step, const std::string& what,
                   const std::vector<std::pair<std::string, at::Tensor>>& tensors, bool own);

  std::shared_ptr<File> file_;  // works may outlive this
  std::unique_ptr<Recorded> communicator_;
  std::map<std::string, std::int64_t> last_steps_;  ///< by kind of state
};

}  // namespace lockstep
