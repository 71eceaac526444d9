// SPDX-License-Identifier: Apache-2.0
// The wrapper's options that must not change a result.
#include <fmt/format.h>

#include "harness/block_spec.h"
#include "harness/fuzz/properties/relations.h"
#include "harness/fuzz/properties/run_difference.h"
#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/valid/valid.h"
#include "harness/judge/judge_schedules.h"
#include "harness/losses.h"
#include "harness/model.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {

Case as_variant(Case variant) {
  variant = on_schedule(variant, "");
  variant.expect = {};
  variant.expect.oracles = {"ranks"};
  variant.expect_sim.reset();
  variant.expect_gloo.reset();
  variant.expect_torch.clear();
  return variant;
}

bool is_sound(const Case& variant) {
  return check_case(variant).empty() && why_not_valid(variant).empty();
}

namespace {

std::string compare(const Case& value, const Run& subject, Executor& executor,
                    const std::string& variant_is, const Case& variant, Alike alike = {}) {
  const Run other = executor.execute(compile_subject(variant));
  if (value.data.exact) {
    if (rounded(subject) || rounded(other)) return "";
    alike.numbers = Equality::kValues;
  }
  const std::string found = run_difference(subject, other, alike);
  return found.empty() ? "" : fmt::format("with {}: {}", variant_is, found);
}

// ---- bucket_cap

constexpr std::int64_t kLargeBytes = 1 << 16;

bool has_large_caps(const Case& value) {
  return value.ddp.first_bucket_cap_bytes >= kLargeBytes &&
         value.ddp.bucket_cap_bytes >= kLargeBytes;
}

Case with_other_caps(const Case& value) {
  Case variant = as_variant(value);
  const bool large = has_large_caps(value);
  variant.ddp.first_bucket_cap_bytes = large ? 1 : DdpSpec().first_bucket_cap_bytes;
  variant.ddp.bucket_cap_bytes = large ? 1 : DdpSpec().bucket_cap_bytes;
  return variant;
}

bool bucket_cap_applies(const Case& value) {
  return is_plain(value) && reduces_in_backward(value.ddp) && sums_commute(value) &&
         hook_is_elementwise(value) && is_sound(with_other_caps(value));
}

std::string bucket_cap_difference(const Case& value, const Run& subject, Executor& executor) {
  return compare(value, subject, executor,
                 has_large_caps(value) ? "a bucket for every parameter" : "the default caps",
                 with_other_caps(value));
}

// ---- gradient_view

Case with_other_views(const Case& value) {
  Case variant = as_variant(value);
  variant.ddp.gradient_as_bucket_view = !value.ddp.gradient_as_bucket_view;
  return variant;
}

// What no rank used keeps its gradient, unless that lies in the bucket (I7): gradients that were
// averaged before must not be there, nor a hook that makes something of zeros. H9 and I9 are the
// peer's.
bool gradient_view_applies(const Case& value) {
  const bool is_ours = value.ddp.sync == "ddp";
  return is_plain(value) && reduces_in_backward(value.ddp) && clears_gradients(value) &&
         (value.ddp.hook != "none" || divides_by_power_of_two(value)) &&
         one_backward_per_window(value) &&
         (!use_varies(value) ||
          (is_ours && !reduces_each_micro_batch(value) && hook_is_elementwise(value))) &&
         (is_ours || complex_parameters(value.model).empty()) && is_sound(with_other_views(value));
}

std::string gradient_view_difference(const Case& value, const Run& subject, Executor& executor) {
  return compare(value, subject, executor,
                 fmt::format("gradient_as_bucket_view = {}", !value.ddp.gradient_as_bucket_view),
                 with_other_views(value));
}

// ---- all_reduce_hook

Case with_other_hook(const Case& value) {
  Case variant = as_variant(value);
  variant.ddp.hook = value.ddp.hook == "none" ? "all_reduce" : "none";
  return variant;
}

// A hook divides by the number of ranks, joined or not (G7).
bool all_reduce_hook_applies(const Case& value) {
  return is_plain(value) && reduces_in_backward(value.ddp) && hook_averages(value) &&
         divides_by_power_of_two(value) && value.ddp.join != "divide_by_active" &&
         is_sound(with_other_hook(value));
}

std::string all_reduce_hook_difference(const Case& value, const Run& subject, Executor& executor) {
  const Case variant = with_other_hook(value);
  return compare(value, subject, executor,
                 variant.ddp.hook == "none" ? "no hook" : "the hook all_reduce", variant);
}

// ---- static_graph

Case with_other_graph(const Case& value) {
  Case variant = as_variant(value);
  variant.ddp.static_graph = !value.ddp.static_graph;
  variant.ddp.find_unused_parameters = value.ddp.static_graph;
  return variant;
}

bool is_hard_to_search(const Case& value) {
  for (const auto& [name, text] : value.model.blocks) {
    const BlockSpec spec = parse_block(text).spec;
    if (spec.kind == BlockKind::kOffset || spec.checkpoint == Checkpointing::kReentrant) {
      return true;
    }
  }
  return false;
}

bool static_graph_applies(const Case& value) {
  return is_plain(value) && reduces_in_backward(value.ddp) && sums_commute(value) &&
         hook_is_elementwise(value) && !use_varies(value) && one_backward_per_window(value) &&
         value.ddp.join == "off" && !is_hard_to_search(value) &&
         !is_input_gradient(value.train.loss) && !rounds_by_sink(value) &&
         // PyTorch's has a static graph without windows (L9), and other rules for several forwards.
         (value.ddp.sync == "ddp" ||
          (value.train.micro_batches == 1 && value.train.forwards_per_backward == 1)) &&
         is_sound(with_other_graph(value));
}

std::string static_graph_difference(const Case& value, const Run& subject, Executor& executor) {
  return compare(value, subject, executor,
                 value.ddp.static_graph
                     ? "find_unused_parameters = true in the place of static_graph = true"
                     : "static_graph = true",
                 with_other_graph(value));
}

}  // namespace

const std::vector<Property>& option_relations() {
  static const std::vector<Property> kRelations = {
      {"bucket_cap", "how gradients are cut into buckets does not change them (T6)",
       bucket_cap_applies, bucket_cap_difference},
      {"gradient_view", "gradients that are views of buckets are those that are copied (T6, M8)",
       gradient_view_applies, gradient_view_difference},
      {"all_reduce_hook", "the hook all_reduce averages as no hook does (N6)",
       all_reduce_hook_applies, all_reduce_hook_difference},
      {"static_graph", "where the graph is static, saying so changes nothing (L)",
       static_graph_applies, static_graph_difference},
  };
  return kRelations;
}

}  // namespace lockstep::harness::fuzz
