// SPDX-License-Identifier: Apache-2.0
// Checks and texts that all transports share.
#include "core/collective_description.h"

#include "core/check.h"

namespace lockstep {
namespace {

void check_dense(const at::Tensor& tensor, const char* what) {
  LOCKSTEP_USAGE(tensor.defined(), "{} of an undefined tensor", what);
  LOCKSTEP_USAGE(tensor.layout() == at::kStrided, "{} of a {} tensor; transports carry dense ones",
                 what, c10::str(tensor.layout()));
  LOCKSTEP_USAGE(tensor.is_contiguous(),
                 "{} of a tensor of sizes {} and strides {}, which is not contiguous", what,
                 c10::str(tensor.sizes()), c10::str(tensor.strides()));
}

CollectiveDescription describe_launch(CollectiveKind kind, const at::Tensor& tensor,
                                      CollectiveTag tag) {
  CollectiveDescription what;
  what.kind = kind;
  what.tag = tag;
  what.numel = tensor.numel();
  what.dtype = c10::toString(tensor.scalar_type());
  return what;
}

}  // namespace

std::string describe(const CollectiveDescription& collective) {
  const CollectiveTag& tag = collective.tag;
  std::string text = fmt::format("{} {}", to_string(collective.kind), to_string(tag.site));
  if (tag.bucket >= 0) {
    text += fmt::format(" {}", tag.bucket);
  }
  if (tag.step >= 0) {
    text += fmt::format(" at step {}", tag.step);
  }
  text += fmt::format(" (seq {}", collective.seq);
  if (collective.kind != CollectiveKind::kBarrier) {
    text += fmt::format(", {} {}", collective.numel, collective.dtype);
  }
  if (collective.kind == CollectiveKind::kAllReduce) {
    text += fmt::format(", {}", to_string(collective.op));
  }
  if (collective.kind == CollectiveKind::kBroadcast) {
    text += fmt::format(", from rank {}", collective.root);
  }
  return text + ")";
}

CollectiveDescription describe_all_reduce(const at::Tensor& tensor, ReduceOp op,
                                          CollectiveTag tag) {
  check_dense(tensor, "all_reduce");
  auto what = describe_launch(CollectiveKind::kAllReduce, tensor, tag);
  what.op = op;
  return what;
}

CollectiveDescription describe_broadcast(const at::Tensor& tensor, std::int64_t root,
                                         std::int64_t world_size, CollectiveTag tag) {
  check_dense(tensor, "broadcast");
  LOCKSTEP_USAGE(root >= 0 && root < world_size, "broadcast from rank {} of {} ranks", root,
                 world_size);
  auto what = describe_launch(CollectiveKind::kBroadcast, tensor, tag);
  what.root = root;
  return what;
}

CollectiveDescription describe_all_gather(const at::Tensor& output, const at::Tensor& input,
                                          std::int64_t world_size, CollectiveTag tag) {
  check_dense(output, "all_gather into");
  check_dense(input, "all_gather");
  LOCKSTEP_USAGE(output.scalar_type() == input.scalar_type() && output.dim() >= 1 &&
                     output.size(0) == world_size && output.numel() == world_size * input.numel(),
                 "all_gather of {} {} into {} {}; {} rows of the input's elements are needed",
                 c10::toString(input.scalar_type()), c10::str(input.sizes()),
                 c10::toString(output.scalar_type()), c10::str(output.sizes()), world_size);
  return describe_launch(CollectiveKind::kAllGather, input, tag);
}

CollectiveDescription describe_barrier(CollectiveTag tag) {
  CollectiveDescription what;
  what.kind = CollectiveKind::kBarrier;
  what.tag = tag;
  return what;
}

}  // namespace lockstep
