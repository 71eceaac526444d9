// SPDX-License-Identifier: Apache-2.0
// The one table of what [[at]] can do.
#pragma once

#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness {

struct AtAction {
  const char* name;  ///< the key in a file
  bool (*is_set)(const AtSpec&);
};

/// In the order in which messages list them.
inline constexpr AtAction kAtActions[] = {
    {"skip", [](const AtSpec& at) { return !at.skip.empty(); }},
    {"exit_after", [](const AtSpec& at) { return !at.exit_after.empty(); }},
    {"mute", [](const AtSpec& at) { return !at.mute.empty(); }},
    {"freeze", [](const AtSpec& at) { return !at.freeze.empty(); }},
    {"unfreeze", [](const AtSpec& at) { return !at.unfreeze.empty(); }},
    {"lr", [](const AtSpec& at) { return at.lr.has_value(); }},
    {"raise", [](const AtSpec& at) { return !at.raise.empty(); }},
    {"stall", [](const AtSpec& at) { return at.stall; }},
    {"leave", [](const AtSpec& at) { return at.leave; }},
    {"skip_step", [](const AtSpec& at) { return at.skip_step; }},
    {"detach", [](const AtSpec& at) { return at.detach; }},
    {"sleep_ms", [](const AtSpec& at) { return at.sleep_ms > 0; }},
    {"collective", [](const AtSpec& at) { return !at.collective.empty(); }},
    {"evaluate", [](const AtSpec& at) { return at.evaluate > 0; }},
    {"reload", [](const AtSpec& at) { return at.reload; }},
    {"add_buffer", [](const AtSpec& at) { return at.add_buffer > 0; }},
    {"without_loss", [](const AtSpec& at) { return !at.without_loss.empty(); }},
    {"samples", [](const AtSpec& at) { return at.samples.has_value(); }},
    {"micro_batches", [](const AtSpec& at) { return at.micro_batches.has_value(); }},
    {"bypass", [](const AtSpec& at) { return at.bypass; }},
    {"copy_gradients", [](const AtSpec& at) { return at.copy_gradients; }},
    {"sync_buffers", [](const AtSpec& at) { return !at.sync_buffers.empty(); }},
    {"scale_buffers", [](const AtSpec& at) { return at.scale_buffers != 1.0; }},
    {"keep_gradients", [](const AtSpec& at) { return at.keep_gradients; }},
    {"ascend", [](const AtSpec& at) { return at.ascend > 0.0; }},
};

/// Those that are set in an entry; one, if the entry is sound.
inline std::vector<std::string> actions_of(const AtSpec& at) {
  std::vector<std::string> actions;
  for (const AtAction& action : kAtActions) {
    if (action.is_set(at)) {
      actions.emplace_back(action.name);
    }
  }
  return actions;
}

}  // namespace lockstep::harness
