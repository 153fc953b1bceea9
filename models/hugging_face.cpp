#include "models/hugging_face.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "models/check_model.hpp"
#include "models/hugging_face_config.hpp"
#include "models/hugging_face_families.hpp"

namespace shardplan {
namespace {

/// "llama" of ".../llama/config.json" and of ".../llama.json".
std::string name_of(const std::string& path) {
  const auto base = [](const std::string& p) {
    const auto slash = p.find_last_of('/');
    return slash == std::string::npos ? p : p.substr(slash + 1);
  };
  std::string file = base(path);
  if (file == "config.json" && path.size() > file.size() + 1) {
    const std::string folder = base(path.substr(0, path.size() - file.size() - 1));
    if (!folder.empty() && folder != "." && folder != "..") return folder;
  }
  if (file.size() > 5 && file.substr(file.size() - 5) == ".json") file.resize(file.size() - 5);
  return file;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// The head that is counted is a language model's; classifiers and bare models store something else.
void check_architectures(const Field& config) {
  const auto list = config.find("architectures");
  if (!list) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string name = list->item(i).text();
    if (!ends_with(name, "ForCausalLM") && !ends_with(name, "ForConditionalGeneration") &&
        !ends_with(name, "LMHeadModel")) {
      list->item(i).fail("not modelled: " + list->item(i).shown() + " (only language-model heads are)");
    }
  }
}

/// Well-known families that are not modelled are refused by name before any member is judged.
void refuse_unsupported(const Field& config) {
  const auto type = config.find("model_type");
  if (!type) return;
  const std::string name = type->text();
  for (const Unsupported& u : unsupported_families()) {
    if (name == u.name) type->fail("not modelled: " + name + " (" + u.reason + ")");
  }
}

const Family& family_of(const Field& config) {
  const Field type = config.at("model_type");
  const std::string name = type.text();
  std::vector<std::string> known;
  for (const Family& family : families()) {
    if (name == family.model_type) return family;
    known.emplace_back(family.model_type);
  }
  type.fail("not modelled: model type " + type.shown() + did_you_mean(name, known));
}

/// How the checkpoint stores its weights. Formats other than FP8 blocks and MXFP4 leave that figure out, with a note.
void read_format(const HuggingFaceConfig& c, Model& m) {
  const std::string type = c.text_or({"torch_dtype", "dtype"}, "");
  if (type == "bfloat16") m.published = WeightFormat::bf16;
  if (type == "float16") m.published = WeightFormat::fp16;
  if (type == "float32") m.published = WeightFormat::fp32;
  std::string method = c.text_or({"quant_method"}, "");
  const auto config = c.find({"quantization_config"});
  if (config) {
    if (const auto named = config->find("quant_method")) method = named->text();
  }
  if (method.empty() && !config) return;
  m.published = WeightFormat::unstated;
  bool blocks_of_128 = true;
  if (config) {
    if (const auto block = config->find("weight_block_size")) {
      blocks_of_128 = block->numbers() == std::vector<double>{128, 128};
    } else {
      blocks_of_128 = false;
    }
  }
  if (method == "fp8" && blocks_of_128) {
    m.published = WeightFormat::fp8_block;
  } else if (method == "mxfp4") {
    m.published = WeightFormat::mxfp4;
  } else {
    m.notes.push_back("the quantisation \"" + method.substr(0, 40) +
                      "\" is not modelled: parameters are those before it");
  }
}

/// Of a file with text_config, only the text model is read; whatever stands beside it must be ignorable.
HuggingFaceConfig text_part(const Field& file) {
  const auto text = file.find("text_config");
  if (!text) return {file, std::nullopt};
  judge_members(file, {"text_config", "model_type", "tie_word_embeddings", "quantization_config", "quant_method"});
  return {*text, file};
}

/// Families without windows may still list their layers; then every one must be of full attention.
void refuse_other_layers(const HuggingFaceConfig& c, const Model& m) {
  if (c.was_read("layer_types")) return;
  const std::vector<bool> sliding = c.sliding_layers(m.layer_count());
  for (std::size_t i = 0; i < sliding.size(); ++i) {
    if (sliding[i]) c.find({"layer_types"})->item(i).fail("not modelled: sliding layers in this family");
  }
}

}  // namespace

Model import_hugging_face(const Field& file) {
  check_architectures(file);
  if (!file.has("model_type") && !file.has("text_config")) {
    const std::vector<std::string> keys = file.keys();
    if (const auto near = nearest_word("model_type", keys)) {
      file.at(*near).fail("unknown member (did you mean \"model_type\"?)");
    }
    file.fail("neither a shardplan model (member \"schema\") nor a Hugging Face configuration (member \"model_type\")");
  }
  refuse_unsupported(file);
  const HuggingFaceConfig config = text_part(file);
  refuse_unsupported(config.field());
  const Family& family = family_of(config.field());
  Model m;
  m.name = name_of(file.name());
  m.source = file.name();
  family.read(config, m);
  read_format(config, m);
  refuse_other_layers(config, m);
  config.finish();
  check_model(m, file.name());
  return m;
}

std::string why_not_modelled(const std::string& name) {
  for (const Unsupported& u : unsupported_models()) {
    if (name == u.name) return u.reason;
  }
  return "";
}

}  // namespace shardplan
