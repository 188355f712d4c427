// OpenAI's answers: whole ones and the parts of streams. Knows no HTTP and no engine call.
// docs/server.md lists the fields.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/openai_types.h"

namespace hitide {

// What all parts of one answer share.
struct AnswerHead {
  ApiKind kind = ApiKind::chat;
  std::string id;
  std::string model;
  std::int64_t created = 0;     // seconds since 1970
  bool cache_report = false;    // usage says more
  bool include_usage = false;   // streams: parts carry a usage field
  std::string storage_backend;  // "none" when there is no L3
};

// Tokens of a choice with their likelihoods, as far as they come in one answer or part. Null: they
// were not asked for.
struct LogprobList {
  const std::vector<TokenLogprob>* tokens = nullptr;
  std::size_t offset = 0;  // characters of the choice's text before them
};

// One choice, or what is new of it.
struct AnswerChoice {
  std::uint32_t index = 0;
  std::string_view text;
  LogprobList logprobs;
  FinishReason finish = FinishReason::stop;  // not looked at in parts of a stream
};

// `results` are those of the choices in their order, `per_prompt` of them for each prompt: prompt
// and cached tokens are counted once a prompt, as the first of its choices had them.
struct AnswerUsage {
  std::span<const GenerationResult> results;
  std::uint32_t per_prompt = 1;
};

std::string answer_json(const AnswerHead& head, std::span<const AnswerChoice> choices,
                        const AnswerUsage& usage);
// The parts of a streamed answer, in order; for each choice the first is for chats only, and the
// last one of all comes only with usage.
std::string role_chunk_json(const AnswerHead& head, std::uint32_t index);
std::string text_chunk_json(const AnswerHead& head, const AnswerChoice& choice);
std::string finish_chunk_json(const AnswerHead& head, std::uint32_t index, FinishReason finish);
std::string usage_chunk_json(const AnswerHead& head, const AnswerUsage& usage);

// Characters of a text; a byte that is no UTF-8 counts as what it looks like.
std::size_t character_count(std::string_view text);

}  // namespace hitide
