// sextant eval: a trained model's loss by context length.
#include "core/error.h"
#include "core/file.h"
#include "data/cache.h"
#include "experiments/command.h"
#include "experiments/evaluate.h"
#include "nn/checkpoint.h"

namespace sextant {

namespace {

std::string default_output(const std::string& checkpoint) {
  const size_t slash = checkpoint.rfind('/');
  return (slash == std::string::npos ? "" : checkpoint.substr(0, slash + 1)) + "eval.json";
}

int run(const Arguments& arguments) {
  const std::string checkpoint = checkpoint_path(arguments.positional(0));
  Communicator& ranks = world();
  std::unique_ptr<Transformer> model;
  std::shared_ptr<Corpus> corpus;
  EvaluateOptions options;
  options.ranks = &ranks;
  together(ranks, [&] {
    model = load_model(checkpoint);
    corpus = open_corpus(arguments.given("data") ? arguments.text("data") : model->config().data);
    options.split = arguments.given("split") ? split_from(arguments.text("split")) : held_out_split(*corpus);
    options.windows = arguments.integer("windows", 1, 1 << 20);
    options.piece = arguments.integer("piece", 1, 1 << 20);
    options.lengths = arguments.given("lengths") ? arguments.integers("lengths", 1, int64_t{1} << 40)
                                                 : default_lengths(*corpus, options.split, model->config().context);
  });
  const std::string out = arguments.given("out") ? arguments.text("out") : default_output(checkpoint);
  on_first(ranks, [&] { require_writable(out); });
  if (ranks.size() > 1)
    require_agreement(ranks, {{"model (SHA-256)", sha256_of_file(checkpoint)}, {"data (SHA-256)", corpus->sha256()}});
  Progress progress(arguments.quiet() ? nullptr : stderr);
  const Evaluation evaluation = evaluate(*model, *corpus, options, progress);
  const nlohmann::json object = to_json(evaluation);
  arguments.say("{}\n", table(evaluation));
  if (!evaluation.sectors.empty()) arguments.say("{}\n", sector_table(evaluation));
  on_first(ranks, [&] { write_atomically(out, object.dump(2) + "\n"); });
  arguments.say("written to {}\n", out);
  arguments.print_json(object);
  return 0;
}

const RegisterCommand registered(
    {.name = "eval",
     .summary = "a trained model's loss and perplexity by context length",
     .positionals = {{"CKPT", "a run folder or a checkpoint file"}},
     .options =
         {{"lengths", "LIST", "",
           "context lengths in tokens, such as 256,1024,4096 (default: 1, 2, 4, ... 32 times the training length)"},
          {"data", "NAME_OR_PATH", "", "the corpus (default: the one it was trained on)"},
          {"split", "SPLIT", "", "train, validation or test (default: validation)"},
          {"windows", "N", "8", "windows averaged over at each length, evenly spaced over the split"},
          {"piece", "N", "1024", "tokens worked off at a time: bounds the memory"},
          {"out", "FILE", "", "where the result goes (default: eval.json beside the checkpoint)"}},
     .run = run,
     .details = "`mpirun -np N sextant eval ...` shares the windows over N processes.\n"
                "The ratio is the perplexity over the perplexity at the training length on the same data. Strategies "
                "with sectors also get their masses,\n"
                "energies and the change of the loss when a component is left out, at the training length. --json and "
                "eval.json also have, by length and layer,\n"
                "the norms of transformed queries and keys, the largest logit and the bytes of the cached keys "
                "(stability), and how far waves turn and are told\n"
                "apart at the farthest lags (resolution)."});

}  // namespace

}  // namespace sextant
