// SPDX-License-Identifier: Apache-2.0
// main() of every test binary: one LibTorch thread, so that runs can be repeated bit for bit.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
