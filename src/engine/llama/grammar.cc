#include "engine/llama/grammar.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string_view>

#include <fmt/format.h>
#include <llama.h>

namespace hitide {
namespace {

constexpr std::size_t kBytesMax = 256u << 10;

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

// What llama.cpp's parser has no bounds for: nesting, counts that end before they begin, and the
// copies that a repetition makes of the literal or set before it.
class Shape {
 public:
  explicit Shape(std::string_view text) : text_(text) {}

  Status check() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '[') {
        last_size_ = skip_to(c == '"' ? '"' : ']');
      } else if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '{') {
        HITIDE_RETURN_IF_ERROR(repetition());
      } else if (c == '+' || c == '*' || c == '?') {
        HITIDE_RETURN_IF_ERROR(copy(1, 1));
        ++at_;
      } else {
        if (c == '(' && ++depth_ > kNestingMax) {
          return refuse(fmt::format("the grammar nests more than {} parentheses", kNestingMax));
        }
        if (c == ')') --depth_;
        if (c > ' ') last_size_ = 1;  // of rules and groups the number is copied
        ++at_;
      }
    }
    return {};
  }

 private:
  // Behind the literal or set that begins here; its size.
  std::size_t skip_to(char end) {
    const std::size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != end) at_ += text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_ + 1, text_.size());
    return at_ - begin;
  }
  // {m}, {m,} or {m,n}; what is none is the parser's to refuse.
  Status repetition() {
    const std::size_t end = std::min(text_.find('}', at_), text_.size());
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = std::min(end + 1, text_.size());
    const std::size_t comma = inside.find(',');
    const std::size_t least = count(inside.substr(0, comma));
    const std::size_t most =
        comma == std::string_view::npos || inside.find_first_of("0123456789", comma) == inside.npos
            ? least
            : count(inside.substr(comma + 1));
    if (least > kTimesMax || most > kTimesMax || most < least) {
      return refuse(
          fmt::format("the grammar repeats {{{}}}: there are counts up to {}, the larger "
                      "one last",
                      inside.substr(0, 100), kTimesMax));
    }
    return copy(least, std::max<std::size_t>(most, 1));
  }
  // What was repeated is one thing for a repetition behind it.
  Status copy(std::size_t least, std::size_t most) {
    copies_ += last_size_ * most;
    last_size_ = last_size_ * std::max<std::size_t>(least, 1) + 1;
    if (copies_ > kCopiesMax) return refuse("the grammar repeats too much, or texts too long");
    return {};
  }
  static std::size_t count(std::string_view text) {
    std::size_t value = 0;
    for (const char c : text) {
      if (c >= '0' && c <= '9')
        value = std::min<std::size_t>(kTimesMax + 1, value * 10 + (c - '0'));
    }
    return value;
  }

  static constexpr int kNestingMax = 64;  // its parser takes a group apart by recursion
  static constexpr std::size_t kTimesMax = 1000;
  static constexpr std::size_t kCopiesMax = 400'000;
  const std::string_view text_;
  std::size_t at_ = 0;
  std::size_t last_size_ = 1;
  std::size_t copies_ = 0;
  int depth_ = 0;
};

}  // namespace

Result<std::unique_ptr<Grammar>> Grammar::parse(const llama_vocab& vocabulary,
                                                const std::string& text) {
  if (text.size() > kBytesMax) {
    return refuse(fmt::format("the grammar has {} bytes, more than {}", text.size(), kBytesMax));
  }
  if (text.find('\0') != std::string::npos) return refuse("the grammar has a NUL character");
  HITIDE_RETURN_IF_ERROR(Shape(text).check());
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
