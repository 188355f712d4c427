#include "engine/llama/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace hitide {
namespace {

constexpr float kNone = -9999.0f;  // OpenAI's word for minus infinity, which JSON has not

}  // namespace

TokenLogprob logprob_of(std::span<const float> logits, TokenId token, std::uint32_t top) {
  float max = -std::numeric_limits<float>::infinity();
  for (const float logit : logits) {
    if (logit > max) max = logit;
  }
  double sum = 0.0;
  if (std::isfinite(max)) {
    for (const float logit : logits) {
      if (!std::isnan(logit)) sum += std::exp(static_cast<double>(logit) - max);
    }
  }
  const auto of = [&](TokenId id) {
    const float logit = logits[static_cast<std::size_t>(id)];
    if (!(sum > 0.0) || !std::isfinite(logit)) return kNone;
    return std::max(kNone, static_cast<float>(static_cast<double>(logit) - max - std::log(sum)));
  };
  TokenLogprob result;
  result.token = token;
  result.logprob = of(token);
  const std::size_t count = std::min<std::size_t>(top, logits.size());
  if (count == 0) return result;
  std::vector<TokenId> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i);
  const auto value = [&](TokenId id) {
    const float logit = logits[static_cast<std::size_t>(id)];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
      [&](TokenId a, TokenId b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
  for (std::size_t i = 0; i < count; ++i) {
    result.top.push_back({.token = ids[i], .logprob = of(ids[i]), .bytes = {}});
  }
  return result;
}

}  // namespace hitide
