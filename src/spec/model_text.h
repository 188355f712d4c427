// ModelSpec as JSON text, for what is written down with pages and must be understood elsewhere
// (docs/formats/export.md), and two of them compared for people.
//
// Threading: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/result.h>

namespace hitide {

// One line, every field; bytes that are no UTF-8 are replaced.
std::string model_json(const ModelSpec& model);

// The model, validated. invalid_argument names the field: no JSON, a field that is missing, of
// another type or out of range. Safe on any text; costs memory in proportion to it.
Result<ModelSpec> model_from_json(std::string_view text);

// What of the identity differs, one line each: "kv_type: q8_0 in the file, f16 here". The words say
// whose each model is. Empty: both have the same namespace.
std::vector<std::string> model_differences(const ModelSpec& left, std::string_view left_words,
                                           const ModelSpec& right, std::string_view right_words);

}  // namespace hitide
