// SPDX-License-Identifier: Apache-2.0
// Contradictions within a case, topic by topic. Each appends to `findings`.
#pragma once

#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/scenario.h"

namespace lockstep::harness {

/// What the names in a case are held against. Empty lists where the model itself is wrong.
struct KnownNames {
  bool model_is_sound = false;
  std::vector<std::string> blocks, parameters;

  /// Precondition: `model_is_sound`.
  std::vector<std::string> parameters_and_blocks() const;
};

/// `what` the names are of: "block", "parameter".
void check_names(const std::vector<std::string>& given, const std::vector<std::string>& known,
                 const std::string& key, const std::string& what,
                 std::vector<CaseFinding>& findings);

/// Every one of `values` exists: is below `limit`, which `limit_key` says.
void check_below(const std::vector<std::int64_t>& values, std::int64_t limit,
                 const std::string& path, const std::string& key, const std::string& limit_key,
                 std::vector<CaseFinding>& findings);
void check_who_and_when(const Case& value, const std::vector<std::int64_t>& ranks,
                        const std::vector<std::int64_t>& steps, const std::string& path,
                        std::vector<CaseFinding>& findings);
void check_schedule(const Case& value, std::vector<CaseFinding>& findings);
void check_launch(const Case& value, std::vector<CaseFinding>& findings);
/// The ends that are expected, of ranks or of the processes of a launch.
void check_expected_ends(const Case& value, const ExpectSpec& expect, const std::string& path,
                         std::vector<CaseFinding>& findings);
void check_training(const Case& value, std::vector<CaseFinding>& findings);
void check_exactness(const Case& value, const KnownNames& names,
                     std::vector<CaseFinding>& findings);
void check_events(const Case& value, const KnownNames& names, std::vector<CaseFinding>& findings);
/// Precondition: every single entry of [[at]] is sound, and so is the model.
void check_routes(const Case& value, std::vector<CaseFinding>& findings);
void check_faults(const Case& value, const KnownNames& names, std::vector<CaseFinding>& findings);
/// Entries of [[at]] that set what is set already, wherever they are come to: they prove nothing.
void check_without_effect(const Case& value, std::vector<CaseFinding>& findings);
/// Whether the action holds for a whole forward or step, so that it has no place inside of it.
bool holds_for_whole_step(const AtSpec& at);
/// Where the entry happens, apart from its ranks and steps.
void check_place(const Case& value, const AtSpec& at, const std::string& path,
                 std::vector<CaseFinding>& findings);
void check_place(const Case& value, const FaultSpec& fault, const std::string& path,
                 std::vector<CaseFinding>& findings);
void check_agreement(const Case& value, std::vector<CaseFinding>& findings);
/// What a step is made of must be part of what [train] gives it.
void check_shares(const Case& value, const AtSpec& at, const std::string& path,
                  std::vector<CaseFinding>& findings);
void check_heads(const Case& value, const AtSpec& at, const std::string& path,
                 std::vector<CaseFinding>& findings);
void check_expected_schedules(const Case& value, const ExpectSpec& expect, const std::string& path,
                              std::vector<CaseFinding>& findings);
/// `path` is "expect", "expect.sim", "expect.gloo", "expect.torch" or "expect.torch.1".
void check_expectation(const Case& value, const ExpectSpec& expect, const std::string& path,
                       const KnownNames& names, std::vector<CaseFinding>& findings);

}  // namespace lockstep::harness
