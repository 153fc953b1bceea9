#include <algorithm>
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "sim/stage_layout_text.hpp"

using namespace shardplan;

namespace {

std::vector<std::string> parsed(const std::string& text) { return parse_stage_layout(text, "split"); }

int layers_of(const std::vector<std::string>& stages) {
  int layers = 0;
  for (const std::string& stage : stages) layers += static_cast<int>(std::count(stage.begin(), stage.end(), 't'));
  return layers;
}

}  // namespace

TEST_CASE("Megatron's layout texts unfold to stages", "[sim]") {
  const auto deepseek = parsed("Et*3|(tt|)*29,m|L");
  CHECK(deepseek.size() == 32);
  CHECK(deepseek.front() == "Ettt");
  CHECK(deepseek[1] == "tt");
  CHECK(deepseek[30] == "m");
  CHECK(deepseek.back() == "L");
  CHECK_FALSE(refuse_stage_layout(deepseek, 16, 61, 1));

  const auto h100 = parsed("Et|(tt|)*30mL");
  CHECK(h100.size() == 32);
  CHECK(h100.back() == "mL");
  CHECK_FALSE(refuse_stage_layout(h100, 8, 61, 1));

  const auto llama = parsed("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL");
  CHECK(llama.size() == 40);
  CHECK(layers_of(llama) == 80);
  CHECK_FALSE(refuse_stage_layout(llama, 8, 80, 0));

  CHECK(parsed("E||t|L") == std::vector<std::string>{"E", "", "t", "L"});
  CHECK(parsed("Et|L|") == std::vector<std::string>{"Et", "L", ""});
  CHECK(parsed("E|(tt|)*2,(t|)*4,mL").size() == 8);
}

TEST_CASE("a layout text is refused where it means nothing", "[sim]") {
  for (const char* bad :
       {"", "E t|L", "Ex|L", "(tt|*3", "((t))*2", "Et*|L", "*3", "(t)L", "()*2", "E(t|)*99999999,L", "t)*3"}) {
    INFO(bad);
    CHECK_THROWS_AS(parsed(bad), InputError);
  }
}

TEST_CASE("Megatron's checks", "[sim]") {
  CHECK(refuse_stage_layout(parsed("Et|t|L"), 2, 2, 0) ==
        std::optional<std::string>("3 stages do not divide by 2 pipeline ranks"));
  CHECK(refuse_stage_layout(parsed("tE|tL"), 2, 2, 0));
  CHECK(refuse_stage_layout(parsed("Et|Lt"), 2, 2, 0));
  CHECK(refuse_stage_layout(parsed("EtL|tL"), 2, 2, 0));
  CHECK(refuse_stage_layout(parsed("Et|tL"), 2, 3, 0));
  CHECK(refuse_stage_layout(parsed("Em|tL"), 2, 1, 1));
  CHECK(refuse_stage_layout(parsed("Et|m|mL|"), 2, 1, 2));
  CHECK(refuse_stage_layout(parsed("Etm|||L"), 2, 1, 1));
  CHECK_FALSE(refuse_stage_layout(parsed("Et|tmL"), 2, 2, 1));
}

TEST_CASE("a layout printed and read back is the same", "[sim]") {
  Random random(5);
  for (int i = 0; i < 500; ++i) {
    std::vector<std::string> stages;
    const int n = 1 + static_cast<int>(random.below(9));
    for (int k = 0; k < n; ++k) stages.push_back(random.below(4) == 0 ? "" : std::string(random.below(5), 't'));
    stages.front() = "E" + stages.front();
    stages.back() += "mL";
    CHECK(parsed(stage_layout_text(stages)) == stages);
  }
  CHECK(stage_layout_text(parsed("Et*3|(tt|)*29,m|L")) == "Et*3|(tt|)*29m|L");
}
