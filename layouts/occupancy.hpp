#pragma once
// How many groups, nodes or ranks the k distinct experts of a token lie on, where every expert is as popular as
// another.
#include <cstdint>

namespace shardplan {

/// Expected number of distinct groups that k of N experts touch, drawn without replacement, N / groups in each:
/// G (1 - C(N - N/G, k) / C(N, k)).
double distinct_groups(std::int64_t experts, std::int64_t top_k, double groups);
/// The same, but at most `limit` groups a token: E[min(X, limit)], X by the exact occupancy law
/// P(X = j) = C(G, j) [x^k] ((1 + x)^(N/G) - 1)^j / C(N, k). A token that would exceed the limit is taken to reach it.
double distinct_groups_limited(std::int64_t experts, std::int64_t top_k, std::int64_t groups, std::int64_t limit);

/// Expected number of distinct parts (nodes, ranks) of a token that uses at most `limit` of `groups` equal runs of
/// experts, which lie in order on `parts` parts: over the occupancy law of the groups, the parts that j groups drawn at
/// random cover, or, where a group spreads over several parts, those that the k picks touch when they touch all j
/// groups.
double distinct_parts_of_groups(std::int64_t experts, std::int64_t top_k, std::int64_t groups, std::int64_t limit,
                                int parts);

}  // namespace shardplan
