// SPDX-License-Identifier: Apache-2.0
// From lines of JSON to what a rank did.
#include "harness/audit/rank_record.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "harness/scenario/nearest_name.h"

namespace lockstep::harness {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The first key says of which kind a line is; which others it may have.
const std::map<std::string, std::vector<std::string>>& kinds() {
  static const std::map<std::string, std::vector<std::string>> kKinds = {
      {"schema", {"rank", "world_size"}},
      {"collective", {"site", "step", "bucket", "numel", "dtype"}},
      {"wait", {}},
      {"waited", {"error"}},
      {"state", {"step", "own", "tensors"}},
      {"end", {"error"}}};
  return kKinds;
}

class RecordReader {
 public:
  explicit RecordReader(std::string file) { record_.file = std::move(file); }

  RankRecord read() {
    std::ifstream in(record_.file);
    require(in.good(), "cannot be read");
    std::string text;
    while (std::getline(in, text)) {
      ++line_;
      record_.is_cut = in.eof() && !json::accept(text);  // its writer was ended in it
      if (!record_.is_cut) take(text);
    }
    require(!in.bad(), "cannot be read to its end");
    require(has_header_, "no line with schema, rank and world_size");
    stand();
    return std::move(record_);
  }

 private:
  template <typename... Args>
  void require(bool condition, const char* text, const Args&... args) const {
    LOCKSTEP_USAGE(condition, "{}:{}: {}", record_.file, line_,
                   fmt::format(fmt::runtime(text), args...));
  }

  template <typename T>
  T get(const json& object, const char* key) const {
    require(object.contains(key), "'{}' is missing", key);
    try {
      return object.at(key).get<T>();
    } catch (const json::exception&) {
      require(false, "'{}' is of another type: {}", key, object.at(key).dump());
      throw;
    }
  }
  template <typename T>
  T get_or(const json& object, const char* key, T otherwise) const {
    return object.contains(key) ? get<T>(object, key) : otherwise;
  }

  void check_keys(const json& object, const std::vector<std::string>& known) const {
    for (const auto& [key, value] : object.items()) {
      require(std::find(known.begin(), known.end(), key) != known.end(),
              "unknown key '{}'; expected one of {}{}", key, fmt::join(known, ", "),
              did_you_mean(key, known));
    }
  }

  void take(const std::string& text) {
    const json line = json::parse(text, nullptr, false);
    require(line.is_object(), "not an object of JSON");
    require(!record_.has_end, "a line after the end");
    const auto kind = std::find_if(kinds().begin(), kinds().end(),
                                   [&](const auto& entry) { return line.contains(entry.first); });
    std::vector<std::string> known;
    if (kind == kinds().end()) {
      for (const auto& entry : kinds()) known.push_back(entry.first);
      require(false, "not a line of a record: it has none of the keys {}", fmt::join(known, ", "));
    }
    known = kind->second;
    known.push_back(kind->first);
    check_keys(line, known);
    require(has_header_ == (kind->first != "schema"),
            "the first line, and no other, has schema, rank and world_size");
    if (kind->first == "schema") take_header(line);
    if (kind->first == "collective") take_collective(line);
    if (kind->first == "wait") waits_.insert(seq_of(line, "wait"));
    if (kind->first == "waited") {
      waits_.erase(seq_of(line, "waited"));
      wait_error_ = get_or<std::string>(line, "error", "");
    }
    if (kind->first == "state") take_state(line);
    if (kind->first == "end") take_end(line);
  }

  void take_header(const json& line) {
    const auto schema = get<std::int64_t>(line, "schema");
    require(schema == 1, "schema {} is not known; this program knows 1", schema);
    record_.run.rank = get<std::int64_t>(line, "rank");
    record_.world_size = get<std::int64_t>(line, "world_size");
    require(0 <= record_.run.rank && record_.run.rank < record_.world_size,
            "rank {} is outside of world size {}", record_.run.rank, record_.world_size);
    has_header_ = true;
  }

  void take_collective(const json& line) {
    CollectiveRecord issued;
    issued.collective = get<std::string>(line, "collective");
    issued.site = get_or<std::string>(line, "site", "script");
    issued.step = get_or<std::int64_t>(line, "step", -1);
    issued.bucket = get_or<std::int64_t>(line, "bucket", -1);
    issued.numel = get_or<std::int64_t>(line, "numel", 0);
    issued.dtype = get_or<std::string>(line, "dtype", "");
    record_.run.collectives.push_back(std::move(issued));
  }

  std::int64_t seq_of(const json& line, const char* key) const {
    const auto seq = get<std::int64_t>(line, key);
    const auto issued = static_cast<std::int64_t>(record_.run.collectives.size());
    require(0 <= seq && seq < issued, "seq {}, but {} collectives were issued", seq, issued);
    return seq;
  }

  void take_state(const json& line) {
    RecordedState state;
    state.what = get<std::string>(line, "state");
    state.step = get<std::int64_t>(line, "step");
    state.own = get_or<bool>(line, "own", false);
    require(states_.insert({state.what, state.step}).second, "{} of step {} a second time",
            state.what, state.step);
    std::set<std::string> names;
    for (const json& tensor : get<json::array_t>(line, "tensors")) {
      require(tensor.is_object(), "a tensor that is no object: {}", tensor.dump());
      check_keys(tensor, {"name", "dtype", "sizes", "xxh3"});
      RecordedTensor recorded{get<std::string>(tensor, "name"), "absent"};
      require(names.insert(recorded.name).second, "tensor '{}' twice", recorded.name);
      require(tensor.contains("xxh3"), "tensor '{}' has no xxh3", recorded.name);
      if (!tensor.at("xxh3").is_null()) {
        recorded.content =
            fmt::format("{} [{}], xxh3 {}", get_or<std::string>(tensor, "dtype", "?"),
                        fmt::join(get_or<std::vector<std::int64_t>>(tensor, "sizes", {}), ", "),
                        get<std::string>(tensor, "xxh3"));
      }
      state.tensors.push_back(std::move(recorded));
    }
    record_.states.push_back(std::move(state));
  }

  void take_end(const json& line) {
    const auto end = get<std::string>(line, "end");
    require(end == "finished" || end == "failed", "end '{}' is neither finished nor failed", end);
    record_.has_end = true;
    if (end == "failed") fail(get_or<std::string>(line, "error", ""));
  }

  void fail(const std::string& message) {
    record_.run.ending = Ending::kFailed;
    record_.run.error_kind = "error";
    record_.run.error_message = message;
  }

  /// Where the rank stands, from all lines.
  void stand() {
    RankRun& run = record_.run;
    for (const auto& [what, step] : states_) {
      if (find_step(run, step) == nullptr) run.steps.emplace_back().step = step;
      run.at_step = std::max(run.at_step, step + 1);
    }
    if (!run.collectives.empty()) {
      run.at_step = std::max(run.at_step, run.collectives.back().step);
    }
    if (record_.has_end) return;
    if (!wait_error_.empty()) {
      fail(wait_error_);
      return;
    }
    run.ending = Ending::kWaiting;
    if (waits_.empty()) return;
    const std::int64_t seq = *waits_.begin();
    const CollectiveRecord& in = run.collectives[static_cast<std::size_t>(seq)];
    run.waiting =
        WaitingIn{in.collective, in.site, seq, in.step, in.bucket, in.numel, in.dtype, {}};
  }

  RankRecord record_;
  std::int64_t line_ = 0;
  bool has_header_ = false;
  std::set<std::int64_t> waits_;  ///< that have begun
  std::string wait_error_;        ///< of the last that is over
  std::set<std::pair<std::string, std::int64_t>> states_;
};

}  // namespace

std::vector<RankRecord> read_records(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> files;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".jsonl") files.push_back(at->path().string());
  }
  LOCKSTEP_USAGE(!error, "cannot read folder {}: {}", folder, error.message());
  LOCKSTEP_USAGE(!files.empty(),
                 "{} holds no record of a rank (rank-R.jsonl, as core/training_record.h says)",
                 folder);
  std::sort(files.begin(), files.end());
  std::map<std::int64_t, RankRecord> by_rank;
  for (const std::string& file : files) {
    RankRecord record = RecordReader(file).read();
    const auto [other, is_first] = by_rank.emplace(record.run.rank, record);
    LOCKSTEP_USAGE(is_first, "{} and {} are both of rank {}", other->second.file, file,
                   record.run.rank);
    const RankRecord& first = by_rank.begin()->second;
    LOCKSTEP_USAGE(first.world_size == record.world_size,
                   "world sizes differ: {} says {}, {} says {}", first.file, first.world_size, file,
                   record.world_size);
  }
  std::vector<RankRecord> records;
  for (auto& [rank, record] : by_rank) records.push_back(std::move(record));
  return records;
}

}  // namespace lockstep::harness
