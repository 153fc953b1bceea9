#pragma once
// Hugging Face config.json -> Model, for the families of the table in hugging_face_families.cpp. Members that cannot
// change a shape are ignored (a list); members that name something not modelled are refused; so is every other unknown
// member, with the nearest known one. What only the families' code knows (Qwen2's biases, Qwen3's QK-norm) is in their
// functions.
#include <string>

#include "models/model.hpp"

namespace shardplan {

class Field;

/// InputError names the member that is wrong or what is not modelled.
Model import_hugging_face(const Field& config);

/// Why a well-known model is not built in ("compressed sparse attention ..."), or "".
std::string why_not_modelled(const std::string& name);

}  // namespace shardplan
