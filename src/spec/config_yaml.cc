// YAML, by yaml-cpp's event interface, which does not follow aliases; the types are our own.

#include <algorithm>
#include <charconv>
#include <exception>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "spec/config_builder.h"
#include "spec/config_parsers.h"

namespace hitide {
namespace {

using Kind = ConfigValue::Kind;

bool all_of(std::string_view text, bool (*is)(char)) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is);
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// [-+] digits, with a fraction and an exponent where there is one; a sign is no part of 0x and 0o.
bool is_decimal(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  const std::size_t exponent = text.find_first_of("eE");
  if (exponent != text.npos) {
    std::string_view power = text.substr(exponent + 1);
    if (power.starts_with('-') || power.starts_with('+')) power.remove_prefix(1);
    if (!all_of(power, is_digit)) return false;
    text = text.substr(0, exponent);
  }
  const std::size_t dot = text.find('.');
  if (dot == text.npos) return all_of(text, is_digit);
  const std::string_view whole = text.substr(0, dot);
  const std::string_view fraction = text.substr(dot + 1);
  return (whole.empty() || all_of(whole, is_digit)) &&
         (fraction.empty() || all_of(fraction, is_digit)) && !(whole.empty() && fraction.empty());
}

// The number that 0x.. and 0o.. spell, in decimal; empty: it is none.
std::string from_base(std::string_view text) {
  const int base = text.starts_with("0x") ? 16 : text.starts_with("0o") ? 8 : 0;
  if (base == 0) return {};
  std::uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + 2, last, value, base);
  return error == std::errc() && end == last ? std::to_string(value) : std::string();
}

ConfigValue typed(const std::string& text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return {};
  if (is_one_of(text, {"true", "True", "TRUE"})) return {.kind = Kind::boolean, .text = "true"};
  if (is_one_of(text, {"false", "False", "FALSE"})) return {.kind = Kind::boolean, .text = "false"};
  if (is_decimal(text)) {
    return {.kind = Kind::number, .text = text.starts_with('+') ? text.substr(1) : text};
  }
  if (std::string number = from_base(text); !number.empty()) {
    return {.kind = Kind::number, .text = std::move(number)};
  }
  return {.kind = Kind::text, .text = text};
}

class YamlEvents final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (begin(mark, anchor)) scalar(mark, {});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, "aliases"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!begin(mark, anchor)) return;
    if (tag.empty() || tag == "?") return scalar(mark, typed(value));
    if (tag == "!" || tag == "tag:yaml.org,2002:str") {
      return scalar(mark, {.kind = Kind::text, .text = value});
    }
    refuse(mark, fmt::format("the tag {}", tag.substr(0, 100)));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Kind::list);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Kind::table);
  }
  void OnMapEnd() override { close(); }

  bool ok() const { return failed_.ok(); }
  Result<ConfigValue> take() {
    if (!failed_.ok()) return failed_;
    return builder_.take();
  }

 private:
  enum class Next : std::uint8_t { item, key, value };

  void keep(const Status& status, const YAML::Mark& mark) {
    if (failed_.ok() && !status.ok()) {
      failed_ = Status(StatusCode::invalid_argument,
                       fmt::format("line {}: {}", mark.line + 1, status.message()));
    }
  }
  void refuse(const YAML::Mark& mark, std::string_view what) {
    keep(Status(StatusCode::invalid_argument, fmt::format("{} cannot be used here", what)), mark);
  }
  bool begin(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) refuse(mark, "anchors");
    return failed_.ok();
  }
  // A table's keys and values come in turn.
  void advance() {
    if (next_.empty()) return;
    Next& next = next_.back();
    if (next != Next::item) next = next == Next::key ? Next::value : Next::key;
  }
  void scalar(const YAML::Mark& mark, ConfigValue value) {
    if (!next_.empty() && next_.back() == Next::key) {
      if (value.kind == Kind::null) return refuse(mark, "an empty key");
      if (value.text == "<<") return refuse(mark, "the merge key <<");
      keep(builder_.key(std::move(value.text)), mark);
    } else {
      keep(builder_.scalar(value.kind, std::move(value.text)), mark);
    }
    advance();
  }
  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Kind kind) {
    if (!begin(mark, anchor)) return;
    if (!tag.empty() && tag != "?" && tag != "!") refuse(mark, "tags on lists and tables");
    if (!next_.empty() && next_.back() == Next::key) refuse(mark, "a key that is no text");
    if (!failed_.ok()) return;
    keep(builder_.open(kind), mark);
    next_.push_back(kind == Kind::table ? Next::key : Next::item);
  }
  void close() {
    if (!failed_.ok()) return;
    keep(builder_.close(), YAML::Mark::null_mark());
    next_.pop_back();
    advance();
  }

  ConfigBuilder builder_;
  std::vector<Next> next_;  // for each open list and table
  Status failed_;
};

}  // namespace

Result<ConfigValue> parse_yaml_config(std::string_view text) {
  YamlEvents events;
  try {
    std::istringstream input{std::string(text)};
    YAML::Parser parser(input);
    // The parser goes on without end where a document begins with a comma.
    while (events.ok() && parser.HandleNextDocument(events)) {
    }
  } catch (const std::exception& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("this is not YAML: {}", std::string(error.what()).substr(0, 300)));
  }
  return events.take();
}

}  // namespace hitide
