// JSON, by nlohmann-json's event interface: it keeps no stack of its own that depth could exhaust,
// and shows every key, also those that come twice.

#include <exception>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "spec/config_builder.h"
#include "spec/config_parsers.h"

namespace hitide {
namespace {

using Kind = ConfigValue::Kind;

class JsonEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return go_on(builder_.scalar(Kind::null, "")); }
  bool boolean(bool value) override {
    return go_on(builder_.scalar(Kind::boolean, value ? "true" : "false"));
  }
  bool number_integer(number_integer_t value) override {
    return go_on(builder_.scalar(Kind::number, std::to_string(value)));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return go_on(builder_.scalar(Kind::number, std::to_string(value)));
  }
  bool number_float(number_float_t, const string_t& spelling) override {
    return go_on(builder_.scalar(Kind::number, spelling));
  }
  bool string(string_t& value) override { return go_on(builder_.scalar(Kind::text, value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return go_on(builder_.open(Kind::table)); }
  bool key(string_t& name) override { return go_on(builder_.key(name)); }
  bool end_object() override { return go_on(builder_.close()); }
  bool start_array(std::size_t) override { return go_on(builder_.open(Kind::list)); }
  bool end_array() override { return go_on(builder_.close()); }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) override {
    message = std::string(error.what()).substr(0, 300);
    return false;
  }

  Result<ConfigValue> take() { return builder_.take(); }
  std::string message;  // of the text itself; empty: it is JSON as far as it was read

 private:
  static bool go_on(const Status& status) { return status.ok(); }
  ConfigBuilder builder_;
};

}  // namespace

Result<ConfigValue> parse_json_config(std::string_view text) {
  JsonEvents events;
  try {
    nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  } catch (const std::exception& error) {
    events.message = std::string(error.what()).substr(0, 300);
  }
  if (!events.message.empty()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("this is not JSON: {}", events.message));
  }
  return events.take();
}

}  // namespace hitide
