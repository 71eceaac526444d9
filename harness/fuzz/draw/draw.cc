// SPDX-License-Identifier: Apache-2.0
// Puts the topics of a script together.
#include "harness/fuzz/draw/draw.h"

#include <optional>
#include <utility>

#include "core/check.h"
#include "harness/case_facts.h"
#include "harness/fuzz/break/break.h"
#include "harness/fuzz/draw/draw_topics.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/valid/valid.h"

namespace lockstep::harness::fuzz {
namespace {

constexpr std::uint64_t kTriesMax = 100;
// Parts of the generator's key: what is drawn by one does not depend on the others.
constexpr std::uint64_t kScripts = 0, kRedraws = 1;

using DrawTopic = void (*)(Case&, const Space&, Dice&);
constexpr DrawTopic kTopics[] = {draw_world,  draw_model,    draw_training, draw_ddp,
                                 draw_events, draw_schedule, draw_launch};

std::optional<Case> try_script(const Space& space, Dice& dice) {
  Case value;
  value.title = "Found by fuzzing";
  value.seed = static_cast<std::uint64_t>(dice.between(1, 1000));
  for (const DrawTopic draw : kTopics) draw(value, space, dice);
  if (!make_valid(value, space, dice)) return std::nullopt;
  const bool broken = space.mode == Mode::kBroken;
  if (broken && !plant(value, space, dice.another())) return std::nullopt;
  if (!expect_as_predicted(value) || has_mistake(value) != broken) return std::nullopt;
  return runs_on(value, space.backend) ? std::optional(std::move(value)) : std::nullopt;
}

}  // namespace

Case draw_script(const Space& space, const rc::Random& random) {
  Dice dice(random);
  for (std::uint64_t attempt = 0; attempt < kTriesMax; ++attempt) {
    if (std::optional<Case> value = try_script(space, dice)) return *std::move(value);
  }
  throw InvariantError("no script could be drawn");
}

Case draw_script(const Space& space, std::uint64_t seed, std::uint64_t index) {
  return draw_script(space, rc::Random(rc::Random::Key{seed, index, kScripts, 0}));
}

Case redraw(const Case& value, const Space& space, std::uint64_t seed, std::uint64_t index) {
  Dice dice(rc::Random(rc::Random::Key{seed, index, kRedraws, 0}));
  for (std::uint64_t attempt = 0; attempt < kTriesMax; ++attempt) {
    Case changed = value;
    changed.faults.clear();
    const std::int64_t topic = dice.below(static_cast<std::int64_t>(std::size(kTopics)));
    kTopics[topic](changed, space, dice);
    if (make_valid(changed, space, dice) && expect_as_predicted(changed)) return changed;
  }
  throw InvariantError("no topic of a script could be drawn anew");
}

}  // namespace lockstep::harness::fuzz
