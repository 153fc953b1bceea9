#include "models/parameters.hpp"

namespace shardplan {
namespace {

constexpr std::int64_t kBlock = 128;  // side of a DeepSeek-style FP8 block (arXiv 2412.19437, section 3.3.2)

std::int64_t blocks(std::int64_t n) { return (n + kBlock - 1) / kBlock; }

std::int64_t buffers_of(const std::vector<Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const Tensor& t : tensors) sum += t.trained ? 0 : t.count();
  return sum;
}

/// Routed experts that a token does not visit hold their share of the experts' tensors.
std::int64_t idle_parameters(const Layer& layer, const LayerParameters& p) {
  return layer.moe ? (layer.moe->experts - layer.moe->top_k) * p.expert : 0;
}

struct CheckpointParts {
  std::int64_t main = 0;  // trained, selection biases, other buffers, other parts
  std::int64_t main_scales = 0;
  std::int64_t mtp = 0;  // with its copies of embedding and head
  std::int64_t mtp_scales = 0;
};

CheckpointParts checkpoint_parts(const Model& m, const ParameterCounts& counts) {
  CheckpointParts out;
  out.main = counts.total + m.checkpoint_buffers + m.other_parameters;
  for (const Layer& layer : m.layers) {
    const auto tensors = layer_tensors(m, layer);
    out.main += buffers_of(tensors);
    out.main_scales += fp8_scales(tensors);
  }
  for (const Layer& layer : m.mtp) {
    const auto tensors = mtp_tensors(m, layer);
    out.mtp += trained_parameters(tensors) + buffers_of(tensors);
    out.mtp_scales += fp8_scales(tensors);
    if (!m.mtp_shares_embeddings) out.mtp += 2 * m.vocab * m.hidden;
  }
  return out;
}

void fill_checkpoints(const Model& m, ParameterCounts& counts) {
  const CheckpointParts parts = checkpoint_parts(m, counts);
  auto& forms = counts.checkpoints;
  forms.emplace_back("bf16", parts.main);
  if (!m.mtp.empty()) forms.emplace_back("bf16_mtp", parts.main + parts.mtp);
  if (m.published == WeightFormat::fp8_block) {
    forms.emplace_back("fp8", parts.main + parts.main_scales);
    if (!m.mtp.empty()) forms.emplace_back("fp8_mtp", parts.main + parts.mtp + parts.main_scales + parts.mtp_scales);
  }
  counts.checkpoint = parts.main + (m.checkpoint_mtp ? parts.mtp : 0);
  if (m.published == WeightFormat::fp8_block) {
    counts.checkpoint += parts.main_scales + (m.checkpoint_mtp ? parts.mtp_scales : 0);
  }
}

}  // namespace

LayerParameters layer_parameters(const Model& m, const Layer& layer) {
  LayerParameters out;
  for (const Tensor& t : layer_tensors(m, layer)) {
    if (!t.trained) continue;
    switch (t.component) {
      case Component::attention:
        out.attention += t.count();
        break;
      case Component::qk_norm:
        out.qk_norm += t.count();
        break;
      case Component::norms:
        out.norms += t.count();
        break;
      case Component::mlp:
        out.mlp += t.count();
        break;
      case Component::router:
        out.router += t.count();
        break;
      case Component::routed_experts:
        out.experts += t.count();
        break;
      case Component::shared_experts:
        out.shared += t.count();
        break;
      default:
        break;
    }
  }
  if (layer.moe) out.expert = out.experts / layer.moe->experts;
  return out;
}

ParameterCounts count_parameters(const Model& m) {
  ParameterCounts out;
  const auto add = [&](const std::vector<Tensor>& tensors) {
    for (const Tensor& t : tensors) {
      if (t.trained) out.by_component[static_cast<std::size_t>(t.component)] += t.count();
    }
    out.total += trained_parameters(tensors);
  };
  add(embedding_tensors(m));
  add(head_tensors(m));
  std::int64_t idle = 0;
  for (const Layer& layer : m.layers) {
    add(layer_tensors(m, layer));
    idle += idle_parameters(layer, layer_parameters(m, layer));
  }
  const std::int64_t table = m.vocab * m.hidden;
  out.active = out.total - idle;
  out.active_without_input_embedding = out.active - (m.tied_embeddings ? 0 : table);
  out.active_without_embeddings = out.active - trained_parameters(embedding_tensors(m)) -
                                  out.by_component[static_cast<std::size_t>(Component::head)];
  for (const Layer& layer : m.mtp) out.mtp += trained_parameters(mtp_tensors(m, layer));
  fill_checkpoints(m, out);
  return out;
}

std::int64_t fp8_scales(const std::vector<Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const Tensor& t : tensors) {
    if (t.linear) sum += blocks(t.out) * blocks(t.in) * t.copies;
  }
  return sum;
}

}  // namespace shardplan
