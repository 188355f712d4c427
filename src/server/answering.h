// From generations to the bytes of an answer, whole or streamed.
//
// Threading: one thread, that which answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/openai_answer.h"
#include "server/reply.h"

namespace hitide {

struct Answering {
  // What has come of a choice; of a stream, what has not been sent yet.
  struct Choice {
    std::string text;  // at first what is echoed of the prompt
    std::vector<TokenLogprob> logprobs;
    std::size_t offset = 0;  // characters of tokens that were sent
    GenerationResult result;
    bool done = false;
  };
  AnswerHead head;
  std::uint32_t per_prompt = 1;
  bool logprobs = false;
  std::vector<Choice> choices;  // by index
};

// How often a waiting thread looks whether its client is still there.
constexpr Duration kClientCheck = std::chrono::milliseconds(100);
constexpr std::string_view kExplanationHeader = "X-HiTide-Explanation-Id";

// Only for results that are no answer.
ApiError error_of_result(const GenerationResult& result);

// To a client that does not read it.
Reply client_gone_reply();

// Waits for all choices; an error when one of them fails or the client goes.
Reply whole_answer(Answering& answering, Generations& generations, const ClientGone& client_gone);
// Sends what comes, in OpenAI's order; returns early when sending fails or the client goes. The
// stream ends with an error's part when a choice fails.
void stream_answer(Answering& answering, Generations& generations, const ClientGone& client_gone,
                   const SendPiece& send);

}  // namespace hitide
