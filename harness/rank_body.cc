// SPDX-License-Identifier: Apache-2.0
// One rank of a subject: model, wrapper, optimizer, training loop, record.
#include "harness/rank_body.h"

#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "core/check.h"
#include "harness/dataset.h"
#include "harness/disturbances.h"
#include "harness/graph_model.h"
#include "harness/optimizer.h"
#include "harness/saved_state.h"
#include "harness/script.h"
#include "harness/snapshot.h"
#include "harness/sync/faulty_communicator.h"
#include "harness/sync/gradient_sync.h"
#include "harness/sync/libtorch_error.h"
#include "harness/sync/recording_communicator.h"
#include "harness/trainer.h"
#include "sim/cancelled.h"

namespace lockstep::harness {
namespace {

// Counts what goes through on the way to the transport's own observer.
class CountingObserver final : public Observer {
 public:
  CountingObserver(Observer* next, Position& position) : next_(next), position_(position) {}

  void on_event(const Event& event) override {
    position_.tick();
    if (event.kind == EventKind::kBucketLaunched) {
      bucket_all_reduces_.fetch_add(1, std::memory_order_relaxed);
    } else if (event.kind == EventKind::kRebuilt) {
      rebuilds_.fetch_add(1, std::memory_order_relaxed);
    }
    if (next_ != nullptr) {
      next_->on_event(event);
    }
  }

  std::int64_t bucket_all_reduces() const { return bucket_all_reduces_.load(); }
  std::int64_t rebuilds() const { return rebuilds_.load(); }

 private:
  Observer* next_;      // outlives this: see RankServices
  Position& position_;  // outlives this: both live in RankBody::Impl
  std::atomic<std::int64_t> bucket_all_reduces_{0};
  std::atomic<std::int64_t> rebuilds_{0};
};

bool has_fault(const Case& value, const std::string& kind, std::int64_t rank) {
  return std::any_of(value.faults.begin(), value.faults.end(), [&](const FaultSpec& fault) {
    return fault.kind == kind && covers(fault.ranks, rank);
  });
}

std::vector<std::string> forgotten_parameters(const Case& value, std::int64_t rank) {
  std::vector<std::string> names;
  for (const FaultSpec& fault : value.faults) {
    if (fault.kind == "forgotten_parameter" && covers(fault.ranks, rank)) {
      names.push_back(fault.parameter);
    }
  }
  return names;
}

// After wrapping, as a script might.
std::vector<at::Tensor> detached_copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone().set_requires_grad(tensor.requires_grad()));
  }
  return copies;
}

std::uint64_t checksum_of_parameters(const GraphModel& model) {
  const auto parameters = all_parameters(model);
  return checksum(SnapshotTaker(parameters.names).take(parameters.tensors));
}

}  // namespace

struct RankBody::Impl {
  Impl(const Program& the_program, std::int64_t rank, RankServices the_services)
      : program(the_program),
        of_rank(the_program.ranks[static_cast<std::size_t>(rank)]),
        services(std::move(the_services)),
        disturbances(the_program.value, rank, position, services),
        own_communicator(make_own_communicator()),
        recording(own_communicator != nullptr ? *own_communicator : *services.communicator),
        communicator(recording, disturbances),
        observer(services.observer, position) {
    records.resize(1);
    records.front().rank = rank;
    recording.measure_waits(services.now_ns);
  }

  const Program& program;  // outlives this: owned by the executor
  const RankProgram& of_rank;
  RankServices services;
  Position position;
  Disturbances disturbances;
  std::exception_ptr no_communicator;  // why somebody's own could not be made
  std::unique_ptr<Communicator> own_communicator;
  RecordingCommunicator recording;
  FaultyCommunicator communicator;
  CountingObserver observer;
  std::vector<RankRun> records;
  std::vector<std::string> trainable_names;
  // Readers on other threads go through the pointer, which is null before construction and after
  // destruction of what it points to.
  mutable std::mutex sync_mutex;
  GradientSync* sync = nullptr;

  std::unique_ptr<Communicator> make_own_communicator();
  void train_all();
  void train_range(StepRange range, std::optional<SavedState>& saved);
  std::shared_ptr<GraphModel> build_model(const std::optional<SavedState>& saved);
  std::unique_ptr<Optimizer> build_optimizer(const GraphModel& model,
                                             const std::optional<SavedState>& saved,
                                             std::int64_t step);
  void note_failure(const std::string& kind, const std::string& message);
  std::vector<NeverReady> never_ready() const;
};

std::unique_ptr<Communicator> RankBody::Impl::make_own_communicator() {
  if (services.subject == nullptr || !services.subject->make_communicator) {
    return nullptr;
  }
  try {
    return services.subject->make_communicator(*services.communicator);
  } catch (...) {
    no_communicator = std::current_exception();
    return nullptr;
  }
}

// A reload ends one range of steps and begins another.
void RankBody::Impl::train_all() {
  if (no_communicator != nullptr) {
    std::rethrow_exception(no_communicator);
  }
  std::optional<SavedState> saved;
  std::int64_t first = 0;
  for (const StepPlan& plan : of_rank.steps) {
    const auto reloads = [this](std::size_t i) { return program.value.at[i].reload; };
    if (std::none_of(plan.events.begin(), plan.events.end(), reloads)) {
      continue;
    }
    train_range({first, plan.step}, saved);
    if (records.front().ending != Ending::kFinished) {
      return;
    }
    first = plan.step;
    for (const std::size_t i : plan.events) {
      if (reloads(i)) {
        disturbances.note_event(i);
      }
    }
  }
  train_range({first, static_cast<std::int64_t>(of_rank.steps.size())}, saved);
}

std::shared_ptr<GraphModel> RankBody::Impl::build_model(const std::optional<SavedState>& saved) {
  const Case& value = program.value;
  auto model =
      std::make_shared<GraphModel>(value.model, value.data.exact, value.seed, of_rank.init_rank);
  if (saved && !has_fault(value, "model_not_loaded", of_rank.rank)) {
    load_model(*saved, *model);
  }
  if (!has_fault(value, "local_batch_norm", of_rank.rank)) {
    model->set_communicator(communicator);
  }
  for (const FaultSpec& fault : value.faults) {
    if (!covers(fault.ranks, of_rank.rank)) {
      continue;
    }
    const bool other_dtype = fault.kind == "other_dtype";
    if (other_dtype || fault.kind == "other_shape") {
      const at::Tensor own = model->named_parameters()[fault.parameter].detach();
      model->replace_parameter(
          fault.parameter, other_dtype
                               ? own.to(own.scalar_type() == at::kDouble ? at::kFloat : at::kDouble)
                               : own.reshape({1, 1, own.numel()}));
    }
  }
  return model;
}

std::unique_ptr<Optimizer> RankBody::Impl::build_optimizer(const GraphModel& model,
                                                           const std::optional<SavedState>& saved,
                                                           std::int64_t step) {
  const Case& value = program.value;
  const auto parameters = all_parameters(model).tensors;
  auto optimizer = std::make_unique<Optimizer>(value.train.optimizer,
                                               has_fault(value, "optimizer_on_copies", of_rank.rank)
                                                   ? detached_copies(parameters)
                                                   : parameters);
  bool is_forgotten = false;
  for (std::size_t i = 0; saved && i < value.faults.size(); ++i) {
    const FaultSpec& fault = value.faults[i];
    if (fault.kind == "optimizer_not_loaded" && covers(fault.ranks, of_rank.rank) &&
        covers(fault.steps, step)) {
      disturbances.note_fault(i);
      is_forgotten = true;
    }
  }
  if (saved && !is_forgotten) {
    load_optimizer(*saved, *optimizer);
  }
  return optimizer;
}

void RankBody::Impl::train_range(StepRange range, std::optional<SavedState>& saved) {
  const Case& value = program.value;
  position.enter(Phase::kConstruction);
  const auto model = build_model(saved);
  trainable_names = trainable_parameters(*model).names;
  std::unique_ptr<Optimizer> optimizer;
  if (value.train.optimizer_before_wrapping) {
    optimizer = build_optimizer(*model, saved, range.first);
  }
  const SyncParts sync_parts{
      &value,       model, &communicator, &observer, forgotten_parameters(value, of_rank.rank),
      &disturbances};
  const bool is_own = services.subject != nullptr && services.subject->make_sync;
  const auto owned =
      is_own ? services.subject->make_sync(sync_parts) : make_gradient_sync(sync_parts);
  LOCKSTEP_USAGE(owned != nullptr, "make_sync made nothing on rank {}; expected a GradientSync",
                 of_rank.rank);
  for (const FaultSpec& fault : value.faults) {
    if (fault.kind == "replaced_parameter" && fault.steps.empty() &&
        covers(fault.ranks, of_rank.rank)) {
      replace_parameter(*model, fault);
    }
  }
  if (optimizer == nullptr) {
    optimizer = build_optimizer(*model, saved, range.first);
  }
  // Declared after the synchronisation, so that readers are shut out before it is destroyed.
  struct Publication {
    Impl& impl;
    const GraphModel& model;
    Publication(Impl& the_impl, GradientSync* the_sync, const GraphModel& the_model)
        : impl(the_impl), model(the_model) {
      const std::lock_guard<std::mutex> lock(impl.sync_mutex);
      impl.sync = the_sync;
    }
    ~Publication() {
      impl.records.front().never_ready = impl.never_ready();
      impl.records.front().parameters_at_end = checksum_of_parameters(model);
      const std::lock_guard<std::mutex> lock(impl.sync_mutex);
      impl.sync = nullptr;
    }
  } publication(*this, owned.get(), *model);

  Replica replica{&of_rank, model};
  const TrainerParts parts{program,       *program.data, {replica}, *owned,  *optimizer,
                           &communicator, &disturbances, &observer, position};
  records.front().ending = train(parts, records, range);
  if (range.end < static_cast<std::int64_t>(of_rank.steps.size())) {
    saved = save_state(*model, *optimizer);
  }
}

void RankBody::Impl::note_failure(const std::string& kind, const std::string& message) {
  RankRun& record = records.front();
  record.ending = Ending::kFailed;
  record.error_kind = kind;
  record.error_message = message;
}

std::vector<NeverReady> RankBody::Impl::never_ready() const {
  const std::lock_guard<std::mutex> lock(sync_mutex);
  std::vector<NeverReady> result;
  if (sync == nullptr) {
    return result;
  }
  const ReducerState state = sync->state();
  const auto plan = sync->plan();
  if (!state.armed) {
    return result;
  }
  for (const std::int64_t index : state.not_ready) {
    NeverReady entry;
    entry.parameter = trainable_names[static_cast<std::size_t>(index)];
    for (std::size_t b = 0; plan != nullptr && b < plan->buckets.size(); ++b) {
      for (const std::int64_t member : plan->buckets[b]) {
        entry.bucket = member == index ? static_cast<std::int64_t>(b) : entry.bucket;
      }
    }
    entry.step = position.forward_step();
    entry.micro_batch = position.forward_micro_batch();
    result.push_back(std::move(entry));
  }
  return result;
}

RankBody::RankBody(const Program& program, std::int64_t rank, RankServices services)
    : impl_(std::make_unique<Impl>(program, rank, std::move(services))) {}

RankBody::~RankBody() = default;

void RankBody::run() {
  try {
    impl_->train_all();
  } catch (const sim::Cancelled&) {
    throw;
  } catch (const InvariantError&) {
    throw;
  } catch (const DdpError& error) {
    impl_->note_failure(error.kind(), error.what());
  } catch (const Desync& error) {
    impl_->note_failure("desync", error.what());
  } catch (const PeerLost& error) {
    impl_->note_failure("peer_lost", error.what());
  } catch (const TimedOut& error) {
    impl_->note_failure("timed_out", error.what());
  } catch (const StandStill& still) {
    RankRun& record = impl_->records.front();
    record.ending = Ending::kWaiting;
    record.waiting = still.waiting();
    if (!record.waiting) {
      record.error_kind = "stalled";
      record.error_message = fmt::format("rank {} stands still, in no collective", record.rank);
    }
  } catch (const ScriptError& error) {
    impl_->note_failure("script", error.what());
  } catch (const UsageError& error) {
    impl_->note_failure("usage", error.what());
  } catch (const c10::Error& error) {
    impl_->note_failure(libtorch_error_kind(error.what_without_backtrace()),
                        error.what_without_backtrace());
  } catch (const std::exception& error) {
    impl_->note_failure("exception", error.what());
  }
}

RankRun RankBody::position() const {
  RankRun result;
  result.rank = impl_->of_rank.rank;
  result.at_step = impl_->position.step();
  result.at_phase = to_string(impl_->position.phase());
  result.never_ready = impl_->never_ready();
  result.bucket_all_reduces = impl_->observer.bucket_all_reduces();
  result.rebuilds = impl_->observer.rebuilds();
  result.events_done = impl_->disturbances.events_done();
  result.faults_done = impl_->disturbances.faults_done();
  result.collectives = impl_->recording.records();
  return result;
}

RankRun RankBody::take_record() {
  RankRun record = std::move(impl_->records.front());
  record.at_step = impl_->position.step();
  record.at_phase = to_string(impl_->position.phase());
  record.bucket_all_reduces = impl_->observer.bucket_all_reduces();
  record.rebuilds = impl_->observer.rebuilds();
  record.collectives = impl_->recording.records();
  record.longest_wait_ns = impl_->recording.longest_wait_ns();
  record.events_done = impl_->disturbances.events_done();
  record.faults_done = impl_->disturbances.faults_done();
  return record;
}

std::int64_t RankBody::progress() const { return impl_->position.progress(); }

}  // namespace lockstep::harness
