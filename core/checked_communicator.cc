// SPDX-License-Identifier: Apache-2.0
// Gathers what every rank is about to do and compares it.
#include "core/checked_communicator.h"

#include <torch/types.h>

#include <array>
#include <exception>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

// What is compared: kind, numel, dtype, op or root, call site, step, bucket.
constexpr std::int64_t kNumWords = 7;
using Words = std::array<std::int64_t, kNumWords>;

std::string to_text(const std::int64_t* words) {
  const auto kind = static_cast<CollectiveKind>(words[0]);
  std::string text = fmt::format("{} ({}, step {}, bucket {})", to_string(kind),
                                 to_string(static_cast<CallSite>(words[4])), words[5], words[6]);
  if (words[2] >= 0) {
    text +=
        fmt::format(", {} x {}", words[1], c10::toString(static_cast<at::ScalarType>(words[2])));
  }
  return text;
}

class FailedWork final : public Work {
 public:
  explicit FailedWork(std::exception_ptr error) : error_(std::move(error)) {}
  void wait() override { std::rethrow_exception(error_); }

 private:
  std::exception_ptr error_;
};

}  // namespace

std::unique_ptr<Work> CheckedCommunicator::disagreement(CollectiveKind kind,
                                                        const at::Tensor& tensor,
                                                        std::int64_t detail, CollectiveTag tag) {
  const std::int64_t seq = seq_++;
  const bool has_tensor = tensor.defined();
  const Words own{static_cast<std::int64_t>(kind),
                  has_tensor ? tensor.numel() : 0,
                  has_tensor ? static_cast<std::int64_t>(tensor.scalar_type()) : -1,
                  detail,
                  static_cast<std::int64_t>(tag.site),
                  tag.step,
                  tag.bucket};
  const at::Tensor input = at::empty({kNumWords}, at::kLong);
  std::copy(own.begin(), own.end(), input.data_ptr<std::int64_t>());
  const at::Tensor output = at::zeros({world_size(), kNumWords}, at::kLong);
  try {
    inner_.all_gather(output, input, {CallSite::kChecks, -1, -1})->wait();
  } catch (const CommError&) {
    return std::make_unique<FailedWork>(std::current_exception());
  }
  const auto* words = output.data_ptr<std::int64_t>();
  for (std::int64_t other = 1; other < world_size(); ++other) {
    if (!std::equal(words, words + kNumWords, words + other * kNumWords)) {
      return std::make_unique<FailedWork>(std::make_exception_ptr(
          Desync(fmt::format("collective {}: rank 0 is in {}, but rank {} is in {}", seq,
                             to_text(words), other, to_text(words + other * kNumWords)))));
    }
  }
  return nullptr;
}

std::unique_ptr<Work> CheckedCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                      CollectiveTag tag) {
  auto failed =
      disagreement(CollectiveKind::kAllReduce, tensor, static_cast<std::int64_t>(op), tag);
  return failed != nullptr ? std::move(failed) : inner_.all_reduce(std::move(tensor), op, tag);
}

std::unique_ptr<Work> CheckedCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                     CollectiveTag tag) {
  auto failed = disagreement(CollectiveKind::kBroadcast, tensor, root, tag);
  return failed != nullptr ? std::move(failed) : inner_.broadcast(std::move(tensor), root, tag);
}

std::unique_ptr<Work> CheckedCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                      CollectiveTag tag) {
  auto failed = disagreement(CollectiveKind::kAllGather, input, 0, tag);
  return failed != nullptr ? std::move(failed)
                           : inner_.all_gather(std::move(output), std::move(input), tag);
}

std::unique_ptr<Work> CheckedCommunicator::barrier(CollectiveTag tag) {
  auto failed = disagreement(CollectiveKind::kBarrier, {}, 0, tag);
  return failed != nullptr ? std::move(failed) : inner_.barrier(tag);
}

}  // namespace lockstep
