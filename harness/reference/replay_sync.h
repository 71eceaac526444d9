// SPDX-License-Identifier: Apache-2.0
// How the replay reference combines the gradients of all ranks.
#pragma once

#include <memory>
#include <vector>

#include "harness/reference/reference.h"
#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {

/// Holds all ranks' replicas. Everything is computed anew from the rules, with nothing of `core`'s
/// reducer: buckets come from the subject's record, the rest from the case.
class ReplaySync final : public GradientSync {
 public:
  ReplaySync(const Case& value, std::vector<std::shared_ptr<GraphModel>> models,
             const Run& recorded, ReplayDetails* details);

  void run(const std::function<void()>& loop) override;
  void begin_step(std::int64_t step) override;
  std::vector<std::vector<at::Tensor>> forward(const std::vector<ReplicaInput>& inputs,
                                               bool sync) override;
  void gradient_was_copied(const at::Tensor& parameter, const at::Tensor& old) override;
  void after_backward(bool sync) override;
  std::shared_ptr<const ReductionPlan> plan() const override { return plan_; }
  ReducerState state() const override { return {}; }

 private:
  // A gradient as it was when a window of accumulation began.
  struct UseMark {
    at::Tensor gradient;
    std::int64_t version = -1;
  };

  void reload_wrappers(std::int64_t first, std::int64_t last);
  void take_into_rebuilt_buckets();
  void find_plan();
  void mark_use();
  bool wants_sink(bool sync) const;
  void note_met(const ReplicaInput& input, const std::vector<at::Tensor>& outputs);
  bool used(std::size_t rank, std::size_t index) const;
  bool is_active(std::size_t rank) const { return num_steps_[rank] > step_; }
  void sync_buffers(std::size_t source);
  double divisor() const;
  at::Tensor prepared_as_hook(const at::Tensor& gradient) const;
  void reduce_bucket(const std::vector<std::int64_t>& bucket);
  void reduce_sparse(std::size_t index);
  bool aliased(std::size_t rank, std::size_t index) const;
  at::Tensor contribution(std::size_t rank, std::size_t index) const;
  bool used_anywhere(std::size_t index);
  bool keeps_gradient(std::size_t rank, std::size_t index, bool is_used) const;
  void deliver(std::size_t index, const at::Tensor& average);
  void note_micro_batch();
  void note_reduction();

  const Case& value_;       // outlives this: part of the program
  const Run& recorded_;     // outlives this: part of the subject's run
  ReplayDetails* details_;  // may be null
  std::vector<std::shared_ptr<GraphModel>> models_;
  std::vector<NamedParameters> parameters_;     // per rank, trainable
  std::vector<NamedParameters> buffers_;        // per rank
  std::vector<std::vector<UseMark>> marks_;     // per rank and parameter, at the window's start
  std::vector<std::vector<bool>> met_;          // per rank and parameter, in the window (I8)
  std::vector<std::vector<at::Tensor>> views_;  // gradients that would alias a bucket
  std::vector<std::vector<at::Tensor>> before_micro_;
  std::vector<bool> sparse_;       // per parameter
  std::vector<bool> static_used_;  // per parameter, by some rank in the first reduction (L6)
  std::shared_ptr<const ReductionPlan> plan_;
  std::vector<std::int64_t> num_steps_;  // per rank, that it has inputs for
  std::vector<std::size_t> active_;      // ranks with inputs for this step
  bool buffers_due_ = true;              // J4
  std::int64_t num_reductions_ = 0;      // by this wrapper
  bool has_rebuilt_ = false;
  std::int64_t step_ = -1;
  std::int64_t micro_ = -1;
};

}  // namespace lockstep::harness
