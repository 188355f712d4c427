#include "server/json_grammar.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace hitide {
namespace {

using Json = nlohmann::ordered_json;  // properties keep their order

constexpr std::size_t kRulesMax = 4000;
constexpr std::size_t kBytesMax = 200u << 10;
constexpr std::size_t kCountMax = 1000;  // of repetitions; llama.cpp takes twice as many
// Names are looked up one after the other; so a text with more of them in one object is not read.
constexpr std::size_t kNamesMax = 512;

// What all grammars share. A line break and an indentation are allowed between parts, and no more,
// or a model could write blanks for ever.
constexpr std::string_view kBasics =
    "ws ::= (\" \" | \"\\n\" \" \"{0,16})?\n"
    "char ::= [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15})\n"
    "number ::= integer (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n"
    "value ::= object | array | string | number | boolean | null\n"
    "member ::= string ws \":\" ws value\n"
    "object ::= \"{\" ws (member ws (\",\" ws member ws)*)? \"}\"\n"
    "array ::= \"[\" ws (value ws (\",\" ws value ws)*)? \"]\"\n";

// Say nothing about the text.
constexpr std::array<std::string_view, 11> kAnnotations = {
    "title",   "description", "default",   "examples", "deprecated",      "readOnly",
    "$schema", "$id",         "writeOnly", "$comment", "contentMediaType"};

std::string literal_of(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string literal(const Json& value) {
  return literal_of(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// "x{2,5}", "x{2,}"; `most` none: any number.
std::string repeated(std::string_view what, std::size_t least, std::optional<std::size_t> most) {
  return most ? fmt::format("{}{{{},{}}}", what, least, *most)
              : fmt::format("{}{{{},}}", what, least);
}

class Converter {
 public:
  explicit Converter(const Json& root) : root_(root) {}

  Result<std::string> convert() {
    const std::string top = rule_for(root_, "#");
    if (!failed_.ok()) return failed_;
    std::string out = fmt::format("root ::= {}\n", top);
    out += kBasics;
    for (const std::string& rule : rules_) out += rule;
    return out;
  }

 private:
  // Each answers a rule's name, or an expression that can stand for one; "" once it has failed.
  std::string rule_for(const Json& schema, const std::string& place);
  std::string any_of(const Json& list, const std::string& place);
  std::string one_of_values(const Json& list, const std::string& place);
  std::string of_type(const Json& schema, std::string_view type, const std::string& place);
  std::string object_for(const Json& schema, const std::string& place);
  std::string with_properties(const Json& schema, const Json& properties, const std::string& place);
  std::string array_for(const Json& schema, const std::string& place);
  std::string string_for(const Json& schema, const std::string& place);
  std::string reference(const Json& schema, const std::string& place);

  struct Bounds {
    std::size_t least = 0;
    std::optional<std::size_t> most;
  };
  Bounds bounds(const Json& schema, const char* least, const char* most, const std::string& place);
  // Fails for the first keyword that is neither an annotation nor among `known`.
  bool check_keywords(const Json& schema, std::initializer_list<std::string_view> known,
                      const std::string& place);

  std::string fail(const std::string& place, std::string_view why) {
    if (failed_.ok()) {
      failed_ =
          Status(StatusCode::invalid_argument, fmt::format("{}: {}", place.substr(0, 200), why));
    }
    return {};
  }
  std::string reserve() { return fmt::format("r{}", next_++); }
  std::string add(const std::string& name, std::string_view body) {
    std::string rule = fmt::format("{} ::= {}\n", name, body);
    bytes_ += rule.size();
    if (rules_.size() >= kRulesMax || bytes_ > kBytesMax) {
      return fail("#", "the schema has too many parts");
    }
    rules_.push_back(std::move(rule));
    return name;
  }

  const Json& root_;
  std::vector<std::string> rules_;
  std::map<std::string, std::string> references_;  // rule by pointer
  std::size_t next_ = 0;
  std::size_t bytes_ = 0;
  Status failed_;
};

bool Converter::check_keywords(const Json& schema, std::initializer_list<std::string_view> known,
                               const std::string& place) {
  for (const auto& [key, value] : schema.items()) {
    const auto is = [&key = key](std::string_view name) { return name == key; };
    if (std::any_of(kAnnotations.begin(), kAnnotations.end(), is)) continue;
    if (is("$defs") || is("definitions")) continue;
    if (std::any_of(known.begin(), known.end(), is)) continue;
    fail(place, fmt::format("'{}' is not taken here", key.substr(0, 100)));
    return false;
  }
  return true;
}

Converter::Bounds Converter::bounds(const Json& schema, const char* least, const char* most,
                                    const std::string& place) {
  Bounds result;
  const auto read = [&](const char* name) -> std::optional<std::size_t> {
    const auto found = schema.find(name);
    if (found == schema.end()) return std::nullopt;
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() > kCountMax) {
      fail(place, fmt::format("{} is no whole number in 0..{}", name, kCountMax));
      return std::nullopt;
    }
    return found->get<std::size_t>();
  };
  result.least = read(least).value_or(0);
  result.most = read(most);
  if (result.most && *result.most < result.least) {
    fail(place, fmt::format("{} is more than {}", least, most));
  }
  return result;
}

std::string Converter::rule_for(const Json& schema, const std::string& place) {
  if (!failed_.ok()) return {};
  if (schema.is_boolean()) {
    return schema.get<bool>() ? "value" : fail(place, "false allows nothing");
  }
  if (!schema.is_object()) return fail(place, "must be an object");
  if (schema.contains("$ref")) return reference(schema, place);
  if (schema.contains("const")) {
    if (!check_keywords(schema, {"const", "type"}, place)) return {};
    return add(reserve(), literal(schema["const"]));
  }
  if (schema.contains("enum")) {
    if (!check_keywords(schema, {"enum", "type"}, place)) return {};
    return one_of_values(schema["enum"], place + "/enum");
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    if (!schema.contains(key)) continue;
    if (!check_keywords(schema, {key}, place)) return {};
    return any_of(schema[key], place + "/" + key);
  }
  if (schema.contains("allOf")) {
    const Json& all = schema["allOf"];
    if (!check_keywords(schema, {"allOf"}, place)) return {};
    if (!all.is_array() || all.size() != 1) {
      return fail(place + "/allOf", "only a list of one schema is taken");
    }
    return rule_for(all[0], place + "/allOf/0");
  }
  const auto type = schema.find("type");
  if (type == schema.end()) {
    if (schema.contains("properties")) return object_for(schema, place);
    if (schema.contains("items") || schema.contains("prefixItems")) {
      return array_for(schema, place);
    }
    return check_keywords(schema, {}, place) ? "value" : "";
  }
  if (type->is_string()) return of_type(schema, type->get_ref<const std::string&>(), place);
  if (!type->is_array() || type->empty()) return fail(place + "/type", "must be a type's name");
  std::vector<std::string> choices;
  for (const Json& name : *type) {
    if (!name.is_string()) return fail(place + "/type", "must be a list of types' names");
    // The keywords of one type say nothing about the others.
    Json part = Json::object();
    const std::string& word = name.get_ref<const std::string&>();
    for (const auto& [key, value] : schema.items()) {
      const bool of_object =
          key == "properties" || key == "required" || key == "additionalProperties";
      const bool of_array =
          key == "items" || key == "prefixItems" || key == "minItems" || key == "maxItems";
      const bool of_string = key == "minLength" || key == "maxLength" || key == "format";
      if ((of_object && word != "object") || (of_array && word != "array") ||
          (of_string && word != "string")) {
        continue;
      }
      part[key] = value;
    }
    choices.push_back(of_type(part, word, place));
    if (!failed_.ok()) return {};
  }
  return add(reserve(), fmt::format("{}", fmt::join(choices, " | ")));
}

std::string Converter::of_type(const Json& schema, std::string_view type,
                               const std::string& place) {
  if (type == "object") return object_for(schema, place);
  if (type == "array") return array_for(schema, place);
  if (type == "string") return string_for(schema, place);
  for (const std::string_view plain : {"integer", "number", "boolean", "null"}) {
    if (type != plain) continue;
    return check_keywords(schema, {"type"}, place) ? std::string(plain) : std::string();
  }
  return fail(place + "/type", fmt::format("'{}' is no type", type.substr(0, 100)));
}

std::string Converter::any_of(const Json& list, const std::string& place) {
  if (!list.is_array() || list.empty()) return fail(place, "must be a list of schemas");
  std::vector<std::string> choices;
  for (std::size_t i = 0; i < list.size() && failed_.ok(); ++i) {
    choices.push_back(rule_for(list[i], fmt::format("{}/{}", place, i)));
  }
  return failed_.ok() ? add(reserve(), fmt::format("{}", fmt::join(choices, " | "))) : "";
}

std::string Converter::one_of_values(const Json& list, const std::string& place) {
  if (!list.is_array() || list.empty()) return fail(place, "must be a list of values");
  std::vector<std::string> choices;
  for (const Json& value : list) choices.push_back(literal(value));
  return add(reserve(), fmt::format("{}", fmt::join(choices, " | ")));
}

std::string Converter::string_for(const Json& schema, const std::string& place) {
  if (!check_keywords(schema, {"type", "minLength", "maxLength", "format"}, place)) return {};
  const Bounds length = bounds(schema, "minLength", "maxLength", place);
  if (!failed_.ok()) return {};
  if (length.least == 0 && !length.most) return "string";
  return add(reserve(),
             fmt::format("\"\\\"\" {} \"\\\"\"", repeated("char", length.least, length.most)));
}

std::string Converter::array_for(const Json& schema, const std::string& place) {
  if (!check_keywords(schema, {"type", "items", "prefixItems", "minItems", "maxItems"}, place)) {
    return {};
  }
  const Bounds count = bounds(schema, "minItems", "maxItems", place);
  std::vector<std::string> first;
  if (const auto prefix = schema.find("prefixItems"); prefix != schema.end()) {
    if (!prefix->is_array()) return fail(place + "/prefixItems", "must be a list of schemas");
    for (std::size_t i = 0; i < prefix->size() && failed_.ok(); ++i) {
      first.push_back(rule_for((*prefix)[i], fmt::format("{}/prefixItems/{}", place, i)));
    }
  }
  const auto items = schema.find("items");
  const bool closed = items != schema.end() && items->is_boolean() && !items->get<bool>();
  const std::string item =
      items == schema.end() || closed ? "value" : rule_for(*items, place + "/items");
  if (!failed_.ok()) return {};
  if (!first.empty()) {
    // All of them are written: JSON Schema lets an array end early, and no harm is done by the
    // opposite.
    if (count.least > first.size() || (count.most && *count.most < first.size())) {
      return fail(place, "minItems and maxItems do not go with prefixItems of another number");
    }
    return add(reserve(), fmt::format("\"[\" ws {} ws \"]\"", fmt::join(first, " ws \",\" ws ")));
  }
  if (closed || (count.most && *count.most == 0)) return add(reserve(), "\"[\" ws \"]\"");
  const std::string more = add(reserve(), fmt::format("\",\" ws {} ws", item));
  if (!failed_.ok()) return {};
  std::optional<std::size_t> most;
  if (count.most) most = *count.most - 1;
  const std::size_t least = count.least == 0 ? 0 : count.least - 1;
  std::string inside = fmt::format("{} ws {}", item, repeated(more, least, most));
  if (count.least == 0) inside = "(" + inside + ")?";
  return add(reserve(), fmt::format("\"[\" ws {} \"]\"", inside));
}

std::string Converter::object_for(const Json& schema, const std::string& place) {
  if (!check_keywords(schema, {"type", "properties", "required", "additionalProperties"}, place)) {
    return {};
  }
  const auto properties = schema.find("properties");
  if (properties != schema.end() && !properties->is_object()) {
    return fail(place + "/properties", "must be an object");
  }
  static const Json kNone = Json::object();
  const Json& known = properties == schema.end() ? kNone : *properties;
  if (const auto required = schema.find("required"); required != schema.end()) {
    if (!required->is_array()) return fail(place + "/required", "must be a list of names");
    for (const Json& name : *required) {
      if (!name.is_string() || !known.contains(name.get_ref<const std::string&>())) {
        return fail(place + "/required", "names a property that is not in properties");
      }
    }
  }
  if (!known.empty()) return with_properties(schema, known, place);
  const auto more = schema.find("additionalProperties");
  if (more == schema.end() || *more == true) return "object";
  if (*more == false) return add(reserve(), "\"{\" ws \"}\"");
  const std::string value = rule_for(*more, place + "/additionalProperties");
  if (!failed_.ok()) return {};
  const std::string member = add(reserve(), fmt::format("string ws \":\" ws {} ws", value));
  return add(reserve(), fmt::format("\"{{\" ws ({0} (\",\" ws {0})*)? \"}}\"", member));
}

// begin(i): nothing has been written yet, and property i is the next that may be; more(i):
// something has. Property by property from the last, so that each rule names those behind it.
std::string Converter::with_properties(const Json& schema, const Json& properties,
                                       const std::string& place) {
  std::vector<std::string> members;
  std::vector<bool> needed;
  const auto required = schema.find("required");
  for (const auto& [name, value] : properties.items()) {
    const std::string rule = rule_for(value, fmt::format("{}/properties/{}", place, name));
    if (!failed_.ok()) return {};
    members.push_back(
        add(reserve(), fmt::format("{} ws \":\" ws {} ws", literal(Json(name)), rule)));
    const auto is = [&name = name](const Json& other) { return other == name; };
    needed.push_back(required != schema.end() &&
                     std::any_of(required->begin(), required->end(), is));
  }
  std::string begin;  // "": the end
  std::string more;
  for (std::size_t i = members.size(); i > 0; --i) {
    const std::string& member = members[i - 1];
    const bool optional = !needed[i - 1];
    const auto then = [&](const std::string& rest, std::string_view comma) {
      std::string body = fmt::format("{}{} {}", comma, member, more);
      if (optional) body += rest.empty() ? " | \"\"" : " | " + rest;
      return body;
    };
    const std::string begin_body = then(begin, "");
    const std::string more_body = then(more, "\",\" ws ");
    begin = add(reserve(), begin_body);
    more = add(reserve(), more_body);
    if (!failed_.ok()) return {};
  }
  return add(reserve(), fmt::format("\"{{\" ws {} \"}}\"", begin));
}

std::string Converter::reference(const Json& schema, const std::string& place) {
  if (!check_keywords(schema, {"$ref"}, place)) return {};
  if (!schema["$ref"].is_string()) return fail(place + "/$ref", "must be a string");
  const std::string& pointer = schema["$ref"].get_ref<const std::string&>();
  if (pointer.empty() || pointer[0] != '#') {
    return fail(place + "/$ref", "only places within the schema (#/...) are taken");
  }
  const auto known = references_.find(pointer);
  if (known != references_.end()) return known->second;
  const Json* target = nullptr;
  try {
    target = &root_.at(Json::json_pointer(pointer.substr(1)));
  } catch (const Json::exception&) {
    return fail(place + "/$ref", fmt::format("there is no '{}'", pointer.substr(0, 100)));
  }
  // Known before its parts are: they may name it again.
  const std::string name = reserve();
  references_[pointer] = name;
  const std::string body = rule_for(*target, pointer);
  return failed_.ok() ? add(name, body) : "";
}

// The most names in one object of `json`.
std::size_t names_in(const nlohmann::json& json) {
  std::size_t most = json.is_object() ? json.size() : 0;
  if (json.is_structured()) {
    for (const auto& item : json) most = std::max(most, names_in(item));
  }
  return most;
}

}  // namespace

std::string json_object_grammar() { return "root ::= object\n" + std::string(kBasics); }

Result<std::string> json_schema_grammar(std::string_view document, const std::string& pointer) {
  const auto refuse = [](std::string message) {
    return Status(StatusCode::invalid_argument, std::move(message));
  };
  try {
    if (names_in(nlohmann::json::parse(document)) > kNamesMax) {
      return refuse(fmt::format("an object has more than {} names", kNamesMax));
    }
    const Json json = Json::parse(document);
    return Converter(json.at(Json::json_pointer(pointer))).convert();
  } catch (const std::exception& error) {
    return refuse(
        fmt::format("it is no JSON schema: {}", std::string(error.what()).substr(0, 300)));
  }
}

}  // namespace hitide
