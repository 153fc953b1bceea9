// An all-to-allv as a person asks for it: a matrix in, seconds out, mistakes as one line.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/run_program.hpp"
#include "tests/scratch.hpp"

namespace {

Answer collective(const std::string& arguments) { return run("collective --op " + arguments); }

/// Sixteen ranks, each 10 MB to every other, ten times as much to rank 5.
std::string hot_matrix() {
  static const Scratch scratch;
  std::ostringstream rows;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) rows << (i == j ? 0 : j == 5 ? 100000000 : 10000000) << (j < 15 ? ' ' : '\n');
  }
  return scratch.write("hot_matrix.txt", rows.str());
}

}  // namespace

TEST_CASE("an all-to-allv takes as long as its hot receiver's NIC", "[cli][traffic]") {
  const std::string question = "all-to-allv --cluster h100-sxm --format json --traffic " + hot_matrix();
  const Answer line = collective(question + " --rates datasheet --network flows");
  REQUIRE(line.code == 0);
  const auto json = nlohmann::json::parse(line.text);
  CHECK(json.at("ranks") == 16);
  CHECK(json.at("bytes") == 3750000000);  // 15 ranks with 14 x 10 MB and 100 MB, the hot one with 15 x 10 MB
  // Eight remote ranks with 100 MB each into a NIC of 50 GB/s.
  CHECK(json.at("bound_s").get<double>() == Approx(8 * 100e6 / 50e9).epsilon(1e-9));
  CHECK(json.at("time_s").get<double>() == Approx(8 * 100e6 / 50e9).epsilon(1e-3));
  CHECK(json.at("busiest_link").get<std::string>().find("nic 5") != std::string::npos);
  const auto measured = nlohmann::json::parse(collective(question).text);
  CHECK(measured.at("fidelity") == "flows");
  CHECK(measured.at("time_s").get<double>() > json.at("time_s").get<double>());
  CHECK(measured.at("time_s").get<double>() < 1.5 * json.at("time_s").get<double>());
}

TEST_CASE("mistakes about a traffic matrix are exit 2 and one line", "[cli][traffic]") {
  const std::string matrix = hot_matrix();
  const std::pair<std::string, std::string> rows[] = {
      {"all-to-allv --cluster h100-sxm", "error: --traffic: is required: the matrix of an all-to-allv\n"},
      {"all-to-allv --cluster h100-sxm --ranks 8 --traffic " + matrix, "error: --ranks: 8, but the matrix has 16\n"},
      {"all-to-allv --cluster h100-sxm --bytes 1 --traffic " + matrix,
       "error: --bytes: an all-to-allv takes its bytes from --traffic\n"},
      {"all-to-all --cluster h100-sxm --ranks 8 --bytes 1GB --traffic " + matrix,
       "error: --traffic: only --op all-to-allv takes a matrix\n"},
  };
  for (const auto& [arguments, expected] : rows) {
    INFO(arguments);
    const Answer answer = collective(arguments);
    CHECK(answer.code == 2);
    CHECK(answer.text == expected);
  }
}
