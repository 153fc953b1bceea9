#pragma once
// What `shardplan experts` asks and answers, apart from how options are read and how answers are written.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hardware/cluster.hpp"
#include "layouts/expert_layer.hpp"
#include "layouts/expert_traffic.hpp"
#include "models/coverage.hpp"
#include "models/routing.hpp"
#include "models/routing_demonstrations.hpp"

namespace shardplan {

struct ExpertsQuestion {
  Model model;
  const Moe* moe = nullptr;
  Cluster cluster;
  std::int64_t gpus = 0, tokens = 0, seed = 1, decode_batch = 0, resident = 0;
  int ep = 1, redundant = 0;
  DataType decode_weights = DataType::fp8;
  bool demonstrate = false;
  Skew skew;
  MoeLayerQuestion layer;
  ExpertPopularity popularity;
  ExpertPlacement placement;
  std::string placement_name, dispatch, combine;
  std::string nodes;  // the node limit as it was asked: unlimited, model or a number

  /// Experts (with copies) that do not divide over the GPUs.
  bool uneven() const { return (moe->experts + redundant) % ep != 0; }
};

/// The decode side: what a batch over the whole layer reads and computes.
struct ExpertsDecode {
  DecodeLayer layer;
  double gap_limit = 0, gap_limit_routed_only = 0;
  std::optional<SampledCoverage> drawn;  // up to 4,096 tokens
  struct Ridge {
    DataType format = DataType::bf16;   // of the products' peak
    DataType weights = DataType::bf16;  // of the weights that are read
    double flops_per_byte = 0;
    std::int64_t batch = 0, dense_batch = 0;  // tokens that reach it
  };
  std::vector<Ridge> ridges;
  HostOffload host;
};

/// Prompt of 64 tokens behind 448 others; router of this shape at initialisation over 128 tokens; ids of one sequence.
struct ExpertDemonstrations {
  double capacity_factor = 1;
  BatchMates mates;
  RoundingReport rounding;
  GateGradientReport gradients;
  double replay = 0;
};

struct ExpertsAnswer {
  MoeLayerTimes times;
  std::vector<Assumption> assumptions;
  SampledTraffic traffic;
  double balance = 0;        // FLOP a byte
  double counted_drops = 0;  // share of the pairs that a capacity drops where each GPU counts its own tokens
  std::optional<ExpertsDecode> decode;
  std::optional<ExpertDemonstrations> demonstrations;
};

nlohmann::ordered_json experts_json(const ExpertsQuestion&, const ExpertsAnswer&, bool matrix);
void print_experts(const ExpertsQuestion&, const ExpertsAnswer&);

}  // namespace shardplan
