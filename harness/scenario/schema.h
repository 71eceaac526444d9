// SPDX-License-Identifier: Apache-2.0
// What a scenario file may say: the one description behind reader, writer and template.
#pragma once

#include <cstdint>

#include "harness/case.h"
#include "harness/scenario/constraints.h"
#include "harness/scenario/names.h"

// Note [One description of the schema]
// `describe(visitor, Of<Spec>{})` tells a visitor every key of a table, in canonical order. The
// reader, the writer, the template and the list of known keys are visitors, so a key that is
// described once is read, checked, printed and documented. A visitor has these members:
//   field(key, member, constraint, doc)    one value
//   needed(key, member, constraint, doc)   one value that has no default
//   one_or_many(key, keys, member, constraint, doc)   `key = v` or `keys = [v, ...]`
//   table(key, member, doc)                a nested table, always present in the spec
//   tables(key, member, place, doc)        any number of tables: one table, or an array of tables
//   expectations(doc)                      [expect] with its stand-ins (Case only)
// A constraint says which values are allowed beyond the type of the member.

namespace lockstep::harness {

/// The version of the schema that this program reads.
inline constexpr std::int64_t kSchemaVersion = 1;

template <class S>
struct Of {};

inline constexpr IntRange kCount{0, 1'000'000'000};
inline constexpr IntRange kRank{0, 63};
inline constexpr IntRange kStep{0, 999'999};
inline constexpr IntRange kPort{0, 65'535};
inline constexpr RealRange kReal{-1e30, 1e30};
inline constexpr RealRange kNotNegative{0.0, 1e30};

inline constexpr ListOf<Text> kNames{{}, 0, 10'000, true};

template <class V>
void describe(V& v, Of<WorldSpec>) {
  v.field("ranks", &WorldSpec::ranks, IntRange{1, 64}, "number of ranks");
  v.field("check_tags", &WorldSpec::check_tags, Any{},
          "simulator: collectives that meet must agree on step and bucket, not only on shape");
  v.field("simulator_only", &WorldSpec::simulator_only, Any{},
          "the case makes no sense on a real transport");
  v.field("timeout_ms", &WorldSpec::timeout_ms, IntRange{0, 3'600'000},
          "longest wait for the slowest rank in a collective; 0: for ever");
}

template <class V>
void describe(V& v, Of<HostSpec>) {
  v.needed("name", &HostSpec::name, Text{}, "what the machine is called");
  v.field("interfaces", &HostSpec::interfaces, OrderedTexts{}, "name = \"address\"");
  v.field("names", &HostSpec::names, OrderedTexts{}, "its name table: name = \"address\"");
  v.field("held_ports", &HostSpec::held_ports, ListOf<IntRange>{kPort, 0, 64, true},
          "ports that other programs listen on");
}

template <class V>
void describe(V& v, Of<ProcessSpec>) {
  v.field("rank", &ProcessSpec::rank, kRank, "the rank that it takes itself for");
  v.field("world_size", &ProcessSpec::world_size, IntRange{0, 64}, "0: world.ranks");
  v.field("run", &ProcessSpec::run, Text{}, "the run whose token it has");
  v.field("store", &ProcessSpec::store, Text{}, "where it goes to meet the others");
  v.field("host", &ProcessSpec::host, Text{}, "where it runs; left out: on the first host");
  v.field("interface", &ProcessSpec::interface, Text{}, "left out: launch.interface");
}

template <class V>
void describe(V& v, Of<LaunchSpec>) {
  v.field("interface", &LaunchSpec::interface, Any{},
          "a name, a pattern (\"^lo\": any other) or an address; left out: what the host name is");
  v.field("port", &LaunchSpec::port, kPort, "to listen on; 0: the system chooses");
  v.field("timeout_ms", &LaunchSpec::timeout_ms, IntRange{1, 3'600'000}, "for all to meet");
  v.field("left_behind_by", &LaunchSpec::left_behind_by, Any{},
          "a run that was killed when it had met; what it left in the store is still there");
  v.field("store_removed", &LaunchSpec::store_removed, Any{},
          "the store is removed when all have met; then they meet once more, as a sub-group");
  v.tables("hosts", &LaunchSpec::hosts, TablesPlace::kInline,
           "machines, for the simulator; left out: one with a loopback interface");
  v.tables("processes", &LaunchSpec::processes, TablesPlace::kInline,
           "those that are started; left out: one for each rank");
}

template <class V>
void describe(V& v, Of<ScheduleSpec>) {
  v.field("policy", &ScheduleSpec::policy, schedule_policies(),
          "simulator: which rank goes on, which collective completes; random and pct are seeded");
  v.field("first_step", &ScheduleSpec::first_step, IntRange{-1, 999'999},
          "from here on other schedules than the default one are tried; -1: from construction");
  v.field("runs", &ScheduleSpec::runs, IntRange{1, 1'000'000}, "random, pct: so many schedules");
  v.field("depth", &ScheduleSpec::depth, IntRange{1, 100},
          "pct: ordering constraints that a fault may need");
  v.field("runs_max", &ScheduleSpec::runs_max, IntRange{1, 100'000'000},
          "exhaustive: gives up after so many schedules");
  v.field("deviations", &ScheduleSpec::deviations, Any{},
          "replay: a schedule as reports print it, such as \"12:1 15:c0\"");
}

template <class V>
void describe(V& v, Of<ModelSpec>) {
  v.field("kind", &ModelSpec::kind, Choices{{"mlp", "graph"}},
          "mlp: widths and activation; graph: blocks and forward");
  v.field("widths", &ModelSpec::widths, ListOf<IntRange>{{1, 65'536}, 2, 1'000},
          "mlp: input, hidden ..., output; blocks are layer0, act0, layer1, ...");
  v.field("activation", &ModelSpec::activation, Choices{{"relu", "tanh", "identity"}},
          "mlp: between the layers");
  v.field("bias", &ModelSpec::bias, Any{}, "mlp: linear layers have a bias");
  v.field("dtype", &ModelSpec::dtype, Choices{{"float32", "float64"}}, "of every parameter");
  v.field("frozen", &ModelSpec::frozen, kNames, "parameters or blocks that are not trained");
  v.field("tied", &ModelSpec::tied, ListOf<ListOf<Text>>{{{}, 2, 2}, 0, 10'000},
          "pairs of parameters; the second becomes the first");
  v.field("forward", &ModelSpec::forward, Stages{},
          "graph: stages, a list being a stage of several blocks; left out: all blocks in order");
  v.field("blocks", &ModelSpec::blocks, OrderedTexts{}, "graph: name = \"type sizes\"");
}

template <class V>
void describe(V& v, Of<DataSpec>) {
  v.field("kind", &DataSpec::kind, Choices{{"regression", "classification"}}, "kind of targets");
  v.field("samples", &DataSpec::samples, IntRange{1, 1 << 20}, "size of the data set");
  v.field("exact", &DataSpec::exact, Any{},
          "dyadic values: nothing is ever rounded, so the serial oracle must be equal too");
  v.field("shuffle", &DataSpec::shuffle, Any{}, "a new order in every epoch, seeded");
  v.field("drop_last", &DataSpec::drop_last, Any{}, "sampler: drop the rest instead of padding");
  v.field("sequence_tokens", &DataSpec::sequence_tokens, IntRange{1, 4'096},
          "length of the inputs of an embedding");
  v.field("image_pixels", &DataSpec::image_pixels, IntRange{1, 1'024},
          "side of the inputs of a conv2d");
  v.field("inputs", &DataSpec::inputs, ListOf<RealRange>{kReal, 0, 1'000'000},
          "the samples' numbers, one after the other, over and over; left out: drawn");
  v.field("targets", &DataSpec::targets, ListOf<RealRange>{kReal, 0, 1'000'000},
          "the same for the targets of each head");
}

template <class V>
void describe(V& v, Of<OptimizerSpec>) {
  v.field("kind", &OptimizerSpec::kind, Choices{{"sgd", "adam", "adamw", "adagrad", "rmsprop"}},
          "an optimizer of LibTorch");
  v.field("lr", &OptimizerSpec::lr, kNotNegative, "learning rate");
  v.field("momentum", &OptimizerSpec::momentum, kNotNegative, "sgd, rmsprop");
  v.field("dampening", &OptimizerSpec::dampening, kReal, "sgd");
  v.field("nesterov", &OptimizerSpec::nesterov, Any{}, "sgd with momentum");
  v.field("weight_decay", &OptimizerSpec::weight_decay, kNotNegative, "any optimizer");
  v.field("betas", &OptimizerSpec::betas, ListOf<RealRange>{{0.0, 0.999'999'999}, 2, 2},
          "adam, adamw");
  v.field("eps", &OptimizerSpec::eps, kNotNegative, "all but sgd");
  v.field("alpha", &OptimizerSpec::alpha, kNotNegative, "rmsprop");
  v.field("lr_decay", &OptimizerSpec::lr_decay, kNotNegative, "adagrad");
  v.field("amsgrad", &OptimizerSpec::amsgrad, Any{}, "adam, adamw");
}

template <class V>
void describe(V& v, Of<TrainSpec>) {
  v.field("steps", &TrainSpec::steps, IntRange{1, 1'000'000}, "optimizer steps");
  v.field("steps_of_rank", &TrainSpec::steps_of_rank,
          ListOf<IntRange>{{0, 1'000'000}, 0, 64, false},
          "uneven inputs: the steps that each rank has, the most being steps; left out: all");
  v.field("batch_per_rank", &TrainSpec::batch_per_rank, IntRange{1, 1'000'000},
          "samples per rank and step, over all micro-batches");
  v.field("micro_batches", &TrainSpec::micro_batches, IntRange{1, 1'000'000},
          "divides batch_per_rank");
  v.field("forwards_per_backward", &TrainSpec::forwards_per_backward, IntRange{1, 1'000'000},
          "divides the samples of a micro-batch");
  v.field("backward_from", &TrainSpec::backward_from, Choices{{"sum", "each"}},
          "the sum of their losses, or each loss, one after the other");
  v.field("sync_on", &TrainSpec::sync_on, Choices{{"every", "last", "never"}},
          "which micro-batches of a step synchronise gradients");
  v.field("no_sync_covers", &TrainSpec::no_sync_covers, Choices{{"both", "forward", "backward"}},
          "what of the other micro-batches is inside no_sync");
  v.field("loss", &TrainSpec::loss,
          Choices{{"mse", "cross_entropy", "dot", "input_gradient", "anchored_input_gradient"}},
          "dot is linear; cross_entropy is for data.kind = \"classification\"; input_gradient: of "
          "the output, squared; anchored: plus zero times the output");
  v.field("reduction", &TrainSpec::reduction, Choices{{"mean", "sum"}}, "over the local batch");
  v.field("mean_over", &TrainSpec::mean_over, Choices{{"micro_batch", "window", "all"}},
          "what a mean is over where [[at]] gives samples: the micro-batch, a rank's step, all");
  v.field("backwards_per_forward", &TrainSpec::backwards_per_forward, IntRange{1, 1'000},
          "each with its share of the loss, over a graph that is kept");
  v.field("scale_loss_by_world_size", &TrainSpec::scale_loss_by_world_size, Any{},
          "cancels the division by the number of ranks");
  v.field("zero_grad", &TrainSpec::zero_grad, Choices{{"none", "zero", "optimizer", "never"}},
          "none: gradients become undefined; zero: zeroed in place; optimizer: by "
          "Optimizer::zero_grad");
  v.field("clip_norm", &TrainSpec::clip_norm, kNotNegative,
          "largest gradient norm; 0: no clipping");
  v.field("optimizer_before_wrapping", &TrainSpec::optimizer_before_wrapping, Any{},
          "build the optimizer before the module is wrapped");
  v.field("agree", &TrainSpec::agree,
          Choices{{"never", "before_forward", "after_forward", "after_backward"}},
          "where ranks tell each other that one skips the step or begins it anew; then all do");
  v.table("optimizer", &TrainSpec::optimizer, "");
}

template <class V>
void describe(V& v, Of<DdpSpec>) {
  v.field("sync", &DdpSpec::sync, sync_kinds(), "who synchronises; torch: PyTorch's own reducer");
  v.field("first_bucket_cap_bytes", &DdpSpec::first_bucket_cap_bytes, IntRange{1, kInt64Max},
          "size at which the first bucket is closed");
  v.field("bucket_cap_bytes", &DdpSpec::bucket_cap_bytes, IntRange{1, kInt64Max},
          "size at which any other bucket is closed");
  v.field("gradient_as_bucket_view", &DdpSpec::gradient_as_bucket_view, Any{},
          "gradients live inside the buckets");
  v.field("find_unused_parameters", &DdpSpec::find_unused_parameters, Any{},
          "look for parameters that a forward left out");
  v.field("static_graph", &DdpSpec::static_graph, Any{}, "the same parameters in every step");
  v.field("broadcast_buffers", &DdpSpec::broadcast_buffers, Any{},
          "buffers of rank 0 before every forward");
  v.field("init_sync", &DdpSpec::init_sync, Any{}, "parameters and buffers of rank 0 at the start");
  v.field("hook", &DdpSpec::hook,
          Choices{{"none", "all_reduce", "fp16_compress", "bf16_compress", "noop",
                   "quantize_per_tensor", "quantize_per_channel", "power_sgd", "post_local_sgd",
                   "all_reduce_copy"}},
          "communication hook");
  v.field("checks", &DdpSpec::checks, Choices{{"off", "fast", "full"}},
          "checked mode: mistakes become errors before wrong gradients are used");
  v.field(
      "join", &DdpSpec::join, Choices{{"off", "divide_by_initial", "divide_by_active", "throw"}},
      "uneven inputs: ranks without any count as zeros, or not at all; throw: an error instead");
}

template <class V>
void describe(V& v, Of<AtSpec>) {
  v.one_or_many("rank", "ranks", &AtSpec::ranks, ListOf<IntRange>{kRank, 0, 64, true},
                "who; left out: all ranks");
  v.one_or_many("step", "steps", &AtSpec::steps, ListOf<IntRange>{kStep, 0, 1'000'000, true},
                "when, from 0; left out: all steps");
  v.field("micro_batch", &AtSpec::micro_batch, IntRange{0, 999'999},
          "from 0; left out: every one for skip and exit_after, the first for the others");
  v.field("forward", &AtSpec::forward, IntRange{0, 999'999},
          "skip, exit_after: which of forwards_per_backward, from 0; left out: every one");
  v.field("when", &AtSpec::when,
          Choices{{"before_forward", "after_forward", "after_backward", "after_step"}},
          "not for skip, exit_after, mute, detach and reload");
  v.field("site", &AtSpec::site, call_sites(),
          "in the place of 'when': before the rank issues a collective that is for this");
  v.field("bucket", &AtSpec::bucket, kCount, "which one, from 0; left out: all of the site");
  v.field("from_ms", &AtSpec::from_ms, IntRange{0, 3'600'000},
          "simulator: once, at the first such place after so much virtual time");
  v.field("skip", &AtSpec::skip, kNames, "action: blocks left out");
  v.field("exit_after", &AtSpec::exit_after, Text{}, "action: the last block that runs");
  v.field("mute", &AtSpec::mute, kNames, "action: blocks whose outputs are multiplied by zero");
  v.field("without_loss", &AtSpec::without_loss, kNames,
          "action: heads that run and do not enter the loss");
  v.field("samples", &AtSpec::samples, IntRange{0, 1'000'000},
          "action: so many samples in the micro-batch, at most its share");
  v.field("micro_batches", &AtSpec::micro_batches, IntRange{1, 1'000'000},
          "action: so many micro-batches in the step, at most train.micro_batches");
  v.field("freeze", &AtSpec::freeze, kNames, "action: parameters or blocks");
  v.field("unfreeze", &AtSpec::unfreeze, kNames, "action: parameters or blocks");
  v.field("lr", &AtSpec::lr, kNotNegative, "action: a new learning rate");
  v.field("raise", &AtSpec::raise, Text{}, "action: the script throws this");
  v.field("retry", &AtSpec::retry, Any{},
          "what is thrown is caught, and the step begun anew, this time without it");
  v.field("stall", &AtSpec::stall, Any{}, "action: stands still for ever");
  v.field("leave", &AtSpec::leave, Any{}, "action: ends the training loop");
  v.field("skip_step", &AtSpec::skip_step, Any{}, "action: the rest of the step is left out");
  v.field("detach", &AtSpec::detach, Any{}, "action: the loss depends on no parameter");
  v.field("sleep_ms", &AtSpec::sleep_ms, IntRange{0, 3'600'000}, "action: time passes");
  v.field("collective", &AtSpec::collective,
          Choices{{"all_reduce", "broadcast", "all_gather", "barrier"}},
          "action: one more collective");
  v.field("collective_numel", &AtSpec::collective_numel, IntRange{1, 100'000'000},
          "elements of that collective");
  v.field("evaluate", &AtSpec::evaluate, IntRange{0, 1'000'000},
          "action: so many forwards in evaluation mode");
  v.field("evaluate_through", &AtSpec::evaluate_through, Choices{{"wrapper", "module"}},
          "what those forwards call");
  v.field("evaluate_with_gradients", &AtSpec::evaluate_with_gradients, Any{},
          "those forwards are outside of no_grad");
  v.field("reload", &AtSpec::reload, Any{},
          "action: before the step, save model and optimizer, build all anew and load");
  v.field("add_buffer", &AtSpec::add_buffer, IntRange{0, 1'000'000},
          "action: one more buffer of so many elements is registered");
  v.field("bypass", &AtSpec::bypass, Any{}, "action: forwards call the inner module");
  v.field("copy_gradients", &AtSpec::copy_gradients, Any{},
          "action: each gradient becomes a copy of itself");
  v.field("sync_buffers", &AtSpec::sync_buffers, Choices{{"broadcast", "mean"}},
          "action: buffers become rank 0's, or the mean over ranks");
  v.field("scale_buffers", &AtSpec::scale_buffers, kReal,
          "action: floating-point buffers are multiplied by this");
  v.field("keep_gradients", &AtSpec::keep_gradients, Any{},
          "action: nobody zeroes gradients before the step");
  v.field("ascend", &AtSpec::ascend, kNotNegative,
          "action: a first pass under no_sync, whose gradients times this are added to the "
          "parameters until the update");
}

template <class V>
void describe(V& v, Of<FaultSpec>) {
  v.needed("kind", &FaultSpec::kind, fault_kinds(), "the mistake");
  v.one_or_many("rank", "ranks", &FaultSpec::ranks, ListOf<IntRange>{kRank, 0, 64, true},
                "who; left out: all ranks");
  v.one_or_many("step", "steps", &FaultSpec::steps, ListOf<IntRange>{kStep, 0, 1'000'000, true},
                "when, from 0; left out: all steps");
  v.field("parameter", &FaultSpec::parameter, Text{}, "where the kind needs one");
  v.field("by", &FaultSpec::by, Text{},
          "replaced_parameter: copy, round_trip (through another dtype), more_rows, or the name of "
          "a parameter");
  v.field(
      "site", &FaultSpec::site, call_sites(),
      "what the collective is for that goes wrong, by default \"bucket\"; exit, crash: before it");
  v.field("bucket", &FaultSpec::bucket, kCount, "which one, from 0; left out: all of the site");
  v.field("from_ms", &FaultSpec::from_ms, IntRange{0, 3'600'000},
          "simulator: from so much virtual time on");
  v.field("delay_ms", &FaultSpec::delay_ms, IntRange{0, 3'600'000},
          "slow_link: how much later it completes");
}

template <class V>
void describe(V& v, Of<ExpectWaiting>) {
  v.needed("rank", &ExpectWaiting::rank, kRank, "who waits");
  v.field("collective", &ExpectWaiting::collective,
          Choices{{"all_reduce", "broadcast", "all_gather", "barrier"}}, "in what");
  v.field("site", &ExpectWaiting::site, call_sites(), "what the collective is for");
  v.field("step", &ExpectWaiting::step, IntRange{-1, 999'999}, "from 0; -1: construction");
  v.field("bucket", &ExpectWaiting::bucket, kCount, "from 0");
}

template <class V>
void describe(V& v, Of<ExpectNeverReady>) {
  v.needed("rank", &ExpectNeverReady::rank, kRank, "where");
  v.needed("parameters", &ExpectNeverReady::parameters, ListOf<Text>{{}, 1, 10'000, true}, "which");
}

template <class V>
void describe(V& v, Of<ExpectIssued>) {
  v.field("rank", &ExpectIssued::rank, kRank, "by whom");
  v.needed("step", &ExpectIssued::step, IntRange{-1, 999'999}, "from 0; -1: construction");
  v.needed("collectives", &ExpectIssued::collectives, ListOf<Text>{{}, 0, 10'000},
           "in order, as site and number of elements: \"bucket 72\", or with dtype: \"bucket 72 "
           "Half\"");
}

template <class V>
void describe(V& v, Of<ExpectValues>) {
  v.field("rank", &ExpectValues::rank, kRank, "whose");
  v.field("step", &ExpectValues::step, kStep, "after it");
  v.field("phase", &ExpectValues::phase, Choices{{"gradient", "parameter", "buffer", "optimizer"}},
          "of what kind");
  v.needed("tensor", &ExpectValues::tensor, Text{}, "its name");
  v.needed("numbers", &ExpectValues::numbers, ListOf<RealRange>{kReal, 0, 1'000'000},
           "every element; none: the gradient is undefined");
}

template <class V>
void describe(V& v, Of<ExpectEnd>) {
  v.one_or_many("rank", "ranks", &ExpectEnd::ranks, ListOf<IntRange>{kRank, 0, 64, true},
                "who; left out: all");
  v.field("ending", &ExpectEnd::ending,
          Choices{{"finished", "left", "failed", "waiting", "crashed"}}, "how");
  v.field("error", &ExpectEnd::error, Text{}, "its kind");
  v.field("message", &ExpectEnd::message, Text{}, "contained in its message");
  v.field("step", &ExpectEnd::step, IntRange{-1, 999'999}, "in progress; -1: before the first");
  v.field("parameters_of_step", &ExpectEnd::parameters_of_step, IntRange{-1, 999'999},
          "parameters are those after this step, bit for bit; -1: after construction");
  v.field("within_ms", &ExpectEnd::within_ms, kCount, "simulator: virtual time");
}

template <class V>
void describe(V& v, Of<ExpectSpec>) {
  v.field("outcome", &ExpectSpec::outcome,
          Choices{{"equal", "within_bound", "diverged", "deadlock", "error", "crash"}},
          "how the run ends");
  v.field("oracles", &ExpectSpec::oracles,
          ListOf<Choices>{{{"ranks", "replay", "serial"}}, 1, 3, true}, "what is promised");
  v.field("schedules", &ExpectSpec::schedules, Choices{{"all", "some"}},
          "which of the schedules that are tried must end like this");
  v.field("step", &ExpectSpec::step, IntRange{-1, 999'999},
          "diverged, error, crash: first step, from 0; -1: construction");
  v.field("phase", &ExpectSpec::phase,
          Choices{{"init", "forward", "gradient", "parameter", "buffer", "optimizer", "final"}},
          "diverged: what differs first");
  v.field("rank", &ExpectSpec::rank, kRank, "diverged, error, crash: where");
  v.field("tensor", &ExpectSpec::tensor, Text{}, "diverged: its name");
  v.field("cause", &ExpectSpec::cause, causes(),
          "diverged: what explains the numbers; also deadlock, error: how it came to this");
  v.field("oracle", &ExpectSpec::oracle, Choices{{"ranks", "replay", "serial"}},
          "diverged: which promise broke");
  v.tables("waiting", &ExpectSpec::waiting, TablesPlace::kInline,
           "deadlock: exactly these ranks wait");
  v.tables("never_ready", &ExpectSpec::never_ready, TablesPlace::kInline,
           "deadlock, error, diverged: parameters whose gradients never came");
  v.field("cure", &ExpectSpec::cure, cures(),
          "deadlock, error, diverged: a change that was seen to help");
  v.field("error", &ExpectSpec::error, Text{}, "error, crash, deadlock: its kind");
  v.field("message", &ExpectSpec::message, Text{},
          "error, crash, deadlock: contained in its message");
  v.field("reason", &ExpectSpec::reason, Text{}, "why [expect.torch] differs from [expect]");
  v.field("since", &ExpectSpec::since, Version{}, "[expect.torch]: from this LibTorch on");
  v.field("before", &ExpectSpec::before, Version{},
          "[expect.torch]: up to this LibTorch, without it");
  v.field("bucket_all_reduces", &ExpectSpec::bucket_all_reduces, kCount,
          "on rank 0, over the whole run");
  v.field("rebuilds", &ExpectSpec::rebuilds, kCount, "bucket rebuilds on rank 0");
  v.tables("issued", &ExpectSpec::issued, TablesPlace::kInline,
           "exactly these collectives were issued");
  v.tables("values", &ExpectSpec::values, TablesPlace::kInline, "exactly these numbers");
  v.tables("ends", &ExpectSpec::ends, TablesPlace::kInline, "how these ranks end");
}

template <class V>
void describe(V& v, Of<Case>) {
  v.field("title", &Case::title, Any{}, "what the case shows, in one sentence");
  v.field("seed", &Case::seed, IntRange{0, kInt64Max}, "everything random derives from it");
  v.table("world", &Case::world, "");
  v.table("launch", &Case::launch, "how processes find each other; left out: they have");
  v.table("schedule", &Case::schedule, "");
  v.table("model", &Case::model, "");
  v.table("data", &Case::data, "");
  v.table("train", &Case::train, "");
  v.table("ddp", &Case::ddp, "");
  v.tables("at", &Case::at, TablesPlace::kSections, "something that ranks do at steps");
  v.tables("fault", &Case::faults, TablesPlace::kSections, "a planted mistake");
  v.expectations("what must come out");
}

}  // namespace lockstep::harness
