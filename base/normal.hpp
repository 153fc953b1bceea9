#pragma once
// The normal distribution, as far as spreads need it.

namespace shardplan {

/// Standard normal quantile: the x with P(Z <= x) = p, 0 < p < 1; accurate to 1e-12.
double normal_quantile(double p);

/// Expected largest of n independent standard normal draws, n >= 1 (0 for 1, 1.42 for 8, 3.85 for 10,000): Blom's
/// formula, the quantile at (n - 3/8) / (n + 1/4) (G. Blom, Statistical Estimates and Transformed Beta-Variables,
/// 1958); within 0.03 of the exact value for every n.
double expected_largest(double n);

}  // namespace shardplan
