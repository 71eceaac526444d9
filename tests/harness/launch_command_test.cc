// SPDX-License-Identifier: Apache-2.0
// `lockstep launch`: what its processes are told, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ProgramResult launch(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {LOCKSTEP_BINARY, "launch"});
  return run_program(arguments);
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(LaunchCommandTest, EveryProcessIsToldItsRankAndTheWorld) {
  const ProgramResult result = launch(
      {"-n", "3", "sh", "-c",
       "echo $RANK $LOCAL_RANK of $WORLD_SIZE $LOCAL_WORLD_SIZE at $MASTER_ADDR; "
       "test $MASTER_PORT -gt 0 && test -d $LOCKSTEP_DIRECTORY && test -n \"$LOCKSTEP_TOKEN\""});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_THAT(
      sorted_lines(result.out),
      ElementsAre("0 0 of 3 3 at 127.0.0.1", "1 1 of 3 3 at 127.0.0.1", "2 2 of 3 3 at 127.0.0.1"));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST(LaunchCommandTest, ArgumentsOfTheProgramAreItsOwn) {
  const ProgramResult result = launch({"-n", "1", "echo", "-n", "--master-port", "x"});
  EXPECT_EQ(result.out, "--master-port x");
  EXPECT_EQ(launch({"-n", "1", "--", "echo", "-n", "a", "--", "b"}).out, "a -- b");
  EXPECT_EQ(launch({"-n", "1", "echo", "-n", "a", "--", "b"}).out, "a -- b");
}

// The others would go on for ever.
TEST(LaunchCommandTest, TheFirstFailureEndsTheOthersAndIsTheStatus) {
  ProgramResult result =
      launch({"-n", "3", "sh", "-c", "test $RANK = 1 && exit 7; exec sleep 100000"});
  EXPECT_EQ(result.exit_status, 7);
  EXPECT_THAT(result.err, HasSubstr("rank 1 (process "));
  EXPECT_THAT(result.err, HasSubstr("exited with status 7"));
  result = launch({"-n", "2", "sh", "-c", "test $RANK = 0 && kill -KILL $$; exec sleep 100000"});
  EXPECT_EQ(result.exit_status, 128 + 9);
  EXPECT_THAT(result.err, HasSubstr("was ended by signal 9"));
}

TEST(LaunchCommandTest, WhatCannotBeIsRefusedBeforeAnythingStarts) {
  EXPECT_EQ(launch({"sh"}).exit_status, 2);
  ProgramResult result = launch({"-n", "1", "--interface", "nosuchif0", "true"});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.err, HasSubstr("no network interface 'nosuchif0'; there are: lo"));
  result = launch({"-n", "1", "/no/such/program"});
  EXPECT_EQ(result.exit_status, 127);
  EXPECT_THAT(result.err, HasSubstr("cannot execute '/no/such/program'"));
}

}  // namespace
}  // namespace lockstep::test
