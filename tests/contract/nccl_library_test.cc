// SPDX-License-Identifier: Apache-2.0
// The real NCCL and CUDA runtime, as far as they go without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/nccl_api.h"
#include "tests/contract/nccl_world.h"

namespace lockstep::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

#ifdef LOCKSTEP_WITH_NCCL

TEST(NcclLibraryTest, IsThereAndTellsItsVersionAndItsErrors) {
  int version = 0;
  ASSERT_EQ(nccl_api().version(&version), kGpuSuccess);
  EXPECT_GE(version, nccl_version(2, 14, 0))
      << "the first one with communicators that do not block";
  EXPECT_THAT(nccl_api().nccl_text(4, nullptr), HasSubstr("invalid argument"));
  EXPECT_THAT(nccl_api().cuda_text(35), HasSubstr("driver version is insufficient"));
}

TEST(NcclLibraryTest, WithoutADriverOrDeviceARankIsToldWhyAndWhatToDo) {
  if (why_no_nccl().empty()) {
    GTEST_SKIP() << "there is a GPU";
  }
  const std::string message =
      message_of<UsageError>([] { run_nccl(1, {}, [](NcclCommunicator&) {}); });
  EXPECT_EQ(message, why_no_nccl());
  EXPECT_THAT(message, AnyOf(HasSubstr("needs an NVIDIA driver"), HasSubstr("needs a GPU")));
  EXPECT_THAT(message, HasSubstr("run on a machine with a GPU, or choose another backend"));
}

#else

TEST(NcclLibraryTest, ABuildWithoutItSaysHowToGetIt) {
  const std::string message =
      message_of<UsageError>([] { run_nccl(1, {}, [](NcclCommunicator&) {}); });
  EXPECT_EQ(message, why_no_nccl());
  EXPECT_THAT(message, HasSubstr("built without NCCL"));
  EXPECT_THAT(message, HasSubstr("-DLOCKSTEP_NCCL=ON"));
}

#endif

}  // namespace
}  // namespace lockstep::test
