// Generations: the requests in the engine that make up one answer, seen from the thread that
// answers it. The engine's step thread puts text in; the server's thread takes it out or gives up.
//
// They keep themselves alive until the last on_done, so that the server's thread may leave at any
// time.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"
#include "server/sglang_metrics.h"

namespace hitide {

class Generations final : public std::enable_shared_from_this<Generations> {
 public:
  // What has come of one choice since the last take().
  struct News {
    std::uint32_t index = 0;
    std::string text;
    std::vector<TokenLogprob> logprobs;
    bool done = false;  // its last news; reported once
  };

  // The engine must outlive them. `metrics` is told how each ends.
  static std::shared_ptr<Generations> create(Engine& engine,
                                             std::shared_ptr<RequestMetrics> metrics);
  Generations(const Generations&) = delete;
  Generations& operator=(const Generations&) = delete;

  // The next choice, with indices from 0 on. `token` is held until the engine is done with it. As
  // Engine::submit. For the thread that takes.
  Status submit(GenerationRequest request, std::shared_ptr<void> token);

  // Whether that choice is admitted or done; waits until it is, or until the time is up.
  bool wait_admitted(std::uint32_t index, Duration patience);
  // Whether that choice has text or is done; waits, and takes nothing.
  bool wait_text(std::uint32_t index, Duration patience);
  // Waits for news of any choice, or until the time is up; then there is none.
  std::vector<News> take(Duration patience);
  // Any time; their ends come soon. No-op for those that are done.
  void cancel();

  // Whether it was admitted; one that failed before was not.
  bool admitted(std::uint32_t index) const;
  // Known once it is admitted, empty when it failed before.
  std::string explanation_id(std::uint32_t index) const;
  // Requires done.
  GenerationResult take_result(std::uint32_t index);

 private:
  struct Choice final : GenerationSink {
    Choice(Generations& of, std::uint32_t number) : owner(of), index(number) {}
    void on_admitted(const std::string& explanation) override;
    void on_text(std::string_view text) override;
    void on_logprob(TokenLogprob logprob) override;
    void on_done(GenerationResult result) override;

    Generations& owner;
    const std::uint32_t index;
    // Guarded by the owner's mutex_.
    std::uint64_t id = 0;               // 0: not known yet
    std::shared_ptr<Generations> self;  // until on_done
    std::shared_ptr<void> token;        // until on_done
    News news;
    std::string explanation_id;
    GenerationResult result;
    bool admitted = false;
    bool wrote = false;  // text has come
    bool done = false;
  };

  Generations(Engine& engine, std::shared_ptr<RequestMetrics> metrics)
      : engine_(engine), metrics_(std::move(metrics)) {}

  Engine& engine_;
  const std::shared_ptr<RequestMetrics> metrics_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Choice> choices_ HITIDE_GUARDED_BY(mutex_);  // elements stay where they are
};

}  // namespace hitide
