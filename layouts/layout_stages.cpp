// Which layers each slice of the model's depth holds.
//
// The simple story: L layers over S slices, L / S each. What it omits: the head is worth 0.5-5 layers of work, so
// frameworks let the embedding and the loss count as layers (Megatron's account_for_embedding/loss_in_pipeline_split)
// or take any list of counts (Megatron's pipeline-model-parallel-layout). `automatic` compares these forms by the work
// of the busiest pipeline rank, then of the busiest slice (multiply-adds of matrix products; attention scores and
// memory-bound kernels are left out), and takes the simplest within 0.1 % of the best.
#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "layouts/layer_weights.hpp"
#include "layouts/layout.hpp"
#include "sim/stage_layout_text.hpp"

namespace shardplan {

namespace {

using Counts = std::vector<int>;  // layers of each slice

std::string n(std::int64_t v) { return std::to_string(v); }

/// Work of the model's pieces in multiply-adds a token.
struct Work {
  std::vector<double> before;  // prefix sums over layers
  double head = 0;             // output head and MTP layers (each with its own head), on the last slice
  bool uniform = true;         // all layers alike
};

Work work_of(const Model& m) {
  Work w;
  w.before.reserve(m.layers.size() + 1);
  w.before.push_back(0);
  double one = 0;
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    if (i == 0 || !same_layer(m.layers[i], m.layers[i - 1])) one = layer_multiplies(m, m.layers[i]);
    w.uniform = w.uniform && (i == 0 || one == w.before[1]);
    w.before.push_back(w.before.back() + one);
  }
  const double hidden = static_cast<double>(m.hidden), vocabulary = static_cast<double>(m.vocab) * hidden;
  w.head = vocabulary;
  for (const Layer& layer : m.mtp) w.head += layer_multiplies(m, layer) + vocabulary + 2 * hidden * hidden;
  return w;
}

struct Load {
  double rank = 0, slice = 0;  // of the busiest
};

/// Rank that holds a slice; bidirectional schedules hold it on two ranks, which mirror each other.
int rank_of(const Layout& l, int slice) {
  if (l.placement() == Placement::loop) return slice % l.pp;
  if (l.placement() == Placement::v_shape) return slice < l.pp ? slice : 2 * l.pp - 1 - slice;
  return std::min(slice, l.pp - 1 - slice);
}

/// Where a layout puts the pieces of the work.
struct Cut {
  const Work& work;
  std::vector<int> rank;              // of every slice
  mutable std::vector<double> ranks;  // load_of's sums, kept because it is asked thousands of times

  Cut(const Layout& l, const Work& w) : work(w), ranks(static_cast<std::size_t>(l.pp)) {
    for (int s = 0; s < l.slices(); ++s) rank.push_back(rank_of(l, s));
  }
  int slices() const { return static_cast<int>(rank.size()); }
};

Load load_of(const Cut& cut, const Counts& counts) {
  std::fill(cut.ranks.begin(), cut.ranks.end(), 0.0);
  Load out;
  int first = 0;
  for (int s = 0; s < cut.slices(); ++s) {
    const int next = first + counts[s];
    double load = cut.work.before[next] - cut.work.before[first];
    if (s + 1 == cut.slices()) load += cut.work.head;
    out.slice = std::max(out.slice, load);
    cut.ranks[cut.rank[s]] += load;
    first = next;
  }
  out.rank = *std::max_element(cut.ranks.begin(), cut.ranks.end());
  return out;
}

/// One layer after another to the slice whose rank, then which itself, has least work; ties to the later slice, whose
/// rank keeps fewer micro-batches alive.
Counts water_filled(const Cut& cut) {
  const int layers = static_cast<int>(cut.work.before.size()) - 1, slices = cut.slices();
  const double mean = cut.work.before.back() / layers;
  Counts counts(static_cast<std::size_t>(slices), 0);
  std::vector<double> ranks(cut.ranks.size(), 0.0), own(static_cast<std::size_t>(slices), 0.0);
  own.back() = cut.work.head;
  ranks[cut.rank.back()] = cut.work.head;
  for (int i = 0; i < layers; ++i) {
    int best = 0;
    for (int s = 1; s < slices; ++s) {
      const double a = ranks[cut.rank[s]], b = ranks[cut.rank[best]];
      if (a < b || (a == b && own[s] <= own[best])) best = s;
    }
    ++counts[best];
    own[best] += mean;
    ranks[cut.rank[best]] += mean;
  }
  return counts;
}

bool better(const Load& a, const Load& b) {
  constexpr double kWorth = 1e-3;
  if (a.rank < b.rank * (1 - kWorth)) return true;
  return a.rank <= b.rank * (1 + kWorth) && a.slice < b.slice * (1 - kWorth);
}

/// Models whose layers differ (first layers dense): move one layer's worth between any two slices while that helps.
void improve(const Cut& cut, Counts& counts) {
  const int slices = cut.slices();
  if (slices > 128) return;
  Load now = load_of(cut, counts);
  for (int round = 0; round < 64; ++round) {
    bool moved = false;
    for (int from = 0; from < slices && !moved; ++from) {
      for (int to = 0; to < slices && !moved; ++to) {
        if (from == to || counts[from] == 0) continue;
        --counts[from], ++counts[to];
        const Load next = load_of(cut, counts);
        moved = better(next, now);
        if (moved) now = next;
        if (!moved) ++counts[from], --counts[to];
      }
    }
    if (!moved) return;
  }
}

/// `extra_first`, `extra_last`: the embedding or the loss counts as a layer there. Empty where it does not divide.
Counts counted(int layers, int slices, int extra_first, int extra_last) {
  const int total = layers + extra_first + extra_last;
  if (total % slices != 0 || total / slices < std::max(extra_first, extra_last)) return {};
  Counts counts(static_cast<std::size_t>(slices), total / slices);
  counts.front() -= extra_first;
  counts.back() -= extra_last;
  return counts.front() < 0 || counts.back() < 0 ? Counts{} : counts;
}

Counts automatic(const Layout& l, const Model& m) {
  const Work work = work_of(m);
  const int layers = static_cast<int>(m.layers.size()), slices = l.slices();
  if (slices == 1) return {layers};
  const Cut cut(l, work);
  Counts balanced = water_filled(cut);
  if (!work.uniform) improve(cut, balanced);
  Counts best;
  for (Counts c :
       {counted(layers, slices, 0, 0), counted(layers, slices, 0, 1), counted(layers, slices, 1, 1), balanced}) {
    if (!c.empty() && (best.empty() || better(load_of(cut, c), load_of(cut, best)))) best = std::move(c);
  }
  return best;
}

Counts required(int layers, int slices, int extra_first, int extra_last, const char* what) {
  Counts c = counted(layers, slices, extra_first, extra_last);
  if (c.empty()) {
    throw InputError("split", std::string(what) + ": " + n(layers) +
                                  (extra_first + extra_last > 0 ? " + " + n(extra_first + extra_last) : "") +
                                  " layers do not divide into " + n(slices) + " stages");
  }
  return c;
}

Counts counts_of(const Layout& l, const Model& m) {
  const int layers = static_cast<int>(m.layers.size()), slices = l.slices();
  switch (l.split) {
    case SplitKind::even:
      return required(layers, slices, 0, 0, "split=even");
    case SplitKind::loss_as_layer:
      return required(layers, slices, 0, 1, "split=loss-as-layer");
    case SplitKind::embed_loss_as_layers:
      return required(layers, slices, 1, 1, "split=embed-loss-as-layers");
    default:
      return automatic(l, m);
  }
}

/// Megatron's notation says every stage; MTP layers need not stand in the last one.
std::vector<StageSlice> written_stages(const Layout& l, const Model& m) {
  const std::vector<std::string> stages = parse_stage_layout(l.split_pattern, "split");
  const int layers = static_cast<int>(m.layers.size()), mtp = static_cast<int>(m.mtp.size());
  if (const auto reason = refuse_stage_layout(stages, l.pp, layers, mtp))
    throw InputError("split", "split: " + *reason);
  if (static_cast<int>(stages.size()) != l.slices()) {
    throw InputError("split", "split: the pattern has " + n(static_cast<std::int64_t>(stages.size())) +
                                  " stages, pp and vpp make " + n(l.slices()));
  }
  std::vector<StageSlice> out;
  int first = 0;
  for (const std::string& stage : stages) {
    StageSlice s{first, static_cast<int>(std::count(stage.begin(), stage.end(), 't')),
                 stage.find('E') != std::string::npos, stage.find('L') != std::string::npos,
                 static_cast<int>(std::count(stage.begin(), stage.end(), 'm'))};
    first += s.layers;
    out.push_back(s);
  }
  return out;
}

void check_slices(const Layout& l, int layers) {
  if (l.slices() > layers + 2) {
    throw InputError("split",
                     "more stages (" + n(l.slices()) + ") than layers, embedding and head (" + n(layers + 2) + ")");
  }
}

}  // namespace

std::optional<std::string> refuse_split(const Layout& l, const Model& m) {
  try {
    if (l.split != SplitKind::pattern) check_slices(l, static_cast<int>(m.layers.size()));
    if (l.split == SplitKind::pattern) {
      written_stages(l, m);
    } else if (l.split != SplitKind::automatic) {
      counts_of(l, m);
    }
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

std::vector<StageSlice> split_stages(const Layout& l, const Model& m) {
  if (l.split == SplitKind::pattern) return written_stages(l, m);
  check_slices(l, static_cast<int>(m.layers.size()));
  const Counts counts = counts_of(l, m);
  std::vector<StageSlice> out;
  int first = 0;
  for (const int c : counts) {
    out.push_back(StageSlice{first, c, false, false, 0});
    first += c;
  }
  out.front().embedding = true;
  out.back().head = true;
  out.back().mtp_layers = static_cast<int>(m.mtp.size());
  return out;
}

std::string stage_layout_of(const std::vector<StageSlice>& slices) {
  std::vector<std::string> stages;
  for (const StageSlice& s : slices)
    stages.push_back((s.embedding ? "E" : "") + std::string(static_cast<std::size_t>(s.layers), 't') +
                     std::string(static_cast<std::size_t>(s.mtp_layers), 'm') + (s.head ? "L" : ""));
  return stage_layout_text(stages);
}

}  // namespace shardplan
