/* The options of pt-train: the one table, and texts made from it. */
#include "train/train.h"

#include <string.h>
#include <sys/stat.h>

#define T(field) offsetof(struct train_opts, field)
#define M(field) offsetof(struct train_opts, model.field)
#define MANY 9e18

static const char *const sampling_names[] = {"epoch", "random", NULL};
static const char *const schedule_names[] = {"constant", "cosine", "linear", "wsd", NULL};
static const char *const wsd_names[] = {"linear", "sqrt", NULL};
static const char *const scale_names[] = {"none", "sqrt", "linear", NULL};
static const char *const nesterov_names[] = {"by-optimizer", "no", "yes", NULL};
static const char *const muon_scale_names[] = {"match-adamw", "original", NULL};
static const char *const load_names[] = {"each", "broadcast", NULL};
static const char *const fsdp_names[] = {"parameter", "flat", NULL};
static const char *const reshard_names[] = {"yes", "no", "keep-last", NULL};
static const char *const cp_accumulate_names[] = {"fp32", "bf16", NULL};
static const char *const cp_comm_names[] = {"ring", "gather", NULL};
static const char *const pp_split_names[] = {"auto", "even", NULL};
static const char *const kernels_names[] = {"fused", "ref", NULL};
static const char *const gather_names[] = {"auto", "fp32", NULL};
const char *const offload_names[] = {"none", "optimizer", "params", NULL};
static const char *const outer_names[] = {"none", "sgd", "adamw", NULL};
static const char *const wire_names[] = {"fp32", "bf16", "int8", "sparse", NULL};
static const char *const reducer_names[] = {"none", "linear", "gta", NULL};
static const char *const consensus_names[] = {"none", "sum", "count", NULL};
static const char *const sparsify_names[] = {
	"none", "magnitude", "random", "rescaled-random", NULL};
static const char *const device_names[] = {"auto", "cpu", "cuda", NULL};
static const char *const self_test_names[] = {"auto", "yes", "no", NULL};
static const char *const numerics_names[] = {"exact", "fast", NULL};

/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Data"},
	{OPT_LIST, 'd', "data", "FILE", NULL, T(data), "Train on the tokens of a shard; may be given many times, and operands are shards too. - is standard input; a FIFO may be given too.", OPT_LOCAL, .files = ".h5"},
	{OPT_ENUM, 0, "sampling", NULL, "epoch", T(sampling), "Which windows are samples. epoch: a grid of windows, each once an epoch in random order, the grid shifted every epoch. random: each sample at a random place.", OPT_ARITH, .values = sampling_names},
	{OPT_INT, 's', "seed", "N", "1", T(seed), "Seed of initial parameters, order of samples, and dropout.", OPT_ARITH},
	{OPT_INT, 0, "readers", "N", "0", T(readers), "Let N ranks read the data and send it to the others. 0: every rank reads its own.", OPT_LOCAL, 0, 1e6},
	{OPT_FLAG, 0, "data-per-rank", NULL, "no", T(data_per_rank), "Give rank r the files r, r + ranks, ... only. What is computed then depends on the number of ranks.", OPT_ARITH},

	{OPT_GROUP, .name = "Batch"},
	{OPT_INT, 'b', "batch", "N", "12", T(batch), "Sequences of one optimizer step, over all ranks.", OPT_ARITH, 1, 1e12},
	{OPT_INT, 'm', "micro-batch", "N", "0", T(micro_batch), "Sequences that go through the model at once. The batch is a whole number of them, dealt out to the ranks. 0: half the batch, or all of an odd one.", OPT_ARITH, 0, 1e12},
	{OPT_INT, 'n', "steps", "N", "2000", T(steps), "Optimizer steps. 0 writes the initial checkpoint.", OPT_ARITH, 0, MANY},

	{OPT_GROUP, .name = "Model"},
	{OPT_STR, 'p', "preset", "NAMES", NULL, T(preset), "Begin with the options of a file in share/pt/presets: shakespeare-char, gpt2-124m, llama3-8b, ...; or of several, as in gpt2-124m,diloco. What the config file and the command line say comes after it.", 0},
	{OPT_ENUM, 'a', "arch", NULL, "gpt2", M(arch), "The architecture.", OPT_ARITH | OPT_MODEL, .values = arch_names},
	{OPT_INT, 0, "layers", "N", "4", M(layers), "Blocks.", OPT_ARITH | OPT_MODEL, 1, 100000},
	{OPT_INT, 0, "heads", "N", "4", M(heads), "Attention heads.", OPT_ARITH | OPT_MODEL, 1, 4095},
	{OPT_INT, 0, "kv-heads", "N", "0", M(kv_heads), "Key and value heads, for grouped queries. 0: as many as heads.", OPT_ARITH | OPT_MODEL, 0, 4095},
	{OPT_INT, 0, "dim", "N", "128", M(dim), "Width of the residual stream.", OPT_ARITH | OPT_MODEL, 1, 1 << 22},
	{OPT_INT, 0, "ffn-dim", "N", "0", M(ffn_dim), "Width of the feed-forward layer. 0: 4 dim for gpt2; 8/3 dim for llama, to a multiple of 256.", OPT_ARITH | OPT_MODEL, 0, 1 << 24},
	{OPT_INT, 'T', "context", "N", "64", M(context), "Tokens of a sequence.", OPT_ARITH | OPT_MODEL, 1, 1 << 22},
	{OPT_INT, 0, "vocab", "N", "0", M(vocab), "Size of the vocabulary where no data say it, for --dry-run.", OPT_ARITH | OPT_MODEL, 0, 1 << 24},
	{OPT_INT, 0, "vocab-multiple", "N", "1", M(vocab_multiple), "Pad the vocabulary to a multiple of N; padding is never predicted.", OPT_ARITH | OPT_MODEL, 1, 1 << 20},
	{OPT_ENUM, 0, "act", NULL, "by-arch", M(act), "The activation: gelu-tanh for gpt2, swiglu for llama.", OPT_ARITH | OPT_MODEL, .values = act_names},
	{OPT_ENUM, 0, "bias", NULL, "by-arch", M(bias), "Biases in linear layers and LayerNorm: yes for gpt2, no for llama.", OPT_ARITH | OPT_MODEL, .values = by_arch_names},
	{OPT_ENUM, 0, "tie", NULL, "by-arch", M(tie), "The output shares the token embedding: yes for gpt2, no for llama.", OPT_ARITH | OPT_MODEL, .values = by_arch_names},
	{OPT_DOUBLE, 0, "dropout", "P", "0", M(dropout), "Probability of dropout: embeddings, attention, residual branches.", OPT_ARITH, 0, 0.999},
	{OPT_DOUBLE, 0, "norm-eps", "X", "0", M(norm_eps), "Added to the variance in norms. 0: 1e-5.", OPT_ARITH | OPT_MODEL, 0, 1},
	{OPT_ENUM, 0, "init", NULL, "by-arch", M(init), "Initial weights. gpt2: normal 0.02, residual projections by 1/sqrt(2 layers). llama: normal 0.02. depth: torchtitan's, shrinking with the depth of the block.", OPT_ARITH, .values = init_names},
	{OPT_DOUBLE, 0, "rope-theta", "X", "10000", M(rope_theta), "Base of rotary positions.", OPT_ARITH | OPT_MODEL, 1, 1e12},
	{OPT_ENUM, 0, "rope-scaling", NULL, "none", M(rope_scaling), "Stretch rotary positions: linear, or Llama 3.1's.", OPT_ARITH | OPT_MODEL, .values = rope_scaling_names},
	{OPT_DOUBLE, 0, "rope-factor", "X", "8", M(rope_factor), "By how much.", OPT_ARITH | OPT_MODEL, 1, 1e6},
	{OPT_DOUBLE, 0, "rope-low", "X", "1", M(rope_low), "llama3: wavelengths above rope-original/X are stretched whole.", OPT_ARITH | OPT_MODEL, 0.001, 1e6},
	{OPT_DOUBLE, 0, "rope-high", "X", "4", M(rope_high), "llama3: wavelengths below rope-original/X are kept.", OPT_ARITH | OPT_MODEL, 0.001, 1e6},
	{OPT_INT, 0, "rope-original", "N", "8192", M(rope_original), "llama3: the context before stretching.", OPT_ARITH | OPT_MODEL, 1, MANY},

	{OPT_GROUP, .name = "Optimizer"},
	{OPT_ENUM, 0, "optimizer", NULL, "adamw", T(optimizer), "The optimizer. sgd: with momentum, as PyTorch has it. muon: the momentum of every matrix of a block is orthogonalized before it is the update; embeddings, head, norms and biases have AdamW.", OPT_ARITH, .values = optimizer_names},
	{OPT_DOUBLE, 'l', "lr", "X", "1e-3", T(lr), "Learning rate, the largest of the schedule.", OPT_ARITH, 0, 1e30},
	{OPT_DOUBLE, 0, "min-lr", "X", "-1", T(min_lr), "Learning rate at the end of the decay. -1: a tenth of --lr.", OPT_ARITH, -1, 1e30},
	{OPT_ENUM, 0, "lr-schedule", NULL, "cosine", T(lr_schedule), "Shape of the decay after the warm-up. wsd: warm-up, stable, decay over the last --wsd-decay steps.", OPT_ARITH, .values = schedule_names},
	{OPT_INT, 'w', "warmup", "N", "100", T(warmup), "Steps of linear warm-up.", OPT_ARITH, 0, MANY},
	{OPT_INT, 0, "decay-steps", "N", "0", T(decay_steps), "Step at which the decay ends. 0: --steps.", OPT_ARITH, 0, MANY},
	{OPT_INT, 0, "wsd-decay", "N", "0", T(wsd_decay), "wsd: steps of the decay. 0: a fifth.", OPT_ARITH, 0, MANY},
	{OPT_ENUM, 0, "wsd-shape", NULL, "linear", T(wsd_shape), "wsd: linear, or 1 - sqrt (Haegele et al. 2024).", OPT_ARITH, .values = wsd_names},
	{OPT_ENUM, 0, "lr-scale", NULL, "none", T(lr_scale), "Scale the learning rate with batch / --lr-scale-batch, or its root.", OPT_ARITH, .values = scale_names},
	{OPT_INT, 0, "lr-scale-batch", "N", "0", T(lr_scale_batch), "The batch that --lr is meant for.", OPT_ARITH, 0, MANY},
	{OPT_DOUBLE, 0, "beta1", "X", "0.9", T(beta1), "adamw, muon: decay of AdamW's mean.", OPT_ARITH, 0, 0.999999},
	{OPT_DOUBLE, 0, "beta2", "X", "0.99", T(beta2), "adamw, muon: decay of AdamW's mean square.", OPT_ARITH, 0, 0.9999999},
	{OPT_DOUBLE, 0, "eps", "X", "1e-8", T(eps), "adamw, muon: added to AdamW's root.", OPT_ARITH, 0, 1},
	{OPT_DOUBLE, 0, "weight-decay", "X", "0.1", T(weight_decay), "Weight decay, of tensors of two dimensions. adamw, muon: decoupled; sgd: added to the gradient.", OPT_ARITH, 0, 1e6},
	{OPT_DOUBLE, 0, "momentum", "X", "-1", T(momentum), "sgd, muon: decay of the momentum. -1: 0.9 for sgd, 0.95 for muon. 0: sgd without.", OPT_ARITH, -1, 0.999999},
	{OPT_ENUM, 0, "nesterov", NULL, "by-optimizer", T(nesterov), "sgd, muon: Nesterov's momentum. by-optimizer: of muon.", OPT_ARITH, .values = nesterov_names},
	{OPT_ENUM, 0, "muon-scale", NULL, "match-adamw", T(muon_scale), "muon: scale of the update of a matrix. match-adamw: 0.2 sqrt(max(rows, cols)), so that learning rates and decays of AdamW can be kept. original: sqrt(max(1, rows / cols)), which wants a learning rate of about 0.02.", OPT_ARITH, .values = muon_scale_names},
	{OPT_DOUBLE, 0, "clip", "X", "1", T(clip), "Largest norm of the gradient. 0: no clipping.", OPT_ARITH, 0, 1e30},

	{OPT_GROUP, .name = "Precision"},
	{OPT_ENUM, 0, "dtype", NULL, "fp32", T(dtype), "What products are computed in. bf16, fp16: operands and results are rounded, sums are fp32, as torch.autocast has it. float8: bf16, and the linear layers of blocks with e4m3 operands, e5m2 gradients and dynamic scales. Parameters, norms, softmax and the optimizer are fp32, and samples are drawn in it.", OPT_ARITH, .values = precision_names},
	{OPT_FLAG, 0, "float8-skip-ends", NULL, "yes", T(float8_skip_ends), "float8: leave the first and the last block in bf16. The head always is.", OPT_ARITH},
	{OPT_DOUBLE, 0, "loss-scale", "X", "65536", T(loss_scale), "fp16: what the loss is multiplied by at first. A step whose gradients overflow updates nothing and halves it.", OPT_ARITH, 1e-4, 1e30},
	{OPT_INT, 0, "loss-scale-window", "N", "2000", T(loss_scale_window), "fp16: double the scale after N good steps in a row. 0: never.", OPT_ARITH, 0, MANY},
	{OPT_ENUM, 0, "kernels", NULL, "fused", T(kernels), "fused: one pass over memory where there is a kernel that does the work of several. ref: a kernel for each. On a CPU both give the same bits.", OPT_ARITH, .values = kernels_names},
	{OPT_ENUM, 0, "numerics", NULL, "exact", T(numerics), "On a GPU, what its products may do. exact: what gives equal bits on any layout, and fp32 is fp32. fast: a sum may be split, and products of fp32 are of tf32.", OPT_ARITH, .values = numerics_names},
	{OPT_STR, 0, "algorithms", "FILE", NULL, T(algorithms), "On a GPU, which algorithm a product has, which fixes its bits. first: the one that cuBLASLt names first, on all ranks and in all runs the same. measure: the quickest, as the first step finds; of several ranks, as the first does that has such a product. FILE: those of another run, OUT/algorithms; a run that goes on has its own. Without: first, with --numerics fast measure.", OPT_LOCAL, .files = ""},
	{OPT_STR, 0, "virtual", "AXES", NULL, M(virtual_degrees), "Virtual degrees of tensor and context parallelism, as in tp=4,cp=2: every weight is computed in tp slices and every sequence in cp chunks, whoever computes them. What is not named is as --tp and --cp have it.", OPT_ARITH},
	{OPT_ENUM, 0, "cp-accumulate", NULL, "fp32", T(cp_accumulate), "What attention adds up over the chunks of --cp, its output and the gradients of queries, keys and values, from one chunk to the next. bf16 is for seeing what it costs: rounded after each but the last.", OPT_ARITH, .values = cp_accumulate_names},

	{OPT_GROUP, .name = "Who computes", .help = "With --virtual, none of these changes what is computed; without it, its degrees are those of --tp and --cp, or --tile."},
	{OPT_INT, 0, "dp", "N", "-1", T(axis[AXIS_DP]), "Ranks that have other samples and the same parameters. -1, for one axis: as many as the others leave. With --dry-run, ranks need not be started.", OPT_LOCAL, -1, 1e6},
	{OPT_INT, 0, "fsdp", "N", "1", T(axis[AXIS_FSDP]), "Ranks that have other samples and share out what --zero says of the parameters.", OPT_LOCAL, -1, 1e6},
	{OPT_INT, 0, "cp", "N", "1", T(axis[AXIS_CP]), "Ranks that share every sequence: context parallelism.", OPT_LOCAL, -1, 1024},
	{OPT_INT, 0, "tp", "N", "1", T(axis[AXIS_TP]), "Ranks that share every weight: tensor parallelism.", OPT_LOCAL, -1, 1024},
	{OPT_INT, 0, "pp", "N", "1", T(axis[AXIS_PP]), "Ranks that share the layers: a pipeline.", OPT_LOCAL, -1, 1e5},
	{OPT_INT, 0, "zero", "N", "-1", T(zero), "What the ranks of fsdp and cp share out: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too. -1: 3 where --fsdp is more than 1, else 0.", OPT_LOCAL, -1, 3},
	{OPT_ENUM, 0, "fsdp-kind", NULL, "parameter", T(fsdp_kind), "Share out each parameter, or all of a block as one flat vector.", OPT_LOCAL, .values = fsdp_names},
	{OPT_ENUM, 0, "reshard-after-forward", NULL, "yes", T(reshard), "Drop the parameters that --zero 3 gathered after the forward, and gather them again for the backward; keep-last: not those that the backward begins with.", OPT_LOCAL, .values = reshard_names},
	{OPT_ENUM, 0, "gather-dtype", NULL, "auto", T(gather_dtype), "What --zero 3 gathers the weights of products as. auto: as bf16 or fp16 where --dtype has them rounded to it anyway, which is half the bytes and the same bits; float8, embeddings, norms and biases go as fp32.", OPT_LOCAL, .values = gather_names},
	{OPT_FLAG, 0, "sp", NULL, "yes", T(sp), "Sequence parallelism: between the products of --tp, a rank has its own rows only.", OPT_LOCAL},
	{OPT_FLAG, 0, "async-tp", NULL, "yes", T(async_tp), "Sums and gathers of --tp go on beside the products after and before them, a piece of rows after the other; in a backward, sums beside the gradients of weights.", OPT_LOCAL},
	{OPT_ENUM, 0, "cp-comm", NULL, "ring", T(cp_comm), "How keys and values of --cp come by: one chunk after the other, while others are computed with, or all at once.", OPT_LOCAL, .values = cp_comm_names},
	{OPT_ENUM, 0, "pp-schedule", NULL, "1f1b", T(pp_schedule), "Order of the work of a pipeline: all forwards first; one forward, one backward; the same with several stages a rank; with the weights' gradients in the gaps.", OPT_LOCAL, .values = schedule_kind_names},
	{OPT_INT, 0, "pp-stages", "N", "0", T(pp_stages), "Stages of the pipeline that a rank has. 0: 2 where the schedule is interleaved, else 1.", OPT_LOCAL, 0, 1e5},
	{OPT_ENUM, 0, "pp-split", NULL, "auto", T(pp_split), "Layers of the stages: so that the slowest stage, which may be the one with the head, is as fast as can be; or evenly.", OPT_LOCAL, .values = pp_split_names},
	{OPT_ENUM, 0, "recompute", NULL, "none", T(recompute), "Activations that are computed again in the backward, and not kept: those that are cheap; all but the input of a block; or, auto, the least that fits into --memory.", OPT_LOCAL, .values = recompute_names},
	{OPT_INT, 0, "tile", "N", "0", T(tile), "Gather, multiply and drop large layers in N pieces, one after the other: the weights of a block, the embedding, the output; their gradients too. The pieces are virtual slices: with it, --virtual tp is N where nothing else was said. 0: each layer at once.", OPT_LOCAL, 0, 1024},
	{OPT_ENUM, 0, "offload", NULL, "none", T(offload), "What is kept in files (--offload-to), or of a GPU in its host's memory: the optimizer's state; params: parameters too, which are read a block at a time. That goes with --zero 3, and with parameters that are not shared out.", OPT_LOCAL, .values = offload_names},
	{OPT_STR, 0, "offload-to", "FOLDER", NULL, T(offload_to), "Folder for these files, on a fast disk of every host; for CPUs. They have no names and go with the program.", OPT_LOCAL, .files = "/"},
	{OPT_SIZE, 0, "memory", "BYTES", "0", T(memory), "What a rank may take, of its GPU where it has one. 0: its share of what is free.", OPT_LOCAL},
	{OPT_INT, 't', "threads", "N", "0", T(threads), "Threads of a rank. 0: the processors of the host, shared out to its ranks.", OPT_LOCAL, 0, 4096},
	{OPT_ENUM, 0, "device", NULL, "auto", T(device), "What computes: auto is a GPU, where there is one for each rank of the host that can do all that is asked for, else the CPU. With cuda, ranks have the GPUs of their host in turn, and may share one.", OPT_LOCAL, .values = device_names},
	{OPT_ENUM, 0, "self-test", NULL, "auto", T(self_test), "On a GPU, hold the kernels that this run will use, at its shapes, to those of the CPU on random numbers before it trains, and stop where one is wrong. auto: once for each GPU model, driver, build and set of shapes, which is remembered in $XDG_CACHE_HOME/pt or ~/.cache/pt.", OPT_LOCAL, .values = self_test_names},
	{OPT_FLAG, 0, "graph", NULL, "no", T(graph), "On a GPU, ask for all kernels of a step at once: the third step is noted as a CUDA graph, which does the steps from then on. No bit changes. For models that are so small that the GPU waits for the program.", OPT_LOCAL},
	{OPT_STR, 0, "profile", "FIRST:LAST", NULL, T(profile), "On a GPU, measure each kernel in these steps, which then are slower, and print the table.", OPT_LOCAL},
	{OPT_SIZE, 0, "bucket", "BYTES", "25M", T(bucket_bytes), "Gradients are summed over ranks in buckets of at least this, while the backward goes on.", OPT_LOCAL},
	{OPT_LIST, 0, "straggle", "RANK:MS[:PROB]", NULL, T(straggle), "Hold a rank up for so many milliseconds in every step, or with some probability; RANK may be random: another one in every step. For demonstrations; may be given many times.", OPT_LOCAL},
	{OPT_STR, 0, "garble", "WORKER:FIRST:LAST", NULL, T(garble), "Give a worker tokens that are drawn at random in steps FIRST to LAST. For demonstrations.", OPT_ARITH},
	{OPT_DOUBLE, 0, "watchdog", "SECONDS", "600", T(watchdog), "When a rank has waited this long for others and none of them gets on, end the job and say which are missing, and from what. 0: wait for ever.", OPT_LOCAL, 0, 1e9},

	{OPT_GROUP, .name = "Workers that train apart (EDiT)", .help = "Each worker is a share of the ranks, with a model and a part of every batch; the options above say how its ranks share that. See Workers that train apart."},
	{OPT_INT, 0, "edit-workers", "N", "0", T(edit.workers), "Workers that train apart and synchronise now and then. 0: none do.", OPT_ARITH, 0, 1e6},
	{OPT_INT, 0, "edit-sync-interval", "N", "1", T(edit.interval), "Steps from one synchronisation to the next.", OPT_ARITH, 1, 1e12},
	{OPT_INT, 0, "edit-fragments", "N", "1", T(edit.fragments), "Synchronise the units of the model in so many fragments, one at a time, each once in an interval: what is sent is spread over it (streaming).", OPT_ARITH, 1, 1e4},
	{OPT_INT, 0, "edit-sync-delay", "N", "0", T(edit.delay), "Train on for so many steps while a fragment is on its way.", OPT_ARITH, 0, MANY},
	{OPT_DOUBLE, 0, "edit-update-alpha", "PART", "0.5", T(edit.keep), "sync-delay: what a worker keeps of its own parameters when the fragment has come.", OPT_ARITH, 0, 1},
	{OPT_FLAG, 0, "edit-use-async", NULL, "no", T(edit.async), "Synchronise when it is time, and not after so many steps: nobody waits for a slow worker in between (A-EDiT). --steps are those of the quickest worker, and the others go on where it is.", OPT_ARITH},
	{OPT_DOUBLE, 0, "edit-sync-time", "SECONDS", "600", T(edit.sync_time), "use-async: seconds from one synchronisation to the next.", OPT_ARITH, 0, 1e9},
	{OPT_INT, 0, "edit-min-total-global-steps", "N", "100", T(edit.min_total), "use-async: steps of all workers together, below which they do not synchronise yet.", OPT_ARITH, 1, MANY},
	{OPT_FLAG, 0, "edit-use-step-weight", NULL, "no", T(edit.by_steps), "use-async: who did more steps counts more.", OPT_ARITH},
	{OPT_DOUBLE, 0, "edit-step-weight-ratio", "PART", "0.5", T(edit.steps_ratio), "use-step-weight: the part of a weight that is by steps; all of it without --edit-reducer.", OPT_ARITH, 0, 1},
	{OPT_FLAG, 0, "edit-compat", NULL, "no", T(edit.compat), "use-step-weight: of all steps since the start, as atorch has it, and not of those since the workers agreed last.", OPT_ARITH},
	{OPT_STR, 0, "edit-replay", "FOLDER", NULL, T(edit.replay), "use-async: synchronise after the steps after which the run in FOLDER did, and compute what it did, bit for bit.", OPT_LOCAL, .files = "/"},
	{OPT_INT, 0, "edit-warmup-steps", "N", "0", T(edit.warmup), "First steps in which gradients are averaged over the workers, as if they did not train apart.", OPT_ARITH, 0, MANY},
	{OPT_ENUM, 0, "edit-outer", NULL, "none", T(edit.outer), "Outer optimizer, which applies the pseudo-gradient (what the workers moved from where they last agreed) to where that was.", OPT_ARITH, .values = outer_names},
	{OPT_DOUBLE, 0, "edit-outer-lr", "RATE", "0.7", T(edit.lr), "Its learning rate.", OPT_ARITH, 0, 1e9},
	{OPT_DOUBLE, 0, "edit-outer-momentum", "BETA", "0", T(edit.momentum), "sgd: momentum.", OPT_ARITH, 0, 0.999999},
	{OPT_FLAG, 0, "edit-outer-nesterov", NULL, "no", T(edit.nesterov), "sgd: Nesterov's momentum.", OPT_ARITH},
	{OPT_DOUBLE, 0, "edit-outer-beta1", "BETA", "0.9", T(edit.beta1), "adamw: decay of the mean.", OPT_ARITH, 0, 0.999999},
	{OPT_DOUBLE, 0, "edit-outer-beta2", "BETA", "0.99", T(edit.beta2), "adamw: decay of the mean of squares.", OPT_ARITH, 0, 0.9999999},
	{OPT_DOUBLE, 0, "edit-outer-eps", "EPS", "1e-8", T(edit.eps), "adamw: added to the root.", OPT_ARITH, 0, 1},
	{OPT_DOUBLE, 0, "edit-outer-decay", "RATE", "0", T(edit.decay), "Weight decay of the outer optimizer; adamw's is decoupled, and without it adamw is Adam.", OPT_ARITH, 0, 1e9},
	{OPT_ENUM, 0, "edit-reducer", NULL, "none", T(edit.reducer), "How one pseudo-gradient is made of those of the workers: their mean; with weights; or gta, generalized task arithmetic, with a vote on signs.", OPT_ARITH, .values = reducer_names},
	{OPT_FLAG, 0, "edit-normalize", NULL, "yes", T(edit.normalize), "linear, gta: divide by the weights that take part.", OPT_ARITH},
	{OPT_FLAG, 0, "edit-pseudo-gradnorm-reduce", NULL, "no", T(edit.by_norm), "linear, gta: weights are a softmax of minus the norms of the pseudo-gradients.", OPT_ARITH},
	{OPT_DOUBLE, 0, "edit-softmax-temperature", "T", "0", T(edit.temperature), "What these norms are divided by. 0: 1; alone, weights are alike and sum to 1.", OPT_ARITH, 0, 1e30},
	{OPT_ENUM, 0, "edit-consensus", NULL, "none", T(edit.consensus), "gta: elements vote on their sign, by their sum or by their number, and those of the other sign do not count.", OPT_ARITH, .values = consensus_names},
	{OPT_ENUM, 0, "edit-sparsification", NULL, "none", T(edit.sparsify), "gta: which elements of a row a worker brings: the largest, or random ones, which may be scaled up for those that are missing.", OPT_ARITH, .values = sparsify_names},
	{OPT_DOUBLE, 0, "edit-density", "PART", "1", T(edit.density), "gta: how many of them.", OPT_ARITH, 1e-6, 1},
	{OPT_ENUM, 0, "edit-wire", NULL, "fp32", T(edit.wire), "How pseudo-gradients travel: in full; in half or a quarter of the bytes; or the largest elements of each row alone. A worker brings later what it could not send.", OPT_ARITH, .values = wire_names},
	{OPT_DOUBLE, 0, "edit-wire-density", "PART", "0.015625", T(edit.wire_density), "sparse: how many of a row's elements travel, one at least.", OPT_ARITH, 1e-6, 1},
	{OPT_DOUBLE, 0, "edit-clip-pseudo-grad", "NORM", "0", T(edit.clip), "Largest norm of the pseudo-gradient that was made. 0: any.", OPT_ARITH, 0, 1e30},
	{OPT_FLAG, 0, "edit-skip-anomaly", NULL, "no", T(edit.skip_anomaly), "Leave out a worker whose norm is much larger than its norms before; when all are, all go back to where they last agreed. What is no number is left out in any case, but where parameters are averaged, without an outer optimizer or a reducer.", OPT_ARITH},
	{OPT_DOUBLE, 0, "edit-ewma-alpha", "GAIN", "0.02", T(edit.ewma_alpha), "Gain of the moving mean and variance of these norms.", OPT_ARITH, 0, 1},
	{OPT_INT, 0, "edit-ewma-warmup", "N", "120", T(edit.ewma_warmup), "Synchronisations before any is judged, and how many the spread is measured over.", OPT_ARITH, 0, 1e4},
	{OPT_DOUBLE, 0, "edit-ewma-threshold", "Z", "3", T(edit.ewma_threshold), "Deviations from the mean that are too many.", OPT_ARITH, 0, 1e30},
	{OPT_FLAG, 0, "edit-by-unit", NULL, "yes", T(edit.by_unit), "Norms, anomalies and clipping are of each block, the embedding and the output alone; else of the whole model.", OPT_ARITH},

	{OPT_GROUP, .name = "Evaluation"},
	{OPT_INT, 'e', "eval-every", "N", "250", T(eval_every), "Evaluate every N steps, and at the end. 0: never.", 0, 0, MANY},
	{OPT_INT, 0, "eval-windows", "N", "240", T(eval_windows), "Windows of each split that are evaluated: always the same, at equal distances. 0: all that fit.", OPT_ARITH, 0, MANY},
	{OPT_FLAG, 0, "eval-only", NULL, "no", T(eval_only), "Evaluate the checkpoint of --resume or --init-from, and stop.", OPT_LOCAL},
	{OPT_INT, 0, "sample-every", "N", "0", T(sample_every), "Write a sample every N steps. 0: never.", 0, 0, MANY},
	{OPT_INT, 0, "sample-tokens", "N", "200", T(sample_tokens), "Tokens of a sample.", 0, 1, 1e9},
	{OPT_STR, 0, "sample-prompt", "TEXT", "\n", T(sample_prompt), "What a sample begins with.", 0},

	{OPT_GROUP, .name = "Runs and checkpoints"},
	{OPT_STR, 'o', "out", "FOLDER", NULL, T(out), "Folder of the run: journal, run.h5, checkpoints. Without it, the first of run-001, run-002, ... that does not exist.", OPT_LOCAL, .files = "/"},
	{OPT_FLAG, 0, "overwrite", NULL, "no", T(overwrite), "Begin anew in a folder that holds a run.", OPT_LOCAL},
	{OPT_STR, 'r', "resume", "CHECKPOINT", NULL, T(resume), "Go on from a checkpoint, with its options where none are given. auto: from the newest whole one in --out, or from the start when there is none.", OPT_LOCAL, .files = ".h5"},
	{OPT_STR, 0, "init-from", "CHECKPOINT", NULL, T(init_from), "Begin a new run with the weights of a checkpoint, and its options of the model where none are given.", OPT_LOCAL, .files = ".h5"},
	{OPT_ENUM, 0, "load", NULL, "each", T(load), "Who reads a checkpoint: each rank, or rank 0, which sends it to hosts that do not share a file system.", OPT_LOCAL, .values = load_names},
	{OPT_FLAG, 0, "ckpt", NULL, "yes", T(ckpt), "Write checkpoints; without, not even the last.", OPT_LOCAL},
	{OPT_INT, 'c', "ckpt-every", "N", "0", T(ckpt_every), "Write a checkpoint every N steps. 0: only by time, and at the end.", 0, 0, MANY},
	{OPT_INT, 0, "ckpt-syncs", "N", "0", T(ckpt_syncs), "Write a checkpoint after every N-th synchronisation of workers that train apart, and when their warm-up ends. 0: only as the other options say.", 0, 0, MANY},
	{OPT_DOUBLE, 0, "ckpt-secs", "SECONDS", "600", T(ckpt_secs), "Write a checkpoint when the last one is this old. 0: never.", 0, 0, 1e9},
	{OPT_FLAG, 0, "ckpt-best", NULL, "yes", T(ckpt_best), "Write a checkpoint when the validation loss is the least so far; best.h5 points at it.", 0},
	{OPT_FLAG, 0, "ckpt-wait", NULL, "no", T(ckpt_wait), "Train on only when a checkpoint is written. Without, it is written from a copy, meanwhile.", OPT_LOCAL},
	{OPT_INT, 'k', "keep", "N", "2", T(keep), "Keep the last N checkpoints and the best. 0: all.", 0, 0, 1e6},

	{OPT_GROUP, .name = "Log"},
	{OPT_INT, 0, "log-every", "N", "10", T(log_every), "Print a line every N steps, and for the first and the last of the run.", 0, 1, MANY},
	{OPT_DOUBLE, 0, "publish-secs", "SECONDS", "30", T(publish_secs), "How old run.h5 may be, compared with the journal; older, where writing it would take more than a twentieth of the time.", 0, 0, 1e9},
	{OPT_INT, 0, "check-replicas-every", "N", "0", T(check_replicas_every), "Compare a hash of the parameters over the ranks every N steps, and stop when one differs. 0: never.", 0, 0, MANY},
	{OPT_STR, 0, "peak-flops", "FLOPS", NULL, T(peak_flops), "Peak of one rank, which mfu divides by; measure: the rate of a large matrix product, measured at the start. Without it, that of a GPU as its maker has it, or measured; of a CPU there is no mfu.", OPT_LOCAL},
	{OPT_FLAG, 0, "log-all-ranks", NULL, "no", T(log_all_ranks), "Every rank speaks, not only rank 0.", OPT_LOCAL},
	{OPT_FLAG, 0, "dry-run", NULL, "no", T(dry_run), "Print what a rank would need and do, and stop.", OPT_LOCAL},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"-d SHARDS [options] [key=value ...] [SHARDS ...]",
	"--resume CHECKPOINT|auto -d SHARDS [options]",
	"--dry-run -d SHARDS | --vocab N [options]",
	NULL,
};

const struct program train_program = {
	.name = "pt-train",
	.summary = "train a language model, alone or on many ranks, with equal bits",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct train_opts),
	.operands = ".h5",
	.settings = true,
};

void train_config(const struct train_opts *o, struct str *out)
{
	opts_print(&train_program, o, 0, OPT_LOCAL, out);
}

void train_invocation(const struct train_opts *o, struct str *out)
{
	opts_print(&train_program, o, OPT_LOCAL, 0, out);
}

void train_model_options(const struct train_opts *o, struct str *out)
{
	opts_print(&train_program, o, OPT_MODEL, 0, out);
}

void train_arithmetic(const struct train_opts *o, const struct model *m,
	const char *device, uint64_t data_hash, struct str *out)
{
	struct train_opts with = *o;
	char degrees[48];
	snprintf(degrees, sizeof(degrees), "tp=%d,cp=%d", m->tp, m->cp);
	with.model.virtual_degrees = degrees;
	opts_print(&train_program, &with, OPT_ARITH, 0, out);
	str_printf(out, "data = 0x%016llx\n", (unsigned long long)data_hash);
	str_printf(out, "parameters = %lld\n", (long long)model_counts(m).all);
	conf_print(out, "blas", device);
	str_printf(out, "initial-weights = %d\n", INIT_VERSION);
	str_printf(out, "program = %s\n", PT_VERSION);
}

/* ---- the model of a saved config ------------------------------------------------- */

int train_model_from_config(struct model_config *m, const char *config, struct err *e)
{
	struct train_opts o;
	if (opts_from_text(&train_program, &o, config, true, e))
		return -1;
	*m = o.model;
	return 0;
}

static int check_offload(const struct train_opts *o, struct err *e)
{
	if (!o->offload && o->offload_to)
		return err_set(e, EX_USAGE,
			"offload-to says where, and nothing says what: give --offload "
			"optimizer or params");
	if (o->offload_to && !strcmp(o->offload_to, "host"))
		return err_set(e, EX_USAGE,
			"offload-to host: a processor's memory is that of the host, so "
			"nothing would be saved: give a folder (./host, if it is one)");
	if (o->offload == OFFLOAD_PARAMS && o->reshard == RESHARD_NO)
		return err_set(e, EX_USAGE,
			"offload params drops parameters after their use, "
			"reshard-after-forward no keeps them");
	return 0;
}

static bool is_stream(const char *path)
{
	struct stat st;
	return !strcmp(path, "-") || (!stat(path, &st) && S_ISFIFO(st.st_mode));
}

/* Says of what is set that something else is needed for it. */
static int check_edit(struct train_opts *o, struct err *e)
{
	const struct edit_opts *x = &o->edit;
	bool anchor = x->outer != EDIT_OUTER_NONE || x->reducer != EDIT_MEAN;
	/* what is not as it is by default */
	bool adam = x->beta1 != 0.9 || x->beta2 != 0.99 || x->eps != 1e-8;
	bool judged =
		x->ewma_alpha != 0.02 || x->ewma_warmup != 120 || x->ewma_threshold != 3;
	bool timed = x->sync_time != 600 || x->min_total != 100;
	const struct {
		bool wrong;
		const char *what, *needs;
	} some[] = {
		{!x->workers && (anchor || x->interval > 1 || x->warmup > 0),
			"workers that train apart", "--edit-workers"},
		{!x->workers && o->ckpt_syncs, "ckpt-syncs", "--edit-workers"},
		{x->momentum > 0 && x->outer != EDIT_OUTER_SGD, "edit-outer-momentum",
			"--edit-outer sgd"},
		{x->nesterov && x->momentum <= 0, "edit-outer-nesterov",
			"--edit-outer-momentum"},
		{x->by_norm && x->reducer == EDIT_MEAN, "edit-pseudo-gradnorm-reduce",
			"--edit-reducer linear or gta"},
		{x->temperature > 0 && x->reducer == EDIT_MEAN,
			"edit-softmax-temperature", "--edit-reducer linear or gta"},
		{x->consensus && x->reducer != EDIT_GTA, "edit-consensus",
			"--edit-reducer gta"},
		{x->sparsify && x->reducer != EDIT_GTA, "edit-sparsification",
			"--edit-reducer gta"},
		{x->density < 1 && !x->sparsify, "edit-density", "--edit-sparsification"},
		{x->skip_anomaly && !anchor, "edit-skip-anomaly",
			"something to go back to: --edit-outer or --edit-reducer"},
		{x->wire != EDIT_WIRE_FP32 && !anchor, "edit-wire",
			"a pseudo-gradient, to bring later what could not be sent: "
			"--edit-outer or --edit-reducer"},
		{x->wire_density != 1.0 / 64 && x->wire != EDIT_WIRE_SPARSE,
			"edit-wire-density", "--edit-wire sparse"},
		{x->clip > 0 && !anchor, "edit-clip-pseudo-grad",
			"--edit-outer or --edit-reducer"},
		{x->lr != 0.7 && x->outer == EDIT_OUTER_NONE, "edit-outer-lr",
			"--edit-outer"},
		{x->decay > 0 && x->outer == EDIT_OUTER_NONE, "edit-outer-decay",
			"--edit-outer"},
		{adam && x->outer != EDIT_OUTER_ADAMW, "edit-outer-beta1, -beta2 or -eps",
			"--edit-outer adamw"},
		{judged && !x->skip_anomaly, "edit-ewma-alpha, -warmup or -threshold",
			"--edit-skip-anomaly"},
		{timed && !x->async, "edit-sync-time or edit-min-total-global-steps",
			"--edit-use-async"},
		{x->steps_ratio != 0.5 && !x->by_steps, "edit-step-weight-ratio",
			"--edit-use-step-weight"},
		{x->keep != 0.5 && !x->delay, "edit-update-alpha", "--edit-sync-delay"},
		{x->async && !x->workers, "edit-use-async", "--edit-workers"},
		{(x->fragments > 1 || x->delay > 0) && !anchor,
			"streaming (--edit-fragments, --edit-sync-delay)",
			"--edit-outer or --edit-reducer"},
		{x->fragments > x->interval, "edit-fragments",
			"an --edit-sync-interval of as many steps at least"},
		{x->delay > 0 && x->delay >= x->interval, "edit-sync-delay",
			"a longer --edit-sync-interval"},
		{x->by_steps && !x->async, "edit-use-step-weight", "--edit-use-async"},
		{x->compat && !x->by_steps, "edit-compat", "--edit-use-step-weight"},
		{x->replay && !x->async, "edit-replay", "--edit-use-async"},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		if (some[i].wrong)
			return err_set(
				e, EX_USAGE, "%s needs %s", some[i].what, some[i].needs);
	if (x->async && x->interval > 1)
		return err_set(e, EX_USAGE,
			"edit-sync-interval counts steps, and edit-use-async goes by "
			"time: "
			"--edit-sync-time SECONDS");
	if (x->async && (x->fragments > 1 || x->delay > 0))
		return err_set(e, EX_USAGE,
			"edit-use-async synchronises all at a time, and not in "
			"fragments");
	if (x->workers && o->batch % x->workers)
		return err_set(e, EX_USAGE,
			"batch (%lld) cannot be shared out to %lld workers",
			(long long)o->batch, (long long)x->workers);
	if (x->workers > 1 && o->data_per_rank)
		return err_set(
			e, EX_USAGE, "data-per-rank does not go with edit-workers yet");
	if (x->workers && o->load == LOAD_BROADCAST)
		return err_set(
			e, EX_USAGE, "load broadcast does not go with edit-workers yet");
	for (int64_t i = 0; i < o->data.n && x->workers > 1; i++)
		if (is_stream(o->data.v[i]))
			return err_set(e, EX_USAGE,
				"%s can be read once, and each of the workers would",
				o->data.v[i]);
	return 0;
}

/* What a run said of its workers, when it goes on without them. */
static void forget_workers(struct train_opts *o)
{
	struct train_opts plain;
	struct err e = {0};
	if (!o->from_workers || o->edit.workers)
		return;
	BUG_ON(opts_from_text(&train_program, &plain, "", false, &e));
	o->edit = plain.edit;
	o->ckpt_syncs = 0;
}

static int check_peak(const struct train_opts *o, struct err *e)
{
	double peak;
	if (!o->peak_flops || !strcmp(o->peak_flops, "measure"))
		return 0;
	if (!parse_double(o->peak_flops, &peak) && peak > 0)
		return 0;
	return err_set(e, EX_USAGE, "peak-flops: '%s' is neither a number nor measure",
		o->peak_flops);
}

static int check_optimizer(const struct train_opts *o, struct err *e)
{
	bool adamw = o->optimizer == OPTIMIZER_ADAMW,
	     muon = o->optimizer == OPTIMIZER_MUON;
	const struct {
		bool wrong;
		const char *what, *needs;
	} some[] = {
		{adamw && o->momentum >= 0, "momentum", "--optimizer sgd or muon"},
		{adamw && o->nesterov, "nesterov", "--optimizer sgd or muon"},
		{!muon && o->muon_scale, "muon-scale", "--optimizer muon"},
		{o->nesterov == NESTEROV_YES && o->momentum == 0, "nesterov",
			"--momentum"},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		if (some[i].wrong)
			return err_set(
				e, EX_USAGE, "%s needs %s", some[i].what, some[i].needs);
	return 0;
}

int train_opts_check(struct train_opts *o, struct err *e)
{
	forget_workers(o);
	if (check_edit(o, e) || check_optimizer(o, e))
		return -1;
	int64_t batch = train_batch(o);
	if (!o->micro_batch)
		o->micro_batch = batch % 2 ? batch : batch / 2;
	if (batch % o->micro_batch)
		return err_set(e, EX_USAGE,
			"batch (%lld%s) is not a whole number of micro-batches (%lld)",
			(long long)batch, o->edit.workers > 1 ? " a worker" : "",
			(long long)o->micro_batch);
	if (o->lr_scale != LR_SCALE_NONE && !o->lr_scale_batch)
		return err_set(e, EX_USAGE, "lr-scale needs --lr-scale-batch");
	if (o->lr_schedule == LR_WSD && !o->wsd_decay)
		o->wsd_decay = max64(1, (o->decay_steps ? o->decay_steps : o->steps) / 5);
	if (o->resume && o->init_from)
		return err_set(
			e, EX_USAGE, "resume and init-from are two different things");
	if (o->lr_schedule != LR_CONSTANT && o->min_lr > o->lr)
		return err_set(
			e, EX_USAGE, "min-lr (%g) is above lr (%g)", o->min_lr, o->lr);
	if (o->resume && o->overwrite)
		return err_set(
			e, EX_USAGE, "resume and overwrite are two different things");
	if (o->watchdog > 0 && o->watchdog < 1)
		return err_set(e, EX_USAGE,
			"watchdog: who waits for less than a second is not lost: give 1 "
			"or more, or 0 for ever");
	if (o->data_per_rank && o->readers)
		return err_set(e, EX_USAGE,
			"data-per-rank and readers are two different things");
	if (check_peak(o, e))
		return -1;
	return check_offload(o, e);
}
