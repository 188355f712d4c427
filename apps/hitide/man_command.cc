// hitide man: manual pages, written from the commands' own options.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "argument_checks.h"
#include "cli.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "man";

// Text for roff: no line begins with a control character, and backslashes and dashes are meant.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += "\\&";
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  });
  return text;
}

// "store up" -> "hitide-store-up".
std::string page_name(std::string command) {
  std::replace(command.begin(), command.end(), ' ', '-');
  return command.empty() ? "hitide" : "hitide-" + command;
}

std::string head(const std::string& name, const std::string& what) {
  return ".TH " + upper(roff(name)) +
         " 1 \"\" \"hitide " HITIDE_VERSION "\" \"HiTide\"\n.SH NAME\n" + roff(name) + " \\- " +
         roff(what) + "\n";
}

std::string option_text(const CLI::Option& option) {
  const bool positional = option.get_positional() && option.nonpositional() == false;
  std::string out = ".TP\n\\fB" + roff(option.get_name(positional, !positional)) + "\\fR";
  if (option.get_type_size() != 0 && !option.get_type_name().empty()) {
    out += " \\fI" + roff(option.get_type_name()) + "\\fR";
  }
  out += "\n" + roff(option.get_description());
  if (!option.get_default_str().empty()) out += " Default: " + roff(option.get_default_str()) + ".";
  if (option.get_required()) out += " Required.";
  return out + "\n";
}

constexpr const char* kExitCodes =
    ".SH EXIT STATUS\n"
    ".TP\n0\nDone.\n"
    ".TP\n1\nIt was tried and did not work; a line on standard error says why.\n"
    ".TP\n2\nWrong option, value or argument; nothing was tried.\n"
    ".TP\n3\nThe server cannot be reached, the port cannot be taken, or the store cannot be used.\n"
    ".TP\n4\nWhat was asked for is not there.\n"
    ".TP\n5\nIt was found damaged.\n"
    ".TP\n128 + n\nEnded by signal n.\n";

std::string command_page(const std::string& name, const CLI::App& command) {
  std::string out = head(page_name(name), command.get_description());
  out += ".SH SYNOPSIS\n\\fBhitide " + roff(name) + "\\fR [\\fIOPTION\\fR]...";
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) out += " \\fI" + roff(option->get_name(true, false)) + "\\fR";
  }
  out += "\n.SH OPTIONS\n";
  for (const std::string& group : command.get_groups()) {
    const auto in_group = [&](const CLI::Option* option) { return option->get_group() == group; };
    const std::vector<const CLI::Option*> options = command.get_options(in_group);
    if (options.empty() || group.empty()) continue;
    if (group != "Options" && group != "OPTIONS") out += ".SS " + roff(group) + "\n";
    for (const CLI::Option* option : options) out += option_text(*option);
  }
  const std::string footer = command.get_footer();
  if (!footer.empty()) out += ".SH NOTES\n" + roff(footer) + "\n";
  return out + kExitCodes + ".SH SEE ALSO\n.BR hitide (1)\n";
}

struct Page {
  std::string name;
  std::string text;
};

void add_pages(const std::string& above, const CLI::App& app, std::vector<Page>& pages) {
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::string name =
        above.empty() ? command->get_name() : above + " " + command->get_name();
    if (command->get_subcommands({}).empty()) {
      pages.push_back({page_name(name), command_page(name, *command)});
    } else {
      add_pages(name, *command, pages);
    }
  }
}

std::vector<Page> all_pages(const CLI::App& app) {
  std::vector<Page> pages;
  add_pages("", app, pages);
  std::string out = head("hitide", app.get_description()) +
                    ".SH SYNOPSIS\n\\fBhitide\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR]...\n"
                    ".SH COMMANDS\n";
  std::string also;
  for (const Page& page : pages) {
    const std::string what = page.text.substr(page.text.find(" \\- ") + 4);
    out += ".TP\n.BR " + roff(page.name) + " (1)\n" + what.substr(0, what.find('\n')) + "\n";
  }
  pages.insert(pages.begin(), Page{"hitide", out + kExitCodes});
  return pages;
}

int write_page(const std::string& folder, const Page& page) {
  const std::string path = folder + "/" + page.name + ".1";
  errno = 0;
  std::FILE* const file = std::fopen(path.c_str(), "w");
  bool written = file != nullptr && std::fputs(page.text.c_str(), file) >= 0;
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (written) return kDone;
  return complain(kCommand, path + ": " + std::generic_category().message(errno), kFailed);
}

int write_pages(const CLI::App& app, const std::string& name, const std::string& folder) {
  const std::vector<Page> pages = all_pages(app);
  if (!folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return complain(kCommand, folder + ": " + error.message(), kFailed);
    for (const Page& page : pages) {
      if (const int code = write_page(folder, page); code != kDone) return code;
    }
    return kDone;
  }
  const std::string wanted = page_name(name);
  for (const Page& page : pages) {
    if (page.name != wanted) continue;
    std::fputs(page.text.c_str(), stdout);
    return printed(kCommand);
  }
  return complain(kCommand, "'" + name + "' is no command; hitide --help lists them", kUsage);
}

}  // namespace

void add_man(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      kCommand, "Print a manual page (hitide man serve | man -l -), or write all.");
  struct Arguments {
    std::string name;
    std::string folder;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::Option* name =
      command->add_option("command", arguments->name, "Of which command. Default: the overview.")
          ->check(not_empty)
          ->type_name("COMMAND");
  command->add_option("--directory", arguments->folder, "Write all of them there, NAME.1 each.")
      ->check(not_empty)
      ->excludes(name)
      ->type_name("DIR");
  command->callback([&run, &app, arguments] {
    run = [&app, arguments] { return write_pages(app, arguments->name, arguments->folder); };
  });
}

}  // namespace hitide::cli
