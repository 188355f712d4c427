// LlamaDevice: moving cells to bytes and back, and compaction.
#include <algorithm>
#include <memory>
#include <unordered_map>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/llama/llama_device_internal.h"

namespace hitide {
namespace {

std::uint64_t page_key(PageId page) { return (std::uint64_t{page.index} << 32) | page.generation; }

}  // namespace

std::size_t range_bytes(llama_context* context, const CellRange& range) {
  llama_memory_t memory = llama_get_memory(context);
  llama_memory_seq_cp(memory, range.source, range.scratch, static_cast<llama_pos>(range.begin),
                      static_cast<llama_pos>(range.end));
  const std::size_t bytes = llama_state_seq_get_size(context, range.scratch);
  llama_memory_seq_rm(memory, range.scratch, -1, -1);
  return bytes;
}

std::size_t read_range(llama_context* context, const CellRange& range, std::span<std::byte> out) {
  llama_memory_t memory = llama_get_memory(context);
  llama_memory_seq_cp(memory, range.source, range.scratch, static_cast<llama_pos>(range.begin),
                      static_cast<llama_pos>(range.end));
  const std::size_t written = llama_state_seq_get_data(
      context, reinterpret_cast<std::uint8_t*>(out.data()), out.size(), range.scratch);
  llama_memory_seq_rm(memory, range.scratch, -1, -1);
  return written;
}

bool write_range(llama_context* context, const CellRange& range, std::span<const std::byte> bytes) {
  llama_memory_t memory = llama_get_memory(context);
  const std::size_t used = llama_state_seq_set_data(
      context, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), range.scratch);
  const auto begin = static_cast<llama_pos>(range.begin);
  const auto end = static_cast<llama_pos>(range.end);
  const bool fits = used == bytes.size() &&
                    llama_memory_seq_pos_min(memory, range.scratch) == begin &&
                    llama_memory_seq_pos_max(memory, range.scratch) == end - 1;
  if (fits) llama_memory_seq_cp(memory, range.scratch, range.source, begin, end);
  llama_memory_seq_rm(memory, range.scratch, -1, -1);
  return fits;
}

// What one live sequence contributes: `shared_pages` come from `owner`, which is exported before;
// the rest, up to its fill, is in `pieces`.
struct LlamaDevice::Export {
  std::size_t sequence = 0;
  std::size_t owner = 0;
  std::uint32_t shared_pages = 0;
  struct Piece {
    std::uint32_t begin = 0;  // positions
    std::uint32_t end = 0;
    std::unique_ptr<std::byte[]> data;  // not zeroed: megabytes, in a pause that everybody feels
    std::size_t bytes = 0;
    std::span<std::byte> span() const { return {data.get(), bytes}; }
  };
  std::vector<Piece> pieces;
};

// In an order in which the owner of every shared page comes first. Sequences hold what is shared
// below what is their own, so importing in this order leaves every one in the order of positions.
std::vector<LlamaDevice::Export> LlamaDevice::plan_exports() const {
  const std::uint32_t page_size = options_.geometry.page_size;
  std::unordered_map<std::uint64_t, std::size_t> owners;  // page -> sequence that exports it
  std::vector<Export> plan;
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const Sequence& sequence = sequences_[s];
    if (!sequence.live || sequence.filled == 0) continue;
    Export item;
    item.sequence = s;
    const std::uint32_t full =
        std::min(static_cast<std::uint32_t>(sequence.pages.size()), sequence.filled / page_size);
    for (std::uint32_t k = full; k > 0 && item.shared_pages == 0; --k) {
      const auto found = owners.find(page_key(sequence.pages[k - 1]));
      if (found == owners.end()) continue;
      const std::vector<PageId>& theirs = sequences_[found->second].pages;
      if (theirs.size() < k ||
          !std::equal(theirs.begin(), theirs.begin() + k, sequence.pages.begin())) {
        continue;
      }
      item.owner = found->second;
      item.shared_pages = k;
    }
    for (std::uint32_t k = item.shared_pages; k < full; ++k) {
      owners.emplace(page_key(sequence.pages[k]), s);
    }
    const std::uint32_t step =
        options_.run_tokens_max == 0 ? options_.cells : options_.run_tokens_max;
    for (std::uint32_t p = item.shared_pages * page_size; p < sequence.filled; p += step) {
      item.pieces.push_back(
          {.begin = p, .end = std::min(p + step, sequence.filled), .data = nullptr});
    }
    plan.push_back(std::move(item));
  }
  return plan;
}

std::uint32_t LlamaDevice::cells_dead() const {
  if (!options_.shareable) return 0;
  std::uint32_t alive = 0;
  for (const Export& item : plan_exports()) {
    for (const Export::Piece& piece : item.pieces) alive += piece.end - piece.begin;
  }
  return cells_used_ > alive ? cells_used_ - alive : 0;
}

bool LlamaDevice::read_pieces(const Sequence& sequence, Export& item) {
  for (Export::Piece& piece : item.pieces) {
    const CellRange range{.source = sequence.physical,
                          .scratch = scratch_of(options_),
                          .begin = piece.begin,
                          .end = piece.end};
    piece.bytes = range_bytes(context_.get(), range);
    piece.data = std::make_unique_for_overwrite<std::byte[]>(piece.bytes);
    if (read_range(context_.get(), range, piece.span()) != piece.bytes) return false;
  }
  return true;
}

bool LlamaDevice::write_pieces(Sequence& sequence, const Export& item) {
  for (const Export::Piece& piece : item.pieces) {
    const CellRange range{.source = sequence.physical,
                          .scratch = scratch_of(options_),
                          .begin = piece.begin,
                          .end = piece.end};
    if (!write_range(context_.get(), range, piece.span())) return false;
    sequence.filled = piece.end;
    set_cells_used(cells_used_ + piece.end - piece.begin);
  }
  return true;
}

Status LlamaDevice::compact() {
  if (!options_.shareable) return ok_status();
  const TimePoint start = SystemClock::instance().now();
  std::vector<Export> plan = plan_exports();
  Status outcome;
  const auto failed = [&](std::size_t sequence, const char* action) {
    outcome = Status(StatusCode::internal,
                     fmt::format("compaction could not {} sequence {}", action, sequence));
    log_limited(LogLevel::error, "llama_compaction_failed", std::chrono::seconds(1),
                {{"error", outcome.to_string()}});
  };
  std::vector<bool> readable(sequences_.size(), false);
  for (Export& item : plan) {
    readable[item.sequence] = read_pieces(sequences_[item.sequence], item);
    if (!readable[item.sequence]) failed(item.sequence, "read");
  }

  llama_memory_t memory = llama_get_memory(context_.get());
  llama_memory_clear(memory, false);
  set_cells_used(0);
  cells_uncertain_ = false;
  physical_free_.clear();
  for (std::int32_t id = scratch_of(options_) - 1; id >= 0; --id) physical_free_.push_back(id);
  for (Sequence& sequence : sequences_) sequence.physical = -1;

  for (const Export& item : plan) {
    Sequence& sequence = sequences_[item.sequence];
    sequence.physical = physical_free_.back();
    physical_free_.pop_back();
    sequence.filled = 0;
    if (item.shared_pages > 0) {
      const Sequence& owner = sequences_[item.owner];
      const std::uint32_t shared =
          std::min(item.shared_pages * options_.geometry.page_size, owner.filled);
      llama_memory_seq_cp(memory, owner.physical, sequence.physical, 0,
                          static_cast<llama_pos>(shared));
      sequence.filled = shared;
      if (shared < item.shared_pages * options_.geometry.page_size) continue;
    }
    if (readable[item.sequence] && !write_pieces(sequence, item)) failed(item.sequence, "write");
  }

  const Duration stall = SystemClock::instance().now() - start;
  metrics_.compactions.add();
  metrics_.compaction_cells.add(cells_used_);
  metrics_.compaction_seconds.observe(to_seconds(stall));
  if (stall.count() > metrics_.compaction_ns_max.load()) {
    metrics_.compaction_ns_max.store(stall.count());  // one writer: the step thread
  }
  return outcome;
}

Status LlamaDevice::check() const {
  const auto broken = [](int number, std::size_t sequence) {
    return Status(StatusCode::internal,
                  fmt::format("llama device: invariant {} does not hold for {}", number, sequence));
  };
  llama_memory_t memory = llama_get_memory(context_.get());
  if (!options_.shareable) return ok_status();
  std::vector<int> owners(static_cast<std::size_t>(scratch_of(options_)), 0);
  std::unordered_map<std::uint64_t, std::uint32_t> positions;
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const Sequence& sequence = sequences_[s];
    if (!sequence.live) {
      if (sequence.physical >= 0 || sequence.filled > 0) return broken(1, s);
      continue;
    }
    if (sequence.filled > 0 &&
        (sequence.physical < 0 || llama_memory_seq_pos_min(memory, sequence.physical) != 0 ||
         llama_memory_seq_pos_max(memory, sequence.physical) + 1 <
             static_cast<llama_pos>(sequence.filled))) {
      return broken(1, s);
    }
    if (sequence.physical >= 0 && ++owners[static_cast<std::size_t>(sequence.physical)] > 1) {
      return broken(5, s);
    }
    for (std::uint32_t i = 0; i < sequence.pages.size(); ++i) {
      if (positions.emplace(page_key(sequence.pages[i]), i).first->second != i) {
        return broken(2, s);
      }
    }
  }
  if (cells_used_ > options_.cells) return broken(3, cells_used_);
  if (llama_memory_seq_pos_max(memory, scratch_of(options_)) >= 0) return broken(4, 0);
  for (const std::int32_t id : physical_free_) {
    if (++owners[static_cast<std::size_t>(id)] > 1 || llama_memory_seq_pos_max(memory, id) >= 0) {
      return broken(5, static_cast<std::size_t>(id));
    }
  }
  return ok_status();
}

}  // namespace hitide
