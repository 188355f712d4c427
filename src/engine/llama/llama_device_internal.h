// What LlamaDevice's parts and the probe share: a batch, and moving a range of one sequence's cells
// to bytes and back through a scratch id. Included by .cc files of this folder only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <llama.h>  // tidy: allow-third-party shared by the .cc files that call llama.cpp

#include "engine/llama/llama_device.h"

namespace hitide {

struct CellRange {
  std::int32_t source = 0;   // physical id that holds the cells, or gets them
  std::int32_t scratch = 0;  // empty before and after
  std::uint32_t begin = 0;   // positions
  std::uint32_t end = 0;
};

// Writes the range's state into `out`; 0 when it does not fit or llama.cpp failed, else the bytes
// written. The bytes begin with the scratch id and the positions, so that equal ranges of equal
// content give equal bytes. Frees no cell: all of them are the source's too.
std::size_t read_range(llama_context* context, const CellRange& range, std::span<std::byte> out);
// Bytes that read_range would write.
std::size_t range_bytes(llama_context* context, const CellRange& range);
// Appends the range from `bytes` to the source id, in new cells. False when llama.cpp refuses or
// the bytes are of other positions: then nothing has changed.
bool write_range(llama_context* context, const CellRange& range, std::span<const std::byte> bytes);

// The last physical id.
inline std::int32_t scratch_of(const LlamaDeviceOptions& options) {
  return static_cast<std::int32_t>(options.physical_count) - (options.shareable ? 1 : 0);
}

// A llama_batch of fixed capacity whose tokens belong to one sequence each.
struct LlamaDevice::Batch {
  explicit Batch(std::uint32_t capacity)
      : batch(llama_batch_init(static_cast<std::int32_t>(capacity), 0, 1)) {
    batch.n_tokens = 0;
  }
  ~Batch() { llama_batch_free(batch); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void clear() { batch.n_tokens = 0; }
  std::int32_t size() const { return batch.n_tokens; }
  void add(TokenId token, std::uint32_t position, std::int32_t sequence, bool logits) {
    const std::int32_t i = batch.n_tokens++;
    batch.token[i] = token;
    batch.pos[i] = static_cast<llama_pos>(position);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = logits ? 1 : 0;
  }

  llama_batch batch;
};

}  // namespace hitide
