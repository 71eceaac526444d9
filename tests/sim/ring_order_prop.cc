// SPDX-License-Identifier: Apache-2.0
// Properties of the ring's order over random shapes and values.
#include <gtest/gtest.h>
// gtest first: RapidCheck's header leans on it.
#include <rapidcheck/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "sim/ring_order.h"
#include "tests/sim/ring_emulator.h"

namespace lockstep::test {
namespace {

template <typename T>
using Values = std::vector<std::vector<T>>;

// Random mantissas over 2 * spread binades: sums round, so that their order shows.
template <typename T>
Values<T> random_values(std::int64_t world_size, std::int64_t numel, int spread) {
  Values<T> values(static_cast<std::size_t>(world_size));
  for (auto& of_rank : values) {
    of_rank = *rc::gen::container<std::vector<T>>(
        static_cast<std::size_t>(numel),
        rc::gen::map(rc::gen::pair(rc::gen::inRange<std::int64_t>(-(1 << 24), 1 << 24),
                                   rc::gen::inRange(-spread, spread + 1)),
                     [](const std::pair<std::int64_t, int>& parts) {
                       return std::ldexp(static_cast<T>(parts.first), parts.second);
                     }));
  }
  return values;
}

template <typename T>
std::vector<at::Tensor> tensors_of(const Values<T>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& of_rank : values) {
    at::Tensor tensor =
        at::empty({static_cast<std::int64_t>(of_rank.size())}, c10::CppTypeToScalarType<T>::value);
    if (!of_rank.empty()) {
      std::memcpy(tensor.data_ptr(), of_rank.data(), of_rank.size() * sizeof(T));
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

template <typename T>
void check_against_rule() {
  const auto world_size = *rc::gen::inRange<std::int64_t>(1, 9);
  const auto numel = *rc::gen::inRange<std::int64_t>(0, 600);
  const Values<T> values = random_values<T>(world_size, numel, *rc::gen::inRange(0, 30));
  const std::vector<at::Tensor> tensors = tensors_of(values);
  sim::ring_all_reduce(tensors, ReduceOp::kSum);
  for (const at::Tensor& tensor : tensors) {
    const T* result = static_cast<const T*>(tensor.data_ptr());
    for (std::int64_t i = 0; i < numel; ++i) {
      RC_ASSERT(result[i] == ring_sum(values, i));
    }
  }
}

// Oracle: the written rule.
RC_GTEST_PROP(RingOrderProps, AddsFloatsByTheRuleOnAllRanks, ()) { check_against_rule<float>(); }
RC_GTEST_PROP(RingOrderProps, AddsDoublesByTheRuleOnAllRanks, ()) { check_against_rule<double>(); }

// Metamorphic: where nothing rounds, the order of ranks is of no consequence.
RC_GTEST_PROP(RingOrderProps, ForgetsTheOrderOfRanksWhereSumsAreExact, ()) {
  const auto world_size = *rc::gen::inRange<std::int64_t>(1, 9);
  const auto numel = *rc::gen::inRange<std::int64_t>(0, 200);
  Values<float> values(static_cast<std::size_t>(world_size));
  for (auto& of_rank : values) {
    of_rank = *rc::gen::container<std::vector<float>>(
        static_cast<std::size_t>(numel),
        rc::gen::map(rc::gen::inRange(-4096, 4096), [](int v) { return static_cast<float>(v); }));
  }
  Values<float> turned(values.rbegin(), values.rend());
  const auto a = tensors_of(values);
  const auto b = tensors_of(turned);
  sim::ring_all_reduce(a, ReduceOp::kSum);
  sim::ring_all_reduce(b, ReduceOp::kSum);
  RC_ASSERT(at::equal(a[0], b[0]));
}

// Oracle: the definition of a maximum.
RC_GTEST_PROP(RingOrderProps, FindsTheMaximum, ()) {
  const auto world_size = *rc::gen::inRange<std::int64_t>(1, 9);
  const auto numel = *rc::gen::inRange<std::int64_t>(1, 200);
  const Values<double> values = random_values<double>(world_size, numel, 10);
  const auto tensors = tensors_of(values);
  const at::Tensor expected = std::get<0>(at::stack(tensors).max(0));
  sim::ring_all_reduce(tensors, ReduceOp::kMax);
  for (const at::Tensor& tensor : tensors) {
    RC_ASSERT(at::equal(tensor, expected));
  }
}

// Invariant: the chunks of all ranks hold all elements.
RC_GTEST_PROP(RingOrderProps, HasRoomForAllElementsInItsChunks, ()) {
  const auto world_size = *rc::gen::inRange<std::int64_t>(1, 100);
  const auto numel = *rc::gen::inRange<std::int64_t>(1, 100'000'000);
  const auto element_bytes = *rc::gen::element<std::int64_t>(1, 2, 4, 8);
  RC_ASSERT(sim::ring_chunk_numel(world_size, numel, element_bytes) * world_size >= numel);
}

}  // namespace
}  // namespace lockstep::test
