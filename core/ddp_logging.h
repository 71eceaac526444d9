// SPDX-License-Identifier: Apache-2.0
// What a wrapper knows about itself, for people who look for a problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// Facts about one wrapper (Q). Plain data; times are left to whoever has a clock.
struct DdpLoggingData {
  // Known at construction, and kept up to date.
  std::string module_name;
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
  std::int64_t num_parameter_tensors = 0;
  std::int64_t total_parameter_bytes = 0;
  std::string dtypes;                      ///< sorted, joined by ", "
  std::string device;                      ///< of the first parameter
  std::vector<std::int64_t> bucket_bytes;  ///< of the first layout, in bucket order
  std::int64_t first_bucket_cap_bytes = 0;
  std::int64_t bucket_cap_bytes = 0;
  bool broadcast_buffers = false;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  std::string comm_hook;  ///< name it was registered with; empty: none

  // As of the last sample, see `is_sampled`.
  std::int64_t iteration = 0;               ///< number of synchronised forwards so far
  std::int64_t unused_parameter_bytes = 0;  ///< of this rank, in that iteration alone (Q3)
  bool has_rebuilt_buckets = false;
  std::vector<std::int64_t> rebuilt_bucket_bytes;
  std::vector<std::vector<std::int64_t>> rebuilt_buckets;  ///< parameter indices per bucket
  std::vector<std::int64_t> grad_ready_order;              ///< parameter indices (Q4)
  /// The unused parameters have been the same in all iterations so far (I12).
  bool can_set_static_graph = false;

  // Of the last DdpError of this wrapper (K17).
  bool has_error = false;
  std::string error;
  std::int64_t error_iteration = 0;
};

/// Samples are taken of iterations 1 to 10 and then of every `sample_rate`-th, when the next
/// synchronised forward begins; so `DdpLoggingData::iteration` lags (Q1).
bool is_sampled(std::int64_t iteration, std::int64_t sample_rate);

}  // namespace lockstep
