// SPDX-License-Identifier: Apache-2.0
// How long an all_reduce of core's Gloo transport takes, message by message.
#pragma once

#include <cstdint>

namespace lockstep::sim::timing {

// Note [What Gloo's ring waits for]
// Gloo sends nothing that its receiver has not asked for: a receive that is posted tells the sender
// so, in a message of its own, and only then the data goes. So a segment takes two latencies, not
// one, unless the sender was told in advance.
//
// An all_reduce of n bytes over W ranks:
//   entry           every rank tells every other what it is about to do (core/gloo_group.cc); small
//                   messages, hence two latencies
//   reduce-scatter  the data is cut into W chunks of S >= 2 segments, segments being at most 1 MiB
//                   long. (W-1) S segments go to one neighbour and as many come from the other.
//                   Segment i is posted, for sending and for receiving, once segment i-2 was
//                   received and added: two are in flight
//   all-gather      the same without sums, begun when all of the reduce-scatter is done
//
// The request for segment i and the data of segment i-1 leave a rank at the same time. With two
// ranks they share a connection, so the request waits until that data has left. With more they
// are on two connections of one link, and the request waits for what is queued in the link ahead of
// it, `backlog_bytes` at most.
//
// A link with a token bucket, such as a shaped one, lets up to `burst_bytes` pass at once after a
// pause that was long enough; at the beginning the collective before is taken to have just ended.
//
// All ranks begin at the same time and do the same, so that one of them stands for all. Payload is
// counted, headers are not: subtract them from the bandwidth. Chunks are taken to be equally long;
// what is so small that segments are empty takes less.

/// What one rank sends over.
struct RingLink {
  double latency_ps = 0.0;  ///< from a program to another one, what they take to react included
  double bytes_per_ps = 1.0;
  double burst_bytes = 0.0;
  double backlog_bytes = 0.0;
  double reduce_bytes_per_ps = 0.0;  ///< of adding what has arrived; 0: costs nothing
};

/// One after the other.
struct GlooRingTimes {
  double entry_ps = 0.0;
  double reduce_scatter_ps = 0.0;
  double all_gather_ps = 0.0;
};

/// `ranks` >= 2, `bytes` > 0. Time: (W-1) S.
GlooRingTimes gloo_ring_times(std::int64_t ranks, double bytes, const RingLink& link);

}  // namespace lockstep::sim::timing
