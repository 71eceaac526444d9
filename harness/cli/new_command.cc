// SPDX-License-Identifier: Apache-2.0
// lockstep new: a scenario to start from.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/report/printable.h"
#include "harness/scenario.h"

namespace lockstep::harness::cli {

namespace {

bool is_printable_line(const std::string& text) {
  return printable(text) == text && text.find_first_of("\n\t") == std::string::npos;
}

/// Creates `file`, which must not exist: the check and the creation are one step.
void write_new_file(const std::string& file, const std::string& text) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  LOCKSTEP_USAGE(descriptor >= 0 || errno != EEXIST,
                 "{} exists already; give another name or remove it", file);
  LOCKSTEP_USAGE(descriptor >= 0, "cannot write {}: {}", file, std::strerror(errno));
  std::size_t written = 0;
  int error = 0;
  while (written < text.size() && error == 0) {
    const ssize_t count = ::write(descriptor, text.data() + written, text.size() - written);
    if (count >= 0) {
      written += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (::close(descriptor) != 0 && error == 0) error = errno;
  if (error != 0) ::unlink(file.c_str());
  LOCKSTEP_USAGE(error == 0, "cannot write {}: {}", file, std::strerror(error));
}

}  // namespace

void add_new_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand("new", "Write a commented scenario to start from");
  command->footer("Example: lockstep new my_case && lockstep check my_case.toml");
  const auto name = std::make_shared<std::string>();
  command->add_option("NAME", *name, "Writes NAME.toml; an existing file is left alone")
      ->required();
  command->callback([name, &exit_status] {
    LOCKSTEP_USAGE(is_printable_line(*name),
                   "the name '{}' has characters that a terminal would act on or that are not "
                   "UTF-8; the file's name becomes the scenario's title, so use printable ones",
                   printable(*name));
    std::filesystem::path file(*name);
    LOCKSTEP_USAGE(file.has_filename(), "'{}' names no file; expected a NAME for NAME.toml", *name);
    if (file.extension() != ".toml") file += ".toml";
    const std::string text = scenario_template(file.stem().string());
    parse_scenario_text(text, file.string());
    write_new_file(file.string(), text);
    fmt::print("wrote {0}; try: lockstep check {0}\n", file.string());
    exit_status = kAllAsExpected;
  });
}

}  // namespace lockstep::harness::cli
