"""The cases that need several processes: how each run differs from the plain one, its cause, and what pt-check must say."""
import os
import random
from types import SimpleNamespace

# Another seed is other weights, tokens and sizes.
SEED = int(os.environ.get("SEED", "0"))
PLAIN = {"layout": "fsdp4", "layers": 2, "dim": 64, "ffn": 128, "heads": 4, "kv_heads": 2,
         "vocab": 320, "length": 32, "batch": 8, "theta": 1e4, "norm_eps": 1e-5, "tie": False,
         "names": "meta", "form": None, "batch_form": "tokens", "accumulate": 1, "mask": False,
         "documents": False, "angles": "fp64",
         "precision": "fp32", "clip": 0.5, "lr": 1e-3, "betas": (0.9, 0.95),
         "eps": 1e-8, "decay": 0.1, "decay_norms": True, "warm": 0, "bug": None, "named": False,
         "mistake": None, "believed": {}}
if SEED:
    pick = random.Random(SEED)
    heads, width, kv = pick.choice((4, 8)), pick.choice((8, 16, 24)), pick.choice((2, 4))
    PLAIN |= {"layers": pick.choice((2, 3, 5)), "heads": heads, "kv_heads": kv, "dim": heads * width,
              "ffn": pick.choice((96, 176, 256)), "vocab": pick.choice((256, 384, 640)),
              "length": pick.choice((32, 48, 64)), "clip": pick.choice((0.25, 0.5, 0.75))}
WORLD = {"ddp2": 2, "fsdp3": 3, "tp2": 2}
CASES = {}


def case(name, cause, say, code, **options):
    assert name not in CASES and not set(options) - set(PLAIN), name
    c = SimpleNamespace(**{**PLAIN, **options}, name=name, cause=cause, say=say, code=code)
    c.world = WORLD.get(c.layout, 4)
    CASES[name] = c


def right(name, what, **options):
    case("right-" + name, "right: " + what, "the step is right", 0, **options)


def wrong(bug, cause, say, name=None, code=1, **options):
    case("wrong-" + (name or bug), cause, say, code, bug=bug, **options)


OFF = {"clip": 0}
TP, SP = {"layout": "fsdp2-tp2"}, {"layout": "fsdp2-tp2-sp"}
DDP, WARM = {"layout": "ddp2"}, {"warm": 3}

# ---- right runs --------------------------------------------------------------------------

right("ddp2", "DDP on 2", **DDP)
right("ddp4-clip-off", "DDP on 4, no clipping", layout="ddp4", **OFF)
right("ddp2-warm", "DDP on 2, step 3 to 4", **DDP, **WARM)
right("ddp2-tied", "tied embedding", tie=True, **DDP)
right("ddp2-groups", "norms without weight decay: the optimizer numbers matrices first",
      decay_norms=False, **DDP)
right("ddp2-accumulate", "2 micro-batches", accumulate=2, **DDP)
right("ddp2-module", "state dict of the wrapped model: names begin with module.",
      form="pt-ddp", **DDP)
right("ddp2-compiled", "state dict of a compiled model: names begin with _orig_mod.",
      form="pt-compiled", **DDP)
right("ddp2-hf", "names and rotation of Hugging Face", names="hf", **DDP)
right("ddp2-autocast", "autocast to bf16", precision="autocast", **DDP)
right("ddp2-all-bf16", "parameters, gradients and moments in bf16", precision="all-bf16", **DDP)
right("fsdp4", "FSDP2 on 4")
right("fsdp4-warm", "FSDP2 on 4, step 3 to 4", **WARM)
right("fsdp4-flat", "flattened names, model at the root", form="dcp-flat")
right("fsdp4-clip-off", "no clipping", **OFF)
right("fsdp4-tied", "tied embedding", tie=True)
right("fsdp4-accumulate", "2 micro-batches", accumulate=2)
right("fsdp4-masked", "labels of -100, more in some sequences", mask=True, batch_form="list")
right("fsdp4-accumulate-masked", "2 micro-batches with unequal numbers of labels",
      mask=True, accumulate=2, batch_form="dict")
right("fsdp4-no-norm-decay", "norms without weight decay", decay_norms=False)
right("fsdp4-long", "1024 tokens, angles of positions in fp32 as most trainers compute them",
      length=1024, batch=4, angles="fp32")
right("fsdp4-masked-megatron", "masked labels in Megatron's form: tokens, labels, loss_mask",
      mask=True, batch_form="megatron")
right("fsdp4-documents", "several documents a sequence, positions in the batch", documents=True,
      batch_form="list")
right("fsdp4-documents-titan", "the same in torchtitan's form, ({input, positions}, labels)",
      documents=True, batch_form="titan")
right("fsdp3", "uneven shards", layout="fsdp3", batch=6)
right("hsdp", "2 replicas of 2 shards", layout="hsdp")
right("fsdp4-autocast", "autocast to bf16", precision="autocast")
right("fsdp4-bf16", "parameters in bf16, gradients summed in fp32", precision="fsdp-bf16")
right("fsdp4-bf16-reduce", "parameters in bf16, gradients summed in bf16",
      precision="fsdp-bf16-reduce")
right("tp2", "FSDP 2 x TP 2", **TP)
right("tp2-sp", "FSDP 2 x TP 2, sequence parallelism", **SP)
right("tp2-tied", "tied embedding", tie=True, **TP)
right("tp2-sp-warm", "step 3 to 4", **SP, **WARM)
right("tp2-sp-clip-off", "no clipping", **SP, **OFF)
right("tp2-sp-bf16", "parameters in bf16", precision="fsdp-bf16", **SP)
right("tp2-autocast", "autocast to bf16", precision="autocast", **TP)

GPT2 = {"names": "nanogpt", "tie": True}
right("gpt2-ddp2", "GPT-2 with nanoGPT's names", **GPT2, **DDP)
right("gpt2-ddp2-groups", "the same, biases and norms without weight decay", decay_norms=False,
      **GPT2, **DDP)
right("gpt2-fsdp4", "GPT-2, FSDP2 on 4", **GPT2)
right("gpt2-fsdp4-warm", "GPT-2, step 3 to 4", **GPT2, **WARM)
right("gpt2-fsdp4-autocast", "GPT-2, autocast to bf16", precision="autocast", **GPT2)
right("gpt2-fsdp4-bf16", "GPT-2, parameters in bf16", precision="fsdp-bf16", **GPT2)

# ---- gradients that are not summed, or twice ---------------------------------------------

NORMS = "(4): the part of slice 1 of 2 tensor-parallel slices: not summed over the ranks"
wrong("norms-not-summed", "norm gradients not summed over TP; each rank clips with its own norm",
      NORMS, **TP)
wrong("norms-not-summed", "norm gradients not summed over TP", NORMS,
      "norms-not-summed-clip-off", **TP, **OFF)
wrong("norms-not-summed", "norm gradients not summed over TP, bf16", NORMS,
      "norms-not-summed-bf16", precision="fsdp-bf16", **TP, **OFF)
NINE = "(5): the part of slice 1 of 2 chunks of the positions: not summed over the ranks"
wrong("sequence-norms-not-summed", "norm gradients of sequence parallelism not summed", NINE, **SP)
wrong("sequence-norms-not-summed", "norm gradients of sequence parallelism not summed", NINE,
      "sequence-norms-not-summed-clip-off", **SP, **OFF)
wrong("sequence-norms-not-summed", "norm gradients of sequence parallelism not summed, warm", NINE,
      "sequence-norms-not-summed-warm", **SP, **WARM)
wrong("embedding-twice", "the embedding's gradient summed over TP twice",
      "tok_embeddings.weight (1): 2 times what it should be", **TP)
wrong("embedding-twice", "the embedding's part of a tied weight's gradient summed over TP twice",
      "tok_embeddings.weight (1): parts of 2 embedding and output layer: 2 1 times", "tied-twice", tie=True, **TP)
wrong("embedding-twice", "the embedding's part of a tied weight's gradient summed over TP twice",
      "tok_embeddings.weight (1): parts of 2 embedding and output layer: 2 1 times", "tied-twice-clip-off",
      tie=True, **TP, **OFF)
wrong("embedding-part-missing", "the embedding's part of a tied weight's gradient is missing",
      "tok_embeddings.weight (1): parts of 2 embedding and output layer: 0 1 times", tie=True, **OFF)
wrong("head-part-missing", "the output layer's part of a tied weight's gradient is missing",
      "tok_embeddings.weight (1): parts of 2 embedding and output layer: 1 0 times", tie=True, **TP)
wrong("wo-slice-twice", "one TP slice of each wo counted twice",
      "attention.wo.weight (2): dim 1 in 2 slices: 1 2 times", **TP)
wrong("enter-missing", "no all-reduce of the gradient at the begin of column-parallel products",
      "(20): as if each tensor-parallel rank backpropagated its own part of the gradient", **TP, **OFF)
wrong("leave-missing", "no all-reduce after wo in the forward pass",
      "as if each tensor-parallel rank continued with its own part of attention", **TP, **OFF)
wrong("ffn-leave-missing", "no all-reduce after w2 in the forward pass",
      "as if each tensor-parallel rank continued with its own part of the FFN", **TP, **OFF)
wrong("leaves-missing", "no all-reduce after wo and w2 in the forward pass, clipped",
      "as if each tensor-parallel rank continued with its own parts", **TP)
wrong("ddp-no-sync", "DDP's all-reduce missing (no_sync left on)",
      "(21): sequences 5 6 7 8 of 8 do not count", **DDP, **OFF)
wrong("ddp-one-ignored", "one parameter left out of DDP's all-reduce",
      "layers.0.attention.wo.weight (1): sequences 5 6 7 8 of 8 do not count", **DDP, **OFF)
wrong("one-shard-twice", "gradients of one FSDP shard counted twice",
      "(21): dim 0 in 4 slices: 1 2 1 1 times", **OFF)
wrong("sum-in-bf16", "gradients summed in bf16 in a run said to be fp32",
      "(21): beyond the bounds of fp32, but within the bounds of bf16", **DDP, **OFF)

# ---- scale -------------------------------------------------------------------------------

wrong("no-division", "1/dp missing (sum for mean), clipping hides it", "4 times: not divided by the 4 data-parallel ranks")
wrong("no-division", "1/dp missing (sum for mean)", "4 times: not divided by the 4 data-parallel ranks", "no-division-clip-off", **OFF)
wrong("no-division", "DDP hook that does not divide", "2 times: not divided by the 2 data-parallel ranks",
      "no-division-ddp", **DDP, **OFF)
wrong("divided-twice", "gradients averaged twice", "0.25 times: divided once more by the 4 data-parallel ranks")
wrong("divided-twice", "gradients averaged twice", "0.25 times: divided once more by the 4 data-parallel ranks", "divided-twice-clip-off", **OFF)
wrong("clip-no-tp", "clipping norm without the sum over TP",
      "finding clip: ", **TP)
wrong("clip-by-rank", "each FSDP rank clips with its own norm",
      "finding clip: ")
wrong("clip-norms-counted-twice", "replicated norms counted on each TP rank in the norm",
      "misses a part or counts one twice", **TP)

# ---- data and loss -----------------------------------------------------------------------

wrong("rank-reads-anothers", "all ranks compute rank 0's sequences; the batch files are as meant",
      "(21): sequences 3 4 5 6 7 8 of 8 do not count, and all others count 4 times")
wrong("rank-reads-anothers-logged", 
      "all ranks read rank 0's sequences, and the batch files say so",
      "of the batch equals sequence 1: do all ranks read the same data?", code="0|1")
wrong("mean-of-means", "mean over micro-batches of unequal numbers of labels",
      "(21): sequences have weights", mask=True, accumulate=2,
      batch_form="list", **OFF)
wrong("mean-of-means", "mean over ranks with unequal numbers of labels",
      "(21): sequences have weights", "mean-of-rank-means", mask=True,
      batch_form="dict")

# ---- optimizer ---------------------------------------------------------------------------

wrong("gather-too-early", "one FSDP rank sends its parameters of before the last update",
      "(21): as if slices 1 of 4 of all rows were as before the last update (learning rate 0.001)",
      **WARM, **OFF)
wrong("step-twice", "the optimizer stepped twice", "are steps 3 and 5 of the optimizer", code="1|2",
      **WARM, **DDP)
wrong("update-one-shard-stale", "one FSDP rank does not update its parameters",
      "and 20 more: update: dim 0 in 4 slices, with learning rates 0.001 0 0.001 0.001")
wrong("steps-from-1", "Adam's step counted from 1 again", "step goes from 3 to 1", **DDP, **WARM)

# ---- what a second look found ----------------------------------------------------------------

right("odd", "odd numbers of all, one kv head, a sequence a rank", layout="fsdp3", batch=3,
      vocab=509, heads=8, kv_heads=1, dim=80, ffn=100, length=37)
right("ddp2-named", "three groups of named parameters, not in the order of the model", named=True,
      layers=3, **DDP)
right("tp2-tied-masked", "tied embedding, masked labels, 2 micro-batches", tie=True, mask=True,
      batch_form="list", vocab=322, accumulate=2, **TP)
wrong("one-norm-not-summed", "one layer's norm gradient not summed over TP",
      "layers.1.ffn_norm.weight (1): the part of slice 1 of 2 tensor-parallel slices", **TP)
wrong("slice-of-another", "a TP rank has the gradient of the other rank's rows of one wk",
      "layers.1.attention.wk.weight (1): dim 0 in 2 slices: the gradients of slices 0 0", **TP)
wrong("untied", "tied embedding, config says not tied", "does the run tie them", tie=True,
      believed={"tie": False}, **OFF)
wrong("embedding-rows-lost", "a TP rank's rows of the embedding get no gradient",
      "tok_embeddings.weight (1): dim 0 in 2 slices: 1 0 times", **TP)
wrong("embedding-shard-stale", "one FSDP rank does not update its rows of the embedding",
      "tok_embeddings.weight: update: dim 0 in 4 slices, with learning rates 0.001 0 0.001 0.001")
wrong("lr-by-rank", "one FSDP rank has half of the learning rate",
      "and 20 more: update: dim 0 in 4 slices, with learning rates 0.001 0.0005 0.001 0.001")
wrong("all-gathers-too-early", "FSDP gathers parameters of before the last update",
      "(21): as if the parameters were as before the last update (learning rate 0.001)",
      **WARM, **OFF)

# ---- copies ----------------------------------------------------------------------------------

NANOTRON = {"layout": "tp2", "form": "nanotron"}
right("nanotron", "nanotron's files, whose ranks save norms each", **NANOTRON)
right("nanotron-warm", "the same, step 3 to 4", **NANOTRON, **WARM)
wrong("norms-not-summed", "norm gradients not summed over TP, in files of all ranks",
      "finding copies: exp_avg of tp 1 and of tp 0 differ in", "nanotron-norms-not-summed", **NANOTRON)
wrong("replica-lost", "rank tp 1 lost the first moments of the norms; the first rank's files are right",
      "which were equal before this step: the first is optimizer.state.model.decoder.0", **NANOTRON, **WARM)
wrong("tie-lost", "embedding and output layer, said to be tied, are trained apart",
      "finding copies: parameters of the output layer and of the embedding that it is tied to differ in 1 of 1",
      believed={"tie": True})

# ---- some of them in bf16 ----------------------------------------------------------------

for n in ("sequence-norms-not-summed", "embedding-twice", "tied-twice", "wo-slice-twice",
          "enter-missing", "leave-missing", "ddp-no-sync", "ddp-one-ignored", "one-shard-twice", "no-division",
          "clip-by-rank", "clip-no-tp", "rank-reads-anothers", "mean-of-means"):
    c = vars(CASES["wrong-" + n])
    options = {k: v for k, v in c.items() if k in PLAIN and k not in ("bug", "precision")}
    wrong(c["bug"], c["cause"] + ", bf16", c["say"], n + "-bf16", **options,
          precision="autocast" if c["layout"] == "ddp2" else "fsdp-bf16")

# ---- some of them in GPT-2 ---------------------------------------------------------------

for n in ("ddp-no-sync", "one-shard-twice", "no-division", "mean-of-means"):
    c = vars(CASES["wrong-" + n])
    options = {k: v for k, v in c.items() if k in PLAIN and k not in ("bug", "names", "tie")}
    wrong(c["bug"], c["cause"] + ", GPT-2", c["say"], n + "-gpt2", **options, **GPT2)

# ---- the user's mistakes, after right runs -----------------------------------------------

case("mistake-two-steps", "two steps lie between the checkpoints",
     "are steps 3 and 5 of the optimizer: only a single step can be checked", 2, mistake="two-steps", **WARM, **DDP)
case("mistake-other-batch", "the batch of another step", "the batch differs, or the function", 1,
     mistake="other-batch", **WARM)
case("mistake-half-batch", "the batch of one rank of two",
     "the batch differs, or the function", 1, mistake="half-batch", **DDP)
case("mistake-no-moments", "the last checkpoint has the model only", "has no moments of AdamW", 2,
     mistake="no-moments", **DDP)
