// byte-lm: language models of bytes with each position strategy; which sectors they use, and how far they reach.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/study_sectors.h"

namespace sextant::study {

namespace {

using nlohmann::json;

StudyCorpora corpora_of(const Plan& plan) {
  StudyCorpora corpora = study_corpora(plan, {"tiny-shakespeare", "wikitext-2", "war-and-peace"}, sector_context(plan));
  if (plan.scale == Scale::smoke) corpora.all.resize(1);
  return corpora;
}

Outcome outcome(const Plan& plan, const Results& results) {
  Outcome made;
  made.notes = corpora_of(plan).notes;
  add_sector_sections(made, plan, results, sector_context(plan));
  return made;
}

const RegisterStudy registered(
    {.name = "byte-lm",
     .question = "Which position sectors do language models of bytes use, and which strategy reaches farthest?",
     .protocol = "3 layers of width 64, 4 heads, context 256 (64 at scale smoke), one model a strategy, corpus and "
                 "seed, the same batches for all;\nheld-out loss by context length, mass, energy and need of the "
                 "sectors.",
     .source = "PJ-RoPE (arXiv 2606.05345)",
     .paper = "affine recency dominates; Fourier-jet and light-cone mass is a small correction; NTK-style scaling with "
              "affine recency is best at long context",
     .pieces = [](const Plan& plan) { return sector_pieces(plan, corpora_of(plan)); },
     .outcome = outcome});

}  // namespace

}  // namespace sextant::study
