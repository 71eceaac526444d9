// SPDX-License-Identifier: Apache-2.0
// The reducer's handling of numbers: gradients into buckets, results back into gradients.
#include <fmt/ranges.h>
#include <torch/types.h>

#include <utility>

#include "core/check.h"
#include "core/reducer.h"
#include "core/sparse_all_reduce.h"

namespace lockstep {
namespace {

std::string kind_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "an undefined tensor";
  }
  return fmt::format("a {}{} tensor of {} elements", tensor.is_sparse() ? "sparse " : "",
                     c10::toString(tensor.scalar_type()), tensor.numel());
}

// Zeroing a sparse gradient in place leaves one that is sparse along every dimension.
bool is_empty_sparse(const at::Tensor& gradient) {
  return gradient.layout() == at::kSparse && gradient._nnz() == 0;
}

}  // namespace

std::int64_t Reducer::divisor() {
  if (divisor_ == 0) {
    divisor_ = divisor_source_ != nullptr ? divisor_source_() : communicator_->world_size();
    LOCKSTEP_CHECK(divisor_ > 0, "gradients cannot be divided by {}", divisor_);
  }
  return divisor_;
}

void Reducer::check_gradient(std::int64_t parameter, const at::Tensor& gradient, bool is_sparse) {
  const at::Tensor& own = parameters_[static_cast<std::size_t>(parameter)];
  if (is_sparse && !has_sparse_rows(gradient) && !is_empty_sparse(gradient)) {
    throw error("sparse_gradient",
                "expected a gradient that is sparse along its first dimension, got another one; "
                "does a module other than its embedding use it?",
                parameter);
  }
  if (!is_sparse && gradient.layout() != at::kStrided) {
    throw error("sparse_gradient",
                "expected a dense gradient, got a sparse one; only parameters of Embedding and "
                "EmbeddingBag modules with the option sparse may have those",
                parameter);
  }
  if (gradient.scalar_type() != own.scalar_type() || gradient.device() != own.device() ||
      gradient.sizes() != own.sizes()) {
    throw error(
        "gradient_mismatch",
        fmt::format("expected a gradient of {} with {} elements on {}, got {} with {} on {}",
                    c10::toString(own.scalar_type()), own.numel(), own.device().str(),
                    c10::toString(gradient.scalar_type()), gradient.numel(),
                    gradient.device().str()),
        parameter);
  }
}

void Reducer::copy_in(std::int64_t parameter) {
  const Location at = locations_[static_cast<std::size_t>(parameter)];
  Bucket& bucket = buckets_[at.bucket];
  at::Tensor& gradient = parameters_[static_cast<std::size_t>(parameter)].mutable_grad();
  if (gradient.defined()) {
    check_gradient(parameter, gradient, bucket.is_sparse);
  } else if (counts_hooks() && used_.used_locally(parameter)) {
    throw error("undefined_gradient",
                "backward gave it a gradient, which is undefined now; does a hook reset it before "
                "backward ends?",
                parameter);
  } else {
    // Its hook ran without one (H10, I8), or what backwards without reduction gave it was reset:
    // that window was given up (F10, H8).
    used_.forget(parameter);
  }
  // Resolved even where a hook makes it useless (G7), since it may have to be waited for.
  const std::int64_t by = divisor();
  if (bucket.is_sparse) {
    copy_in_sparse(bucket, parameters_[static_cast<std::size_t>(parameter)]);
  } else {
    copy_in_dense(bucket.slots[at.slot].view, gradient, comm_hook_ != nullptr ? 1 : by);
  }
}

// A hook gets the rows as backward left them, for it divides before they are added up (G8, N3).
void Reducer::copy_in_sparse(Bucket& bucket, const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined() || is_empty_sparse(gradient)) {
    bucket.sparse = no_sparse_rows(parameter);
  } else if (comm_hook_ != nullptr) {
    bucket.sparse = gradient.clone();
  } else {
    bucket.sparse = divided_rows(gradient, divisor());
  }
}

// Values only: no graph leads through the collective (G6).
void Reducer::copy_in_dense(const at::Tensor& view, at::Tensor& gradient, std::int64_t by) const {
  const at::NoGradGuard no_grad;
  if (!gradient.defined()) {
    view.zero_();
    return;
  }
  if (is_same_view(gradient, view)) {
    scale_in_place(view, by);
    return;
  }
  if (by == 1) {
    copy_into(view, gradient);
  } else {
    scale_into(view, gradient, by);
  }
  if (as_view_) {
    gradient = view;
  }
}

bool Reducer::globally_unused(std::int64_t parameter) {
  const bool has_map = static_graph_ || find_unused_;
  return has_map && !used_.used_locally(parameter) && used_.ranks_using(parameter) == 0;
}

void Reducer::check_result(std::size_t bucket, const at::Tensor& buffer, const at::Tensor& result) {
  const bool matches =
      result.defined() && result.is_sparse() == buffer.is_sparse() &&
      result.is_complex() == buffer.is_complex() &&
      (buffer.is_sparse() ? result.sizes() == buffer.sizes() : result.numel() == buffer.numel());
  if (matches) {
    return;
  }
  std::vector<std::string> names;
  for (const Bucket::Slot& slot : buckets_[bucket].slots) {
    names.push_back(names_[static_cast<std::size_t>(slot.parameter)]);
  }
  throw noted(DdpError(
      "hook_result_mismatch",
      fmt::format("rank {}, step {}: the result of communication hook {} for bucket {} ({}) is {} "
                  "where {} is needed; a hook must return the bucket's elements in their order",
                  communicator_->rank(), step_, comm_hook_name_, bucket, fmt::join(names, ", "),
                  kind_of(result), kind_of(buffer)),
      names));
}

void Reducer::take_result(std::size_t index) {
  Bucket& bucket = buckets_[index];
  const at::NoGradGuard no_grad;
  const at::Tensor result = std::exchange(bucket.pending, {}).wait();
  check_result(index, bucket.buffer(), result);
  if (bucket.is_sparse) {
    bucket.sparse = result.to(bucket.sparse.scalar_type());
  } else if (!is_same_view(result, bucket.flat)) {
    bucket.flat.copy_(result.reshape({-1}));
  }
}

void Reducer::copy_out(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  for (const Bucket::Slot& slot : bucket.slots) {
    if (globally_unused(slot.parameter)) {
      continue;
    }
    at::Tensor& gradient = parameters_[static_cast<std::size_t>(slot.parameter)].mutable_grad();
    const at::Tensor& average = bucket.is_sparse ? bucket.sparse : slot.view;
    const bool as_view = as_view_ && !bucket.is_sparse;
    if (!gradient.defined()) {
      gradient = as_view ? average : average.clone();
    } else if (!as_view) {
      copy_into(gradient, average);
    } else if (!is_same_view(gradient, average)) {
      throw error("not_a_bucket_view",
                  "its gradient was replaced between backward's hook and the end of backward: it "
                  "is not the expected view of the bucket",
                  slot.parameter);
    }
  }
  bucket.sparse = at::Tensor();
}

}  // namespace lockstep
