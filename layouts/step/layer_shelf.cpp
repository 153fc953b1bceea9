#include "layouts/step/layer_shelf.hpp"

#include <algorithm>
#include <utility>

#include "layouts/layer_weights.hpp"

namespace shardplan {
namespace {

bool same(const GroupShape& a, const GroupShape& b) {
  return a.ranks == b.ranks && a.ranks_per_domain == b.ranks_per_domain && a.nics_per_domain == b.nics_per_domain;
}

/// What pipeline and data parallelism do is in the groups' shapes, or not seen by a layer at all.
Layout as_layers_see(Layout l) {
  const Layout unsaid;
  l.pp = l.dp = l.vpp = 1;
  l.zero = unsaid.zero;
  l.shard = unsaid.shard;
  l.reshard = unsaid.reshard;
  // Only waves ask of a schedule whether weight gradients run apart.
  if (l.ep_overlap != EpOverlap::waves) l.schedule = unsaid.schedule;
  l.group = unsaid.group;
  l.split = unsaid.split;
  l.split_pattern = unsaid.split_pattern;
  l.recompute_layers = 0;  // whether a layer lies among those recomputed is part of its entry
  l.delay_wgrad = unsaid.delay_wgrad;
  l.order = unsaid.order;
  return l;
}

}  // namespace

std::vector<int> layer_classes(const std::vector<Layer>& layers) {
  std::vector<int> first(layers.size());
  std::vector<int> kinds;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    int found = -1;
    for (const int kind : kinds) {
      if (same_layer(layers[static_cast<std::size_t>(kind)], layers[i])) {
        found = kind;
        break;
      }
    }
    if (found < 0) {
      found = static_cast<int>(i);
      kinds.push_back(found);
    }
    first[i] = found;
  }
  return first;
}

const std::vector<int>& LayerShelf::classes(const Model& model) {
  if (classes_.empty()) classes_ = layer_classes(model.layers);
  return classes_;
}

PricedLayers& LayerShelf::of(const Layout& layout, const Groups& groups) {
  auto& shelf = kept_[{layout.tp, layout.cp, layout.ep, layout.etp, layout.mbs}];
  Layout seen = as_layers_see(layout);
  const std::array<GroupShape, 4> shapes{groups.tp, groups.cp, groups.ep, groups.etp};
  for (const auto& k : shelf)
    if (std::equal(shapes.begin(), shapes.end(), k->groups.begin(), same) && k->layout == seen) return k->layers;
  shelf.push_back(std::make_unique<Kept>(Kept{std::move(seen), shapes, {}}));
  return shelf.back()->layers;
}

}  // namespace shardplan
