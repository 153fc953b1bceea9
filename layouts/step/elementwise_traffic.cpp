#include "layouts/step/elementwise_traffic.hpp"

namespace shardplan {

ElementwiseTraffic elementwise_traffic(Elementwise mode) {
  switch (mode) {
    case Elementwise::eager:
      return {36, 84, 6, 6, 10, 18, 8, 12, 20, 20, 6, 3, 8};
    case Elementwise::fused:
      return {4, 8, 6, 2, 6, 10, 4, 6, 4, 4, 1, 1, 2};
    case Elementwise::compiled:
      return {4, 6, 4, 2, 6, 10, 4, 6, 4, 4, 1, 1, 1};
    case Elementwise::plain:
      return {4, 8, 6, 6, 6, 10, 4, 6, 4, 4, 1, 1, 1};
  }
  return {};
}

}  // namespace shardplan
