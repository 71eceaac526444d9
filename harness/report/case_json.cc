// SPDX-License-Identifier: Apache-2.0
// CaseResult as JSON and back.
#include "harness/report/case_json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/report/record_fields.h"
#include "harness/report/report.h"

namespace lockstep::harness {

namespace {

// The order of the fields is the order of declaration, so that reports can be compared as text.
using Json = nlohmann::ordered_json;

// Writing. One overload per kind of field; records and containers recurse.
Json encode(const std::string& value) { return value; }
Json encode(bool value) { return value; }
Json encode(int value) { return value; }
Json encode(std::int64_t value) { return value; }
Json encode(std::uint64_t value) { return fmt::format("{:016x}", value); }
Json encode(Ending value) { return to_string(value); }
Json encode(OutcomeKind value) { return to_string(value); }

Json encode(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

template <class Record>
Json encode(const Record& record);
template <class T>
Json encode(const std::optional<T>& value);

template <class T>
Json encode(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(encode(value));
  return array;
}

template <class T>
Json encode(const std::optional<T>& value) {
  return value.has_value() ? encode(*value) : Json(nullptr);
}

template <class Record>
Json encode(const Record& record) {
  Json object = Json::object();
  detail::Fields<Record>::visit(
      record, [&](const char* name, const auto& field) { object[name] = encode(field); });
  return object;
}

// Reading: the mirror image.
void decode(const Json& json, std::string& value) { value = json.get<std::string>(); }
void decode(const Json& json, bool& value) { value = json.get<bool>(); }
void decode(const Json& json, int& value) { value = json.get<int>(); }
void decode(const Json& json, std::int64_t& value) { value = json.get<std::int64_t>(); }

void decode(const Json& json, std::uint64_t& value) {
  const auto text = json.get<std::string>();
  std::size_t num_read = 0;
  const bool hexadecimal =
      !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  LOCKSTEP_USAGE(hexadecimal && text.size() == 16, "'{}' is no checksum", text);
  value = std::stoull(text, &num_read, 16);
}

void decode(const Json& json, double& value) {
  if (!json.is_string()) {
    value = json.get<double>();
    return;
  }
  const auto text = json.get<std::string>();
  LOCKSTEP_USAGE(text == "nan" || text == "inf" || text == "-inf", "'{}' is no number", text);
  using Limits = std::numeric_limits<double>;
  value = text == "nan" ? Limits::quiet_NaN() : Limits::infinity() * (text == "inf" ? 1.0 : -1.0);
}

/// The value of an enumeration that starts at 0 and ends at `last`, by its name.
template <class Enum>
Enum enum_by_name(const std::string& name, Enum last) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (name == to_string(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  throw UsageError(fmt::format("unknown name '{}'", name));
}

void decode(const Json& json, Ending& value) {
  value = enum_by_name(json.get<std::string>(), Ending::kCrashed);
}
void decode(const Json& json, OutcomeKind& value) {
  value = enum_by_name(json.get<std::string>(), OutcomeKind::kPredicted);
}

template <class Record>
void decode(const Json& json, Record& record);
template <class T>
void decode(const Json& json, std::optional<T>& value);

template <class T>
void decode(const Json& json, std::vector<T>& values) {
  values.clear();
  for (const Json& element : json.get_ref<const Json::array_t&>()) {
    values.emplace_back();
    decode(element, values.back());
  }
}

template <class T>
void decode(const Json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) decode(json, value.emplace());
}

template <class Record>
void decode(const Json& json, Record& record) {
  detail::Fields<Record>::visit(
      record, [&](const char* name, auto& field) { decode(json.at(name), field); });
}

}  // namespace

std::string case_result_to_json(const CaseResult& result) {
  Json object = Json::object();
  object["verdict"] = to_string(verdict_of(result));
  object.update(encode(result));
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

CaseResult case_result_from_json(std::string_view text) {
  try {
    CaseResult result;
    decode(Json::parse(text), result);
    return result;
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(fmt::format("not a case result: {}", error.what()));
  }
}

}  // namespace lockstep::harness
