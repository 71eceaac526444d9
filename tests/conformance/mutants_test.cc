// SPDX-License-Identifier: Apache-2.0
// The seeded bugs say what they are, and every fault seen in the field is planted by something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <toml++/toml.h>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::test {
namespace {

using ::testing::IsEmpty;

const std::filesystem::path kRoot = LOCKSTEP_SOURCE_DIR;
const std::filesystem::path kMutants = kRoot / "tests/mutants";

constexpr std::size_t kMutantsMin = 80;

const std::set<std::string> kAreas = {"division",
                                      "bucket order and slots",
                                      "launch order",
                                      "unused handling",
                                      "no_sync windows",
                                      "rebuild",
                                      "view aliasing",
                                      "static graph",
                                      "hooks",
                                      "join",
                                      "buffers",
                                      "broadcast",
                                      "checks",
                                      "sync_batch_norm",
                                      "checkpoint",
                                      "sampler",
                                      "transport",
                                      "transport gloo",
                                      "optimizer interplay"};

/// A mutant's header: "Breaks", "Seen", "Area", as far as they are there.
std::map<std::string, std::string> header_of(std::istream& patch) {
  std::map<std::string, std::string> header;
  for (std::string line; std::getline(patch, line) && line.rfind("--- ", 0) != 0;) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) {
      header[line.substr(0, colon)] = line.substr(colon + 2);
    }
  }
  return header;
}

/// What is missing in a header.
std::vector<std::string> faults_of(const std::string& name,
                                   const std::map<std::string, std::string>& header) {
  std::vector<std::string> faults;
  for (const char* const key : {"Breaks", "Seen", "Area"}) {
    const auto found = header.find(key);
    if (found == header.end() || found->second.empty()) {
      faults.push_back(name + ": no line '" + key + ": ...'");
    } else if (found->first == "Area" && kAreas.count(found->second) == 0) {
      faults.push_back(name + ": unknown area '" + found->second + "'");
    }
  }
  return faults;
}

/// Names of the mutants without their numbers; the canary is none.
std::set<std::string> mutant_names(std::vector<std::string>& faults) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kMutants)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".patch" || stem == "canary") {
      continue;
    }
    std::ifstream patch(entry.path());
    const auto of_header = faults_of(stem, header_of(patch));
    faults.insert(faults.end(), of_header.begin(), of_header.end());
    const std::size_t bar = stem.find('_');
    if (bar == std::string::npos || stem.find_first_not_of("0123456789") != bar ||
        !names.insert(stem.substr(bar + 1)).second) {
      faults.push_back(stem + ": expected a number and a name that no other has");
    }
  }
  return names;
}

TEST(MutantsTest, EverySeededBugSaysWhatItBreaksAndWhereItWasSeen) {
  std::vector<std::string> faults;
  const std::set<std::string> names = mutant_names(faults);
  EXPECT_THAT(faults, IsEmpty());
  EXPECT_GE(names.size(), kMutantsMin);
  std::printf("seeded bugs: %zu\n", names.size());
}

/// Whether a scenario expects that something goes wrong.
bool expects_a_finding(const toml::table& scenario) {
  const std::string outcome = scenario["expect"]["outcome"].value_or<std::string>("");
  return outcome == "diverged" || outcome == "deadlock" || outcome == "error" || outcome == "crash";
}

/// What is wrong with an entry: nothing plants it, or what is named does not.
std::vector<std::string> faults_of_entry(const std::string& id, const toml::table* entry,
                                         const std::set<std::string>& mutants) {
  if (entry == nullptr) {
    return {id + ": no row"};
  }
  std::vector<std::string> faults;
  std::size_t num_planted = 0;
  for (const auto& [key, value] : *entry) {
    const toml::array* names = value.as_array();
    const bool is_scenarios = key == "scenarios";
    if (names == nullptr || (!is_scenarios && key != "mutants")) {
      faults.push_back(id + ": expected lists 'scenarios' and 'mutants'");
      continue;
    }
    for (const toml::node& node : *names) {
      const std::string name = node.value_or<std::string>("");
      ++num_planted;
      const std::filesystem::path file = kRoot / "scenarios" / name;
      if (!is_scenarios) {
        if (mutants.count(name) == 0) {
          faults.push_back(id + ": there is no mutant " + name);
        }
      } else if (!std::filesystem::is_regular_file(file)) {
        faults.push_back(id + ": there is no scenario " + name);
      } else if (!expects_a_finding(toml::parse_file(file.string()))) {
        faults.push_back(id + ": scenario " + name + " expects that nothing is found");
      }
    }
  }
  if (num_planted == 0) {
    faults.push_back(id + ": nothing plants it");
  }
  return faults;
}

TEST(MutantsTest, EveryFaultSeenInTheFieldIsPlantedAndExpectedToBeFound) {
  const toml::table field = toml::parse_file((kRoot / "tests/conformance/field.toml").string());
  const toml::table corpus = toml::parse_file((kMutants / "corpus.toml").string());
  std::vector<std::string> faults;
  const std::set<std::string> mutants = mutant_names(faults);
  faults.clear();  // those of headers are the other test's
  for (const auto& [id, entry] : field) {
    const auto of_entry = faults_of_entry(std::string(id.str()), corpus[id].as_table(), mutants);
    faults.insert(faults.end(), of_entry.begin(), of_entry.end());
  }
  EXPECT_THAT(faults, IsEmpty());
  EXPECT_EQ(corpus.size(), field.size()) << "an entry that the corpus does not have";
}

TEST(MutantsTest, AnEntryThatNothingPlantsOrThatNamesWhatDoesNotExistIsSeen) {
  const std::set<std::string> mutants = {"a"};
  const auto count = [&](const char* text) {
    const toml::table entry = toml::parse(text);
    return faults_of_entry("X", &entry, mutants).size();
  };
  EXPECT_EQ(faults_of_entry("X", nullptr, mutants).size(), 1U);
  EXPECT_EQ(count(""), 1U);
  EXPECT_EQ(count("mutants = [\"a\"]"), 0U);
  EXPECT_EQ(count("mutants = [\"a\", \"b\"]"), 1U);
  EXPECT_EQ(count("scenarios = [\"none.toml\"]"), 1U);
  EXPECT_EQ(count("scenarios = [\"quickstart/ddp_equals_one_process.toml\"]"), 1U);
  EXPECT_EQ(count("mutants = [\"a\"]\nmutant = \"a\""), 1U);
}

TEST(MutantsTest, AHeaderWithoutAnAreaOrWithAnUnknownOneIsSeen) {
  const auto count = [](const char* text) {
    std::istringstream patch(text);
    return faults_of("X", header_of(patch)).size();
  };
  EXPECT_EQ(count("Breaks: x\nSeen: y\nArea: division\n\n--- a/f\n"), 0U);
  EXPECT_EQ(count("Breaks: x\nSeen: y\n\n--- a/f\n+Area: division\n"), 1U);
  EXPECT_EQ(count("Breaks: x\nSeen: y\nArea: elsewhere\n"), 1U);
  EXPECT_EQ(count("--- a/f\n"), 3U);
}

}  // namespace
}  // namespace lockstep::test
