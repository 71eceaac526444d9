// SPDX-License-Identifier: Apache-2.0
// GPUs and an NCCL that exist in host memory only: streams run in order, events order them, and
// collectives begin once every rank's side stream has come to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/nccl_api.h"

namespace lockstep::test {

/// Stands in for NcclApi. Work in streams is carried out within calls of the table, the watchdog's
/// among them, so nothing runs while nobody looks.
/// Threads: any.
class FakeGpu {
 public:
  explicit FakeGpu(int num_gpus);
  ~FakeGpu();

  /// May be changed before communicators are made, to plant faults.
  NcclApi api;
  int installed_version = nccl_version(2, 28, 9);
  bool share_one_gpu = false;  ///< all devices have the first one's address

  /// The stream that callers use on `device` is busy until `release`.
  void occupy(int device);
  void release(int device);
  /// Puts a kernel into that stream that notes down `text` when it runs.
  void note(int device, const std::string& text);
  /// What has run on all GPUs so far, in order: notes, and the names of collectives.
  std::vector<std::string> ran();

  /// What the launching threads asked of streams, events and NCCL, in order; not what the watchdog
  /// asks. "caller" and "side" are streams, e0, e1, ... events in the order in which they were
  /// made.
  std::vector<std::string> calls();

  /// From now on every communicator reports this.
  void report_error(int error);

  int num_aborted();
  int num_destroyed();
  /// Times that a communicator was used after it had been freed.
  int num_misused();
  /// Bytes of pinned memory that were not given back.
  std::size_t pinned_bytes();

  /// `tensor` as if its memory were on `device`; shares it.
  static at::Tensor on_gpu(const at::Tensor& tensor, int device);

 private:
  struct Event {
    std::string name;
    int num_recorded = 0, num_passed = 0;
  };
  struct Stream {
    std::string name;
    std::deque<std::function<bool()>> work;  // each says whether it is done
  };
  struct Part {
    std::string name;
    const void* in = nullptr;
    void* out = nullptr;
    std::size_t count = 0;
    NcclType type = NcclType::kUint8;
    NcclOp op = NcclOp::kSum;
    int root = -1;
  };
  struct Meeting {
    std::map<int, std::vector<Part>> by_rank;
    int num_come = 0;
    bool is_done = false;
  };
  struct Clique {
    int world_size = 0, num_joined = 0, num_finalized = 0;
    std::vector<std::shared_ptr<Meeting>> meetings;
  };
  struct Comm {
    Clique* clique = nullptr;
    int rank = 0;
    std::size_t num_launched = 0;
    bool is_launching = false, is_finalizing = false, is_freed = false, is_aborted = false;
  };
  using Lock = std::lock_guard<std::mutex>;

  template <typename Real, typename Handle>
  static Real& real(Handle* handle) {
    return *reinterpret_cast<Real*>(handle);
  }
  void add_cuda();
  void add_nccl();
  int enqueue_part(Comm& comm, Part part, Stream& stream);
  void pump();
  void carry_out(Meeting& meeting);
  Stream& caller_stream(int device);

  std::mutex mutex_;
  int num_gpus_;
  std::deque<std::unique_ptr<Event>> events_;
  std::deque<std::unique_ptr<Stream>> streams_;
  std::deque<std::unique_ptr<Comm>> comms_;
  std::map<NcclId, std::unique_ptr<Clique>> cliques_;
  std::map<int, Stream*> callers_;
  std::set<int> occupied_;
  std::vector<std::string> ran_, calls_;
  std::map<void*, std::size_t> pinned_;
  int num_ids_ = 0, error_ = 0, num_aborted_ = 0, num_destroyed_ = 0, num_misused_ = 0;
};

}  // namespace lockstep::test
