#include "layouts/step/stage_cost.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "layouts/activations.hpp"
#include "layouts/layer_weights.hpp"
#include "layouts/ranks.hpp"
#include "layouts/step/layer_shelf.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {
namespace {

struct UnitTimes {
  double forward = 0, backward = 0;  // compute seconds of one sharded unit
  double gather = 0, scatter = 0;    // its parameter all-gather and gradient reduce-scatter
};

/// One sharded unit as its layers are added.
struct ShardedUnit {
  int layers = 0;
  double forward = 0, backward = 0;
  LocalParameters parameters;
};

/// Fully sharded units run on two streams: compute, and one communication stream in issue order. `prefetch` units are
/// gathered ahead. Returns the exposed seconds of a forward and of a backward pass. Source: the issue order of PyTorch
/// FSDP (all-gather of the next unit before the reduce-scatter of this one in the backward pass); leaves out copy-in
/// and copy-out of the flat buffers, which the contention share stands for.
std::pair<double, double> sharded_exposure(const std::vector<UnitTimes>& units, int prefetch, bool reshard,
                                           double contention) {
  const std::size_t n = units.size();
  double compute = 0, comm = 0, busy = 0, moved = 0;
  std::vector<double> ended(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t ahead =
        i >= static_cast<std::size_t>(prefetch) + 1 ? i - static_cast<std::size_t>(prefetch) - 1 : n;
    comm = std::max(comm, ahead < n ? ended[ahead] : 0) + units[i].gather;
    compute = std::max(compute, comm) + units[i].forward;
    ended[i] = compute;
    busy += units[i].forward;
    moved += units[i].gather;
  }
  const double forward = compute - busy + contention * std::min(moved, busy);
  compute = comm = busy = moved = 0;
  std::vector<double> gathered(n, 0);
  std::fill(ended.begin(), ended.end(), 0.0);
  std::size_t issued = 0;  // units whose gather was issued, counted from the last unit
  double released = 0;
  for (std::size_t j = 0; j < n; ++j) {
    const UnitTimes& unit = units[n - 1 - j];
    while (reshard && issued < n && issued <= j + static_cast<std::size_t>(prefetch)) {
      comm = std::max(comm, released) + units[n - 1 - issued].gather;
      moved += units[n - 1 - issued].gather;
      gathered[issued++] = comm;
    }
    compute = std::max(compute, gathered[j]) + unit.backward;
    released = compute - unit.backward;
    busy += unit.backward;
    comm = std::max(comm, compute) + unit.scatter;
    moved += unit.scatter;
  }
  const double backward = std::max(compute, comm) - busy + contention * std::min(moved, busy);
  return {forward, backward};
}

/// Operators of a pipeline pass beside its layers: buffers for messages made, messages posted and awaited, the autograd
/// engine called or the sent output freed (Megatron core, pipeline_parallel/schedules.py, p2p_communication.py).
constexpr int kPassOperators = 6;

class StagePricer {
 public:
  StagePricer(const StepQuestion& q, const Groups& groups)
      : q_(q),
        groups_(groups),
        layers_(q, groups),
        price_(q),
        classes_(q.shelf != nullptr ? q.shelf->classes(*q.model) : (own_classes_ = layer_classes(q.model->layers))),
        priced_(q.shelf != nullptr ? q.shelf->of(q.layout, groups) : own_),
        activations_(activation_question(q.layout, *q.model, q.workload, ActivationTraits{}, 1)) {}

  StageCost stage(const StageSlice& slice, int layers_before_on_rank) {
    StageCost out;
    units_.clear();
    offloaded_bytes_ = 0;
    if (slice.embedding) {
      out.forward += kept(priced_.embedding_forward, [&] { return layers_.embedding_forward(); });
      out.input_grad += kept(priced_.embedding_backward, [&] { return layers_.embedding_backward(); });
      out.parameters += local_embedding(*q_.model, q_.layout);
      add_end_unit(*priced_.embedding_forward, *priced_.embedding_backward, local_embedding(*q_.model, q_.layout));
    }
    for (int i = 0; i < slice.layers; ++i) {
      const int index = slice.first_layer + i;
      add_layer(out, q_.model->layers[static_cast<std::size_t>(index)], classes_[static_cast<std::size_t>(index)],
                layers_before_on_rank + i);
    }
    for (int i = 0; i < slice.mtp_layers; ++i) {
      add_layer(out, q_.model->mtp.at(static_cast<std::size_t>(i)), -1, layers_before_on_rank + slice.layers + i);
      add(out, kept(priced_.mtp_projection, [&] { return layers_.mtp_projection(); }));
      add(out, kept(priced_.head, [&] { return layers_.head(); }));
    }
    if (slice.head) {
      add(out, kept(priced_.head, [&] { return layers_.head(); }));
      // A tied head on its own stage is a copy of the embedding, reduced between the two stages.
      const bool shared = q_.model->tied_embeddings && slice.embedding;
      const LocalParameters own = shared ? LocalParameters{} : local_embedding(*q_.model, q_.layout);
      out.parameters += own;
      Cost backward = priced_.head->input_grad;
      backward += priced_.head->weight_grad;
      add_end_unit(priced_.head->forward, backward, own);
    }
    finish(out);
    return out;
  }

 private:
  void add(StageCost& out, const LayerCost& layer) {
    out.forward += layer.forward;
    out.input_grad += layer.recompute;
    out.recompute += layer.recompute;
    out.input_grad += layer.input_grad;
    out.weight_grad += layer.weight_grad;
    out.forward_a2a += layer.forward_a2a;
    out.backward_a2a += layer.backward_a2a;
  }

  void add_layer(StageCost& out, const Layer& layer, int kind, int position) {
    const bool recomputed = q_.layout.recompute != Recompute::none &&
                            (q_.layout.recompute_layers == 0 || position < q_.layout.recompute_layers);
    const LayerCost& cost = cached(layer, kind, recomputed);
    add(out, cost);
    out.lanes.push_back(cost.lanes);
    const int offloaded = q_.layout.offload_activation_layers;
    if (offloaded < 0 || position < offloaded)
      offloaded_bytes_ += layer_activations(activations_, layer, recomputed ? recomputed_modules(q_.layout) : 0).kept;
    const LocalParameters parameters = local_parameters(*q_.model, layer, q_.layout);
    out.parameters += parameters;
    if (sharded_weights()) {
      Cost backward = cost.recompute;
      backward += cost.input_grad;
      backward += cost.weight_grad;
      if (units_.empty() || units_.back().layers == q_.layout.wrap.value_or(1)) units_.emplace_back();
      ShardedUnit& unit = units_.back();
      ++unit.layers;
      unit.forward += cost.forward.seconds();
      unit.backward += backward.seconds();
      unit.parameters += parameters;
    }
  }

  /// Embedding and head are units of their own, one before the layers and one behind them.
  void add_end_unit(const Cost& forward, const Cost& backward, const LocalParameters& parameters) {
    if (!sharded_weights()) return;
    ShardedUnit unit;
    unit.layers = q_.layout.wrap.value_or(1);  // full: no layer joins it
    unit.forward = forward.seconds();
    unit.backward = backward.seconds();
    unit.parameters = parameters;
    units_.push_back(unit);
  }

  UnitTimes times_of(const ShardedUnit& unit) const {
    const double wide = price_.wide_bytes(), reduced = gradient_bytes(q_);
    const double dense = unit.parameters.dense, expert = unit.parameters.expert;
    UnitTimes out{unit.forward, unit.backward, 0, 0};
    out.gather = price_.collective(Collective::all_gather, wide * dense, groups_.dense_shard).seconds +
                 price_.collective(Collective::all_gather, wide * expert, groups_.expert_shard).seconds;
    out.scatter =
        price_.collective(Collective::reduce_scatter, reduced * dense, groups_.dense_shard).seconds +
        price_.collective(Collective::reduce_scatter, reduced * expert, groups_.expert_shard).seconds +
        price_.collective(Collective::all_reduce, reduced * dense / groups_.dense_shard.ranks, groups_.dense_replica)
            .seconds;
    return out;
  }

  const LayerCost& cached(const Layer& layer, int kind, bool recomputed) {
    for (const PricedLayers::Entry& e : priced_.layers)
      if (e.kind == kind && e.recomputed == recomputed) return e.cost;
    priced_.layers.push_back({kind, recomputed, layers_.layer(layer, recomputed)});
    return priced_.layers.back().cost;
  }

  template <class T, class Make>
  static const T& kept(std::optional<T>& slot, const Make& make) {
    if (!slot) slot = make();
    return *slot;
  }

  bool sharded_weights() const {
    const int zero = q_.layout.zero_stage();
    return q_.layout.dense_shard_ranks() > 1 && (zero == 3 || (zero == 2 && q_.stack.framework == "pytorch"));
  }

  void finish(StageCost& out) {
    if (!units_.empty()) {
      const bool reshard = q_.layout.reshard.value_or(q_.layout.zero_stage() == 3);
      std::vector<UnitTimes> times;
      times.reserve(units_.size());
      for (const ShardedUnit& unit : units_) times.push_back(times_of(unit));
      const auto [forward, backward] = sharded_exposure(times, q_.layout.prefetch.value_or(q_.stack.fsdp_prefetch),
                                                        reshard, price_.contention(Part::fsdp));
      out.forward.add(Part::fsdp, Price{forward, forward, forward, price_.derived()});
      out.input_grad.add(Part::fsdp, Price{backward, backward, backward, price_.derived()});
      out.forward.host += static_cast<double>(units_.size()) * price_.launch();
      out.input_grad.host += 2 * static_cast<double>(units_.size()) * price_.launch();
    }
    if (q_.layout.pp > 1) {
      out.forward.host += kPassOperators * price_.launch();
      out.input_grad.host += kPassOperators * price_.launch();
    }
    offload(out);
    out.forward_s = out.forward.seconds();
    out.input_grad_s = out.input_grad.seconds();
    out.weight_grad_s = out.weight_grad.seconds();
    Cost backward = out.input_grad;
    backward += out.weight_grad;
    out.backward_s = backward.seconds();
  }

  /// Activations of offloaded layers go to the host under the forward pass and come back under the backward pass; what
  /// the link cannot carry in that time is exposed. Leaves out the copy engines' share of HBM (below 2 %).
  void offload(StageCost& out) const {
    if (offloaded_bytes_ <= 0) return;
    const double rate = q_.pricer->cluster().node.pcie_bytes_per_second.value;
    if (!(rate > 0)) throw InputError("--cluster", "offload=activations needs the node's rate between GPU and host");
    const double seconds = offloaded_bytes_ / rate;
    const auto exposed = [&](Cost& pass, double beside) {
      const double left = std::max(0.0, seconds - beside);
      pass.add(Part::offload, Price{left, left, left, Basis::datasheet});
    };
    exposed(out.forward, out.forward.device());
    exposed(out.input_grad, out.input_grad.device() + out.weight_grad.device());
  }

  const StepQuestion& q_;
  const Groups& groups_;
  LayerPricer layers_;
  StepPricer price_;
  std::vector<int> own_classes_;
  PricedLayers own_;
  const std::vector<int>& classes_;
  PricedLayers& priced_;
  std::vector<ShardedUnit> units_;
  ActivationQuestion activations_;
  double offloaded_bytes_ = 0;
};

}  // namespace

double gradient_bytes(const StepQuestion& q) {
  if (q.layout.grad_reduce_fp32) return *q.layout.grad_reduce_fp32 ? 4 : 2;
  return q.stack.grad_reduce_bytes;
}

LocalParameters local_parameters(const Model& model, const Layer& layer, const Layout& layout) {
  const RankWeights weights = layer_weights(model, layer, layout.tp, layout.ep, layout.etp);
  LocalParameters out;
  out.dense = weights.dense;
  out.expert = weights.experts;
  out.tensors = weights.tensors;
  return out;
}

LocalParameters local_embedding(const Model& model, const Layout& layout) {
  LocalParameters out;
  out.dense = end_weights(model, layout.tp, static_cast<double>(model.vocab)).embedding;
  out.tensors = 1;
  return out;
}

Groups groups_of(const Layout& layout, const Cluster& cluster) {
  const auto shape = [&](RankGroup g) { return group_shape(layout, cluster, g); };
  Groups g;
  g.tp = shape(RankGroup::tp);
  g.cp = shape(RankGroup::cp);
  g.ep = shape(RankGroup::ep);
  g.etp = shape(RankGroup::etp);
  g.dense_shard = shape(RankGroup::dense);
  g.dense_replica = shape(RankGroup::dense_replicas);
  g.expert_shard = shape(RankGroup::expert);
  g.hop = shape(RankGroup::pp_neighbours);
  return g;
}

std::vector<int> layers_before_on_rank(const Layout& layout, const std::vector<StageSlice>& slices) {
  std::vector<int> before(slices.size(), 0);
  for (int rank = 0; rank < layout.pp; ++rank) {
    int held = 0;
    for (int chunk = 0; chunk < layout.slices_per_rank(); ++chunk) {
      const auto s = static_cast<std::size_t>(layout.slice_of(rank, chunk));
      before[s] = held;
      held += slices[s].layers;
    }
  }
  return before;
}

std::vector<StageCost> price_stages(const StepQuestion& q, const Groups& groups,
                                    const std::vector<StageSlice>& slices) {
  StagePricer pricer(q, groups);
  std::vector<StageCost> out;
  out.reserve(slices.size());
  const std::vector<int> before = layers_before_on_rank(q.layout, slices);
  for (std::size_t s = 0; s < slices.size(); ++s) out.push_back(pricer.stage(slices[s], before[s]));
  return out;
}

}  // namespace shardplan
