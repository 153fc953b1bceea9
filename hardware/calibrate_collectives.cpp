#include "hardware/calibrate_collectives.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/errors.hpp"
#include "hardware/compass_search.hpp"

namespace shardplan {

namespace {

constexpr double kHold = 5e-4;      // weight of the prior: squared log distance of each constant
constexpr double kTighter = 20;     // that much tighter the losses of pairs are held
constexpr double kQuadratic = 0.1;  // log errors below this count squared, above it linearly
constexpr double kLargeBytes = 1 << 20;

double loss_of(double log_error) {
  const double e = std::abs(log_error);
  return e > kQuadratic ? e : 0.5 * (e * e / kQuadratic + kQuadratic);
}

/// One size of one curve: the mean of log seconds over repeats and versions.
struct Point {
  Collective op;
  int ranks;
  DataType type;
  NcclSettings settings;
  double bytes, log_seconds;
};

struct Sum {
  double sum = 0;
  int n = 0;
};

bool in_one_domain(const CollectiveRow& r) { return r.nodes <= 1; }
/// Rows of the same program on the same machine, whole ladders: these become curves; single figures only help the
/// constants.
bool is_curve_source(const CollectiveRow& r) {
  return r.env.empty() && (r.dataset.rfind("aiconfigurator", 0) == 0 || r.dataset == kMeasuredHere);
}

struct Parsed {
  const CollectiveRow* row;
  Collective op;
  DataType type;
  std::string gpu;
};

std::vector<Parsed> parse(std::span<const CollectiveRow> rows) {
  std::vector<Parsed> out;
  std::map<std::string, std::string> gpus;
  for (const CollectiveRow& r : rows) {
    const auto op = collective_of(r.op);
    const auto type = nccl_type(r.dtype);
    if (!op || !type || !(r.bytes > 0) || !(r.seconds > 0) || r.ranks < 2) continue;
    auto [at, fresh] = gpus.try_emplace(r.gpu);
    if (fresh) {
      try {
        CollectiveRow one = r;
        one.nodes = 1;
        at->second = cluster_of(one).gpu.name;
      } catch (const InputError&) {
        at->second.clear();  // a GPU without a data file: its rows are passed over
      }
    }
    if (!at->second.empty()) out.push_back({&r, *op, *type, at->second});
  }
  return out;
}

std::vector<Point> points_of(const std::vector<Parsed>& rows, const std::string& gpu) {
  std::map<std::tuple<Collective, int, TypeClass, bool, std::string_view, double>, Sum> sums;
  for (const Parsed& p : rows) {
    if (p.gpu != gpu || !in_one_domain(*p.row)) continue;
    const NcclSettings s = settings_of(*p.row);
    Sum& sum = sums[{p.op, p.row->ranks, type_class(p.op, p.type), s.nvls, s.algorithm, p.row->bytes}];
    sum.sum += std::log(p.row->seconds);
    ++sum.n;
  }
  std::vector<Point> out;
  for (const auto& [key, sum] : sums) {
    const auto& [op, ranks, type, nvls, algorithm, bytes] = key;
    out.push_back({op, ranks, example_of(type), {nvls, algorithm}, bytes, sum.sum / sum.n});
  }
  return out;
}

void push(std::vector<double>& x, const ProtocolConstants& p) {
  x.insert(x.end(), {std::log(p.base_seconds), std::log(std::max(p.hop_seconds, 1e-9)),
                     std::log(p.bus_bytes_per_second), std::log(std::max(p.pair_loss, 1e-3))});
}
ProtocolConstants pop(const std::vector<double>& x, std::size_t& at) {
  const ProtocolConstants p{std::exp(x[at]), std::exp(x[at + 1]), std::exp(x[at + 2]),
                            std::min(0.9, std::exp(x[at + 3]))};
  at += 4;
  return p;
}

std::vector<double> as_vector(const DomainConstants& c) {
  std::vector<double> x;
  for (const auto& p : c.ring) push(x, p);
  for (const auto& p : c.pairwise) push(x, p);
  x.push_back(std::log(c.all_reduce_loss));
  if (c.nvls) x.insert(x.end(), {std::log(c.nvls->base_seconds), std::log(c.nvls->bytes_per_second)});
  return x;
}
DomainConstants as_constants(const std::vector<double>& x, const DomainConstants& like) {
  DomainConstants c = like;
  std::size_t at = 0;
  for (auto& p : c.ring) p = pop(x, at);
  for (auto& p : c.pairwise) p = pop(x, at);
  c.all_reduce_loss = std::min(1.0, std::exp(x[at++]));
  if (c.nvls) {
    c.nvls->base_seconds = std::exp(x[at]);
    c.nvls->bytes_per_second = std::exp(x[at + 1]);
  }
  return c;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

/// The losses of pairs are known only where two GPUs were measured, and differ little between GPUs: held tighter.
double domain_distance(const std::vector<double>& a, const std::vector<double>& b, const DomainConstants& c) {
  const std::size_t protocols = c.ring.size() + c.pairwise.size();
  double extra = (a[4 * protocols] - b[4 * protocols]) * (a[4 * protocols] - b[4 * protocols]);
  for (std::size_t p = 0; p < protocols; ++p) extra += (a[4 * p + 3] - b[4 * p + 3]) * (a[4 * p + 3] - b[4 * p + 3]);
  return distance(a, b) + (kTighter - 1) * extra;
}

bool uses_nvls(const Point& p, const NvlsConstants& nvls) {
  return p.op == Collective::all_reduce && p.ranks >= nvls.least_ranks && p.settings.nvls && switch_can_add(p.type);
}

DomainConstants fit_domain(const std::vector<Point>& points, const DomainConstants& prior) {
  if (points.empty()) return prior;
  const std::vector<double> start = as_vector(prior);
  const auto loss = [&](const std::vector<double>& x) {
    const DomainConstants c = as_constants(x, prior);
    double sum = 0;
    for (const Point& p : points) {
      sum += loss_of(std::log(nccl_in_domain(c, p.op, p.bytes, p.ranks, p.type, p.settings).seconds) - p.log_seconds);
    }
    return sum / static_cast<double>(points.size()) + kHold * domain_distance(x, start, prior);
  };
  return as_constants(compass_search(start, loss, 60), prior);
}

/// A longer message never takes less: neighbours that say so are pooled (isotonic regression by
/// pool-adjacent-violators). 0 = no point.
void make_monotone(std::vector<double>& seconds) {
  struct Pool {
    double sum;
    std::size_t n;
    double mean() const { return sum / static_cast<double>(n); }
  };
  std::vector<Pool> pools;
  for (const double s : seconds) {
    if (!(s > 0)) continue;
    pools.push_back({std::log(s), 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back() = {pools.back().sum + last.sum, pools.back().n + last.n};
    }
  }
  std::size_t pool = 0, used = 0;
  for (double& s : seconds) {
    if (!(s > 0)) continue;
    if (used == pools[pool].n) ++pool, used = 0;
    s = std::exp(pools[pool].mean());
    ++used;
  }
}

std::vector<MeasuredCurve> curves_of(const std::vector<Parsed>& rows, const std::string& gpu) {
  std::map<std::tuple<Collective, int, TypeClass>, std::map<std::size_t, Sum>> sums;
  for (const Parsed& p : rows) {
    if (p.gpu != gpu || !in_one_domain(*p.row) || !is_curve_source(*p.row)) continue;
    const double at = std::log2(p.row->bytes / kFirstCurveBytes);
    if (at < 0 || at > 40 || at != std::round(at)) continue;
    Sum& sum = sums[{p.op, p.row->ranks, type_class(p.op, p.type)}][static_cast<std::size_t>(at)];
    sum.sum += std::log(p.row->seconds);
    ++sum.n;
  }
  std::vector<MeasuredCurve> out;
  for (const auto& [key, sizes] : sums) {
    MeasuredCurve c{std::get<0>(key), std::get<1>(key), std::get<2>(key), {}};
    c.seconds.assign(sizes.rbegin()->first + 1, 0);
    for (const auto& [i, sum] : sizes) c.seconds[i] = std::exp(sum.sum / sum.n);
    make_monotone(c.seconds);
    out.push_back(std::move(c));
  }
  return out;
}

/// Predictions of rows by one calibration; models are kept by GPU and fabric.
class Predictor {
 public:
  explicit Predictor(std::shared_ptr<const CollectiveCalibration> calibration) : calibration_(std::move(calibration)) {}
  Price price(const CollectiveRow& r, Collective op, DataType type) {
    const auto key = std::make_tuple(r.gpu, r.nodes > 1 ? r.net : std::string(), r.gpus_per_node);
    auto at = models_.find(key);
    if (at == models_.end())
      at = models_.emplace(key, NetworkModel(cluster_of(r), Rates::calibrated, Fidelity::table, calibration_)).first;
    return at->second.collective(op, r.bytes, shape_of(r, at->second.cluster()), type, settings_of(r)).price;
  }

 private:
  std::shared_ptr<const CollectiveCalibration> calibration_;
  std::map<std::tuple<std::string, std::string, int>, NetworkModel> models_;
};

bool can_be_placed(const CollectiveRow& r) {
  try {
    cluster_of(r);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

FabricConstants fit_fabric(const std::vector<Parsed>& rows, const CollectiveCalibration& calibration) {
  struct Asked {
    const Parsed* row;
    Cluster cluster;
    DomainConstants domain;
    double weight;
  };
  std::map<std::string, int> per_set;
  std::vector<Asked> asked;
  for (const Parsed& p : rows) {
    if (in_one_domain(*p.row) || !can_be_placed(*p.row)) continue;
    ++per_set[p.row->dataset];
    Cluster c = cluster_of(*p.row);
    const CollectiveTable* t = table_for(calibration, c).table;
    asked.push_back({&p, std::move(c), t->domain, 0});
  }
  if (asked.empty()) return calibration.fabric;
  for (Asked& a : asked) a.weight = 1.0 / per_set[a.row->row->dataset] / static_cast<double>(per_set.size());
  const FabricConstants f;  // the start: NCCL's table and round efficiencies
  const std::vector<double> start = {
      std::log(f.ring_efficiency), std::log(f.tree_efficiency), std::log(f.nvls_tree_efficiency),
      std::log(f.hop_scale[2]),    std::log(f.hop_extra[2]),    std::log(f.fill_scale),
      std::log(f.fill_bytes),      std::log(f.hop_scale[1]),    std::log(f.hop_extra[1])};
  const auto constants = [&](const std::vector<double>& x) {
    FabricConstants c = f;
    c.ring_efficiency = std::min(1.0, std::exp(x[0]));
    c.tree_efficiency = std::min(1.0, std::exp(x[1]));
    c.nvls_tree_efficiency = std::min(1.0, std::exp(x[2]));
    c.hop_scale[2] = std::exp(x[3]);
    c.hop_extra[2] = std::exp(x[4]);
    c.fill_scale = std::exp(x[5]);
    c.fill_bytes = std::exp(x[6]);
    c.hop_scale[1] = std::exp(x[7]);
    c.hop_extra[1] = std::exp(x[8]);
    return c;
  };
  const auto loss = [&](const std::vector<double>& x) {
    FabricConstants c = constants(x);
    double sum = 0;
    for (const Asked& a : asked) {
      c.hop_seconds = a.cluster.network.hop_seconds.value;
      c.ll128 = keeps_write_order(a.cluster.network);
      const GroupShape shape = shape_of(*a.row->row, a.cluster);
      const double nics = shape.nics_per_domain * a.cluster.node.nic_bytes_per_second.value;
      const NcclAnswer answer =
          nccl_across(a.domain, c, a.row->op, a.row->row->bytes, shape, a.row->type, nics, settings_of(*a.row->row));
      sum += a.weight * loss_of(std::log(answer.seconds / a.row->row->seconds));
    }
    return sum + 10 * kHold * distance(x, start);
  };
  return constants(compass_search(start, loss, 40));
}

/// Refits what `rows` touch; intervals stay the prior's.
CollectiveCalibration fitted(const std::vector<Parsed>& rows, const CollectiveCalibration& prior,
                             const std::set<std::string>& gpus, bool across) {
  CollectiveCalibration out = prior;
  for (CollectiveTable& t : out.tables) {
    if (!gpus.contains(t.gpu)) continue;
    DomainConstants start = nccl_prior(t.link_bytes_per_second);
    // The switch's rate is fitted where groups large enough were measured (not on boards of four), else it stays the
    // table's.
    const auto points = points_of(rows, t.gpu);
    start.nvls = t.domain.nvls;
    if (start.nvls &&
        std::any_of(points.begin(), points.end(), [&](const Point& p) { return uses_nvls(p, *start.nvls); })) {
      start.nvls->base_seconds = 80e-6;
      start.nvls->bytes_per_second = 0.55 * t.link_bytes_per_second;
    }
    t.domain = fit_domain(points, start);
    t.curves = curves_of(rows, t.gpu);
  }
  if (across) out.fabric = fit_fabric(rows, out);
  return out;
}

std::string part_of(const Parsed& p) {
  if (!in_one_domain(*p.row)) return p.row->dataset;
  return p.gpu + " " + std::string(collective_name(p.op)) + " " + std::to_string(p.row->ranks);
}

double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const double at = q * static_cast<double>(v.size() - 1);
  const auto i = static_cast<std::size_t>(at);
  return i + 1 < v.size() ? v[i] + (at - static_cast<double>(i)) * (v[i + 1] - v[i]) : v[i];
}

/// Half-widths that hold 80 % of what was measured.
void set_intervals(CollectiveCalibration& c, std::span<const CollectiveRow> rows, const CollectiveCalibration& prior) {
  constexpr double kZ80 = 1.2816;
  std::vector<double> ratios[4], across;  // small, large; the same of pairwise
  std::map<std::string, std::string> gpus;
  for (const Parsed& p : parse(rows)) gpus[p.row->gpu] = p.gpu;
  for (const LeftOutRow& l : leave_out_curves(rows, prior)) {
    const CollectiveRow& r = rows[l.row];
    const double error = std::abs(std::log(l.seconds / r.seconds));
    if (!in_one_domain(r)) {
      across.push_back(error);
    } else if (const CollectiveTable* t = is_curve_source(r) ? prior.find(gpus[r.gpu]) : nullptr) {
      // half^2 = (factor sd)^2 + repeats^2: the factor that this row would need, over the prior's.
      const bool large = r.bytes >= kLargeBytes, pairwise = collective_of(r.op) == Collective::all_to_all;
      const double half = std::log(l.high / l.seconds), repeats = large ? t->spread_large : t->spread_small;
      const double needed = std::sqrt(std::max(0.0, error * error - repeats * repeats));
      ratios[2 * pairwise + large].push_back(needed / std::sqrt(std::max(1e-12, half * half - repeats * repeats)));
    }
  }
  double* factors[] = {&c.interval.small, &c.interval.large, &c.interval.pairwise_small, &c.interval.pairwise_large};
  for (std::size_t i = 0; i < 4; ++i) {
    if (!ratios[i].empty()) *factors[i] *= quantile(ratios[i], 0.8);
  }
  if (!across.empty()) c.across_log_deviation = quantile(across, 0.8) / kZ80;
}

/// What repeats and versions differ by around the curves themselves.
void set_spreads(CollectiveCalibration& c, const std::vector<Parsed>& rows) {
  Predictor predictor(std::make_shared<const CollectiveCalibration>(c));
  for (CollectiveTable& t : c.tables) {
    std::vector<double> small, large;
    for (const Parsed& p : rows) {
      if (p.gpu != t.gpu || !in_one_domain(*p.row) || !is_curve_source(*p.row)) continue;
      const double error = std::abs(std::log(predictor.price(*p.row, p.op, p.type).seconds / p.row->seconds));
      (p.row->bytes >= kLargeBytes ? large : small).push_back(error);
    }
    // One run alone shows no spread: not below 2 %.
    if (!small.empty()) t.spread_small = std::max(0.02, quantile(small, 0.8));
    if (!large.empty()) t.spread_large = std::max(0.02, quantile(large, 0.8));
  }
}

}  // namespace

CollectiveCalibration calibrate_collectives(std::span<const CollectiveRow> rows, const CollectiveCalibration& prior) {
  const std::vector<Parsed> parsed = parse(rows);
  std::set<std::string> gpus;
  bool across = false;
  for (const Parsed& p : parsed) {
    if (in_one_domain(*p.row)) gpus.insert(p.gpu);
    across |= !in_one_domain(*p.row);
  }
  CollectiveCalibration out = fitted(parsed, prior, gpus, across);
  set_spreads(out, parsed);
  set_intervals(out, rows, out);
  return out;
}

std::vector<LeftOutRow> leave_out_curves(std::span<const CollectiveRow> rows, const CollectiveCalibration& prior,
                                         const std::function<bool(const CollectiveRow&)>& keep) {
  const std::vector<Parsed> parsed = parse(rows);
  std::map<std::string, std::vector<std::size_t>> parts;
  for (std::size_t i = 0; i < parsed.size(); ++i) {
    const CollectiveRow& r = *parsed[i].row;
    if (keep && !keep(r)) continue;
    if (in_one_domain(r) ? prior.find(parsed[i].gpu) != nullptr && is_curve_source(r) : can_be_placed(r))
      parts[part_of(parsed[i])].push_back(i);
  }
  std::vector<LeftOutRow> out;
  for (const auto& [part, members] : parts) {
    std::vector<Parsed> seen;
    for (const Parsed& p : parsed) {
      if (part_of(p) != part) seen.push_back(p);
    }
    const Parsed& first = parsed[members.front()];
    const bool inside = in_one_domain(*first.row);
    const std::set<std::string> gpus = inside ? std::set<std::string>{first.gpu} : std::set<std::string>{};
    Predictor predictor(std::make_shared<const CollectiveCalibration>(fitted(seen, prior, gpus, !inside)));
    for (const std::size_t i : members) {
      const Price p = predictor.price(*parsed[i].row, parsed[i].op, parsed[i].type);
      out.push_back({static_cast<std::size_t>(parsed[i].row - rows.data()), p.seconds, p.low, p.high});
    }
  }
  std::sort(out.begin(), out.end(), [](const LeftOutRow& a, const LeftOutRow& b) { return a.row < b.row; });
  return out;
}

}  // namespace shardplan
