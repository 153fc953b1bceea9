#pragma once
// measure import: what others measured, brought into this program's own forms. One function a kind.

namespace CLI {
class App;
}

namespace shardplan {

/// `measure import nccl-tests FILE`; `import_verb` is the subcommand `import` of `measure`.
void add_import_nccl_tests(CLI::App& import_verb);

}  // namespace shardplan
