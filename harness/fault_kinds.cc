// SPDX-License-Identifier: Apache-2.0
// Look-ups in the table of faults.
#include "harness/fault_kinds.h"

namespace lockstep::harness {

const FaultKind* find_fault_kind(const std::string& name) {
  for (const FaultKind& kind : kFaultKinds) {
    if (name == kind.name) {
      return &kind;
    }
  }
  return nullptr;
}

bool is_collective_fault(const std::string& kind) {
  const FaultKind* const found = find_fault_kind(kind);
  return found != nullptr && found->happens_to_collective();
}

bool is_process_fault(const std::string& kind) {
  const FaultKind* const found = find_fault_kind(kind);
  return found != nullptr && found->happens == FaultKind::Happens::kProcess;
}

bool happens_at_completion(const std::string& kind) {
  const FaultKind* const found = find_fault_kind(kind);
  return found != nullptr && found->happens == FaultKind::Happens::kCompletion;
}

std::string site_of(const FaultSpec& fault) {
  const bool is_at_collective =
      is_collective_fault(fault.kind) || (is_process_fault(fault.kind) && fault.bucket);
  return fault.site.empty() && is_at_collective ? "bucket" : fault.site;
}

}  // namespace lockstep::harness
