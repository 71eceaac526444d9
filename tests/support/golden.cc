// SPDX-License-Identifier: Apache-2.0
// Comparison with a file under tests/golden/, byte for byte.
#include "tests/support/golden.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

namespace lockstep::test {

void expect_golden(const std::string& name, const std::string& actual) {
  const std::string path = fmt::format("{}/{}", LOCKSTEP_GOLDEN_DIR, name);
  const char* update = std::getenv("LOCKSTEP_UPDATE_GOLDEN");
  if (update != nullptr && std::string_view(update) == "1") {
    std::ofstream(path, std::ios::binary) << actual;
    ADD_FAILURE() << path << " was written; run again without LOCKSTEP_UPDATE_GOLDEN";
    return;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << path << " is missing; LOCKSTEP_UPDATE_GOLDEN=1 writes it";
  std::ostringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(expected.str(), actual) << "LOCKSTEP_UPDATE_GOLDEN=1 rewrites " << path;
}

}  // namespace lockstep::test
