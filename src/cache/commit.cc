// Computed pages become findable; a request ends.
#include <algorithm>

#include <fmt/format.h>

#include "cache/cache_core.h"
#include "policy/write_policy.h"

namespace hitide {

Status CacheCore::commit(RequestId id, std::span<const TokenId> tokens, TimePoint now, Plan& plan) {
  Request* request = find_request(id);
  if (request == nullptr || request->state != PrefixState::running) {
    return Status(StatusCode::failed_precondition,
                  fmt::format("commit: request {} is not running", id));
  }
  const std::uint32_t pages = static_cast<std::uint32_t>(tokens.size()) / config_.page_size;
  if (pages > request->pages.size()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("commit: {} tokens are {} pages, {} were reserved", tokens.size(),
                              pages, request->pages.size()));
  }
  if (!tripped_.ok()) return {};
  const NodeIndex before = request->device_pin;
  if (pages <= request->shared_pages) {
    back_up_path(before, now, plan);
    return {};
  }
  const std::uint32_t begin = request->shared_pages;
  const auto fresh = tokens.subspan(std::size_t{begin} * config_.page_size,
                                    std::size_t{pages - begin} * config_.page_size);
  // Keys behind the prompt's own are hashed here, each once.
  std::vector<PageKey> keys;
  keys.reserve(pages - begin);
  const std::vector<PageKey>& known = request->prompt->keys;
  for (std::uint32_t page = begin; page < pages && page < known.size(); ++page) {
    keys.push_back(known[page]);
  }
  const std::size_t hashed = keys.size();
  if (hashed < pages - begin) {
    const PageKey* parent = nullptr;
    PageKey last;
    if (hashed > 0 || begin > 0) {
      last = hashed > 0 ? keys.back() : tree_.node(request->device_pin).keys.back();
      parent = &last;
    } else if (request->prompt->seed) {
      last = *request->prompt->seed;
      parent = &last;
    }
    hasher_.extend(parent, fresh.subspan(hashed * config_.page_size), keys);
  }
  place_request_pages(*request, fresh, keys, now, plan);
  for (NodeIndex at = request->device_pin; at != before; at = tree_.node(at).parent) {
    tree_.note_hit(at, request->priority);
  }
  back_up_path(request->device_pin, now, plan);
  return {};
}

// Hands pages behind shared_pages to the tree; pages that others have put there in the meantime
// are exchanged for theirs.
void CacheCore::place_request_pages(Request& request, std::span<const TokenId> tokens,
                                    std::span<const PageKey> keys, TimePoint now, Plan& plan) {
  if (keys.empty()) return;
  const std::uint32_t begin = request.shared_pages;
  const std::vector<PageId> own(
      request.pages.begin() + begin,
      request.pages.begin() + begin + static_cast<std::ptrdiff_t>(keys.size()));
  PlaceRun run;
  run.start = request.device_pin;
  run.tokens = tokens;
  run.keys = keys;
  run.pages = own;
  run.request = &request;
  const Placement placed = place(run, plan);
  std::copy(placed.resident.begin(), placed.resident.end(), request.pages.begin() + begin);
  request.shared_pages = begin + placed.placed;
  pin_request(request, placed.end, tree_.deepest_resident(placed.end, Tier::host));
  tree_.touch(placed.end);
  if (placed.existing > 0) {
    give_back(Tier::device, std::span(own).first(placed.existing), PageOwner::request);
    device_.release_quarantine(now);
  }
}

void CacheCore::release(RequestId id, TimePoint now, Plan& plan) {
  Request* request = find_request(id);
  if (request == nullptr) return;
  if (request->prefetch != 0) {
    const auto it = prefetches_.find(request->prefetch);
    if (it != prefetches_.end()) it->second.waiter = 0;
  }
  if (request->state != PrefixState::running) {
    request->reasons.clear();
    explain_running(*request, now);
  }
  if (request->pages.size() > request->shared_pages) {
    give_back(Tier::device, std::span(request->pages).subspan(request->shared_pages),
              PageOwner::request);
  }
  release_sequence(*request, plan);
  unpin_request(*request);
  keep_explanation(*request);
  requests_.erase(id);
  thin_device(now, plan);
  plan.wake = true;  // room for another
}

// The request's sequence becomes that of its path's leaf where that has none, else it is free.
void CacheCore::release_sequence(Request& request, Plan& plan) {
  if (!request.sequence.valid()) return;
  const NodeIndex node = request.device_pin;
  const bool leaf = node != kNoNode && !tree_.is_root(node) &&
                    tree_.residency(node, Tier::device).resident_children == 0;
  if (leaf && !tree_.node(node).sequence.valid()) {
    tree_.node(node).sequence = request.sequence;
    submit(SequenceCommand::Kind::trim, request.sequence, request.shared_pages, {}, plan);
  } else {
    submit(SequenceCommand::Kind::trim, request.sequence, 0, {}, plan);
    free_sequences_.push_back(request.sequence);
  }
  request.sequence = SequenceId{};
}

}  // namespace hitide
