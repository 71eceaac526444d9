// SPDX-License-Identifier: Apache-2.0
// Draws scripts that a subject promises to follow, and judges them with it in its place.
#include "harness/fuzz/own_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>

#include "core/check.h"
#include "core/error.h"
#include "harness/fuzz/draw/draw.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/shrink/shrink.h"
#include "harness/judge/judge.h"
#include "harness/model.h"
#include "harness/report/text_case.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr std::int64_t kCases = 100;

// RapidCheck's way of saying it: "seed=7 max_success=1000".
template <typename T>
T from_environment(const std::string& name, T otherwise) {
  const char* const text = std::getenv("RC_PARAMS");
  std::istringstream words(text != nullptr ? text : "");
  std::string word;
  while (words >> word) {
    if (word.rfind(name + "=", 0) == 0) {
      std::istringstream number(word.substr(name.size() + 1));
      T value{};
      LOCKSTEP_USAGE(number >> value && number.eof(),
                     "RC_PARAMS: '{}' is no number; expected \"seed=7 max_success=1000\"", word);
      return value;
    }
  }
  return otherwise;
}

// What a flat average has in common with DDP. A parameter that nobody used gets zeros, which only
// plain SGD makes nothing of.
Case as_flat(Case value) {
  value.ddp = DdpSpec();
  value.ddp.sync = "flat";
  value.ddp.broadcast_buffers = false;
  value.train.steps_of_rank.clear();
  const auto follows = [](const AtSpec& at) {
    return at.site.empty() &&
           (at.is_routing() || at.lr || at.reload || at.sleep_ms > 0 || at.evaluate > 0);
  };
  value.at.erase(std::remove_if(value.at.begin(), value.at.end(), std::not_fn(follows)),
                 value.at.end());
  bool some_unused = use_varies(value);
  for (auto& [name, text] : value.model.blocks) {
    for (const char* word : {" float64", " complex64", " sparse"}) {
      const std::size_t at = text.find(word);
      if (at != std::string::npos) text.erase(at, std::string(word).size());
    }
    some_unused = some_unused || !is_in_a_stage(value.model, name);
  }
  if (some_unused) {
    const double lr = value.train.optimizer.lr;
    value.train.optimizer = OptimizerSpec();
    value.train.optimizer.lr = lr;
  }
  return value;
}

class Checker {
 public:
  explicit Checker(const OwnSubject& subject) : subject_(subject) {
    LOCKSTEP_USAGE(subject.promises == "flat" || subject.promises == "ddp",
                   "promises = \"{}\"; expected \"flat\" or \"ddp\"", subject.promises);
    LOCKSTEP_USAGE(subject.ranks_max >= 1, "ranks_max = {}; expected at least 1",
                   subject.ranks_max);
    SimExecutorOptions options;
    options.subject = subject;
    executor_ = make_sim_executor(options);
    has_plan_ = !subject.make_sync || tells_plan();
  }

  // The script as far as the subject promises to follow it, with what is predicted of that. Nothing
  // if it cannot be told.
  std::optional<Case> promised(const Case& drawn) const {
    Case value = is_flat() ? as_flat(drawn) : drawn;
    return expect_as_predicted(value) ? std::optional<Case>(value) : std::nullopt;
  }

  // A scenario that is given.
  Case given(Case value) const {
    if (is_flat()) value.ddp.sync = "flat";
    return value;
  }

  CaseResult judge(const Case& value, const std::string& name) const {
    JudgeOptions options;
    options.executor = executor_.get();
    options.try_cures = false;
    return judge_case({name, "", held(value)}, options);
  }

  // The smallest script that shows the same. What is smaller is promised anew, for it may have left
  // the part of the space that the subject knows.
  Shrunk smallest(const Case& value, const CaseResult& result) const {
    const JudgeMany judge_many = [this](const std::vector<Case>& cases,
                                        const std::function<bool(const CaseResult&)>& stop) {
      std::vector<CaseResult> results;
      for (const Case& each : cases) {
        const std::optional<Case> kept = promised(each);
        results.push_back(kept ? judge(*kept, "smaller") : CaseResult());
        results.back().as_expected = results.back().as_expected || !kept;
        if (stop(results.back())) break;
      }
      return results;
    };
    ShrinkLimits limits;
    limits.seconds_max = std::numeric_limits<double>::infinity();  // the same on every machine
    Shrunk shrunk = shrink(value, result, judge_many, limits);
    if (const std::optional<Case> kept = promised(shrunk.value)) shrunk.value = *kept;
    return shrunk;
  }

  // What went wrong, the file, and how to have it again.
  OwnVerdict refuted(const Case& value, const CaseResult& result, const std::string& again) const {
    OwnVerdict verdict;
    verdict.holds = false;
    verdict.scenario = print_case(held(value));
    CaseTextOptions text;
    text.command = false;
    verdict.text = fmt::format("{}\nas a scenario file:\n\n{}\nagain: {}\n",
                               describe_case(result, text), verdict.scenario, again);
    return verdict;
  }

 private:
  bool is_flat() const { return subject_.make_sync && subject_.promises == "flat"; }

  bool tells_plan() const {
    Case value;
    if (is_flat()) value = as_flat(std::move(value));
    const Run run = executor_->execute(compile_subject(value));
    for (const StepRecord& step : run.ranks.front().steps) {
      for (const auto& plan : step.plans) {
        if (plan != nullptr) return true;
      }
    }
    return false;
  }

  // Without the oracles that ask for more than the subject tells.
  Case held(Case value) const {
    const bool replay = has_plan_ && (subject_.adds_as_gloo || value.world.ranks <= 2);
    for (ExpectSpec* expect : {&value.expect, value.expect_sim ? &*value.expect_sim : nullptr}) {
      if (replay || expect == nullptr) continue;
      std::vector<std::string>& oracles = expect->oracles;
      oracles.erase(std::remove(oracles.begin(), oracles.end(), "replay"), oracles.end());
    }
    return value;
  }

  const OwnSubject subject_;
  std::unique_ptr<Executor> executor_;
  bool has_plan_ = true;
};

}  // namespace

OwnVerdict check_lockstep(const OwnSubject& subject) {
  const Checker checker(subject);
  const std::uint64_t seed = subject.seed.value_or(from_environment("seed", kSeed));
  const std::int64_t cases = subject.cases.value_or(from_environment("max_success", kCases));
  Space space;
  space.ranks_max = subject.ranks_max;
  OwnVerdict verdict;
  for (std::int64_t index = 0; index < cases; ++index) {
    const auto value =
        checker.promised(draw_script(space, seed, static_cast<std::uint64_t>(index)));
    if (!value) continue;
    const std::string name = fmt::format("script {} of seed {}", index, seed);
    const CaseResult result = checker.judge(*value, name);
    ++verdict.num_cases;
    if (result.as_expected) continue;
    Shrunk shrunk = checker.smallest(*value, result);
    shrunk.result.file = fmt::format("{}, made smaller in {} steps", name, shrunk.num_steps);
    OwnVerdict found =
        checker.refuted(shrunk.value, shrunk.result,
                        fmt::format("RC_PARAMS=\"seed={} max_success={}\", or the file alone with "
                                    "keeps_lockstep(subject, \"FILE\")",
                                    seed, index + 1));
    found.num_cases = verdict.num_cases;
    return found;
  }
  return verdict;
}

OwnVerdict check_lockstep(const OwnSubject& subject, const std::string& scenario) {
  const Checker checker(subject);
  const bool is_text = scenario.find('\n') != std::string::npos;
  const std::vector<NamedCase> cases =
      is_text ? parse_scenario_text(scenario, "scenario") : load_scenarios({scenario}).cases;
  OwnVerdict verdict;
  for (const NamedCase& each : cases) {
    const Case value = checker.given(each.value);
    const CaseResult result = checker.judge(value, case_label(each.file, each.name));
    ++verdict.num_cases;
    if (!result.as_expected) {
      OwnVerdict found = checker.refuted(value, result, "the same test");
      found.num_cases = verdict.num_cases;
      return found;
    }
  }
  return verdict;
}

}  // namespace lockstep::harness::fuzz
