// SPDX-License-Identifier: Apache-2.0
// Which options a case has, for a table of the pairs that were tried together.
#include "harness/fuzz/pairs/options.h"

#include <algorithm>
#include <cstdint>

#include "harness/fuzz/pairs/composite_options.h"
#include "harness/fuzz/predict/predict.h"

namespace lockstep::harness::fuzz {

namespace {

using Names = std::vector<std::string>;

/// A key with these names as values. `get` gives a reference to it.
template <class Get>
Option choice(const std::string& name, const Names& names, Get get) {
  Option option{name, {}};
  for (const std::string& word : names) {
    option.values.push_back({word,
                             [get, word](const Case& value) {
                               return get(const_cast<Case&>(value)) == word;  // only looked at
                             },
                             [get, word](Case& value) { get(value) = word; }});
  }
  return option;
}

template <class Get>
Option flag(const std::string& name, Get get) {
  Option option{name, {}};
  for (const bool on : {false, true}) {
    option.values.push_back({on ? "on" : "off",
                             [get, on](const Case& value) {
                               return get(const_cast<Case&>(value)) == on;  // only looked at
                             },
                             [get, on](Case& value) { get(value) = on; }});
  }
  return option;
}

/// Numbers from `least` on, up to the next range.
struct Range {
  std::int64_t least;
  const char* name;
};

template <class Get, class Put>
Option ranges(const std::string& name, const std::vector<Range>& list, Get get, Put put) {
  Option option{name, {}};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::int64_t least = list[i].least;
    const std::int64_t end = i + 1 < list.size() ? list[i + 1].least : INT64_MAX;
    option.values.push_back(
        {list[i].name,
         [get, least, end](const Case& value) { return get(value) >= least && get(value) < end; },
         [put, least](Case& value) { put(value, least); }});
  }
  return option;
}

// A micro-batch keeps its samples.
void put_micro_batches(Case& value, std::int64_t count) {
  const std::int64_t each =
      std::max<std::int64_t>(1, value.train.batch_per_rank / value.train.micro_batches);
  value.train.micro_batches = count;
  value.train.batch_per_rank = each * count;
}

void put_forwards(Case& value, std::int64_t count) {
  value.train.batch_per_rank *= count;
  value.train.batch_per_rank /= std::max<std::int64_t>(1, value.train.forwards_per_backward);
  value.train.forwards_per_backward = count;
}

std::vector<Option> made() {
  const auto of = [](Case& value) -> TrainSpec& { return value.train; };
  std::vector<Option> all;
  all.push_back(ranges(
      "ranks", {{1, "1"}, {2, "2"}, {3, "3-4"}, {5, "5-8"}, {9, "9-64"}},
      [](const Case& value) { return value.world.ranks; },
      [](Case& value, std::int64_t count) { value.world.ranks = count; }));
  all.push_back(
      Option{"mode",
             {{"valid", [](const Case& value) { return !has_mistake(value); }, [](Case&) {}},
              {"broken", [](const Case& value) { return has_mistake(value); }, [](Case&) {}}}});
  all.push_back(choice(
      "model", {"mlp", "graph"}, [](Case & v) -> auto& { return v.model.kind; }));
  all.push_back(block_options());
  all.push_back(choice(
      "dtype", {"float32", "float64"}, [](Case & v) -> auto& { return v.model.dtype; }));
  all.push_back(tie_options());
  all.push_back(choice(
      "data", {"regression", "classification"}, [](Case & v) -> auto& { return v.data.kind; }));
  all.push_back(flag(
      "exact", [](Case & v) -> auto& { return v.data.exact; }));
  all.push_back(flag(
      "shuffle", [](Case & v) -> auto& { return v.data.shuffle; }));
  all.push_back(ranges(
      "steps", {{1, "1"}, {2, "2"}, {3, "3+"}}, [](const Case& value) { return value.train.steps; },
      [](Case& value, std::int64_t count) { value.train.steps = count; }));
  all.push_back(ranges(
      "micro_batches", {{1, "1"}, {2, "2"}, {3, "3+"}},
      [](const Case& value) { return value.train.micro_batches; }, put_micro_batches));
  all.push_back(choice(
      "sync_on", {"last", "every", "never"}, [of](Case & v) -> auto& { return of(v).sync_on; }));
  all.push_back(choice(
      "no_sync_covers",
      {"both", "forward", "backward"}, [of](Case & v) -> auto& { return of(v).no_sync_covers; }));
  all.push_back(ranges(
      "forwards_per_backward", {{1, "1"}, {2, "2+"}},
      [](const Case& value) { return value.train.forwards_per_backward; }, put_forwards));
  all.push_back(choice(
      "backward_from", {"sum", "each"}, [of](Case & v) -> auto& { return of(v).backward_from; }));
  all.push_back(ranges(
      "backwards_per_forward", {{1, "1"}, {2, "2+"}},
      [](const Case& value) { return value.train.backwards_per_forward; },
      [](Case& value, std::int64_t count) { value.train.backwards_per_forward = count; }));
  all.push_back(choice(
      "loss", {"mse", "cross_entropy", "dot", "input_gradient", "anchored_input_gradient"},
      [of](Case & v) -> auto& { return of(v).loss; }));
  all.push_back(choice(
      "reduction", {"mean", "sum"}, [of](Case & v) -> auto& { return of(v).reduction; }));
  all.push_back(choice(
      "mean_over",
      {"micro_batch", "window", "all"}, [of](Case & v) -> auto& { return of(v).mean_over; }));
  all.push_back(choice(
      "zero_grad",
      {"none", "zero", "optimizer", "never"}, [of](Case & v) -> auto& { return of(v).zero_grad; }));
  all.push_back(Option{"clip",
                       {{"off", [](const Case& v) { return v.train.clip_norm == 0.0; },
                         [](Case& v) { v.train.clip_norm = 0.0; }},
                        {"on", [](const Case& v) { return v.train.clip_norm > 0.0; },
                         [](Case& v) { v.train.clip_norm = 0.5; }}}});
  all.push_back(choice(
      "optimizer", {"sgd", "adam", "adamw", "adagrad", "rmsprop"}, [of](Case & v) -> auto& {
        return of(v).optimizer.kind;
      }));
  all.push_back(flag(
      "optimizer_before_wrapping", [of](Case & v) -> auto& {
        return of(v).optimizer_before_wrapping;
      }));
  all.push_back(choice(
      "agree",
      {"never", "before_forward", "after_forward", "after_backward"}, [of](Case & v) -> auto& {
        return of(v).agree;
      }));
  all.push_back(ranges(
      "first_cap_bytes", {{1, "1-8"}, {9, "9-1023"}, {1024, "1024+"}},
      [](const Case& value) { return value.ddp.first_bucket_cap_bytes; },
      [](Case& value, std::int64_t bytes) { value.ddp.first_bucket_cap_bytes = bytes; }));
  all.push_back(ranges(
      "cap_bytes", {{1, "1-8"}, {9, "9-1023"}, {1024, "1024+"}},
      [](const Case& value) { return value.ddp.bucket_cap_bytes; },
      [](Case& value, std::int64_t bytes) { value.ddp.bucket_cap_bytes = bytes; }));
  all.push_back(flag(
      "view", [](Case & v) -> auto& { return v.ddp.gradient_as_bucket_view; }));
  all.push_back(flag(
      "find_unused", [](Case & v) -> auto& { return v.ddp.find_unused_parameters; }));
  all.push_back(flag(
      "static_graph", [](Case & v) -> auto& { return v.ddp.static_graph; }));
  all.push_back(flag(
      "broadcast_buffers", [](Case & v) -> auto& { return v.ddp.broadcast_buffers; }));
  all.push_back(flag(
      "init_sync", [](Case & v) -> auto& { return v.ddp.init_sync; }));
  all.push_back(choice(
      "hook",
      {"none", "all_reduce", "all_reduce_copy", "fp16_compress", "bf16_compress", "noop",
       "quantize_per_tensor", "quantize_per_channel", "power_sgd", "post_local_sgd"},
      [](Case & v) -> auto& { return v.ddp.hook; }));
  all.push_back(choice(
      "checks", {"off", "fast", "full"}, [](Case & v) -> auto& { return v.ddp.checks; }));
  all.push_back(join_options());
  all.push_back(event_options());
  all.push_back(choice(
      "schedule", {"round_robin", "random", "pct"},
      [](Case & v) -> auto& { return v.schedule.policy; }));
  all.push_back(fault_options());
  all.push_back({"launch",
                 {{"off", [](const Case& value) { return !value.launch.is_asked_for(); },
                   [](Case& value) { value.launch = LaunchSpec(); }},
                  {"on", [](const Case& value) { return value.launch.is_asked_for(); },
                   [](Case& value) { value.launch.interface = "lo"; }}}});
  return all;
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> all = made();
  return all;
}

std::vector<std::string> option_names(const Case& value) {
  std::vector<std::string> names;
  for (const Option& option : options()) {
    for (const OptionValue& one : option.values) {
      if (one.has(value)) names.push_back(option.name + "=" + one.name);
    }
  }
  return names;
}

}  // namespace lockstep::harness::fuzz
