// SPDX-License-Identifier: Apache-2.0
// lockstep audit: was a real training in lockstep, by what its ranks wrote down?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/audit/audit.h"
#include "harness/cli/commands.h"

namespace lockstep::harness::cli {
namespace {

struct AuditOptions {
  std::string folder, against;
  bool so_far = false;
};

int run_audit(const AuditOptions& options) {
  const std::vector<RankRecord> records = read_records(options.folder);
  std::vector<RankRecord> others;
  if (!options.against.empty()) others = read_records(options.against);
  const Audit result = audit(records, options.against.empty() ? nullptr : &others);
  LOCKSTEP_USAGE(options.against.empty() || result.num_states_of_others > 0,
                 "{} and {} have no state of a step in common", options.folder, options.against);
  fmt::print("{}", describe(result, options.folder, options.so_far));
  return is_in_lockstep(result, options.so_far) ? kAllAsExpected : kNotAsExpected;
}

}  // namespace

void add_audit_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand(
      "audit", "Judge what the ranks of a real training run wrote down (core/training_record.h)");
  command->footer(
      "Example: lockstep audit digests\n"
      "Exit status: 0 all ranks held the same bits and finished, or with --so-far may still do "
      "so;\n"
      "1 they did not, or nothing was compared; 2 wrong usage, or files that are no records.");
  const auto options = std::make_shared<AuditOptions>();
  command->add_option("DIR", options->folder, "The folder with rank-0.jsonl, rank-1.jsonl, ...")
      ->required();
  command->add_option("--against", options->against,
                      "Another run's folder, which must hold the same bits");
  command->add_flag("--so-far", options->so_far,
                    "The run goes on: ranks without an end, or without a record, are no failure");
  command->callback([options, &exit_status] { exit_status = run_audit(*options); });
}

}  // namespace lockstep::harness::cli
