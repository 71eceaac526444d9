// SPDX-License-Identifier: Apache-2.0
// From a tensor to what NCCL is asked for.
#include "core/nccl_communicator.h"

#include <utility>

#include "core/check.h"
#include "core/nccl_connect.h"

namespace lockstep {
namespace {

class NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclFlights> flights, std::shared_ptr<NcclFlight> flight, bool on_host)
      : flights_(std::move(flights)), flight_(std::move(flight)), on_host_(on_host) {}

  void wait() override { flights_->wait(*flight_, on_host_); }

 private:
  std::shared_ptr<NcclFlights> flights_;
  std::shared_ptr<NcclFlight> flight_;
  bool on_host_;
};

NcclOperation operation_of(CollectiveDescription what, at::Tensor output, at::Tensor input) {
  NcclOperation operation;
  operation.what = std::move(what);
  operation.on_host = !output.defined() || output.device().is_cpu();
  operation.output = std::move(output);
  operation.input = std::move(input);
  return operation;
}

}  // namespace

std::optional<NcclNumbers> nccl_numbers(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return NcclNumbers{NcclType::kFloat32, 1};
    case at::kDouble:
      return NcclNumbers{NcclType::kFloat64, 1};
    case at::kHalf:
      return NcclNumbers{NcclType::kFloat16, 1};
    case at::kBFloat16:
      return NcclNumbers{NcclType::kBfloat16, 1};
    case at::kInt:
      return NcclNumbers{NcclType::kInt32, 1};
    case at::kLong:
      return NcclNumbers{NcclType::kInt64, 1};
    case at::kChar:
      return NcclNumbers{NcclType::kInt8, 1};
    case at::kByte:
      return NcclNumbers{NcclType::kUint8, 1};
    case at::kComplexHalf:
      return NcclNumbers{NcclType::kFloat16, 2};
    case at::kComplexFloat:
      return NcclNumbers{NcclType::kFloat32, 2};
    case at::kComplexDouble:
      return NcclNumbers{NcclType::kFloat64, 2};
    default:
      return std::nullopt;
  }
}

struct NcclCommunicator::Impl {
  explicit Impl(const NcclOptions& from)
      : options(from), api(from.api != nullptr ? *from.api : nccl_api()) {
    const NcclConnection connection = connect_nccl(api, options);
    NcclFlightsOptions flown;
    flown.rank = options.rank;
    flown.world_size = options.world_size;
    flown.device = connection.device;
    flown.timeout = options.timeout;
    flown.on_ended = options.on_ended;
    device = connection.device;
    flights = std::make_shared<NcclFlights>(api, connection.comm, std::move(flown));
  }
  ~Impl() { flights->close(); }

  void check_place(const at::Tensor& tensor, const char* what) const;
  void check_idle(const at::Tensor& tensor, const CollectiveDescription& what) const;
  std::unique_ptr<Work> post(NcclOperation operation);

  const NcclOptions options;
  const NcclApi& api;  // the options' own, or the real one; outlives this
  int device = 0;
  std::shared_ptr<NcclFlights> flights;  // also held by works, which may outlive this
  std::shared_ptr<NcclFlight> group;     // null outside of `grouped`
};

void NcclCommunicator::Impl::check_place(const at::Tensor& tensor, const char* what) const {
  const at::Device place = tensor.device();
  LOCKSTEP_USAGE(place.is_cpu() || (place.is_cuda() && place.index() == device),
                 "{} of a tensor on {}; rank {} has its communicator on cuda:{}, which carries "
                 "tensors there and in host memory",
                 what, place.str(), options.rank, device);
}

// Host memory is read at the launch, so that a result that is still to come would be missed.
void NcclCommunicator::Impl::check_idle(const at::Tensor& tensor,
                                        const CollectiveDescription& what) const {
  if (!tensor.defined() || !tensor.device().is_cpu()) {
    return;
  }
  std::optional<CollectiveDescription> writer = flights->writer_of(tensor);
  for (std::size_t i = 0; group != nullptr && i < group->operations.size(); ++i) {
    if (overlap(group->operations[i].output, tensor)) {
      writer = group->operations[i].what;
    }
  }
  LOCKSTEP_USAGE(!writer,
                 "rank {}: {} of host memory that {} is still writing; wait for that first, or "
                 "keep the tensor on the GPU",
                 options.rank, to_string(what.kind), describe(*writer));
}

std::unique_ptr<Work> NcclCommunicator::Impl::post(NcclOperation operation) {
  for (const at::Tensor* tensor : {&operation.output, &operation.input}) {
    check_idle(*tensor, operation.what);
  }
  operation.what.seq = flights->next_seq();
  const bool on_host = operation.on_host || options.wait_on_host;
  const auto flight = group != nullptr ? group : std::make_shared<NcclFlight>();
  flight->operations.push_back(std::move(operation));
  if (group == nullptr) {
    flights->launch(flight);
  }
  return std::make_unique<NcclWork>(flights, flight, on_host);
}

NcclCommunicator::NcclCommunicator(const NcclOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}

NcclCommunicator::~NcclCommunicator() = default;

std::int64_t NcclCommunicator::rank() const { return impl_->options.rank; }
std::int64_t NcclCommunicator::world_size() const { return impl_->options.world_size; }
int NcclCommunicator::device() const { return impl_->device; }

std::unique_ptr<Work> NcclCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                   CollectiveTag tag) {
  auto what = describe_all_reduce(tensor, op, tag);
  impl_->check_place(tensor, "all_reduce");
  const auto numbers = nccl_numbers(tensor.scalar_type());
  LOCKSTEP_USAGE(numbers,
                 "all_reduce of {}; NCCL reduces Float, Double, Half, BFloat16, Int, Long, Char, "
                 "Byte and complex numbers",
                 c10::toString(tensor.scalar_type()));
  LOCKSTEP_USAGE(op == ReduceOp::kSum || numbers->per_element == 1,
                 "all_reduce, {}, of {}: complex numbers have no order; they can be summed",
                 to_string(op), c10::toString(tensor.scalar_type()));
  auto operation = operation_of(std::move(what), std::move(tensor), {});
  operation.type = numbers->type;
  operation.count = static_cast<std::size_t>(operation.what.numel) * numbers->per_element;
  return impl_->post(std::move(operation));
}

std::unique_ptr<Work> NcclCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                  CollectiveTag tag) {
  auto what = describe_broadcast(tensor, root, world_size(), tag);
  impl_->check_place(tensor, "broadcast");
  auto operation = operation_of(std::move(what), std::move(tensor), {});
  operation.count = operation.output.nbytes();
  return impl_->post(std::move(operation));
}

std::unique_ptr<Work> NcclCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                   CollectiveTag tag) {
  auto what = describe_all_gather(output, input, world_size(), tag);
  impl_->check_place(output, "all_gather into");
  impl_->check_place(input, "all_gather");
  LOCKSTEP_USAGE(output.device() == input.device(),
                 "all_gather of a tensor on {} into one on {}; both must be in one place",
                 input.device().str(), output.device().str());
  auto operation = operation_of(std::move(what), std::move(output), std::move(input));
  operation.count = operation.input.nbytes();
  return impl_->post(std::move(operation));
}

std::unique_ptr<Work> NcclCommunicator::barrier(CollectiveTag tag) {
  auto operation = operation_of(describe_barrier(tag), {}, {});
  operation.count = 1;
  return impl_->post(std::move(operation));
}

void NcclCommunicator::grouped(const std::function<void()>& body) {
  LOCKSTEP_USAGE(impl_->group == nullptr, "rank {}: a group within a group", rank());
  impl_->group = std::make_shared<NcclFlight>();
  const auto launch = [this] {
    const auto flight = std::exchange(impl_->group, nullptr);
    if (!flight->operations.empty()) {
      impl_->flights->launch(flight);
    }
  };
  try {
    body();
  } catch (...) {
    launch();
    throw;
  }
  launch();
}

std::unique_ptr<NcclCommunicator> make_nccl_communicator(const NcclOptions& options) {
  return std::make_unique<NcclCommunicator>(options);
}

}  // namespace lockstep
