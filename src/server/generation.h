// Generation: one request in the engine, seen from the thread that answers it. The engine's step
// thread puts text in; the server's thread takes it out or gives up.
//
// It keeps itself alive until on_done, so that the server's thread may leave at any time.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "engine/engine.h"

namespace hitide {

class Generation final : public GenerationSink, public std::enable_shared_from_this<Generation> {
 public:
  // What has come since the last take().
  struct Progress {
    bool admitted = false;
    bool done = false;
    std::string text;
  };

  // `token` is held until the engine is done with the request. The engine must outlive it.
  static Result<std::shared_ptr<Generation>> start(Engine& engine, GenerationRequest request,
                                                   std::shared_ptr<void> token);

  // Waits until it is admitted or done, or until the time is up.
  Progress wait_admitted(Duration patience);
  // Waits for more text or the end, or until the time is up.
  Progress take(Duration patience);
  // Any time; the end comes soon. No-op once done.
  void cancel();

  // Known once admitted, empty when it failed before.
  std::string explanation_id() const;
  // Requires done.
  GenerationResult take_result();

  void on_admitted(const std::string& explanation_id) override;
  void on_text(std::string_view text) override;
  void on_done(GenerationResult result) override;

 private:
  explicit Generation(Engine& engine) : engine_(engine) {}
  Progress progress_locked();

  Engine& engine_;
  std::uint64_t id_ = 0;  // set before the server's thread sees the object
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Generation> self_;  // guarded by mutex_; until on_done
  std::shared_ptr<void> token_;       // guarded by mutex_; until on_done
  std::string explanation_id_;        // guarded by mutex_
  std::string text_;                  // guarded by mutex_
  GenerationResult result_;           // guarded by mutex_
  bool admitted_ = false;             // guarded by mutex_
  bool done_ = false;                 // guarded by mutex_
};

}  // namespace hitide
