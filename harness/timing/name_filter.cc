// SPDX-License-Identifier: Apache-2.0
// The standard library's expressions, of those kinds that can neither hang nor exhaust the stack.
#include "harness/timing/name_filter.h"

#include <regex>

#include "core/check.h"

namespace lockstep::harness {

namespace {

// A search calls itself once for each part of the expression.
constexpr std::size_t kMaxBytes = 200;

// By default libstdc++ tries alternatives one after the other, of which "(a|a)*b" has as many as
// there are subsets; with this it follows them all at once.
std::regex compiled(const std::string& expression) {
  LOCKSTEP_USAGE(expression.size() <= kMaxBytes,
                 "a regular expression of {} bytes; expected at most {}", expression.size(),
                 kMaxBytes);
  LOCKSTEP_USAGE(expression.find('{') == std::string::npos,
                 "'{}' counts repetitions or names a brace; expected an expression without '{{', "
                 "such as \"ranks=[24]\"",
                 expression);
  try {
    return std::regex(expression,
                      std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error& error) {
    throw UsageError(fmt::format("'{}' is no regular expression: {}", expression, error.what()));
  }
}

}  // namespace

struct NameFilter::Expression {
  std::regex regex;
};

NameFilter::NameFilter(const std::string& expression)
    : expression_(std::make_unique<const Expression>(Expression{compiled(expression)})) {}

NameFilter::~NameFilter() = default;

bool NameFilter::finds(const std::string& name) const {
  return std::regex_search(name, expression_->regex);
}

}  // namespace lockstep::harness
