// SPDX-License-Identifier: Apache-2.0
// Rows of all ranks, gathered and added.
#include "core/sparse_all_reduce.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/bucket.h"
#include "core/check.h"

namespace lockstep {
namespace {

at::Tensor from_rows(const at::Tensor& rows, const at::Tensor& values, at::IntArrayRef sizes) {
  return at::_sparse_coo_tensor_unsafe(rows.unsqueeze(0), values, sizes,
                                       values.options().layout(at::kSparse))
      ._coalesced_(true);
}

// `values` [n, ...] with zeros behind it: [count, ...].
at::Tensor filled_up(const at::Tensor& values, std::int64_t count) {
  std::vector<std::int64_t> sizes = values.sizes().vec();
  sizes[0] = count;
  at::Tensor filled = at::zeros(sizes, values.options());
  filled.narrow(0, 0, values.size(0)).copy_(values);
  return filled;
}

at::Tensor room_for_all(const at::Tensor& input, std::int64_t world_size) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), world_size);
  return at::empty(sizes, input.options());
}

// `counts[r]` rows come from rank r.
at::Tensor gathered_sum(Communicator& communicator, const at::Tensor& tensor,
                        const std::vector<std::int64_t>& counts, CollectiveTag tag) {
  const at::NoGradGuard no_grad;
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  if (longest == 0) {
    return tensor;
  }
  const auto world_size = static_cast<std::int64_t>(counts.size());
  const at::Tensor rows = filled_up(tensor._indices()[0], longest);
  const at::Tensor values = filled_up(tensor._values(), longest);
  const at::Tensor all_rows = room_for_all(rows, world_size);
  const at::Tensor all_values = room_for_all(values, world_size);
  const auto rows_work = communicator.all_gather(all_rows, rows, tag);
  const auto values_work = communicator.all_gather(all_values, values, tag);
  rows_work->wait();
  values_work->wait();
  std::vector<at::Tensor> pieces;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    pieces.push_back(all_rows[rank].narrow(0, 0, counts[static_cast<std::size_t>(rank)]));
  }
  const auto [unique, position] =
      at::_unique(at::cat(pieces), /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor sum = filled_up(values.narrow(0, 0, 0), unique.numel());
  std::int64_t first = 0;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    const std::int64_t count = counts[static_cast<std::size_t>(rank)];
    sum.index_add_(0, position.narrow(0, first, count), all_values[rank].narrow(0, 0, count));
    first += count;
  }
  return from_rows(unique, sum, tensor.sizes());
}

}  // namespace

bool has_sparse_rows(const at::Tensor& tensor) {
  return tensor.layout() == at::kSparse && tensor.sparse_dim() == 1;
}

at::Tensor no_sparse_rows(const at::Tensor& like) {
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = like.options().requires_grad(false);
  return from_rows(at::empty({0}, options.dtype(at::kLong)),
                   at::empty_like(like.detach().narrow(0, 0, 0)), like.sizes());
}

at::Tensor divided_rows(const at::Tensor& tensor, std::int64_t divisor) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor._values().clone(at::MemoryFormat::Contiguous);
  scale_in_place(values, divisor);
  const at::Tensor rows = tensor._indices()[0].clone();
  if (tensor.is_coalesced()) {
    return from_rows(rows, values, tensor.sizes());
  }
  return at::_sparse_coo_tensor_unsafe(rows.unsqueeze(0), values, tensor.sizes(),
                                       values.options().layout(at::kSparse))
      .coalesce();
}

PendingTensor sparse_all_reduce(Communicator& communicator, const at::Tensor& tensor,
                                CollectiveTag tag) {
  LOCKSTEP_CHECK(has_sparse_rows(tensor) && tensor.is_coalesced(), "rows are added once");
  const at::Tensor count = at::full({1}, tensor._nnz(), tensor._indices().options());
  const at::Tensor counts = room_for_all(count, communicator.world_size());
  return PendingTensor(communicator.all_gather(counts, count, tag), counts)
      .then([&communicator, tensor, tag](const at::Tensor& gathered) {
        const at::Tensor on_cpu = gathered.cpu();
        const auto* first = on_cpu.data_ptr<std::int64_t>();
        return gathered_sum(communicator, tensor, {first, first + on_cpu.numel()}, tag);
      });
}

}  // namespace lockstep
