// SequenceTable: what the sequences of an emulated device consist of, and which command does not
// fit them (<hitide/device.h>, SequenceCommand).
//
// Threading: one thread at a time; the device holds its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <hitide/device.h>

#include "device/emulated_pages.h"

namespace hitide {

class SequenceTable {
 public:
  using Pages = std::vector<PageId>;

  // Both must outlive the table.
  SequenceTable(const DeviceGeometry& geometry, EmulatedPages& pages, FaultLog& log);

  // A command that does not fit is reported; what of it makes sense is done all the same.
  void apply(const SequenceCommand& command);

  // Null: the sequence is free.
  const Pages* find(SequenceId sequence) const;
  std::size_t in_use() const { return sequences_.size(); }
  // Where the sequences that hold the page have it. Null: none does.
  struct Place {
    PageId page;
    std::uint32_t position = 0;
    PageId before;              // invalid at position 0
    std::uint32_t holders = 0;  // sequences
  };
  const Place* place(PageId page) const;
  // True when the page is the first of its sequences, or the one before it is filled.
  bool follows_filled(const Place& place) const;

 private:
  void violation(const SequenceCommand& command, PageId page, const std::string& text);
  // True when a sequence other than `except` starts with exactly these pages.
  bool shared(const Pages& prefix, std::int32_t except) const;
  void bind(const SequenceCommand& command);
  void extend(const SequenceCommand& command);
  void replace(const SequenceCommand& command);
  void trim(const SequenceCommand& command);
  // A sequence holds this page at the end of `own`, or does not hold it any more.
  void hold(const SequenceCommand& command, const Pages& own, PageId page);
  void let_go(PageId page);

  const std::uint32_t sequence_count_;
  EmulatedPages& pages_;
  FaultLog& log_;
  std::map<std::int32_t, Pages> sequences_;  // those in use
  std::vector<Place> places_;                // by page index; holders 0: none
};

}  // namespace hitide
