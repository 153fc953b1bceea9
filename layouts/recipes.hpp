#pragma once
// Bytes per parameter by named recipe.
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

/// What training keeps for every parameter, bytes. `optimizer` is what zero1 shards, `gradient` zero2, `weight` zero3.
struct Recipe {
  std::string name;
  std::string source;
  double weight = 2;
  double gradient = 4;           // accumulated
  double optimizer = 12;         // master weight and moments
  double gathered = 2;           // of a weight gathered for use (zero3)
  bool shards_optimizer = true;  // false: zero1 does not apply (no distributed optimizer)
  bool accumulates_fp32 = true;
  bool temporaries = false;  // a 16-bit weight gradient exists for a moment before it is added to the sum

  double total() const { return weight + gradient + optimizer; }
};

/// InputError(where) with "did you mean".
const Recipe& find_recipe(std::string_view name, const std::string& where = "--recipe");
const std::vector<Recipe>& recipes();

}  // namespace shardplan
