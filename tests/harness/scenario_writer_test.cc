// SPDX-License-Identifier: Apache-2.0
// Printing a case and reading it back.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "harness/scenario/reader.h"
#include "tests/harness/scenario_case_fields.h"
#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using namespace harness;  // NOLINT: every spec of case.h is named below
using ::testing::HasSubstr;
using ::testing::Not;

// Random values, each in the range that a file allows; whether they fit together does not matter
// to reader and writer.
template <class T>
T one_of(std::vector<T> values) {
  return *rc::gen::elementOf(std::move(values));
}

std::int64_t integer(std::int64_t min, std::int64_t max) {
  return *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(min, max + 1));
}

bool coin() { return *rc::gen::arbitrary<bool>(); }

std::string text() {
  return one_of<std::string>({"a", "layer0.weight", "two words", "quote \" and \\", "line\nbreak",
                              "tab\tbell\a", "\xC3\xA9t\xC3\xA9 # not a comment", "[x] = {y}",
                              std::string(120, 'z')});
}

double real() {
  // Numbers with short and with long decimal forms.
  return one_of<double>({0.0, 1.0, 0.1, 1e-8, 1.0 / 3.0, 123456.789, 1e25, 5e-324}) *
         static_cast<double>(integer(0, 3));
}

template <class F>
auto list(std::int64_t max_items, F make) {
  std::vector<decltype(make())> values;
  const std::int64_t num_items = integer(0, max_items);
  for (std::int64_t i = 0; i < num_items; ++i) {
    auto value = make();
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

template <class F>
auto maybe(F make) {
  std::optional<decltype(make())> value;
  if (coin()) value = make();
  return value;
}

std::vector<std::string> texts() { return list(12, text); }
std::string maybe_text() { return coin() ? text() : std::string(); }

std::vector<std::string> stage() {
  std::vector<std::string> blocks = texts();
  if (blocks.empty()) blocks = {"x"};
  return blocks;
}

ModelSpec random_model() {
  ModelSpec model;
  model.kind = one_of<std::string>({"mlp", "graph"});
  model.widths = {integer(1, 9), integer(1, 9), integer(1, 9)};
  model.activation = one_of<std::string>({"relu", "tanh", "identity"});
  model.bias = coin();
  for (const std::string& name : texts()) model.blocks.emplace_back(name, text());
  model.forward = list(4, stage);
  model.frozen = texts();
  model.tied = list(2, [] { return std::vector<std::string>{text(), text()}; });
  model.dtype = one_of<std::string>({"float32", "float64"});
  return model;
}

std::vector<std::int64_t> some_ranks() {
  return list(3, [] { return integer(0, 63); });
}

TrainSpec random_train() {
  TrainSpec train;
  train.steps = integer(1, 9);
  train.steps_of_rank = some_ranks();
  train.batch_per_rank = integer(1, 9);
  train.micro_batches = integer(1, 9);
  train.forwards_per_backward = integer(1, 9);
  train.backward_from = one_of<std::string>({"sum", "each"});
  train.sync_on = one_of<std::string>({"every", "last", "never"});
  train.no_sync_covers = one_of<std::string>({"both", "forward", "backward"});
  train.loss = one_of<std::string>({"mse", "cross_entropy", "dot"});
  train.reduction = one_of<std::string>({"mean", "sum"});
  train.scale_loss_by_world_size = coin();
  train.zero_grad = one_of<std::string>({"none", "zero", "optimizer", "never"});
  train.clip_norm = real();
  train.optimizer_before_wrapping = coin();
  train.backwards_per_forward = integer(1, 9);
  train.agree = one_of<std::string>({"never", "before_forward", "after_backward"});
  train.optimizer = {one_of<std::string>({"sgd", "adam", "adamw", "adagrad", "rmsprop"}),
                     real(),
                     real(),
                     -real(),
                     coin(),
                     real(),
                     {one_of<double>({0.5, 0.9}), 0.25},
                     real(),
                     real(),
                     real(),
                     coin()};
  return train;
}

std::string collective() {
  return one_of<std::string>({"", "all_reduce", "broadcast", "all_gather", "barrier"});
}

AtSpec random_at() {
  AtSpec at;
  at.ranks = some_ranks();
  at.steps = some_ranks();
  at.micro_batch = maybe([] { return integer(0, 5); });
  at.forward = maybe([] { return integer(0, 5); });
  at.when = one_of<std::string>({"before_forward", "after_forward", "after_backward"});
  at.skip = texts();
  at.exit_after = maybe_text();
  at.freeze = texts();
  at.unfreeze = texts();
  at.lr = maybe(real);
  at.raise = maybe_text();
  at.leave = coin();
  at.skip_step = coin();
  at.detach = coin();
  at.sleep_ms = integer(0, 9);
  at.collective = collective();
  at.collective_numel = integer(1, 9);
  at.evaluate = integer(0, 3);
  at.evaluate_through = one_of<std::string>({"wrapper", "module"});
  at.evaluate_with_gradients = coin();
  at.reload = coin();
  at.site = one_of<std::string>({"", "bucket", "script"});
  at.bucket = maybe([] { return integer(0, 5); });
  at.from_ms = integer(0, 9);
  at.mute = texts();
  at.retry = coin();
  at.stall = coin();
  at.add_buffer = integer(0, 9);
  at.without_loss = texts();
  at.samples = maybe([] { return integer(0, 9); });
  at.micro_batches = maybe([] { return integer(1, 9); });
  at.bypass = coin();
  at.copy_gradients = coin();
  at.sync_buffers = one_of<std::string>({"", "broadcast", "mean"});
  at.scale_buffers = real();
  at.keep_gradients = coin();
  at.ascend = real();
  return at;
}

ExpectEnd random_end() {
  return {some_ranks(),
          one_of<std::string>({"", "finished", "crashed"}),
          maybe_text(),
          maybe_text(),
          maybe([] { return integer(-1, 9); }),
          maybe([] { return integer(-1, 9); }),
          maybe([] { return integer(0, 99); })};
}

ExpectSpec random_expect() {
  ExpectSpec expect;
  expect.outcome = one_of<std::string>({"equal", "within_bound", "diverged", "deadlock", "error"});
  expect.oracles = one_of<std::vector<std::string>>({{"ranks", "replay", "serial"}, {"replay"}});
  expect.step = maybe([] { return integer(-1, 9); });
  expect.phase = one_of<std::string>({"", "init", "gradient"});
  expect.rank = maybe([] { return integer(0, 63); });
  expect.tensor = maybe_text();
  expect.cause = one_of<std::string>({"", "local_only", "own_initialisation"});
  expect.oracle = one_of<std::string>({"", "ranks", "serial"});
  expect.waiting = list(3, [] {
    return ExpectWaiting{integer(0, 63), collective(), one_of<std::string>({"", "bucket"}),
                         maybe([] { return integer(-1, 9); }), maybe([] { return integer(0, 9); })};
  });
  expect.never_ready = list(2, [] { return ExpectNeverReady{integer(0, 63), stage()}; });
  expect.cure = one_of<std::string>({"", "all_ranks"});
  expect.error = maybe_text();
  expect.message = maybe_text();
  expect.reason = maybe_text();
  expect.since = one_of<std::string>({"", "1.13"});
  expect.before = one_of<std::string>({"", "2.4"});
  expect.bucket_all_reduces = maybe([] { return integer(0, 99); });
  expect.rebuilds = maybe([] { return integer(0, 99); });
  expect.schedules = one_of<std::string>({"all", "some"});
  expect.issued = list(2, [] { return ExpectIssued{integer(0, 63), integer(-1, 9), texts()}; });
  expect.values = list(2, [] {
    return ExpectValues{integer(0, 63), integer(0, 9), one_of<std::string>({"gradient", "buffer"}),
                        text(), list(3, real)};
  });
  expect.ends = list(2, random_end);
  return expect;
}

LaunchSpec random_launch() {
  const auto addresses = [] {
    return one_of<std::vector<std::pair<std::string, std::string>>>(
        {{}, {{"eth0", "10.0.0.1"}}, {{"lo", "127.0.0.1"}, {"a b", "10.0.0.2"}}});
  };
  return {maybe_text(),
          integer(0, 99),
          integer(1, 99),
          maybe_text(),
          coin(),
          list(2,
               [&] {
                 return HostSpec{text(), addresses(), addresses(), some_ranks()};
               }),
          list(2, [] {
            return ProcessSpec{integer(0, 63), integer(0, 64), text(),
                               text(),         maybe_text(),   maybe_text()};
          })};
}

Case random_case() {
  Case value;
  value.title = maybe_text();
  value.seed = one_of<std::uint64_t>({0, 1, 42, 0x7fffffffffffffffULL});
  value.world = {integer(1, 64), coin(), coin(), integer(0, 99)};
  value.launch = random_launch();
  value.schedule = {one_of<std::string>({"round_robin", "pct", "exhaustive", "replay"}),
                    integer(-1, 9),
                    integer(1, 99),
                    integer(1, 9),
                    integer(1, 99),
                    maybe_text()};
  value.model = random_model();
  value.data = {one_of<std::string>({"regression", "classification"}),
                integer(1, 99),
                coin(),
                coin(),
                coin(),
                integer(1, 9),
                integer(1, 9),
                list(3, real),
                list(3, real)};
  value.train = random_train();
  value.ddp = {one_of<std::string>({"ddp", "torch", "per_parameter", "flat", "none"}),
               integer(1, 1 << 21),
               integer(1, 1 << 26),
               coin(),
               coin(),
               coin(),
               coin(),
               coin()};
  value.ddp.join = one_of<std::string>({"off", "divide_by_active", "throw"});
  value.at = list(3, random_at);
  value.faults = list(2, [] {
    return FaultSpec{one_of<std::string>({"sum_not_mean", "skip_wait"}),
                     some_ranks(),
                     some_ranks(),
                     maybe_text(),
                     one_of<std::string>({"copy", "more_rows"}),
                     one_of<std::string>({"", "bucket", "buffers"}),
                     maybe([] { return integer(0, 9); }),
                     integer(0, 9),
                     integer(0, 9)};
  });
  value.expect = random_expect();
  value.expect_sim = maybe(random_expect);
  value.expect_gloo = maybe(random_expect);
  value.expect_torch = list(2, random_expect);
  return value;
}

// Round trip at the level of syntax and values.
RC_GTEST_PROP(ScenarioWriterProps, ReadingWhatWasPrintedGivesTheSameCase, ()) {
  const Case value = random_case();
  const std::string printed = print_case(value);
  RC_LOG() << printed;
  Findings findings("printed.toml");
  TreeNode root;
  Case again;
  if (parse_tree(printed, root, findings)) read_case(root, again, findings);
  for (const Finding& finding : findings.take()) RC_FAIL(to_string(finding));
  RC_ASSERT(again == value);
  RC_ASSERT(print_case(again) == printed);
}

// The same for whole files, with their axes and checks.
RC_GTEST_PROP(ScenarioWriterProps, EveryCaseOfAFilePrintsAFileOfThatCase, ()) {
  const std::string text =
      "schema = 1\ntitle = \"round trip\"\nexpect.outcome = \"within_bound\"\n[[at]]\nrank = 0\n"
      "lr = 0.25\n[vary]\nsample = 8\nseed = { first = " +
      std::to_string(integer(1, 1000)) +
      ", count = 3 }\n"
      "world.ranks = [1, 2, 4]\ntrain.optimizer.kind = [\"sgd\", \"adamw\"]\n"
      "train.micro_batches = [1, 2]\nmodel.widths = [[8, 4], [8, 8, 4]]\n";
  for (const NamedCase& named : parse_scenario_text(text, "case.toml")) {
    const std::vector<NamedCase> again = parse_scenario_text(print_case(named.value), "again.toml");
    RC_ASSERT(again.size() == 1U);
    RC_ASSERT(again[0].value == named.value);
  }
}

TEST(ScenarioWriterTest, PrintsOnlyWhatDiffersFromTheDefaults) {
  EXPECT_EQ(print_case(Case()), "schema = 1\n\n[expect]\noutcome = \"equal\"\n");
  Case value;
  value.world.ranks = 4;
  value.train.optimizer.lr = 0.125;
  value.at.emplace_back();
  value.at[0].ranks = {1};
  value.at[0].steps = {0, 2};
  value.at[0].skip = {"a"};
  EXPECT_EQ(print_case(value),
            "schema = 1\n\n[world]\nranks = 4\n\n[train]\noptimizer = { lr = 0.125 }\n\n[[at]]\n"
            "rank = 1\nsteps = [0, 2]\nskip = [\"a\"]\n\n[expect]\noutcome = \"equal\"\n");
}

TEST(ScenarioWriterTest, BreaksLongArraysAndTables) {
  Case value;
  value.model.kind = "graph";
  for (int i = 0; i < 12; ++i) {
    value.model.blocks.emplace_back("block" + std::to_string(i), "linear 4 4");
    value.model.forward.push_back({value.model.blocks.back().first});
  }
  const std::string printed = print_case(value);
  EXPECT_THAT(printed, HasSubstr("\n[model.blocks]\nblock0 = \"linear 4 4\"\nblock1 = "));
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = printed.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    EXPECT_LE(end - begin, 100U) << printed.substr(begin, end - begin);
  }
}

TEST(ScenarioWriterTest, KeepsTheExpectationsOfBackends) {
  Case value;
  value.expect.outcome = "deadlock";
  value.expect_gloo.emplace();
  const std::string printed = print_case(value);
  EXPECT_THAT(printed, HasSubstr("\n[expect.gloo]\noutcome = \"equal\"\n"));
  EXPECT_THAT(printed, Not(HasSubstr("[expect.sim]")));
}

TEST(ScenarioWriterTest, RefusesASeedThatNoFileCanHold) {
  Case value;
  value.seed = std::uint64_t{1} << 63;
  EXPECT_THROW(print_case(value), InvariantError);
}

}  // namespace
}  // namespace lockstep::test
