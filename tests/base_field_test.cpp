#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"

using namespace shardplan;

namespace {

std::string error_of(const std::string& text, void (*read)(const Field&)) {
  try {
    read(Field::parse(text, "f.json"));
  } catch (const InputError& e) {
    return e.where() + ": " + e.what();
  }
  return "";
}

void read_count(const Field& f) { f.at("n").count(1); }

}  // namespace

TEST_CASE("a count refuses what is not a whole number in range") {
  CHECK(error_of(R"({"n":3.7})", read_count) == "f.json: /n: expected a whole number, got 3.7");
  CHECK(error_of(R"({"n":-1})", read_count) == "f.json: /n: out of range: -1 is below 1");
  CHECK(error_of(R"({"n":true})", read_count) == "f.json: /n: expected a whole number, got true");
  CHECK(error_of(R"({"n":"8"})", read_count) == "f.json: /n: expected a whole number, got \"8\"");
  CHECK(error_of(R"({"n":99999999999999999999})", read_count).find("out of range") != std::string::npos);
  CHECK(error_of(R"({})", read_count) == "f.json: /: missing member \"n\"");
  CHECK(error_of(R"({"n":8})", read_count).empty());
  CHECK(error_of(R"({"n":8.0})", read_count).empty());
}

TEST_CASE("a document refuses duplicate members, huge numbers, deep nesting and text that is not JSON") {
  const auto none = [](const Field&) {};
  CHECK(error_of(R"({"a":{"b":1,"b":2}})", none) == "f.json: /a/b: the member stands twice");
  CHECK(error_of(R"({"n":1e400})", none).find("number out of range") != std::string::npos);
  CHECK(error_of(std::string(100, '[') + std::string(100, ']'), none) == "f.json: nested deeper than 64 levels");
  CHECK(error_of(R"({"n":1,})", none).find("f.json: not JSON") == 0);
  CHECK(error_of("", none).find("f.json: not JSON") == 0);
}

TEST_CASE("unknown members are refused with the nearest known one") {
  const auto read = [](const Field& f) { f.allow_only({"experts", "top_k"}); };
  CHECK(error_of(R"({"expert":1})", read) == "f.json: /expert: unknown member (did you mean \"experts\"?)");
}

TEST_CASE("quantities carry units") {
  CHECK(parse_bytes("80 GiB", "x") == 85899345920.0);
  CHECK(parse_bytes("25MB", "x") == 25e6);
  CHECK(parse_bytes_per_second("400 Gbit/s", "x") == 50e9);
  CHECK(parse_seconds("3.4 ms", "x") == Approx(3.4e-3).epsilon(1e-12));
  CHECK(parse_binary_count("8k", "x") == 8192);
  CHECK(parse_binary_count("4M", "x") == 4194304);
  CHECK(parse_decimal_count("15T", "x") == 15e12);
  CHECK(parse_count("010", "x") == 10);
  CHECK_THROWS_AS(parse_count("3.5", "x"), InputError);
  CHECK_THROWS_AS(parse_count("-1", "x"), InputError);
  CHECK_THROWS_AS(parse_bytes("nan", "x"), InputError);
  CHECK_THROWS_AS(parse_bytes("1e999", "x"), InputError);
  CHECK_THROWS_AS(parse_bytes("5 GB/s", "x"), InputError);
}

TEST_CASE("the nearest word is found within a third of its length") {
  CHECK(nearest_word("h100-sxmm", std::vector<std::string>{"a100-sxm-80gb", "h100-sxm"}) == "h100-sxm");
  CHECK(nearest_word("llama3_8b", std::vector<std::string>{"llama-2-7b", "llama-3-8b"}) == "llama-3-8b");
  CHECK_FALSE(nearest_word("banana", std::vector<std::string>{"h100-sxm"}));
  // A digit too few is a shortened version, another digit another model.
  const std::vector<std::string> models{"llama-2-70b", "llama-3.1-70b", "llama-3.1-8b", "mixtral-8x22b",
                                        "mixtral-8x7b"};
  CHECK(nearest_word("llama3-70b", models) == "llama-3.1-70b");
  CHECK(nearest_word("llama-3-8b", models) == "llama-3.1-8b");
  CHECK(did_you_mean("mixtral", models) == " (did you mean \"mixtral-8x22b\" or \"mixtral-8x7b\"?)");
  CHECK(did_you_mean("8x22b", models) == " (did you mean \"mixtral-8x22b\"?)");
  CHECK(did_you_mean("falcon", models).empty());
}
