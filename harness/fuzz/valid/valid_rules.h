// SPDX-License-Identifier: Apache-2.0
// What a valid script keeps to, topic by topic.
#pragma once

#include <vector>

#include "harness/case.h"
#include "harness/fuzz/draw/dice.h"
#include "harness/fuzz/valid/valid_facts.h"

namespace lockstep::harness::fuzz {

struct Rule {
  const char* why;  ///< in one line: what goes wrong, and the rule's id
  bool (*broken)(const Facts&);
  void (*mend)(Case&, Dice&);  ///< takes a step towards a case that keeps to it
};

/// The numbers of samples, ranks and steps, and what LibTorch's losses and optimizers take.
const std::vector<Rule>& shape_rules();
/// Windows, backwards and losses.
const std::vector<Rule>& training_rules();
/// Options of DDP, and blocks that need them.
const std::vector<Rule>& ddp_rules();
/// Entries of [[at]] together. Each by itself: why_event_is_wrong.
const std::vector<Rule>& event_rules();

/// F15: a re-entrant checkpoint whose parameters may become ready more than once in a backward.
bool reentrant_is_ready_twice(const Facts& facts);

/// Why one entry of [[at]] makes the script one that DDP need not follow; null where it does not.
const char* why_event_is_wrong(const Facts& facts, const AtSpec& at);

}  // namespace lockstep::harness::fuzz
