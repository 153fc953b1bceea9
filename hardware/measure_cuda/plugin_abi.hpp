#pragma once
// The boundary between the program and its CUDA plug-in: C functions and JSON text, so that the program starts without
// CUDA and a plug-in from another build is refused instead of misread.
//
// request: {"quick": bool, "seconds": number, "arguments": text, "only": ["gemm", ...] or [], "traffic": [[bytes]] or
// []} answer:  0 and a measuring file (hardware/measure/measuring.hpp), its method's "notes" naming the parts that
// failed;
//          3 and one sentence where the device, its driver or a library is not there; 2 and one sentence where nothing
//          could be measured.

#define SHARDPLAN_MEASURE_ABI 1

extern "C" {
int shardplan_measure_abi(void);
/// *answer is to be given back to shardplan_measure_free.
int shardplan_measure_run(const char* request, char** answer);
void shardplan_measure_free(char* answer);
/// Versions of what was linked, without touching a device: "cudart 13.0, cublasLt 13.1.0, nccl 2.28.9, kernels built
/// with nvcc". Valid for ever.
const char* shardplan_measure_versions(void);
}
