// The two generating endpoints, /v1/chat/completions and /v1/completions: from the body of a
// request to the reply, streamed or whole.
//
// Threading: answer() may be called from any number of threads; each call waits for its own
// generation only.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/generation.h"
#include "server/openai_answer.h"
#include "server/reply.h"
#include "spec/serve_options.h"

namespace hitide {

class OpenAiApi {
 public:
  // Requests at the engine, computed or waiting, are bounded by `requests_max`; further ones are
  // answered with 429. `engine` outlives every call and every reply's stream.
  OpenAiApi(Engine& engine, const ServerOptions& options, std::uint32_t requests_max);

  // Never waits for a client that has gone. `body` goes as soon as the prompt is tokens.
  Reply answer(ApiKind kind, RequestBody body, const ClientGone& client_gone);

  const std::string& model_name() const { return model_name_; }
  std::uint32_t requests_in_flight() const { return in_flight_->load(); }
  const RequestMetrics& metrics() const { return *metrics_; }

 private:
  struct Prompt {
    std::vector<TokenId> tokens;
    std::string echo;  // what the answer begins with
  };
  struct Prepared {
    ApiRequest request;
    AnswerHead head;
    std::vector<Prompt> prompts;
    // One for each answer; counts it until the engine and the server let go of it.
    std::vector<std::shared_ptr<void>> places;
    std::optional<ApiError> error;
  };
  Prepared prepare(ApiKind kind, RequestBody body);
  std::optional<ApiError> take_places(Prepared& prepared);
  // Fill in the prompts.
  std::optional<ApiError> tokenize(Prepared& prepared);
  std::optional<ApiError> tokenize_chat(Prepared& prepared);
  std::optional<ApiError> check_prompt_bytes(const ApiRequest& request, std::size_t bytes) const;
  std::optional<ApiError> check_prompt_tokens(ApiKind kind, std::size_t tokens) const;
  // Nothing: all are with the engine.
  std::optional<Reply> submit_all(Prepared& prepared, Generations& generations,
                                  const ClientGone& client_gone);
  Reply start(Prepared& prepared, const ClientGone& client_gone);
  AnswerHead head_for(const ApiRequest& request);

  Engine& engine_;
  const bool cache_report_;
  const std::uint32_t requests_max_;
  const EngineInfo info_;
  const std::string model_name_;
  const std::string id_prefix_;  // tells apart two runs of the server
  const std::shared_ptr<RequestMetrics> metrics_ = std::make_shared<RequestMetrics>();
  std::atomic<std::uint64_t> next_id_{1};
  std::shared_ptr<std::atomic<std::uint32_t>> in_flight_;
  // Parsing and tokenizing take many times the memory of a body, and a core.
  static constexpr std::ptrdiff_t kPreparedAtOnce = 2;
  std::counting_semaphore<kPreparedAtOnce> preparing_{kPreparedAtOnce};
};

}  // namespace hitide
