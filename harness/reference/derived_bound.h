// SPDX-License-Identifier: Apache-2.0
// How far a correct float32 run may be from the serial reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/outcome.h"
#include "harness/program.h"
#include "harness/run.h"

namespace lockstep::harness {

/// Bounds per step and tensor, derived from the case itself.
///
/// The same training is run serially in float64 (x64) and kVariants times in the model's dtype:
/// with the global batch in other orders, once accumulated over splits, with every parameter moved
/// up or down by an epsilon of itself before each step and every block's input likewise, and with
/// every gradient element that is not 0 moved by u max|gradient|, u being half an epsilon. What
/// these runs differ from x64 by is rounding and what the optimizer makes of it, and so is what a
/// correct DDP run differs by. The random moves (Monte Carlo arithmetic) keep a handful of variants
/// from agreeing by chance where large terms cancel. With
///   sigma = max over elements of sqrt(mean over variants of (x_variant - x64)^2)
/// and rounding errors taken as independent of mean zero (the probabilistic model of Higham and
/// Mary), the largest of n errors exceeds
///   bound = sigma sqrt(2 ln(2 n / p)) + 4 ulp(max |x64| + max |x64 one step earlier|)
/// with probability below p = kFalseAlarm. Where the first term is not below max |x64|, no digit of
/// the tensor is certain: it is rounding alone, products of roundings among it, or chaos, such as
/// behind a normalisation over one or two numbers. Nothing is known of how such errors are
/// distributed, and the first term is sigma sqrt(n / p) (Chebyshev's inequality).
///
/// A parameter's sigma is the largest so far: what one run has strayed by it may be off by for
/// good, though the others come back together, as where Adam with decay makes steps of one size of
/// gradients that are rounding alone. The last term is the step's own arithmetic, which all
/// variants may share: an optimizer rounds up to four times, by half an ulp of numbers as large as
/// the parameter before and the update, in either of the two runs that are compared.
///
/// A handful of variants may underestimate sigma by chance, more so where an optimizer divides by
/// the root of a gradient that is almost rounding alone. So nobody is accused on their word: what
/// is beyond the bound is held against kVariantsMax of them, unless digits are certain and it is
/// kGross times as far. And numbers that nothing has moved, such as a weight of exactly 1, may
/// round behind a normalisation over two as no moved ones do. So a tensor that is beyond the bound
/// from x64 may be within it from the plain run: the model's dtype, nothing reordered or moved,
/// accumulated over the pieces that the ranks have.
///
/// Threads: one at a time.
class DerivedBound {
 public:
  static constexpr int kVariants = 4, kVariantsMax = 64;
  static constexpr double kFalseAlarm = 1e-9;
  static constexpr double kGross = 100.0;

  /// `serial`: compile_serial of the case.
  explicit DerivedBound(Program serial);

  /// Worst distance of `actual` from x64 in units of its bound, over the tensors of one step.
  /// `phase`: "gradient" | "parameter". Returns nothing for a step that is not there.
  /// `undefined_is_zero`: the subject has no notion of unused parameters and gives them zeros.
  struct Worst {
    Distance distance;
    std::string tensor;
    std::int64_t element = -1;
    double expected = 0.0, actual = 0.0;
    bool exceeded = false;
    bool is_certain = false;  ///< the bound's first term is below the largest element
  };
  std::optional<Worst> hold_against(const Snapshot& actual, std::int64_t step,
                                    const std::string& phase, bool undefined_is_zero) const;

  /// x64, for losses.
  const Run& exact() const { return exact_; }

 private:
  Worst worst_of(const Snapshot& actual, std::int64_t step, const std::string& phase,
                 bool undefined_is_zero) const;
  /// Pieces of the global batch that the ranks accumulate over.
  std::int64_t num_pieces() const;
  void draw_variants(int count) const;
  /// Of one step, and of the bound in it. Precondition: the step is there.
  double sigma_in(std::int64_t step, const std::string& phase, std::size_t slot) const;
  double sigma(std::int64_t step, const std::string& phase, std::size_t slot) const;

  Program serial_;
  Run exact_;                          // float64
  mutable std::vector<Run> variants_;  // kVariants or, when they were needed, kVariantsMax
  mutable std::optional<Run> plain_;   // when it was needed
  mutable std::vector<std::vector<double>> strayed_;  // per step and parameter: sigma so far
};

}  // namespace lockstep::harness
