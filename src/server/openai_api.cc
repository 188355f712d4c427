#include "server/openai_api.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "server/sse.h"

namespace hitide {
namespace {

constexpr Duration kClientCheck = std::chrono::milliseconds(100);
constexpr std::string_view kExplanationHeader = "X-HiTide-Explanation-Id";

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ApiError busy_error(std::uint32_t requests_max) {
  ApiError error;
  error.status = 503;
  error.type = "server_error";
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

bool is_answer(const GenerationResult& result) {
  return result.finish == FinishReason::stop || result.finish == FinishReason::length;
}

// Cancels the generation when the last owner of a reply's stream goes, whether it has run or not.
struct CancelOnExit {
  explicit CancelOnExit(std::shared_ptr<Generation> started) : generation(std::move(started)) {}
  CancelOnExit(const CancelOnExit&) = delete;
  CancelOnExit& operator=(const CancelOnExit&) = delete;
  ~CancelOnExit() { generation->cancel(); }
  const std::shared_ptr<Generation> generation;
};

// Streams the answer; returns early when sending fails.
void stream_answer(const AnswerHead& head, bool include_usage, Generation& generation,
                   const ClientGone& client_gone, const SendPiece& send) {
  if (head.kind == ApiKind::chat && !send(sse_event(role_chunk_json(head)))) return;
  for (;;) {
    const Generation::Progress progress = generation.take(kClientCheck);
    if (!progress.text.empty() && !send(sse_event(text_chunk_json(head, progress.text)))) return;
    if (progress.done) break;
    if (client_gone()) return;
  }
  const GenerationResult result = generation.take_result();
  if (is_answer(result)) {
    if (!send(sse_event(finish_chunk_json(head, result.finish)))) return;
    if (include_usage && !send(sse_event(usage_chunk_json(head, result)))) return;
  } else if (!send(sse_event(error_json(error_of_result(result))))) {
    return;
  }
  send(sse_done());
}

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

std::optional<ApiError> OpenAiApi::tokenize(ApiRequest& request) {
  GenerationRequest& generation = request.generation;
  std::size_t bytes = request.prompt_text.size();
  for (const ChatMessage& message : request.messages) bytes += message.content.size();
  if (auto error = check_prompt_bytes(request, bytes)) return error;
  if (!request.prompt_tokens.empty()) {
    generation.prompt = std::move(request.prompt_tokens);
  } else if (request.kind == ApiKind::chat) {
    const Result<std::string> text = engine_.apply_chat_template(request.messages);
    if (!text.ok()) {
      ApiError error = error_of(text.status().with_context("messages"));
      if (error.status == 400) error.param = "messages";
      return error;
    }
    if (auto error = check_prompt_bytes(request, text->size())) return error;
    generation.prompt = engine_.tokenize(*text, true, true);
  } else {
    generation.prompt = engine_.tokenize(request.prompt_text, true, true);
  }
  const std::size_t tokens = generation.prompt.size();
  if (info_.context_length == 0 || tokens < info_.context_length) return std::nullopt;
  return too_long(request.kind,
                  fmt::format("the prompt has {} tokens; the context of {} leaves no room", tokens,
                              info_.context_length));
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
  body = {};
  if (parse.error) {
    prepared.error = std::move(parse.error);
    return prepared;
  }
  if (in_flight_->fetch_add(1) >= requests_max_) {
    in_flight_->fetch_sub(1);
    prepared.error = busy_error(requests_max_);
    return prepared;
  }
  prepared.token =
      std::shared_ptr<void>(nullptr, [count = in_flight_](void*) { count->fetch_sub(1); });
  prepared.request = std::move(parse.request);
  prepared.head = head_for(prepared.request);
  prepared.error = tokenize(prepared.request);
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
  head.storage_backend = info_.storage_backend;
  return head;
}

Reply OpenAiApi::whole_answer(const AnswerHead& head, Generation& generation,
                              const ClientGone& client_gone) {
  std::string text;
  for (;;) {
    Generation::Progress progress = generation.take(kClientCheck);
    text += progress.text;
    if (progress.done) break;
    if (client_gone()) {
      ApiError error;
      error.status = 400;
      error.message = "the client closed the connection";
      return error_reply(error);
    }
  }
  const GenerationResult result = generation.take_result();
  if (!is_answer(result)) return error_reply(error_of_result(result));
  Reply reply = json_reply(answer_json(head, text, result));
  reply.headers.emplace_back(kExplanationHeader, result.explanation_id);
  return reply;
}

Reply OpenAiApi::answer(ApiKind kind, RequestBody body, const ClientGone& client_gone) {
  Prepared prepared = prepare(kind, std::move(body));
  if (prepared.error) return error_reply(*prepared.error);
  return start(prepared, client_gone);
}

Reply OpenAiApi::start(Prepared& prepared, const ClientGone& client_gone) {
  const ApiRequest& request = prepared.request;
  const AnswerHead& head = prepared.head;
  prepared.request.generation.label = head.id;
  Result<std::shared_ptr<Generation>> started =
      Generation::start(engine_, std::move(prepared.request.generation), prepared.token);
  if (!started.ok()) return error_reply(error_of(started.status()));
  const auto guard = std::make_shared<CancelOnExit>(std::move(*started));
  Generation& generation = *guard->generation;
  if (!request.stream) return whole_answer(head, generation, client_gone);

  Generation::Progress progress = generation.wait_admitted(kClientCheck);
  while (!progress.admitted && !progress.done && !client_gone()) {
    progress = generation.wait_admitted(kClientCheck);
  }
  if (progress.done && !progress.admitted) {
    const GenerationResult result = generation.take_result();
    return error_reply(error_of_result(result));
  }
  Reply reply;
  reply.content_type = "text/event-stream";
  reply.headers = {{"Cache-Control", "no-cache"},
                   {std::string(kExplanationHeader), generation.explanation_id()}};
  reply.stream = [head, guard, client_gone,
                  include_usage = request.include_usage](const SendPiece& send) {
    stream_answer(head, include_usage, *guard->generation, client_gone, send);
  };
  return reply;
}

}  // namespace hitide
