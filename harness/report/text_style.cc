// SPDX-License-Identifier: Apache-2.0
// Colours for terminals.
#include "harness/report/text_style.h"

#include <unistd.h>

#include <cstdlib>

namespace lockstep::harness {

bool wants_colour(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* term = std::getenv("TERM");
  if (term == nullptr || std::string_view(term) == "dumb") return false;
  return isatty(fd) == 1;
}

std::string verdict_mark(Verdict verdict, bool colour) {
  struct Mark {
    const char* word;
    const char* colour_on;
  };
  constexpr Mark kPassed = {"ok   ", "\x1b[32m"};
  constexpr Mark kFailed = {"FAIL ", "\x1b[1;31m"};
  constexpr Mark kSkipped = {"skip ", "\x1b[33m"};
  constexpr Mark kDefect = {"BUG  ", "\x1b[1;35m"};
  const Mark mark = verdict == Verdict::kPassed    ? kPassed
                    : verdict == Verdict::kFailed  ? kFailed
                    : verdict == Verdict::kSkipped ? kSkipped
                                                   : kDefect;
  if (!colour) return mark.word;
  return std::string(mark.colour_on) + mark.word + "\x1b[0m";
}

std::string emphasised(std::string_view text, bool colour) {
  if (!colour) return std::string(text);
  return "\x1b[1m" + std::string(text) + "\x1b[0m";
}

}  // namespace lockstep::harness
