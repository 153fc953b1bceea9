#pragma once
// The answer of `shardplan bubble` for people: bubbles, closed form, ranks, a picture in time, the order.
#include "cli/bubble_question.hpp"

namespace shardplan {

void print_bubble(const BubbleQuestion&, const BubbleAnswer&);

}  // namespace shardplan
