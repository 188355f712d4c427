#include "engine_prompt.h"

#include <string>

namespace hitide::cli {

Result<std::vector<TokenId>> prompt_tokens(const Engine& engine, const WarmPrompt& prompt) {
  if (prompt.messages.empty()) return engine.tokenize(prompt.text, true, true);
  std::vector<ChatMessage> messages;
  for (const auto& [role, content] : prompt.messages) messages.push_back({role, content});
  HITIDE_ASSIGN_OR_RETURN(const std::string text, engine.apply_chat_template(messages));
  return engine.tokenize(text, true, true);
}

}  // namespace hitide::cli
