// SPDX-License-Identifier: Apache-2.0
// Options of a case that are no single key: what its model, its script and its mistakes hold.
#pragma once

#include "harness/fuzz/pairs/options.h"

namespace lockstep::harness::fuzz {

Option block_options();  ///< kinds of blocks and what is said behind their sizes
Option tie_options();    ///< parameters that are frozen or tied, several heads
Option join_options();   ///< even inputs, uneven ones without and with join
Option event_options();  ///< actions of [[at]]
Option fault_options();  ///< kinds of [[fault]]

}  // namespace lockstep::harness::fuzz
