// Releases of one stack: told apart by a fitted factor, an unknown one taken as their mean.
#include <catch2/catch.hpp>

#include "layouts/step/stack.hpp"

using namespace shardplan;

TEST_CASE("a release has the factor that was fitted for it; an unknown one is the mean", "[stack]") {
  Stack stack = load_stack("megatron-bridge", "--stack");
  REQUIRE(stack.releases.size() >= 2);
  CHECK(stack.constants.release_factor == 1);
  CHECK(stack.shown() == "megatron-bridge");
  for (const auto& [release, factor] : stack.releases) {
    set_release(stack, release);
    CHECK(stack.constants.release_factor == factor);
    CHECK(stack.shown() == "megatron-bridge " + release);
    CHECK(factor >= release_constant_row().least);
    CHECK(factor <= release_constant_row().most);
  }
  set_release(stack, "30.01");
  CHECK(stack.constants.release_factor == 1);
}
