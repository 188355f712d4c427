#include "server/openai_types.h"

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "server/json_grammar.h"

namespace hitide {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr int kJsonDepthMax = 32;
constexpr std::size_t kStopsMax = 32;
constexpr std::size_t kStopBytesMax = 1024;
constexpr std::size_t kStopTokensMax = 128;
constexpr std::size_t kBiasesMax = 1024;
constexpr std::int64_t kLogprobsMax = 20;
constexpr std::size_t kChoicesMax = 128;
constexpr std::uint32_t kCompletionTokensDefault = 16;  // OpenAI's, for completions only

// Text goes out as UTF-8 whatever came in.
std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

ApiError bad_field(std::string param, std::string_view message) {
  ApiError error;
  error.message = fmt::format("{}: {}", param, message);
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
  void fail(std::string param, std::string_view message) {
    if (!error_) error_ = bad_field(std::move(param), message);
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

void read_token_ids(FieldReader& fields, const std::string& where, const Json& list,
                    std::vector<TokenId>& out) {
  out.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return fields.fail(fmt::format("{}[{}]", where, i), "must be a token id");
    }
    out.push_back(id.get<TokenId>());
  }
}

// One prompt: text, or token ids.
void read_one_prompt(FieldReader& fields, const std::string& where, const Json& prompt,
                     std::vector<ApiPrompt>& out) {
  ApiPrompt& read = out.emplace_back();
  if (prompt.is_string()) {
    read.text = prompt.get<std::string>();
    if (read.text.empty()) fields.fail(where, "is empty");
    return;
  }
  if (prompt.is_array() && !prompt.empty() && prompt[0].is_number()) {
    return read_token_ids(fields, where, prompt, read.tokens);
  }
  fields.fail(where, "must be a string or a list of token ids, and not empty");
}

void read_prompts(FieldReader& fields, ApiRequest& request) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) return fields.fail("prompt", "is missing");
  const bool several = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
  if (!several) return read_one_prompt(fields, "prompt", *prompt, request.prompts);
  if (prompt->size() > kChoicesMax) {
    return fields.fail("prompt", fmt::format("has more than {} prompts", kChoicesMax));
  }
  for (std::size_t i = 0; i < prompt->size() && !fields.failed(); ++i) {
    const std::string where = prompt->size() == 1 ? "prompt" : fmt::format("prompt[{}]", i);
    read_one_prompt(fields, where, (*prompt)[i], request.prompts);
  }
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

// {"TOKEN ID": bias}
void read_biases(FieldReader& fields, SamplingOptions& sampling) {
  const Json* biases = fields.find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object()) {
    return fields.fail("logit_bias", "must be an object of numbers by token id");
  }
  if (biases->size() > kBiasesMax) {
    return fields.fail("logit_bias", fmt::format("has more than {} tokens", kBiasesMax));
  }
  for (const auto& [key, value] : biases->items()) {
    TokenId token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0) {
      return fields.fail("logit_bias", fmt::format("'{}' is no token id", key.substr(0, 100)));
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100.0)) {
      return fields.fail("logit_bias",
                         fmt::format("the bias of token {} is no number in -100..100", token));
    }
    sampling.logit_bias.emplace_back(token, value.get<float>());
  }
}

void read_sampling(FieldReader& fields, SamplingOptions& sampling) {
  fields.number("temperature", sampling.temperature, 0.0, 100.0);
  fields.number("top_p", sampling.top_p, 0.0, 1.0);
  fields.number("min_p", sampling.min_p, 0.0, 1.0);
  fields.number("presence_penalty", sampling.presence_penalty, -2.0, 2.0);
  fields.number("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0);
  fields.number("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0);
  if (const auto top_k = fields.integer("top_k", -1, INT32_MAX)) {
    sampling.top_k = static_cast<std::int32_t>(*top_k);
  }
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    sampling.seed = static_cast<std::uint32_t>(*seed ^ (*seed >> 32));
    if (*seed >= 0 && *seed <= UINT32_MAX) sampling.seed = static_cast<std::uint32_t>(*seed);
  }
  for (const char* name : {"min_tokens", "min_new_tokens"}) {
    if (const auto tokens = fields.integer(name, 0, INT32_MAX)) {
      sampling.tokens_min = static_cast<std::uint32_t>(*tokens);
    }
  }
  read_biases(fields, sampling);
}

void read_stop_tokens(FieldReader& fields, std::vector<TokenId>& out) {
  const Json* ids = fields.find("stop_token_ids");
  if (ids == nullptr) return;
  if (!ids->is_array() || ids->size() > kStopTokensMax) {
    return fields.fail("stop_token_ids",
                       fmt::format("must be a list of at most {} token ids", kStopTokensMax));
  }
  read_token_ids(fields, "stop_token_ids", *ids, out);
}

// Chats say logprobs: true, top_logprobs: N; completions logprobs: N.
void read_logprobs(FieldReader& fields, ApiRequest& request) {
  std::optional<std::uint32_t>& wanted = request.generation.top_logprobs;
  const Json* logprobs = fields.find("logprobs");
  const auto top = fields.integer("top_logprobs", 0, kLogprobsMax);
  if (request.kind == ApiKind::completion) {
    if (top.value_or(0) != 0) return fields.fail("top_logprobs", "is for chats; see logprobs");
    if (logprobs == nullptr || *logprobs == false) return;
    if (const auto count = fields.integer("logprobs", 0, kLogprobsMax)) {
      wanted = static_cast<std::uint32_t>(*count);
    }
    return;
  }
  bool on = false;
  fields.boolean("logprobs", on);
  if (!on && top.value_or(0) != 0) return fields.fail("top_logprobs", "goes with logprobs only");
  if (on) wanted = static_cast<std::uint32_t>(top.value_or(0));
}

void read_choices(FieldReader& fields, ApiRequest& request) {
  const auto most = static_cast<std::int64_t>(kChoicesMax);
  request.choices = static_cast<std::uint32_t>(fields.integer("n", 1, most).value_or(1));
  const auto best_of = fields.integer("best_of", 1, most);
  if (best_of && *best_of != request.choices) {
    fields.fail("best_of", "only the value of n is supported");
  }
  if (request.prompts.size() * request.choices > kChoicesMax) {
    fields.fail("n", fmt::format("{} prompts of {} choices are more than {}",
                                 request.prompts.size(), request.choices, kChoicesMax));
  }
}

// Empty, false or zero.
bool says_nothing(const Json& field) {
  if (field.is_string()) return field.get_ref<const std::string&>().empty();
  if (field.is_boolean()) return !field.get<bool>();
  if (field.is_number()) return field.get<double>() == 0.0;
  return field.empty();
}

// The grammar of JSON that a schema at `pointer` of `document` describes.
void read_schema(FieldReader& fields, const std::string& where, std::string_view document,
                 const std::string& pointer, std::string& grammar) {
  Result<std::string> read = json_schema_grammar(document, pointer);
  if (!read.ok()) return fields.fail(where, std::string(read.status().message()));
  grammar = std::move(*read);
}

void read_response_format(FieldReader& fields, std::string_view body, std::string& grammar) {
  const Json* format = fields.find("response_format");
  if (format == nullptr) return;
  if (!format->is_object()) {
    return fields.fail("response_format", "must be an object such as {\"type\": \"text\"}");
  }
  const auto type = format->find("type");
  if (type == format->end() || !type->is_string()) {
    return fields.fail("response_format.type", "must be a string");
  }
  if (*type == "text") return;
  if (*type == "json_object") {
    grammar = json_object_grammar();
    return;
  }
  if (*type != "json_schema") {
    return fields.fail("response_format.type", "must be text, json_object or json_schema");
  }
  const auto named = format->find("json_schema");
  if (named == format->end() || !named->is_object() || !named->contains("schema")) {
    return fields.fail("response_format.json_schema", "must be an object with a schema");
  }
  read_schema(fields, "response_format.json_schema.schema", body,
              "/response_format/json_schema/schema", grammar);
}

// What the text must follow; one field of these at most.
void read_grammar(FieldReader& fields, std::string_view body, ApiRequest& request) {
  std::string& grammar = request.generation.grammar;
  read_response_format(fields, body, grammar);
  std::string_view given = grammar.empty() ? "" : "response_format";
  const auto only = [&](const char* name) {
    if (!given.empty()) fields.fail(name, fmt::format("does not go with {}", given));
    given = name;
  };
  for (const char* name : {"json_schema", "guided_json"}) {
    const Json* schema = fields.find(name);
    if (schema == nullptr || fields.failed()) continue;
    only(name);
    if (!schema->is_string()) {
      read_schema(fields, name, body, std::string("/") + name, grammar);
    } else if (const auto& text = schema->get_ref<const std::string&>(); too_deep(text)) {
      fields.fail(name, fmt::format("is nested deeper than {} levels", kJsonDepthMax));
    } else {
      read_schema(fields, name, text, "", grammar);
    }
  }
  for (const char* name : {"grammar", "ebnf", "guided_grammar"}) {
    if (fields.find(name) == nullptr || fields.failed()) continue;
    only(name);
    fields.text(name, grammar);
    if (grammar.empty()) fields.fail(name, "is empty");
  }
  if (given.empty() || fields.failed()) return;
  request.grammar_field = given;
  const GenerationRequest& generation = request.generation;
  if (generation.ignore_eos) fields.fail("ignore_eos", fmt::format("does not go with {}", given));
  if (generation.sampling.tokens_min > 0) {
    fields.fail("min_tokens", fmt::format("does not go with {}", given));
  }
}

// Fields that change the answer and are not here: silence would be a wrong answer.
void refuse_unsupported(FieldReader& fields) {
  for (const char* name :
       {"tools", "functions", "suffix", "audio", "regex", "guided_regex", "guided_choice",
        "structural_tag", "stop_regex", "continue_final_message", "lora_path", "session_params",
        "custom_logit_processor", "chat_template", "chat_template_kwargs"}) {
    const Json* field = fields.find(name);
    if (field != nullptr && !says_nothing(*field)) fields.fail(name, "is not supported");
  }
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

void read_fields(FieldReader& fields, std::string_view body, ApiRequest& request) {
  GenerationRequest& generation = request.generation;
  fields.text("model", request.model);
  if (request.kind == ApiKind::chat) {
    read_messages(fields, request.messages);
  } else {
    read_prompts(fields, request);
    generation.tokens_max = kCompletionTokensDefault;
  }
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto tokens = fields.integer(name, 1, INT32_MAX)) {
      generation.tokens_max = static_cast<std::uint32_t>(*tokens);
    }
  }
  read_sampling(fields, generation.sampling);
  read_stop(fields, generation.stop);
  read_stop_tokens(fields, generation.stop_tokens);
  for (const char* name : {"no_stop_trim", "include_stop_str_in_output"}) {
    fields.boolean(name, generation.keep_stop);
  }
  read_stream(fields, request);
  read_choices(fields, request);
  read_logprobs(fields, request);
  fields.boolean("echo", request.echo);
  if (request.echo && request.kind == ApiKind::chat) fields.fail("echo", "is for completions");
  if (request.echo && generation.top_logprobs) fields.fail("echo", "does not go with logprobs");
  fields.boolean("ignore_eos", generation.ignore_eos);
  fields.text("cache_salt", generation.cache_salt);
  fields.text("extra_key", generation.extra_key);
  if (const auto priority = fields.integer("priority", INT32_MIN, INT32_MAX)) {
    generation.priority = static_cast<std::int32_t>(*priority);
  }
  refuse_unsupported(fields);
  if (!fields.failed()) read_grammar(fields, body, request);
}

ApiError bad_body(std::string message) {
  ApiError error;
  error.message = std::move(message);
  return error;
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
    read_fields(fields, body, parse.request);
    parse.error = fields.take_error();
  } catch (const Json::exception& error) {
    parse.error = bad_body(
        fmt::format("a field is not of its type: {}", std::string(error.what()).substr(0, 300)));
  }
  return parse;
}

}  // namespace hitide
