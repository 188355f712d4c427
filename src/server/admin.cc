#include "server/admin.h"

#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace hitide {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

Reply health_reply(const Engine& engine) {
  const Status health = engine.health();
  if (!health.ok()) {
    ApiError error = error_of(health);
    error.status = 503;
    return error_reply(error);
  }
  return json_reply(dump({{"status", "ok"}}));
}

Reply models_reply(const EngineInfo& info, const std::string& model_name) {
  OrderedJson model = {{"id", model_name},
                       {"object", "model"},
                       {"created", 0},
                       {"owned_by", "hitide"},
                       {"max_model_len", info.context_length}};
  return json_reply(dump({{"object", "list"}, {"data", OrderedJson::array({std::move(model)})}}));
}

Reply explain_reply(const Engine& engine, const std::string& id) {
  const Result<Explanation> explanation = engine.explain(id);
  if (!explanation.ok()) return error_reply(error_of(explanation.status()));
  return json_reply(explanation_json(*explanation));
}

Reply storage_reply(const Engine& engine) {
  const CacheStats stats = engine.cache_stats();
  OrderedJson json = {{"backend", stats.storage_backend},
                      {"status", to_string(stats.storage_status)},
                      {"detail", stats.storage_detail}};
  json["registration"] = OrderedJson::parse(registration_json(stats.registration));
  return json_reply(dump(json));
}

Reply flush_reply(Engine& engine) {
  const Status status = engine.flush_cache();
  if (status.ok()) return json_reply(dump({{"status", "flushed"}}));
  ApiError error = error_of(status);
  if (status.code() == StatusCode::failed_precondition) error.status = 409;
  return error_reply(error);
}

std::string explanation_json(const Explanation& explanation) {
  OrderedJson spans = OrderedJson::array();
  for (const ServedSpan& span : explanation.served) {
    spans.push_back({{"begin", span.begin}, {"end", span.end}, {"tier", to_string(span.tier)}});
  }
  OrderedJson misses = OrderedJson::array();
  for (const MissedSpan& span : explanation.missed) {
    misses.push_back({{"begin", span.begin},
                      {"end", span.end},
                      {"reason", to_string(span.reason)},
                      {"meaning", meaning(span.reason)}});
  }
  OrderedJson served;
  for (const Tier tier : {Tier::device, Tier::host, Tier::storage}) {
    served[to_string(tier)] = explanation.served_tokens(tier);
  }
  OrderedJson decisions = OrderedJson::array();
  for (const LoadDecision& decision : explanation.decisions) {
    decisions.push_back({{"tier", to_string(decision.tier)},
                         {"begin", decision.begin},
                         {"end", decision.end},
                         {"load_ms", to_milliseconds(decision.load)},
                         {"recompute_ms", to_milliseconds(decision.recompute)},
                         {"loads", decision.loads}});
  }
  return dump({{"id", explanation.id},
               {"label", explanation.label},
               {"prompt_tokens", explanation.prompt_tokens},
               {"complete", explanation.complete},
               {"served_tokens", std::move(served)},
               {"spans", std::move(spans)},
               {"misses", std::move(misses)},
               {"decisions", std::move(decisions)},
               {"storage_wait_ms", to_milliseconds(explanation.storage_wait)},
               {"load_ms", to_milliseconds(explanation.load_time)},
               {"saved_ms", to_milliseconds(explanation.saved)}});
}

}  // namespace hitide
