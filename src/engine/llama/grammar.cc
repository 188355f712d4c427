#include "engine/llama/grammar.h"

#include <cmath>
#include <exception>
#include <limits>
#include <string_view>

#include <fmt/format.h>
#include <llama.h>

namespace hitide {
namespace {

constexpr std::size_t kBytesMax = 256u << 10;
constexpr int kNestingMax = 64;  // llama.cpp's parser takes a group apart by recursion

// Deepest nesting of parentheses outside of literals, character sets and comments.
int nesting_of(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  char inside = '\0';  // what ends it; none
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside != '\0') {
      if (c == '\\' && inside != '\n') {
        ++i;
      } else if (c == inside) {
        inside = '\0';
      }
    } else if (c == '"') {
      inside = '"';
    } else if (c == '[') {
      inside = ']';
    } else if (c == '#') {
      inside = '\n';
    } else if (c == '(') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ')') {
      --depth;
    }
  }
  return deepest;
}

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

}  // namespace

Result<std::unique_ptr<Grammar>> Grammar::parse(const llama_vocab& vocabulary,
                                                const std::string& text) {
  if (text.size() > kBytesMax) {
    return refuse(fmt::format("the grammar has {} bytes, more than {}", text.size(), kBytesMax));
  }
  if (text.find('\0') != std::string::npos) return refuse("the grammar has a NUL character");
  if (nesting_of(text) > kNestingMax) {
    return refuse(fmt::format("the grammar nests more than {} parentheses", kNestingMax));
  }
  llama_sampler* sampler = nullptr;
  // An empty text means no grammar to llama.cpp.
  if (!text.empty()) {
    try {
      sampler = llama_sampler_init_grammar(&vocabulary, text.c_str(), "root");
    } catch (const std::exception& error) {
      return refuse(fmt::format("the grammar cannot be used: {}", error.what()));
    }
  }
  if (sampler == nullptr) {
    return refuse(
        "the grammar cannot be used: it is no GBNF, has no rule `root`, names a rule that is not "
        "there, begins a rule with itself, or repeats too often; the server's log says more");
  }
  return std::unique_ptr<Grammar>(new Grammar(vocabulary, sampler));
}

Grammar::~Grammar() { llama_sampler_free(sampler_); }

bool Grammar::allows(TokenId token) const {
  // Tokens that stand for no text are matched by their names there, and would come out as nothing.
  const bool ends = llama_vocab_is_eog(&vocabulary_, token);
  if (!ends && llama_vocab_is_control(&vocabulary_, token)) return false;
  llama_token_data candidate{token, 0.0f, 0.0f};
  llama_token_data_array one{&candidate, 1, -1, false};
  llama_sampler_apply(sampler_, &one);
  return std::isfinite(candidate.logit);
}

bool Grammar::mask(std::span<float> logits) const {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::vector<llama_token_data> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    const bool ends = llama_vocab_is_eog(&vocabulary_, token);
    if (!ends && llama_vocab_is_control(&vocabulary_, token)) {
      logits[i] = kNever;
    } else {
      candidates.push_back({token, 0.0f, 0.0f});
    }
  }
  llama_token_data_array all{candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(sampler_, &all);
  bool any = false;
  for (std::size_t i = 0; i < all.size; ++i) {
    float& logit = logits[static_cast<std::size_t>(all.data[i].id)];
    if (!std::isfinite(all.data[i].logit)) logit = kNever;
    any = any || logit > kNever;
  }
  return any;
}

bool Grammar::accept(TokenId token) {
  if (llama_vocab_is_eog(&vocabulary_, token)) return true;  // nothing comes behind it
  try {
    llama_sampler_accept(sampler_, token);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace hitide
