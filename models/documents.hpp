#pragma once
// Several documents packed into one sequence, attention confined to each: a block-causal mask.
#include <cstdint>
#include <vector>

namespace shardplan {

/// What a block-causal mask leaves of a sequence's attention: the sum of squared document lengths over the square of
/// the sequence, as mean and standard deviation over sequences (1 and 0 where one document fills each).
struct DocumentMask {
  double share = 1;
  double sd = 0;
};

/// Sequences of `tokens` cut out of a stream whose documents have exponentially distributed lengths of mean
/// `mean_length`, so that boundaries fall at random. With a = tokens / mean_length, lengths in units of the mean:
///   E[sum l^2]     = 2 (a - 1 + e^-a)
///   E[(sum l^2)^2] = 4 a^2 - 24 + e^-a (8 a^2 + 24 a + 24)
/// (the renewal equation of the first boundary, solved by Laplace transform). Real corpora have longer tails: at the
/// same mean their share is larger. Both arguments positive.
DocumentMask document_mask(double tokens, double mean_length);

/// Attention of each of `sequences` sequences drawn from that stream, over the mean of all that were drawn. Sequences
/// of more than 256 documents are drawn as normal variates of the moments above.
std::vector<double> draw_attention(std::int64_t sequences, double tokens, double mean_length, std::uint64_t seed);

}  // namespace shardplan
