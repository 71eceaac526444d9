// SPDX-License-Identifier: Apache-2.0
// What single events need from the rest of the case.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/model.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {

void check_names(const std::vector<std::string>& given, const std::vector<std::string>& known,
                 const std::string& key, const std::string& what,
                 std::vector<CaseFinding>& findings) {
  for (const std::string& name : given) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    findings.push_back({{key, "model"},
                        fmt::format("{}: the model has no {} '{}'; expected one of {}{}", key, what,
                                    name, fmt::join(known, ", "), did_you_mean(name, known))});
  }
}

void check_shares(const Case& value, const AtSpec& at, const std::string& path,
                  std::vector<CaseFinding>& findings) {
  const TrainSpec& train = value.train;
  const std::int64_t share = train.batch_per_rank / train.micro_batches;
  if (at.samples && (*at.samples > share || *at.samples % train.forwards_per_backward != 0)) {
    findings.push_back(
        {{path + ".samples", "train.batch_per_rank"},
         fmt::format("samples = {} of the {} that a micro-batch has, in {} forwards of one size; "
                     "expected a multiple of {}, at most {}",
                     *at.samples, share, train.forwards_per_backward, train.forwards_per_backward,
                     share)});
  }
  if (at.micro_batches && *at.micro_batches > train.micro_batches) {
    findings.push_back({{path + ".micro_batches", "train.micro_batches"},
                        fmt::format("micro_batches = {}, but a step has {}; expected at most that",
                                    *at.micro_batches, train.micro_batches)});
  }
  if (at.bypass && !reduces_in_backward(value.ddp)) {
    findings.push_back({{path + ".bypass", "ddp.sync"},
                        fmt::format("sync \"{}\" has no wrapper that could be bypassed; expected "
                                    "ddp.sync = \"ddp\" or \"torch\"",
                                    value.ddp.sync)});
  }
}

void check_heads(const Case& value, const AtSpec& at, const std::string& path,
                 std::vector<CaseFinding>& findings) {
  const std::vector<std::string> heads = head_names(value.model);
  check_names(at.without_loss, heads, path + ".without_loss", "head", findings);
  if (!at.without_loss.empty() && at.without_loss.size() >= heads.size()) {
    findings.push_back({{path + ".without_loss", "model"},
                        "nothing is left of the loss; leave one head in, or use detach"});
  }
}

}  // namespace lockstep::harness
