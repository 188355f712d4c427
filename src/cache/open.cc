// From a prompt to a request: match, and whether storage is asked for more.
#include <algorithm>

#include <fmt/format.h>

#include "cache/cache_core.h"

namespace hitide {

std::shared_ptr<const Prompt> CacheCore::make_prompt(const PrefixRequest& request) {
  auto prompt = std::make_shared<Prompt>();
  prompt->tokens.assign(request.tokens.begin(), request.tokens.end());
  Namespace space;
  if (request.extra_key) space.extra_key = std::string(*request.extra_key);
  // An empty salt is none, as in the chain of page keys.
  if (request.cache_salt && !request.cache_salt->empty()) {
    space.cache_salt = std::string(*request.cache_salt);
  }
  prompt->space = space.encode();
  prompt->page_size = config_.page_size;
  prompt->keys.reserve(prompt->page_count());
  // Keys of what the tree knows are on its nodes; only the tokens behind are hashed.
  const FindResult found = find(*prompt);
  std::vector<NodeIndex> path;
  for (NodeIndex at = found.path.node; at != kNoNode && !tree_.is_root(at);
       at = tree_.node(at).parent) {
    path.push_back(at);
  }
  for (auto it = path.rbegin(); it != path.rend(); ++it) {
    const std::vector<PageKey>& keys = tree_.node(*it).keys;
    const std::size_t wanted = found.path.pages - prompt->keys.size();
    prompt->keys.insert(prompt->keys.end(), keys.begin(),
                        keys.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, keys.size())));
  }
  prompt->seed = namespace_seed(request.extra_key, request.cache_salt);
  const PageKey* parent = prompt->seed ? &*prompt->seed : nullptr;
  PageKey last;
  if (!prompt->keys.empty()) {
    last = prompt->keys.back();
    parent = &last;
  }
  hasher_.extend(parent, std::span(request.tokens).subspan(prompt->keys.size() * config_.page_size),
                 prompt->keys);
  return prompt;
}

FindResult CacheCore::find(const Prompt& prompt) const {
  const NodeIndex root = tree_.find_root(prompt.space);
  return root == kNoNode ? FindResult{} : tree_.find(root, prompt.tokens);
}

Result<RequestId> CacheCore::open(const PrefixRequest& request, TimePoint now, Plan& plan) {
  if (request.tokens.empty()) {
    return Status(StatusCode::invalid_argument, "open_prefix: the prompt has no tokens");
  }
  const auto negative = std::find_if(request.tokens.begin(), request.tokens.end(),
                                     [](TokenId token) { return token < 0; });
  if (negative != request.tokens.end()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("open_prefix: token {} at position {} is negative", *negative,
                              negative - request.tokens.begin()));
  }
  const std::pair<const char*, std::optional<std::string_view>> names[] = {
      {"extra_key", request.extra_key}, {"cache_salt", request.cache_salt}};
  for (const auto& [name, text] : names) {
    if (!text || text->size() <= kNamespaceBytesMax) continue;
    return Status(StatusCode::invalid_argument,
                  fmt::format("open_prefix: {} has {} bytes; at most {} are taken", name,
                              text->size(), kNamespaceBytesMax));
  }
  const RequestId id = next_request_++;
  Request& made = requests_[id];
  made.id = id;
  made.opened = now;
  made.priority = request.priority;
  made.prompt = make_prompt(request);
  made.explanation.id = fmt::format("{}{}", config_.explanation_prefix, id);
  made.explanation.label = std::string(request.label);
  made.explanation.prompt_tokens = made.prompt->token_count();
  ++stats_.requests;
  stats_.prompt_tokens += made.prompt->token_count();
  if (!tripped_.ok()) return id;

  FindResult found = find(*made.prompt);
  if (found.path.node != kNoNode) {
    // Where the prompt leaves a node, the pages behind are not used by it and stay as old as they
    // are: they become a node of their own first.
    const bool leaves =
        found.path.offset > 0 && found.path.offset < tree_.node(found.path.node).page_count();
    tree_.touch(tree_.materialize(found.path));
    if (leaves) found = find(*made.prompt);
  }
  made.hit_pages = std::min(found.host.pages, made.prompt->usable_pages());
  start_prefetch(made, found, false, now, plan);
  return id;
}

// `again`: the request has been told that it may go on; it is not made to wait a second time.
void CacheCore::start_prefetch(Request& request, const FindResult& found, bool again, TimePoint now,
                               Plan& plan) {
  const std::uint32_t begin = found.host.pages;
  const std::uint32_t end = request.prompt->usable_pages();
  if (begin >= end) return;
  const std::uint32_t span = end - begin;
  const auto decline = [&](MissReason reason) { request.reasons.push_back({begin, end, reason}); };
  if (config_.storage == StorageState::none) return decline(MissReason::never_seen);
  if (config_.storage == StorageState::off) return decline(MissReason::storage_off);
  switch (choose_prefetch(config_.policy, span * config_.page_size, occupied_pages_,
                          host_.capacity())) {
    case PrefetchChoice::below_threshold:
      return decline(MissReason::below_threshold);
    case PrefetchChoice::rate_limited:
      ask_again_later(request, now);
      return decline(MissReason::rate_limited);
    case PrefetchChoice::ask:
      break;
  }
  // Even if all of it were there. Now and then it is fetched nevertheless, for nobody to wait for.
  bool probe = false;
  if (!worth_loading(request, Tier::storage, begin, end, now)) {
    decline(MissReason::not_worth_loading);
    if (!probe_due(storage_speed_.measured(), now, kStorageProbeInterval)) return;
    probe = again = true;
  }
  const NodeIndex root = tree_.root(request.prompt->space);
  const NodeIndex end_node = found.host.node == kNoNode ? root : tree_.materialize(found.host);
  const NodeIndex anchor = tree_.deepest_resident(end_node, Tier::host);
  pin_request(request, tree_.deepest_resident(end_node, Tier::device), anchor);
  Prefetch prefetch;
  prefetch.id = next_prefetch_++;
  prefetch.prompt = request.prompt;
  prefetch.waiter = request.id;
  prefetch.first_page = begin;
  prefetch.span_pages = span;
  prefetch.anchor = anchor;
  prefetch.storage_epoch = storage_epoch_;
  prefetch.anchor_pages = tree_.depth_pages(anchor) + tree_.node(anchor).page_count();
  tree_.pin(anchor, Tier::host);
  occupied_pages_ += span;
  ++stats_.prefetch_queries;
  if (again && !probe) ++stats_.prefetch_retries;
  prefetch.started = now;
  prefetch.again = again;
  const bool goes_on = request.fetched_end == begin && request.fetched_end > request.fetched_begin;
  prefetch.served_from = goes_on ? request.fetched_begin : begin;

  request.prefetch = prefetch.id;
  prefetch.goes_on_alone = probe || config_.policy.prefetch_policy == PrefetchPolicy::best_effort;
  if (!prefetch.goes_on_alone && !again) {
    request.state = PrefixState::waiting;
    request.deadline =
        now + prefetch_wait(
                  config_.policy,
                  {.tokens = span * config_.page_size, .bytes = span * config_.page_bytes}, speed_);
  }
  StorageQueryOp query;
  add_operation(OpKind::query, query.id).prefetch = prefetch.id;
  query.keys.assign(request.prompt->keys.begin() + begin, request.prompt->keys.begin() + end);
  query.first_page = begin;
  query.deadline = now + storage_call_limit(0);
  prefetches_.emplace(prefetch.id, std::move(prefetch));
  plan.ops.emplace_back(std::move(query));
}

void CacheCore::pin_request(Request& request, NodeIndex device, NodeIndex host) {
  // New pins first: a path that both hold must not become evictable in between.
  tree_.pin(device, Tier::device);
  tree_.pin(host, Tier::host);
  unpin_request(request);
  request.device_pin = device;
  request.host_pin = host;
}

void CacheCore::unpin_request(Request& request) {
  if (request.device_pin != kNoNode) tree_.unpin(request.device_pin, Tier::device);
  if (request.host_pin != kNoNode) tree_.unpin(request.host_pin, Tier::host);
  request.device_pin = request.host_pin = kNoNode;
}

// What storage has not brought by now does not come for this request.
void CacheCore::leave_prefetch(Request& request) {
  const auto it = prefetches_.find(request.prefetch);
  request.prefetch = 0;
  if (it == prefetches_.end()) return;
  Prefetch& prefetch = it->second;
  const std::uint32_t known = prefetch.first_page + prefetch.settled;
  const std::uint32_t end =
      prefetch.reading ? prefetch.first_page + static_cast<std::uint32_t>(prefetch.pages.size())
                       : prefetch.first_page + prefetch.span_pages;
  // A second question leaves standing what the first one was answered.
  if (!prefetch.again) add_reason(prefetch, known, end, MissReason::deadline);
  prefetch.waiter = 0;
}

void CacheCore::make_ready(Request& request, TimePoint now, Plan& plan) {
  request.state = PrefixState::ready;
  request.deadline = kNoDeadline;
  request.prefetch = 0;
  request.explanation.storage_wait = now - request.opened;
  plan.wake = true;
}

}  // namespace hitide
