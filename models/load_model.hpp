#pragma once
// A model by name or from a file: built-in, our own schema (shardplan-model/1), or a Hugging Face config.json.
#include <string>
#include <string_view>
#include <vector>

#include "models/model.hpp"

namespace shardplan {

/// A built-in name ("llama-3.1-70b"), a path to a shardplan model file, to a Hugging Face config.json, or to the folder
/// that holds one. InputError names what is wrong: an unknown name (with the nearest known), a malformed member, or
/// what is not modelled. Model::notes says what was ignored or assumed.
Model load_model(const std::string& name_or_path);

/// From text; `name` is the file's name for errors.
Model parse_model(std::string_view text, const std::string& name);

/// Built-in names, sorted.
std::vector<std::string> model_names();

}  // namespace shardplan
