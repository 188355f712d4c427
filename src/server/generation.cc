#include "server/generation.h"

#include <algorithm>
#include <utility>

namespace hitide {

std::shared_ptr<Generations> Generations::create(Engine& engine,
                                                 std::shared_ptr<RequestMetrics> metrics) {
  return std::shared_ptr<Generations>(new Generations(engine, std::move(metrics)));
}

Status Generations::submit(GenerationRequest request, std::shared_ptr<void> token) {
  Choice* choice = nullptr;
  {
    const MutexLock lock(mutex_);
    choice = &choices_.emplace_back(*this, static_cast<std::uint32_t>(choices_.size()));
    choice->news.index = choice->index;
    choice->self = shared_from_this();
    choice->token = std::move(token);
  }
  const Result<std::uint64_t> id = engine_.submit(std::move(request), choice);
  const MutexLock lock(mutex_);
  if (!id.ok()) {
    choices_.pop_back();
    return id.status();
  }
  choice->id = *id;
  return {};
}

bool Generations::wait_admitted(std::uint32_t index, Duration patience) {
  MutexLock lock(mutex_);
  const Choice& choice = choices_[index];
  return changed_.wait_for(lock, patience, [&] { return choice.admitted || choice.done; });
}

bool Generations::wait_text(std::uint32_t index, Duration patience) {
  MutexLock lock(mutex_);
  const Choice& choice = choices_[index];
  return changed_.wait_for(lock, patience, [&] { return choice.wrote || choice.done; });
}

std::vector<Generations::News> Generations::take(Duration patience) {
  MutexLock lock(mutex_);
  const auto has_news = [](const Choice& choice) {
    return choice.news.done || !choice.news.text.empty();
  };
  changed_.wait_for(lock, patience, [&]() HITIDE_REQUIRES(mutex_) {
    return std::any_of(choices_.begin(), choices_.end(), has_news);
  });
  std::vector<News> taken;
  for (Choice& choice : choices_) {
    if (!has_news(choice)) continue;
    taken.push_back(
        std::exchange(choice.news, {.index = choice.index, .text = {}, .logprobs = {}}));
  }
  return taken;
}

void Generations::cancel() {
  std::vector<std::uint64_t> ids;
  {
    const MutexLock lock(mutex_);
    for (const Choice& choice : choices_) {
      if (!choice.done) ids.push_back(choice.id);
    }
  }
  for (const std::uint64_t id : ids) engine_.cancel(id);
}

bool Generations::admitted(std::uint32_t index) const {
  const MutexLock lock(mutex_);
  return choices_[index].admitted;
}

std::string Generations::explanation_id(std::uint32_t index) const {
  const MutexLock lock(mutex_);
  return choices_[index].explanation_id;
}

GenerationResult Generations::take_result(std::uint32_t index) {
  const MutexLock lock(mutex_);
  return std::move(choices_[index].result);
}

void Generations::Choice::on_admitted(const std::string& explanation) {
  const MutexLock lock(owner.mutex_);
  explanation_id = explanation;
  admitted = true;
  owner.changed_.notify_all();
}

void Generations::Choice::on_text(std::string_view text) {
  const MutexLock lock(owner.mutex_);
  news.text += text;
  wrote = true;
  owner.changed_.notify_all();
}

void Generations::Choice::on_logprob(TokenLogprob logprob) {
  const MutexLock lock(owner.mutex_);
  news.logprobs.push_back(std::move(logprob));
}

void Generations::Choice::on_done(GenerationResult outcome) {
  owner.metrics_->note(outcome);
  // Released after the lock: one of them may be the last owner of this object.
  std::shared_ptr<Generations> owner_alive;
  std::shared_ptr<void> token_alive;
  const MutexLock lock(owner.mutex_);
  owner_alive.swap(self);
  token_alive.swap(token);
  if (explanation_id.empty()) explanation_id = outcome.explanation_id;
  result = std::move(outcome);
  done = true;
  news.done = true;
  owner.changed_.notify_all();
}

}  // namespace hitide
