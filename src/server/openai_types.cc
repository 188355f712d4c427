#include "server/openai_types.h"

#include <cmath>
#include <initializer_list>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace hitide {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr int kJsonDepthMax = 32;
constexpr std::size_t kStopsMax = 32;
constexpr std::size_t kStopBytesMax = 1024;
constexpr std::uint32_t kCompletionTokensDefault = 16;  // OpenAI's, for completions only

// Text goes out as UTF-8 whatever came in.
std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

ApiError bad_field(std::string param, std::string message) {
  ApiError error;
  error.message = param + ": " + message;
  error.param = std::move(param);
  return error;
}

// True when objects and arrays are nested deeper than the limit; the parser's result would have to
// be walked and freed at that depth.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kJsonDepthMax) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

// Reads fields of one JSON object; the first field that does not fit is kept as the error.
class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  std::optional<ApiError> take_error() { return std::move(error_); }
  bool failed() const { return error_.has_value(); }
  void fail(std::string param, std::string message) {
    if (!error_) error_ = bad_field(std::move(param), std::move(message));
  }

  // The field, unless it is absent or null.
  const Json* find(const char* name) const {
    const auto field = object_.find(name);
    return field == object_.end() || field->is_null() ? nullptr : &*field;
  }

  void text(const char* name, std::string& out) {
    const Json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_string()) return fail(name, "must be a string");
    out = field->get<std::string>();
  }
  void text(const char* name, std::optional<std::string>& out) {
    if (find(name) == nullptr) return;
    out.emplace();
    text(name, *out);
  }
  void boolean(const char* name, bool& out) {
    const Json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_boolean()) return fail(name, "must be true or false");
    out = field->get<bool>();
  }
  void number(const char* name, float& out, double least, double most) {
    const Json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_number()) return fail(name, "must be a number");
    const double value = field->get<double>();
    if (!std::isfinite(value) || value < least || value > most) {
      return fail(name, fmt::format("{} is not in {}..{}", value, least, most));
    }
    out = static_cast<float>(value);
  }
  std::optional<std::int64_t> integer(const char* name, std::int64_t least, std::int64_t most) {
    const Json* field = find(name);
    if (field == nullptr) return std::nullopt;
    const bool fits = field->is_number_integer() &&
                      !(field->is_number_unsigned() && field->get<std::uint64_t>() > INT64_MAX);
    if (!fits) {
      fail(name, "must be a whole number");
      return std::nullopt;
    }
    const auto value = field->get<std::int64_t>();
    if (value < least || value > most) {
      fail(name, fmt::format("{} is not in {}..{}", value, least, most));
      return std::nullopt;
    }
    return value;
  }

 private:
  const Json& object_;
  std::optional<ApiError> error_;
};

// The text of a message: a string, or parts of type text.
void read_content(FieldReader& fields, const std::string& where, const Json& content,
                  std::string& out) {
  if (content.is_null()) return;
  if (content.is_string()) {
    out = content.get<std::string>();
    return;
  }
  if (!content.is_array()) {
    return fields.fail(where, "must be a string or a list of parts of type text");
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string part_name = fmt::format("{}[{}]", where, i);
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return fields.fail(part_name, "must be an object with a type");
    }
    const auto& type = part["type"].get_ref<const std::string&>();
    if (type != "text") {
      return fields.fail(part_name,
                         fmt::format("type '{}' is not supported, only text", type.substr(0, 100)));
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      return fields.fail(part_name + ".text", "must be a string");
    }
    out += part["text"].get_ref<const std::string&>();
  }
}

// The chat templates of llama.cpp take text up to the first NUL; the rest would be lost in silence.
bool refuse_nul(FieldReader& fields, const std::string& where, const std::string& text) {
  const std::size_t at = text.find('\0');
  if (at == std::string::npos) return false;
  fields.fail(where,
              fmt::format("has a NUL character (\\u0000) at byte {}; chats cannot have one", at));
  return true;
}

void read_messages(FieldReader& fields, std::vector<ChatMessage>& out) {
  const Json* messages = fields.find("messages");
  if (messages == nullptr) return fields.fail("messages", "is missing");
  if (!messages->is_array() || messages->empty()) {
    return fields.fail("messages", "must be a list of at least one message");
  }
  for (std::size_t i = 0; i < messages->size() && !fields.failed(); ++i) {
    const Json& message = (*messages)[i];
    const std::string where = fmt::format("messages[{}]", i);
    if (!message.is_object()) return fields.fail(where, "must be an object");
    if (!message.contains("role") || !message["role"].is_string()) {
      return fields.fail(where + ".role", "must be a string");
    }
    ChatMessage& read = out.emplace_back();
    read.role = message["role"].get<std::string>();
    if (refuse_nul(fields, where + ".role", read.role)) return;
    if (read.role == "developer") read.role = "system";  // OpenAI's newer name for it
    if (!message.contains("content")) return fields.fail(where + ".content", "is missing");
    read_content(fields, where + ".content", message["content"], read.content);
    if (refuse_nul(fields, where + ".content", read.content)) return;
  }
}

void read_token_ids(FieldReader& fields, const Json& list, std::vector<TokenId>& out) {
  out.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return fields.fail(fmt::format("prompt[{}]", i), "must be a token id");
    }
    out.push_back(id.get<TokenId>());
  }
}

void read_prompt(FieldReader& fields, ApiRequest& request) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) return fields.fail("prompt", "is missing");
  const bool one_of_list = prompt->is_array() && prompt->size() == 1 && !(*prompt)[0].is_number();
  if (one_of_list) prompt = &(*prompt)[0];
  if (prompt->is_string()) {
    request.prompt_text = prompt->get<std::string>();
    if (request.prompt_text.empty()) fields.fail("prompt", "is empty");
    return;
  }
  if (prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number()) {
    return read_token_ids(fields, *prompt, request.prompt_tokens);
  }
  if (prompt->is_array() && prompt->size() > 1) {
    return fields.fail("prompt", "only one prompt a request is supported");
  }
  fields.fail("prompt", "must be a string or a list of token ids, and not empty");
}

void read_stop(FieldReader& fields, std::vector<std::string>& out) {
  const Json* stop = fields.find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    out.push_back(stop->get<std::string>());
  } else if (stop->is_array() && stop->size() <= kStopsMax) {
    for (const Json& text : *stop) {
      if (!text.is_string()) return fields.fail("stop", "must be a string or a list of strings");
      out.push_back(text.get<std::string>());
    }
  } else if (stop->is_array()) {
    return fields.fail("stop", fmt::format("has more than {} strings", kStopsMax));
  } else {
    return fields.fail("stop", "must be a string or a list of strings");
  }
  for (const std::string& text : out) {
    if (text.empty() || text.size() > kStopBytesMax) {
      return fields.fail("stop", fmt::format("each string has 1..{} bytes", kStopBytesMax));
    }
  }
}

void read_sampling(FieldReader& fields, SamplingOptions& sampling) {
  fields.number("temperature", sampling.temperature, 0.0, 100.0);
  fields.number("top_p", sampling.top_p, 0.0, 1.0);
  fields.number("min_p", sampling.min_p, 0.0, 1.0);
  if (const auto top_k = fields.integer("top_k", -1, INT32_MAX)) {
    sampling.top_k = static_cast<std::int32_t>(*top_k);
  }
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    sampling.seed = static_cast<std::uint32_t>(*seed ^ (*seed >> 32));
    if (*seed >= 0 && *seed <= UINT32_MAX) sampling.seed = static_cast<std::uint32_t>(*seed);
  }
}

// Empty, false or zero.
bool says_nothing(const Json& field) {
  if (field.is_string()) return field.get_ref<const std::string&>().empty();
  if (field.is_boolean()) return !field.get<bool>();
  if (field.is_number()) return field.get<double>() == 0.0;
  return field.empty();
}

void refuse_formats(FieldReader& fields) {
  const Json* format = fields.find("response_format");
  if (format == nullptr) return;
  if (!format->is_object()) {
    return fields.fail("response_format", "must be an object such as {\"type\": \"text\"}");
  }
  const auto type = format->find("type");
  if (type == format->end() || !type->is_string()) {
    return fields.fail("response_format.type", "must be a string");
  }
  if (*type != "text") {
    fields.fail("response_format", "only {\"type\": \"text\"} is supported");
  }
}

// Fields that change the answer and are not here: silence would be a wrong answer.
void refuse_unsupported(FieldReader& fields) {
  for (const char* name : {"n", "best_of"}) {
    const auto count = fields.integer(name, 1, INT32_MAX);
    if (count && *count != 1) fields.fail(name, "only 1 is supported");
  }
  for (const char* name : {"presence_penalty", "frequency_penalty", "top_logprobs"}) {
    float value = 0;
    fields.number(name, value, -100.0, 100.0);
    if (value != 0) fields.fail(name, "only 0 is supported");
  }
  const Json* logprobs = fields.find("logprobs");
  if (logprobs != nullptr && *logprobs != false) fields.fail("logprobs", "is not supported");
  for (const char* name : {"tools", "functions", "logit_bias", "suffix", "audio", "guided_json"}) {
    const Json* field = fields.find(name);
    if (field != nullptr && !says_nothing(*field)) fields.fail(name, "is not supported");
  }
  bool echo = false;
  fields.boolean("echo", echo);
  if (echo) fields.fail("echo", "is not supported");
  refuse_formats(fields);
}

void read_stream(FieldReader& fields, ApiRequest& request) {
  fields.boolean("stream", request.stream);
  const Json* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.fail("stream_options", "must be an object");
  if (!request.stream) return fields.fail("stream_options", "goes with stream only");
  const auto usage = options->find("include_usage");
  if (usage == options->end() || usage->is_null()) return;
  if (!usage->is_boolean()) {
    return fields.fail("stream_options.include_usage", "must be true or false");
  }
  request.include_usage = usage->get<bool>();
}

void read_fields(FieldReader& fields, ApiRequest& request) {
  fields.text("model", request.model);
  if (request.kind == ApiKind::chat) {
    read_messages(fields, request.messages);
  } else {
    read_prompt(fields, request);
    request.generation.tokens_max = kCompletionTokensDefault;
  }
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto tokens = fields.integer(name, 1, INT32_MAX)) {
      request.generation.tokens_max = static_cast<std::uint32_t>(*tokens);
    }
  }
  read_sampling(fields, request.generation.sampling);
  read_stop(fields, request.generation.stop);
  read_stream(fields, request);
  fields.boolean("ignore_eos", request.generation.ignore_eos);
  fields.text("cache_salt", request.generation.cache_salt);
  fields.text("extra_key", request.generation.extra_key);
  if (const auto priority = fields.integer("priority", INT32_MIN, INT32_MAX)) {
    request.generation.priority = static_cast<std::int32_t>(*priority);
  }
  refuse_unsupported(fields);
}

ApiError bad_body(std::string message) {
  ApiError error;
  error.message = std::move(message);
  return error;
}

std::string_view finish_text(FinishReason finish) {
  return finish == FinishReason::length ? "length" : "stop";
}

OrderedJson usage_of(const AnswerHead& head, const GenerationResult& result) {
  const auto completion = static_cast<std::uint64_t>(result.tokens.size());
  OrderedJson details = {{"cached_tokens", result.cached_tokens}};
  if (head.cache_report) {
    details["cached_tokens_details"] = {{"device", result.cached_device},
                                        {"host", result.cached_host},
                                        {"storage", result.cached_storage},
                                        {"storage_backend", head.storage_backend}};
  }
  OrderedJson usage = {{"prompt_tokens", result.prompt_tokens},
                       {"completion_tokens", completion},
                       {"total_tokens", result.prompt_tokens + completion},
                       {"prompt_tokens_details", std::move(details)}};
  if (head.cache_report) {
    usage["hitide"] = {{"explanation_id", result.explanation_id},
                       {"saved_ms", to_milliseconds(result.saved)}};
  }
  return usage;
}

OrderedJson head_json(const AnswerHead& head, bool chunk) {
  const char* object = "text_completion";
  if (head.kind == ApiKind::chat) object = chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

// One choice of a streamed part; `delta` is what is new.
std::string chunk_json(const AnswerHead& head, OrderedJson delta, OrderedJson finish) {
  OrderedJson choice = {{"index", 0}};
  if (head.kind == ApiKind::chat) {
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = delta.value("content", "");
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = std::move(finish);
  OrderedJson chunk = head_json(head, true);
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (head.include_usage) chunk["usage"] = nullptr;
  return dump(chunk);
}

}  // namespace

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
  };
  return dump({{"error",
                {{"message", error.message},
                 {"type", error.type},
                 {"param", or_null(error.param)},
                 {"code", or_null(error.code)}}}});
}

ApiError error_of(const Status& status) {
  ApiError error;
  error.message = status.message();
  switch (status.code()) {
    case StatusCode::invalid_argument:
      return error;
    case StatusCode::not_found:
      error.status = 404;
      error.code = "not_found";
      return error;
    case StatusCode::resource_exhausted:
    case StatusCode::unavailable:
    case StatusCode::failed_precondition:
    case StatusCode::deadline_exceeded:
    case StatusCode::cancelled:
      error.status = 503;
      error.type = "server_error";
      error.code = "unavailable";
      return error;
    default:
      error.status = 500;
      error.type = "server_error";
      error.code = "internal";
      return error;
  }
}

ApiParse parse_request(ApiKind kind, std::string_view body) {
  ApiParse parse;
  parse.request.kind = kind;
  if (too_deep(body)) {
    parse.error = bad_body(fmt::format("the body is nested deeper than {} levels", kJsonDepthMax));
    return parse;
  }
  Json json;
  try {
    json = Json::parse(body);
  } catch (const std::exception& error) {
    // The library's text may quote the body; at most a line of it is of use.
    parse.error = bad_body(
        fmt::format("the body is not valid JSON: {}", std::string(error.what()).substr(0, 300)));
    return parse;
  }
  if (!json.is_object()) {
    parse.error = bad_body("the body must be a JSON object");
    return parse;
  }
  try {
    FieldReader fields(json);
    read_fields(fields, parse.request);
    parse.error = fields.take_error();
  } catch (const Json::exception& error) {
    parse.error = bad_body(
        fmt::format("a field is not of its type: {}", std::string(error.what()).substr(0, 300)));
  }
  return parse;
}

std::string answer_json(const AnswerHead& head, std::string_view text,
                        const GenerationResult& result) {
  OrderedJson choice = {{"index", 0}};
  if (head.kind == ApiKind::chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_text(result.finish);
  OrderedJson answer = head_json(head, false);
  answer["choices"] = OrderedJson::array({std::move(choice)});
  answer["usage"] = usage_of(head, result);
  return dump(answer);
}

std::string role_chunk_json(const AnswerHead& head) {
  return chunk_json(head, {{"role", "assistant"}, {"content", ""}}, nullptr);
}

std::string text_chunk_json(const AnswerHead& head, std::string_view text) {
  return chunk_json(head, {{"content", text}}, nullptr);
}

std::string finish_chunk_json(const AnswerHead& head, FinishReason finish) {
  return chunk_json(head, OrderedJson::object(), finish_text(finish));
}

std::string usage_chunk_json(const AnswerHead& head, const GenerationResult& result) {
  OrderedJson chunk = head_json(head, true);
  chunk["choices"] = OrderedJson::array();
  chunk["usage"] = usage_of(head, result);
  return dump(chunk);
}

}  // namespace hitide
