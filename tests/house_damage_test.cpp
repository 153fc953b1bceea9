// Every reader of the house fed with damaged files: it answers, or throws InputError with a place and a reason. Nothing
// else may leave it; the dev preset runs this under the sanitizers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "base/csv.hpp"
#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/quantity_text.hpp"
#include "hardware/cluster_read.hpp"
#include "hardware/collective_rows.hpp"
#include "hardware/collectives.hpp"
#include "hardware/flows.hpp"
#include "hardware/import_nccl.hpp"
#include "hardware/import_topo.hpp"
#include "hardware/import_trace.hpp"
#include "hardware/kernel_rows.hpp"
#include "layouts/layout.hpp"
#include "layouts/measured_run.hpp"
#include "models/flops.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"
#include "models/popularity.hpp"
#include "sim/pytorch_csv.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"
#include "sim/stage_layout_text.hpp"
#include "tests/damage.hpp"

using namespace shardplan;

namespace {

void use_model(const std::string& text) {
  const Model m = parse_model(text, "m.json");
  const ParameterCounts counts = count_parameters(m);
  if (counts.total < 1 || counts.active > counts.total) FAIL("counted wrongly:\n" << text);
  if (!(forward_flops(m, 4096).total() > 0)) FAIL("no FLOPs:\n" << text);
}

void use_cluster(const std::string& text) {
  const Cluster cluster = read_cluster(text, "c.json");
  for (const Rates rates : {Rates::datasheet, Rates::calibrated}) {
    const NetworkModel network(cluster, rates, Fidelity::bound);
    const double seconds =
        network
            .collective(Collective::all_reduce, 1e8, group_shape(cluster, std::min(2 * cluster.node.nvlink_domain, 64)))
            .price.seconds;
    if (!(seconds >= 0) || !std::isfinite(seconds)) FAIL("all-reduce takes " << seconds << " s:\n" << text);
  }
}

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

}  // namespace

TEST_CASE("every built-in model file, damaged, is read or refused", "[house][input]") {
  Tally all;
  for (const EmbeddedFile& file : models_data()) {
    if (file.text.size() > 20'000) continue;  // one nasty value among a thousand lines of equal ones is rarely met
    const std::string text(file.text);
    if (Field::parse(text, "m.json").find("schema") == std::nullopt) continue;
    if (!starts_with(Field::parse(text, "m.json").at("schema").text(), "shardplan-model/")) continue;
    INFO(file.name);
    all += feed_values(text, use_model, 150, text.size());
    all += feed_bytes(text, use_model, 60, 7);
  }
  CHECK(all.read > 100);
  CHECK(all.refused > 500);
}

TEST_CASE("every built-in cluster and GPU file, damaged, is read or refused", "[house][input]") {
  Tally all;
  for (const EmbeddedFile& file : hardware_data()) {
    const std::string text(file.text);
    const bool cluster = starts_with(file.name, "data/clusters/"), gpu = starts_with(file.name, "data/gpus/");
    if (!cluster && !gpu) continue;
    INFO(file.name);
    const ReadText use_gpu = [](const std::string& t) { read_gpu(Field::parse(t, "g.json")); };
    const ReadText use = cluster ? ReadText(use_cluster) : use_gpu;
    all += feed_values(text, use, 60, text.size());
    all += feed_bytes(text, use, 30, 7);
  }
  CHECK(all.read > 100);
  CHECK(all.refused > 300);
}

TEST_CASE("a damaged layout text is refused, or means what its canonical text means", "[house][input]") {
  for (const char* sound :
       {"tp8 pp4 dp16 zero1", "tp2,cp2,pp4,vpp2,dp4 mbs2 schedule=interleaved-1f1b group=8",
        "tp4 ep8 etp2 dp8 pp2 recompute=selective:core_attn,layernorm,moe_act order=tp-dp-cp-pp",
        "pp4 vpp8 split=\"Et*3|(tt|)*29,m|L\" offload=activations:20 act-store=fp8 cuda-graphs=modules:attn,moe_router",
        "dp64 zero3 shard8 reshard=0 prefetch=2 compile=1 grad-reduce=bf16 ep-overlap=waves4 transport=deepep"}) {
    const Tally t = feed_bytes(
        sound,
        [](const std::string& text) {
          const Layout l = parse_layout(text, 0, "--layout");
          const std::string shown = layout_text(l);
          if (layout_text(parse_layout(shown, 0, "--layout")) != shown) FAIL(text << " shows as " << shown);
        },
        2000, 11);
    CHECK(t.refused > 100);
  }
}

TEST_CASE("damaged rows of measured training runs are read or refused", "[house][input]") {
  const std::string text = read_text_file(SHARDPLAN_SOURCE_DIR "/tests/data/invented_runs.json");
  const auto rows = nlohmann::ordered_json::parse(text).at("rows");
  Tally all;
  for (const auto& row : rows) {
    const auto use = [](const std::string& t) { read_run(Field::parse(t, "r.json")); };
    all += feed_values(row.dump(), use, 500, row.dump().size());
  }
  CHECK(all.read > 100);
  CHECK(all.refused > 20);
}

TEST_CASE("damaged tables and logs are read or refused", "[house][input]") {
  struct Row {
    const char* name;
    const char* sound;
    ReadText read;
  };
  const auto rows_of_kernels = [](const std::string& t) {
    const CsvTable table = CsvTable::parse(t, "k.csv");
    if (!kernel_row_kind(table)) throw InputError("k.csv", "no kernel rows");
    for (const KernelRow& row : read_kernel_rows(table))
      if (row.kind == KernelRowKind::experts && row.unusable.empty()) expert_layer(row, timed_group_sizes(row));
  };
  const auto trace = [](const std::string& t) { replay_phases(summarise_trace(parse_trace(t, "t.json"))); };
  const std::vector<Row> rows = {
      {"matrix products",
       "gpu,framework,version,dtype,m,n,k,latency_us,tflops,frac_of_peak,peak_tflops,source\n"
       "h100_sxm,trtllm,1,bfloat16,128,256,512,12.5,2.7,0.003,989,made up\n",
       rows_of_kernels},
      {"attention",
       "gpu,framework,version,kernel_source,attn_dtype,kv_dtype,batch,seq,heads,kv_heads,head_dim,prefix,latency_us,"
       "tflops_causal,frac_of_bf16_peak,source\n"
       "h100_sxm,vllm,1,vllm_flash_attn_fa3,bfloat16,fp8,4,1024,8,8,64,0,170.5,500,0.5,made up\n",
       rows_of_kernels},
      {"grouped products",
       "gpu,framework,version,kernel_source,dtype,tokens,hidden,inter,topk,experts,tp,ep,distribution,latency_us,"
       "tflops,frac,source\n"
       "h100_sxm,trtllm,1,moe_torch_flow_cutlass,fp8,48,2048,768,8,128,2,64,power_law_1.01,26.05,1.1,0.0005,made up\n",
       rows_of_kernels},
      {"collectives",
       "dataset,gpu,gpus_per_node,nodes,ranks,net,op,dtype,bytes,time_us,algbw_gbs,busbw_gbs,place,nccl,env,source\n"
       "x,h100_sxm,8,2,16,IB NDR 8x400G,all_reduce,half,1048576,50,20,39,\"out, of place\",2.27.3,,made up\n",
       [](const std::string& t) {
         for (const CollectiveRow& row : read_collective_rows(CsvTable::parse(t, "c.csv"))) {
           const Cluster cluster = cluster_of(row);
           shape_of(row, cluster);
           settings_of(row);
         }
       }},
      {"nccl-tests",
       "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
       "#wrong\n     1048576        262144     float     sum      -1    50.00   20.97   20.97      0    51.00   20.56  "
       " "
       "20.56    N/A\n     2097152        524288     float     sum      -1    80.00   26.21   26.21      0    81.00   "
       "25.89   25.89      0\n",
       [](const std::string& t) {
         const NcclTestsHints hints{"", "", "IB", 0, 0, 8};
         const NcclTestsLog log = import_nccl_tests(t, "all_reduce.log", hints);
         if (!log.refused.empty()) throw InputError("n.log", "refused");
         collective_rows(log, hints);
       }},
      {"topology",
       "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n\nGPU0\t X \tNV12\tPIX\t0-15\t0\nGPU1\tNV12\t X "
       "\tSYS\t0-15\t0\nNIC0\tPIX\tSYS\t X \t\t\n",
       [](const std::string& t) {
         const TopoMatrix m = parse_topo(t, "t.txt");
         summary_of(m);
         topology_of(m);
       }},
      {"profiler trace",
       R"~({"deviceProperties":[{"id":0,"name":"X"}],"distributedInfo":{"world_size":64},"traceEvents":[
{"ph":"X","cat":"user_annotation","name":"attn(F)","ts":1,"dur":5,"pid":1,"tid":1,"args":{}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","ts":2,"dur":1,"pid":1,"tid":1,"args":{"correlation":7}},
{"ph":"X","cat":"kernel","name":"gemm","ts":8,"dur":3,"pid":0,"tid":7,"args":{"correlation":7,"stream":7,"grid":[112,1,1]}}]})~",
       trace},
      {"traffic matrix", "0 1e6 2e6\n3e6 0 5e6\n7 8 0\n",
       [](const std::string& t) { parse_traffic_matrix(t, "m.txt"); }},
      {"schedule", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
       [](const std::string& t) {
         const Order order = parse_pytorch_csv(t, "s.csv");
         PassTimes times;
         times.forward = times.input_grad = times.weight_grad =
             std::vector<double>(static_cast<std::size_t>(order.stages()), 1.0);
         replay(order, times);
       }},
      {"stage layout", "Et*3|(tt|)*29,m|L", [](const std::string& t) { parse_stage_layout(t, "split"); }},
      {"skew", "power-law:1.2", [](const std::string& t) { parse_skew(t, "--skew"); }},
      {"bytes", "1.5 GiB", [](const std::string& t) { parse_bytes(t, "--bytes"); }},
      {"seconds", "3.4 ms", [](const std::string& t) { parse_seconds(t, "--x"); }},
      {"count", "8k", [](const std::string& t) { parse_binary_count(t, "--seq-len"); }},
      {"train tokens", "15T", [](const std::string& t) { parse_decimal_count(t, "--train-tokens"); }},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    REQUIRE_NOTHROW(row.read(row.sound));
    const Tally t = feed_bytes(row.sound, row.read, 3000, 23);
    CHECK(t.read + t.refused == 3000 * damage_rounds());
    CHECK(t.refused > 20);
  }
}
