/* The options of pt-train: their table, and texts that are made from it. */
#include "data/data.h"
#include "engine/options.h"

/* Offsets of the values: of all options, of the model options, and of the EDiT options. */
#define T(field) offsetof(struct train_opts, field)
#define M(field) offsetof(struct train_opts, model.field)
#define E(field) offsetof(struct train_opts, edit.config.field)
#define MANY 9e18
/* The first fields of an option that has words as values, and of a flag. */
#define WORDS(name, def, offset, flags, words) \
	OPT_ENUM, 0, name, NULL, def, offset, flags, .values = OPT_WORDS(words)
#define FLAG(name, def, offset, flags) OPT_FLAG, 0, name, NULL, def, offset, flags

/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Data"},
	{OPT_LIST, 'd', "data", "FILE", NULL, T(data), OPT_REPLAY, .files = ".h5",
		.elsewhere = "dataset train-data train-file data-path data-dir", .help =
		"Train on the tokens of this shard: a file, a FIFO, or - for standard input. May "
		"be repeated; operands are shards too."},
	{WORDS("sampling", "epoch", T(sampling), OPT_ARITH, SAMPLING_WORDS), .help =
		"Select the windows of tokens that are the training samples. epoch: windows on a "
		"grid, in random order, each once per epoch; the grid shifts every epoch. random: "
		"windows that start at random offsets."},
	{WORDS("packing", "stream", T(packing), OPT_ARITH, PACKING_WORDS),
		.elsewhere = "reset-attention-mask reset-position-ids attn-mask-type", .help =
		"Select how the model treats several documents in one window. stream: all "
		"documents form one sequence. documents: attention stays within each document, and "
		"positions restart at 0 in each document. Both values use the same windows."},
	{WORDS("empty-batch", "stop", T(empty_batch), OPT_RUN, EMPTY_BATCH_WORDS), .help =
		"Select what happens if no token of a batch counts in the loss (data with a loss "
		"mask). stop: the run ends. skip: the step counts, but updates nothing."},
	{OPT_INT, 's', "seed", "N", "1", T(seed), OPT_ARITH, .help =
		"Random seed of the initial parameters, the order of samples and dropout."},
	{OPT_INT, 0, "readers", "N", "0", T(readers), OPT_REPLAY, 0, 1e6, .help =
		"Number of ranks that read the data and send it to the other ranks (0: all read)."},
	{FLAG("data-per-rank", "no", T(data_per_rank), OPT_ARITH), .help =
		"Let data-parallel rank r of R, counted over all workers, read only files r, r + "
		"R, r + 2R and so on. Results then depend on R. All files need the same "
		"vocabulary: if the tokenizer is a character tokenizer, make all files with one "
		"call of pt-prepare --shard-size."},
	OPT_SPOOL_LIMIT(T(spool_limit), OPT_REPLAY),

	{OPT_GROUP, .name = "Batch"},
	{OPT_INT, 'b', "batch", "N", "12", T(batch), OPT_ARITH, 1, 1e12,
		.elsewhere = "batchsize batch-size global-batch-size train-batch-size", .help =
		"Global batch size: sequences per optimizer step, over all ranks."},
	{OPT_INT, 0, "batch-per-rank", "N", "0", T(batch_per_rank), OPT_REPLAY, 0, 1e9, .help =
		"Set --batch to N sequences per data-parallel rank, as DDP scripts do, and "
		"--lr-scale-batch to N (0: --batch does not depend on the ranks)."},
	{OPT_INT, 'm', "micro-batch", "N", "0", T(micro_batch), OPT_ARITH, 0, 1e12,
		.elsewhere = "per-device-train-batch-size device-batch-size "
		"micro-batch-size local-batch-size train-micro-batch-size-per-gpu", .help =
		"Micro-batch size: sequences per forward and backward pass. The size must divide "
		"--batch, and each rank of --dp and --fsdp must get at least one micro-batch. 0: "
		"an eighth of the batch, or the next smaller divisor of the batch."},
	{OPT_INT, 'n', "steps", "N", "2000", T(steps), OPT_ARITH, 0, MANY,
		.elsewhere = "num-steps num-train-steps total-steps train-steps "
		"train-iters max-iters max-steps training-steps num-iterations", .help =
		"Number of optimizer steps (0: only write the initial checkpoint)."},

#include "engine/options_model.inc"

	{OPT_GROUP, .name = "Optimizer"},
	{OPT_ENUM, 0, "optimizer", NULL, "adamw", T(optimizer), OPT_ARITH,
		.values = optimizer_names,
		.elsewhere = "optim", .help =
		"Optimizer. sgd: SGD with momentum, as in PyTorch. muon: Muon, which "
		"orthogonalizes the momentum of each matrix of a block; AdamW updates the "
		"embeddings, the output layer, norms and biases."},
	{OPT_DOUBLE, 'l', "lr", "X", "1e-3", T(lr), OPT_ARITH, 0, 1e30,
		.elsewhere = "learning-rate", .help =
		"Peak learning rate."},
	{OPT_DOUBLE, 0, "min-lr", "X", "-1", T(min_lr), OPT_ARITH, -1, 1e30, .help =
		"Learning rate at the end of the decay (-1: a tenth of --lr)."},
	{WORDS("lr-schedule", "cosine", T(lr_schedule), OPT_ARITH, LR_SCHEDULE_WORDS),
		.elsewhere = "lr-scheduler-type lr-scheduler lr-decay-style", .help =
		"Decay of the learning rate after the warmup. wsd: the rate stays constant, and "
		"decays over the last --wsd-decay steps."},
	{OPT_INT, 'w', "warmup", "N", "100", T(warmup), OPT_ARITH, 0, MANY,
		.elsewhere = "lr-warmup-steps num-warmup-steps warmup-steps warmup-iters lr-warmup-iters", .help =
		"Number of steps of linear warmup."},
	{OPT_INT, 0, "decay-steps", "N", "0", T(decay_steps), OPT_ARITH, 0, MANY,
		.elsewhere = "lr-decay-iters", .help =
		"Step at which the decay ends (0: --steps)."},
	{OPT_INT, 0, "wsd-decay", "N", "0", T(wsd_decay), OPT_ARITH, 0, MANY, .help =
		"Number of decay steps of --lr-schedule wsd (0: a fifth of all steps)."},
	{WORDS("wsd-shape", "linear", T(wsd_shape), OPT_ARITH, WSD_SHAPE_WORDS), .help =
		"Shape of the wsd decay. sqrt: 1 - sqrt(progress), as Haegele et al., 2024."},
	{WORDS("lr-scale", "none", T(lr_scale), OPT_ARITH, LR_SCALE_WORDS),
		.needs = "--lr-scale-batch or --batch-per-rank", .help =
		"Multiply the learning rate by --batch / --lr-scale-batch (linear), or by the "
		"square root of this ratio (sqrt)."},
	{OPT_INT, 0, "lr-scale-batch", "N", "0", T(lr_scale_batch), OPT_ARITH, 0, MANY, .help =
		"Batch size for which --lr was chosen."},
	{OPT_LIST, 0, "freeze", "REGEX", NULL, T(freeze), OPT_ARITH, .help =
		"Do not train the tensors that this regular expression (PCRE2) matches anywhere in "
		"their names. May be repeated. pt-ckpt show prints the names. Frozen tensors have "
		"no gradient and no optimizer state, and do not count in the gradient norm. Layers "
		"below the lowest trained tensor only run the forward pass. A regular expression "
		"that matches no tensor is an error; an empty one is ignored."},
	{OPT_LIST, 0, "lr-scale-of", "REGEX=X", NULL, T(lr_scale_of), OPT_ARITH, .help =
		"Multiply the learning rate of tensors with matching names by X, like PyTorch's "
		"parameter groups. May be repeated; the last match counts."},
	{OPT_DOUBLE, 0, "beta1", "X", "0.9", T(beta1), OPT_ARITH, 0, 0.999999,
		.elsewhere = "adam-beta1", .help =
		"Decay rate of the first moment of AdamW, also for muon."},
	{OPT_DOUBLE, 0, "beta2", "X", "0.99", T(beta2), OPT_ARITH, 0, 0.9999999,
		.elsewhere = "adam-beta2", .help =
		"Decay rate of the second moment of AdamW, also for muon."},
	{OPT_DOUBLE, 0, "eps", "X", "1e-8", T(eps), OPT_ARITH, 0, 1,
		.elsewhere = "adam-epsilon adam-eps", .help =
		"Epsilon of AdamW, also for muon, added to the square root of the second moment."},
	{OPT_DOUBLE, 0, "weight-decay", "X", "0.1", T(weight_decay), OPT_ARITH, 0, 1e6, .help =
		"Weight decay of two-dimensional tensors, decoupled except for sgd."},
	{OPT_DOUBLE, 0, "momentum", "X", "-1", T(momentum), OPT_ARITH, -1, 0.999999,
		.needs = "--optimizer sgd or muon", .help =
		"Decay rate of the momentum (-1: 0.9 for sgd, 0.95 for muon). 0: plain SGD."},
	{WORDS("nesterov", "by-optimizer", T(nesterov), OPT_ARITH, NESTEROV_WORDS),
		.needs = "--optimizer sgd or muon", .help =
		"Use Nesterov momentum in sgd or muon. by-optimizer: yes for muon, no for sgd."},
	{WORDS("muon-scale", "match-adamw", T(muon_scale), OPT_ARITH, MUON_SCALE_WORDS),
		.needs = "--optimizer muon", .help =
		"Scale of Muon's update of a matrix. match-adamw: 0.2 sqrt(max(rows, cols)), for "
		"the learning rates and weight decays of AdamW. original: sqrt(max(1, rows / "
		"cols)), for a learning rate of about 0.02."},
	{OPT_DOUBLE, 0, "clip", "X", "1", T(clip), OPT_ARITH, 0, 1e30,
		.elsewhere = "max-grad-norm grad-norm-clip gradient-clip-val "
		"clip-grad grad-clip max-norm gradient-clipping", .help =
		"Clip the gradients to this global norm (0: no clipping)."},
	{OPT_DOUBLE, 0, "label-smoothing", "X", "0", T(label_smoothing), OPT_ARITH, 0, 0.999,
		.elsewhere = "label-smoothing-factor", .help =
		"Train towards a probability of 1 - X for the target and X spread evenly over all "
		"tokens, like PyTorch's label_smoothing (not in evaluations)."},
	{OPT_DOUBLE, 0, "z-loss", "X", "0", T(z_loss), OPT_ARITH, 0, 1e6, .help =
		"Add X log(Z)^2 to the loss of each token, where Z is the denominator of the "
		"softmax (not in evaluations). PaLM uses 1e-4, OLMo 1e-5."},

	{OPT_GROUP, .name = "Precision"},
	{OPT_ENUM, 0, "dtype", NULL, "fp32", T(dtype), OPT_ARITH, .values = precision_names, .help =
		"Precision of matmuls. bf16, fp16: matmuls round operands and results to this "
		"type, and add in fp32, as with torch.autocast. float8: as bf16, but the linear "
		"layers of the blocks have e4m3 operands, e5m2 gradients and a dynamic scale per "
		"matrix (torchao's recipe tensorwise). Parameters, norms, softmax and the "
		"optimizer are always fp32, and text samples are generated in fp32."},
	{FLAG("float8-skip-ends", "yes", T(float8_skip_ends), OPT_ARITH), .help =
		"With float8, keep the first and the last block in bf16, as the output layer "
		"always is. A model of one or two blocks needs --no-float8-skip-ends."},
	{OPT_DOUBLE, 0, "loss-scale", "X", "65536", T(loss_scale), OPT_ARITH, 1e-4, 1e30, .help =
		"Initial loss scale of --dtype fp16. If gradients overflow, the step updates "
		"nothing and the scale is halved."},
	{OPT_INT, 0, "loss-scale-window", "N", "2000", T(loss_scale_window), OPT_ARITH, 0, MANY,
		.help =
		"With fp16, double the loss scale after N steps without overflow (0: never)."},
	{WORDS("kernels", "fused", T(kernels), OPT_ARITH, KERNELS_WORDS), .help =
		"Select the kernels. fused: kernels that do several operations in one pass over "
		"memory, where such kernels exist. ref: one kernel per operation. On a CPU both "
		"values give the same bits."},
	{WORDS("numerics", "exact", T(numerics), OPT_ARITH, NUMERICS_WORDS), .help =
		"Select how a GPU computes matmuls. exact: with the same bits on any layout; fp32 "
		"operands stay fp32. fast: sums may be split (split-K); fp32 operands become TF32."},
	{OPT_STR, 0, "gemm-algorithms", "FILE", NULL, T(algorithms), 0,
		.files = "", .was = "algorithms", .help =
		"Select the cuBLASLt algorithms of the matmuls on a GPU, which determine the bits. "
		"first: the first algorithm that cuBLASLt proposes, equal on all ranks and in all "
		"runs. measure: the fastest algorithm, measured in the first step by the first "
		"rank that has a matmul of that shape. FILE: the algorithms of another run (its "
		"OUT/algorithms). A resumed run uses its own algorithms. Without the option: "
		"first, or measure with --numerics fast."},
	{OPT_STR, 0, "virtual", "AXES", NULL, M(virtual_degrees), OPT_ARITH, .help =
		"Virtual degrees of tensor and context parallelism, as in tp=4,cp=2: every weight "
		"is computed in tp slices and every sequence in cp chunks, on any number of ranks. "
		"An axis that AXES omits takes its degree from --tp or --cp."},
	{WORDS("residual-dtype", "fp32", T(residual_dtype), OPT_ARITH, RESIDUAL_DTYPE_WORDS),
		.elsewhere = "fp32-residual-connection", .help =
		"Precision of the input of each transformer layer. bf16: round this input, keep it "
		"in 16 bits, and send it to the next stage of --pp in 16 bits; its gradient stays "
		"fp32. PyTorch's FSDP in bf16 rounds the whole residual stream instead."},
	{WORDS("cp-accumulate", "fp32", T(cp_accumulate), OPT_ARITH, CP_ACCUMULATE_WORDS), .help =
		"Precision in which context parallelism accumulates attention outputs, and the "
		"gradients of queries, keys and values, from chunk to chunk. bf16 rounds after "
		"each chunk except the last, to measure what this rounding costs."},

	{OPT_GROUP, .name = "Parallel layout", .help =
		"With --virtual, the layout does not change the result. Without --virtual, the "
		"virtual degrees are the degrees of --tp (or --tile) and --cp."},
	{OPT_INT, 0, "dp", "N", "-1", T(axis[AXIS_DP]), OPT_REPLAY, -1, 1e6,
		.elsewhere = "data-parallel-replicate-degree", .help =
		"Degree of data parallelism: ranks with different samples and the same parameters. "
		"One axis may have the degree -1: the number of ranks, divided by the degrees of "
		"the other axes. --dry-run does not need these ranks."},
	{OPT_INT, 0, "fsdp", "N", "1", T(axis[AXIS_FSDP]), OPT_REPLAY, -1, 1e6,
		.elsewhere = "data-parallel-shard-degree", .help =
		"Degree of fully sharded data parallelism: ranks with different samples that shard "
		"the state given by --zero."},
	{OPT_INT, 0, "cp", "N", "1", T(axis[AXIS_CP]), OPT_REPLAY, -1, 1024,
		.elsewhere = "context-parallel-size context-parallel-degree", .help =
		"Degree of context parallelism: ranks that split every sequence. Of 2N equal "
		"pieces of a sequence, rank i has pieces i and 2N - 1 - i (zigzag), so that all "
		"ranks have equal work under a causal mask."},
	{OPT_INT, 0, "tp", "N", "1", T(axis[AXIS_TP]), OPT_REPLAY, -1, 1024,
		.elsewhere = "tensor-model-parallel-size tensor-parallel-size tensor-parallel-degree", .help =
		"Degree of tensor parallelism: ranks that split every weight matrix."},
	{OPT_INT, 0, "pp", "N", "1", T(axis[AXIS_PP]), OPT_REPLAY, -1, 1e5,
		.elsewhere = "pipeline-model-parallel-size pipeline-parallel-size pipeline-parallel-degree", .help =
		"Degree of pipeline parallelism: ranks that split the layers."},
	{OPT_INT, 0, "zero", "N", "-1", T(zero), OPT_REPLAY, -1, 3,
		.elsewhere = "zero-stage sharding-strategy", .help =
		"ZeRO stage: the state that the ranks of --fsdp and --cp shard. 0: nothing. 1: the "
		"optimizer state. 2: the optimizer state and gradients. 3: the optimizer state, "
		"gradients and parameters. -1: 3 if --fsdp is above 1, else 0. If --dp is above 1, "
		"a stage above 0 needs --fsdp or --cp above 1."},
	{WORDS("fsdp-kind", "parameter", T(fsdp_kind), OPT_REPLAY, FSDP_KIND_WORDS), .help =
		"Select what is sharded. parameter: each parameter, as in FSDP2. flat: all "
		"parameters of a layer as one flat vector, as in FSDP1."},
	{WORDS("reshard-after-forward", "yes", T(reshard), OPT_REPLAY, RESHARD_WORDS), .help =
		"Select what happens after the forward pass to the parameters that --zero 3 "
		"gathered. yes: free them, and gather them again for the backward pass. keep-last: "
		"as yes, but keep the parameters that the backward pass needs first. no: keep all "
		"gathered parameters; rejected with --tile and with --offload params or all, which "
		"free parameters after use."},
	{WORDS("gather-dtype", "auto", T(gather_dtype), OPT_REPLAY, GATHER_DTYPE_WORDS), .help =
		"Type in which --zero 3 gathers the weights of linear layers. auto: the type to "
		"which --dtype rounds these weights anyway (bf16, fp16, or e4m3 for float8), for "
		"fewer bytes and the same bits; but fp32 for float8 with --offload params or all. "
		"Embeddings, norms and biases are always gathered in fp32."},
	{FLAG("sp", "yes", T(sp), OPT_REPLAY),
		.elsewhere = "sequence-parallel", .help =
		"Sequence parallelism: between the matmuls of --tp, each rank has its own tokens."},
	{FLAG("async-tp", "yes", T(async_tp), OPT_REPLAY),
		.elsewhere = "tp-comm-overlap", .help =
		"Overlap the communication of --tp, in groups of rows, with the adjacent matmuls, "
		"and in the backward pass also with the weight gradients."},
	{WORDS("cp-comm", "ring", T(cp_comm), OPT_REPLAY, CP_COMM_WORDS), .help =
		"Select how --cp exchanges keys and values. ring: chunk by chunk, while the "
		"previous chunk is in use. gather: all chunks at once."},
	{OPT_ENUM, 0, "pp-schedule", NULL, "1f1b", T(pp_schedule), OPT_REPLAY,
		.values = schedule_kind_names,
		.elsewhere = "pipeline-parallel-schedule", .help =
		"Pipeline schedule. gpipe: all forwards, then all backwards. 1f1b: one forward and "
		"one backward in turn. interleaved: 1f1b with several stages per rank. The zero "
		"bubble schedules move weight gradients into the bubbles: zb-h1 is based on 1f1b, "
		"interleaved-zb on interleaved, and zbv has two stages per rank in a V."},
	{OPT_INT, 0, "pp-stages", "N", "0", T(pp_stages), OPT_REPLAY, 0, 1e5, .help =
		"Number of pipeline stages per rank. --pp times this number may not exceed "
		"--layers. 0: 2 for interleaved, interleaved-zb and zbv, else 1."},
	{WORDS("pp-split", "auto", T(pp_split), OPT_REPLAY, PP_SPLIT_WORDS), .help =
		"Select how layers are divided among stages. auto: so that the slowest stage, "
		"output layer included, is as fast as possible. even: evenly."},
	{OPT_ENUM, 0, "recompute", NULL, "none", T(recompute), OPT_REPLAY,
		.values = recompute_names,
		.elsewhere = "gradient-checkpointing recompute-granularity activation-checkpointing", .help =
		"Activation checkpointing: activations to recompute in the backward pass instead "
		"of keeping them. selective: activations that are cheap to compute. matmuls: also "
		"the outputs of every second matmul, as torchtitan's option op. full: all "
		"activations except the input of each layer. auto: as little as --memory permits."},
	{OPT_INT, 0, "recompute-every", "N", "1", T(recompute_every), OPT_REPLAY, 1, 1e6,
		.needs = "--recompute", .help =
		"Recompute in every Nth layer only, and keep the activations of the other layers."},
	{OPT_INT, 0, "tile", "N", "0", T(tile), OPT_REPLAY, 0, 1024, .help =
		"Process large layers in N tiles: gather, multiply and free one tile after the "
		"other (0: no tiles). Tiles split the weights of the transformer layers, the "
		"embedding and the output layer, and their gradients. Tiles are virtual slices: "
		"the virtual tp is N unless --virtual sets it. N must be a multiple of --tp, and "
		"greater than --tp. Tiles need parameters that are gathered or read (--fsdp with "
		"--zero 3, --offload params or all), a --virtual cp that equals --cp, and a "
		"--dtype other than float8."},
	{WORDS("offload", "none", T(offload), OPT_REPLAY, OFFLOAD_WORDS), .help =
		"State to offload to files (--offload-to), or on a GPU without --offload-to, to "
		"host memory. optimizer: the optimizer state. grads: the optimizer state and the "
		"gradients, layer by layer, as soon as the backward of a layer is done. params: "
		"the optimizer state and the parameters; parameters are read layer by layer, which "
		"needs --zero 3 or parameters that are not sharded. all: all three kinds of state."},
	{OPT_STR, 0, "offload-to", "DIRECTORY", NULL, T(offload_to), OPT_REPLAY,
		.files = "/", .needs = "--offload or --edit-offload", .help =
		"Directory for offloaded state, on a fast disk of every host. The files have no "
		"names and vanish when the program ends."},
	{OPT_SIZE, 0, "memory", "BYTES", "0", T(memory), OPT_REPLAY, .help =
		"Memory limit per rank, on its GPU if any (0: the rank's share of the free "
		"memory)."},
	{OPT_INT, 't', "threads", "N", "0", T(threads), OPT_REPLAY, 0, 4096, .help =
		"Threads per rank (0: the processors of the host, divided among its ranks). In "
		"total, use no more threads than the host has processors."},
	{WORDS("device", "auto", T(device), OPT_REPLAY, DEVICE_WORDS), .help =
		"Device to compute on. auto: a GPU if each rank of the host can have one and a GPU "
		"supports all options, else the CPU. cuda: the ranks take the GPUs of their host "
		"in turn, and may share one."},
	{WORDS("comm", "auto", T(comm), OPT_REPLAY, COMM_LIBRARY_WORDS), .help =
		"Transport between GPUs. nccl: NCCL, from GPU to GPU. mpi: MPI, through host "
		"memory. auto: NCCL if NCCL is installed and each rank has its own GPU (or shares "
		"one, with NCCL_HOSTID set), else MPI."},
	{WORDS("self-test", "auto", T(self_test), 0, SELF_TEST_WORDS), .help =
		"On a GPU, before training, compare the kernels of this run, at its shapes and on "
		"random inputs, with the kernels of the CPU, and stop if a kernel is wrong. auto: "
		"test once per GPU model, driver, build and set of shapes; the result is kept in "
		"$XDG_CACHE_HOME/pt or ~/.cache/pt."},
	{FLAG("cuda-graph", "no", T(graph), 0), .was = "graph", .help =
		"On a GPU, capture the third step as a CUDA graph and launch it for all later "
		"steps. The bits stay the same. A graph speeds up models so small that kernel "
		"launches dominate. Several ranks need NCCL (--comm)."},
	{OPT_STR, 0, "profile", "FIRST:LAST", NULL, T(profile), 0, .help =
		"On a GPU, print a table of each kernel's time in these steps, which get slower."},
	{OPT_STR, 0, "trace", "FILE", NULL, T(trace), 0, .files = ".json", .help =
		"Write a timeline of each rank, as JSON in the trace event format that Perfetto "
		"(ui.perfetto.dev) opens: computation by layer, waits, and the messages and "
		"collectives of each axis. On a GPU, a rank has two threads: the host, which "
		"enqueues kernels, and the GPU. With local SGD, only the first worker is traced. "
		"With --cluster, the timeline is a prediction."},
	{OPT_STR, 0, "trace-steps", "FIRST:LAST", NULL, T(trace_steps), 0,
		.needs = "--trace", .help =
		"Steps that --trace records (default: only the third step)."},
	{OPT_STR, 0, "hash-tensors", "FILE", NULL, T(hash_tensors), 0, .files = "",
		.help =
		"Write a hash of each parameter, activation, gradient and optimizer state, one per "
		"line in the order of computation, to locate a wrong result. The hashes do not "
		"depend on the layout, so diff or pt-compare --locate finds the first tensor in "
		"which two runs differ. The run ends after the last step of --hash-steps. Not "
		"supported with local SGD."},
	{OPT_STR, 0, "hash-steps", "FIRST:LAST", NULL, T(hash_steps), 0,
		.needs = "--hash-tensors", .help =
		"Steps that --hash-tensors records (default: only the first step)."},
	{OPT_SIZE, 0, "bucket", "BYTES", "25M", T(bucket_bytes), OPT_REPLAY, .help =
		"Minimum size of the buckets in which gradients are reduced during the backward "
		"pass. The buckets of a small model may take more memory than its gradients; "
		"smaller buckets need less."},
	{WORDS("deal", "even", T(deal), OPT_REPLAY, DEAL_WORDS), .help =
		"Select how the micro-batches of a step are divided among data-parallel ranks. "
		"even: evenly. speed: by the measured speed of the ranks, so that a slow rank gets "
		"fewer; the bits stay the same. See pt-referee(7)."},
	{OPT_LIST, 0, "inject-delay", "RANK:MS[/micro][:PROB]", NULL, T(inject_delay), 0,
		.was = "straggle", .help =
		"Delay a rank by MS milliseconds in every step, or with probability PROB, to "
		"measure what a straggler costs. With /micro, MS is the delay per micro-batch. "
		"RANK may be random: a different rank in every step. May be repeated."},
	{OPT_STR, 0, "corrupt-batch", "WORKER:FIRST:LAST", NULL, T(corrupt_batch), OPT_ARITH,
		.was = "garble", .help =
		"Replace the tokens of a worker by random tokens in steps FIRST to LAST, to "
		"measure what bad data costs."},
	{OPT_DOUBLE, 0, "watchdog", "SECONDS", "600", T(watchdog), 0, 0, 1e9, .help =
		"Abort the job when a rank has waited this long for other ranks without any "
		"progress, and print which ranks are missing in which operation (0: wait forever)."},

	{OPT_GROUP, .name = "Silent corruption", .arg = "pt-referee"},
	{WORDS("check-sums", "no", T(check_sums), 0, CHECK_WORDS), .help =
		"Check all sums of gradients in every step, by checksums. If a sum is wrong, the "
		"step is computed again before parameters change; if it is wrong again, the run "
		"ends with exit code 71."},
	{WORDS("check-replicas", "no", T(check_replicas), 0, CHECK_WORDS), .help =
		"Compare all replicas of parameters and optimizer state in every step, and "
		"the loss, norm and learning rate of all ranks. If they differ, wrong "
		"replicas are replaced, and the step is computed again before parameters "
		"change; if no majority shows which are right, the run ends with exit code "
		"71. Needs --device cpu."},
	{WORDS("check-memory", "no", T(check_memory), 0, CHECK_WORDS), .help =
		"Compare parameters and optimizer state in every step with their checksums "
		"after the last update, to detect changes in memory or files. Replicas are "
		"replaced; without a replica, the run ends with exit code 71. Needs --device "
		"cpu."},
	{OPT_DOUBLE, 0, "referee", "SHARE", "0", T(referee), 0, 0, 1, .help =
		"Compute this share of the work a second time, by other ranks, and compare "
		"before parameters change: 0.01 is one percent; 1 is one micro-batch of each "
		"data-parallel rank in every step, the maximum; 0 is nothing. If results "
		"differ, other ranks decide which rank computed wrongly, and the step is "
		"computed again."},
	{OPT_INT, 0, "referee-strikes", "N", "2", T(referee_strikes), 0, 1, 1e9,
		.needs = "--referee", .help =
		"Number of sporadic faults of one device within a day after which the run ends "
		"with exit code 71. The faults of earlier starts in the same directory count."},
	{OPT_LIST, 0, "inject-flip", "RANK:STEP[+|pX]:PLACE[:NAME[:BIT]]", NULL,
		T(inject_flip), 0, .help =
		"Flip a bit on a rank, to test what detects it: once in step STEP, or with + in all "
		"steps from then on, or with pX in each micro-batch from then on with probability "
		"X. May be repeated."},
	{OPT_STR, 0, "inject-kill", "RANK:STEP:PLACE", NULL, T(inject_kill), 0, .help =
		"Kill a rank at a place, to test a restart. PLACE: step (before step STEP), "
		"copy, seal or send (in the copy of step STEP to the vault), or restore (in "
		"a resume from step STEP of the vault)."},

	{OPT_GROUP, .name = "Local SGD (EDiT)", .help =
		"Each worker is a group of ranks with its own copy of the model and its share of "
		"every batch. The options of the parallel layout describe one worker. "
		"pt-local-sgd(7) describes local SGD."},
	{OPT_INT, 0, "edit-workers", "N", "0", T(edit.workers), OPT_ARITH, 0, 1e6, .help =
		"Number of workers, which train independently between synchronizations (0: no "
		"local SGD)."},
	{OPT_INT, 0, "edit-sync-interval", "N", "1", E(interval), OPT_ARITH, 1, 1e12,
		.needs = "--edit-workers", .help =
		"Number of steps between synchronizations."},
	{OPT_INT, 0, "edit-fragments", "N", "1", E(fragments), OPT_ARITH, 1, 1e4,
		.needs = "--edit-outer or --edit-reducer", .help =
		"Streaming: synchronize the model in N fragments, each once per interval and at a "
		"different step, which spreads the communication over the interval."},
	{OPT_INT, 0, "edit-sync-delay", "N", "0", E(delay), OPT_ARITH, 0, MANY,
		.needs = "--edit-outer or --edit-reducer", .help =
		"Streaming: train N more steps while a fragment is being reduced."},
	{OPT_DOUBLE, 0, "edit-update-alpha", "FRACTION", "0.5", E(keep), OPT_ARITH, 0, 1,
		.needs = "--edit-sync-delay", .help =
		"Fraction of its own parameters that a worker keeps when a fragment is mixed in."},
	{FLAG("edit-use-async", "no", T(edit.async), OPT_ARITH), .needs = "--edit-workers", .help =
		"Synchronize by the clock instead of after a number of steps (A-EDiT), so that no "
		"worker waits for a slow worker between synchronizations. --steps counts the steps "
		"of the fastest worker; after a synchronization the other workers continue at that "
		"step."},
	{OPT_DOUBLE, 0, "edit-sync-time", "SECONDS", "600", T(edit.sync_time), OPT_ARITH, 0, 1e9,
		.needs = "--edit-use-async", .help =
		"Seconds between synchronizations."},
	{OPT_INT, 0, "edit-min-total-global-steps", "N", "100", T(edit.min_total), OPT_ARITH,
		1, MANY, .needs = "--edit-use-async", .help =
		"Synchronize only after all workers together have done at least N steps since the "
		"last synchronization."},
	{FLAG("edit-use-step-weight", "no", E(weights.by_steps), OPT_ARITH),
		.needs = "--edit-use-async", .help =
		"Weight each worker by its number of steps."},
	{OPT_DOUBLE, 0, "edit-step-weight-ratio", "FRACTION", "0.5", E(weights.steps_ratio),
		OPT_ARITH, 0, 1, .needs = "--edit-use-step-weight", .help =
		"Fraction of a worker's weight that its number of steps determines. Without "
		"--edit-reducer, it is always 1."},
	{FLAG("edit-compat", "no", T(edit.compat), OPT_ARITH),
		.needs = "--edit-use-step-weight", .help =
		"Count all steps since the start, not since the last synchronization, as atorch "
		"does."},
	{OPT_STR, 0, "edit-replay", "DIRECTORY", NULL, T(edit.replay), 0,
		.files = "/", .needs = "--edit-use-async", .help =
		"Synchronize after the same steps as the run in this directory, which reproduces "
		"that run bit for bit."},
	{OPT_INT, 0, "edit-warmup-steps", "N", "0", T(edit.warmup), OPT_ARITH, 0, MANY,
		.needs = "--edit-workers", .help =
		"Number of initial steps with plain data parallelism, over all workers."},
	{FLAG("edit-global-loss", "no", T(edit.global_loss), OPT_RUN),
		.needs = "--edit-workers", .help =
		"After the warm-up, log the mean loss of all workers, as data parallelism does, "
		"instead of each worker's own loss. Workers then wait for each other in every "
		"logged step."},
	{WORDS("edit-outer", "none", E(outer), OPT_ARITH, EDIT_OUTER_WORDS),
		.needs = "--edit-workers", .help =
		"Outer optimizer, which applies the pseudo-gradient to the anchor. The anchor is "
		"the parameters at the last synchronization; the pseudo-gradient is the anchor "
		"minus the current parameters of the workers. none: average the parameters."},
	{OPT_DOUBLE, 0, "edit-outer-lr", "RATE", "0.7", E(lr), OPT_ARITH, 0, 1e9,
		.needs = "--edit-outer", .help =
		"Learning rate of the outer optimizer."},
	{OPT_DOUBLE, 0, "edit-outer-momentum", "BETA", "0", E(momentum), OPT_ARITH, 0, 0.999999,
		.needs = "--edit-outer sgd", .help =
		"Momentum of the outer optimizer."},
	{OPT_DOUBLE, 0, "edit-outer-dampening", "FRACTION", "0", E(dampening), OPT_ARITH, 0, 1,
		.needs = "--edit-outer-momentum", .help =
		"Dampening of the momentum, as in PyTorch: every gradient except the first is "
		"multiplied by 1 - FRACTION before it is added to the momentum."},
	{FLAG("edit-outer-nesterov", "no", E(nesterov), OPT_ARITH),
		.needs = "--edit-outer-momentum", .help =
		"Use Nesterov momentum."},
	{OPT_DOUBLE, 0, "edit-outer-beta1", "BETA", "0.9", E(beta1), OPT_ARITH, 0, 0.999999,
		.needs = "--edit-outer adamw", .help =
		"Decay rate of AdamW's first moment."},
	{OPT_DOUBLE, 0, "edit-outer-beta2", "BETA", "0.99", E(beta2), OPT_ARITH, 0, 0.9999999,
		.needs = "--edit-outer adamw", .help =
		"Decay rate of AdamW's second moment."},
	{OPT_DOUBLE, 0, "edit-outer-eps", "EPS", "1e-8", E(eps), OPT_ARITH, 0, 1,
		.needs = "--edit-outer adamw", .help =
		"AdamW's epsilon, added to the square root of the second moment."},
	{OPT_DOUBLE, 0, "edit-outer-decay", "RATE", "0", E(decay), OPT_ARITH, 0, 1e9,
		.needs = "--edit-outer", .help =
		"Weight decay of the outer optimizer, decoupled in adamw. 0 turns AdamW into Adam."},
	{WORDS("edit-reducer", "none", E(reducer), OPT_ARITH, EDIT_REDUCER_WORDS),
		.needs = "--edit-workers", .help =
		"Select how pseudo-gradients are reduced. none: to their mean. linear: to a "
		"weighted sum. gta: generalized task arithmetic, a weighted sum with a vote on "
		"signs."},
	{FLAG("edit-normalize", "yes", E(normalize), OPT_ARITH), .help =
		"With --edit-reducer linear or gta, divide the sum by the sum of the weights."},
	{FLAG("edit-pseudo-gradnorm-reduce", "no", E(weights.by_norm), OPT_ARITH),
		.needs = "--edit-reducer linear or gta", .help =
		"Weight each worker by a softmax of the negative norms of the pseudo-gradients."},
	{OPT_DOUBLE, 0, "edit-softmax-temperature", "T", "0", E(weights.temperature), OPT_ARITH,
		0, 1e30, .needs = "--edit-reducer linear or gta", .help =
		"Temperature of the softmax of --edit-pseudo-gradnorm-reduce, which divides the "
		"norms (0 means 1). Without that softmax, all weights are equal and sum to 1."},
	{WORDS("edit-consensus", "none", E(consensus), OPT_ARITH, CONSENSUS_WORDS),
		.needs = "--edit-reducer gta", .help =
		"For each element, the workers vote on its sign, by the sum or by the count of "
		"their values; values of the losing sign are left out."},
	{WORDS("edit-sparsification", "none", E(sparsify), OPT_ARITH, EDIT_SPARSIFY_WORDS),
		.needs = "--edit-reducer gta", .help =
		"Select the elements of a row that a worker contributes. none: all elements. "
		"magnitude: the largest elements. random: random elements. rescaled-random: random "
		"elements, scaled up to make up for the rest. magnitude-tensor: the largest "
		"elements of the whole matrix, including ties."},
	{OPT_DOUBLE, 0, "edit-density", "FRACTION", "1", E(density), OPT_ARITH, 1e-6, 1,
		.needs = "--edit-sparsification", .help =
		"Fraction of the elements of a row, or of the matrix, that a worker contributes."},
	{WORDS("edit-wire", "fp32", E(wire), OPT_ARITH, EDIT_WIRE_WORDS),
		.needs = "--edit-outer or --edit-reducer", .help =
		"Format in which pseudo-gradients are sent. bf16: half of the bytes of fp32. int8: "
		"a quarter of the bytes. sparse: only the largest elements of each row. A worker "
		"keeps the error of the format and adds this error the next time (error feedback)."},
	{OPT_DOUBLE, 0, "edit-wire-density", "FRACTION", "0.015625", E(wire_density), OPT_ARITH,
		1e-6, 1, .needs = "--edit-wire sparse", .help =
		"Fraction of the elements of a row that are sent (at least one element)."},
	{OPT_DOUBLE, 0, "edit-clip-pseudo-grad", "NORM", "0", E(clip), OPT_ARITH, 0, 1e30,
		.needs = "--edit-outer or --edit-reducer", .help =
		"Clip the reduced pseudo-gradient to this norm (0: no clipping)."},
	{FLAG("edit-skip-anomaly", "no", E(skip_anomaly), OPT_ARITH),
		.needs = "--edit-outer or --edit-reducer", .help =
		"Exclude a worker if its pseudo-gradient norm is much larger than its earlier "
		"norms. If all workers are excluded, all return to the anchor. After 3 such "
		"synchronizations in a row, all workers are included, with a warning. NaN and "
		"infinity are always excluded, unless parameters are averaged (no outer optimizer, "
		"no reducer)."},
	{OPT_DOUBLE, 0, "edit-ewma-alpha", "GAIN", "0.02", E(detect.alpha), OPT_ARITH, 0, 1,
		.needs = "--edit-skip-anomaly", .help =
		"Gain of the exponentially weighted moving mean and variance of the norms."},
	{OPT_INT, 0, "edit-ewma-warmup", "N", "120", E(detect.warmup), OPT_ARITH, 0, 1e4,
		.needs = "--edit-skip-anomaly", .help =
		"Number of synchronizations before the first norm is judged, and over which the "
		"variance is measured. Norms rise with the learning rate, so in a new run the "
		"default grows, up to 10000, until it covers --warmup."},
	{OPT_DOUBLE, 0, "edit-ewma-threshold", "Z", "3", E(detect.threshold), OPT_ARITH, 0, 1e30,
		.needs = "--edit-skip-anomaly", .help =
		"A norm more than this many standard deviations above the mean is an anomaly."},
	{FLAG("edit-by-unit", "yes", E(by_unit), OPT_ARITH), .help =
		"Compute norms, anomalies and clipping separately for each layer, the embedding "
		"and the output layer. With --no-edit-by-unit, compute them for the whole model."},
	{FLAG("edit-offload", "no", T(edit.offload), 0),
		.needs = "--edit-outer or --edit-reducer", .help =
		"Offload the anchor, the state of the outer optimizer and the residual of "
		"--edit-wire: on a CPU to files (--offload-to), on a GPU to host memory."},

	{OPT_GROUP, .name = "Evaluation"},
	{OPT_INT, 'e', "eval-every", "N", "250", T(eval_every), OPT_RUN, 0, MANY,
		.elsewhere = "eval-steps val-check-interval eval-interval", .help =
		"Evaluate every N steps, and at the end (0: never)."},
	{FLAG("eval-first", "no", T(eval_first), OPT_RUN), .needs = "--eval-every", .help =
		"Also evaluate before the first step, with a sample if --sample-every is set."},
	{OPT_INT, 0, "eval-windows", "N", "240", T(eval_windows), OPT_ARITH, 0, MANY,
		.elsewhere = "eval-iters", .help =
		"Number of windows of each split to evaluate (0: all that fit). These windows are "
		"always the same, equally spaced, and none is repeated."},
	{FLAG("eval-only", "no", T(eval_only), 0), .help =
		"Evaluate the checkpoint of --resume or --init-from, and exit."},
	{OPT_INT, 0, "sample-every", "N", "0", T(sample_every), OPT_RUN, 0, MANY, .help =
		"Generate a text sample every N steps (0: never)."},
	{OPT_INT, 0, "sample-tokens", "N", "200", T(sample_tokens), OPT_RUN, 1, 1e9, .help =
		"Length of a sample in tokens."},
	{OPT_STR, 0, "sample-prompt", "TEXT", "\n", T(sample_prompt), OPT_RUN, .help =
		"Prompt of the samples."},

	{OPT_GROUP, .name = "Runs and checkpoints"},
	{OPT_STR, 'o', "out", "DIRECTORY", NULL, T(out), 0, .files = "/",
		.elsewhere = "out-dir output-dir save-dir checkpoint-dir dump-folder", .help =
		"Run directory, for the journal, run.h5 and checkpoints. Without the option, the "
		"first of run-001, run-002 and so on that does not exist."},
	{FLAG("overwrite", "no", T(overwrite), 0), .help =
		"Start a new run in a directory that already holds a run."},
	{OPT_STR, 'r', "resume", "CHECKPOINT", NULL, T(resume), OPT_REPLAY, .files = ".h5",
		.elsewhere = "resume-from-checkpoint resume-from load-checkpoint", .help =
		"Resume from a checkpoint. Options that are not given come from the checkpoint. "
		"auto: resume from the newest valid checkpoint in --out, or else start a new run."},
	{FLAG("resume-exact", "no", T(resume_exact), 0), .needs = "--resume", .help =
		"Reject a resume that would change results: with other options, with other data, "
		"or with other --steps if the learning rate so far depended on them. Without this "
		"option, a layout may change the virtual degrees and the micro-batch size, with a "
		"warning."},
	{OPT_STR, 0, "resume-reason", "TEXT", NULL, T(resume_reason), 0, .help =
		"With --resume, record in the journal why the run was interrupted, and on how many "
		"ranks it continues."},
	{OPT_STR, 0, "init-from", "MODEL", NULL, T(init_from), OPT_REPLAY,
		.files = "", .help =
		"Start a new run with the weights and the model options of a checkpoint, or of a "
		"model that pt-ckpt convert reads, such as a Hugging Face directory. Other model "
		"options are rejected, except --context, --rope-*, --dropout and --norm-eps."},
	{WORDS("ckpt-load", "each", T(load), 0, LOAD_WORDS), .was = "load", .help =
		"Select who reads a checkpoint. each: every rank. broadcast: rank 0 (with local "
		"SGD, rank 0 of each worker), which sends it to hosts that share no file system."},
	{FLAG("ckpt", "yes", T(ckpt), 0), .help =
		"Write checkpoints. --no-ckpt omits even the last checkpoint."},
	{OPT_INT, 'c', "ckpt-every", "N", "0", T(ckpt_every), OPT_RUN, 0, MANY,
		.elsewhere = "save-steps save-every save-interval checkpoint-interval", .help =
		"Write a checkpoint every N steps (0: only by time, and at the end)."},
	{OPT_INT, 0, "ckpt-syncs", "N", "0", T(ckpt_syncs), OPT_RUN, 0, MANY,
		.needs = "--edit-workers", .help =
		"With local SGD, write a checkpoint after every Nth synchronization, and at the "
		"end of the warm-up (0: only when another option asks for one)."},
	{WORDS("edit-ckpt", "group", T(edit.ckpt), OPT_RUN, EDIT_CKPT_WORDS),
		.needs = "--edit-workers", .help =
		"With local SGD, select who writes checkpoints. group: each worker its own. rank0: "
		"only the first worker. With rank0, all workers resume from its checkpoint: from "
		"their last synchronization, with the optimizer state of the first worker."},
	{OPT_DOUBLE, 0, "ckpt-secs", "SECONDS", "600", T(ckpt_secs), OPT_RUN, 0, 1e9, .help =
		"Write a checkpoint when the last checkpoint is this old (0: never)."},
	{FLAG("ckpt-best", "yes", T(ckpt_best), OPT_RUN), .help =
		"Write a checkpoint, linked as best.h5, when the validation loss is a new minimum."},
	{FLAG("ckpt-wait", "no", T(ckpt_wait), 0), .help =
		"Pause training while a checkpoint is written. Without this option, a copy of the "
		"state is written in the background."},
	{OPT_INT, 'k', "keep", "N", "2", T(keep), OPT_RUN, 0, 1e6,
		.elsewhere = "save-total-limit", .help =
		"Keep the last N checkpoints and the best checkpoint (0: keep all checkpoints)."},

	{OPT_STR, 0, "vault", "DIRECTORY", NULL, T(vault), 0, .files = "/", .help =
		"Also keep the state in this directory of a memory file system on each host, such "
		"as /dev/shm/pt-RUN, where it outlives the processes. With several hosts, each "
		"host also keeps a copy of the state of the previous host. --resume auto then "
		"resumes from the newest state. Excludes --edit-workers and GPUs."},
	{OPT_INT, 0, "vault-every", "N", "0", T(vault_every), 0, 0, MANY,
		.needs = "--vault", .help =
		"Copy the state into the vault every N steps (0: as often as costs at most 1 % of "
		"the time)."},

	{OPT_GROUP, .name = "Log"},
	{OPT_INT, 0, "log-every", "N", "10", T(log_every), OPT_RUN, 1, MANY,
		.elsewhere = "logging-steps print-every log-interval log-freq", .help =
		"Log the first step, every Nth step and the last step."},
	{WORDS("log-format", "auto", T(log_format), 0, LOG_FORMAT_WORDS), .help =
		"Format of rows on standard output. full: all columns, as in the journal. short: "
		"step, losses, learning rate, tokens per second and the time left. auto: short on "
		"a terminal, else full (also under mpiexec)."},
	{FLAG("columns", "no", T(columns), 0), .help =
		"Print what each column of the log means, and exit."},
	{OPT_LIST, 0, "log-to", "KIND:DIRECTORY", NULL, T(log_to), 0,
		.elsewhere = "tensorboard tensorboard-dir logging-dir report-to", .help =
		"Also write each row to a file in this directory. tensorboard: an event file. "
		"wandb: an offline run, for wandb sync DIRECTORY/offline-run-*. Worker N of local "
		"SGD has worker-N below it. A resumed run has a new file; TensorBoard shows later "
		"rows from it only, integers from both. On a full disk, rows are kept for later."},
	{OPT_DOUBLE, 0, "publish-secs", "SECONDS", "30", T(publish_secs), OPT_RUN, 0, 1e9, .help =
		"Rewrite run.h5 when run.h5 is this much older than the journal, or less often if "
		"rewriting would take more than a twentieth of the time."},
	{OPT_STR, 0, "peak-flops", "FLOPS", NULL, T(peak_flops), 0, .help =
		"Peak FLOP/s of a rank, the denominator of mfu. measure: the rate of a large "
		"matmul, measured at the start. Without the option: on a GPU the value of its data "
		"sheet, or a measurement; on a CPU mfu is not logged."},
	{FLAG("log-all-ranks", "no", T(log_all_ranks), 0), .help =
		"Print the messages of all ranks, not only of rank 0."},
	{OPT_FLAG, 'v', "verbose", NULL, "no", T(verbose), 0, .help =
		"At the start, also list the tensors of the model and the versions of libraries. "
		"With --dry-run, also list the tensors of a layer. With local SGD, also print what "
		"each synchronization excluded and clipped, as the journal does."},
	{FLAG("dry-run", "no", T(dry_run), 0), .help =
		"Print the memory, work and communication that the run would need, and exit, with "
		"code 1 if the run needs more than --memory."},
	{OPT_INT, 0, "print-ranks", "N", "0", T(print_ranks), 0, 0, 1e6, .help =
		"Print how many of N ranks the layout can use without a change of the "
		"results, and exit. 0: too few. An axis of degree -1 takes as many ranks as "
		"possible. A run that is resumed keeps its micro-batch size and virtual "
		"degrees."},
	{OPT_STR, 0, "cluster", "NAME,KEY=VALUE,...", NULL, T(cluster), 0,
		.needs = "--dry-run", .help =
		"Also predict the time of a step on these devices, and how much of its "
		"communication is exposed (not hidden by computation). NAME: h100, h200, b200, "
		"a100 or cpu; with --device auto, the plan is for that device. A KEY replaces a "
		"value of NAME. gpus=N: GPUs per host; for cpu, ranks per host. nvlink=X, net=X: "
		"bandwidth of a GPU in GB/s per direction, within its host and to other hosts; X:Y "
		"adds a latency of Y microseconds. memory=X: memory bandwidth of a GPU in GB/s. "
		"pcie=X: bandwidth between GPU and host memory in GB/s. efficiency=X: rate of "
		"matmuls divided by the peak. attention=X: rate of attention divided by the peak, "
		"if it differs from efficiency. flops=X: peak of a GPU or a core in GFLOP/s. "
		"cores=N: cores of a host, which its ranks share. capacity=BYTES: memory that a "
		"rank can use, for pt-plan."},
	{OPT_END},
};
/* clang-format on */

static const char *const advice[N_ADVICE] = {
	[ADVICE_MEMORY] = "--dry-run shows the plan; more ranks (--fsdp, --cp, --tp), "
			  "--recompute or --offload need less",
	[ADVICE_GPU_MEMORY] = "--dry-run shows the plan; a smaller --micro-batch, "
			      "--recompute or --offload need less",
	[ADVICE_PINNED_MEMORY] = "--dry-run shows the plan; more ranks on more hosts "
				 "(--fsdp), or --offload optimizer, need less",
	[ADVICE_SHARED_MEMORY] = "--dtype bf16 needs half",
	[ADVICE_GPU] = "use --device cpu",
	[ADVICE_RUN_IN_USE] = "or give another directory with --out",
	[ADVICE_NO_CHECKPOINT] = "--overwrite, without --resume, starts a new run",
	[ADVICE_FOREIGN_MODEL] = "--init-from takes it as it is",
	[ADVICE_VOCABULARY] = "give --data or --vocab",
	[ADVICE_NO_DATA] = "give shards with --data; --help lists the options",
	[ADVICE_NOT_A_SHARD] = "pt-prepare makes shards of text",
	SPOOL_ADVICE,
};

void options_give_advice(void)
{
	advice_set(advice);
}

static const char *const synopsis[] = {
	"-d SHARDS [options] [key=value ...] [SHARDS ...]",
	"--resume CHECKPOINT|auto -d SHARDS [options]",
	"--dry-run -d SHARDS | --vocab N [options]",
	NULL,
};

/* Writes the options that are saved with a run, by group, to f, for the manual. */
static void list_saved(FILE *f)
{
	const struct opt *group = NULL, *listed_group = NULL;
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (const struct opt *t = options; t->type != OPT_END; t++) {
		if (t->type == OPT_GROUP)
			group = t;
		if (t->type == OPT_GROUP || !(t->flags & OPT_RUN))
			continue;
		if (listed_group == group)
			fputs(" ,\n", f);
		else
			fprintf(f, "%s.It %s\n", listed_group ? "\n" : "", group->name);
		fprintf(f, ".Fl -%s", t->name);
		listed_group = group;
	}
	fputs("\n.El\n", f);
}

static void print_manual_list(int kind, FILE *f)
{
	(kind ? options_man_absent : list_saved)(f);
}

const struct program train_program = {
	.name = "pt-train",
	.summary = "train a language model, alone or on many ranks, with equal bits",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct train_opts),
	.given = offsetof(struct train_opts, given),
	.operands = ".h5",
	.settings = true,
	.answers = train_answers,
	.retired = "check-replicas-every",
	.generate = print_manual_list,
	.kinds = (const char *const[]){"saved", "absent", NULL},
};
