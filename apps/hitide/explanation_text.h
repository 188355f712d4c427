// An explanation for people, from the JSON of /hitide/explain.
#pragma once

#include <string>

#include <hitide/result.h>

namespace hitide::cli {

// invalid_argument when the text is no explanation.
Result<std::string> explanation_text(const std::string& json);

}  // namespace hitide::cli
