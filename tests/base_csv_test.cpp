// Comma-separated tables: quoting, line ends, errors that name the line.
#include <catch2/catch.hpp>

#include "base/csv.hpp"
#include "base/errors.hpp"

using namespace shardplan;

TEST_CASE("quoted cells keep commas, quotes and line breaks", "[csv]") {
  const CsvTable t = CsvTable::parse("\xEF\xBB\xBFname,n\r\n\"a, \"\"b\"\"\nc\",7\r\n\nplain,8", "t.csv");
  REQUIRE(t.size() == 2);
  CHECK(t.text(0, "name") == "a, \"b\"\nc");
  CHECK(t.count(0, "n") == 7);
  CHECK(t.count(1, "n") == 8);
  CHECK(t.where(1, "n") == "t.csv: line 5, column n");
  CHECK(t.text_or_empty(0, "absent").empty());
}

TEST_CASE("a row of another width, an open quote, a missing column and no header are errors", "[csv]") {
  CHECK_THROWS_AS(CsvTable::parse("a,b\n1\n", "t"), InputError);
  CHECK_THROWS_AS(CsvTable::parse("a\n\"x\n", "t"), InputError);
  CHECK_THROWS_AS(CsvTable::parse("", "t"), InputError);
  const CsvTable t = CsvTable::parse("a\nx\n", "t");
  CHECK_THROWS_AS(t.text(0, "b"), InputError);
  CHECK_THROWS_AS(t.number(0, "a"), InputError);
}
