#include "server/generation.h"

#include <utility>

namespace hitide {

Result<std::shared_ptr<Generation>> Generation::start(Engine& engine, GenerationRequest request,
                                                      std::shared_ptr<void> token) {
  std::shared_ptr<Generation> generation(new Generation(engine));
  {
    const std::lock_guard lock(generation->mutex_);
    generation->self_ = generation;
    generation->token_ = std::move(token);
  }
  const Result<std::uint64_t> id = engine.submit(std::move(request), generation.get());
  if (!id.ok()) {
    const std::lock_guard lock(generation->mutex_);
    generation->self_.reset();
    generation->token_.reset();
    return id.status();
  }
  generation->id_ = *id;
  return generation;
}

Generation::Progress Generation::progress_locked() {
  Progress progress;
  progress.admitted = admitted_;
  progress.done = done_;
  progress.text.swap(text_);
  return progress;
}

Generation::Progress Generation::wait_admitted(Duration patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return admitted_ || done_; });
  return {admitted_, done_, {}};
}

Generation::Progress Generation::take(Duration patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return done_ || !text_.empty(); });
  return progress_locked();
}

void Generation::cancel() {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
  }
  engine_.cancel(id_);
}

std::string Generation::explanation_id() const {
  const std::lock_guard lock(mutex_);
  return explanation_id_;
}

GenerationResult Generation::take_result() {
  const std::lock_guard lock(mutex_);
  return std::move(result_);
}

void Generation::on_admitted(const std::string& explanation_id) {
  const std::lock_guard lock(mutex_);
  explanation_id_ = explanation_id;
  admitted_ = true;
  changed_.notify_all();
}

void Generation::on_text(std::string_view text) {
  const std::lock_guard lock(mutex_);
  text_ += text;
  changed_.notify_all();
}

void Generation::on_done(GenerationResult result) {
  // Released after the lock: one of them may be the last owner of this object.
  std::shared_ptr<Generation> self;
  std::shared_ptr<void> token;
  const std::lock_guard lock(mutex_);
  self.swap(self_);
  token.swap(token_);
  if (explanation_id_.empty()) explanation_id_ = result.explanation_id;
  result_ = std::move(result);
  done_ = true;
  changed_.notify_all();
}

}  // namespace hitide
