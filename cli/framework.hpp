#pragma once
// --for FRAMEWORK: what a framework refuses of a layout that arithmetic allows is an error instead of a note.
#include <string>
#include <vector>

#include "layouts/layout.hpp"

namespace CLI {
class App;
}

namespace shardplan {

void add_framework_option(CLI::App&, std::string& framework);  // --for
/// InputError where the framework is unknown ("" = none asked).
void check_framework_name(const std::string& framework);
/// InputError where one of the notes is of this framework.
void refuse_framework(const std::string& framework, const std::vector<FrameworkNote>& notes);

}  // namespace shardplan
