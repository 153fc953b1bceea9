#pragma once
// What a second of prediction stands on, and its 80 % interval.
#include <array>
#include <string_view>

namespace shardplan {

/// Ordered from the strongest to the weakest: a sum stands on its weakest part.
enum class Basis : unsigned char { measured, interpolated, extrapolated, transferred, datasheet, assumed };

inline constexpr std::array<std::string_view, 6> kBasisNames = {"measured",    "interpolated", "extrapolated",
                                                                "transferred", "datasheet",    "assumed"};
constexpr std::string_view basis_name(Basis b) { return kBasisNames[static_cast<std::size_t>(b)]; }
constexpr Basis weaker(Basis a, Basis b) { return a > b ? a : b; }

/// A predicted duration, seconds; [low, high] is the 80 % interval from the calibration's own residuals.
struct Price {
  double seconds = 0;
  double low = 0;
  double high = 0;
  Basis basis = Basis::datasheet;
};

}  // namespace shardplan
