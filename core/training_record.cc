// SPDX-License-Identifier: Apache-2.0
// Lines of JSON, and a communicator that writes some.
#include "core/training_record.h"

#include <sys/stat.h>
#include <torch/nn/module.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

ordered_json tensor_json(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {{"name", name}, {"xxh3", nullptr}};
  }
  const at::Tensor dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  const at::Tensor bytes = dense.detach().cpu().resolve_conj().resolve_neg().contiguous();
  return {{"name", name},
          {"dtype", c10::toString(bytes.scalar_type())},
          {"sizes", bytes.sizes().vec()},
          {"xxh3", fmt::format("{:016x}", XXH3_64bits(bytes.data_ptr(), bytes.nbytes()))}};
}

}  // namespace

class TrainingRecord::File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {
    file_ = std::fopen(path_.c_str(), "wxe");
    LOCKSTEP_USAGE(file_ != nullptr, "cannot make {}: {}{}", path_, std::strerror(errno),
                   errno == EEXIST ? ": it is of an earlier run; give each run a folder" : "");
  }
  ~File() { std::fclose(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Errors: Error, and from then on for every line, for what is there has a gap; UsageError after
  /// the end.
  void write(const ordered_json& line, bool is_last = false) {
    const std::lock_guard<std::mutex> lock(mutex_);
    LOCKSTEP_USAGE(!has_end_, "{} has come to its end", path_);
    put(line);
    has_end_ = is_last;
    if (!error_.empty()) throw Error(fmt::format("cannot write {}: {}", path_, error_));
  }

  /// A training does not end because its record does: no errors.
  void note(const ordered_json& line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    put(line);
  }
  /// The same for a collective. Result: its seq.
  std::int64_t note_issued(const ordered_json& line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    put(line);
    return next_seq_++;
  }

 private:
  void put(const ordered_json& line) {
    if (has_end_ || !error_.empty()) return;
    using Handler = nlohmann::json::error_handler_t;
    const std::string text = line.dump(-1, ' ', false, Handler::replace) + "\n";
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
      error_ = std::strerror(errno);
    }
  }

  std::mutex mutex_;
  const std::string path_;
  std::FILE* file_ = nullptr;
  std::string error_;
  bool has_end_ = false;
  std::int64_t next_seq_ = 0;
};

class TrainingRecord::RecordedWork final : public Work {
 public:
  RecordedWork(std::unique_ptr<Work> inner, std::shared_ptr<File> file, std::int64_t seq)
      : inner_(std::move(inner)), file_(std::move(file)), seq_(seq) {}

  void wait() override {
    if (has_begun_) {
      inner_->wait();
      return;
    }
    file_->note({{"wait", seq_}});
    has_begun_ = true;
    try {
      inner_->wait();
    } catch (const std::exception& error) {
      file_->note({{"waited", seq_}, {"error", error.what()}});
      throw;
    }
    file_->note({{"waited", seq_}});
  }

 private:
  std::unique_ptr<Work> inner_;
  std::shared_ptr<File> file_;
  std::int64_t seq_;
  bool has_begun_ = false;
};

class TrainingRecord::Recorded final : public Communicator {
 public:
  Recorded(Communicator& inner, std::shared_ptr<File> file)
      : inner_(inner), file_(std::move(file)) {}

  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t world_size() const override { return inner_.world_size(); }

  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override {
    auto work = inner_.all_reduce(tensor, op, tag);
    return note(std::move(work),
                {{"collective", to_string(CollectiveKind::kAllReduce)}, {"op", to_string(op)}},
                tensor, tag);
  }
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root,
                                  CollectiveTag tag) override {
    auto work = inner_.broadcast(tensor, root, tag);
    return note(std::move(work),
                {{"collective", to_string(CollectiveKind::kBroadcast)}, {"root", root}}, tensor,
                tag);
  }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input,
                                   CollectiveTag tag) override {
    auto work = inner_.all_gather(std::move(output), input, tag);
    return note(std::move(work), {{"collective", to_string(CollectiveKind::kAllGather)}}, input,
                tag);
  }
  std::unique_ptr<Work> barrier(CollectiveTag tag) override {
    return note(inner_.barrier(tag), {{"collective", to_string(CollectiveKind::kBarrier)}}, {},
                tag);
  }

 private:
  std::unique_ptr<Work> note(std::unique_ptr<Work> work, ordered_json line,
                             const at::Tensor& tensor, const CollectiveTag& tag) {
    line["site"] = to_string(tag.site);
    if (tag.step >= 0) line["step"] = tag.step;
    if (tag.bucket >= 0) line["bucket"] = tag.bucket;
    if (tensor.defined()) {
      line["numel"] = tensor.numel();
      line["dtype"] = c10::toString(tensor.scalar_type());
    }
    const std::int64_t seq = file_->note_issued(line);
    return std::make_unique<RecordedWork>(std::move(work), file_, seq);
  }

  Communicator& inner_;
  std::shared_ptr<File> file_;
};

TrainingRecord::TrainingRecord(const std::string& directory, Communicator& communicator) {
  LOCKSTEP_USAGE(::mkdir(directory.c_str(), 0777) == 0 || errno == EEXIST, "cannot make {}: {}",
                 directory, std::strerror(errno));
  file_ = std::make_shared<File>(fmt::format("{}/rank-{}.jsonl", directory, communicator.rank()));
  file_->write(
      {{"schema", 1}, {"rank", communicator.rank()}, {"world_size", communicator.world_size()}});
  communicator_ = std::make_unique<Recorded>(communicator, file_);
}

TrainingRecord::~TrainingRecord() = default;

Communicator& TrainingRecord::communicator() { return *communicator_; }

void TrainingRecord::step(std::int64_t step, const torch::nn::Module& module) {
  const NamedTensors parameters = module.named_parameters().pairs();
  NamedTensors gradients;
  for (const auto& [name, parameter] : parameters) {
    gradients.emplace_back(name, parameter.grad());
  }
  write_state(step, "gradients", gradients, false);
  write_state(step, "parameters", parameters, false);
  const NamedTensors buffers = module.named_buffers().pairs();
  if (!buffers.empty()) {
    write_state(step, "buffers", buffers, true);  // between two forwards each rank has its own (J1)
  }
}

void TrainingRecord::state(std::int64_t step, const std::string& what,
                           const NamedTensors& tensors) {
  write_state(step, what, tensors, false);
}

void TrainingRecord::write_state(std::int64_t step, const std::string& what,
                                 const NamedTensors& tensors, bool own) {
  const auto last = last_steps_.emplace(what, -1).first;
  LOCKSTEP_USAGE(step > last->second, "{} of step {} after those of step {}", what, step,
                 last->second);
  std::set<std::string> names;
  ordered_json line = {{"state", what}, {"step", step}};
  if (own) line["own"] = true;
  line["tensors"] = ordered_json::array();
  for (const auto& [name, tensor] : tensors) {
    LOCKSTEP_USAGE(names.insert(name).second, "two tensors '{}' in {}", name, what);
    line["tensors"].push_back(tensor_json(name, tensor));
  }
  file_->write(line);
  last->second = step;
}

void TrainingRecord::finish() { file_->write({{"end", "finished"}}, true); }

void TrainingRecord::fail(const std::string& error) {
  file_->write({{"end", "failed"}, {"error", error}}, true);
}

}  // namespace lockstep
