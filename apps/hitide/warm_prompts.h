// The prompts of `hitide warm`: a text file, its lines, or JSON lines.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hitide/result.h>

namespace hitide::cli {

struct WarmPrompt {
  std::size_t line = 0;                                            // where it begins, from 1
  std::string text = {};                                           // of a completion; empty: a chat
  std::vector<std::pair<std::string, std::string>> messages = {};  // of a chat: role, content
  std::optional<std::string> cache_salt = {};
  std::optional<std::string> extra_key = {};
};

// `format`: "text", the whole file is one prompt; "lines", each line that is not empty; "jsonl", a
// line is a JSON string, or an object with `prompt` or `messages`, and `cache_salt` and
// `extra_key`. invalid_argument names the line.
Result<std::vector<WarmPrompt>> warm_prompts(const std::string& content, const std::string& format);

// What "auto" means for a file of that name; any other format as it is.
std::string prompts_format(const std::string& format, const std::string& file);

// The body of a request that computes the prompt, and one token.
std::string warm_body(const WarmPrompt& prompt);

}  // namespace hitide::cli
