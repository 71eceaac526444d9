// SPDX-License-Identifier: Apache-2.0
// From a tree to a case, by the schema.
#include "harness/scenario/reader.h"

#include <fmt/format.h>

#include "harness/scenario/schema.h"
#include "harness/scenario/table_reader.h"

namespace lockstep::harness {

void check_version(const TreeNode& root, Findings& findings) {
  const TreeEntry* entry = root.find("schema");
  if (!entry) {
    findings.add({1, 1}, fmt::format("key 'schema' is missing; expected schema = {} at the top",
                                     kSchemaVersion));
  } else if (entry->value.kind != TreeNode::Kind::kInteger ||
             entry->value.integer != kSchemaVersion) {
    findings.add(entry->value.where, fmt::format("schema is {}; expected {}",
                                                 describe_value(entry->value), kSchemaVersion));
  }
}

void read_case(const TreeNode& root, Case& value, Findings& findings) {
  read_root(root, value, findings);
}

}  // namespace lockstep::harness
