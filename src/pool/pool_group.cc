#include "pool/pool_group.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <hitide/registration.h>

namespace hitide {
namespace {

Status invalid(std::string message) {
  return Status(StatusCode::invalid_argument, "pool group: " + std::move(message));
}

std::size_t index_of(const ModelSpec& model, std::string_view name) {
  const auto found = std::find_if(model.pools.begin(), model.pools.end(),
                                  [&](const PoolSpec& pool) { return pool.name == name; });
  return static_cast<std::size_t>(found - model.pools.begin());
}

// The pool that owns the ids of `pool`, or the number of pools where the sources form a circle.
std::size_t owner_of(const ModelSpec& model, std::size_t pool) {
  for (std::size_t steps = 0; steps < model.pools.size(); ++steps) {
    if (model.pools[pool].index_source.empty()) return pool;
    pool = index_of(model, model.pools[pool].index_source);
  }
  return model.pools.size();
}

}  // namespace

Result<std::unique_ptr<PoolGroup>> PoolGroup::create(const ModelSpec& model,
                                                     std::span<const std::uint32_t> capacities) {
  HITIDE_RETURN_IF_ERROR(validate(model));
  if (capacities.size() != model.pools.size()) {
    return invalid(
        fmt::format("{} capacities for {} pools", capacities.size(), model.pools.size()));
  }
  std::unique_ptr<PoolGroup> group(new PoolGroup());
  group->logical_anchor_ = hitide::is_logical_anchor(model);
  for (std::size_t pool = 0; pool < capacities.size(); ++pool) {
    const std::string& name = model.pools[pool].name;
    const std::size_t source = owner_of(model, pool);
    if (source == model.pools.size()) {
      return invalid(fmt::format("the index sources of pool {} form a circle", name));
    }
    if ((source == pool) != (capacities[pool] > 0)) {
      return invalid(fmt::format("pool {}: capacity {}: exactly the pools that own ids have one",
                                 name, capacities[pool]));
    }
    group->names_.push_back(name);
    group->source_.push_back(source);
    group->allocators_.push_back(source == pool ? std::make_unique<PageAllocator>(capacities[pool])
                                                : nullptr);
  }
  return group;
}

Status PoolGroup::reserve(std::span<const std::uint32_t> counts, PageOwner owner, GroupPages& out) {
  if (counts.size() != pool_count()) {
    return invalid(fmt::format("{} counts for {} pools", counts.size(), pool_count()));
  }
  for (std::size_t pool = 0; pool < pool_count(); ++pool) {
    if (counts[pool] > 0 && source_[pool] != pool) {
      return invalid(fmt::format("pool {} has the pages of pool {}: ask for those", names_[pool],
                                 names_[source_[pool]]));
    }
  }
  GroupPages reserved;
  reserved.ids.resize(pool_count());
  for (std::size_t pool = 0; pool < pool_count(); ++pool) {
    if (counts[pool] == 0) continue;
    Status status = allocators_[pool]->allocate(counts[pool], owner, reserved.ids[pool]);
    if (status.ok()) continue;
    HITIDE_RETURN_IF_ERROR(free(reserved, owner));
    return status.with_context("pool " + names_[pool]);
  }
  out.ids.resize(pool_count());
  for (std::size_t pool = 0; pool < pool_count(); ++pool) {
    out.ids[pool].insert(out.ids[pool].end(), reserved.ids[pool].begin(), reserved.ids[pool].end());
  }
  return ok_status();
}

Status PoolGroup::free(GroupPages& pages, PageOwner owner) {
  Status first;
  for (std::size_t pool = std::min(pages.ids.size(), pool_count()); pool > 0; --pool) {
    const std::vector<PageId>& ids = pages.ids[pool - 1];
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      Status status = allocator(pool - 1).free(*id, owner);
      if (first.ok() && !status.ok()) first = status.with_context("pool " + names_[pool - 1]);
    }
  }
  pages.ids.clear();
  return first;
}

std::span<const PageId> PoolGroup::pages(const GroupPages& group, std::size_t pool) const {
  const std::size_t source = source_[pool];
  if (source >= group.ids.size()) return {};
  return group.ids[source];
}

Result<std::size_t> PoolGroup::find(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
  return Status(StatusCode::not_found,
                fmt::format("no pool '{}'; known: {}", name, fmt::join(names_, ", ")));
}

Status PoolGroup::check() const {
  for (std::size_t pool = 0; pool < pool_count(); ++pool) {
    if (allocators_[pool] == nullptr) continue;
    Status status = allocators_[pool]->check();
    if (!status.ok()) return status.with_context("pool " + names_[pool]);
  }
  return ok_status();
}

}  // namespace hitide
