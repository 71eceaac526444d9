// SPDX-License-Identifier: Apache-2.0
// The list of subjects, and how a model's tensors are listed.
#include "harness/sync/gradient_sync.h"

#include "core/check.h"
#include "harness/sync/ddp_sync.h"
#include "harness/sync/plain_sync.h"

namespace lockstep::harness {

std::unique_ptr<GradientSync> make_gradient_sync(const SyncParts& parts) {
  return parts.value->ddp.sync == "ddp" ? make_ddp_sync(parts) : make_plain_sync(parts);
}

NamedParameters trainable_parameters(const GraphModel& model) {
  NamedParameters result;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) {
      result.names.push_back(item.key());
      result.tensors.push_back(item.value());
    }
  }
  return result;
}

NamedParameters all_parameters(const GraphModel& model) {
  NamedParameters result;
  for (const auto& item : model.named_parameters()) {
    result.names.push_back(item.key());
    result.tensors.push_back(item.value());
  }
  return result;
}

NamedParameters all_buffers(const GraphModel& model) {
  NamedParameters result;
  for (const auto& item : model.named_buffers()) {
    result.names.push_back(item.key());
    result.tensors.push_back(item.value());
  }
  return result;
}

}  // namespace lockstep::harness
