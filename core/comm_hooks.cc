// SPDX-License-Identifier: Apache-2.0
// Averaging, compression, quantisation and local steps as hooks.
#include "core/comm_hooks.h"

#include <torch/types.h>

#include <limits>
#include <memory>
#include <utility>

#include "core/bucket.h"
#include "core/check.h"
#include "core/sparse_all_reduce.h"

namespace lockstep {
namespace {

PendingTensor average(Communicator& communicator, const at::Tensor& buffer, CollectiveTag tag) {
  if (buffer.is_sparse()) {
    return sparse_all_reduce(communicator, divided_rows(buffer, communicator.world_size()), tag);
  }
  scale_in_place(buffer, communicator.world_size());
  return {communicator.all_reduce(buffer, ReduceOp::kSum, tag), buffer};
}

CommHook compress_hook(Communicator& communicator, at::ScalarType dtype) {
  return [&communicator, dtype](const GradBucket& bucket) {
    return average(communicator, bucket.buffer.to(dtype), bucket.tag);
  };
}

// [groups, 2]: scale and zero point of each row of `values` [groups, n].
at::Tensor quantizers_of(const at::Tensor& values) {
  const at::Tensor low = values.amin(1).clamp_max(0);
  const at::Tensor high = values.amax(1).clamp_min(0);
  const at::Tensor scale = ((high - low) / 255).clamp_min(std::numeric_limits<float>::epsilon());
  const at::Tensor zero = (-(low / scale).round()).clamp(0, 255);
  return at::stack({scale, zero}, 1);
}

// Averages `values` [groups, n], float32, by gathering them as bytes; see Note [Quantised buckets].
PendingTensor quantized_average(Communicator& communicator, const at::Tensor& values,
                                CollectiveTag tag) {
  const std::int64_t world_size = communicator.world_size();
  const at::Tensor quantizers = quantizers_of(values);
  const at::Tensor scale = quantizers.select(1, 0).unsqueeze(1);
  const at::Tensor zero = quantizers.select(1, 1).unsqueeze(1);
  const at::Tensor bytes = ((values / scale).round() + zero).clamp(0, 255).to(at::kByte);
  const at::Tensor all_quantizers =
      at::empty({world_size, values.size(0), 2}, quantizers.options());
  const at::Tensor all_bytes =
      at::empty({world_size, values.size(0), values.size(1)}, bytes.options());
  const std::shared_ptr<Work> first = communicator.all_gather(all_quantizers, quantizers, tag);
  return PendingTensor(communicator.all_gather(all_bytes, bytes, tag), all_bytes)
      .then([world_size, first, all_quantizers](const at::Tensor& gathered) {
        first->wait();
        at::Tensor sum;
        for (std::int64_t rank = 0; rank < world_size; ++rank) {
          const at::Tensor of_rank = all_quantizers[rank];
          const at::Tensor restored =
              (gathered[rank].to(at::kFloat) - of_rank.select(1, 1).unsqueeze(1)) *
              of_rank.select(1, 0).unsqueeze(1);
          sum = sum.defined() ? sum + restored : restored;
        }
        return sum / static_cast<double>(world_size);
      });
}

}  // namespace

CommHook all_reduce_hook(Communicator& communicator) {
  return [&communicator](const GradBucket& bucket) {
    return average(communicator, bucket.buffer, bucket.tag);
  };
}

CommHook fp16_compress_hook(Communicator& communicator) {
  return compress_hook(communicator, at::kHalf);
}

CommHook bf16_compress_hook(Communicator& communicator) {
  return compress_hook(communicator, at::kBFloat16);
}

CommHook noop_hook() {
  return [](const GradBucket& bucket) { return PendingTensor(bucket.buffer); };
}

CommHook quantize_per_tensor_hook(Communicator& communicator) {
  return [&communicator](const GradBucket& bucket) {
    if (bucket.buffer.is_sparse() || bucket.buffer.numel() == 0) {
      return average(communicator, bucket.buffer, bucket.tag);
    }
    return quantized_average(communicator, bucket.buffer.to(at::kFloat).unsqueeze(0), bucket.tag);
  };
}

CommHook quantize_per_channel_hook(Communicator& communicator, std::int64_t channel_numel) {
  LOCKSTEP_USAGE(channel_numel > 0, "a channel has {} elements, but must have some", channel_numel);
  return [&communicator, channel_numel](const GradBucket& bucket) {
    const std::int64_t numel = bucket.buffer.numel();
    if (bucket.buffer.is_sparse() || numel == 0) {
      return average(communicator, bucket.buffer, bucket.tag);
    }
    const std::int64_t num_channels = (numel + channel_numel - 1) / channel_numel;
    const at::Tensor filled =
        at::zeros({num_channels * channel_numel}, bucket.buffer.options().dtype(at::kFloat));
    filled.narrow(0, 0, numel).copy_(bucket.buffer);
    return quantized_average(communicator, filled.view({num_channels, channel_numel}), bucket.tag)
        .then([numel](const at::Tensor& channels) {
          return channels.reshape({-1}).narrow(0, 0, numel);
        });
  };
}

CommHook post_local_sgd_hook(Communicator& communicator, const PostLocalSgdOptions& options) {
  LOCKSTEP_USAGE(options.start_iter >= 0, "local steps cannot start at {}", options.start_iter);
  return [&communicator, options, iteration = std::int64_t{0}](const GradBucket& bucket) mutable {
    const bool is_global = iteration < options.start_iter;
    if (bucket.is_last()) {
      ++iteration;
    }
    if (is_global) {
      return average(communicator, bucket.buffer, bucket.tag);
    }
    if (options.subgroup != nullptr) {
      return average(*options.subgroup, bucket.buffer, bucket.tag);
    }
    return PendingTensor(bucket.buffer);
  };
}

}  // namespace lockstep
