// SPDX-License-Identifier: Apache-2.0
// A worker whose ranks can be told to misbehave, and a parent to be killed together with it.
//
//   planted_worker worker --socket FD --directory DIR    see serve_as_worker
//   planted_worker drive TITLE RANKS                     runs one case titled TITLE
//
// What a rank does is in the title of its case: "plant PLACE DEED RANK", or anything else for the
// real thing. All ranks first do one collective; then rank RANK (-1: every one) does its deed and
// the others wait for it in a second one.
#include <signal.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "core/error.h"
#include "harness/execute/process_executor.h"
#include "harness/execute/worker.h"

namespace lockstep::harness {
namespace {

struct Plant {
  std::string place;  ///< "run" | "connect"
  std::string deed;   ///< "hold", "stop", "abort", "exit", "defect", "fail"
  std::int64_t rank = 0;
};

std::optional<Plant> plant_of(const Case& value) {
  std::istringstream words(value.title);
  std::string first;
  Plant plant;
  if (words >> first >> plant.place >> plant.deed >> plant.rank && first == "plant") {
    return plant;
  }
  return std::nullopt;
}

/// Tells whoever reads the other end of the descriptor in LOCKSTEP_TEST_PIPE that this process got
/// here. All processes keep it open, so that its end of file is the end of all of them.
void tell_pid() {
  if (const char* fd = std::getenv("LOCKSTEP_TEST_PIPE")) {
    const pid_t pid = ::getpid();
    if (::write(std::atoi(fd), &pid, sizeof(pid)) != sizeof(pid)) {
      std::abort();
    }
  }
}

[[noreturn]] void hold() {
  for (;;) {
    ::pause();
  }
}

void commit(const std::string& deed) {
  if (deed == "hold") {
    hold();
  } else if (deed == "stop") {
    ::raise(SIGSTOP);
  } else if (deed == "abort") {
    ::signal(SIGABRT, SIG_DFL);
    std::abort();
  } else if (deed == "exit") {
    ::_exit(7);
  } else if (deed == "defect") {
    throw InvariantError("a defect was planted");
  } else if (deed == "fail") {
    throw Error("a failure was planted");
  }
}

class PlantedBody final : public WorkerBody {
 public:
  PlantedBody(Plant plant, std::int64_t rank, RankServices services)
      : plant_(std::move(plant)), services_(std::move(services)) {
    record_.rank = rank;
  }

  void run() override {
    constexpr std::int64_t kStep = 4;
    const CollectiveTag tag{CallSite::kScript, kStep, -1};
    services_.communicator->all_reduce(at::ones({1}), ReduceOp::kSum, tag)->wait();
    services_.observer->on_event({EventKind::kStepBegin, kStep});
    try {
      tell_pid();
      if (plant_.rank == record_.rank || plant_.rank < 0) {
        commit(plant_.deed);
      }
      services_.communicator->all_reduce(at::ones({3}), ReduceOp::kSum, tag)->wait();
    } catch (const InvariantError&) {
      throw;
    } catch (const PeerLost& error) {
      fail("peer_lost", error);
    } catch (const Error& error) {
      fail("planted", error);
    }
  }
  RankRun position() const override {
    RankRun position;
    position.at_step = 4;
    position.at_phase = "planted";
    return position;
  }
  RankRun take_record() override { return record_; }
  std::int64_t progress() const override { return 0; }

 private:
  void fail(const char* kind, const std::exception& error) {
    record_.ending = Ending::kFailed;
    record_.error_kind = kind;
    record_.error_message = error.what();
  }

  Plant plant_;
  RankServices services_;
  RankRun record_;
};

int be_worker(int socket_fd, const std::string& directory) {
  WorkerOptions options;
  options.socket_fd = socket_fd;
  options.directory = directory;
  options.make_body = [](const Program& program, std::int64_t rank,
                         RankServices services) -> std::unique_ptr<WorkerBody> {
    if (const auto plant = plant_of(program.value)) {
      return std::make_unique<PlantedBody>(*plant, rank, std::move(services));
    }
    return make_rank_body(program, rank, std::move(services));
  };
  options.before_connect = [](const Case& value, std::int64_t rank) {
    const auto plant = plant_of(value);
    if (plant && plant->place == "connect") {
      tell_pid();
      if (plant->rank == rank || plant->rank < 0) {
        commit(plant->deed);
      }
    }
  };
  serve_as_worker(std::move(options));
}

int drive(const std::string& title, std::int64_t ranks) {
  Case value;
  value.title = title;
  value.world.ranks = ranks;
  ProcessExecutor executor;
  executor.execute(compile_subject(value));
  return 0;
}

}  // namespace
}  // namespace lockstep::harness

int main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], "worker") == 0) {
    return lockstep::harness::be_worker(std::atoi(argv[3]), argv[5]);
  }
  if (argc == 4 && std::strcmp(argv[1], "drive") == 0) {
    return lockstep::harness::drive(argv[2], std::atoll(argv[3]));
  }
  std::fputs("usage: planted_worker worker ... | planted_worker drive TITLE RANKS\n", stderr);
  return 2;
}
