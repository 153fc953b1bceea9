// What a person mistypes, verb by verb: exit 2, nothing on stdout, and exactly one line on stderr. Malformed model
// files have their own table in models_input_test, layout words in layouts_layout_test, schedules in
// sim_bubble_verb_test.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/run_program.hpp"
#include "tests/scratch.hpp"

namespace {

const Scratch& scratch() {
  static const Scratch kept;
  return kept;
}

/// Runs the program in the folder of damaged files; nothing may take long.
Answer run_there(const std::string& arguments) {
  std::filesystem::create_directories(scratch().folder() / "folder");
  return run(arguments, "cd '" + scratch().folder().string() + "' && timeout 60 ");
}

void write(const std::string& name, const std::string& content) { scratch().write(name, content); }

struct Case {
  std::string arguments, error;
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    INFO("shardplan " << c.arguments);
    const Answer answer = run_there(c.arguments);
    CHECK(answer.code == 2);
    CHECK(answer.text == "error: " + c.error + "\n");
  }
}

const std::string kVerbList =
    "plan, simulate, model, memory, cluster, bubble, kernel, collective, experts, router, measure, validate";
const std::string kMachine = " --model llama-3.1-8b --cluster h100-sxm";
const std::string kQuestion = kMachine + " --gpus 8 --seq-len 4k --global-batch 64 ";

}  // namespace

TEST_CASE("words that are no verb or option name the nearest one", "[cli][errors]") {
  check({
      {"", "shardplan: needs a verb: " + kVerbList + ", compare"},
      {"pla", "pla: unknown verb (did you mean \"plan\"?)"},
      {"frobnicate", "frobnicate: unknown verb: expected " + kVerbList + " or compare"},
      {"plan", "--model: is required"},
      {"plan --modle x", "--modle: unknown option (did you mean \"--model\"?)"},
      {"plan" + kQuestion + "extra", "extra: unexpected word"},
      {"plan" + kQuestion + "--gpus", "--gpus: needs a value"},
      {"plan" + kQuestion + "--format yaml", "--format: yaml not in {text,json}"},
      {"cluster", "cluster: needs a verb: list, show"},
      {"plan" + kQuestion + "\"$(printf 'ex\\ntra')\"", "ex?tra: unexpected word"},
  });
}

TEST_CASE("numbers and quantities that cannot be are refused where they stand", "[cli][errors]") {
  const std::string plan = "plan" + kMachine + " --seq-len 4k --global-batch 64 --gpus ";
  const std::string length = "memory" + kMachine + " --gpus 8 --layout dp8 --global-batch 64 --seq-len ";
  const std::string batch = "simulate" + kMachine + " --gpus 8 --layout dp8 --seq-len 4k ";
  check({
      {plan + "0", "--gpus: out of range: 0 is below 1"},
      {plan + "-8", "--gpus: must not be negative: \"-8\""},
      {plan + "8.5", "--gpus: expected a whole number, got \"8.5\""},
      {plan + "1e400", "--gpus: number out of range: \"1e400\""},
      {plan + "nan", "--gpus: expected a whole number, got \"nan\""},
      {plan + "0x10", "--gpus: expected a whole number, got unit \"x10\" in \"0x10\""},
      {plan + "''", "--gpus: expected a whole number, got \"\""},
      {plan + "16777217", "--gpus: out of range: 16777217 is above 16777216"},
      {length + "4kk", "--seq-len: expected a whole number such as 8192 or \"8k\", got unit \"kk\" in \"4kk\""},
      {length + "99999999999M", "--seq-len: number out of range: \"99999999999M\""},
      {batch + "--global-batch 0", "--global-batch: out of range: 0 is below 1"},
      {batch + "--global-batch 1099511627776", "--global-batch: out of range: 1099511627776 is above 1073741824"},
      {batch, "--global-batch: expected --global-batch (sequences) or --global-batch-tokens"},
      {batch + "--global-batch 8 --global-batch-tokens 4M",
       "--global-batch: given together with --global-batch-tokens: use one of them"},
      {batch + "--global-batch-tokens 4097", "--global-batch-tokens: 4097 tokens are not whole sequences of 4096"},
      {"plan" + kQuestion + "--train-tokens 15Q",
       "--train-tokens: expected a count such as \"15T\" or \"300B\", got unit \"Q\" in \"15Q\""},
      {"plan" + kQuestion + "--top 1.5", "--top: expected a whole number, got \"1.5\""},
      {"plan" + kQuestion + "--routing 0.5",
       "--routing: the hottest rank cannot lie below the mean: expected 1 or more"},
      {"plan" + kQuestion + "--routing 1e300", "--routing: out of range: 1e300 is above 10000"},
      {"collective --op all-reduce --ranks 8 --cluster dgx-h100 --bytes 1XB",
       "--bytes: expected bytes such as \"80 GiB\" or \"25 MB\", got unit \"XB\" in \"1XB\""},
      {"collective --op all-reduce --ranks 1e18 --cluster dgx-h100 --bytes 1GB",
       "--ranks: number out of range: \"1e18\""},
      {"collective sweep --op all-reduce --ranks 8 --cluster dgx-h100 --factor 1", "--factor: must be above 1.001"},
      {"kernel gemm --gpu h100-sxm --dtype bf16 -m 9223372036854775807 -n 1 -k 1",
       "-m: number out of range: \"9223372036854775807\""},
      {"cluster show dgx-h100 --topology --gpus 16777216", "--gpus: expected 1 to 1048576 GPUs, got 16777216"},
      {"bubble --schedule 1f1b --stages 1000000 --microbatches 1000000",
       "1f1b: more than 20000000 passes are not replayed"},
      {"bubble --schedule 1f1b --stages 4 --microbatches 8 --p2p inf",
       "--p2p: expected a time such as \"3.4 ms\", got \"inf\""},
  });
}

TEST_CASE("names that nothing has are refused, the nearest is offered", "[cli][errors]") {
  check({
      {"model show lama-3.1-8b", "--model: unknown model \"lama-3.1-8b\" (did you mean \"llama-3.1-8b\"?)"},
      {"plan" + kQuestion + "--precision bf61", "--precision: unknown precision \"bf61\" (did you mean \"bf16\"?)"},
      {"plan" + kQuestion + "--recipe megatorn", "--recipe: unknown recipe \"megatorn\" (did you mean \"megatron\"?)"},
      {"plan" + kQuestion + "--rates calibrate", "--rates: expected calibrated or datasheet, got \"calibrate\""},
      {"plan" + kQuestion + "--network tabel", "--network: expected table, bound or flows, got \"tabel\""},
      {"plan" + kQuestion + "--objective speed", "--objective: expected step-time, memory or cost, got \"speed\""},
      {"plan" + kQuestion + "--fix qq8",
       "--fix: unknown word \"qq8\": expected tp, cp, pp, vpp, dp, ep, etp, zero, shard, mbs, schedule, group, split, "
       "reshard, recompute, cp-by, tp-overlap, ep-overlap, transport, prefetch, wrap, offload, act-store, cuda-graphs, "
       "compile, "
       "grad-reduce, grad-accumulate, fused-loss, delay-wgrad, order, sp or nosp"},
      {"plan" + kQuestion + "--fix tp8tp8", "--fix: tp: expected a whole number, got \"8tp8\""},
      {"simulate" + kQuestion + "--layout mbs7", "--layout: 64 sequences are not a multiple of mbs*dp = 56"},
      {"simulate" + kQuestion + "--layout 'dp8 shard3'",
       "--layout: shard3 does not divide the dp*cp = 8 data-parallel ranks"},
      {"memory" + kQuestion + "--layout dp8 --explain 1", "--explain: rank 1: there are 1 pipeline ranks"},
      {"memory" + kQuestion + "--layout 'pp8 schedule=gpipe' --for megatron",
       "--layout: megatron refuses: has no schedule gpipe"},
      {"collective --op all-reduc --bytes 1GB --ranks 8 --cluster dgx-h100",
       "--op: \"all-reduc\" is no collective (did you mean \"all-reduce\"?)"},
      {"kernel gemm --gpu h100-sxm --dtype bf61 -m 1 -n 1 -k 1",
       "--dtype: unknown data type \"bf61\" (did you mean \"bf16\"?)"},
  });
}

TEST_CASE("files that are no files, or no text, are refused by every reader", "[cli][errors]") {
  write("empty", "");
  write("null.json", "null");
  write("garbage", std::string("\x7f"
                               "ELF\0\x01\x02\n\r",
                               9));
  write("deep.json", std::string(200000, '['));
  write("odd.csv", "a,b\n1,2\n");
  write("cut.json", "{\"schema\":\"shardplan-model/1\",\"name\":\"x\"");
  const std::string simulate =
      "simulate --model llama-3.1-8b --gpus 8 --layout dp8 --seq-len 4k --global-batch 8 --cluster ";
  const std::string no_value =
      "not JSON: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal (byte 1)";
  check({
      {"model show nosuch.json", "nosuch.json: no such file"},
      {"model show ./empty", "./empty: " + no_value},
      {"model show folder", "folder: the folder holds no config.json"},
      {"model show null.json", "null.json: /: expected an object, got null"},
      {"model show deep.json", "deep.json: nested deeper than 64 levels"},
      {"model show cut.json",
       "cut.json: not JSON: syntax error while parsing object - unexpected end of input; expected '}' (byte 41)"},
      {simulate + "nosuch.json", "nosuch.json: no such file"},
      {simulate + "null.json", "null.json: /: expected an object, got null"},
      {simulate + "deep.json", "deep.json: nested deeper than 64 levels"},
      {"validate --rows folder", "folder: is a folder, expected a file"},
      {"validate --rows empty", "empty: is empty: no header line"},
      {"validate --rows deep.json", "deep.json: nested deeper than 64 levels"},
      {"measure calibrate folder --cluster h100-sxm --out o.json", "folder: is a folder, expected a file"},
      {"measure import topo empty", "empty: no matrix of nvidia-smi topo -m: no row begins with a GPU and its cells"},
      {"bubble --schedule 1f1b --stages 4 --microbatches 8 --trace no/such/folder",
       "no/such/folder: cannot be written"},
  });
  for (const std::string reader : {"model show ./garbage", "validate --rows garbage", "measure import topo garbage",
                                   "measure calibrate garbage --cluster h100-sxm --out o.json"}) {
    INFO(reader);
    const Answer answer = run_there(reader);
    CHECK(answer.code == 2);
    CHECK(answer.text.rfind("error: ", 0) == 0);
    CHECK(std::count(answer.text.begin(), answer.text.end(), '\n') == 1);
  }
  CHECK_FALSE(std::filesystem::exists(scratch().folder() / "o.json"));
}

TEST_CASE("a word of any length gives one short line", "[cli][errors]") {
  const std::string word(50000, 'x');
  for (const std::string& arguments :
       {word, "plan --" + word, "plan" + kQuestion + word, "plan" + kQuestion + "--format " + word,
        "bubble --schedule " + word + " --stages 4 --microbatches 4", "model show " + word}) {
    const Answer answer = run_there(arguments);
    INFO(answer.text.substr(0, 200));
    CHECK(answer.code == 2);
    CHECK(answer.text.size() < 1000);
    CHECK(std::count(answer.text.begin(), answer.text.end(), '\n') == 1);
  }
}

TEST_CASE("every help ends with an example that answers", "[cli][errors]") {
  for (const std::string verb : {"plan", "simulate", "memory", "bubble", "model", "model show", "model list",
                                 "model compare", "cluster", "cluster show", "cluster list", "collective",
                                 "collective sweep", "experts", "router", "kernel", "kernel gemm"}) {
    INFO("shardplan " << verb << " --help");
    const Answer help = run_there(verb + " --help");
    CHECK(help.code == 0);
    const std::size_t at = help.text.rfind("shardplan ");
    REQUIRE(at != std::string::npos);
    REQUIRE(help.text.find("Example", at > 12 ? at - 12 : 0) < at);
    std::string example = help.text.substr(at + std::string("shardplan ").size());
    INFO(example);
    CHECK(run_there(example.substr(0, example.find('\n')) + " >folder.out").code == 0);
  }
}

TEST_CASE("--for keeps plans and simulations to what a framework takes", "[cli][errors]") {
  check({
      {"simulate" + kQuestion + "--layout 'dp8 zero2' --for megatron",
       "--layout: megatron refuses: zero2 needs Megatron-FSDP; the distributed optimizer is zero1"},
      {"plan" + kQuestion + "--for megatorn", "--for: unknown framework \"megatorn\" (did you mean \"megatron\"?)"},
      {"plan" + kQuestion + "--fix zero2 --for megatron",
       "--fix: no layout is legal: megatron refuses: zero2 needs Megatron-FSDP; the distributed optimizer is zero1"},
  });
  const Answer plan = run("plan" + kQuestion + "--any --for megatron --top 3");
  CHECK(plan.code == 0);
  CHECK(plan.text.find(" zero2 needs Megatron-FSDP") != std::string::npos);  // counted among the rejected
  CHECK(plan.text.find(" *\n") == std::string::npos);
  CHECK(plan.text.find("zero2 *") == std::string::npos);
}

TEST_CASE("plan searches what the stack's framework takes as it is", "[cli]") {
  const Answer plan = run("plan" + kQuestion + "--top 20");
  CHECK(plan.code == 0);
  CHECK(plan.text.find("zero2") == std::string::npos);
  CHECK(plan.text.find(" *") == std::string::npos);
  const Answer asked = run("plan" + kQuestion + "--fix zero2 --top 1");  // with the framework's own words
  CHECK(asked.text.find(" zero2") != std::string::npos);
  CHECK(asked.text.find("* megatron refuses: zero2 needs Megatron-FSDP") != std::string::npos);
  // Megatron cannot split 8 KV heads over 16 ranks; who fixes tp16 is answered.
  const std::string wide =
      "plan --model llama-3.1-8b --cluster gb200 --gpus 32 --seq-len 4k --global-batch 64 --top 40 ";
  CHECK(run(wide).text.find("tp16") == std::string::npos);
  CHECK(run(wide + "--fix tp16").text.find("* megatron refuses: num_query_groups (8)") != std::string::npos);
}

TEST_CASE("every word of --fix holds", "[cli]") {
  const std::string plan = "plan --model mixtral-8x7b --cluster h100-sxm --gpus 64 --seq-len 4k --global-batch 256 ";
  const auto layouts = [&](const std::string& fix) {
    const Answer answer = run(plan + "--top 3 --format json --fix '" + fix + "'");
    INFO(answer.text);
    REQUIRE(answer.code == 0);
    std::vector<std::string> out;
    const auto parsed = nlohmann::json::parse(answer.text);
    for (const auto& p : parsed["plans"]) out.push_back(" " + p["layout"].get<std::string>() + " ");
    REQUIRE_FALSE(out.empty());
    return out;
  };
  const auto all_have = [&](const std::string& fix, const std::vector<std::string>& words) {
    for (const std::string& layout : layouts(fix))
      for (const std::string& word : words) {
        INFO(fix << ": " << layout);
        CHECK(layout.find(" " + word + " ") != std::string::npos);
      }
  };
  all_have("tp2xpp4", {"tp2", "pp4"});
  all_have("tp2,pp4 mbs2", {"tp2", "pp4", "mbs2"});
  all_have("ep8", {"ep8"});
  all_have("zero0 tp8", {"zero0", "tp8"});
  all_have("tp4 schedule=looped-bfs", {"schedule=looped-bfs"});
  for (const std::string& layout : layouts("nosp"))  // with tensor parallelism and experts Megatron wants sp
    CHECK((layout.find(" nosp ") != std::string::npos || layout.find(" tp") == std::string::npos));
  check({
      {"plan" + kQuestion + "--fix ep8", "--fix: no layout is legal: epN: the model has no experts"},
      {"plan" + kQuestion + "--fix 'schedule=zb-h1 vpp2'",
       "--fix: no layout is legal: schedule=zb-h1 has one chunk a rank: vppN needs an interleaved schedule, such as "
       "interleaved-1f1b or looped-bfs"},
  });
}

TEST_CASE("what a plan loses against the best is itemised and sums to the difference", "[cli]") {
  const Answer answer = run("plan" + kQuestion + "--top 8 --format json");
  REQUIRE(answer.code == 0);
  const auto plans = nlohmann::json::parse(answer.text)["plans"];
  REQUIRE(plans.size() == 8);
  for (const auto& plan : plans) {
    const double whole = plan["against_best"]["step_time_s"].get<double>();
    double sum = 0;
    for (const auto& item : plan["against_best"]["items_s"]) sum += item.get<double>();
    CHECK(sum == Approx(whole).margin(1e-9));
    CHECK(whole == Approx(plan["step_time_s"].get<double>() - plans[0]["step_time_s"].get<double>()).margin(1e-12));
  }
  // The printed parts sum to the printed difference, digit for digit.
  const Answer text = run("plan" + kQuestion + "--top 8");
  const std::regex line(R"( %, ([+-][0-9.]+) m?s: (.*))"), part(R"([+-][0-9.]+)");
  int lines = 0;
  for (auto at = std::sregex_iterator(text.text.begin(), text.text.end(), line); at != std::sregex_iterator(); ++at) {
    const std::string parts = (*at)[2];
    double sum = 0;
    for (auto p = std::sregex_iterator(parts.begin(), parts.end(), part); p != std::sregex_iterator(); ++p)
      sum += std::stod(p->str());
    CHECK(sum == Approx(std::stod((*at)[1])).margin(1e-6));
    ++lines;
  }
  CHECK(lines >= 6);
}

TEST_CASE("--headroom keeps plans away from the edge of memory", "[cli]") {
  const std::string plan = "plan --model llama-3.1-70b --cluster h100-sxm --gpus 64 --seq-len 8k --global-batch 128 ";
  const Answer answer = run(plan + "--headroom '10 %' --format json");
  REQUIRE(answer.code == 0);
  const auto parsed = nlohmann::json::parse(answer.text);
  for (const auto& p : parsed["plans"])
    CHECK(p["memory"]["peak_bytes"].get<double>() <= 0.9 * p["memory"]["capacity_bytes"].get<double>());
  CHECK(run(plan + "--headroom 100%").code == 2);
  const Answer none = run(plan + "--headroom '78 GiB'");
  CHECK(none.code == 1);
  CHECK(none.text.find("smallest shortfall") != std::string::npos);
}

TEST_CASE("--stack takes a file with a stack of one's own", "[cli][errors]") {
  write("mine.json", R"({"name": "mine", "source": "ours", "base": "megatron-core", "loss_bytes_per_logit": 90,
                         "zero_stages": [1]})");
  write("no_base.json", R"({"name": "mine", "source": "ours"})");
  write("base.json", R"({"name": "mine", "source": "ours", "base": "megatron-cor"})");
  write("taken.json", R"({"name": "nanotron", "source": "ours", "base": "megatron-core"})");
  write("member.json", R"({"name": "mine", "source": "ours", "base": "megatron-core", "tp_overlapp": "none"})");
  write("schedule.json", R"({"name": "mine", "source": "ours", "base": "megatron-core", "schedules": ["1f1"]})");
  const std::string one = "simulate" + kQuestion + "--layout 'tp8' --stack ";
  const Answer mine = run_there(one + "mine.json");
  CHECK(mine.code == 0);
  CHECK(mine.text.find("(stack mine, ") != std::string::npos);
  const auto step = [&](const std::string& stack) {
    return nlohmann::json::parse(run_there(one + stack + " --format json").text)["step_time_s"].get<double>();
  };
  CHECK(step("mine.json") > step("megatron-core"));  // five times its traffic in the loss
  CHECK(run_there("memory" + kQuestion + "--layout tp8 --stack mine.json").text.find("stack mine") !=
        std::string::npos);
  CHECK(run_there("plan" + kQuestion + "--top 2 --stack mine.json").code == 0);
  check({
      {one + "gone.json", "gone.json: no such file"},
      {one + "no_base.json",
       "no_base.json: /: \"base\" is missing: the built-in stack that this one differs from: expected cpu-executor, "
       "internevo, llama3, llm-foundry, megatron-bridge, megatron-core, megatron-core-0.14, megatron-core-moe, "
       "megatron-deepspeed, megatron-deepspeed-bloom, megatron-lm-2020, megatron-lm-2021, megatron-lm-2022, nanotron, "
       "nemo-24.07, nemo-mlperf or torchtitan"},
      {one + "base.json", "base.json: /base: unknown stack \"megatron-cor\" (did you mean \"megatron-core\"?)"},
      {one + "taken.json", "taken.json: /name: \"nanotron\" is a built-in stack: choose another name"},
      {one + "member.json", "member.json: /tp_overlapp: unknown member (did you mean \"tp_overlap\"?)"},
      {one + "schedule.json", "schedule.json: /schedules/0: unknown word \"1f1\" (did you mean \"1f1b\"?)"},
  });
}

TEST_CASE("only the stack's own framework speaks in text", "[cli]") {
  for (const char* verb : {"memory", "simulate"}) {
    const Answer answer = run(verb + kQuestion + "--layout 'tp2 pp4 schedule=zb-h1'");
    CHECK(answer.code == 0);
    CHECK(answer.text.find("megatron refuses: has no schedule zb-h1") != std::string::npos);
    CHECK(answer.text.find("pytorch") == std::string::npos);
    CHECK(answer.text.find("deepseek") == std::string::npos);
  }
}

TEST_CASE("bytes are whole numbers in every answer", "[cli]") {
  const auto walk = [](const nlohmann::json& value, const std::string& at, const auto& self) -> void {
    if (value.is_object() || value.is_array()) {
      for (const auto& [key, member] : value.items()) self(member, key, self);
      return;
    }
    const bool bytes = at == "bytes" || (at.size() > 6 && at.substr(at.size() - 6) == "_bytes");
    INFO(at << " = " << value.dump());
    if (bytes) CHECK(!value.is_number_float());
    for (const char* term : {"weights", "gradients", "optimizer", "activations", "allocated", "reserved", "device"})
      if (at == term) CHECK(!value.is_number_float());
  };
  for (const std::string& arguments :
       {"memory" + kQuestion + "--layout 'tp2 pp4 zero1' --explain peak", "plan" + kQuestion + "--top 1",
        "simulate" + kQuestion + "--layout 'tp2 pp4' --explain",
        std::string("experts --model mixtral-8x7b --cluster h100-sxm --gpus 8 --ep 8 --tokens-per-gpu 1000"),
        std::string("collective --op all-reduce --bytes 1.5MB --ranks 16 --cluster dgx-h100"),
        std::string("kernel copy --gpu h100-sxm --bytes 1.5MB")}) {
    const Answer answer = run(arguments + " --format json 2>/dev/null", "");
    INFO(arguments);
    REQUIRE(answer.code == 0);
    auto parsed = nlohmann::json::parse(answer.text);
    parsed.erase("exposed_s");
    if (parsed.contains("plans"))
      for (auto& p : parsed["plans"])
        for (const char* seconds : {"exposed_s", "breakdown_s", "against_best"}) p.erase(seconds);
    parsed.erase("breakdown_s");
    parsed.erase("critical_path");
    walk(parsed, "", walk);
  }
}

TEST_CASE("what is not built says so", "[cli][errors]") {
  const Answer serve = run("serve --model llama-3.1-8b");
  CHECK(serve.code == 2);
  CHECK(serve.text.find("error: serve: not built: serving") == 0);
  write("adapter.json", R"({"peft_type": "LORA", "r": 16})");
  check({{"model show adapter.json",
          "adapter.json: /: not modelled: adapters (LoRA): every weight trains; give the base model's config.json"}});
}

TEST_CASE("a collective of one rank has nobody to exchange with", "[cli][errors]") {
  check({{"collective --op all-reduce --bytes 1GB --ranks 1 --cluster dgx-h100",
          "--ranks: one rank has nobody to exchange with: needs 2 or more"}});
}
