// From a ready request to a running one: pin, reserve, load back.
#include <algorithm>

#include <fmt/format.h>

#include "cache/cache_core.h"

namespace hitide {
namespace {

// The boundary that ends at `pages`, on the same path.
Boundary cut(const RadixTree& tree, Boundary boundary, std::uint32_t pages) {
  while (boundary.pages > pages) {
    const std::uint32_t over = boundary.pages - pages;
    const std::uint32_t step = std::min(over, boundary.offset);
    boundary.pages -= step;
    boundary.offset -= step;
    if (boundary.offset > 0 || tree.is_root(boundary.node)) continue;
    boundary.node = tree.node(boundary.node).parent;
    boundary.offset = tree.node(boundary.node).page_count();
  }
  return boundary;
}

std::uint32_t pages_for(std::uint32_t tokens, std::uint32_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

}  // namespace

Result<Admission> CacheCore::admit(RequestId id, TimePoint now, Plan& plan) {
  Request* request = find_request(id);
  if (request == nullptr || request->state != PrefixState::ready) {
    return Status(StatusCode::failed_precondition,
                  fmt::format("admit: request {} is not ready", id));
  }
  const Prompt& prompt = *request->prompt;
  const std::uint32_t total = pages_for(prompt.token_count(), config_.page_size);
  if (total > device_.capacity()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("admit: a prompt of {} tokens needs {} device pages, there are {}",
                              prompt.token_count(), total, device_.capacity()));
  }
  leave_prefetch(*request);
  const NodeIndex root = tree_.root(prompt.space);
  NodeIndex device_node = root;
  NodeIndex host_node = root;
  std::uint32_t device_pages = 0;
  std::uint32_t host_pages = 0;
  if (tripped_.ok()) {
    const FindResult found = tree_.find(root, prompt.tokens);
    const std::uint32_t usable = prompt.usable_pages();
    device_pages = std::min(found.device.pages, usable);
    host_pages = std::min(found.host.pages, usable);
    // The deeper boundary first: a split keeps the index of the lower part.
    host_node = tree_.materialize(cut(tree_, found.host, host_pages));
    const FindResult again = tree_.find(root, prompt.tokens);
    device_node = tree_.materialize(cut(tree_, again.device, device_pages));
    tree_.touch(host_node);
  }
  pin_request(*request, device_node, tree_.deepest_resident(host_node, Tier::host));
  const SequenceId sequence = sequences_used() ? take_sequence(now, plan) : SequenceId{};
  if ((sequences_used() && !sequence.valid()) ||
      !make_room(Tier::device, total - device_pages, now, plan)) {
    if (sequence.valid()) free_sequences_.push_back(sequence);
    unpin_request(*request);
    return Status(StatusCode::resource_exhausted,
                  fmt::format("admit: {} device pages of {} and {} sequences are free, {} pages "
                              "are needed",
                              device_.free_count(), device_.capacity(), free_sequences_.size(),
                              total - device_pages));
  }
  for (NodeIndex at = host_node; !tree_.is_root(at); at = tree_.node(at).parent) {
    tree_.note_hit(at, request->priority);
  }
  request->sequence = sequence;
  request->device_hit_pages = request->shared_pages = request->hit_pages = device_pages;
  request->admitted = now;
  for (NodeIndex at = device_node; !tree_.is_root(at); at = tree_.node(at).parent) {
    const std::vector<PageId>& pages = tree_.residency(at, Tier::device).pages;
    request->pages.insert(request->pages.begin(), pages.begin(), pages.end());
  }
  if (device_pages > 0) {
    submit(SequenceCommand::Kind::bind, sequence, 0, request->pages, plan);
  }
  std::vector<PageId> fresh;
  require(device_.allocate(total - device_pages, PageOwner::request, fresh));
  request->pages.insert(request->pages.end(), fresh.begin(), fresh.end());
  submit(SequenceCommand::Kind::extend, sequence, device_pages, std::move(fresh), plan);
  if (!start_load(*request, host_node, host_pages, now, plan)) start_running(*request, now, plan);
  return Admission{sequence, request->pages};
}

bool CacheCore::start_load(Request& request, NodeIndex host_node, std::uint32_t host_pages,
                           TimePoint now, Plan& plan) {
  const std::uint32_t begin = request.shared_pages;
  if (host_pages <= begin) return false;
  const std::uint32_t count = host_pages - begin;
  if (count * config_.page_size < config_.policy.load_back_threshold_tokens ||
      !worth_loading(request, Tier::host, begin, host_pages, now)) {
    request.reasons.push_back({begin, host_pages, MissReason::not_worth_loading});
    return false;
  }
  CopyOp copy;
  Operation& operation = add_operation(OpKind::load, copy.id);
  copy.direction = CopyDirection::to_device;
  copy.sequence = request.sequence;
  copy.first_position = begin;
  for (NodeIndex at = host_node; operation.host_pages.size() < count; at = tree_.node(at).parent) {
    const std::vector<PageId>& pages = tree_.residency(at, Tier::host).pages;
    operation.host_pages.insert(operation.host_pages.begin(), pages.begin(), pages.end());
  }
  operation.device_pages.assign(request.pages.begin() + begin, request.pages.begin() + host_pages);
  operation.request = request.id;
  operation.started = now;
  operation.pin = host_node;
  tree_.pin(host_node, Tier::host);
  begin_operations(Tier::host, operation.host_pages);
  begin_operations(Tier::device, operation.device_pages);
  for (std::uint32_t i = 0; i < count; ++i) {
    copy.pages.push_back({operation.device_pages[i], operation.host_pages[i]});
  }
  request.load_op = copy.id;
  request.state = PrefixState::loading;
  request.hit_pages = host_pages;
  plan.ops.emplace_back(std::move(copy));
  return true;
}

void CacheCore::on_load(Operation& operation, const Completion& completion, TimePoint now,
                        Plan& plan) {
  end_operations(Tier::host, operation.host_pages, completion.buffers_busy_until);
  end_operations(Tier::device, operation.device_pages, completion.buffers_busy_until);
  tree_.unpin(operation.pin, Tier::host);
  Request* request = find_request(operation.request);
  if (request == nullptr) return;  // gone; its pages were given back with it
  const std::uint32_t count = static_cast<std::uint32_t>(operation.device_pages.size());
  std::uint32_t loaded = 0;
  while (loaded < count && loaded < completion.pages.size() &&
         completion.pages[loaded] == StatusCode::ok) {
    ++loaded;
  }
  const std::uint32_t begin = request->shared_pages;
  if (loaded == count) host_speed_.note(span_bytes(count), now - operation.started, now);
  if (loaded < count) {
    request->reasons.push_back({begin + loaded, begin + count, MissReason::load_failed});
  }
  stats_.loaded_back_pages += loaded;
  const std::size_t from = std::size_t{begin} * config_.page_size;
  place_request_pages(
      *request,
      std::span(request->prompt->tokens).subspan(from, std::size_t{loaded} * config_.page_size),
      std::span(request->prompt->keys).subspan(begin, loaded), now, plan);
  start_running(*request, now, plan);
}

void CacheCore::start_running(Request& request, TimePoint now, Plan& plan) {
  request.hit_pages = request.shared_pages;
  request.load_op = 0;
  request.state = PrefixState::running;
  explain_running(request, now);
  plan.wake = true;
}

SequenceId CacheCore::take_sequence(TimePoint now, Plan& plan) {
  if (free_sequences_.empty() && !make_sequence_room(now, plan)) return {};
  const SequenceId sequence = free_sequences_.back();
  free_sequences_.pop_back();
  return sequence;
}

Result<std::vector<PageId>> CacheCore::reserve(RequestId id, std::uint32_t total_tokens,
                                               TimePoint now, Plan& plan) {
  Request* request = find_request(id);
  if (request == nullptr || request->state != PrefixState::running) {
    return Status(StatusCode::failed_precondition,
                  fmt::format("reserve: request {} is not running", id));
  }
  const std::uint32_t have = static_cast<std::uint32_t>(request->pages.size());
  const std::uint32_t want = pages_for(total_tokens, config_.page_size);
  std::vector<PageId> added;
  if (want <= have) return added;
  if (!make_room(Tier::device, want - have, now, plan)) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("reserve: {} more device pages are needed, {} of {} are free",
                              want - have, device_.free_count(), device_.capacity()));
  }
  require(device_.allocate(want - have, PageOwner::request, added));
  request->pages.insert(request->pages.end(), added.begin(), added.end());
  submit(SequenceCommand::Kind::extend, request->sequence, have, added, plan);
  return added;
}

}  // namespace hitide
