// Engine: computes text for prompts. The server knows this seam only.
//
// Threading: every method may be called from any thread. Sinks are called on the engine's step
// thread, must be short, and must not call back into the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hitide/explanation.h>
#include <hitide/model_spec.h>
#include <hitide/options.h>
#include <hitide/result.h>
#include <hitide/stats.h>

namespace hitide {

class MetricsText;

struct SamplingOptions {
  float temperature = 1.0f;  // <= 0: greedy
  std::int32_t top_k = 0;    // <= 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::optional<std::uint32_t> seed;  // none: drawn
  // Taken from the logits of tokens that the answer has already: once, and for each time.
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  // > 0; logits of tokens that prompt or answer have are divided by it when positive, else
  // multiplied. 1: off.
  float repetition_penalty = 1.0f;
  std::vector<std::pair<TokenId, float>> logit_bias = {};  // added to the logits of these tokens
  std::uint32_t tokens_min = 0;  // no token that ends the text before so many; not with a grammar
};

// A token of the answer and how likely it was.
struct TokenLikelihood {
  TokenId token = 0;
  float logprob = 0.0f;
  std::string bytes;  // its text, which may be a part of a character
};
struct TokenLogprob : TokenLikelihood {
  std::vector<TokenLikelihood> top;  // the most likely tokens, that one among them or not
};

struct ChatMessage {
  std::string role;
  std::string content;
};

struct GenerationRequest {
  std::vector<TokenId> prompt;   // [n], n >= 1
  std::uint32_t tokens_max = 0;  // 0: up to the context
  SamplingOptions sampling;
  std::vector<std::string> stop;     // text that ends the generation
  bool keep_stop = false;            // that text is part of the output
  std::vector<TokenId> stop_tokens;  // end the generation; not part of the output
  std::optional<std::uint32_t> top_logprobs =
      std::nullopt;          // on_logprob for each token, with so many others
  std::string grammar = {};  // GBNF that the text must follow, by rule `root`; empty: none
  bool ignore_eos = false;
  bool return_logits = false;            // tests: last-token logits of every step in the result
  std::optional<std::string> extra_key;  // adapter namespace
  std::optional<std::string> cache_salt;
  std::int32_t priority = 0;  // eviction policy priority: high ones stay longer
  std::string label;          // for the explanation and the log
};

enum class FinishReason : std::uint8_t { stop, length, cancelled, failed };

struct GenerationResult {
  FinishReason finish = FinishReason::stop;
  Status status;  // why, when failed
  std::uint32_t prompt_tokens = 0;
  std::vector<TokenId> tokens;  // generated, without the end-of-text token
  std::uint32_t cached_tokens = 0;
  std::uint32_t cached_device = 0, cached_host = 0, cached_storage = 0;
  std::string explanation_id;
  Duration saved{};  // predicted recompute time less the waits
  Duration queue_time{}, first_token_time{}, total_time{};
  std::vector<std::vector<float>> logits;
};

class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // Once, when the prompt has been admitted, before the first text.
  virtual void on_admitted(const std::string& explanation_id) = 0;
  // Whole UTF-8 characters only; may be called with more than one token's text.
  virtual void on_text(std::string_view text) = 0;
  // Before the text that the token brings or completes, when the request asked for it.
  virtual void on_logprob(TokenLogprob /*logprob*/) {}  // NOLINT(performance-*): others keep it
  // Last call.
  virtual void on_done(GenerationResult result) = 0;
};

struct EngineInfo {
  std::string model_name;  // stem of the file
  std::string model_description;
  std::uint32_t context_length = 0;
  // No text with more bytes fits into the context; 0: not known. Texts are measured against it
  // before they are tokenized.
  std::uint64_t prompt_bytes_max = 0;
  std::uint32_t page_size = 0;
  std::string kv_cache_dtype;
  bool exact = false;        // texts are bit-identical with and without the cache
  std::string exact_detail;  // why, or why not
  bool cache_on = false;
  std::string cache_detail;  // why off
  std::string storage_backend;
};

struct EngineLoad {
  std::uint32_t running = 0;  // requests
  std::uint32_t waiting = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual EngineInfo info() const = 0;
  // What its pages in storage belong to; without pools where it serves without a cache.
  virtual ModelSpec model_spec() const { return {}; }

  virtual std::vector<TokenId> tokenize(std::string_view text, bool add_special,
                                        bool parse_special) const = 0;
  virtual std::string detokenize(const std::vector<TokenId>& tokens) const = 0;
  // The prompt text for a chat, with the model's template and the opening of the answer.
  // invalid_argument: unknown role, or no template fits.
  virtual Result<std::string> apply_chat_template(
      const std::vector<ChatMessage>& messages) const = 0;

  // invalid_argument: no tokens, a token outside the vocabulary (of the prompt, the biases or the
  // stop tokens), a prompt that leaves no room in the context, or a grammar that cannot be read;
  // the message begins with "logit_bias: ", "stop_tokens: " or "grammar: " where it is one of
  // these. resource_exhausted: the waiting queue is full; failed_precondition: closed. After ok the
  // sink's on_done comes exactly once; the sink must live until then.
  virtual Result<std::uint64_t> submit(GenerationRequest request, GenerationSink* sink) = 0;
  // The generation ends soon, with on_done(cancelled). Unknown ids are ignored.
  virtual void cancel(std::uint64_t generation) = 0;

  virtual EngineLoad load() const { return {}; }
  virtual CacheStats cache_stats() const = 0;
  virtual Result<Explanation> explain(std::string_view id) const = 0;
  virtual void append_metrics(MetricsText& text) const = 0;
  // Forgets device and host; failed_precondition without a cache.
  virtual Status flush_cache() = 0;
  // Storage while requests are served: <hitide/cache.h>. failed_precondition without a cache.
  virtual Status attach_storage(const StorageOptions& storage, const PolicyOptions& policy,
                                TimePoint deadline) = 0;
  virtual Status detach_storage(TimePoint deadline) = 0;
  virtual Result<std::uint64_t> clear_storage(TimePoint deadline) = 0;
  // unavailable once the step loop has stopped or has not moved for long.
  virtual Status health() const = 0;

  // Stops taking requests, ends the running ones as cancelled, drains the cache until the deadline.
  virtual Status close(TimePoint deadline) = 0;
};

}  // namespace hitide
