// SPDX-License-Identifier: Apache-2.0
// The fields of each record of a CaseResult, by name: the one list behind writing and reading.
#pragma once

#include "harness/outcome.h"

namespace lockstep::harness::detail {

/// Fields<R>::visit(record, f) calls f(name, field) for every field of a record, in the order of
/// declaration. The structured bindings name all members, so a record that grows does not compile
/// until its new field is named here.
template <class R>
struct Fields;

template <>
struct Fields<CauseHypothesis> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [name, description, exact] = record;
    f("name", name), f("description", description), f("exact", exact);
  }
};

template <>
struct Fields<Divergence> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [oracle, step, phase, ranks, tensor, element, expected, actual, expected_bits,
           actual_bits, ulp, num_elements_differ, causes] = record;
    f("oracle", oracle), f("step", step), f("phase", phase), f("ranks", ranks);
    f("tensor", tensor), f("element", element), f("expected", expected), f("actual", actual);
    f("expected_bits", expected_bits), f("actual_bits", actual_bits), f("ulp", ulp);
    f("num_elements_differ", num_elements_differ), f("causes", causes);
  }
};

template <>
struct Fields<Distance> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [observed, bound, step, tensor] = record;
    f("observed", observed), f("bound", bound), f("step", step), f("tensor", tensor);
  }
};

template <>
struct Fields<Cure> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [name, description] = record;
    f("name", name), f("description", description);
  }
};

template <>
struct Fields<TriedCure> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [name, proven, instead] = record;
    f("name", name), f("proven", proven), f("instead", instead);
  }
};

template <>
struct Fields<StepSummary> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [step, reference_loss, losses, reference_checksum, checksums] = record;
    f("step", step), f("reference_loss", reference_loss), f("losses", losses);
    f("reference_checksum", reference_checksum), f("checksums", checksums);
  }
};

template <>
struct Fields<WaitingIn> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [collective, site, seq, step, bucket, numel, dtype, waiting_for] = record;
    f("collective", collective), f("site", site), f("seq", seq), f("step", step);
    f("bucket", bucket), f("numel", numel), f("dtype", dtype), f("waiting_for", waiting_for);
  }
};

template <>
struct Fields<NeverReady> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [parameter, bucket, step, micro_batch, why] = record;
    f("parameter", parameter), f("bucket", bucket), f("step", step);
    f("micro_batch", micro_batch), f("why", why);
  }
};

template <>
struct Fields<CollectiveRecord> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [collective, site, step, numel, dtype, bucket] = record;
    f("collective", collective), f("site", site), f("step", step), f("numel", numel);
    f("dtype", dtype), f("bucket", bucket);
  }
};

template <>
struct Fields<Absence> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [rank, instead] = record;
    f("rank", rank), f("instead", instead);
  }
};

template <>
struct Fields<StuckCollective> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [collective, waiting, absent] = record;
    f("collective", collective), f("waiting", waiting), f("absent", absent);
  }
};

template <>
struct Fields<IssuedBy> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [collective, ranks] = record;
    f("collective", collective), f("ranks", ranks);
  }
};

template <>
struct Fields<WrongPairing> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [seq, issued, nothing, is_mixed] = record;
    f("seq", seq), f("issued", issued), f("nothing", nothing), f("is_mixed", is_mixed);
  }
};

template <>
struct Fields<RankState> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [rank, ending, at_step, at_phase, waiting, never_ready, error_kind, error_message, signal,
           alone] = record;
    f("rank", rank), f("ending", ending), f("at_step", at_step), f("at_phase", at_phase);
    f("waiting", waiting), f("never_ready", never_ready), f("error_kind", error_kind);
    f("error_message", error_message), f("signal", signal), f("alone", alone);
  }
};

template <>
struct Fields<MismatchInfo> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [seq, first_rank, second_rank, first, second] = record;
    f("seq", seq), f("first_rank", first_rank), f("second_rank", second_rank);
    f("first", first), f("second", second);
  }
};

template <>
struct Fields<Outcome> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [kind, oracles, worst, divergence, ranks, mismatch, stuck, wrong_pairing, diagnoses, cure,
           cures_tried, reason, wait_for_text, wait_for_dot] = record;
    f("kind", kind), f("oracles", oracles), f("worst", worst), f("divergence", divergence);
    f("ranks", ranks), f("mismatch", mismatch), f("stuck", stuck);
    f("wrong_pairing", wrong_pairing), f("diagnoses", diagnoses), f("cure", cure);
    f("cures_tried", cures_tried), f("reason", reason);
    f("wait_for_text", wait_for_text), f("wait_for_dot", wait_for_dot);
  }
};

template <>
struct Fields<PeerComparison> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [sync, differences, reason] = record;
    f("sync", sync), f("differences", differences), f("reason", reason);
  }
};

template <>
struct Fields<BrokenProperty> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [name, difference] = record;
    f("name", name), f("difference", difference);
  }
};

template <>
struct Fields<ScheduleCount> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [num_schedules, num_repetitions, num_different, all, num_orders] = record;
    f("num_schedules", num_schedules), f("num_repetitions", num_repetitions);
    f("num_different", num_different), f("all", all), f("num_orders", num_orders);
  }
};

template <>
struct Fields<CaseResult> {
  template <class R, class F>
  static void visit(R& record, F&& f) {
    auto& [file, name, title, backend, replay_toml, outcome, as_expected, skipped, complaints,
           steps, bucket_all_reduces, rebuilds, trace_hash, schedule, of_one_schedule, schedules,
           equals_simulator, peer, broken_properties, longest_wait_ns, internal_error, seconds] =
        record;
    f("file", file), f("name", name), f("title", title), f("backend", backend);
    f("replay_toml", replay_toml), f("outcome", outcome), f("as_expected", as_expected);
    f("skipped", skipped), f("complaints", complaints), f("steps", steps);
    f("bucket_all_reduces", bucket_all_reduces), f("rebuilds", rebuilds);
    f("trace_hash", trace_hash), f("schedule", schedule);
    f("of_one_schedule", of_one_schedule), f("schedules", schedules);
    f("equals_simulator", equals_simulator), f("peer", peer);
    f("broken_properties", broken_properties), f("longest_wait_ns", longest_wait_ns);
    f("internal_error", internal_error), f("seconds", seconds);
  }
};

}  // namespace lockstep::harness::detail
