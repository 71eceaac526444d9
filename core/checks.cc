// SPDX-License-Identifier: Apache-2.0
// Looks at the wrapped module, and comparisons of what ranks hold.
#include "core/checks.h"

#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "core/check.h"
#include "core/gather_words.h"
#include "core/torch_compat.h"

namespace lockstep {
namespace {

at::Tensor gather(Communicator& communicator, const std::vector<std::int64_t>& words,
                  std::int64_t step) {
  return gather_words(communicator, words, at::kCPU, {CallSite::kChecks, step, -1});
}

// Every rank's text; the longest decides the size of the collective.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text,
                                      std::int64_t step) {
  const at::NoGradGuard no_grad;
  const at::Tensor lengths = gather(communicator, {static_cast<std::int64_t>(text.size())}, step);
  const std::int64_t length_max = lengths.max().item<std::int64_t>();
  const at::Tensor input = at::zeros({length_max}, at::kByte);
  std::memcpy(input.data_ptr(), text.data(), text.size());
  const at::Tensor output = at::zeros({communicator.world_size(), length_max}, at::kByte);
  communicator.all_gather(output, input, {CallSite::kChecks, step, -1})->wait();
  std::vector<std::string> texts;
  for (std::int64_t rank = 0; rank < communicator.world_size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(output.data_ptr()) + rank * length_max,
                       static_cast<std::size_t>(lengths[rank].item<std::int64_t>()));
  }
  return texts;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string described(const torch::nn::Module& module, const std::set<std::string>& ignored) {
  std::string text;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined() && ignored.count(item.key()) == 0) {
      text += fmt::format("parameter {}: {}, {}\n", item.key(),
                          c10::toString(item.value().scalar_type()),
                          item.value().requires_grad() ? "trained" : "frozen");
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && ignored.count(item.key()) == 0) {
      text += fmt::format("buffer {}: {}, sizes [{}]\n", item.key(),
                          c10::toString(item.value().scalar_type()),
                          fmt::join(item.value().sizes(), ", "));
    }
  }
  return text;
}

std::int64_t checksum(const void* data, std::size_t num_bytes) {
  return static_cast<std::int64_t>(XXH3_64bits(data, num_bytes));
}

std::int64_t checksum_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return 0;
  }
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  return checksum(bytes.data_ptr(), bytes.nbytes());
}

// A module's own parameters without the copy that named_parameters makes of each: most of a look's
// time went there.
struct OwnParameters : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& of(const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

DdpError changed(const char* kind, std::int64_t rank, std::int64_t step, const std::string& name,
                 const std::string& what) {
  return DdpError(kind, fmt::format("rank {}, step {}: {} {}", rank, step, name, what), {name});
}

}  // namespace

ModuleWatch::ModuleWatch(const torch::nn::Module& module, std::set<std::string> ignored,
                         bool may_freeze)
    : seen_(sightings(module)), ignored_(std::move(ignored)), may_freeze_(may_freeze) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined() && ignored_.count(item.key()) == 0) {
      parameters_.push_back({item.key(), item.value(), compat::existing_accumulator(item.value()),
                             item.value().requires_grad()});
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && ignored_.count(item.key()) == 0) {
      buffers_.push_back({item.key(), item.value().sizes().vec(), item.value().scalar_type()});
    }
  }
}

std::vector<ModuleWatch::Sighting> ModuleWatch::sightings(const torch::nn::Module& module) {
  std::vector<Sighting> seen;
  const auto add = [&seen](const torch::OrderedDict<std::string, at::Tensor>& tensors) {
    for (const auto& item : tensors) {
      const at::Tensor& tensor = item.value();
      seen.push_back({tensor.unsafeGetTensorImpl(), compat::existing_accumulator(tensor),
                      tensor.requires_grad(), tensor.numel(), tensor.scalar_type()});
    }
  };
  module.apply([&add](const torch::nn::Module& part) {
    add(OwnParameters::of(part));
    add(part.named_buffers(/*recurse=*/false));
  });
  return seen;
}

// Full names cost more than the rest of a look, so they are only made where something is not as it
// was; that need not be a mistake, for buffers may be replaced (J3).
void ModuleWatch::look(const torch::nn::Module& module, std::int64_t rank, std::int64_t step) {
  std::vector<Sighting> seen = sightings(module);
  if (!(seen == seen_)) {
    compare_by_name(module, rank, step);
    seen_ = std::move(seen);
  }
}

void ModuleWatch::compare_by_name(const torch::nn::Module& module, std::int64_t rank,
                                  std::int64_t step) const {
  std::size_t at = 0;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || ignored_.count(item.key()) > 0) {
      continue;
    }
    if (at == parameters_.size() || item.key() != parameters_[at].name) {
      throw changed("parameters_changed", rank, step, item.key(),
                    "was not there, or elsewhere, when the module was wrapped: it would never be "
                    "reduced. Wrap the module after its parameters are final");
    }
    const ParameterMark& mark = parameters_[at++];
    if (!tensor.is_same(mark.tensor)) {
      throw changed("parameter_replaced", rank, step, mark.name,
                    "is another tensor than when the module was wrapped: its gradient would stay "
                    "local. Copy values into the old tensor, or wrap the module anew");
    }
    if (mark.requires_grad && tensor.requires_grad() &&
        compat::existing_accumulator(tensor) != mark.accumulator) {
      throw changed("parameter_replaced", rank, step, mark.name,
                    "was converted to another dtype or device after the module was wrapped, which "
                    "took the hook off it: its gradient would stay local. Convert before wrapping, "
                    "or wrap the module anew");
    }
    if (tensor.requires_grad() != mark.requires_grad && !(mark.requires_grad && may_freeze_)) {
      throw changed("trainable_set_changed", rank, step, mark.name,
                    mark.requires_grad
                        ? "was frozen after the module was wrapped: its bucket would never be "
                          "complete. Freeze before wrapping, or set find_unused_parameters"
                        : "was unfrozen after the module was wrapped: it would never be reduced. "
                          "Unfreeze before wrapping");
    }
  }
  if (at < parameters_.size()) {
    throw changed("parameters_changed", rank, step, parameters_[at].name,
                  "is gone since the module was wrapped: its bucket would never be complete. Wrap "
                  "the module anew");
  }
  at = 0;
  for (const auto& item : module.named_buffers()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || ignored_.count(item.key()) > 0) {
      continue;
    }
    if (at == buffers_.size() || item.key() != buffers_[at].name ||
        tensor.sizes() != at::IntArrayRef(buffers_[at].sizes) ||
        tensor.scalar_type() != buffers_[at].dtype) {
      throw changed("buffers_changed", rank, step, item.key(),
                    "is new, or of another size or dtype than when the module was wrapped: ranks "
                    "would broadcast different things. Give buffers their final form before "
                    "wrapping, or ignore this one");
    }
    ++at;
  }
  if (at < buffers_.size()) {
    throw changed("buffers_changed", rank, step, buffers_[at].name,
                  "is gone since the module was wrapped. Wrap the module anew, or ignore it");
  }
}

void verify_module(Communicator& communicator, const torch::nn::Module& module,
                   const std::set<std::string>& ignored) {
  const std::vector<std::string> texts = gather_texts(communicator, described(module, ignored), -1);
  const std::vector<std::string> reference = lines_of(texts.front());
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> lines = lines_of(texts[rank]);
    for (std::size_t i = 0; i < std::max(lines.size(), reference.size()); ++i) {
      const std::string here = i < lines.size() ? lines[i] : "nothing";
      const std::string there = i < reference.size() ? reference[i] : "nothing";
      if (here != there) {
        throw DdpError("model_mismatch",
                       fmt::format("all ranks must wrap the same model, but rank {} has {} where "
                                   "rank 0 has {}. Build the model in one order everywhere, and "
                                   "freeze alike",
                                   rank, here, there));
      }
    }
  }
}

void verify_unused(Communicator& communicator, const std::vector<Use>& uses,
                   const std::vector<std::string>& names, bool may_differ, std::int64_t step) {
  std::vector<std::int64_t> flags;
  for (const Use use : uses) {
    flags.push_back(static_cast<std::int64_t>(use));
  }
  const at::Tensor gathered = gather(communicator, flags, step);
  if (may_differ) {
    return;  // the collective itself has shown that all ranks are in the same forward
  }
  const auto num_parameters = static_cast<std::int64_t>(names.size());
  const auto* flag = gathered.data_ptr<std::int64_t>();
  std::vector<std::string> which;
  std::set<std::int64_t> where;
  bool some_hidden = false;
  for (std::int64_t index = 0; index < num_parameters; ++index) {
    for (std::int64_t rank = 0; rank < communicator.world_size(); ++rank) {
      const auto use = static_cast<Use>(flag[rank * num_parameters + index]);
      some_hidden = some_hidden || use == Use::kHidden;
      if (use == Use::kUnmet) {
        where.insert(rank);
        if (which.empty() || which.back() != names[static_cast<std::size_t>(index)]) {
          which.push_back(names[static_cast<std::size_t>(index)]);
        }
      }
    }
  }
  if (which.empty()) {
    return;
  }
  throw DdpError(
      "unused_parameters",
      fmt::format("rank {}, step {}: the forward of rank(s) {} does not use {}; backward "
                  "would leave its reduction unfinished there and other ranks waiting. "
                  "{}, or use them on every rank",
                  communicator.rank(), step, fmt::join(where, ", "), fmt::join(which, ", "),
                  some_hidden ? "Set static_graph, which wants the same graph in every step "
                                "(find_unused_parameters does not see into re-entrant checkpoints)"
                              : "Set find_unused_parameters"),
      which);
}

void verify_replicas(Communicator& communicator, const ReplicaState& state, std::int64_t step) {
  std::vector<std::int64_t> checksums;
  checksums.reserve(state.tensors.size() + 1);
  for (const auto& [name, tensor] : state.tensors) {
    checksums.push_back(checksum_of(tensor));
  }
  const auto num_tensors = static_cast<std::int64_t>(state.tensors.size());
  const at::Tensor totals =
      gather(communicator,
             {state.is_compared ? num_tensors : -1,
              checksum(checksums.data(), checksums.size() * sizeof(std::int64_t))},
             step);
  std::vector<std::int64_t> ranks;  // that are compared
  bool all_same = true;
  for (std::int64_t rank = 0; rank < communicator.world_size(); ++rank) {
    if (totals[rank][0].item<std::int64_t>() >= 0) {
      ranks.push_back(rank);
      all_same = all_same && totals[rank].equal(totals[ranks.front()]);
    }
  }
  if (all_same) {
    return;
  }
  const std::int64_t num_max = totals.select(1, 0).max().item<std::int64_t>();
  checksums.resize(static_cast<std::size_t>(num_max), 0);
  const at::Tensor gathered = gather(communicator, checksums, step);
  for (std::int64_t index = 0; index < num_max; ++index) {
    std::vector<std::int64_t> others;
    for (const std::int64_t rank : ranks) {
      if (gathered[rank][index].item<std::int64_t>() !=
          gathered[ranks.front()][index].item<std::int64_t>()) {
        others.push_back(rank);
      }
    }
    if (!others.empty()) {
      const std::string name = index < num_tensors
                                   ? state.tensors[static_cast<std::size_t>(index)].first
                                   : std::string("(not on this rank)");
      throw DdpError(
          "replicas_differ",
          fmt::format("rank {}, step {}: the replicas have drifted apart: {} of rank(s) "
                      "{} is not that of rank {}. Something changed it outside the "
                      "synchronised step (a step that one rank skipped, other "
                      "hyperparameters, an update before wrapping)",
                      communicator.rank(), step, name, fmt::join(others, ", "), ranks.front()),
          {name});
    }
  }
  throw DdpError("replicas_differ",
                 fmt::format("rank {}, step {}: ranks hold different numbers of tensors",
                             communicator.rank(), step));
}

}  // namespace lockstep
