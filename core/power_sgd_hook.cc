// SPDX-License-Identifier: Apache-2.0
// PowerSGD with error feedback and warm start.
#include "core/power_sgd_hook.h"

#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/comm_hooks.h"
#include "core/rng.h"

namespace lockstep {
namespace {

// One compressed gradient: its position in the bucket, its shape as a matrix, the factors' rank.
struct Part {
  std::size_t position = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t rank = 0;

  friend bool operator==(const Part& a, const Part& b) {
    return a.position == b.position && a.rows == b.rows && a.columns == b.columns &&
           a.rank == b.rank;
  }
  friend bool operator!=(const Part& a, const Part& b) { return !(a == b); }
};

struct Split {
  std::vector<Part> compressed;
  std::vector<std::pair<std::int64_t, std::int64_t>> plain;  // offset, length
};

// What a rank remembers of one bucket.
struct Memory {
  std::vector<Part> parts;
  std::vector<at::Tensor> lost;  // [rows, columns] per part
  std::vector<at::Tensor> qs;    // [columns, rank] per part; empty: to be drawn
};

Split split(const GradBucket& bucket, const PowerSgdOptions& options) {
  Split result;
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const std::int64_t length = bucket.lengths[i];
    const std::int64_t rows = bucket.sizes[i].empty() ? 1 : bucket.sizes[i].front();
    const std::int64_t columns = rows > 0 ? length / rows : 0;
    const std::int64_t rank = std::min({rows, columns, options.rank});
    if (bucket.sizes[i].size() >= 2 &&
        static_cast<double>((rows + columns) * rank) * options.min_compression_rate <
            static_cast<double>(rows * columns)) {
      result.compressed.push_back({i, rows, columns, rank});
    } else {
      result.plain.emplace_back(bucket.offsets[i], length);
    }
  }
  return result;
}

// The gradients as they lie in the bucket, whatever their strides; complex numbers as pairs.
std::vector<at::Tensor> real_gradients(const GradBucket& bucket) {
  std::vector<at::Tensor> gradients = bucket.gradients();
  for (at::Tensor& gradient : gradients) {
    gradient = gradient.is_complex() ? at::view_as_real(gradient) : gradient;
  }
  return gradients;
}

at::Tensor as_matrix(const at::Tensor& gradient, const Part& part) {
  return gradient.reshape({part.rows, part.columns});
}

// The matrices one after the other in one buffer, so that one collective carries them all.
struct Packed {
  at::Tensor flat;
  std::vector<at::Tensor> views;
};

Packed pack(const std::vector<at::Tensor>& matrices, const at::TensorOptions& options) {
  Packed packed;
  std::int64_t numel = 0;
  for (const at::Tensor& matrix : matrices) {
    numel += matrix.numel();
  }
  packed.flat = at::empty({numel}, options);
  std::int64_t offset = 0;
  for (const at::Tensor& matrix : matrices) {
    packed.views.push_back(packed.flat.narrow(0, offset, matrix.numel()).view(matrix.sizes()));
    packed.views.back().copy_(matrix);
    offset += matrix.numel();
  }
  return packed;
}

class PowerSgd {
 public:
  PowerSgd(Communicator& communicator, const PowerSgdOptions& options)
      : communicator_(communicator), options_(options), average_(all_reduce_hook(communicator)) {}

  PendingTensor reduce(const GradBucket& bucket) {
    const std::int64_t iteration = iteration_;
    if (bucket.is_last()) {
      ++iteration_;
    }
    Split parts = bucket.buffer.is_sparse() ? Split() : split(bucket, options_);
    if (iteration < options_.start_iter || parts.compressed.empty()) {
      return average_(bucket);
    }
    Memory& memory = memory_of(bucket, parts.compressed);
    return reduce_plain(parts, bucket.buffer, bucket.tag)
        .then([this, &memory, bucket, iteration](const at::Tensor&) {
          compress(memory, real_gradients(bucket), iteration, bucket.tag);
          return bucket.buffer;
        });
  }

 private:
  Memory& memory_of(const GradBucket& bucket, const std::vector<Part>& parts) {
    Memory& memory = memories_[bucket.index];
    if (memory.parts != parts) {
      memory = {parts, {}, {}};
      for (const Part& part : parts) {
        memory.lost.push_back(at::zeros({part.rows, part.columns}, bucket.buffer.options()));
      }
    }
    return memory;
  }

  PendingTensor reduce_plain(const Split& parts, const at::Tensor& buffer, CollectiveTag tag) {
    if (parts.plain.empty()) {
      return PendingTensor(buffer);
    }
    std::vector<at::Tensor> pieces;
    for (const auto& [offset, length] : parts.plain) {
      pieces.push_back(buffer.narrow(0, offset, length));
    }
    const at::Tensor flat = at::cat(pieces);
    return PendingTensor(communicator_.all_reduce(flat, ReduceOp::kSum, tag), flat)
        .then([pieces, world_size = communicator_.world_size()](const at::Tensor& sum) {
          std::int64_t offset = 0;
          for (const at::Tensor& piece : pieces) {
            piece.copy_(sum.narrow(0, offset, piece.numel()) / static_cast<double>(world_size));
            offset += piece.numel();
          }
          return sum;
        });
  }

  // Replaces the compressed ones of `gradients` by their averages; see Note [PowerSGD].
  void compress(Memory& memory, const std::vector<at::Tensor>& gradients, std::int64_t iteration,
                CollectiveTag tag) const {
    const std::vector<Part>& parts = memory.parts;
    const at::TensorOptions options = memory.lost.front().options();
    start(memory, options, iteration);
    std::vector<at::Tensor> matrices;
    std::vector<at::Tensor> products;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor matrix = as_matrix(gradients[parts[i].position], parts[i]);
      matrices.push_back(options_.use_error_feedback ? matrix + memory.lost[i] : matrix);
      products.push_back(matrices[i].matmul(memory.qs[i]));
    }
    const Packed ps = pack(products, options);
    communicator_.all_reduce(ps.flat, ReduceOp::kSum, tag)->wait();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      orthogonalize(ps.views[i]);
      products[i] = matrices[i].t().matmul(ps.views[i]);
    }
    const Packed qs = pack(products, options);
    communicator_.all_reduce(qs.flat, ReduceOp::kSum, tag)->wait();
    qs.flat.div_(static_cast<double>(communicator_.world_size()));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor average = ps.views[i].matmul(qs.views[i].t());
      memory.lost[i] = matrices[i] - average;
      const at::Tensor& gradient = gradients[parts[i].position];
      gradient.copy_(average.view(gradient.sizes()));
      memory.qs[i] = qs.views[i];
    }
  }

  // Gives every part a Q with orthonormal columns, the same on all ranks.
  void start(Memory& memory, const at::TensorOptions& options, std::int64_t iteration) const {
    CounterRng rng(options_.seed, RngStream::kOther, 0, options_.warm_start ? 0 : iteration);
    const bool draws = !options_.warm_start || memory.qs.empty();
    memory.qs.resize(memory.parts.size());
    for (std::size_t i = 0; i < memory.parts.size(); ++i) {
      const Part& part = memory.parts[i];
      at::Tensor drawn = at::empty({part.columns, part.rank}, at::kDouble);
      std::generate_n(drawn.data_ptr<double>(), drawn.numel(), [&rng] { return rng.normal(); });
      drawn = drawn.to(options);
      at::Tensor& q = memory.qs[i];
      if (draws || !orthogonalize(q)) {
        q = drawn;
        orthogonalize(q);
      }
    }
  }

  Communicator& communicator_;
  PowerSgdOptions options_;
  CommHook average_;
  std::int64_t iteration_ = 0;
  std::map<std::int64_t, Memory> memories_;
};

}  // namespace

bool orthogonalize(const at::Tensor& matrix) {
  bool is_full = true;
  for (std::int64_t i = 0; i < matrix.size(1); ++i) {
    const at::Tensor column = matrix.narrow(1, i, 1);
    const at::Tensor norm = column.norm();
    if (norm.item<double>() == 0.0) {
      is_full = false;
      continue;
    }
    column.div_(norm);
    if (i + 1 < matrix.size(1)) {
      const at::Tensor rest = matrix.narrow(1, i + 1, matrix.size(1) - i - 1);
      rest.sub_((column * rest).sum(0, /*keepdim=*/true) * column);
    }
  }
  return is_full;
}

CommHook power_sgd_hook(Communicator& communicator, const PowerSgdOptions& options) {
  LOCKSTEP_USAGE(options.rank > 0, "PowerSGD of rank {}", options.rank);
  LOCKSTEP_USAGE(options.min_compression_rate > 0, "a compression rate of {}",
                 options.min_compression_rate);
  const bool remembers = options.use_error_feedback || options.warm_start;
  LOCKSTEP_USAGE(
      options.start_iter >= (remembers ? 2 : 0),
      "PowerSGD must not start before iteration {}, but start_iter is {}: buckets change "
      "after the first iteration, and what error feedback and warm start remember would "
      "belong to others",
      remembers ? 2 : 0, options.start_iter);
  const auto state = std::make_shared<PowerSgd>(communicator, options);
  return [state](const GradBucket& bucket) { return state->reduce(bucket); };
}

}  // namespace lockstep
