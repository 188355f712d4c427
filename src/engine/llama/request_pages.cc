#include "engine/llama/request_pages.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <hitide/cache.h>

#include "base/log.h"
#include "base/mutex.h"

namespace hitide {
namespace {

class CachedPages final : public RequestPages {
 public:
  explicit CachedPages(PrefixHandle handle) : handle_(std::move(handle)) {}

  PrefixState state() const override { return handle_.state(); }
  std::uint32_t cached_tokens() const override { return handle_.cached_tokens(); }
  std::string explanation_id() const override { return handle_.explanation_id(); }
  Result<SequenceId> admit() override {
    HITIDE_ASSIGN_OR_RETURN(const Admission admission, handle_.admit());
    return admission.sequence;
  }
  Status reserve(std::uint32_t total_tokens) override {
    return handle_.reserve(total_tokens).status();
  }
  Status commit(std::span<const TokenId> tokens) override { return handle_.commit(tokens); }
  void finish(std::span<const TokenId> tokens) override {
    if (!tokens.empty() && handle_.state() == PrefixState::running) {
      const Status status = handle_.finish(tokens);
      if (!status.ok() && status.code() != StatusCode::failed_precondition) {
        log_limited(LogLevel::warning, "commit_failed", std::chrono::seconds(1),
                    {{"error", status.to_string()}});
      }
    }
    handle_.release();
  }

 private:
  PrefixHandle handle_;
};

class CachedSource final : public PageSource {
 public:
  explicit CachedSource(Cache& cache) : cache_(cache) {}

  Result<std::unique_ptr<RequestPages>> open(const PrefixRequest& request) override {
    HITIDE_ASSIGN_OR_RETURN(PrefixHandle handle, cache_.open_prefix(request));
    return std::unique_ptr<RequestPages>(std::make_unique<CachedPages>(std::move(handle)));
  }
  void note_prefill(std::uint32_t tokens, Duration time) override {
    cache_.note_prefill(tokens, time);
  }
  void describe(const std::string& id, GenerationResult& result) const override {
    const Result<Explanation> explanation = cache_.explain(id);
    if (!explanation.ok()) return;  // it has left the ring
    result.cached_device = explanation.value().served_tokens(Tier::device);
    result.cached_host = explanation.value().served_tokens(Tier::host);
    result.cached_storage = explanation.value().served_tokens(Tier::storage);
    result.saved = explanation.value().saved;
  }

 private:
  Cache& cache_;
};

// Free sequences and pages, shared by all requests of a PlainSource.
class PlainPool {
 public:
  explicit PlainPool(Device& device) : device_(device), geometry_(device.geometry()) {
    for (std::uint32_t i = geometry_.sequence_count; i > 0; --i) {
      sequences_.push_back({static_cast<std::int32_t>(i - 1)});
    }
    for (std::uint32_t i = geometry_.page_count; i > 0; --i) pages_.push_back({i - 1, 0});
  }

  std::uint32_t pages_for(std::uint32_t tokens) const {
    return (tokens + geometry_.page_size - 1) / geometry_.page_size;
  }

  Status take_sequence(SequenceId& out) {
    const MutexLock lock(mutex_);
    if (sequences_.empty()) {
      return Status(StatusCode::resource_exhausted, "no sequence is free");
    }
    out = sequences_.back();
    sequences_.pop_back();
    return ok_status();
  }

  // Appends pages to `held`, the pages of `sequence`, until there are `count`.
  Status extend(SequenceId sequence, std::vector<PageId>& held, std::uint32_t count) {
    if (held.size() >= count) return ok_status();
    SequenceCommand command{.kind = SequenceCommand::Kind::extend,
                            .sequence = sequence,
                            .position = static_cast<std::uint32_t>(held.size()),
                            .pages = {}};
    {
      const MutexLock lock(mutex_);
      if (pages_.size() < count - held.size()) {
        return Status(StatusCode::resource_exhausted,
                      fmt::format("{} device pages are needed, {} are free", count - held.size(),
                                  pages_.size()));
      }
      for (std::size_t i = held.size(); i < count; ++i) {
        PageId page = pages_.back();
        pages_.pop_back();
        ++page.generation;
        command.pages.push_back(page);
      }
    }
    held.insert(held.end(), command.pages.begin(), command.pages.end());
    device_.submit(std::move(command));
    return ok_status();
  }

  void give_back(SequenceId sequence, const std::vector<PageId>& pages) {
    device_.submit(
        SequenceCommand{.kind = SequenceCommand::Kind::trim, .sequence = sequence, .pages = {}});
    const MutexLock lock(mutex_);
    pages_.insert(pages_.end(), pages.begin(), pages.end());
    sequences_.push_back(sequence);
  }

 private:
  Device& device_;
  const DeviceGeometry geometry_;
  Mutex mutex_;
  std::vector<SequenceId> sequences_ HITIDE_GUARDED_BY(mutex_);
  std::vector<PageId> pages_ HITIDE_GUARDED_BY(mutex_);
};

class PlainPages final : public RequestPages {
 public:
  PlainPages(PlainPool& pool, std::uint32_t prompt_tokens)
      : pool_(pool), prompt_tokens_(prompt_tokens) {}
  ~PlainPages() override { close(); }

  PrefixState state() const override { return state_; }
  std::uint32_t cached_tokens() const override { return 0; }
  std::string explanation_id() const override { return {}; }
  Result<SequenceId> admit() override {
    if (state_ != PrefixState::ready) {
      return Status(StatusCode::failed_precondition, "admit: the request is not ready");
    }
    HITIDE_RETURN_IF_ERROR(pool_.take_sequence(sequence_));
    const Status status = pool_.extend(sequence_, pages_, pool_.pages_for(prompt_tokens_));
    if (!status.ok()) {
      pool_.give_back(std::exchange(sequence_, SequenceId{}), {});
      return status;
    }
    state_ = PrefixState::running;
    return sequence_;
  }
  Status reserve(std::uint32_t total_tokens) override {
    return pool_.extend(sequence_, pages_, pool_.pages_for(total_tokens));
  }
  Status commit(std::span<const TokenId> /*tokens*/) override { return ok_status(); }
  void finish(std::span<const TokenId> /*tokens*/) override { close(); }

 private:
  void close() {
    if (sequence_.valid()) pool_.give_back(std::exchange(sequence_, SequenceId{}), pages_);
    pages_.clear();
    state_ = PrefixState::closed;
  }

  PlainPool& pool_;
  const std::uint32_t prompt_tokens_;
  PrefixState state_ = PrefixState::ready;
  SequenceId sequence_;
  std::vector<PageId> pages_;
};

class PlainSource final : public PageSource {
 public:
  explicit PlainSource(Device& device) : pool_(device) {}
  Result<std::unique_ptr<RequestPages>> open(const PrefixRequest& request) override {
    return std::unique_ptr<RequestPages>(
        std::make_unique<PlainPages>(pool_, static_cast<std::uint32_t>(request.tokens.size())));
  }
  void note_prefill(std::uint32_t /*tokens*/, Duration /*time*/) override {}
  void describe(const std::string& /*id*/, GenerationResult& /*result*/) const override {}

 private:
  PlainPool pool_;
};

}  // namespace

std::unique_ptr<PageSource> make_cached_source(Cache& cache) {
  return std::make_unique<CachedSource>(cache);
}

std::unique_ptr<PageSource> make_plain_source(Device& device) {
  return std::make_unique<PlainSource>(device);
}

}  // namespace hitide
