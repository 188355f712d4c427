// Grammar: which tokens may come next, by llama.cpp's own grammars (GBNF, rule `root`).
//
// Threading: one thread at a time per object; parsing may be done on any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

struct llama_sampler;
struct llama_vocab;

namespace hitide {

class Grammar {
 public:
  // invalid_argument: not a grammar that llama.cpp reads (its reason goes to standard error), more
  // than 256 KiB, or parentheses nested too deep for its parser. Cost: linear; no token is looked
  // at.
  static Result<std::unique_ptr<Grammar>> parse(const llama_vocab& vocabulary,
                                                const std::string& text);
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  // Whether the token may come next. Cost: the length of its text times the grammar's alternatives.
  bool allows(TokenId token) const;
  // Tokens that may not come next get a logit of minus infinity. False: none is left. logits:
  // [vocabulary]. Cost: as allows() for each token.
  bool mask(std::span<float> logits) const;
  // The token was chosen. False: it may not come here; the object is of no more use then.
  bool accept(TokenId token);

 private:
  Grammar(const llama_vocab& vocabulary, llama_sampler* sampler)
      : vocabulary_(vocabulary), sampler_(sampler) {}

  const llama_vocab& vocabulary_;
  llama_sampler* const sampler_;
};

}  // namespace hitide
