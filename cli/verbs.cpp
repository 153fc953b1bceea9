#include "cli/verbs.hpp"

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "cli/output.hpp"

namespace shardplan {

// One line a verb: its file is cli/<name>.cpp.
void add_bubble(CLI::App& app);
void add_cluster(CLI::App& app);
void add_collective(CLI::App& app);
void add_kernel(CLI::App& app);
void add_measure(CLI::App& app);
void add_experts(CLI::App& app);
void add_memory(CLI::App& app);
void add_model(CLI::App& app);
void add_plan(CLI::App& app);
void add_router(CLI::App& app);
void add_simulate(CLI::App& app);
void add_validate(CLI::App& app);
void add_compare(CLI::App& app);

namespace {

constexpr std::array kVerbs = {
    Verb{"plan", add_plan},       Verb{"simulate", add_simulate},     Verb{"model", add_model},
    Verb{"memory", add_memory},   Verb{"cluster", add_cluster},       Verb{"bubble", add_bubble},
    Verb{"kernel", add_kernel},   Verb{"collective", add_collective}, Verb{"experts", add_experts},
    Verb{"router", add_router},   Verb{"measure", add_measure},       Verb{"validate", add_validate},
    Verb{"compare", add_compare},
};

/// What a person typed may hold anything: one line on a terminal, of bounded length.
std::string one_line(const std::string& text) {
  constexpr std::size_t kLongest = 400;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) {
      out += c;
    } else {
      out += '?';
    }
  }
  return text.size() > kLongest ? out + "..." : out;
}

int fail(const std::string& where, const std::string& what, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s: %s\n", one_line(where).c_str(), one_line(what).c_str());
  return code;
}

/// A full disk or a closed pipe must not look like an answer.
int end_of_answer() {
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0
                                                              : fail("stdout", "the answer could not be written", 2);
}

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* verb : app.get_subcommands({})) out.push_back(verb->get_name());
  return out;
}

/// The deepest verb that was given, for "did you mean" among its options.
const CLI::App* deepest(const CLI::App* app) {
  for (auto given = app->get_subcommands(); !given.empty(); given = app->get_subcommands()) app = given.front();
  return app;
}

/// Verbs that a user may look for and that do not exist.
constexpr std::array<std::pair<const char*, const char*>, 7> kNotBuilt{{
    {"serve",
     "serving (prefill and decode as a service); `kernel` and `model show` price single kernels and the KV cache"},
    {"require", "the least of a resource for which a plan exists; ask `plan` with several --gpus"},
    {"export", "launch files of frameworks; `plan` prints layouts as words"},
    {"import", "launch files of frameworks; give the layout as words to `simulate`"},
    {"check", "launch files of frameworks; give the layout as words to `simulate --explain`"},
    {"report", "pages; every verb prints text or --format json"},
    {"sweep", "sweeps; run `plan` or `simulate` once a question"},
}};

int fail_on_arguments(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* verb = deepest(&app);
  const auto rest = app.remaining(true);
  if (!rest.empty()) {
    const std::string& word = rest.front();
    if (word.starts_with('-')) {
      std::vector<std::string> options;
      for (const CLI::Option* option : verb->get_options()) {
        for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
      }
      return fail(word, "unknown option" + did_you_mean(word.substr(0, word.find('=')), options), 2);
    }
    for (const auto& [name, what] : kNotBuilt)
      if (verb == &app && word == name) return fail(word, std::string("not built: ") + what, 2);
    const auto verb_names = names_of(*verb);
    if (!verb_names.empty()) return fail(word, "unknown verb" + did_you_mean_or_list(word, verb_names), 2);
    return fail(word, "unexpected word", 2);
  }
  std::string what = error.what();
  if (what.rfind("A subcommand is required", 0) == 0) {
    std::string list;
    for (const std::string& name : names_of(*verb)) list += (list.empty() ? "" : ", ") + name;
    return fail(verb->get_name(), "needs a verb: " + list, 2);
  }
  if (const auto end = what.find('\n'); end != std::string::npos) what.resize(end);
  // CLI11 writes "--name: what": keep its place as ours.
  if (what.rfind("--", 0) == 0) {
    if (const auto missing = what.find(": 1 required TEXT missing"); missing != std::string::npos)
      return fail(what.substr(0, missing), "needs a value", 2);
    if (const auto colon = what.find(": "); colon != std::string::npos)
      return fail(what.substr(0, colon), what.substr(colon + 2), 2);
    if (const auto space = what.find(' '); space != std::string::npos)
      return fail(what.substr(0, space), what.substr(space + 1), 2);
  }
  return fail(verb->get_name().empty() ? "shardplan" : verb->get_name(), what, 2);
}

}  // namespace

std::span<const Verb> verbs() { return kVerbs; }

namespace {

/// --timing stands anywhere: elapsed time goes to stderr, so that answers keep their bytes.
std::vector<const char*> without_timing(int argc, const char* const* argv, bool& timed) {
  std::vector<const char*> out;
  for (int i = 0; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--timing") {
      timed = true;
    } else {
      out.push_back(argv[i]);
    }
  }
  return out;
}

int run_verb(int argc, const char* const* argv) {
  try {
    CLI::App app{"Plans and simulates parallel layouts of transformers on GPU clusters.", "shardplan"};
    app.require_subcommand(1);
    app.set_version_flag("--version", "shardplan 0.1.0");
    app.footer("--timing with any verb prints the elapsed time on stderr.");
    for (const Verb& verb : verbs()) verb.add(app);
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& done) {
      return app.exit(done) == 0 ? 0 : 2;
    } catch (const CLI::ParseError& error) {
      return fail_on_arguments(app, error);
    }
    return end_of_answer();
  } catch (const ExitCode& code) {
    return code.code;
  } catch (const UnavailableError& error) {
    return fail(error.where(), error.what(), 3);
  } catch (const InputError& error) {
    return fail(error.where(), error.what(), 2);
  } catch (const std::bad_alloc&) {
    return fail("memory", "the question needs more memory than this machine has", 2);
  } catch (const std::exception& error) {
    return fail("internal", error.what(), 2);
  }
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  bool timed = false;
  const std::vector<const char*> words = without_timing(argc, argv, timed);
  const auto start = std::chrono::steady_clock::now();
  const int code = run_verb(static_cast<int>(words.size()), words.data());
  if (timed) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "elapsed %.3f s\n", elapsed.count());
  }
  return code;
}

}  // namespace shardplan
