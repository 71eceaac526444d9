// SPDX-License-Identifier: Apache-2.0
// Every difference between the LibTorch versions that the library works with (1.13 to 2.14).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#if TORCH_VERSION_MAJOR == 1
#include <c10/util/C++17.h>
#endif

#if TORCH_VERSION_MAJOR < 1 || (TORCH_VERSION_MAJOR == 1 && TORCH_VERSION_MINOR < 13)
#error "Lockstep needs LibTorch 1.13 or later"
#endif

namespace lockstep::compat {

/// How LibTorch holds a node: by std::shared_ptr, from 2.14 on by its own intrusive pointer.
using NodePtr =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// A new node of type `N` in LibTorch's own keeping.
template <typename N, typename... Args>
auto make_node(Args&&... args) {
#if __has_include(<torch/csrc/autograd/node.h>)
  return c10::make_intrusive<N>(std::forward<Args>(args)...);
#else
  return std::shared_ptr<N>(new N(std::forward<Args>(args)...), torch::autograd::deleteNode);
#endif
}

/// Whether `Optimizer::zero_grad` leaves gradients undefined (2.0 on) or zeroes them in place (M3).
inline constexpr bool kOptimizerZeroGradSetsNone = TORCH_VERSION_MAJOR >= 2;

/// While it lives, LibTorch's warnings on this thread go nowhere.
class NoWarnings {
 private:
  struct Silent final : c10::WarningHandler {
#if TORCH_VERSION_MAJOR == 1
    void process(const c10::SourceLocation&, const std::string&, bool) override {}
#else
    void process(const c10::Warning&) override {}
#endif
  };
  Silent silent_;
#if TORCH_VERSION_MAJOR == 1
  c10::Warning::WarningHandlerGuard guard_{&silent_};
#else
  c10::WarningUtils::WarningHandlerGuard guard_{&silent_};
#endif
};

/// The node that adds to `.grad` of a leaf that requires grad. The tensor holds it weakly: whoever
/// hooks it must keep the returned pointer.
inline NodePtr grad_accumulator(const at::Tensor& leaf) {
  return torch::autograd::impl::grad_accumulator(leaf);
}

/// That node's address if somebody holds it, else null. For comparison only.
inline const void* existing_accumulator(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad() && tensor.is_leaf()
             ? torch::autograd::impl::try_get_grad_accumulator(tensor).get()
             : nullptr;
}

/// Runs `callback` when the innermost backward that is in progress on this thread ends. What it
/// throws comes out of that backward.
inline void queue_callback(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

/// Adds a hook that runs after `node`; the key removes it.
inline std::uintptr_t add_post_hook(torch::autograd::Node& node,
                                    std::unique_ptr<torch::autograd::FunctionPostHook> hook) {
  return node.add_post_hook(std::move(hook));
}
inline void remove_post_hook(torch::autograd::Node& node, std::uintptr_t key) {
  node.del_post_hook(key);
}

/// The key under which a torch::optim optimizer keeps the state of `parameter`; `Key` is the key
/// type of its `state()`: the address, written out by LibTorch 1.
template <typename Key>
Key optimizer_state_key(const at::Tensor& parameter) {
#if TORCH_VERSION_MAJOR == 1
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
#else
  return parameter.unsafeGetTensorImpl();
#endif
}

}  // namespace lockstep::compat
