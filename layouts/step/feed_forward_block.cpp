#include "layouts/step/feed_forward_block.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {

void mlp_products(LayerBuilder& b, double m, std::int64_t width, bool gated, DataType linear, Module module, Part part,
                  const TpTraffic& t) {
  const std::int64_t h = b.question().model->hidden;
  const ElementwiseTraffic traffic = elementwise_traffic(b.elementwise_mode());
  const std::int64_t columns = gated ? 2 * width : width;
  const double column =
      b.price().gemm(std::max<std::int64_t>(1, std::llround(m)), columns, h, linear, GemmPass::forward).seconds;
  const double row =
      b.price().gemm(std::max<std::int64_t>(1, std::llround(m)), h, width, linear, GemmPass::forward).seconds;
  const int products = gated ? 2 : 1;
  b.linear(module, part, m, columns, h, linear, hidden_reduction(b, t, products), hidden_gather(b, t));
  b.elementwise(
      module, MemoryKernel::activation, m * static_cast<double>(width) * (gated ? traffic.gated : traffic.plain),
      m * static_cast<double>(width) * (gated ? traffic.gated_backward : traffic.plain_backward), traffic.act_kernels);
  b.keep_narrow(m * static_cast<double>(columns));  // what the activation function needs
  b.linear(module, part, m, h, width, linear);
  tp_collectives(b, t, module, products, column, row);
}

}  // namespace shardplan
