#pragma once
// --for FRAMEWORK: what a framework refuses of a layout that arithmetic allows is an error instead of a note.
#include <string>
#include <vector>

#include "layouts/layout.hpp"
#include "layouts/step/stack.hpp"

namespace CLI {
class App;
}

namespace shardplan {

void add_framework_option(CLI::App&, std::string& framework);  // --for
/// InputError where the framework is unknown ("" = none asked).
void check_framework_name(const std::string& framework);
/// InputError where one of the notes is of this framework.
void refuse_framework(const std::string& framework, const std::vector<FrameworkNote>& notes);

/// What the stack's own framework refuses of a layout; ZeRO stages that the stack lists are its own.
std::vector<FrameworkNote> refusals_of_stack(const std::vector<FrameworkNote>& notes, const Stack& stack,
                                             const Layout& layout);

}  // namespace shardplan
