// EmulatedPages: the pages of an emulated device, who may use which one, and who did not.
//
//   at launch        order_read, order_write: is this use ordered behind what it depends on?
//   when carried out read, write: is the page there under this generation, written, and not yet?
//
// Threading: one thread at a time; the device holds its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <hitide/emulated_device.h>

#include "device/vector_clock.h"

namespace hitide {

// "page 3 generation 2".
std::string page_name(PageId page);

class FaultLog {
 public:
  void add(DeviceFaultKind kind, PageId page, std::uint64_t op_id, std::string text);
  const std::vector<DeviceFault>& faults() const { return faults_; }

 private:
  static constexpr std::size_t kFaultsMax = 1000;
  std::vector<DeviceFault> faults_;
};

// One piece of work, as far as pages know it.
struct Worker {
  std::uint32_t stream = 0;                    // 0: the host
  std::uint64_t tick = 0;                      // its number; 0: nobody
  std::uint64_t op_id = 0;                     // of a copy batch; 0: no copy
  std::shared_ptr<const std::string> name;     // "copy 7 to host"
  std::shared_ptr<const VectorClock> ordered;  // what is done before it; null: not known
};

class EmulatedPages {
 public:
  // `log` must outlive the pages.
  EmulatedPages(const DeviceGeometry& geometry, FaultLog& log);

  bool known(PageId page) const { return page.index < pages_.size(); }
  bool filled(PageId page) const;
  // Requires known(page).
  std::uint32_t generation(PageId page) const { return pages_[page.index].generation; }
  std::span<const std::byte> bytes(PageId page) const { return pages_[page.index].bytes; }

  // The use is noted. False: it is not ordered, which has been reported.
  bool order_read(PageId page, const Worker& who);
  bool order_write(PageId page, const Worker& who);
  // The last work of the two copy streams on this page: for the order that the device owes.
  // Null: none.
  const Worker* last_copy(PageId page) const;

  // Copies the page's bytes, or poison; internal where it is not filled, which is reported unless
  // `reported` says that something was already.
  StatusCode read(PageId page, std::span<std::byte> out, const Worker& who, bool reported);
  // Fills the page. False: that must not be, and has been reported likewise.
  bool write(PageId page, std::span<const std::byte> bytes, const Worker& who, bool reported);

  // Handed out anew under this generation: not filled. Requires known(page).
  void hand_out(PageId page);
  // Given back. Requires known(page).
  void release(PageId page);

 private:
  struct Page {
    std::uint32_t generation = 0;
    bool filled = false;
    bool released = false;
    std::vector<std::byte> bytes;  // empty: never written
    Worker write;                  // tick 0: none
    std::vector<Worker> reads;     // since that write, the last one of each stream
    Worker copy;                   // of the copy streams; tick 0: none
  };

  void poison(Page& page);
  bool ordered_behind(const Worker& before, PageId page, const Worker& who, DeviceFaultKind kind);
  // True when the page is there for `who`; else it has been reported.
  bool usable(PageId page, const Worker& who, bool reported);
  static void note_copy(Page& page, const Worker& who);

  const std::uint64_t page_bytes_;
  FaultLog& log_;
  std::vector<Page> pages_;
};

}  // namespace hitide
