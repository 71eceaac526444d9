// SPDX-License-Identifier: Apache-2.0
// What every Communicator promises. Assertions look at records on the main thread.
#include "tests/contract/communicator_contract.h"

#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "core/error.h"

namespace lockstep::test {

// A transport joins in a file of its own; a build without any is none to fail.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorContract);

namespace {

constexpr CollectiveTag kTag{CallSite::kScript, 0, -1};

// Sizes around the borders of a ring's chunks and above one page.
constexpr std::int64_t kNumels[] = {0, 1, 2, 7, 16, 17, 1000, 5003};

constexpr at::ScalarType kReducible[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                         at::kInt,   at::kLong,   at::kChar, at::kByte};
constexpr at::ScalarType kMovable[] = {at::kFloat, at::kDouble, at::kHalf,        at::kBFloat16,
                                       at::kInt,   at::kLong,   at::kChar,        at::kByte,
                                       at::kShort, at::kBool,   at::kComplexFloat};

// Element e of rank r is r + e mod 5: small enough to be exact in every type, and summed over eight
// ranks.
at::Tensor small_numbers(std::int64_t rank, std::int64_t numel, at::ScalarType dtype) {
  return (at::arange(numel, at::kLong).remainder(5) + rank).to(dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

std::size_t index(std::int64_t rank) { return static_cast<std::size_t>(rank); }

// One slot per rank for what its body saw.
template <typename T>
std::vector<T> slots(std::int64_t world_size) {
  return std::vector<T>(index(world_size));
}

TEST_P(CommunicatorContract, KnowsItsRankAndTheWorldSize) {
  auto ranks = slots<std::int64_t>(world_size());
  auto sizes = slots<std::int64_t>(world_size());
  std::atomic<std::int64_t> next{0};
  run([&](Communicator& c) {
    const std::int64_t slot = next++;
    ranks[index(slot)] = c.rank();
    sizes[index(slot)] = c.world_size();
  });
  std::sort(ranks.begin(), ranks.end());
  for (std::int64_t rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(ranks[index(rank)], rank);
    EXPECT_EQ(sizes[index(rank)], world_size());
  }
}

TEST_P(CommunicatorContract, SumsEveryTypeInEverySize) {
  auto results = slots<std::vector<at::Tensor>>(world_size());
  run([&](Communicator& c) {
    for (const at::ScalarType dtype : kReducible) {
      for (const std::int64_t numel : kNumels) {
        at::Tensor values = small_numbers(c.rank(), numel, dtype);
        c.all_reduce(values, ReduceOp::kSum, kTag)->wait();
        results[index(c.rank())].push_back(values);
      }
    }
  });
  const std::int64_t w = world_size();
  for (const auto& of_rank : results) {
    std::size_t i = 0;
    for (const at::ScalarType dtype : kReducible) {
      for (const std::int64_t numel : kNumels) {
        // sum over r of (r + e mod 5) = w (w - 1) / 2 + w (e mod 5)
        const at::Tensor expected =
            (at::arange(numel, at::kLong).remainder(5) * w + w * (w - 1) / 2).to(dtype);
        EXPECT_TRUE(same_bits(of_rank[i++], expected)) << dtype << ", " << numel << " elements";
      }
    }
  }
}

TEST_P(CommunicatorContract, TakesTheMaximumOfEveryType) {
  auto results = slots<std::vector<at::Tensor>>(world_size());
  run([&](Communicator& c) {
    for (const at::ScalarType dtype : kReducible) {
      at::Tensor values = small_numbers(c.rank(), 1000, dtype);
      c.all_reduce(values, ReduceOp::kMax, kTag)->wait();
      results[index(c.rank())].push_back(values);
    }
  });
  for (const auto& of_rank : results) {
    std::size_t i = 0;
    for (const at::ScalarType dtype : kReducible) {
      EXPECT_TRUE(same_bits(of_rank[i++], small_numbers(world_size() - 1, 1000, dtype))) << dtype;
    }
  }
}

TEST_P(CommunicatorContract, LeavesTheSameBitsOnAllRanksWhereSumsRound) {
  auto results = slots<at::Tensor>(world_size());
  run([&](Communicator& c) {
    // 1 / (3 + 2 (e + 7 r mod 1009)) has an endless binary fraction nearly everywhere.
    const at::Tensor divisor = (at::arange(5003) + 7 * c.rank()).remainder(1009) * 2 + 3;
    at::Tensor values = divisor.to(at::kFloat).reciprocal();
    c.all_reduce(values, ReduceOp::kSum, kTag)->wait();
    results[index(c.rank())] = values;
  });
  for (const at::Tensor& result : results) {
    EXPECT_TRUE(same_bits(result, results[0]));
  }
}

TEST_P(CommunicatorContract, BroadcastsEveryTypeFromEveryRoot) {
  auto results = slots<std::vector<at::Tensor>>(world_size());
  run([&](Communicator& c) {
    for (const at::ScalarType dtype : kMovable) {
      for (std::int64_t root = 0; root < c.world_size(); ++root) {
        at::Tensor values = small_numbers(c.rank(), 33, dtype);
        c.broadcast(values, root, kTag)->wait();
        results[index(c.rank())].push_back(values);
      }
    }
  });
  for (const auto& of_rank : results) {
    std::size_t i = 0;
    for (const at::ScalarType dtype : kMovable) {
      for (std::int64_t root = 0; root < world_size(); ++root) {
        EXPECT_TRUE(same_bits(of_rank[i++], small_numbers(root, 33, dtype)))
            << dtype << " from rank " << root;
      }
    }
  }
}

TEST_P(CommunicatorContract, BroadcastsEverySizeAndShape) {
  auto results = slots<std::vector<at::Tensor>>(world_size());
  run([&](Communicator& c) {
    for (const std::int64_t numel : kNumels) {
      at::Tensor values = small_numbers(c.rank(), 2 * numel, at::kDouble).reshape({2, numel});
      c.broadcast(values, 0, kTag)->wait();
      results[index(c.rank())].push_back(values);
    }
  });
  for (const auto& of_rank : results) {
    std::size_t i = 0;
    for (const std::int64_t numel : kNumels) {
      EXPECT_TRUE(
          same_bits(of_rank[i++], small_numbers(0, 2 * numel, at::kDouble).reshape({2, numel})));
    }
  }
}

TEST_P(CommunicatorContract, GathersInRankOrderAndLeavesTheInputAlone) {
  auto outputs = slots<std::vector<at::Tensor>>(world_size());
  auto inputs = slots<std::vector<at::Tensor>>(world_size());
  run([&](Communicator& c) {
    for (const at::ScalarType dtype : kMovable) {
      for (const std::int64_t numel : {0, 1, 7, 1000}) {
        const at::Tensor input = small_numbers(c.rank(), numel, dtype);
        at::Tensor output = at::zeros({c.world_size(), numel}, dtype);
        c.all_gather(output, input, kTag)->wait();
        inputs[index(c.rank())].push_back(input);
        outputs[index(c.rank())].push_back(output);
      }
    }
  });
  for (std::int64_t rank = 0; rank < world_size(); ++rank) {
    std::size_t i = 0;
    for (const at::ScalarType dtype : kMovable) {
      for (const std::int64_t numel : {0, 1, 7, 1000}) {
        std::vector<at::Tensor> rows;
        for (std::int64_t row = 0; row < world_size(); ++row) {
          rows.push_back(small_numbers(row, numel, dtype));
        }
        EXPECT_TRUE(same_bits(outputs[index(rank)][i], at::stack(rows))) << dtype;
        EXPECT_TRUE(same_bits(inputs[index(rank)][i], rows[index(rank)])) << dtype;
        ++i;
      }
    }
  }
}

TEST_P(CommunicatorContract, GathersInPlaceWhereTheInputIsTheRanksOwnRow) {
  auto outputs = slots<at::Tensor>(world_size());
  run([&](Communicator& c) {
    at::Tensor output = at::zeros({c.world_size(), 3});
    output.select(0, c.rank()).fill_(static_cast<double>(c.rank() + 1));
    c.all_gather(output, output.select(0, c.rank()), kTag)->wait();
    outputs[index(c.rank())] = output;
  });
  const at::Tensor expected = (at::arange(world_size()).unsqueeze(1).expand({-1, 3}) + 1);
  for (const at::Tensor& output : outputs) {
    EXPECT_TRUE(same_bits(output, expected.to(at::kFloat).contiguous()));
  }
}

TEST_P(CommunicatorContract, EndsABarrierOnlyAfterEveryRankHasEntered) {
  std::atomic<std::int64_t> num_entered{0};
  auto seen = slots<std::vector<std::int64_t>>(world_size());
  run([&](Communicator& c) {
    for (int round = 0; round < 5; ++round) {
      ++num_entered;
      c.barrier(kTag)->wait();
      seen[index(c.rank())].push_back(num_entered.load());
    }
  });
  for (const auto& of_rank : seen) {
    for (std::int64_t round = 0; round < 5; ++round) {
      EXPECT_GE(of_rank[index(round)], (round + 1) * world_size());
    }
  }
}

TEST_P(CommunicatorContract, AllowsSeveralInFlightAndAnyOrderOfWaiting) {
  auto results = slots<std::vector<at::Tensor>>(world_size());
  run([&](Communicator& c) {
    std::vector<at::Tensor> values;
    std::vector<std::unique_ptr<Work>> works;
    for (std::int64_t i = 0; i < 12; ++i) {
      values.push_back(small_numbers(c.rank() + i, 100, at::kFloat));
      works.push_back(i % 3 == 2 ? c.broadcast(values.back(), 0, kTag)
                                 : c.all_reduce(values.back(), ReduceOp::kSum, kTag));
    }
    // Each rank begins somewhere else and goes backwards.
    for (std::int64_t i = 0; i < 12; ++i) {
      works[index((c.rank() + 11 - i + 12) % 12)]->wait();
    }
    results[index(c.rank())] = values;
  });
  const std::int64_t w = world_size();
  for (const auto& of_rank : results) {
    for (std::int64_t i = 0; i < 12; ++i) {
      const at::Tensor summed =
          (at::arange(100, at::kLong).remainder(5) * w + i * w + w * (w - 1) / 2).to(at::kFloat);
      EXPECT_TRUE(
          same_bits(of_rank[index(i)], i % 3 == 2 ? small_numbers(i, 100, at::kFloat) : summed))
          << "collective " << i;
    }
  }
}

TEST_P(CommunicatorContract, MayBeWaitedForTwice) {
  auto results = slots<at::Tensor>(world_size());
  run([&](Communicator& c) {
    at::Tensor values = at::ones({4});
    const auto work = c.all_reduce(values, ReduceOp::kSum, kTag);
    work->wait();
    work->wait();
    c.barrier(kTag)->wait();
    work->wait();
    results[index(c.rank())] = values;
  });
  for (const at::Tensor& result : results) {
    EXPECT_TRUE(same_bits(result, at::full({4}, static_cast<double>(world_size()))));
  }
}

TEST_P(CommunicatorContract, RefusesWhatIsNotContiguousBeforeAnyEffect) {
  auto num_refused = slots<int>(world_size());
  auto results = slots<at::Tensor>(world_size());
  run([&](Communicator& c) {
    const auto refuse = [&](const auto& launch) {
      try {
        launch();
      } catch (const UsageError&) {
        ++num_refused[index(c.rank())];
      }
    };
    const at::Tensor strided = at::ones({3, 4}).t();
    const at::Tensor dense = at::ones({4, 3});
    const at::Tensor rows = at::ones({c.world_size(), 4, 3});
    refuse([&] { c.all_reduce(strided, ReduceOp::kSum, kTag); });
    refuse([&] { c.broadcast(strided, 0, kTag); });
    refuse([&] { c.all_gather(rows, strided, kTag); });
    refuse([&] { c.all_gather(at::ones({4, 3, c.world_size() + 1}).select(2, 0), dense, kTag); });
    // The next collective pairs up on all ranks even if only one was refused something.
    if (c.rank() == 0) {
      refuse([&] { c.all_reduce(strided, ReduceOp::kSum, kTag); });
    }
    at::Tensor values = at::ones({2});
    c.all_reduce(values, ReduceOp::kSum, kTag)->wait();
    results[index(c.rank())] = values;
  });
  for (std::int64_t rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(num_refused[index(rank)], rank == 0 ? 5 : 4);
    EXPECT_EQ(results[index(rank)][0].item<float>(), static_cast<float>(world_size()));
  }
}

TEST_P(CommunicatorContract, RefusesARootThatIsNoRankAndOutputsThatDoNotFit) {
  auto num_refused = slots<int>(world_size());
  run([&](Communicator& c) {
    const auto refuse = [&](const auto& launch) {
      try {
        launch();
      } catch (const UsageError&) {
        ++num_refused[index(c.rank())];
      }
    };
    refuse([&] { c.broadcast(at::ones({2}), c.world_size(), kTag); });
    refuse([&] { c.broadcast(at::ones({2}), -1, kTag); });
    refuse([&] { c.all_gather(at::ones({c.world_size() + 1, 2}), at::ones({2}), kTag); });
    refuse([&] { c.all_gather(at::ones({c.world_size(), 2}), at::ones({2}, at::kInt), kTag); });
    c.barrier(kTag)->wait();
  });
  for (const int refused : num_refused) {
    EXPECT_EQ(refused, 4);
  }
}

TEST_P(CommunicatorContract, KeepsTensorsAliveUntilTheCollectiveHasEnded) {
  constexpr std::int64_t kNumel = 1000;
  auto memory = slots<std::vector<float>>(world_size());
  auto first_at_release = slots<float>(world_size());
  run([&](Communicator& c) {
    auto& values = memory[index(c.rank())];
    values.assign(index(kNumel), static_cast<float>(c.rank() + 1));
    float& at_release = first_at_release[index(c.rank())];
    // The tensor tells, when its last owner lets it go, what it holds then.
    c.all_reduce(
        at::from_blob(
            values.data(), {kNumel},
            [&at_release](void* bytes) { at_release = *static_cast<float*>(bytes); }, at::kFloat),
        ReduceOp::kSum, kTag);
    c.barrier(kTag)->wait();
  });
  // 1 + 2 + ... + w
  const auto sum = static_cast<float>(world_size() * (world_size() + 1) / 2);
  for (std::int64_t rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(first_at_release[index(rank)], sum) << "rank " << rank;
    EXPECT_EQ(memory[index(rank)].back(), sum) << "rank " << rank;
  }
}

}  // namespace
}  // namespace lockstep::test
