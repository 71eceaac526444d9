// SPDX-License-Identifier: Apache-2.0
// Gloo's view of a rendezvous. Internal to the Gloo transport.
#pragma once

#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/rendezvous.h"

namespace lockstep {

/// Gloo's key-value interface on our rendezvous.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  explicit GlooStore(GroupRendezvous& rendezvous) : rendezvous_(rendezvous) {}
  void set(const std::string& key, const std::vector<char>& value) override {
    rendezvous_.set(key, value);
  }
  std::vector<char> get(const std::string& key) override { return rendezvous_.get(key); }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      rendezvous_.get(key);
    }
  }
  // The rendezvous has one deadline for everything.
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& /*timeout*/) override {
    wait(keys);
  }

 private:
  GroupRendezvous& rendezvous_;
};

// Newer versions of Gloo take a shared pointer to the store, older ones a reference.
template <typename Context, typename Store>
auto connect_mesh(Context& context, const std::shared_ptr<Store>& store,
                  std::shared_ptr<gloo::transport::Device>& device, int /*preferred*/)
    -> decltype(context.connectFullMesh(store, device)) {
  context.connectFullMesh(store, device);
}
template <typename Context, typename Store>
void connect_mesh(Context& context, const std::shared_ptr<Store>& store,
                  std::shared_ptr<gloo::transport::Device>& device, long /*fallback*/) {
  context.connectFullMesh(*store, device);
}

}  // namespace lockstep
