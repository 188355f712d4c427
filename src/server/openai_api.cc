#include "server/openai_api.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "server/answering.h"
#include "server/tenant.h"

namespace hitide {
namespace {

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ApiError busy_error(std::uint32_t requests_max) {
  ApiError error;
  error.status = 429;
  error.type = "rate_limit_error";
  error.code = "server_busy";
  error.message =
      fmt::format("{} requests are computed or waiting already; try again later", requests_max);
  return error;
}

ApiError too_long(ApiKind kind, std::string message) {
  ApiError error;
  error.param = kind == ApiKind::chat ? "messages" : "prompt";
  error.code = "context_length_exceeded";
  error.message = std::move(message);
  return error;
}

// Names the field of the request that the engine refuses.
ApiError refused_by_engine(const Status& status, const ApiRequest& request) {
  ApiError error = error_of(status);
  if (status.code() != StatusCode::invalid_argument) return error;
  const std::pair<std::string_view, std::string_view> fields[] = {
      {"grammar: ", request.grammar_field},
      {"stop_tokens: ", "stop_token_ids"},
      {"logit_bias: ", "logit_bias"}};
  for (const auto& [begin, field] : fields) {
    if (error.message.rfind(begin, 0) != 0) continue;
    error.param = field;
    error.message = fmt::format("{}: {}", field, error.message.substr(begin.size()));
    break;
  }
  return error;
}

// Cancels the generations when the last owner of a reply's stream goes, whether it has run or not.
struct CancelOnExit {
  explicit CancelOnExit(std::shared_ptr<Generations> started) : generations(std::move(started)) {}
  CancelOnExit(const CancelOnExit&) = delete;
  CancelOnExit& operator=(const CancelOnExit&) = delete;
  ~CancelOnExit() { generations->cancel(); }
  const std::shared_ptr<Generations> generations;
};

}  // namespace

OpenAiApi::OpenAiApi(Engine& engine, const ServerOptions& options, std::uint32_t requests_max)
    : engine_(engine),
      cache_report_(options.cache_report),
      requests_max_(requests_max),
      info_(engine.info()),
      model_name_(options.served_model_name.empty() ? info_.model_name : options.served_model_name),
      id_prefix_(fmt::format("{:x}", std::chrono::steady_clock::now().time_since_epoch().count())),
      in_flight_(std::make_shared<std::atomic<std::uint32_t>>(0)) {}

std::optional<ApiError> OpenAiApi::check_prompt_bytes(const ApiRequest& request,
                                                      std::size_t bytes) const {
  if (info_.prompt_bytes_max == 0 || bytes <= info_.prompt_bytes_max) return std::nullopt;
  return too_long(request.kind,
                  fmt::format("the prompt has {} bytes; the context of {} tokens takes at most {}",
                              bytes, info_.context_length, info_.prompt_bytes_max));
}

std::optional<ApiError> OpenAiApi::check_prompt_tokens(ApiKind kind, std::size_t tokens) const {
  if (info_.context_length == 0 || tokens < info_.context_length) return std::nullopt;
  return too_long(kind, fmt::format("the prompt has {} tokens; the context of {} leaves no room",
                                    tokens, info_.context_length));
}

std::optional<ApiError> OpenAiApi::tokenize_chat(Prepared& prepared) {
  const ApiRequest& request = prepared.request;
  std::size_t bytes = 0;
  for (const ChatMessage& message : request.messages) bytes += message.content.size();
  if (auto error = check_prompt_bytes(request, bytes)) return error;
  const Result<std::string> text = engine_.apply_chat_template(request.messages);
  if (!text.ok()) {
    ApiError error = error_of(text.status().with_context("messages"));
    if (error.status == 400) error.param = "messages";
    return error;
  }
  if (auto error = check_prompt_bytes(request, text->size())) return error;
  prepared.prompts.push_back({.tokens = engine_.tokenize(*text, true, true), .echo = {}});
  return check_prompt_tokens(request.kind, prepared.prompts.back().tokens.size());
}

std::optional<ApiError> OpenAiApi::tokenize(Prepared& prepared) {
  ApiRequest& request = prepared.request;
  if (request.kind == ApiKind::chat) return tokenize_chat(prepared);
  for (ApiPrompt& prompt : request.prompts) {
    if (auto error = check_prompt_bytes(request, prompt.text.size())) return error;
    Prompt& read = prepared.prompts.emplace_back();
    read.tokens = prompt.tokens.empty() ? engine_.tokenize(prompt.text, true, true)
                                        : std::move(prompt.tokens);
    if (auto error = check_prompt_tokens(request.kind, read.tokens.size())) return error;
    if (!request.echo) continue;
    read.echo = prompt.text.empty() ? engine_.detokenize(read.tokens) : std::move(prompt.text);
  }
  return std::nullopt;
}

std::optional<ApiError> OpenAiApi::take_places(Prepared& prepared) {
  const ApiRequest& request = prepared.request;
  const auto prompts = static_cast<std::uint32_t>(std::max<std::size_t>(1, request.prompts.size()));
  const std::uint32_t wanted = prompts * request.choices;
  if (wanted > requests_max_) {
    ApiError error;
    error.param = request.choices > 1 ? "n" : "prompt";
    error.message = fmt::format("{}: {} answers are more than the {} that may be computed or wait",
                                error.param, wanted, requests_max_);
    return error;
  }
  if (in_flight_->fetch_add(wanted) > requests_max_ - wanted) {
    in_flight_->fetch_sub(wanted);
    return busy_error(requests_max_);
  }
  for (std::uint32_t i = 0; i < wanted; ++i) {
    prepared.places.emplace_back(nullptr, [count = in_flight_](void*) { count->fetch_sub(1); });
  }
  return std::nullopt;
}

OpenAiApi::Prepared OpenAiApi::prepare(ApiKind kind, RequestBody body) {
  Prepared prepared;
  if (in_flight_->load() >= requests_max_) {
    prepared.error = busy_error(requests_max_);
    return prepared;
  }
  preparing_.acquire();
  const std::shared_ptr<void> slot(nullptr, [this](void*) { preparing_.release(); });
  ApiParse parse = parse_request(kind, body.text);
  if (!parse.error) parse.error = take_tenant(body, parse.request.generation);
  body = {};
  if (parse.error) {
    prepared.error = std::move(parse.error);
    return prepared;
  }
  prepared.request = std::move(parse.request);
  prepared.error = take_places(prepared);
  if (prepared.error) return prepared;
  prepared.head = head_for(prepared.request);
  prepared.error = tokenize(prepared);
  return prepared;
}

AnswerHead OpenAiApi::head_for(const ApiRequest& request) {
  AnswerHead head;
  head.kind = request.kind;
  head.id = fmt::format("{}-{}-{}", request.kind == ApiKind::chat ? "chatcmpl" : "cmpl", id_prefix_,
                        next_id_.fetch_add(1));
  head.model = request.model.empty() ? model_name_ : request.model;
  head.created = unix_seconds();
  head.cache_report = cache_report_;
  head.include_usage = request.include_usage;
  head.storage_backend = engine_.info().storage_backend;  // it may come and go
  return head;
}

Reply OpenAiApi::answer(ApiKind kind, RequestBody body, const ClientGone& client_gone) {
  Prepared prepared = prepare(kind, std::move(body));
  if (prepared.error) return error_reply(*prepared.error);
  return start(prepared, client_gone);
}

// The first choice of a prompt goes ahead; the others come when it has its first token, and find
// the prompt on the device.
std::optional<Reply> OpenAiApi::submit_all(Prepared& prepared, Generations& generations,
                                           const ClientGone& client_gone) {
  const std::uint32_t choices = prepared.request.choices;
  const std::size_t all = prepared.prompts.size() * choices;
  const GenerationRequest& shared = prepared.request.generation;
  for (std::size_t i = 0; i < all; ++i) {
    const auto number = static_cast<std::uint32_t>(i % choices);
    GenerationRequest request = shared;
    std::vector<TokenId>& prompt = prepared.prompts[i / choices].tokens;
    if (number + 1 < choices) {
      request.prompt = prompt;
    } else {
      request.prompt = std::move(prompt);
    }
    if (request.sampling.seed) *request.sampling.seed += number;
    request.label = all == 1 ? prepared.head.id : fmt::format("{}/{}", prepared.head.id, i);
    const Status submitted = generations.submit(std::move(request), std::move(prepared.places[i]));
    if (!submitted.ok()) return error_reply(refused_by_engine(submitted, prepared.request));
    if (number != 0 || choices == 1) continue;
    while (!generations.wait_text(static_cast<std::uint32_t>(i), kClientCheck)) {
      if (client_gone()) return client_gone_reply();
    }
  }
  return std::nullopt;
}

Reply OpenAiApi::start(Prepared& prepared, const ClientGone& client_gone) {
  const auto guard = std::make_shared<CancelOnExit>(Generations::create(engine_, metrics_));
  Generations& generations = *guard->generations;
  if (auto refused = submit_all(prepared, generations, client_gone)) return std::move(*refused);
  Answering answering;
  answering.head = prepared.head;
  answering.per_prompt = prepared.request.choices;
  answering.logprobs = prepared.request.generation.top_logprobs.has_value();
  answering.choices.resize(prepared.prompts.size() * answering.per_prompt);
  for (std::size_t i = 0; i < answering.choices.size(); ++i) {
    answering.choices[i].text = prepared.prompts[i / answering.per_prompt].echo;
  }
  if (!prepared.request.stream) return whole_answer(answering, generations, client_gone);

  while (!generations.wait_admitted(0, kClientCheck)) {
    if (client_gone()) return client_gone_reply();
  }
  if (!generations.admitted(0)) {
    return error_reply(error_of_result(generations.take_result(0)));
  }
  Reply reply;
  reply.content_type = "text/event-stream";
  reply.headers = {{"Cache-Control", "no-cache"},
                   {std::string(kExplanationHeader), generations.explanation_id(0)}};
  const auto state = std::make_shared<Answering>(std::move(answering));
  reply.stream = [guard, state, client_gone](const SendPiece& send) {
    stream_answer(*state, *guard->generations, client_gone, send);
  };
  return reply;
}

}  // namespace hitide
