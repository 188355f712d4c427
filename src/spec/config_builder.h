// ConfigBuilder: puts a ConfigValue together from the events of a parser, and holds its bounds.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hitide/result.h>

#include "spec/config_value.h"

namespace hitide {

class ConfigBuilder {
 public:
  static constexpr std::size_t kDepthMax = 32;
  static constexpr std::size_t kValuesMax = 10'000;

  // invalid_argument: too deep, too many values, a key that its table has already. Whatever follows
  // an error is not taken.
  Status open(ConfigValue::Kind list_or_table);
  Status close();
  Status key(std::string name);
  Status scalar(ConfigValue::Kind kind, std::string text);
  // Of the values that follow.
  void line(std::size_t number) { line_ = number; }

  // The whole document. invalid_argument: the first error, or a top level that is no table.
  Result<ConfigValue> take();

 private:
  Status add(ConfigValue value);
  Status fail(std::string message);

  struct Open {
    ConfigValue value;
    std::string key = {};  // of the value that comes next
  };
  std::vector<Open> open_;
  ConfigValue root_;
  bool closed_ = false;  // the document is complete
  std::size_t values_ = 0;
  std::size_t line_ = 0;
  Status failed_;
};

}  // namespace hitide
