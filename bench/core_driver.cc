#include "bench/core_driver.h"

#include <variant>

#include "base/random.h"

namespace hitide::bench {

CoreConfig core_config(std::uint32_t page_size, std::uint32_t device_pages,
                       std::uint32_t host_pages) {
  CoreConfig config;
  config.page_size = page_size;
  config.device_pages = device_pages;
  config.host_pages = host_pages;
  config.page_bytes = std::uint64_t{page_size} * 1024;
  return config;
}

std::vector<TokenId> make_tokens(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(150'000));
  return tokens;
}

std::vector<TokenId> make_prompt(std::size_t count, std::uint64_t seed) {
  std::vector<TokenId> tokens = make_tokens(count, seed);
  for (TokenId& token : tokens) token = 1'000 + token % 20'000;
  return tokens;
}

void CoreDriver::carry_out() {
  while (!plan_.ops.empty()) {
    const std::vector<PlanOp> ops = std::move(plan_.ops);
    plan_.ops.clear();
    for (const PlanOp& op : ops) {
      const auto* const copy = std::get_if<CopyOp>(&op);
      if (copy == nullptr) continue;  // without sequences and storage there is nothing else
      Completion done;
      done.id = copy->id;
      done.pages.assign(copy->pages.size(), StatusCode::ok);
      core_.on_completion(done, now_, plan_);
    }
  }
}

Result<RequestId> CoreDriver::open(std::span<const TokenId> tokens) {
  PrefixRequest request;
  request.tokens = tokens;
  return core_.open(request, now_, plan_);
}

Result<RequestId> CoreDriver::start(std::span<const TokenId> tokens) {
  HITIDE_ASSIGN_OR_RETURN(const RequestId id, open(tokens));
  const Result<Admission> admission = core_.admit(id, now_, plan_);
  if (!admission.ok()) return admission.status();
  carry_out();
  return id;
}

Status CoreDriver::add(std::span<const TokenId> tokens) {
  HITIDE_ASSIGN_OR_RETURN(const RequestId id, start(tokens));
  HITIDE_RETURN_IF_ERROR(core_.commit(id, tokens, now_, plan_));
  carry_out();
  release(id);
  return core_.tripped();
}

void CoreDriver::release(RequestId id) {
  core_.release(id, now_, plan_);
  carry_out();
}

Result<std::vector<PageId>> CoreDriver::reserve(RequestId id, std::uint32_t total_tokens) {
  return core_.reserve(id, total_tokens, now_, plan_);
}

void CoreDriver::flush() {
  core_.flush(now_, plan_);
  carry_out();
}

}  // namespace hitide::bench
