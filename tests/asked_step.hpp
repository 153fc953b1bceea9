#pragma once
// One step's question with the values that it points to.
#include <string>

#include "layouts/step/price.hpp"
#include "layouts/step/question.hpp"
#include "models/load_model.hpp"

struct AskedStep {
  shardplan::Model model;
  shardplan::Pricer pricer;
  shardplan::StepQuestion q;

  AskedStep(const std::string& name, const std::string& cluster, const std::string& layout, std::int64_t gpus,
            std::int64_t seq, std::int64_t batch, shardplan::Rates rates = shardplan::Rates::calibrated)
      : model(shardplan::load_model(name)),
        pricer(shardplan::load_cluster(cluster), rates, shardplan::Fidelity::table) {
    q.model = &model;
    q.pricer = &pricer;
    q.layout = shardplan::parse_layout(layout, gpus, "--layout");
    q.workload.seq_len = seq;
    q.workload.global_batch = batch;
    q.stack = shardplan::load_stack("megatron-core", "--stack");
    q.options.rates = rates;
  }
  AskedStep(const AskedStep&) = delete;
  AskedStep& operator=(const AskedStep&) = delete;
};
