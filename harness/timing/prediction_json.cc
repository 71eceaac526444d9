// SPDX-License-Identifier: Apache-2.0
// Predictions for programs.
#include <nlohmann/json.hpp>

#include "harness/timing/prediction_text.h"
#include "harness/timing/schema.h"

namespace lockstep::harness {

namespace {

using Json = nlohmann::ordered_json;
using sim::timing::to_ms;

constexpr int kSchema = 1;

/// A visitor of the schema: every value of a setup under its key, as a timing file would say it.
template <class S>
class SetupJson {
 public:
  explicit SetupJson(const S& value) : value_(value) { describe(*this, Of<S>{}); }

  template <class T, class C>
  void field(const char* key, T S::*member, const C&, const char*) {
    put(key, value_.*member);
  }
  template <class T, class C>
  void needed(const char* key, T S::*member, const C& constraint, const char* doc) {
    field(key, member, constraint, doc);
  }
  template <class T, class C>
  void one_or_many(const char*, const char* keys, T S::*member, const C&, const char*) {
    put(keys, value_.*member);
  }
  template <class T>
  void table(const char* key, T S::*member, const char*) {
    json_[key] = SetupJson<T>(value_.*member).json();
  }
  template <class T>
  void tables(const char* key, std::vector<T> S::*member, TablesPlace, const char*) {
    if constexpr (!std::is_same_v<T, ClaimSpec>) {
      Json& list = json_[key] = Json::array();
      for (const T& item : value_.*member) list.push_back(SetupJson<T>(item).json());
    }
  }

  const Json& json() const { return json_; }

 private:
  template <class T>
  void put(const char* key, const T& value) {
    json_[key] = value;
  }
  template <class T>
  void put(const char* key, const std::optional<T>& value) {
    if (value) json_[key] = *value;
  }

  const S& value_;
  Json json_ = Json::object();
};

Json timeline_json(const sim::timing::Prediction& prediction) {
  Json list = Json::array();
  for (const sim::timing::CollectiveTimes& times : prediction.timeline) {
    list.push_back({{"micro_batch", times.micro_batch},
                    {"bucket", times.bucket},
                    {"tensors", times.num_parameters},
                    {"bytes", times.bytes},
                    {"algorithm", to_string(times.algorithm)},
                    {"ready_ms", to_ms(times.ready_ps)},
                    {"begin_ms", to_ms(times.begin_ps)},
                    {"end_ms", to_ms(times.end_ps)}});
  }
  return list;
}

Json point_json(const TimingPoint& point, const sim::timing::Prediction& prediction) {
  Json json = Json::object();
  json["name"] = point.name;
  TimingCase value;
  static_cast<sim::timing::Setup&>(value) = point.setup;
  Json setup = SetupJson<TimingCase>(value).json();
  setup.erase("title");
  json["setup"] = std::move(setup);
  for (const char* name : timing_quantities().names) {
    if (name) json[name] = quantity(name, point.setup, prediction);
  }
  json["classes"] = prediction.num_classes;
  json["timeline"] = timeline_json(prediction);
  Json steps = Json::array();
  for (const sim::timing::StepTimes& step : prediction.steps) {
    steps.push_back(to_ms(step.end_ps - step.begin_ps));
  }
  json["steps_ms"] = std::move(steps);
  return json;
}

}  // namespace

std::string study_to_json(const TimingStudy& study,
                          const std::vector<sim::timing::Prediction>& predictions,
                          const std::vector<ClaimOutcome>& claims) {
  Json json = Json::object();
  json["schema"] = kSchema;
  json["file"] = study.file;
  json["title"] = study.title;
  Json& points = json["points"] = Json::array();
  for (std::size_t i = 0; i < study.points.size(); ++i) {
    points.push_back(point_json(study.points[i], predictions[i]));
  }
  Json& judged = json["claims"] = Json::array();
  for (const ClaimOutcome& claim : claims) {
    judged.push_back({{"holds", claim.holds}, {"text", claim.text}});
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace lockstep::harness
