// SPDX-License-Identifier: Apache-2.0
// A campaign in words.
#pragma once

#include <string>

#include "harness/fuzz/campaign/campaign.h"

namespace lockstep::harness::fuzz {

/// How a finding was shrunk, where it was written, and the whole file, some lines.
std::string describe_found(const Found& found, bool was_to_shrink);

/// The counts, what was found, the best scripts, and the command that repeats it; `options_text`
/// are its options besides seed and cases, with a leading blank.
std::string describe_campaign(const CampaignSummary& summary, const CampaignOptions& options,
                              const std::string& options_text);

}  // namespace lockstep::harness::fuzz
