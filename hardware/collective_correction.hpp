#pragma once
// What measured curves add to NCCL's model: the logarithm of measured over modelled time, carried from the curves that
// were measured to the one that is asked (simple kriging; Cressie, Statistics for Spatial Data, 1993, section 3.2).
//
// A curve is (GPU, collective, ranks, type class). Two curves' corrections are taken to correlate by
//   K = variance * gpu * operation * ranks^|log2(n / n')| * type  (+ noise on the diagonal)
// each factor 1 where the coordinate agrees: a sibling GPU, all-gather and reduce-scatter, or the other type class
// agree well; other operations little. The correction of the curve asked is sum_i w_i r_i(size), w = K^-1 k, its
// variance variance - k' K^-1 k. A measured curve so returns (nearly) itself, and one that is missing leans on its
// neighbours. Between sizes the correction is linear in log2(bytes); beyond the largest it fades by half with every
// doubling or two. The factors are found by leaving out whole curves (see calibrate_collectives.hpp). Left out:
// correlation across sizes.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hardware/collective_nccl.hpp"

namespace shardplan {

/// all-reduce and reduce-scatter add: 8-bit types take longer than 16- and 32-bit ones. The others only copy.
enum class TypeClass { any, wide, narrow };
TypeClass type_class(Collective, DataType);
DataType example_of(TypeClass);

inline constexpr double kFirstCurveBytes = 512;

/// One measured curve: seconds at kFirstCurveBytes * 2^i, 0 = no point.
struct MeasuredCurve {
  Collective op = Collective::all_reduce;
  int ranks = 2;
  TypeClass type = TypeClass::any;
  std::vector<double> seconds;
};

struct CurveId {
  std::string gpu, family, generation;  // family: same board and switch; generation: same architecture
  Collective op = Collective::all_reduce;
  int ranks = 2;
  TypeClass type = TypeClass::any;
  bool same_place(const CurveId& o) const { return gpu == o.gpu && op == o.op && ranks == o.ranks; }
};

struct CorrelationConstants {
  double variance = 0.0064, noise = 0.0005;
  double family = 0.8, generation = 0.74, other_gpu = 0.37;
  double gather_scatter = 0.87, reduce_other = 0.3, pairwise_other = 0.1;
  double ranks = 0.41, type = 0.83;
  double fade = 0.6;  // a doubling beyond the largest measured size
};

/// Half-width of the 80 % interval of a curve that was not measured, in kriging standard deviations of log time, below
/// and from 1 MiB.
struct IntervalConstants {
  double small = 1.3, large = 1.3;
  double pairwise_small = 1.3, pairwise_large = 1.3;  // all-to-all and send-recv scatter more
};

/// The correction of one curve.
struct CurveCorrection {
  std::vector<double> log_ratio;  // at kFirstCurveBytes * 2^i
  double standard_deviation = 0;
  bool measured = false;  // this very curve was
  double at(double bytes, double fade) const;
};

class CorrectionField {
 public:
  /// Residuals of curves against their own GPU's constants.
  struct Entry {
    CurveId id;
    std::vector<double> log_ratio;
  };
  CorrectionField(std::vector<Entry> entries, const CorrelationConstants&);
  ~CorrectionField();
  CorrectionField(CorrectionField&&) noexcept;

  CurveCorrection correction(const CurveId&) const;
  std::span<const Entry> entries() const;
  const CorrelationConstants& constants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// log(measured / modelled) at each size; gaps are filled from their neighbours.
std::vector<double> log_ratios(const MeasuredCurve&, const DomainConstants&);

}  // namespace shardplan
