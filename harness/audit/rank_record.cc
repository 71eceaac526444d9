// SPDX-License-Identifier: Apache-2.0
// From lines of JSON to what a rank did.
#include "harness/audit/rank_record.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "core/check.h"
#include "harness/report/printable.h"
#include "harness/scenario/nearest_name.h"

namespace lockstep::harness {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Nothing in a file can act on a terminal, or look like a line of a report.
std::string one_line(std::string_view text) {
  std::string result;
  for (const char c : printable(text)) {
    result += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
  }
  return result;
}

/// The key that a line of each kind has, and the others that it may have.
const std::map<std::string, std::vector<std::string>>& kinds() {
  static const std::map<std::string, std::vector<std::string>> kKinds = {
      {"schema", {"rank", "world_size"}},
      {"collective", {"op", "root", "site", "step", "bucket", "numel", "dtype"}},
      {"wait", {}},
      {"waited", {"error"}},
      {"state", {"step", "own", "tensors"}},
      {"end", {"error"}}};
  return kKinds;
}

class RecordReader {
 public:
  RecordReader(std::string file, std::int64_t rank) {
    record_.file = std::move(file);
    record_.rank = rank;
  }

  /// Nothing if the first line is not complete.
  std::optional<RankRecord> read() {
    std::ifstream in(record_.file);
    LOCKSTEP_USAGE(in.good(), "cannot read {}: {}", record_.file, std::strerror(errno));
    std::string text;
    while (std::getline(in, text)) {
      ++line_;
      record_.is_cut = in.eof() && !json::accept(text);  // its writer was ended in it
      if (!record_.is_cut) take(text);
    }
    LOCKSTEP_USAGE(!in.bad(), "cannot read {} to its end: {}", record_.file, std::strerror(errno));
    if (record_.world_size == 0) return std::nullopt;
    for (std::size_t seq = 0; seq < stages_.size(); ++seq) {
      if (stages_[seq] == Stage::kWaits) record_.waits.push_back(static_cast<std::int64_t>(seq));
    }
    return std::move(record_);
  }

 private:
  enum class Stage : std::uint8_t { kIssued, kWaits, kOver };

  template <typename... Args>
  [[noreturn]] void fail(const char* text, const Args&... args) const {
    throw UsageError(
        fmt::format("{}:{}: {}", record_.file, line_, fmt::format(fmt::runtime(text), args...)));
  }

  const json& member(const json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) fail("'{}' is missing", key);
    return *found;
  }
  std::int64_t integer(const json& value, const char* key, std::int64_t least = 0) const {
    constexpr std::int64_t kMost = 1'000'000'000'000'000;
    const bool fits = value.is_number_integer() &&
                      (value.is_number_unsigned() ? value.get<std::uint64_t>() <= kMost
                                                  : value.get<std::int64_t>() >= least);
    if (!fits) fail("'{}' is not a whole number from {} to {}", key, least, kMost);
    return value.get<std::int64_t>();
  }
  std::int64_t integer_of(const json& object, const char* key) const {
    return integer(member(object, key), key);
  }
  std::int64_t integer_or(const json& object, const char* key, std::int64_t otherwise) const {
    return object.contains(key) ? integer(object[key], key, otherwise) : otherwise;
  }
  std::string text_of(const json& object, const char* key) const {
    const json& value = member(object, key);
    if (!value.is_string()) fail("'{}' is not a text", key);
    return one_line(value.get_ref<const std::string&>());
  }
  std::string text_or(const json& object, const char* key, const char* otherwise) const {
    return object.contains(key) ? text_of(object, key) : otherwise;
  }

  void check_keys(const json& object, const std::vector<std::string>& known) const {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        fail("unknown key '{}'; expected one of {}{}", one_line(key), fmt::join(known, ", "),
             did_you_mean(key, known));
      }
    }
  }

  json parsed(const std::string& text) const {
    json line;
    try {
      line = json::parse(text);
    } catch (const json::exception& error) {
      const std::string what = error.what();
      fail("not JSON: {}", one_line(what.substr(std::min(what.find("] ") + 2, what.size()))));
    }
    if (!line.is_object()) fail("not an object of JSON");
    return line;
  }

  void take(const std::string& text) {
    const json line = parsed(text);
    const auto kind = std::find_if(kinds().begin(), kinds().end(),
                                   [&](const auto& entry) { return line.contains(entry.first); });
    std::vector<std::string> known;
    if (kind == kinds().end()) {
      for (const auto& entry : kinds()) known.push_back(entry.first);
      fail("not a line of a record: it has none of the keys {}", fmt::join(known, ", "));
    }
    known = kind->second;
    known.push_back(kind->first);
    check_keys(line, known);
    if ((record_.world_size == 0) != (kind->first == "schema")) {
      fail("the first line, and no other, has schema, rank and world_size");
    }
    if (record_.end) fail("a line after the end; if two programs wrote here, give each a folder");
    if (kind->first == "schema") take_header(line);
    if (kind->first == "collective") take_collective(line);
    if (kind->first == "wait") take_wait(line);
    if (kind->first == "waited") take_waited(line);
    if (kind->first == "state") take_state(line);
    if (kind->first == "end") take_end(line);
  }

  void take_header(const json& line) {
    const std::int64_t schema = integer_of(line, "schema");
    if (schema != 1) fail("schema {} is not known; this program knows 1", schema);
    const std::int64_t rank = integer_of(line, "rank");
    const std::int64_t world_size = integer_of(line, "world_size");
    if (rank != record_.rank) fail("rank {} in a file of another name", rank);
    if (world_size > kRecordedRanksMax) {
      fail("world size {} is above {}", world_size, kRecordedRanksMax);
    }
    if (rank >= world_size) fail("rank {} is outside of world size {}", rank, world_size);
    record_.world_size = world_size;
  }

  void take_collective(const json& line) {
    CollectiveRecord issued;
    issued.collective = text_of(line, "collective");
    if (line.contains("op")) issued.collective += " of kind " + text_of(line, "op");
    const std::int64_t root = integer_or(line, "root", -1);
    if (root >= 0) issued.collective += fmt::format(" from rank {}", root);
    issued.site = text_or(line, "site", "script");
    issued.step = integer_or(line, "step", -1);
    issued.bucket = integer_or(line, "bucket", -1);
    issued.numel = integer_or(line, "numel", 0);
    issued.dtype = text_or(line, "dtype", "");
    record_.collectives.push_back(std::move(issued));
    record_.roots.push_back(root);
    stages_.push_back(Stage::kIssued);
  }

  /// Moves a collective from one stage to the next.
  std::int64_t move(const json& line, const char* key, Stage from, Stage to) {
    const std::int64_t seq = integer_of(line, key);
    const auto at = static_cast<std::size_t>(seq);
    if (at >= stages_.size()) fail("seq {}, but {} collectives were issued", seq, stages_.size());
    if (stages_[at] != from) fail("'{}' of seq {} out of turn: wait, then waited, once", key, seq);
    stages_[at] = to;
    return seq;
  }
  void take_wait(const json& line) { move(line, "wait", Stage::kIssued, Stage::kWaits); }
  void take_waited(const json& line) {
    const std::int64_t seq = move(line, "waited", Stage::kWaits, Stage::kOver);
    if (line.contains("error")) record_.failed_waits.emplace_back(seq, text_of(line, "error"));
  }

  void take_state(const json& line) {
    RecordedState state;
    state.what = text_of(line, "state");
    state.step = integer_of(line, "step");
    if (line.contains("own")) {
      if (!line["own"].is_boolean()) fail("'own' is neither true nor false");
      state.own = line["own"].get<bool>();
    }
    if (!states_.insert({state.what, state.step}).second) {
      fail("{} of step {} a second time", state.what, state.step);
    }
    const json& tensors = member(line, "tensors");
    if (!tensors.is_array()) fail("'tensors' is not a list");
    std::set<std::string> names;
    for (const json& tensor : tensors) {
      state.tensors.push_back(tensor_of(tensor));
      if (!names.insert(state.tensors.back().name).second) {
        fail("tensor '{}' a second time", state.tensors.back().name);
      }
    }
    record_.states.push_back(std::move(state));
  }

  RecordedTensor tensor_of(const json& tensor) const {
    static const std::vector<std::string> kKeys = {"name", "dtype", "sizes", "xxh3"};
    if (!tensor.is_object()) fail("a tensor that is no object, but: {}", tensor.type_name());
    check_keys(tensor, kKeys);
    RecordedTensor recorded{text_of(tensor, "name"), "absent"};
    if (member(tensor, "xxh3").is_null()) return recorded;
    std::string digest = text_of(tensor, "xxh3");
    std::transform(digest.begin(), digest.end(), digest.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (digest.size() != 16 || digest.find_first_not_of("0123456789abcdef") != std::string::npos) {
      fail("the xxh3 of '{}' is not 16 hexadecimal digits: '{}'", recorded.name, digest);
    }
    std::vector<std::int64_t> sizes;
    if (tensor.contains("sizes")) {
      if (!tensor["sizes"].is_array()) fail("'sizes' is not a list");
      for (const json& size : tensor["sizes"]) sizes.push_back(integer(size, "sizes"));
    }
    recorded.content = fmt::format("{} [{}], xxh3 {}", text_or(tensor, "dtype", "?"),
                                   fmt::join(sizes, ", "), digest);
    return recorded;
  }

  void take_end(const json& line) {
    const std::string end = text_of(line, "end");
    if (end != "finished" && end != "failed") {
      fail("end '{}' is neither finished nor failed", end);
    }
    if (end == "finished" && line.contains("error")) fail("an error of a rank that finished");
    record_.end = end == "finished" ? Ending::kFinished : Ending::kFailed;
    record_.error = text_or(line, "error", "nothing was said");
  }

  RankRecord record_;
  std::int64_t line_ = 0;
  std::vector<Stage> stages_;  ///< of the collectives
  std::set<std::pair<std::string, std::int64_t>> states_;
};

/// The R of rank-R.jsonl; none for another name.
std::optional<std::int64_t> rank_of(const std::string& name) {
  constexpr std::string_view kBefore = "rank-", kAfter = ".jsonl";
  const std::size_t digits = name.size() - std::min(name.size(), kBefore.size() + kAfter.size());
  if (digits == 0 || digits > 9 || name.rfind(kBefore, 0) != 0 ||
      name.substr(kBefore.size() + digits) != kAfter) {
    return std::nullopt;
  }
  const std::string number = name.substr(kBefore.size(), digits);
  if (number.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoll(number);
}

}  // namespace

std::vector<RankRecord> read_records(const std::string& folder) {
  std::error_code error;
  std::map<std::int64_t, std::string> files;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const auto rank = rank_of(at->path().filename().string());
    std::error_code ignored;
    if (!rank || !fs::is_regular_file(at->path(), ignored)) continue;
    const auto [other, is_first] = files.emplace(*rank, at->path().string());
    LOCKSTEP_USAGE(is_first, "{} and {} are both of rank {}", other->second, at->path().string(),
                   *rank);
  }
  LOCKSTEP_USAGE(!error, "cannot read folder {}: {}", folder, error.message());
  std::vector<RankRecord> records;
  for (const auto& [rank, file] : files) {
    std::optional<RankRecord> record = RecordReader(file, rank).read();
    if (!record) continue;
    LOCKSTEP_USAGE(records.empty() || records.front().world_size == record->world_size,
                   "world sizes differ: {} says {}, {} says {}; give each run a folder",
                   records.front().file, records.front().world_size, file, record->world_size);
    records.push_back(*std::move(record));
  }
  LOCKSTEP_USAGE(!records.empty(),
                 "{} holds no record of a rank (files rank-R.jsonl, as core/training_record.h "
                 "writes them)",
                 folder);
  return records;
}

}  // namespace lockstep::harness
