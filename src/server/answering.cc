#include "server/answering.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/sse.h"

namespace hitide {
namespace {

bool is_answer(const GenerationResult& result) {
  return result.finish == FinishReason::stop || result.finish == FinishReason::length;
}

// Takes in what has come; false: there was nothing.
bool take_in(Answering& answering, Generations& generations) {
  const std::vector<Generations::News> news = generations.take(kClientCheck);
  for (const Generations::News& part : news) {
    Answering::Choice& choice = answering.choices[part.index];
    choice.text += part.text;
    choice.logprobs.insert(choice.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
    if (!part.done) continue;
    choice.result = generations.take_result(part.index);
    choice.done = true;
  }
  return !news.empty();
}

const GenerationResult* failure_in(const Answering& answering) {
  for (const Answering::Choice& choice : answering.choices) {
    if (choice.done && !is_answer(choice.result)) return &choice.result;
  }
  return nullptr;
}

bool all_done(const Answering& answering) {
  return std::all_of(answering.choices.begin(), answering.choices.end(),
                     [](const Answering::Choice& choice) { return choice.done; });
}

std::vector<GenerationResult> results_of(const Answering& answering) {
  std::vector<GenerationResult> results;
  for (const Answering::Choice& choice : answering.choices) results.push_back(choice.result);
  return results;
}

AnswerChoice part_of(const Answering& answering, std::uint32_t index) {
  const Answering::Choice& choice = answering.choices[index];
  AnswerChoice part;
  part.index = index;
  part.text = choice.text;
  if (answering.logprobs) part.logprobs = {&choice.logprobs, choice.offset};
  part.finish = choice.result.finish;
  return part;
}

// Sends what is there of a choice.
bool send_text(Answering& answering, std::uint32_t index, const SendPiece& send) {
  Answering::Choice& choice = answering.choices[index];
  if (choice.text.empty() && choice.logprobs.empty()) return true;
  if (!send(sse_event(text_chunk_json(answering.head, part_of(answering, index))))) return false;
  for (const TokenLogprob& token : choice.logprobs) choice.offset += character_count(token.bytes);
  choice.text.clear();
  choice.logprobs.clear();
  return true;
}

}  // namespace

// Only for results that are no answer.
ApiError error_of_result(const GenerationResult& result) {
  if (result.finish == FinishReason::cancelled) {
    ApiError error;
    error.status = 503;
    error.type = "server_error";
    error.code = "cancelled";
    error.message = "the request was cancelled before its end; the server is shutting down";
    return error;
  }
  if (result.status.ok()) {
    return error_of(Status(StatusCode::internal, "the engine failed without saying why"));
  }
  return error_of(result.status);
}

Reply client_gone_reply() {
  ApiError error;
  error.message = "the client closed the connection";
  return error_reply(error);
}

Reply whole_answer(Answering& answering, Generations& generations, const ClientGone& client_gone) {
  while (!all_done(answering)) {
    take_in(answering, generations);
    if (const GenerationResult* failed = failure_in(answering)) {
      return error_reply(error_of_result(*failed));
    }
    if (!all_done(answering) && client_gone()) return client_gone_reply();
  }
  std::vector<AnswerChoice> choices;
  for (std::uint32_t i = 0; i < answering.choices.size(); ++i) {
    choices.push_back(part_of(answering, i));
  }
  const std::vector<GenerationResult> results = results_of(answering);
  Reply reply = json_reply(answer_json(answering.head, choices, {results, answering.per_prompt}));
  reply.headers.emplace_back(kExplanationHeader, results[0].explanation_id);
  return reply;
}

void stream_answer(Answering& answering, Generations& generations, const ClientGone& client_gone,
                   const SendPiece& send) {
  const AnswerHead& head = answering.head;
  const auto count = static_cast<std::uint32_t>(answering.choices.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    if (head.kind == ApiKind::chat && !send(sse_event(role_chunk_json(head, i)))) return;
    if (!send_text(answering, i, send)) return;
  }
  std::vector<bool> ended(count);
  while (std::count(ended.begin(), ended.end(), false) != 0) {
    take_in(answering, generations);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (!send_text(answering, i, send)) return;
      const Answering::Choice& choice = answering.choices[i];
      if (!choice.done || ended[i] || !is_answer(choice.result)) continue;
      if (!send(sse_event(finish_chunk_json(head, i, choice.result.finish)))) return;
      ended[i] = true;
    }
    if (const GenerationResult* failed = failure_in(answering)) {
      if (send(sse_event(error_json(error_of_result(*failed))))) send(sse_done());
      return;
    }
    if (!all_done(answering) && client_gone()) return;
  }
  const std::vector<GenerationResult> results = results_of(answering);
  const AnswerUsage usage{results, answering.per_prompt};
  if (head.include_usage && !send(sse_event(usage_chunk_json(head, usage)))) return;
  send(sse_done());
}

}  // namespace hitide
