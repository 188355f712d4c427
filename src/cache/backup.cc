// Device to host, then host to storage.
#include <algorithm>

#include "cache/cache_core.h"
#include "policy/write_policy.h"

namespace hitide {

// Starts what is missing below the path that ends at `node`: ancestors first, so that a node on the
// host never stands below one that is not.
void CacheCore::back_up_path(NodeIndex node, TimePoint now, Plan& plan) {
  std::vector<NodeIndex> path;
  for (NodeIndex at = node; !tree_.is_root(at); at = tree_.node(at).parent) path.push_back(at);
  std::reverse(path.begin(), path.end());
  std::vector<NodeIndex> to_host;
  std::vector<NodeIndex> to_storage;
  for (const NodeIndex at : path) {
    const Node& n = tree_.node(at);
    if (!backup_now(config_.policy.write_policy, n.facts.hits)) break;
    // One operation covers adjacent nodes only.
    if (n.backup_pending && !to_host.empty()) break;
    if (tree_.residency(at, Tier::host).resident()) {
      if (!n.stored() && !n.store_pending && !n.backup_pending) to_storage.push_back(at);
    } else if (!n.backup_pending && tree_.residency(at, Tier::device).resident()) {
      to_host.push_back(at);
    }
  }
  if (!to_host.empty()) {
    std::uint64_t wanted = 0;
    for (const NodeIndex at : to_host) wanted += tree_.node(at).page_count();
    const Operation* const started = start_backup(to_host, now, plan);
    stats_.backup_dropped_pages_host += wanted - (started ? started->host_pages.size() : 0);
  }
  if (!to_storage.empty() && config_.storage == StorageState::on) {
    write_to_storage(to_storage, plan);
  }
}

// `chain`: consecutive nodes of one path, top down. Takes as many pages as the host has room for.
// Null where it has none.
Operation* CacheCore::start_backup(const std::vector<NodeIndex>& chain, TimePoint now, Plan& plan) {
  std::uint32_t wanted = 0;
  for (const NodeIndex node : chain) wanted += tree_.node(node).page_count();
  // The pages above must stay while room is made for those below them.
  const NodeIndex above = tree_.deepest_resident(tree_.node(chain.front()).parent, Tier::host);
  tree_.pin(above, Tier::host);
  make_room(Tier::host, wanted, now, plan);
  tree_.unpin(above, Tier::host);
  std::uint32_t room = std::min(wanted, host_.free_count());
  if (room == 0) return nullptr;
  CopyOp copy;
  Operation& operation = add_operation(OpKind::backup, copy.id);
  copy.direction = CopyDirection::to_host;
  copy.first_position = tree_.depth_pages(chain.front());
  require(host_.allocate(room, PageOwner::operation, operation.host_pages));
  NodeIndex deepest = kNoNode;
  for (NodeIndex node : chain) {
    if (room == 0) break;
    const std::uint32_t count = std::min(room, tree_.node(node).page_count());
    node = tree_.materialize(Boundary{node, count, count});
    tree_.node(node).backup_pending = true;
    const std::vector<PageId>& pages = tree_.residency(node, Tier::device).pages;
    operation.device_pages.insert(operation.device_pages.end(), pages.begin(), pages.end());
    room -= count;
    deepest = node;
  }
  for (std::size_t i = 0; i < operation.device_pages.size(); ++i) {
    copy.pages.push_back({operation.device_pages[i], operation.host_pages[i]});
  }
  operation.pin = deepest;
  tree_.pin(deepest, Tier::device);
  begin_operations(Tier::device, operation.device_pages);
  begin_operations(Tier::host, operation.host_pages);
  plan.ops.emplace_back(std::move(copy));
  return &operation;
}

// A node can only be put on the host below one that is there. While the pages above are on their
// way the answer waits for theirs.
bool CacheCore::answered_too_early(const Operation& operation) const {
  const NodeIndex node = tree_.owner(Tier::device, operation.device_pages.front());
  if (node == kNoNode) return false;
  const NodeIndex parent = tree_.node(node).parent;
  return !tree_.is_root(parent) && tree_.node(parent).backup_pending;
}

void CacheCore::take_deferred_backups(TimePoint now, Plan& plan) {
  for (std::size_t i = 0; i < deferred_backups_.size();) {
    const auto it = operations_.find(deferred_backups_[i]);
    if (answered_too_early(it->second)) {
      ++i;
      continue;
    }
    deferred_backups_.erase(deferred_backups_.begin() + static_cast<std::ptrdiff_t>(i));
    Operation operation = std::move(it->second);
    operations_.erase(it);
    on_backup(operation, *operation.answer, now, plan);
    i = 0;  // others may wait for this one
  }
}

void CacheCore::on_backup(Operation& operation, const Completion& completion, TimePoint now,
                          Plan& plan) {
  end_operations(Tier::device, operation.device_pages, completion.buffers_busy_until);
  end_operations(Tier::host, operation.host_pages, completion.buffers_busy_until);
  const std::uint32_t count = static_cast<std::uint32_t>(operation.device_pages.size());
  std::uint32_t copied = 0;
  while (copied < count && copied < completion.pages.size() &&
         completion.pages[copied] == StatusCode::ok) {
    ++copied;
  }
  stats_.backup_dropped_pages_host += count - copied;
  std::vector<NodeIndex> fresh;
  bool open = true;  // no gap so far
  for (std::uint32_t i = 0; i < count;) {
    // Nodes may have been split since, but never merged: each lies within the operation.
    NodeIndex node = tree_.owner(Tier::device, operation.device_pages[i]);
    if (!require(node == kNoNode
                     ? Status(StatusCode::internal, "a page left the tree while it was backed up")
                     : ok_status())) {
      return;
    }
    std::uint32_t pages = tree_.node(node).page_count();
    tree_.node(node).backup_pending = false;
    if (i < copied && i + pages > copied) {
      node = tree_.split(node, copied - i);
      pages = copied - i;
    }
    const auto host = std::span(operation.host_pages).subspan(i, pages);
    const NodeIndex parent = tree_.node(node).parent;
    open = open && i < copied && !tree_.residency(node, Tier::host).resident() &&
           (tree_.is_root(parent) || tree_.residency(parent, Tier::host).resident());
    if (open) {
      for (const PageId page : host) {
        require(host_.set_owner(page, PageOwner::operation, PageOwner::node));
      }
      tree_.attach(node, Tier::host, host);
      stats_.backed_up_pages_host += pages;
      fresh.push_back(node);
    } else {
      give_back(Tier::host, host, PageOwner::operation);
    }
    i += pages;
  }
  tree_.unpin(operation.pin, Tier::device);
  leaving_[0] -= operation.leaving;
  evict_tail(Tier::device, operation.device_pages, operation.leaving, plan);
  thin_device(now, plan);
  host_.release_quarantine(now);
  plan.wake = plan.wake || !requests_.empty();  // device pages have become evictable
  const bool later = copies_before_eviction(config_.policy.write_policy);
  if (!fresh.empty() && !later && config_.storage == StorageState::on) {
    write_to_storage(fresh, plan);
  }
  settle_held(now, plan);
  keep_host_reserve(now, plan);
  drained(operation, now, plan);
}

// `nodes`: on the host, not stored, top down on one path, though not always adjacent. One operation
// writes a node from its first page that storage lacks to its end, so that no two writes of one
// page are ever under way; lanes split it by their limits. Requires storage.
Operation& CacheCore::write_to_storage(const std::vector<NodeIndex>& nodes, Plan& plan) {
  StorageWriteOp write;
  Operation& operation = add_operation(OpKind::write, write.id);
  operation.storage_epoch = storage_epoch_;
  for (const NodeIndex node : nodes) {
    Node& n = tree_.node(node);
    n.store_pending = true;
    const std::vector<PageId>& host = tree_.residency(node, Tier::host).pages;
    const std::ptrdiff_t stored = n.stored_pages;
    write.keys.insert(write.keys.end(), n.keys.begin() + stored, n.keys.end());
    write.host_pages.insert(write.host_pages.end(), host.begin() + stored, host.end());
  }
  operation.host_pages = write.host_pages;
  operation.pin = nodes.back();
  tree_.pin(operation.pin, Tier::host);
  begin_operations(Tier::host, operation.host_pages);
  plan.ops.emplace_back(std::move(write));
  return operation;
}

void CacheCore::on_write(Operation& operation, const Completion& completion, TimePoint now,
                         Plan& plan) {
  end_operations(Tier::host, operation.host_pages, completion.buffers_busy_until);
  const std::uint32_t count = static_cast<std::uint32_t>(operation.host_pages.size());
  const auto acknowledged = [&](std::uint32_t i) {
    return i < completion.pages.size() && (completion.pages[i] == StatusCode::ok ||
                                           completion.pages[i] == StatusCode::already_exists);
  };
  std::vector<PageId> missing;  // the first of each node
  for (std::uint32_t i = 0; i < count;) {
    // Nodes may have been split since; the operation has the pages of each from some page to its
    // end.
    const NodeIndex owner = tree_.owner(Tier::host, operation.host_pages[i]);
    Node& node = tree_.node(owner);
    std::uint32_t end = i;
    while (end < count && tree_.owner(Tier::host, operation.host_pages[end]) == owner) ++end;
    node.store_pending = false;
    std::uint32_t stored = i;
    while (stored < end && acknowledged(stored)) ++stored;
    if (operation.storage_epoch == storage_epoch_) {
      node.stored_pages = std::max(node.stored_pages, node.page_count() - (end - stored));
    }
    // What was taken back is for the next commit to offer.
    const bool declined =
        stored < completion.pages.size() && completion.pages[stored] == StatusCode::cancelled;
    if (stored < end && !declined) missing.push_back(operation.host_pages[stored]);
    for (; i < end; ++i) {
      ++(acknowledged(i) ? stats_.backed_up_pages_storage : stats_.backup_dropped_pages_storage);
    }
  }
  tree_.unpin(operation.pin, Tier::host);
  leaving_[1] -= operation.leaving;
  evict_tail(Tier::host, operation.host_pages, operation.leaving, plan);
  if (operation.leaving > 0) plan.wake = plan.wake || !requests_.empty();
  if (!missing.empty()) write_again_later(operation, std::move(missing), now);
  host_.release_quarantine(now);
  keep_host_reserve(now, plan);
  drained(operation, now, plan);
}

}  // namespace hitide
