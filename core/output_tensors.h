// SPDX-License-Identifier: Apache-2.0
// Finds the tensors inside whatever a module's forward returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

/// Tells how to find the tensors of type `T`. Specialise it for a struct that a module returns:
///
///   template <>
///   struct lockstep::OutputTensors<Prediction> {
///     static void collect(Prediction& output, std::vector<at::Tensor*>& tensors) {
///       lockstep::collect_output_tensors(output.logits, tensors);
///       lockstep::collect_output_tensors(output.boxes, tensors);
///     }
///   };
///
/// Known already: at::Tensor; tuples, pairs, optionals, variants, owning pointers, arrays, vectors,
/// lists, maps and torch::OrderedDict of known types; numbers, enumerations and strings, which hold
/// no tensors. Tensors that are not listed look unused to `find_unused_parameters` (E10).
template <typename T, typename Enable = void>
struct OutputTensors;

/// Appends the address of every tensor inside `output`, in order; they stay valid as long as
/// `output` is not changed or moved.
template <typename T>
void collect_output_tensors(T& output, std::vector<at::Tensor*>& tensors);

namespace detail {

template <typename T, typename = void>
struct IsOptionalLike : std::false_type {};
template <typename T>
struct IsOptionalLike<
    T, std::void_t<decltype(std::declval<T&>().has_value()), decltype(*std::declval<T&>())>>
    : std::true_type {};

template <typename T, typename = void>
struct IsRange : std::false_type {};
template <typename T>
struct IsRange<T, std::void_t<decltype(std::declval<T&>().begin() != std::declval<T&>().end()),
                              decltype(*std::declval<T&>().begin())>> : std::true_type {};

template <typename T>
struct IsString : std::false_type {};
template <typename C, typename R, typename A>
struct IsString<std::basic_string<C, R, A>> : std::true_type {};

template <typename T>
constexpr bool kHoldsNoTensor =
    std::is_arithmetic_v<T> || std::is_enum_v<T> || IsString<std::remove_cv_t<T>>::value;

/// Ranges of numbers are skipped as a whole: std::vector<bool> has no elements to refer to.
template <typename T, typename = void>
struct IsRangeWithoutTensors : std::false_type {};
template <typename T>
struct IsRangeWithoutTensors<T, std::void_t<typename T::value_type>>
    : std::bool_constant<IsRange<T>::value && kHoldsNoTensor<typename T::value_type>> {};

template <typename T>
constexpr bool kUnknownType = false;

}  // namespace detail

template <typename T, typename Enable>
struct OutputTensors {
  static void collect(T& output, std::vector<at::Tensor*>& tensors) {
    if constexpr (detail::kHoldsNoTensor<T> || detail::IsRangeWithoutTensors<T>::value) {
      static_cast<void>(output);
      static_cast<void>(tensors);
    } else if constexpr (detail::IsOptionalLike<T>::value) {
      if (output.has_value()) {
        collect_output_tensors(*output, tensors);
      }
    } else if constexpr (detail::IsRange<T>::value) {
      for (auto&& element : output) {
        collect_output_tensors(element, tensors);
      }
    } else {
      static_assert(detail::kUnknownType<T>,
                    "forward returns a type whose tensors DistributedDataParallel cannot find: "
                    "specialise lockstep::OutputTensors<T> for it (see core/output_tensors.h)");
    }
  }
};

template <>
struct OutputTensors<at::Tensor> {
  static void collect(at::Tensor& output, std::vector<at::Tensor*>& tensors) {
    tensors.push_back(&output);
  }
};

template <typename... Elements>
struct OutputTensors<std::tuple<Elements...>> {
  static void collect(std::tuple<Elements...>& output, std::vector<at::Tensor*>& tensors) {
    std::apply([&](auto&... element) { (collect_output_tensors(element, tensors), ...); }, output);
  }
};

/// The first element of a map's pairs is constant; only keys without tensors are possible there.
template <typename First, typename Second>
struct OutputTensors<std::pair<First, Second>> {
  static void collect(std::pair<First, Second>& output, std::vector<at::Tensor*>& tensors) {
    if constexpr (!std::is_const_v<First>) {
      collect_output_tensors(output.first, tensors);
    } else {
      static_assert(!std::is_same_v<First, const at::Tensor>, "tensors cannot be keys of a map");
    }
    collect_output_tensors(output.second, tensors);
  }
};

template <typename... Alternatives>
struct OutputTensors<std::variant<Alternatives...>> {
  static void collect(std::variant<Alternatives...>& output, std::vector<at::Tensor*>& tensors) {
    std::visit([&](auto& alternative) { collect_output_tensors(alternative, tensors); }, output);
  }
};

template <typename T>
struct OutputTensors<std::unique_ptr<T>> {
  static void collect(std::unique_ptr<T>& output, std::vector<at::Tensor*>& tensors) {
    if (output != nullptr) {
      collect_output_tensors(*output, tensors);
    }
  }
};

template <typename T>
struct OutputTensors<std::shared_ptr<T>> {
  static void collect(std::shared_ptr<T>& output, std::vector<at::Tensor*>& tensors) {
    if (output != nullptr) {
      collect_output_tensors(*output, tensors);
    }
  }
};

template <typename Key, typename Value>
struct OutputTensors<torch::OrderedDict<Key, Value>> {
  static void collect(torch::OrderedDict<Key, Value>& output, std::vector<at::Tensor*>& tensors) {
    for (auto& item : output) {
      collect_output_tensors(item.value(), tensors);
    }
  }
};

template <typename T>
void collect_output_tensors(T& output, std::vector<at::Tensor*>& tensors) {
  OutputTensors<T>::collect(output, tensors);
}

}  // namespace lockstep
