// SPDX-License-Identifier: Apache-2.0
// What the reducer says about itself: errors and facts for logging.
#include <fmt/ranges.h>
#include <torch/types.h>

#include <set>

#include "core/check.h"
#include "core/reducer.h"

namespace lockstep {
namespace {

std::int64_t bytes_of(const std::vector<at::Tensor>& parameters,
                      const std::vector<std::int64_t>& indices) {
  std::int64_t bytes = 0;
  for (const std::int64_t index : indices) {
    const at::Tensor& parameter = parameters[static_cast<std::size_t>(index)];
    bytes += parameter.numel() * static_cast<std::int64_t>(parameter.element_size());
  }
  return bytes;
}

std::vector<std::int64_t> bytes_of(const std::vector<at::Tensor>& parameters,
                                   const BucketPlan& plan) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(plan.size());
  for (const auto& indices : plan) {
    bytes.push_back(bytes_of(parameters, indices));
  }
  return bytes;
}

}  // namespace

DdpError Reducer::unfinished_error() const {
  std::vector<std::string> missing;
  std::string text;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (!ready_[i]) {
      missing.push_back(names_[i]);
      text += fmt::format("{}{} (index {})", text.empty() ? "" : ", ", names_[i], i);
    }
  }
  const std::string start =
      fmt::format("rank {}, step {}: the reduction of the previous iteration has not finished. ",
                  communicator_->rank(), step_);
  if (missing.empty()) {
    return DdpError("reduction_unfinished",
                    start +
                        "All gradients were ready: its backward ended with an error. To go on, "
                        "give the wrapper a working communicator, or construct it anew");
  }
  if (static_graph_ && static_recorded_) {
    return DdpError("static_graph_changed",
                    start +
                        "The graph is not static: these parameters received fewer gradients "
                        "than in the first iteration: " +
                        text,
                    std::move(missing));
  }
  const std::string advice =
      find_unused_ ? "Did every output of forward that the loss depends on come from the wrapper, "
                     "in a type whose tensors it can find, and did backward end without an error?"
                   : "Either set find_unused_parameters, or make sure that every output of forward "
                     "takes part in the loss, and that backward ends without an error.";
  return DdpError("reduction_unfinished",
                  start + "These parameters received no gradient: " + text + ". " + advice,
                  std::move(missing));
}

DdpError Reducer::error(const char* kind, const std::string& message, std::int64_t parameter) {
  const std::string& name = names_[static_cast<std::size_t>(parameter)];
  return noted(DdpError(kind,
                        fmt::format("rank {}, step {}: parameter {} (index {}): {}",
                                    communicator_->rank(), step_, name, parameter, message),
                        {name}));
}

DdpError Reducer::noted(DdpError error) {
  last_error_ = error.what();
  last_error_iteration_ = num_armed_;
  return error;
}

DdpLoggingData Reducer::facts() const {
  DdpLoggingData data;
  std::set<std::string> dtypes;
  for (const at::Tensor& parameter : parameters_) {
    dtypes.insert(c10::toString(parameter.scalar_type()));
    data.total_parameter_bytes +=
        parameter.numel() * static_cast<std::int64_t>(parameter.element_size());
  }
  data.num_parameter_tensors = static_cast<std::int64_t>(parameters_.size());
  data.dtypes = fmt::format("{}", fmt::join(dtypes, ", "));
  data.device = parameters_.front().device().str();
  data.bucket_bytes = bytes_of(parameters_, layout()->buckets);
  data.first_bucket_cap_bytes = caps_.first_bytes;
  data.bucket_cap_bytes = caps_.other_bytes;
  data.find_unused_parameters = find_unused_;
  data.gradient_as_bucket_view = as_view_;
  return data;
}

void Reducer::describe(DdpLoggingData& data) const {
  data.rank = communicator_->rank();
  data.world_size = communicator_->world_size();
  data.static_graph = static_graph_;
  data.comm_hook = comm_hook_name_;
  data.has_error = !last_error_.empty();
  data.error = last_error_;
  data.error_iteration = last_error_iteration_;
}

void Reducer::sample(DdpLoggingData& data) const {
  data.iteration = num_armed_;
  data.unused_parameter_bytes = bytes_of(parameters_, unused_);
  data.has_rebuilt_buckets = has_rebuilt_;
  if (has_rebuilt_) {
    data.rebuilt_buckets = layout()->buckets;
    data.rebuilt_bucket_bytes = bytes_of(parameters_, data.rebuilt_buckets);
  }
  data.grad_ready_order = arrival_order_;
  data.can_set_static_graph = finds_unused() && unused_never_changed_;
}

bool is_sampled(std::int64_t iteration, std::int64_t sample_rate) {
  constexpr std::int64_t kFirstIterations = 10;
  return iteration > 0 && (iteration <= kFirstIterations || iteration % sample_rate == 0);
}

}  // namespace lockstep
