#pragma once
// What every model must satisfy, wherever it came from; and the largest shapes that are believed.
#include <cstdint>
#include <string>

#include "models/model.hpp"

namespace shardplan {

inline constexpr std::int64_t kMostLayers = 10'000;
inline constexpr std::int64_t kMostFeatures = std::int64_t{1} << 24;  // hidden, widths, head sizes, head counts
inline constexpr std::int64_t kMostVocab = std::int64_t{1} << 28;
inline constexpr std::int64_t kMostExperts = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostPositions = std::int64_t{1} << 40;

/// InputError(where, ...) for the first rule that is broken: heads that do not divide, top_k above experts, groups that
/// do not divide, more than 2^53 parameters. `where` is the file.
void check_model(const Model&, const std::string& where);

/// "" where layouts of this model can be priced; else what stands in the way ("a sparse-attention indexer"): such a
/// model has parameters, FLOPs and bytes only.
std::string why_no_layout(const Model&);

}  // namespace shardplan
