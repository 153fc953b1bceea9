#pragma once
// Megatron's --pipeline-model-parallel-layout: which layers each virtual stage holds, as text.
//   E embedding, t decoder layer, m MTP layer, L loss; | between stages; commas are deleted.
//   (...)*n repeats what stands in parentheses (no nesting; | may stand inside), x*n one symbol or |.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

/// The symbols of each virtual stage, first to last: "Et*3|(tt|)*29,m|L" gives "Ettt", 29 times "tt", "m", "L".
/// A trailing | leaves an empty last stage, as in Megatron. InputError(where, ...): a symbol that is none, a space,
/// parentheses or a star without their repetition, or more than a million symbols.
std::vector<std::string> parse_stage_layout(std::string_view text, const std::string& where);

/// The short form of the stages; parsing it gives the same stages.
std::string stage_layout_text(const std::vector<std::string>& stages);

/// What Megatron checks, in its order; nothing where it accepts: stages divisible by pp; E first, L last, one each; as
/// many t and m as the model has layers; no t after an m; all m in one stage, in the last chunk of its rank.
std::optional<std::string> refuse_stage_layout(const std::vector<std::string>& stages, int pipeline_ranks, int layers,
                                               int mtp_layers);

}  // namespace shardplan
