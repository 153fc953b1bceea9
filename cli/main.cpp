#include "cli/verbs.hpp"

int main(int argc, char** argv) { return shardplan::run_command_line(argc, argv); }
