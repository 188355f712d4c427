// How a server's storage is, for people, from the JSON of /hitide/storage.
#pragma once

#include <string>

#include <hitide/result.h>

namespace hitide::cli {

struct StorageText {
  std::string text;
  bool on = false;
};

// invalid_argument when the JSON does not say how storage is.
Result<StorageText> storage_text(const std::string& json);

}  // namespace hitide::cli
