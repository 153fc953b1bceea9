#include "hardware/measure/device_compare.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "hardware/kernels.hpp"

namespace shardplan {
namespace {

std::optional<GemmPass> pass_of(const std::string& word) {
  if (word == "forward") return GemmPass::forward;
  if (word == "input-grad") return GemmPass::input_grad;
  if (word == "weight-grad") return GemmPass::weight_grad;
  return std::nullopt;
}

std::optional<DataType> type_of(const std::string& word) {
  for (std::size_t i = 0; i < kDataTypeNames.size(); ++i) {
    if (kDataTypeNames[i] == word) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

struct Prediction {
  std::string group;
  double seconds = 0;
};

std::optional<Prediction> predict_gemm(const MeasuredPoint& p, const KernelModel& model) {
  const auto pass = pass_of(p.word("pass"));
  const auto type = type_of(p.word("dtype"));
  if (!pass || !type || p.number("sm_target") > 0 || model.gpu().peak(*type) <= 0) return std::nullopt;
  Gemm g;
  g.m = static_cast<std::int64_t>(p.number("m"));
  g.n = static_cast<std::int64_t>(p.number("n"));
  g.k = static_cast<std::int64_t>(p.number("k"));
  if (g.m < 1 || g.n < 1 || g.k < 1) return std::nullopt;
  g.type = *type;
  g.pass = *pass;
  g.accumulate_fp32 = *pass == GemmPass::weight_grad;
  return Prediction{"gemm " + p.word("dtype") + " " + p.word("pass"), model.gemm(g).seconds};
}

std::optional<Prediction> predict(const MeasuredPoint& p, const KernelModel& model) {
  if (p.kernel == "gemm" && p.state != "hot") return predict_gemm(p, model);
  if (p.kernel == "layer" && p.number("parts_s") > 0)
    return Prediction{"layer " + p.word("phase") + " (sum of its parts)", p.number("parts_s")};
  struct Memory {
    const char* kernel;
    MemoryKernel kind;
  };
  for (const Memory& m :
       {Memory{"copy", MemoryKernel::copy}, Memory{"norm", MemoryKernel::norm}, Memory{"cast", MemoryKernel::cast},
        Memory{"permute", MemoryKernel::permute}, Memory{"swiglu", MemoryKernel::activation}}) {
    if (p.kernel == m.kernel) return Prediction{p.kernel, model.memory_bound(m.kind, p.bytes).seconds};
  }
  return std::nullopt;
}

}  // namespace

std::vector<KernelComparison> compare_kernels(const MeasuringFile& file, const Cluster& cluster) {
  const KernelModel model(cluster.gpu, Rates::calibrated);
  struct Group {
    std::vector<double> errors, absolute;
    int throttled = 0;
  };
  std::map<std::string, Group> groups;
  for (const MeasuredPoint& p : file.points) {
    const auto predicted = predict(p, model);
    if (!predicted) continue;
    Group& group = groups[predicted->group];
    if (p.flagged("throttled")) {
      ++group.throttled;
      continue;
    }
    const double error = predicted->seconds / p.time.median - 1;
    group.errors.push_back(error);
    group.absolute.push_back(std::abs(error));
  }
  std::vector<KernelComparison> out;
  for (const auto& [name, group] : groups) {
    KernelComparison c{name, static_cast<int>(group.errors.size()), group.throttled, 0, 0, 0};
    if (!group.errors.empty()) {
      c.median_error = median(group.errors);
      c.median_absolute = median(group.absolute);
      c.worst = *std::max_element(group.absolute.begin(), group.absolute.end());
    }
    out.push_back(c);
  }
  return out;
}

}  // namespace shardplan
