// Grammars (GBNF, rule `root`) whose texts are JSON: any object, or what a JSON schema describes.
// docs/server.md says which keywords are taken; what a grammar cannot say is refused, never left
// out.
//
// Properties come in the schema's order; those that are not required may be left out. With
// properties, none but these are written, whatever additionalProperties allows.
#pragma once

#include <string>
#include <string_view>

#include <hitide/result.h>

namespace hitide {

// Of one JSON object with anything in it.
std::string json_object_grammar();

// `document` is JSON, and the schema is what `pointer` names in it ("/response_format/..."; empty:
// all of it). invalid_argument: it is none, a keyword that is not taken or is wrong (with its
// place, as "#/properties/age"), or a schema with too many parts. Cost: linear in the document and
// in what comes out, which is bounded.
Result<std::string> json_schema_grammar(std::string_view document, const std::string& pointer);

}  // namespace hitide
