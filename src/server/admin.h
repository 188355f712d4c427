// The endpoints for operators: health, models, explanations, flush.
#pragma once

#include <string>

#include "engine/engine.h"
#include "server/reply.h"

namespace hitide {

Reply health_reply(const Engine& engine);
Reply models_reply(const EngineInfo& info, const std::string& model_name);
Reply explain_reply(const Engine& engine, const std::string& id);
// How L3 is, and how each pool is registered with its store.
Reply storage_reply(const Engine& engine);
Reply flush_reply(Engine& engine);

// {"id", "label", "prompt_tokens", "complete", "served_tokens": {tier: n}, "spans": [{"begin",
// "end", "tier"}], "misses": [{"begin", "end", "reason", "meaning"}], "storage_wait_ms",
// "load_ms", "saved_ms"}; begin and end count tokens, end is one past the last.
std::string explanation_json(const Explanation& explanation);

}  // namespace hitide
