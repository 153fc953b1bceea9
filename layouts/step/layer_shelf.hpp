#pragma once
// Layers of one model that were priced, kept for all layouts of a search: a layer's cost depends on what is done to it
// and on the groups that it communicates in, not on the pipeline around it.
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "layouts/step/layer_cost.hpp"

namespace shardplan {

/// Layers of a model that are equal to the eye of a layout: index of the first one like it, for each layer.
std::vector<int> layer_classes(const std::vector<Layer>&);

/// The layers of one layout as far as they were asked for; layers of a model by their class (the first layer like it).
struct PricedLayers {
  struct Entry {
    int kind = -1;
    bool recomputed = false;
    LayerCost cost;
  };
  std::vector<Entry> layers;
  std::optional<Cost> embedding_forward, embedding_backward;
  std::optional<LayerCost> head, mtp_projection;
};

/// All questions that share a shelf have the same model, workload, stack, options and machine. One thread at a time.
class LayerShelf {
 public:
  PricedLayers& of(const Layout&, const Groups&);
  const std::vector<int>& classes(const Model&);

 private:
  struct Kept {
    Layout layout;  // without the words that no layer sees
    std::array<GroupShape, 4> groups;
    PricedLayers layers;
  };
  std::vector<int> classes_;
  std::map<std::array<int, 5>, std::vector<std::unique_ptr<Kept>>> kept_;  // by tp, cp, ep, etp, mbs
};

}  // namespace shardplan
