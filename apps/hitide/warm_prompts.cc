#include "warm_prompts.h"

#include <exception>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hitide::cli {
namespace {

Status wrong(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

Status read_text(const nlohmann::json& json, const char* name, std::optional<std::string>& out) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return {};
  if (!found->is_string()) return wrong(fmt::format("'{}' is not a text", name));
  out = found->get<std::string>();
  return {};
}

Status read_messages(const nlohmann::json& json, WarmPrompt& prompt) {
  if (!json.is_array() || json.empty()) return wrong("'messages' is not a list of messages");
  for (const nlohmann::json& message : json) {
    const bool plain = message.is_object() && message.contains("role") &&
                       message.contains("content") && message["role"].is_string() &&
                       message["content"].is_string();
    if (!plain) return wrong("a message has not a 'role' and a 'content' that are texts");
    prompt.messages.emplace_back(message["role"].get<std::string>(),
                                 message["content"].get<std::string>());
  }
  return {};
}

Status read_line(const std::string& line, WarmPrompt& prompt) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_string()) {
    prompt.text = json.get<std::string>();
  } else if (!json.is_object()) {
    return wrong("neither a JSON string nor an object");
  } else if (json.contains("prompt") == json.contains("messages")) {
    return wrong("one of 'prompt' and 'messages' must be in it");
  } else {
    HITIDE_RETURN_IF_ERROR(read_text(json, "cache_salt", prompt.cache_salt));
    HITIDE_RETURN_IF_ERROR(read_text(json, "extra_key", prompt.extra_key));
    if (json.contains("messages")) return read_messages(json["messages"], prompt);
    std::optional<std::string> text;
    HITIDE_RETURN_IF_ERROR(read_text(json, "prompt", text));
    prompt.text = text.value_or("");
  }
  return prompt.text.empty() ? wrong("the prompt is empty") : Status();
}

}  // namespace

Result<std::vector<WarmPrompt>> warm_prompts(const std::string& content,
                                             const std::string& format) {
  std::vector<WarmPrompt> prompts;
  if (format == "text") {
    if (!content.empty()) prompts.push_back({.line = 1, .text = content});
  } else {
    std::istringstream lines(content);
    std::size_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      WarmPrompt prompt{.line = number};
      if (format == "lines") {
        prompt.text = line;
      } else if (const Status status = read_line(line, prompt); !status.ok()) {
        return status.with_context(fmt::format("line {}", number));
      }
      prompts.push_back(std::move(prompt));
    }
  }
  if (prompts.empty()) return wrong("there is no prompt in it");
  return prompts;
}

std::string prompts_format(const std::string& format, const std::string& file) {
  if (format != "auto") return format;
  return file.ends_with(".jsonl") ? "jsonl" : "text";
}

std::string warm_body(const WarmPrompt& prompt) {
  nlohmann::json body = {{"model", "any"}, {"max_tokens", 1}, {"temperature", 0}};
  if (prompt.messages.empty()) {
    body["prompt"] = prompt.text;
  } else {
    for (const auto& [role, content] : prompt.messages) {
      body["messages"].push_back({{"role", role}, {"content", content}});
    }
  }
  if (prompt.cache_salt) body["cache_salt"] = *prompt.cache_salt;
  if (prompt.extra_key) body["extra_key"] = *prompt.extra_key;
  return body.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace hitide::cli
