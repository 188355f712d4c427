#include <hitide/cache.h>

#include "base/log.h"
#include "runtime/cache_impl.h"
#include "storage/registry.h"

namespace hitide {
namespace {

constexpr Duration kCloseTime = std::chrono::seconds(5);

// A store that is slow to answer delays the start by this much.
TimePoint first_answer_deadline() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(2);
}

OpenedStore open_storage(const StorageOptions& options, const RankGeometry& ranks) {
  if (options.backend == "none") return {};
  return open_store_client(options, first_answer_deadline(), ranks);
}

Status empty_handle(std::string_view call) {
  return Status(StatusCode::failed_precondition, std::string(call) + ": the handle is empty");
}

}  // namespace

Cache::Cache(std::shared_ptr<CacheImpl> impl) : impl_(std::move(impl)) {}

Cache::~Cache() {
  const Status status = close(std::chrono::steady_clock::now() + kCloseTime);
  if (!status.ok()) log_warning("cache_close", {{"status", status.to_string()}});
}

Result<std::unique_ptr<Cache>> Cache::open(const CacheOptions& options, const ModelSpec& model,
                                           Device& device, std::function<void()> notify) {
  HITIDE_RETURN_IF_ERROR(validate(options));
  HITIDE_ASSIGN_OR_RETURN(
      std::shared_ptr<CacheImpl> impl,
      CacheImpl::open(
          options, model, device, [&] { return open_storage(options.storage, model.ranks); }, false,
          std::move(notify)));
  return std::unique_ptr<Cache>(new Cache(std::move(impl)));
}

Result<std::unique_ptr<Cache>> Cache::open(const CacheOptions& options, const ModelSpec& model,
                                           Device& device, std::unique_ptr<ObjectStore> store,
                                           std::function<void()> notify) {
  const auto open_store = [&] {
    if (!store) return OpenedStore();
    return store_client(guard_store(std::move(store), options.storage.breaker),
                        first_answer_deadline());
  };
  HITIDE_ASSIGN_OR_RETURN(
      std::shared_ptr<CacheImpl> impl,
      CacheImpl::open(options, model, device, open_store, true, std::move(notify)));
  return std::unique_ptr<Cache>(new Cache(std::move(impl)));
}

Result<PrefixHandle> Cache::open_prefix(const PrefixRequest& request) {
  return impl_->open_prefix(request);
}
void Cache::note_prefill(std::uint32_t tokens, Duration time) { impl_->note_prefill(tokens, time); }
Status Cache::flush() { return impl_->flush(); }
Status Cache::attach_storage(const StorageOptions& storage, const PolicyOptions& policy,
                             TimePoint deadline) {
  CacheOptions checked;
  checked.storage = storage;
  checked.policy = policy;
  HITIDE_RETURN_IF_ERROR(validate(checked));
  if (storage.backend == "none") {
    return Status(StatusCode::invalid_argument, "attach_storage: 'none' is no store; detach it");
  }
  return impl_->attach_storage([&] { return open_storage(storage, impl_->ranks()); }, &storage,
                               policy, deadline);
}
Status Cache::attach_storage(std::unique_ptr<ObjectStore> store, const PolicyOptions& policy,
                             TimePoint deadline) {
  CacheOptions checked;
  checked.policy = policy;
  HITIDE_RETURN_IF_ERROR(validate(checked));
  if (!store) return Status(StatusCode::invalid_argument, "attach_storage: no store");
  return impl_->attach_storage(
      [&] {
        return store_client(guard_store(std::move(store), BreakerOptions()),
                            first_answer_deadline());
      },
      nullptr, policy, deadline);
}
Status Cache::detach_storage(TimePoint deadline) { return impl_->detach_storage(deadline); }
Result<std::uint64_t> Cache::clear_storage(TimePoint deadline) {
  return impl_->clear_storage(deadline);
}
CacheStats Cache::stats() const { return impl_->stats(); }
std::string Cache::storage_metrics() const { return impl_->storage_metrics(); }
Result<Explanation> Cache::explain(std::string_view id) const { return impl_->explain(id); }
Status Cache::check() const { return impl_->check(); }
Status Cache::close(TimePoint deadline) { return impl_->close(deadline); }

PrefixHandle::PrefixHandle(std::shared_ptr<CacheImpl> cache, std::uint64_t request)
    : cache_(std::move(cache)), request_(request) {}

PrefixHandle::PrefixHandle(PrefixHandle&& other) noexcept
    : cache_(std::move(other.cache_)), request_(other.request_) {
  other.cache_.reset();
}

PrefixHandle& PrefixHandle::operator=(PrefixHandle&& other) noexcept {
  if (this != &other) {
    release();
    cache_ = std::move(other.cache_);
    request_ = other.request_;
    other.cache_.reset();
  }
  return *this;
}

PrefixHandle::~PrefixHandle() { release(); }

PrefixState PrefixHandle::state() const {
  return cache_ ? cache_->state(request_) : PrefixState::closed;
}

std::uint32_t PrefixHandle::cached_tokens() const {
  return cache_ ? cache_->cached_tokens(request_) : 0;
}

std::vector<PageId> PrefixHandle::pages() const {
  return cache_ ? cache_->pages(request_) : std::vector<PageId>();
}

std::string PrefixHandle::explanation_id() const {
  return cache_ ? cache_->explanation_id(request_) : std::string();
}

Result<Admission> PrefixHandle::admit() {
  return cache_ ? cache_->admit(request_) : Result<Admission>(empty_handle("admit"));
}

Result<std::vector<PageId>> PrefixHandle::reserve(std::uint32_t total_tokens) {
  return cache_ ? cache_->reserve(request_, total_tokens)
                : Result<std::vector<PageId>>(empty_handle("reserve"));
}

Status PrefixHandle::commit(std::span<const TokenId> tokens) {
  return cache_ ? cache_->commit(request_, tokens) : empty_handle("commit");
}

Status PrefixHandle::finish(std::span<const TokenId> tokens) {
  if (!cache_) return empty_handle("finish");
  Status status = cache_->commit(request_, tokens);
  release();
  return status;
}

void PrefixHandle::release() {
  if (!cache_) return;
  cache_->release(request_);
  cache_.reset();
}

}  // namespace hitide
