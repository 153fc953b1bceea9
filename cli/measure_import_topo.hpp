#pragma once
// measure import topo FILE.

namespace CLI {
class App;
}

namespace shardplan {

/// Adds `topo` to the subcommand `import` of `measure`.
void add_import_topo(CLI::App& import_verb);

}  // namespace shardplan
