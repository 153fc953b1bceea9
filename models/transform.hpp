#pragma once
// A model changed into another: what the whiteboard does to mixtures of experts, as functions.
#include <cstdint>
#include <string>

#include "models/model.hpp"

namespace shardplan {

/// Fine-grained segmentation (DeepSeekMoE, arXiv 2401.06066, section 3.1): every expert cut into m of width / m, m
/// times as many chosen. Parameters of the experts and FLOPs stay; the router grows m times. Shared experts are left as
/// they are.
Model segment_experts(const Model&, std::int64_t m, const std::string& where);

/// Shared-expert isolation (same paper, section 3.2): s of the routed experts become always active, s fewer are chosen.
/// Active FLOPs stay but for the router's smaller matrix.
Model isolate_shared(const Model&, std::int64_t s, const std::string& where);

/// Upcycling (Komatsuzaki et al., arXiv 2212.05055): every dense feed-forward network becomes N copies of itself behind
/// a new router that chooses top_k.
Model upcycle(const Model&, std::int64_t experts, std::int64_t top_k, const std::string& where);

/// The teams of experts that a token may be given, C(n, k); exact up to 2^53, rounded beyond, infinite beyond double.
double combinations(std::int64_t n, std::int64_t k);
double log10_combinations(std::int64_t n, std::int64_t k);

/// The first mixture-of-experts layer's, or nullptr.
const Moe* first_moe(const Model&);

}  // namespace shardplan
