// SPDX-License-Identifier: Apache-2.0
// Which points of a timing file are meant: an expression that is found in their names.
#pragma once

#include <memory>
#include <string>

namespace lockstep::harness {

/// A regular expression as ECMAScript has them, without back-references and counts ({2,3}), so that
/// searching a name takes no longer than its length times that of the expression.
class NameFilter {
 public:
  /// Empty: found everywhere. Errors: UsageError, which says why it is none.
  explicit NameFilter(const std::string& expression);
  ~NameFilter();

  bool finds(const std::string& name) const;

 private:
  struct Expression;
  std::unique_ptr<const Expression> expression_;
};

}  // namespace lockstep::harness
