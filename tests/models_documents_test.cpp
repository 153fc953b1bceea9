#include <catch2/catch.hpp>
#include <cmath>

#include "base/random.hpp"
#include "models/documents.hpp"

using namespace shardplan;

TEST_CASE("documents: one fills the sequence, many leave twice the mean length over the sequence") {
  CHECK(document_mask(4096, 1e12).share == Approx(1).epsilon(1e-6));
  CHECK(document_mask(4096, 1e12).sd < 1e-4);
  // a = 1: 2 (1 - 1 + 1 / e).
  CHECK(document_mask(4096, 4096).share == Approx(2 * std::exp(-1)).epsilon(1e-12));
  CHECK(document_mask(131072, 512).share == Approx(2 * 512.0 / 131072).epsilon(0.01));
  // Both branches meet.
  CHECK(document_mask(0.02001, 1).share == Approx(document_mask(0.01999, 1).share).epsilon(1e-4));
  CHECK(document_mask(0.02001, 1).sd == Approx(document_mask(0.01999, 1).sd).epsilon(0.02));
}

TEST_CASE("documents: mean and spread of the share are those of drawn boundaries") {
  for (const double mean : {0.1, 0.5, 2.0}) {
    Random random(7);
    const int draws = 20000;
    double sum = 0, squares = 0;
    for (int i = 0; i < draws; ++i) {
      double at = 0, share = 0;
      while (at < 1) {
        const double length = std::min(1 - at, -mean * std::log(random.open_uniform()));
        share += length * length;
        at += length;
      }
      sum += share;
      squares += share * share;
    }
    const DocumentMask mask = document_mask(1, mean);
    const double drawn = sum / draws, sd = std::sqrt(squares / draws - drawn * drawn);
    INFO("mean length " << mean);
    CHECK(mask.share == Approx(drawn).epsilon(0.02));
    CHECK(mask.sd == Approx(sd).epsilon(0.04));
  }
}

TEST_CASE("drawn sequences have the spread of the moments, few or many documents, and a mean of 1") {
  for (const double mean : {131072.0, 8192.0, 256.0, 16.0}) {
    const auto drawn = draw_attention(20000, 32768, mean, 3);
    double sum = 0, squares = 0;
    for (const double x : drawn) {
      CHECK(x >= 0);
      sum += x;
      squares += x * x;
    }
    const double n = static_cast<double>(drawn.size());
    const DocumentMask mask = document_mask(32768, mean);
    INFO("mean " << mean);
    CHECK(sum / n == Approx(1).epsilon(1e-9));
    CHECK(std::sqrt(squares / n - 1) == Approx(mask.sd / mask.share).epsilon(0.04));
  }
  CHECK(draw_attention(3, 4096, 512, 1) == draw_attention(3, 4096, 512, 1));
  CHECK(draw_attention(3, 4096, 512, 1) != draw_attention(3, 4096, 512, 2));
}
