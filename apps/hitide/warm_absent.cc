// `hitide warm` of a build without llama.cpp: through a server alone.

#include "warm_target.h"

namespace hitide::cli {

Result<std::unique_ptr<WarmTarget>> open_warm_engine(const GivenOptions& /*given*/) {
  return Status(StatusCode::invalid_argument,
                "this build has no engine (HITIDE_BUILD_SERVE=OFF): give --url");
}

}  // namespace hitide::cli
