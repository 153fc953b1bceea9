#pragma once
// The table of families that the importer reads, and of those that it refuses by name.
#include <span>
#include <string>

#include "models/model.hpp"

namespace shardplan {

class HuggingFaceConfig;

struct Family {
  const char* model_type;
  void (*read)(const HuggingFaceConfig&, Model&);
};
std::span<const Family> families();

struct Unsupported {
  const char* name;
  const char* reason;
};
std::span<const Unsupported> unsupported_families();  // by model_type
std::span<const Unsupported> unsupported_models();    // well-known models by name

}  // namespace shardplan
