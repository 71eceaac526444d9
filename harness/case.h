// SPDX-License-Identifier: Apache-2.0
// One concrete case: everything a scenario file can say, every axis fixed, one seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::harness {

/// [world]
struct WorldSpec {
  std::int64_t ranks = 2;       ///< 1 .. 64
  bool check_tags = true;       ///< simulator: compare tags, not only shapes
  bool simulator_only = false;  ///< the case makes no sense on a real transport
  /// Longest wait for the slowest rank in a collective; 0: for ever, so that a hang is a deadlock.
  std::int64_t timeout_ms = 0;
};

/// [launch] hosts = [{ ... }]: a machine of the simulated network.
struct HostSpec {
  std::string name;
  std::vector<std::pair<std::string, std::string>> interfaces;  ///< name -> address, in order
  std::vector<std::pair<std::string, std::string>> names;       ///< its name table: name -> address
  std::vector<std::int64_t> held_ports;                         ///< by other programs
};

/// [launch] processes = [{ ... }]: what one process believes that is started.
struct ProcessSpec {
  std::int64_t rank = 0;
  std::int64_t world_size = 0;  ///< 0: world.ranks
  std::string run = "A";        ///< its token is that of this run
  std::string store = "store";  ///< where it goes to meet the others
  std::string host;             ///< empty: the first one
  std::string interface;        ///< empty: launch.interface
};

/// [launch]: how the processes of a run find each other before they train.
struct LaunchSpec {
  std::string interface;  ///< "eth0", "^lo" or "10.0.0.1"; empty: what the host is called
  std::int64_t port = 0;  ///< to listen on; 0: the system chooses
  std::int64_t timeout_ms = 30'000;  ///< for all to meet
  std::string left_behind_by;        ///< a run that was killed when it had met; its store is there
  bool store_removed = false;   ///< when all have met; then they meet once more, as a sub-group
  std::vector<HostSpec> hosts;  ///< empty: one with a loopback interface
  std::vector<ProcessSpec> processes;  ///< empty: one for each rank

  /// Left out: the ranks of a case have met already.
  bool is_asked_for() const {
    return !interface.empty() || port != 0 || !left_behind_by.empty() || store_removed ||
           !hosts.empty() || !processes.empty();
  }
};

/// [schedule]: which of the simulator's schedules are tried. Real transports have their own.
struct ScheduleSpec {
  /// "round_robin" | "random" | "pct" (seeded by `seed`) | "exhaustive" | "replay"
  std::string policy = "round_robin";
  std::int64_t first_step = -1;    ///< from which on others than the default are tried; -1: all
  std::int64_t runs = 1;           ///< random, pct: so many schedules
  std::int64_t depth = 3;          ///< pct: ordering constraints that a fault may need
  std::int64_t runs_max = 10'000;  ///< exhaustive: gives up after so many
  std::string deviations;          ///< replay: "12:1 15:c0", see sim/scheduler.h
};

/// [model]. `kind = "mlp"` is short for a graph of linear and activation blocks named
/// layer0, act0, layer1, ...
struct ModelSpec {
  std::string kind = "mlp";                       ///< "mlp" | "graph"
  std::vector<std::int64_t> widths = {8, 16, 4};  ///< mlp: input, hidden ..., output
  std::string activation = "relu";                ///< mlp: "relu" | "tanh" | "identity"
  bool bias = true;                               ///< mlp
  /// graph: name -> "linear 4 8", "linear 4 8 no_bias", "relu", "tanh", "identity",
  /// "batch_norm 8", "layer_norm 8", "dropout 0.5", "embedding 16 4", "conv2d 1 4 3",
  /// "flatten", "scale 4" (elementwise weight), "offset 4" (its parameter itself, whatever the
  /// input), "gain 4" (times a buffer of twos), "sync_batch_norm 8", "same NAME" (the module of
  /// another block), "all_to_all" (see all_to_all.h); behind the sizes "sparse" (embedding),
  /// "checkpoint", "checkpoint_reentrant", "float64", "complex64" (linear). In file order, which is
  /// the order of registration.
  std::vector<std::pair<std::string, std::string>> blocks;
  /// graph: stages run one after the other. A stage of several blocks runs each on the same input:
  /// the last stage's outputs are separate heads, each with its own loss; elsewhere they are added.
  /// Empty: all blocks in order. A block that no stage names exists but is never used.
  std::vector<std::vector<std::string>> forward;
  std::vector<std::string> frozen;             ///< parameters ("a.weight") or whole blocks ("a")
  std::vector<std::vector<std::string>> tied;  ///< pairs: the second parameter becomes the first
  std::string dtype = "float32";               ///< "float32" | "float64"
};

/// [data]
struct DataSpec {
  std::string kind = "regression";  ///< "regression" | "classification"
  std::int64_t samples = 64;
  bool exact = false;  ///< dyadic data and weights; the claim is checked
  bool shuffle = true;
  bool drop_last = false;            ///< sampler: drop instead of pad
  std::int64_t sequence_tokens = 4;  ///< inputs of an embedding
  std::int64_t image_pixels = 6;     ///< side of the inputs of a conv2d
  /// Given numbers in the place of drawn ones, sample after sample, over and over; empty: drawn.
  std::vector<double> inputs, targets;
};

/// [train] optimizer = { ... }
struct OptimizerSpec {
  std::string kind = "sgd";  ///< "sgd" | "adam" | "adamw" | "adagrad" | "rmsprop"
  double lr = 0.1;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double alpha = 0.99;    ///< rmsprop
  double lr_decay = 0.0;  ///< adagrad
  bool amsgrad = false;
};

/// [train]
struct TrainSpec {
  std::int64_t steps = 3;
  std::vector<std::int64_t> steps_of_rank;  ///< uneven inputs: one per rank; empty: all `steps`
  std::int64_t batch_per_rank = 4;          ///< samples per rank and step, over all micro-batches
  std::int64_t micro_batches = 1;           ///< divides batch_per_rank
  std::int64_t forwards_per_backward = 1;   ///< divides the samples of a micro-batch (E13)
  /// "sum": one backward from the sum of their losses; "each": one after the other, from each (F9)
  std::string backward_from = "sum";
  std::string sync_on = "last";         ///< "every" | "last" | "never" micro-batch of a step
  std::string no_sync_covers = "both";  ///< "both" | "forward" | "backward" (H1)
  /// "mse" | "cross_entropy" | "dot" (linear in output) | "input_gradient" (its square, without the
  /// output) | "anchored_input_gradient" (the same plus zero times the output)
  std::string loss = "mse";
  std::string reduction = "mean";  ///< "mean" | "sum"
  /// What a mean is over, where micro-batches have `samples` of their own: "micro_batch", and then
  /// over micro-batches and ranks; "window", a rank's step, and then over ranks; "all" samples.
  std::string mean_over = "micro_batch";
  std::int64_t backwards_per_forward = 1;  ///< each with its share of the loss, over a kept graph
  bool scale_loss_by_world_size = false;   ///< cancels DDP's 1/W, for sums
  /// "none" (undefined) | "zero" (in place) | "optimizer" (Optimizer::zero_grad, M3) | "never"
  std::string zero_grad = "none";
  double clip_norm = 0.0;  ///< 0: no clipping
  bool optimizer_before_wrapping = false;
  /// Where in every step the ranks tell each other, by an all_reduce of a flag, whether any of them
  /// skips the step (`skip_step`) or begins it anew (`retry`); then all do. "never" | or as
  /// AtSpec::when: before the first forward, after the last forward, after the last backward.
  std::string agree = "never";
  OptimizerSpec optimizer;
};

/// [ddp]
struct DdpSpec {
  std::string sync = "ddp";  ///< "ddp" | "torch" | "per_parameter" | "flat" | "none"
  std::int64_t first_bucket_cap_bytes = 1 << 20;
  std::int64_t bucket_cap_bytes = 25 << 20;
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool broadcast_buffers = true;
  bool init_sync = true;
  /// "none" | "all_reduce" | "fp16_compress" | "bf16_compress" | "noop" | "quantize_per_tensor" |
  /// "quantize_per_channel" | "power_sgd" | "post_local_sgd" (N) | "all_reduce_copy" (of a copy of
  /// the bucket, whose memory is not the bucket's)
  std::string hook = "none";
  std::string checks = "off";  ///< "off" | "fast" | "full"
  /// "off" | "divide_by_initial" | "divide_by_active" | "throw" (O2, O4)
  std::string join = "off";

  /// PyTorch's reducer can stand in the place of our DDP.
  bool peer_can_stand_in() const {
    return sync == "ddp" && checks == "off" &&
           (hook == "none" || hook == "all_reduce" || hook == "fp16_compress");
  }
};

/// Whether gradients are reduced inside backward, bucket by bucket: our DDP and PyTorch's.
inline bool reduces_in_backward(const DdpSpec& ddp) {
  return ddp.sync == "ddp" || ddp.sync == "torch";
}

/// Lists of ranks and steps: an empty one stands for all.
inline bool covers(const std::vector<std::int64_t>& list, std::int64_t value) {
  return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
}

/// [[at]]: something that happens at given ranks and steps. Exactly one action is set.
struct AtSpec {
  std::vector<std::int64_t> ranks;          ///< empty: all; in a file `rank = 1` or `ranks = [..]`
  std::vector<std::int64_t> steps;          ///< empty: all; in a file `step = 1` or `steps = [..]`
  std::optional<std::int64_t> micro_batch;  ///< empty: every micro-batch (routing), first (others)
  std::optional<std::int64_t> forward;      ///< routing: of forwards_per_backward; empty: every
  /// "before_forward" | "after_forward" | "after_backward" | "after_step"; not for routing.
  std::string when = "before_forward";
  /// In the place of `when`: just before the rank issues such a collective, each time.
  std::string site;
  std::optional<std::int64_t> bucket;  ///< of the site; empty: every one
  std::int64_t from_ms = 0;            ///< once, at the first such place when so much time is over
  // Actions. Routing, obeyed by the references too:
  std::vector<std::string> skip;              ///< blocks left out; alone in a stage: identity
  std::string exit_after;                     ///< early exit: later stages are left out
  std::vector<std::string> without_loss;      ///< heads that run and do not enter the loss
  std::vector<std::string> mute;              ///< blocks that run, with outputs times zero
  std::optional<std::int64_t> samples;        ///< of each micro-batch, at most its share; 0: none
  std::optional<std::int64_t> micro_batches;  ///< in this step, at most train.micro_batches
  // State changes, obeyed by the references where all ranks do them:
  std::vector<std::string> freeze;  ///< parameters or blocks
  std::vector<std::string> unfreeze;
  std::optional<double> lr;
  // Disturbances, unknown to the references:
  std::string raise;       ///< throws a script error with this text
  bool retry = false;      ///< the error is caught and the step begun anew, this time without it
  bool stall = false;      ///< stands still for ever
  bool leave = false;      ///< leaves the training loop
  bool skip_step = false;  ///< no forward, backward or update in this step
  bool detach = false;     ///< the loss does not depend on any parameter
  std::int64_t sleep_ms = 0;
  std::string collective;  ///< an extra "all_reduce"|"broadcast"|"all_gather"|"barrier"
  std::int64_t collective_numel = 1;
  std::int64_t evaluate = 0;                 ///< forwards in evaluation mode, without gradients
  std::string evaluate_through = "wrapper";  ///< "wrapper" | "module"
  bool evaluate_with_gradients = false;      ///< somebody forgot no_grad (E14)
  /// Before the step: model and optimizer are saved, built anew, wrapped and loaded.
  bool reload = false;
  std::int64_t add_buffer = 0;  ///< registers one more buffer of so many elements
  bool bypass = false;          ///< this step's forwards call the inner module
  bool copy_gradients = false;  ///< gradients become copies of themselves; references follow
  std::string sync_buffers;     ///< "broadcast" (rank 0's) | "mean"; references follow
  double scale_buffers = 1.0;   ///< floating-point buffers times this
  bool keep_gradients = false;  ///< nobody zeroes gradients before this step
  /// Two passes: gradients of a pass under no_sync, times this, are added to the parameters for the
  /// step's own passes, and taken off before the update.
  double ascend = 0.0;

  /// Says what a step is made of; nothing happens at a moment of it.
  bool is_routing() const {
    return !skip.empty() || !exit_after.empty() || !mute.empty() || !without_loss.empty() ||
           samples || micro_batches;
  }
};

/// [[fault]]: a mistake planted into the script or the synchronisation of the subject. The
/// references run what was meant.
struct FaultSpec {
  /// "no_initial_broadcast", "per_rank_init", "same_batches", "sum_not_mean", "no_division",
  /// "forgotten_parameter", "mixed_steps", "stale_gradient", "sync_before_last_micro_batch",
  /// "clip_before_sync", "replaced_parameter", "optimizer_on_copies", "buffers_not_synced",
  /// "corrupt_gradient", "exit", "crash", "optimizer_not_loaded", "other_dtype", "other_shape",
  /// "local_batch_norm", "join_divisor", "bad_batch", "stop", "shuffle_seed", "epoch_not_set",
  /// "dropout_seed", "window_scale", "model_not_loaded"; to the hook: "hook_raises", "hook_result";
  /// to collectives, see faulty_communicator.h: "skip_wait", "skip_collective",
  /// "swap_collectives", "wrong_numel", "wrong_dtype", "transport_error", "corrupt_payload",
  /// "slow_link", "cut_link"
  std::string kind;
  std::vector<std::int64_t> ranks;  ///< empty: all
  std::vector<std::int64_t> steps;  ///< empty: all
  std::string parameter;            ///< where the kind needs one
  /// replaced_parameter: by a "copy", by a "round_trip" through another dtype, by one with
  /// "more_rows", or by another parameter
  std::string by = "copy";
  /// Kinds that happen to collectives: which of them; empty: "bucket". "exit", "crash" and "stop":
  /// just before the rank issues it, when all that it issued before have ended; without site and
  /// bucket at the beginning of the step.
  std::string site;
  std::optional<std::int64_t> bucket;  ///< of the site; empty: every one
  std::int64_t from_ms = 0;            ///< the same kinds: from this time on
  std::int64_t delay_ms = 0;           ///< slow_link
};

struct ExpectWaiting {
  std::int64_t rank = 0;
  std::string collective;  ///< "all_reduce", ...; empty: any
  std::string site;        ///< "bucket", "buffers", ...; empty: any
  std::optional<std::int64_t> step;
  std::optional<std::int64_t> bucket;
};

struct ExpectNeverReady {
  std::int64_t rank = 0;
  std::vector<std::string> parameters;
};

/// What one rank issued in one step, from the first collective to the last.
struct ExpectIssued {
  std::int64_t rank = 0;
  std::int64_t step = 0;  ///< -1: construction
  /// "bucket 72": site and number of elements; "bucket 72 Half": and dtype
  std::vector<std::string> collectives;
};

/// The numbers of one tensor on one rank after one step.
struct ExpectValues {
  std::int64_t rank = 0;
  std::int64_t step = 0;
  std::string phase = "gradient";  ///< "gradient" | "parameter" | "buffer" | "optimizer"
  std::string tensor;
  std::vector<double> numbers;  ///< all elements, in the tensor's dtype; empty: undefined
};

/// How some ranks end, whatever the others do.
struct ExpectEnd {
  std::vector<std::int64_t> ranks;  ///< empty: all; where a launch fails, places in `processes`
  std::string ending;               ///< "finished" | "left" | "failed" | "waiting" | "crashed"
  std::string error;                ///< kind
  std::string message;              ///< must be contained
  std::optional<std::int64_t> step;
  /// The parameters are those after this step, bit for bit; -1: those after construction.
  std::optional<std::int64_t> parameters_of_step;
  std::optional<std::int64_t> within_ms;  ///< of virtual time
};

/// [expect]. Everything stated must hold; what is left out is not looked at.
struct ExpectSpec {
  /// "equal" | "within_bound" | "diverged" | "deadlock" | "error" | "crash". "equal" demands 0 ULP
  /// of every promised oracle; "within_bound" allows the serial oracle its derived bound.
  std::string outcome = "equal";
  std::vector<std::string> oracles = {"ranks", "replay", "serial"};
  std::string schedules = "all";  ///< "all" | "some": of those tried, which must end like this
  // diverged
  std::optional<std::int64_t> step;  ///< also error, crash
  /// "init" | "forward" | "gradient" | "parameter" | "buffer" | "optimizer" | "final"
  std::string phase;
  std::optional<std::int64_t> rank;  ///< also error, crash
  std::string tensor;
  std::string cause;   ///< "times_world_size", "local_only", ...
  std::string oracle;  ///< which oracle saw it: "ranks" | "replay" | "serial"
  // deadlock
  std::vector<ExpectWaiting> waiting;  ///< exactly these ranks wait
  std::vector<ExpectNeverReady> never_ready;
  std::string cure;  ///< "find_unused_parameters", ...
  // error, crash
  std::string error;    ///< kind: "reduction_unfinished", "desync", "script", ...
  std::string message;  ///< must be contained
  // any
  std::string reason;  ///< why [expect.torch] differs from [expect], in one line
  /// [expect.torch]: the LibTorch versions it is about, "major.minor"; empty: no bound.
  std::string since, before;
  std::optional<std::int64_t> bucket_all_reduces;  ///< on rank 0, over the whole run
  std::optional<std::int64_t> rebuilds;            ///< bucket rebuilds on rank 0
  std::vector<ExpectIssued> issued;                ///< exactly these, in order
  std::vector<ExpectValues> values;                ///< exactly these bits
  std::vector<ExpectEnd> ends;                     ///< how these ranks end
};

struct Case {
  std::string title;
  std::uint64_t seed = 1;
  WorldSpec world;
  LaunchSpec launch;
  ScheduleSpec schedule;
  ModelSpec model;
  DataSpec data;
  TrainSpec train;
  DdpSpec ddp;
  std::vector<AtSpec> at;
  std::vector<FaultSpec> faults;
  ExpectSpec expect;
  /// [expect.sim], [expect.gloo]: stand in the place of `expect`, as a whole, on that backend.
  std::optional<ExpectSpec> expect_sim, expect_gloo;
  /// [expect.torch]: stands in the place of all of these with ddp.sync = "torch", the first that
  /// is about the LibTorch version in use. What is in it is a difference of PyTorch's reducer that
  /// is known, with its reason.
  std::vector<ExpectSpec> expect_torch;
};

/// A case with its place of origin.
struct NamedCase {
  std::string file;  ///< as given on the command line
  std::string name;  ///< "ranks=2,bucket_cap_bytes=64,seed=3": the axes; empty without any
  Case value;
};

}  // namespace lockstep::harness
