// Where a request's place on the device comes from: from the cache, or, without one, from a plain
// allocator that keeps nothing. The step loop sees only this.
//
// Threading: a PageSource may be used from any thread, a RequestPages by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <hitide/device.h>
#include <hitide/request.h>
#include <hitide/result.h>

#include "engine/engine.h"

namespace hitide {

class Cache;

// One request's claim; destroying it gives everything back.
class RequestPages {
 public:
  virtual ~RequestPages() = default;
  virtual PrefixState state() const = 0;
  // Tokens in place when the request starts to run; fewer than its prompt has.
  virtual std::uint32_t cached_tokens() const = 0;
  virtual std::string explanation_id() const = 0;
  // resource_exhausted: no room now; nothing has changed.
  virtual Result<SequenceId> admit() = 0;
  // resource_exhausted: no room now for so many tokens.
  virtual Status reserve(std::uint32_t total_tokens) = 0;
  // The first tokens of the request, all of them computed.
  virtual Status commit(std::span<const TokenId> tokens) = 0;
  // commit(), then gives everything back. Empty: without a commit.
  virtual void finish(std::span<const TokenId> tokens) = 0;
};

class PageSource {
 public:
  virtual ~PageSource() = default;
  virtual Result<std::unique_ptr<RequestPages>> open(const PrefixRequest& request) = 0;
  virtual void note_prefill(std::uint32_t tokens, Duration time) = 0;
  // Fills in what is known of where the request's tokens came from.
  virtual void describe(const std::string& explanation_id, GenerationResult& result) const = 0;
};

// `cache` must outlive the source and all that it opened.
std::unique_ptr<PageSource> make_cached_source(Cache& cache);
// Pages and sequences of `device`, each used by one request and then given back.
std::unique_ptr<PageSource> make_plain_source(Device& device);

}  // namespace hitide
