// Tests with a real Mooncake store. Without the package they are skipped, with exit status 77.
#include <iostream>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/integration/mooncake_environment.h"

namespace hitide {
namespace {

std::string python;
std::unique_ptr<MooncakeStack> stack;
std::unique_ptr<MooncakeStack> daemon_stack;

class SharedStack : public testing::Environment {
 public:
  void SetUp() override {
    stack = std::make_unique<MooncakeStack>(python);
    ASSERT_TRUE(stack->ready());
  }
  void TearDown() override {
    daemon_stack.reset();
    stack.reset();
  }
};

}  // namespace

MooncakeStack& mooncake_stack() {
  HITIDE_CHECK(stack != nullptr, "the store is not up");
  return *stack;
}

MooncakeStack& mooncake_daemon_stack() {
  if (!daemon_stack) {
    daemon_stack = std::make_unique<MooncakeStack>(python, 512, MooncakeStack::Mode::standalone);
  }
  return *daemon_stack;
}

}  // namespace hitide

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  std::string why_not;
  hitide::python = hitide::find_mooncake_python(why_not);
  if (hitide::python.empty()) {
    std::cout << "skipped: " << why_not << "\n";
    return 77;
  }
  hitide::enter_private_network();
  testing::AddGlobalTestEnvironment(new hitide::SharedStack);
  return RUN_ALL_TESTS();
}
