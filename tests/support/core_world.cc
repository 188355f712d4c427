#include "tests/support/core_world.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/hash.h"

namespace hitide {
namespace {
constexpr std::uint64_t kGarbage = 0xdeadbeefdeadbeefull;
// A request that finds no room gets it after so many rounds in which all is answered.
constexpr int kRoundsForRoom = 8;
}  // namespace

CoreWorld::CoreWorld(const WorldOptions& options)
    : options_(options), random_(options.seed), core_(options.core) {}

CoreWorld::Content CoreWorld::truth(RequestId id, const std::vector<TokenId>& tokens,
                                    std::uint32_t page) const {
  const std::size_t end = std::size_t{page + 1} * options_.core.page_size;
  Checksum64 sum;
  const std::string& space = spaces_.at(id);
  sum.update(std::as_bytes(std::span(space)));
  sum.update(std::as_bytes(std::span(tokens).first(end)));
  return sum.finish();
}

RequestId CoreWorld::open(const std::vector<TokenId>& prompt, const std::string& salt) {
  return open_as({}, salt, prompt);
}

RequestId CoreWorld::open_as(const std::optional<std::string>& adapter,
                             const std::optional<std::string>& salt,
                             const std::vector<TokenId>& prompt) {
  Plan plan;
  PrefixRequest request;
  request.tokens = prompt;
  if (adapter) request.extra_key = *adapter;
  if (salt) request.cache_salt = *salt;
  const Result<RequestId> id = core_.open(request, now_, plan);
  take(plan);
  if (!id.ok()) {
    violate(id.status().to_string());
    return 0;
  }
  prompts_[*id] = prompt;
  spaces_[*id] = fmt::format("{}:{}:{}:{}", adapter ? std::to_string(adapter->size()) : "none",
                             adapter.value_or(""), salt.value_or("").size(), salt.value_or(""));
  return *id;
}

bool CoreWorld::admit(RequestId id) {
  Plan plan;
  const Result<Admission> admission = core_.admit(id, now_, plan);
  take(plan);
  if (!admission.ok()) {
    if (admission.status().code() != StatusCode::resource_exhausted) {
      violate(admission.status().to_string());
    }
    return false;
  }
  const std::size_t wanted =
      (prompts_[id].size() + options_.core.page_size - 1) / options_.core.page_size;
  if (admission->pages.size() != wanted) violate("admit: wrong number of pages");
  return true;
}

bool CoreWorld::compute(RequestId id, std::uint32_t generated) {
  // The engine computes on the thread that carries out device commands, so they come first.
  while (!device_queue_.empty()) step_device();
  const std::uint32_t page_size = options_.core.page_size;
  std::vector<TokenId> tokens = prompts_[id];
  const std::uint32_t cached = core_.cached_tokens(id);
  if (cached >= tokens.size() || cached % page_size != 0) violate("cached_tokens out of range");
  verify_explanation(id, tokens);
  // A load or a commit may have exchanged ids: what the engine reads are the current ones.
  const std::vector<PageId> current = core_.pages(id);
  for (std::uint32_t page = 0; page < cached / page_size; ++page) {
    const auto it = device_.find(current[page].index);
    if (it == device_.end() || it->second != truth(id, tokens, page)) {
      violate(fmt::format("request {}: page {} does not hold what it must", id, page));
    }
  }
  for (std::uint32_t i = 0; i < generated; ++i) {
    tokens.push_back(static_cast<TokenId>(random_.below(3)));
  }
  Plan plan;
  const Result<std::vector<PageId>> more =
      core_.reserve(id, static_cast<std::uint32_t>(tokens.size()), now_, plan);
  take(plan);
  while (!device_queue_.empty()) step_device();
  if (!more.ok()) return false;
  const std::vector<PageId> grown = core_.pages(id);
  if (grown.size() != current.size() + more->size()) violate("reserve: wrong number of pages");
  for (std::uint32_t page = cached / page_size; page < tokens.size() / page_size; ++page) {
    device_[grown[page].index] = truth(id, tokens, page);
  }
  Plan commit_plan;
  const Status status = core_.commit(id, tokens, now_, commit_plan);
  if (!status.ok()) violate(status.to_string());
  take(commit_plan);
  return true;
}

void CoreWorld::verify_explanation(RequestId id, const std::vector<TokenId>& prompt) {
  const Explanation* found = core_.explain(core_.explanation_id(id));
  if (found == nullptr || !found->complete) return violate("no explanation");
  last_explanation_ = *found;
  std::uint32_t at = 0;
  for (const ServedSpan& span : found->served) {
    if (span.begin != at || span.end <= span.begin) violate("served spans have a gap");
    at = span.end;
  }
  if (at != core_.cached_tokens(id)) violate("served spans are not cached_tokens");
  for (const MissedSpan& span : found->missed) {
    if (span.begin != at || span.end <= span.begin) violate("missed spans have a gap");
    at = span.end;
  }
  if (at != prompt.size()) violate("spans do not sum to the prompt");
}

void CoreWorld::release(RequestId id) {
  Plan plan;
  core_.release(id, now_, plan);
  take(plan);
  prompts_.erase(id);
}

void CoreWorld::flush() {
  Plan plan;
  core_.flush(now_, plan);
  take(plan);
}

void CoreWorld::drain() {
  Plan plan;
  core_.drain(now_, plan);
  take(plan);
}

void CoreWorld::take(Plan& plan) {
  for (PlanOp& op : plan.ops) {
    if (std::holds_alternative<CopyOp>(op) || std::holds_alternative<SequenceCommand>(op)) {
      device_queue_.push_back(std::move(op));
    } else {
      storage_queue_.push_back(std::move(op));
    }
  }
}

bool CoreWorld::in_some_sequence(PageId page, std::uint32_t position) const {
  for (const auto& [id, sequence] : sequences_) {
    if (position < sequence.pages.size() && sequence.pages[position] == page) return true;
  }
  return false;
}

void CoreWorld::run_command(const SequenceCommand& command) {
  Sequence& sequence = sequences_[command.sequence.value];
  std::vector<PageId>& pages = sequence.pages;
  switch (command.kind) {
    case SequenceCommand::Kind::bind: {
      if (!pages.empty()) violate("bind of a sequence that is not empty");
      bool found = false;
      for (const auto& [id, other] : sequences_) {
        found =
            found || (other.pages.size() >= command.pages.size() &&
                      std::equal(command.pages.begin(), command.pages.end(), other.pages.begin()));
      }
      if (!found) violate("bind of pages that no sequence holds");
      pages = command.pages;
      break;
    }
    case SequenceCommand::Kind::extend:
      if (pages.size() != command.position) violate("extend leaves a gap");
      for (const PageId page : command.pages) device_[page.index] = kGarbage;
      pages.insert(pages.end(), command.pages.begin(), command.pages.end());
      break;
    case SequenceCommand::Kind::replace:
      for (std::size_t i = 0; i < command.pages.size(); ++i) {
        const std::size_t at = command.position + i;
        if (at >= pages.size()) {
          violate("replace behind the end of a sequence");
          break;
        }
        if (device_[pages[at].index] != device_[command.pages[i].index]) {
          violate("replace by other content");
        }
        if (!in_some_sequence(command.pages[i], static_cast<std::uint32_t>(at))) {
          violate("replace by a page that no sequence holds");
        }
        pages[at] = command.pages[i];
      }
      break;
    case SequenceCommand::Kind::trim:
      if (command.position > pages.size()) violate("trim to more pages than there are");
      pages.resize(std::min<std::size_t>(command.position, pages.size()));
      break;
  }
}

void CoreWorld::run_copy(const CopyOp& copy) {
  if (copy.direction == CopyDirection::to_device) {
    advance(options_.speeds.load_page * static_cast<std::int64_t>(copy.pages.size()));
  }
  Completion completion;
  completion.id = copy.id;
  bool failed = false;
  for (std::size_t i = 0; i < copy.pages.size(); ++i) {
    failed = failed || random_.chance(options_.faults.copy_fails);
    completion.pages.push_back(failed ? StatusCode::internal : StatusCode::ok);
    const auto [device, host] = copy.pages[i];
    const auto position = static_cast<std::uint32_t>(copy.first_position + i);
    if (copy.direction == CopyDirection::to_host) {
      if (options_.core.device_sequences > 0 && !in_some_sequence(device, position)) {
        violate("a page is saved that no sequence holds");
      }
      host_[host.index] = failed ? kGarbage : device_[device.index];
    } else {
      device_[device.index] = failed ? kGarbage : host_[host.index];
    }
  }
  complete(std::move(completion));
}

void CoreWorld::step_device() {
  if (device_queue_.empty()) return;
  const PlanOp op = std::move(device_queue_.front());
  device_queue_.pop_front();
  if (const auto* command = std::get_if<SequenceCommand>(&op)) run_command(*command);
  if (const auto* copy = std::get_if<CopyOp>(&op)) run_copy(*copy);
}

void CoreWorld::step_storage() {
  if (storage_queue_.empty()) return;
  const std::size_t which = random_.below(storage_queue_.size());
  const PlanOp op = std::move(storage_queue_[which]);
  storage_queue_.erase(storage_queue_.begin() + static_cast<std::ptrdiff_t>(which));
  run_storage(op);
}

void CoreWorld::run_storage(const PlanOp& op) {
  Duration time = options_.speeds.storage_call;
  if (const auto* read = std::get_if<StorageReadOp>(&op)) {
    time += options_.speeds.read_page * static_cast<std::int64_t>(read->keys.size());
  }
  if (time > Duration::zero()) advance(time);
  if (const auto* agree = std::get_if<AgreeOp>(&op)) {
    Completion completion;
    completion.id = agree->id;
    for (const std::uint8_t stop : agree->stop_points) {
      completion.pages.push_back(stop ? StatusCode::ok : StatusCode::not_found);
    }
    return complete(std::move(completion));
  }
  const bool fails = random_.chance(options_.faults.storage_fails);
  if (const auto* query = std::get_if<StorageQueryOp>(&op)) {
    Completion completion;
    completion.id = query->id;
    for (const PageKey& key : query->keys) {
      completion.pages.push_back(fails                 ? StatusCode::unavailable
                                 : storage_.count(key) ? StatusCode::ok
                                                       : StatusCode::not_found);
    }
    return complete(std::move(completion));
  }
  if (const auto* write = std::get_if<StorageWriteOp>(&op)) {
    Completion completion;
    completion.id = write->id;
    for (std::size_t i = 0; i < write->keys.size(); ++i) {
      const bool page_fails = fails || failing_writes_.erase(writes_++) > 0;
      completion.pages.push_back(page_fails ? StatusCode::unavailable : StatusCode::ok);
      const Content content = host_[write->host_pages[i].index];
      if (page_fails) continue;
      const auto [it, fresh] = storage_.try_emplace(write->keys[i], content);
      if (fresh) stored_order_.push_back(write->keys[i]);
      if (!fresh && it->second != content) violate("two contents for one key");
    }
    return complete(std::move(completion));
  }
  if (const auto* read = std::get_if<StorageReadOp>(&op)) finish_read(*read);
}

void CoreWorld::finish_read(const StorageReadOp& read) {
  Completion completion;
  completion.id = read.id;
  const bool fails = random_.chance(options_.faults.storage_fails);
  for (std::size_t i = 0; i < read.keys.size(); ++i) {
    Content& content = host_[read.host_pages[i].index];
    const auto it = storage_.find(read.keys[i]);
    StatusCode code = StatusCode::ok;
    if (fails) code = StatusCode::unavailable;
    if (random_.chance(options_.faults.page_damaged)) code = StatusCode::data_loss;
    if (it == storage_.end() || random_.chance(options_.faults.page_lost)) {
      code = StatusCode::not_found;
    }
    content = code == StatusCode::ok ? it->second : kGarbage;
    completion.pages.push_back(code);
  }
  const bool bad = completion.pages.front() != StatusCode::ok;
  if (bad && random_.chance(options_.faults.busy_after)) {
    completion.buffers_busy_until = now_ + std::chrono::seconds(12);
    scribbles_.push_back({read.host_pages, completion.buffers_busy_until});
  }
  complete(std::move(completion));
}

void CoreWorld::fail_writes(std::set<std::uint32_t> which) {
  failing_writes_ = std::move(which);
  writes_ = 0;
}

CoreWorld::Stored CoreWorld::take_storage() {
  Stored stored;
  for (const PageKey& key : stored_order_) {
    const auto it = storage_.find(key);
    if (it != storage_.end()) stored.emplace_back(key, it->second);
  }
  storage_.clear();
  stored_order_.clear();
  return stored;
}

void CoreWorld::give_storage(const Stored& stored, std::size_t pages) {
  for (std::size_t i = 0; i < std::min(pages, stored.size()); ++i) storage_.insert(stored[i]);
}

void CoreWorld::complete(Completion completion) {
  if (random_.chance(options_.faults.duplicate)) completions_.push_back(completion);
  completions_.push_back(std::move(completion));
}

void CoreWorld::deliver() {
  if (completions_.empty()) return;
  const std::size_t which = random_.below(completions_.size());
  const Completion completion = std::move(completions_[which]);
  completions_.erase(completions_.begin() + static_cast<std::ptrdiff_t>(which));
  Plan plan;
  core_.on_completion(completion, now_, plan);
  take(plan);
}

void CoreWorld::deliver_all() {
  for (std::size_t left = completions_.size(); left > 0; --left) deliver();
}

void CoreWorld::advance(Duration by) {
  now_ += by;
  for (auto it = scribbles_.begin(); it != scribbles_.end();) {
    if (it->until > now_) {
      for (const PageId page : it->pages) host_[page.index] = kGarbage;
      ++it;
    } else {
      it = scribbles_.erase(it);
    }
  }
  Plan plan;
  core_.tick(now_, plan);
  take(plan);
}

void CoreWorld::settle() {
  while (!device_queue_.empty() || !storage_queue_.empty() || !completions_.empty()) {
    step_device();
    step_storage();
    deliver();
  }
}

std::array<std::uint32_t, 3> CoreWorld::run(const std::vector<TokenId>& prompt,
                                            const std::string& salt, std::uint32_t generated) {
  return put_through(open(prompt, salt), generated);
}

std::array<std::uint32_t, 3> CoreWorld::run_as(const std::optional<std::string>& adapter,
                                               const std::optional<std::string>& salt,
                                               const std::vector<TokenId>& prompt) {
  return put_through(open_as(adapter, salt, prompt), 0);
}

std::array<std::uint32_t, 3> CoreWorld::put_through(RequestId id, std::uint32_t generated) {
  settle();
  if (core_.state(id) == PrefixState::waiting) advance(std::chrono::seconds(60));
  bool admitted = admit(id);
  for (int round = 0; !admitted && round < kRoundsForRoom; ++round) {
    settle();
    advance(std::chrono::seconds(15));  // what is in quarantine comes free
    admitted = admit(id);
  }
  if (!admitted) violate("run: no room");
  settle();
  if (core_.state(id) != PrefixState::running) violate("run: not running");
  bool computed = compute(id, generated);
  for (int round = 0; !computed && round < kRoundsForRoom; ++round) {
    settle();
    computed = compute(id, generated);
  }
  if (!computed) violate("run: no room to grow");
  settle();
  release(id);
  settle();
  return {last_explanation_.served_tokens(Tier::device),
          last_explanation_.served_tokens(Tier::host),
          last_explanation_.served_tokens(Tier::storage)};
}

}  // namespace hitide
