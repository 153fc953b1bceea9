// `validate` on training runs as a person runs it: tables, effects switched off, constants, the gate. The rows are
// invented.
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "layouts/score_runs.hpp"
#include "layouts/step/constants.hpp"
#include "layouts/step/question.hpp"
#include "tests/run_program.hpp"
#include "tests/scratch.hpp"

namespace {

using nlohmann::json;

Answer validate(const std::string& arguments) { return run("validate " + arguments); }

const std::string kRows = "--rows " SHARDPLAN_SOURCE_DIR "/tests/data/invented_runs.json ";

json asked(const std::string& arguments) {
  const Answer answer = validate(kRows + "--format json " + arguments);
  INFO(answer.text);
  REQUIRE(answer.code == 0);
  return json::parse(answer.text);
}

const json& row_of(const json& answer, const std::string& id) {
  for (const json& row : answer.at("rows"))
    if (row.at("id") == id) return row;
  throw std::out_of_range(id);
}

std::size_t lines_with(const std::string& text, const std::string& word) {
  std::size_t n = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("Runs are told by family, its parts, and all together; skips and notes with their rows", "[cli][validate]") {
  const Answer answer = validate(kRows);
  CHECK(answer.code == 0);
  for (const char* word : {"regret%", "memory%", "worst row", "\n  alpha dense ", "\n  alpha moe ", "\noverall ",
                           "skipped 1: model/layers: is not stated [no-layers]",
                           "note on 1: recompute unknown: predicted with none [unknown-recompute]"}) {
    INFO(word << "\n" << answer.text);
    CHECK(answer.text.find(word) != std::string::npos);
  }
  CHECK(answer.text.find("beta dense") == std::string::npos);  // one part only: nothing to divide
  CHECK(validate(kRows).text == answer.text);
}

TEST_CASE("A run that trains adapters is skipped, a run whose name only contains the letters is not",
          "[cli][validate]") {
  const auto skipped = [&](const std::string& id, const char* notes) {
    json row = json::parse(std::ifstream(SHARDPLAN_SOURCE_DIR "/tests/data/invented_runs.json")).at("rows").at(0);
    row["id"] = id;
    row["notes"] = notes;
    return shardplan::read_run(shardplan::Field::parse(row.dump(), "row")).skipped.value_or("");
  };
  for (const auto& [id, notes] : {std::pair{"x-lora-1", ""}, std::pair{"x_LoRA", ""}, std::pair{"x", "LoRA rank-16"}}) {
    INFO(id << " " << notes);
    CHECK(skipped(id, notes).find("lora: frozen weights") != std::string::npos);
  }
  CHECK(skipped("x-exploration", "of Flora").empty());
}

TEST_CASE("The JSON names the worst row and the figures of all rows", "[cli][validate]") {
  const json answer = asked("");
  CHECK(answer.at("rows").size() == 8);
  CHECK(answer.at("families").size() == 2);
  CHECK(answer.at("overall").at("n") == 7);
  CHECK(answer.at("overall").at("skipped") == 1);
  const json& beta = answer.at("families").at("beta");
  CHECK(beta.at("worst") == "plot-read");
  CHECK(beta.at("max_ape").get<double>() ==
        Approx(std::abs(row_of(answer, "plot-read").at("error").get<double>())).epsilon(1e-12));
}

TEST_CASE("--marked-only leaves out figures that the file does not mark", "[cli][validate]") {
  const json answer = asked("--marked-only");
  CHECK(answer.at("rows").size() == 7);
  CHECK(answer.at("families").at("beta").at("n") == 1);
  CHECK(answer.at("marked_only") == true);
}

TEST_CASE("Effects switched off by name change the rows that have them, and no others", "[cli][validate]") {
  const json all = asked("");
  const json none = asked("--without recompute,tp-communication");
  CHECK(none.at("without") == json({"recompute", "tp-communication"}));
  const auto seconds = [](const json& answer, const char* id) {
    return row_of(answer, id).at("predicted_s").get<double>();
  };
  CHECK(seconds(none, "dense-tp1") == seconds(all, "dense-tp1"));
  CHECK(seconds(none, "dense-tp8") < seconds(all, "dense-tp8"));
  // Without both, full recomputation costs what none does.
  CHECK(seconds(none, "dense-full") == Approx(seconds(none, "dense-tp2")).epsilon(1e-12));
  CHECK(seconds(all, "dense-full") > 1.15 * seconds(all, "dense-tp2"));
}

TEST_CASE("Every effect of the list can be asked for and is named in --help", "[cli][validate]") {
  const std::string help = validate("--help").text;
  std::string squeezed;
  for (const char c : help)
    if (c != '\n' && c != ' ') squeezed += c;
  for (const std::string_view name : shardplan::kEffectNames) {
    INFO(name);
    CHECK(squeezed.find(name) != std::string::npos);
    CHECK(validate(kRows + "--family beta --without " + std::string(name)).code == 0);
  }
  CHECK(help.find("1 a limit of --fail-if is broken") != std::string::npos);
}

TEST_CASE("--constants lists each fitted constant with unit, neutral value, rows and meaning", "[cli][validate]") {
  for (const std::string set : {"", " --leave-out"}) {
    const Answer answer = validate("--constants --format json" + set);
    REQUIRE(answer.code == 0);
    const json constants = json::parse(answer.text).at("constants");
    CHECK(constants.size() > 60);
    for (const json& c : constants) {
      INFO(c.dump());
      CHECK_FALSE(c.at("meaning").get<std::string>().empty());
      CHECK((c.at("unit") == "s" || c.at("unit") == "1"));
      CHECK(c.at("value").get<double>() > 0);
      CHECK(c.at("neutral").is_number());
      CHECK(c.at("rows").get<int>() > 0);
      if (c.contains("range")) {
        CHECK(c.at("value").get<double>() >= c.at("range").at(0).get<double>());
        CHECK(c.at("value").get<double>() <= c.at("range").at(1).get<double>());
      }
    }
  }
  const std::string text = validate("--constants").text;
  CHECK(text.find("kernel_launch_s") != std::string::npos);
  CHECK(text.find("infiniband-400") != std::string::npos);
}

TEST_CASE("A fit of no rounds keeps the values and counts their rows", "[cli][validate]") {
  const Scratch scratch;
  const std::string out = scratch.write("constants.json", "");
  REQUIRE(validate(kRows + "--fit-constants " + out + " --fit-all --fit-rounds 0").code == 0);
  std::ifstream file(out);
  const json counted = json::parse(file);
  // Four dense and one MoE run of family alpha and one of beta are marked `score`.
  CHECK(counted.at("stacks").at("megatron-core").at("rows") == 6);
  CHECK(counted.at("hosts").at("megatron-core").at("rows") == 6);
  CHECK(counted.at("machines").at("h100-sxm").at("rows").at("bf16") == 6);
  CHECK(counted.at("machines").at("infiniband-400").at("rows").at("message_s") == 1);
  std::map<std::string, double> kept;
  for (const shardplan::FittedConstant& c : shardplan::fitted_constants(shardplan::ConstantSet::all))
    kept[c.scope + "/" + c.name] = c.value;
  CHECK(counted.at("machines").at("h100-sxm").at("bf16") == kept.at("h100-sxm/bf16"));
  CHECK(counted.at("stacks").at("megatron-core").at("step_s") == kept.at("megatron-core/step_s"));
  CHECK(validate(kRows + "--fit-constants " + out + " --fit-rounds -1").code == 2);
}

TEST_CASE("Cross-validation predicts every run from the other folds", "[cli][validate]") {
  const json in_sample = asked(""), left_out = asked("--cross-validate 3");
  CHECK(left_out.at("folds") == 3);
  REQUIRE(left_out.at("rows").size() == in_sample.at("rows").size());
  int moved = 0;
  for (std::size_t i = 0; i < in_sample.at("rows").size(); ++i) {
    const json &a = in_sample.at("rows").at(i), &b = left_out.at("rows").at(i);
    CHECK(a.at("id") == b.at("id"));
    CHECK(a.contains("skipped") == b.contains("skipped"));
    if (a.contains("predicted_s") && a.at("predicted_s") != b.at("predicted_s")) ++moved;
  }
  CHECK(moved > 0);
  CHECK(validate(kRows + "--cross-validate 3").text.find("other folds") != std::string::npos);
  CHECK(validate(kRows + "--cross-validate 1").code == 2);
  CHECK(validate(kRows + "--cross-validate 3 --leave-out").code == 2);
}

TEST_CASE("A fit starts from neutral values, whatever ships", "[cli][validate]") {
  const std::string path = SHARDPLAN_SOURCE_DIR "/tests/data/invented_runs.json";
  using namespace shardplan;
  const auto fitted = [&](ConstantSet before) {
    PricerShelf shelf(before);
    std::vector<RunQuestion> runs = run_questions(read_runs(path), before);
    return fit_constants(runs, shelf, {true});
  };
  CHECK(fitted(ConstantSet::all) == fitted(ConstantSet::half));
}

TEST_CASE("The listed constants are the ones that predictions use", "[cli][validate]") {
  int checked = 0;
  for (const shardplan::FittedConstant& c : shardplan::fitted_constants(shardplan::ConstantSet::all)) {
    if (c.kind != "stack" || c.name != "step_s") continue;
    CHECK(shardplan::load_stack(c.scope, "stack").constants.step_s == c.value);
    ++checked;
  }
  CHECK(checked >= 10);
}

TEST_CASE("The gate passes against its own answer and names what moved", "[cli][validate]") {
  const Scratch scratch;
  json base = asked("");
  const std::string saved = scratch.write("saved.json", base.dump());
  const Answer same =
      validate(kRows + "--baseline " + saved + " --fail-if 'mape>+0,tau<-0,regret>+0,overall:skipped>1'");
  INFO(same.text);
  CHECK(same.code == 0);
  CHECK(same.text.find("0 of 8 rows moved") != std::string::npos);
  CHECK(same.text.find("gate: passed") != std::string::npos);

  // An older program that was 10 % slower on one row, and better on its family.
  for (json& row : base["rows"])
    if (row["id"] == "dense-tp2") row["predicted_s"] = row["predicted_s"].get<double>() * 1.1;
  base["families"]["alpha"]["mape"] = base["families"]["alpha"]["mape"].get<double>() - 0.02;
  const std::string older = scratch.write("older.json", base.dump());
  const Answer moved = validate(kRows + "--baseline " + older + " --fail-if 'mape>+1'");
  INFO(moved.text);
  CHECK(moved.code == 1);
  CHECK(moved.text.find("1 of 8 rows moved") != std::string::npos);
  CHECK(moved.text.find("dense-tp2 (alpha)") != std::string::npos);
  CHECK(moved.text.find("(-9.1 %)") != std::string::npos);
  CHECK(moved.text.find("alpha: mape is ") != std::string::npos);
  CHECK(lines_with(moved.text, "(fails if mape>+1)") == 1);
  CHECK(validate(kRows + "--baseline " + older + " --moved-by 10").text.find("0 of 8 rows moved") != std::string::npos);

  const Answer answered = validate(kRows + "--format json --baseline " + older + " --fail-if 'mape>+1'");
  CHECK(answered.code == 1);
  const json gate = json::parse(answered.text);
  CHECK(gate.at("gate").at("passed") == false);
  CHECK(gate.at("gate").at("broken").at(0).at("family") == "alpha");
  CHECK(gate.at("baseline").at("moved").at(0).at("id") == "dense-tp2");
  CHECK(gate.at("baseline").at("moved").at(0).at("change").get<double>() == Approx(1 / 1.1 - 1).epsilon(1e-9));
}

TEST_CASE("Limits without a baseline: exit 0 within, 1 beyond", "[cli][validate]") {
  CHECK(validate(kRows + "--fail-if 'mape>1000,overall:rows<7'").code == 0);
  const Answer beyond = validate(kRows + "--fail-if 'beta:max>1'");
  CHECK(beyond.code == 1);
  CHECK(beyond.text.find("gate: FAILED") != std::string::npos);
  CHECK(validate(kRows + "--family alpha --fail-if 'rows<6'").code == 1);
  for (const std::string both : {"--fail-if 'rows>100' --fail-if 'rows>0'", "--fail-if 'rows>0' --fail-if 'rows>100'"})
    CHECK(validate(kRows + both).code == 1);
}

TEST_CASE("What cannot be compared is exit 2 and one line", "[cli][validate]") {
  const Scratch scratch;
  const std::string left = scratch.write("left.json", asked("--leave-out").dump());
  const std::string off = scratch.write("off.json", asked("--without bubble").dump());
  const std::string list = scratch.write("list.json", "[1, 2]");
  const std::string damaged = scratch.write("damaged.json", R"({"rows": [{"id": 3}], "families": {}})");
  const std::pair<std::string, std::string> rows[] = {
      {kRows + "--fail-if 'mape=3'",
       "error: --fail-if: \"mape=3\": expected [FAMILY:]FIGURE>NUMBER or [FAMILY:]FIGURE<NUMBER\n"},
      {kRows + "--baseline ''", "error: --baseline: expected a file, got \"\"\n"},
      {kRows + "--fail-if ''", "error: --fail-if: \"\": an empty limit\n"},
      {kRows + "--fail-if 'mape>+3'",
       "error: --fail-if: \"mape>+3\": a signed number is a change: it needs --baseline\n"},
      {kRows + "--fail-if 'alpa:mape>3'",
       "error: --fail-if: \"alpa:mape>3\": no row is of family \"alpa\" (did you mean \"alpha\"?)\n"},
      {kRows + "--without lunch-floor",
       "error: --without: unknown effect \"lunch-floor\" (did you mean \"launch-floor\"?)\n"},
      {kRows + "--baseline " + left,
       "error: --baseline: " + left + " was saved with --leave-out, this run is without it\n"},
      {kRows + "--baseline " + off,
       "error: --baseline: " + off + " was saved with other effects switched off (--without)\n"},
      {kRows + "--baseline " + list, "error: " + list +
                                         ": expected a saved answer of `shardplan validate --format json` (rows, "
                                         "families)\n"},
      {"", "error: --rows: is required\n"},
  };
  for (const auto& [arguments, line] : rows) {
    INFO(arguments);
    const Answer answer = validate(arguments);
    CHECK(answer.code == 2);
    CHECK(answer.text == line);
  }
  const Answer bad = validate(kRows + "--baseline " + damaged);
  CHECK(bad.code == 2);
  CHECK(bad.text.find("error: " + damaged + ": /rows/0/id: ") == 0);
  CHECK(validate(kRows + "--baseline no-such-file.json").code == 2);
  const std::string csv = scratch.write("rows.csv", "op,dtype,ranks,bytes,time_us,gpu,nodes,gpus_per_node,net\n");
  CHECK(validate("--rows " + csv + " --without bubble").code == 2);
}
