// A real Mooncake for tests (mooncake_stack.py): a master and an owner, in a private network
// namespace where this process may have one, so that nothing listens outside.
#pragma once

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "spec/mooncake_options.h"

namespace hitide {

// Call first in main(), before there is a thread. Prints what it got.
void enter_private_network();

bool can_import_mooncake(const std::string& python);
// The interpreter with the package (HITIDE_MOONCAKE_PYTHON, else build/venv/bin/python), or empty
// and why not.
std::string find_mooncake_python(std::string& why_not);

class MooncakeStack {
 public:
  // disks: embedded, and owners may keep objects on their disks.
  enum class Mode : std::uint8_t { embedded, standalone, disks };
  // Fails the test where it does not start.
  explicit MooncakeStack(const std::string& python, int segment_mb = 512,
                         Mode mode = Mode::embedded);
  ~MooncakeStack();
  MooncakeStack(const MooncakeStack&) = delete;
  MooncakeStack& operator=(const MooncakeStack&) = delete;

  const std::string& python() const { return python_; }
  bool ready() const { return !master_.empty(); }
  // One command of mooncake_stack.py.
  void tell(const std::string& command);
  // For a client of this store, with lanes and memory of a size for tests.
  MooncakeOptions options() const;

 private:
  std::string read_line();

  const std::string python_;
  int pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string read_ahead_;
  std::string master_;
  int metrics_port_ = 0;
  int daemon_port_ = 0;
};

}  // namespace hitide
