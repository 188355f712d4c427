// Request traces: JSON lines, one request each, of one of two kinds.
//
//   blocks  {"timestamp": ms, "input_length": tokens, "hash_ids": [id of each block, ...]}
//           an equal id means an equal prefix up to and including that block
//   text    {"timestamp": us, "input": "the whole prompt"}
//           four bytes of the text count as one token: there is no tokenizer here
//
// Other fields are not looked at.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

namespace hitide {

struct TraceRequest {
  Duration at{};                      // from the first request
  std::uint32_t tokens = 0;           // of the prompt, >= 1
  std::vector<std::uint64_t> blocks;  // one per block_tokens tokens, the last may be part of one
  std::string text;                   // of a text trace, which has no blocks
};

struct Trace {
  std::uint32_t block_tokens = 0;      // 0: a text trace
  std::vector<TraceRequest> requests;  // by time; as in the file where times are equal
};

// `block_tokens`: of a trace of blocks, >= 1. invalid_argument names the line and what is wrong
// with it. Empty lines are skipped.
Result<Trace> parse_trace(std::string_view lines, std::uint32_t block_tokens);

// The prompt's tokens, the first request.tokens of its blocks or text. Equal ids and texts give
// equal tokens, other ids others.
void prompt_tokens(const Trace& trace, const TraceRequest& request, std::vector<TokenId>& out);

}  // namespace hitide
