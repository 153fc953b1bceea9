#pragma once
// Numbers as people read them. JSON output keeps full precision; these are for text reports only.
#include <cstdint>
#include <string>

namespace shardplan {

std::string text_of_bytes(double bytes);                    // "22.8 GiB"
std::string text_of_decimal_bytes(double bytes);            // "24.5 GB"
std::string text_of_seconds(double seconds);                // "14.1 ms"
std::string text_of_flops_per_second(double rate);          // "412 TFLOP/s"
std::string text_of_flops(double flops);                    // "3.67 MFLOP"
std::string text_of_bytes_per_second(double rate);          // "445 GB/s"
std::string text_of_percent(double fraction);               // "18.8 %"
std::string text_of_count(std::int64_t n);                  // "70,553,706,496"
std::string counted(std::int64_t n, const char* noun);      // "1 micro-batch", "2,048 micro-batches"
std::string text_of_number(double value, int significant);  // "2.62"; never an exponent between 1e-4 and 1e9

}  // namespace shardplan
