#include "models/load_model.hpp"

#include <algorithm>
#include <filesystem>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/suggest.hpp"
#include "models/hugging_face.hpp"
#include "models/model_file.hpp"

namespace shardplan {
namespace {

constexpr std::string_view kFolder = "data/", kEnding = ".json";

/// "llama-3.1-8b" of "data/llama-3.1-8b.json"; other data files of this room lie in folders below and are no models.
std::string name_of(std::string_view file) {
  if (file.substr(0, kFolder.size()) != kFolder || file.size() <= kFolder.size() + kEnding.size()) return "";
  const std::string_view rest = file.substr(kFolder.size(), file.size() - kFolder.size() - kEnding.size());
  return rest.find('/') == std::string_view::npos ? std::string(rest) : "";
}

Model read_model(const Field& file) {
  if (!file.is_object()) file.fail("expected an object, got " + file.shown());
  if (file.has("peft_type") || file.has("base_model_name_or_path"))
    file.fail("not modelled: adapters (LoRA): every weight trains; give the base model's config.json");
  return file.has("schema") ? read_model_file(file) : import_hugging_face(file);
}

bool looks_like_path(const std::string& text) {
  return text.find('/') != std::string::npos || (text.size() > 5 && text.substr(text.size() - 5) == ".json");
}

Model load_path(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return read_model(Field::read(path));
  const std::string inside = path + (path.back() == '/' ? "config.json" : "/config.json");
  if (!std::filesystem::exists(inside, error)) throw InputError(path, "the folder holds no config.json");
  return read_model(Field::read(inside));
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> out;
  for (const EmbeddedFile& file : models_data()) {
    if (std::string name = name_of(file.name); !name.empty()) out.push_back(std::move(name));
  }
  std::sort(out.begin(), out.end());
  return out;
}

Model parse_model(std::string_view text, const std::string& name) { return read_model(Field::parse(text, name)); }

Model load_model(const std::string& name_or_path) {
  if (name_or_path.empty()) throw InputError("--model", "expected a model's name or a path");
  for (const EmbeddedFile& file : models_data()) {
    if (name_of(file.name) == name_or_path) return parse_model(file.text, "models/" + std::string(file.name));
  }
  std::error_code error;
  if (looks_like_path(name_or_path) || std::filesystem::exists(name_or_path, error)) return load_path(name_or_path);
  if (const std::string reason = why_not_modelled(name_or_path); !reason.empty()) {
    throw InputError("--model", name_or_path + ": not modelled: " + reason);
  }
  const std::string near = did_you_mean(name_or_path, model_names());
  throw InputError("--model", "unknown model \"" + name_or_path.substr(0, 100) + "\"" +
                                  (near.empty() ? ": `shardplan model list` names those built in" : near));
}

}  // namespace shardplan
