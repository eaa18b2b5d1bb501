/* The options of pt-train: their table, and texts that are made from it. */
#include "data/data.h"
#include "engine/options.h"

/* Where the values are: all options, those of the model, and those of EDiT. */
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
		"Train on the tokens of a shard; may be given many times, and operands are shards "
		"too. - is standard input; a FIFO may be given too."},
	{WORDS("sampling", "epoch", T(sampling), OPT_ARITH, SAMPLING_WORDS), .help =
		"Which windows of the tokens are the training samples. epoch: a grid of windows in "
		"random order, each once an epoch; the grid shifts every epoch. random: each "
		"sample begins at a random offset."},
	{WORDS("packing", "stream", T(packing), OPT_ARITH, PACKING_WORDS),
		.elsewhere = "reset-attention-mask reset-position-ids attn-mask-type", .help =
		"stream: a sample is one sequence, whatever documents its tokens are from. documents: "
		"attention does not cross from one document to another, and positions begin at 0 in "
		"each document. The samples are the same windows of the tokens."},
	{WORDS("empty-batch", "stop", T(empty_batch), OPT_RUN, EMPTY_BATCH_WORDS), .help =
		"What to do about a step in whose batch no token counts, of data that say which ones do. "
		"stop: the run ends. skip: nothing is computed and nothing updated, but the step counts."},
	{OPT_INT, 's', "seed", "N", "1", T(seed), OPT_ARITH, .help =
		"Seed of the initial parameters, the order of samples, and dropout."},
	{OPT_INT, 0, "readers", "N", "0", T(readers), OPT_REPLAY, 0, 1e6, .help =
		"Let N ranks read the data and send it to the others. 0: every rank reads its "
		"own."},
	{FLAG("data-per-rank", "no", T(data_per_rank), OPT_ARITH), .help =
		"Give rank r only the files r, r + ranks, and so on, where the data-parallel ranks "
		"of all workers are counted. The result then depends on their number. All files must "
		"have one vocabulary: that of characters is the text's, so prepare all texts in one "
		"call of pt-prepare, with --shard-size."},
	OPT_SPOOL_LIMIT(T(spool_limit), OPT_REPLAY),

	{OPT_GROUP, .name = "Batch"},
	{OPT_INT, 'b', "batch", "N", "12", T(batch), OPT_ARITH, 1, 1e12,
		.elsewhere = "batchsize batch-size global-batch-size train-batch-size", .help =
		"Global batch size: sequences of one optimizer step, over all ranks."},
	{OPT_INT, 0, "batch-per-rank", "N", "0", T(batch_per_rank), OPT_REPLAY, 0, 1e9, .help =
		"Set the batch to N sequences per data-parallel rank, as DDP scripts do, and "
		"--lr-scale-batch to N. 0: --batch says how many, on any number of ranks."},
	{OPT_INT, 'm', "micro-batch", "N", "0", T(micro_batch), OPT_ARITH, 0, 1e12,
		.elsewhere = "per-device-train-batch-size device-batch-size "
		"micro-batch-size local-batch-size train-micro-batch-size-per-gpu", .help =
		"Micro-batch size: sequences of one forward and backward pass. It must divide the "
		"batch; the micro-batches are distributed over the ranks, and each rank of --dp and "
		"--fsdp must have at least one. 0: an eighth of the batch, "
		"or the next smaller number that divides it."},
	{OPT_INT, 'n', "steps", "N", "2000", T(steps), OPT_ARITH, 0, MANY,
		.elsewhere = "num-steps num-train-steps total-steps train-steps "
		"train-iters max-iters max-steps training-steps num-iterations", .help =
		"Number of optimizer steps. 0 writes the initial checkpoint only."},

	{OPT_GROUP, .name = "Model"},
	{OPT_STR, 'p', "preset", "NAMES", NULL, T(preset), OPT_RUN, .help =
		"Begin with the options of a preset, a file in share/pt/presets: shakespeare-char, "
		"gpt2-124m, llama3-8b, and more; or of several, as in gpt2-124m,diloco. The config "
		"file and the command line override them."},
	{OPT_ENUM, 'a', "arch", NULL, "gpt2", M(arch), OPT_MODEL, .values = arch_names, .help =
		"Model architecture. pt-train trains gpt2 and llama; pt-check checks steps of all."},
	{OPT_INT, 0, "layers", "N", "4", M(layers), OPT_MODEL, 1, 100000,
		.elsewhere = "num-hidden-layers num-layers n-layer n-layers", .help =
		"Number of transformer layers."},
	{OPT_INT, 0, "heads", "N", "4", M(heads), OPT_MODEL, 1, 4095,
		.elsewhere = "num-attention-heads n-head n-heads num-heads", .help =
		"Number of attention heads. It must divide --dim, unless --head-dim is given, and be "
		"divisible by the virtual tp (--virtual, --tp or --tile)."},
	{OPT_INT, 0, "kv-heads", "N", "0", M(kv_heads), OPT_MODEL, 0, 4095,
		.elsewhere = "num-query-groups num-key-value-heads n-kv-heads", .help =
		"Number of key and value heads, for grouped-query attention. 0: as many as "
		"heads. It must divide --heads; of it and the virtual tp, one must be a multiple of the "
		"other."},
	{OPT_INT, 0, "head-dim", "N", "0", M(head_dim), OPT_MODEL, 0, 1 << 16,
		.elsewhere = "kv-channels", .help =
		"Channels of a head. 0: dim / heads."},
	{OPT_INT, 0, "dim", "N", "128", M(dim), OPT_MODEL, 1, 1 << 22,
		.elsewhere = "d-model hidden-size n-embd", .help =
		"Hidden size: the width of the residual stream."},
	{OPT_INT, 0, "ffn-dim", "N", "0", M(ffn_dim), OPT_MODEL, 0, 1 << 24,
		.elsewhere = "ffn-hidden-size intermediate-size", .help =
		"Hidden size of the feed-forward layers. 0: 4 dim for gpt2 and gemma; for others 8/3 dim, "
		"rounded up to a multiple of 256. It must be divisible by the virtual tp."},
	{OPT_INT, 'T', "context", "N", "64", M(context), OPT_MODEL, 1, 1 << 22,
		.elsewhere = "max-seq-length max-seq-len max-length context-length n-ctx n-positions "
		"seq-length sequence-length seq-len block-size max-position-embeddings", .help =
		"Sequence length in tokens. If a sequence is split (--cp, --virtual cp=N), it must be "
		"divisible by 2 x the virtual cp."},
	{OPT_INT, 0, "vocab", "N", "0", M(vocab), OPT_MODEL, 0, 1 << 24,
		.elsewhere = "vocab-size", .help =
		"Vocabulary size, for a --dry-run without data. With data, the model has their "
		"vocabulary, and a warning says so if it has another size."},
	{OPT_INT, 0, "vocab-multiple", "N", "1", M(vocab_multiple), OPT_MODEL, 1, 1 << 20, .help =
		"Pad the vocabulary to a multiple of N. Padding tokens are never predicted."},
	{OPT_ENUM, 0, "act", NULL, "by-arch", M(act), OPT_MODEL, .values = act_names, .help =
		"Activation function. by-arch: gelu-tanh for gpt2, geglu-tanh for gemma, else swiglu."},
	{OPT_ENUM, 0, "bias", NULL, "by-arch", M(bias), OPT_MODEL, .values = bias_names, .help =
		"Biases in linear layers and LayerNorm. qkv: of queries, keys and values only, as "
		"Qwen2 has them. attention: also of its output. by-arch: yes for gpt2, no for others."},
	{FLAG("qk-norm", "no", M(qk_norm), OPT_MODEL),
		.elsewhere = "qk-layernorm use-qk-norm", .help =
		"RMSNorm of each head of queries and keys, with a weight each that all heads share, "
		"before rotary positions; as Qwen3 has it."},
	{OPT_ENUM, 0, "tie", NULL, "by-arch", M(tie), OPT_MODEL, .values = by_arch_names, .help =
		"Tie the output layer to the token embedding. by-arch: yes for gpt2 and gemma."},
	{OPT_DOUBLE, 0, "dropout", "P", "0", M(dropout), OPT_ARITH, 0, 0.999,
		.elsewhere = "attention-dropout hidden-dropout", .help =
		"Dropout probability of embeddings, attention and residual branches."},
	{OPT_DOUBLE, 0, "norm-eps", "X", "0", M(norm_eps), OPT_MODEL, 0, 1,
		.elsewhere = "rms-norm-eps layernorm-epsilon norm-epsilon layer-norm-eps", .help =
		"Epsilon of LayerNorm and RMSNorm. 0: 1e-5, or the architecture's."},
	{OPT_ENUM, 0, "init", NULL, "by-arch", M(init), OPT_ARITH, .values = init_names, .help =
		"Weight initialisation. gpt2: normal with deviation 0.02, residual projections "
		"scaled by 1/sqrt(2 layers). llama: normal with deviation 0.02. depth: as "
		"torchtitan does, smaller in deeper layers."},
	{OPT_DOUBLE, 0, "rope-theta", "X", "10000", M(rope_theta), OPT_MODEL, 1, 1e12,
		.elsewhere = "rotary-base", .help =
		"Base of the rotary position embedding (RoPE)."},
	{OPT_INT, 0, "nope-every", "N", "0", M(nope_every), OPT_MODEL, 0, 100000,
		.elsewhere = "no-rope-layer-interval every-n-layers-nope no-rope-freq", .help =
		"Every Nth layer has no rotary positions, as in SmolLM3. 0: all layers have them."},
	{OPT_ENUM, 0, "rope-scaling", NULL, "none", M(rope_scaling), OPT_MODEL,
		.values = rope_scaling_names, .help =
		"Scale RoPE for longer contexts: linearly, as Llama 3.1 does, or as YaRN does."},
	{OPT_DOUBLE, 0, "rope-factor", "X", "8", M(rope_factor), OPT_MODEL, 1, 1e6, .help =
		"The factor of this scaling."},
	{OPT_DOUBLE, 0, "rope-low", "X", "1", M(rope_low), OPT_MODEL, 0.001, 1e6, .help =
		"llama3: wavelengths above rope-original/X are scaled by the whole factor."},
	{OPT_DOUBLE, 0, "rope-high", "X", "4", M(rope_high), OPT_MODEL, 0.001, 1e6, .help =
		"llama3: wavelengths below rope-original/X are not scaled."},
	{OPT_INT, 0, "rope-original", "N", "8192", M(rope_original), OPT_MODEL, 1, MANY, .help =
		"llama3, yarn: the context length before scaling."},
	{OPT_DOUBLE, 0, "rope-slow", "X", "1", M(rope_slow), OPT_MODEL, 0.001, 1e6,
		.elsewhere = "beta-slow", .help =
		"yarn: channels that rotate X times or less in rope-original positions are scaled whole."},
	{OPT_DOUBLE, 0, "rope-fast", "X", "32", M(rope_fast), OPT_MODEL, 0.001, 1e6,
		.elsewhere = "beta-fast", .help =
		"yarn: channels that rotate X times or more are not scaled."},
	{OPT_DOUBLE, 0, "rope-attention", "X", "0", M(rope_attention), OPT_MODEL, 0, 1e6,
		.elsewhere = "attention-factor", .help =
		"yarn: the factor of cosines and sines. 0: 0.1 log(rope-factor) + 1."},
	{OPT_DOUBLE, 0, "rope-local-theta", "X", "0", M(rope_local_theta), OPT_MODEL, 0, 1e12,
		.needs = "--sliding-window", .elsewhere = "rope-local-base-freq", .help =
		"Base of unscaled RoPE in layers with a window, as in Gemma 3. 0: rope-theta. Not trained."},
	{OPT_INT, 0, "rotary-channels", "N", "0", M(rotary), OPT_MODEL, 0, 1 << 16,
		.elsewhere = "partial-rotary-factor rotary-percent rotary-dim", .help =
		"Channels of a head that are rotated, as in Phi-4-mini: the first N/2 of each half. 0: all."},
	{OPT_DOUBLE, 0, "embedding-scale", "X", "0", M(embedding_scale), OPT_MODEL, 0, 1e6,
		.elsewhere = "embedding-multiplier", .help =
		"Factor of embeddings, as in Granite. 0: 1; for gemma the root of dim. Not trained."},
	{OPT_DOUBLE, 0, "residual-scale", "X", "0", M(residual_scale), OPT_MODEL, 0, 1e6,
		.elsewhere = "residual-multiplier", .help =
		"Factor of what a sublayer adds to the residual stream, as in Granite. 0: 1. Not trained."},
	{OPT_DOUBLE, 0, "attention-scale", "X", "0", M(attention_scale), OPT_MODEL, 0, 1e6,
		.elsewhere = "attention-multiplier query-pre-attn-scalar", .help =
		"Factor of attention scores. 0: 1 / the root of the channels of a head."},
	{OPT_DOUBLE, 0, "logit-scale", "X", "0", M(logit_scale), OPT_MODEL, 0, 1e6,
		.elsewhere = "logits-scaling", .help =
		"Factor of logits: 1 / Granite's logits_scaling. 0: 1. Not trained."},
	{OPT_DOUBLE, 0, "score-cap", "X", "0", M(score_cap), OPT_MODEL, 0, 1e6, .help =
		"Soft limit of attention scores, as in Gemma 2: X tanh(score / X). 0: none. Not trained."},
	{OPT_DOUBLE, 0, "logit-cap", "X", "0", M(logit_cap), OPT_MODEL, 0, 1e6, .help =
		"Soft limit of logits, as in Gemma 2. 0: none. Not trained."},
	{OPT_INT, 0, "sliding-window", "W", "0", M(window), OPT_MODEL, 0, 1 << 22,
		.elsewhere = "window-size", .help =
		"Sliding window: a token attends to the last W tokens, itself included, as in "
		"Mistral. 0: to all."},
	{OPT_INT, 0, "sliding-window-from", "L", "0", M(window_from), OPT_MODEL, 0, 100000,
		.elsewhere = "max-window-layers", .needs = "--sliding-window", .help =
		"The first layer with the window, as in Qwen2; layers before it attend to all tokens."},
	{OPT_INT, 0, "sliding-window-skip", "N", "0", M(window_skip), OPT_MODEL, -100000, 100000,
		.elsewhere = "window-attn-skip-freq sliding-window-pattern",
		.needs = "--sliding-window", .help =
		"Every Nth layer attends to all tokens, as in Gemma. -N: all but every Nth do, as in "
		"SmolLM3. 0: none."},

	{OPT_GROUP, .name = "Optimizer"},
	{OPT_ENUM, 0, "optimizer", NULL, "adamw", T(optimizer), OPT_ARITH,
		.values = optimizer_names,
		.elsewhere = "optim", .help =
		"The optimizer. sgd: with momentum, as in PyTorch. muon: the momentum of every "
		"matrix of a block is orthogonalized before the update; embeddings, head, norms "
		"and biases use AdamW."},
	{OPT_DOUBLE, 'l', "lr", "X", "1e-3", T(lr), OPT_ARITH, 0, 1e30,
		.elsewhere = "learning-rate", .help =
		"Peak learning rate."},
	{OPT_DOUBLE, 0, "min-lr", "X", "-1", T(min_lr), OPT_ARITH, -1, 1e30, .help =
		"Learning rate at the end of the decay. -1: a tenth of --lr."},
	{WORDS("lr-schedule", "cosine", T(lr_schedule), OPT_ARITH, LR_SCHEDULE_WORDS),
		.elsewhere = "lr-scheduler-type lr-scheduler lr-decay-style", .help =
		"Shape of the decay after the warmup. wsd: warmup, stable, decay over the last "
		"--wsd-decay steps."},
	{OPT_INT, 'w', "warmup", "N", "100", T(warmup), OPT_ARITH, 0, MANY,
		.elsewhere = "lr-warmup-steps num-warmup-steps warmup-steps warmup-iters lr-warmup-iters", .help =
		"Steps of linear warmup."},
	{OPT_INT, 0, "decay-steps", "N", "0", T(decay_steps), OPT_ARITH, 0, MANY,
		.elsewhere = "lr-decay-iters", .help =
		"The step at which the decay ends. 0: --steps."},
	{OPT_INT, 0, "wsd-decay", "N", "0", T(wsd_decay), OPT_ARITH, 0, MANY, .help =
		"wsd: steps of the decay. 0: a fifth of all steps."},
	{WORDS("wsd-shape", "linear", T(wsd_shape), OPT_ARITH, WSD_SHAPE_WORDS), .help =
		"wsd: shape of the decay, linear or 1 - sqrt (Haegele et al. 2024)."},
	{WORDS("lr-scale", "none", T(lr_scale), OPT_ARITH, LR_SCALE_WORDS),
		.needs = "--lr-scale-batch or --batch-per-rank", .help =
		"Multiply the learning rate by batch / --lr-scale-batch, or by its square root."},
	{OPT_INT, 0, "lr-scale-batch", "N", "0", T(lr_scale_batch), OPT_ARITH, 0, MANY, .help =
		"The batch size that --lr was chosen for."},
	{OPT_LIST, 0, "freeze", "REGEX", NULL, T(freeze), OPT_ARITH, .help =
		"Do not train the tensors whose names contain a match of this regular expression (PCRE2); "
		"pt-ckpt show prints their names. May be repeated. They have no gradient, no state of the "
		"optimizer, and no part in the gradient norm, and nothing is computed for layers below "
		"the lowest tensor that is trained, but their forward pass. One that matches no "
		"tensor is an error. An empty one: none."},
	{OPT_LIST, 0, "lr-scale-of", "REGEX=X", NULL, T(lr_scale_of), OPT_ARITH, .help =
		"Multiply the learning rate of such tensors by X, as PyTorch does with groups of "
		"parameters. May be repeated; of several that match, the last one counts. An empty one: none."},
	{OPT_DOUBLE, 0, "beta1", "X", "0.9", T(beta1), OPT_ARITH, 0, 0.999999,
		.elsewhere = "adam-beta1", .help =
		"adamw, muon: AdamW's decay rate of the first moment."},
	{OPT_DOUBLE, 0, "beta2", "X", "0.99", T(beta2), OPT_ARITH, 0, 0.9999999,
		.elsewhere = "adam-beta2", .help =
		"adamw, muon: AdamW's decay rate of the second moment."},
	{OPT_DOUBLE, 0, "eps", "X", "1e-8", T(eps), OPT_ARITH, 0, 1,
		.elsewhere = "adam-epsilon adam-eps", .help =
		"adamw, muon: AdamW's epsilon, added to the root of the second moment."},
	{OPT_DOUBLE, 0, "weight-decay", "X", "0.1", T(weight_decay), OPT_ARITH, 0, 1e6, .help =
		"Weight decay, of tensors of two dimensions only. adamw, muon: decoupled; sgd: "
		"added to the gradient."},
	{OPT_DOUBLE, 0, "momentum", "X", "-1", T(momentum), OPT_ARITH, -1, 0.999999,
		.needs = "--optimizer sgd or muon", .help =
		"sgd, muon: decay rate of the momentum. -1: 0.9 for sgd, 0.95 for muon. 0: sgd "
		"without momentum."},
	{WORDS("nesterov", "by-optimizer", T(nesterov), OPT_ARITH, NESTEROV_WORDS),
		.needs = "--optimizer sgd or muon", .help =
		"sgd, muon: Nesterov momentum. by-optimizer: yes for muon, no for sgd."},
	{WORDS("muon-scale", "match-adamw", T(muon_scale), OPT_ARITH, MUON_SCALE_WORDS),
		.needs = "--optimizer muon", .help =
		"muon: scale of the update of a matrix. match-adamw: 0.2 sqrt(max(rows, cols)), "
		"for the learning rates and weight decays of AdamW. original: sqrt(max(1, rows / "
		"cols)), for a learning rate of about 0.02."},
	{OPT_DOUBLE, 0, "clip", "X", "1", T(clip), OPT_ARITH, 0, 1e30,
		.elsewhere = "max-grad-norm grad-norm-clip gradient-clip-val "
		"clip-grad grad-clip max-norm gradient-clipping", .help =
		"Clip gradients to this global norm. 0: no clipping."},
	{OPT_DOUBLE, 0, "label-smoothing", "X", "0", T(label_smoothing), OPT_ARITH, 0, 0.999,
		.elsewhere = "label-smoothing-factor", .help =
		"Train towards 1 - X of the target and X of all tokens alike, as label_smoothing of "
		"PyTorch (Szegedy et al. 2016). The loss of training has it, that of evaluations not."},
	{OPT_DOUBLE, 0, "z-loss", "X", "0", T(z_loss), OPT_ARITH, 0, 1e6, .help =
		"Add X times the squared logarithm of the softmax's denominator to the loss of each token "
		"(PaLM, OLMo; there 1e-4 or 1e-5). The loss of training has it, that of evaluations not."},

	{OPT_GROUP, .name = "Precision"},
	{OPT_ENUM, 0, "dtype", NULL, "fp32", T(dtype), OPT_ARITH, .values = precision_names, .help =
		"Precision of matrix multiplications. bf16, fp16: operands and results are rounded "
		"and sums are fp32, as with torch.autocast. float8: as bf16, but the linear layers "
		"of the transformer layers have e4m3 operands, e5m2 gradients and a dynamic scale "
		"for each matrix (torchao's recipe tensorwise). Parameters, norms, softmax and the "
		"optimizer are always fp32, and samples are drawn in fp32."},
	{FLAG("float8-skip-ends", "yes", T(float8_skip_ends), OPT_ARITH), .help =
		"float8: keep the first and the last layer in bf16. The output layer always is. "
		"A model of one or two layers needs --no-float8-skip-ends."},
	{OPT_DOUBLE, 0, "loss-scale", "X", "65536", T(loss_scale), OPT_ARITH, 1e-4, 1e30, .help =
		"fp16: the initial loss scale. A step whose gradients overflow updates nothing and "
		"halves the scale."},
	{OPT_INT, 0, "loss-scale-window", "N", "2000", T(loss_scale_window), OPT_ARITH, 0, MANY,
		.help =
		"fp16: double the loss scale after N steps without overflow. 0: never."},
	{WORDS("kernels", "fused", T(kernels), OPT_ARITH, KERNELS_WORDS), .help =
		"fused: kernels that do several operations in one pass over memory, where there "
		"are such. ref: one kernel for each operation. On a CPU both give the same bits."},
	{WORDS("numerics", "exact", T(numerics), OPT_ARITH, NUMERICS_WORDS), .help =
		"How a GPU multiplies matrices. exact: with equal bits on any layout, and fp32 "
		"operands stay fp32. fast: sums may be split (split-K), and fp32 operands become "
		"TF32."},
	{OPT_STR, 0, "gemm-algorithms", "FILE", NULL, T(algorithms), 0,
		.files = "", .was = "algorithms", .help =
		"On a GPU, which cuBLASLt algorithm computes a matrix multiplication; the "
		"algorithm determines its bits. first: the one that cuBLASLt proposes first, the "
		"same on all ranks and in all runs. measure: the fastest, as measured by the first "
		"step, or by the first rank that has a multiplication of that shape. FILE: those "
		"of another run, its OUT/algorithms; a resumed run uses its own. Without the "
		"option: first; but measure with --numerics fast."},
	{OPT_STR, 0, "virtual", "AXES", NULL, M(virtual_degrees), OPT_ARITH, .help =
		"Virtual degrees of tensor and context parallelism, as in tp=4,cp=2: every weight "
		"is computed in tp slices and every sequence in cp chunks, on any number of ranks. "
		"An axis that is not named has its degree from --tp or --cp."},
	{WORDS("residual-dtype", "fp32", T(residual_dtype), OPT_ARITH, RESIDUAL_DTYPE_WORDS),
		.elsewhere = "fp32-residual-connection", .help =
		"bf16: the input of each transformer layer is rounded, kept in 16 bits and sent to "
		"the next stage of --pp in 16 bits; its gradient stays fp32. PyTorch's FSDP in bf16 "
		"rounds the whole residual stream."},
	{WORDS("cp-accumulate", "fp32", T(cp_accumulate), OPT_ARITH, CP_ACCUMULATE_WORDS), .help =
		"Precision in which context parallelism accumulates the attention output, and the "
		"gradients of queries, keys and values, from chunk to chunk. bf16 rounds after "
		"each chunk but the last, to see what that costs."},

	{OPT_GROUP, .name = "Parallel layout", .help =
		"With --virtual, none of these options changes what is computed. Without it, the "
		"virtual degrees are those of --tp (or --tile) and --cp."},
	{OPT_INT, 0, "dp", "N", "-1", T(axis[AXIS_DP]), OPT_REPLAY, -1, 1e6,
		.elsewhere = "data-parallel-replicate-degree", .help =
		"Data-parallel replicas: ranks with other samples and the same parameters. -1, for "
		"one axis only: all ranks that the other axes leave. With --dry-run, the ranks "
		"need not be started."},
	{OPT_INT, 0, "fsdp", "N", "1", T(axis[AXIS_FSDP]), OPT_REPLAY, -1, 1e6,
		.elsewhere = "data-parallel-shard-degree", .help =
		"Degree of fully sharded data parallelism: ranks with other samples that shard "
		"what --zero says."},
	{OPT_INT, 0, "cp", "N", "1", T(axis[AXIS_CP]), OPT_REPLAY, -1, 1024,
		.elsewhere = "context-parallel-size context-parallel-degree", .help =
		"Degree of context parallelism: ranks that split every sequence, zigzag: of 2N equal "
		"pieces, rank i has pieces i and 2N - 1 - i, which is equal work for all ranks under a "
		"causal mask."},
	{OPT_INT, 0, "tp", "N", "1", T(axis[AXIS_TP]), OPT_REPLAY, -1, 1024,
		.elsewhere = "tensor-model-parallel-size tensor-parallel-size tensor-parallel-degree", .help =
		"Degree of tensor parallelism: ranks that split every weight."},
	{OPT_INT, 0, "pp", "N", "1", T(axis[AXIS_PP]), OPT_REPLAY, -1, 1e5,
		.elsewhere = "pipeline-model-parallel-size pipeline-parallel-size pipeline-parallel-degree", .help =
		"Degree of pipeline parallelism: ranks that split the layers."},
	{OPT_INT, 0, "zero", "N", "-1", T(zero), OPT_REPLAY, -1, 3,
		.elsewhere = "zero-stage sharding-strategy", .help =
		"ZeRO stage: what the ranks of fsdp and cp shard. 0: nothing. 1: the optimizer "
		"state. 2: gradients too. 3: parameters too. A stage above 0 on several ranks of --dp "
		"needs --fsdp or --cp above 1. -1: 3 where --fsdp is more than 1, else 0."},
	{WORDS("fsdp-kind", "parameter", T(fsdp_kind), OPT_REPLAY, FSDP_KIND_WORDS), .help =
		"Shard each parameter (as FSDP2), or all parameters of a layer as one flat vector "
		"(as FSDP1)."},
	{WORDS("reshard-after-forward", "yes", T(reshard), OPT_REPLAY, RESHARD_WORDS), .help =
		"Free the parameters that --zero 3 gathered after the forward pass, and gather "
		"them again for the backward pass. keep-last: except those that the backward pass "
		"begins with. no is rejected with --tile and --offload params or all, which free "
		"parameters after use."},
	{WORDS("gather-dtype", "auto", T(gather_dtype), OPT_REPLAY, GATHER_DTYPE_WORDS), .help =
		"The type in which --zero 3 gathers the weights of linear layers. auto: bf16 or "
		"fp16 where --dtype rounds them to it anyway, and e4m3 for --dtype float8: fewer "
		"bytes and the same bits; but fp32 for float8 with --offload params or all. "
		"Embeddings, norms and biases are gathered in fp32."},
	{FLAG("sp", "yes", T(sp), OPT_REPLAY),
		.elsewhere = "sequence-parallel", .help =
		"Sequence parallelism: between the matrix multiplications of --tp, each rank has "
		"only its own rows."},
	{FLAG("async-tp", "yes", T(async_tp), OPT_REPLAY),
		.elsewhere = "tp-comm-overlap", .help =
		"Overlap the communication of --tp with the matrix multiplications next to it, in "
		"pieces of rows; in the backward pass, also with the weight gradients."},
	{WORDS("cp-comm", "ring", T(cp_comm), OPT_REPLAY, CP_COMM_WORDS), .help =
		"How --cp exchanges keys and values. ring: one chunk after the other, while the "
		"chunk before it is computed with. gather: all at once."},
	{OPT_ENUM, 0, "pp-schedule", NULL, "1f1b", T(pp_schedule), OPT_REPLAY,
		.values = schedule_kind_names,
		.elsewhere = "pipeline-parallel-schedule", .help =
		"Pipeline schedule: all forwards, then all backwards (gpipe); one forward, one "
		"backward in turn (1f1b); 1f1b with several stages per rank (interleaved). The zero "
		"bubble schedules compute weight gradients later, in the bubbles: zb-h1 is 1f1b, "
		"interleaved-zb is interleaved, and zbv has two stages per rank in a V."},
	{OPT_INT, 0, "pp-stages", "N", "0", T(pp_stages), OPT_REPLAY, 0, 1e5, .help =
		"Pipeline stages of each rank. There may be no more stages, --pp times this number, than "
		"layers. 0: 2 for interleaved, interleaved-zb and zbv, else "
		"1."},
	{WORDS("pp-split", "auto", T(pp_split), OPT_REPLAY, PP_SPLIT_WORDS), .help =
		"How layers are divided among the stages. auto: so that the slowest stage, which "
		"may be the one with the output layer, is as fast as possible. even: evenly."},
	{OPT_ENUM, 0, "recompute", NULL, "none", T(recompute), OPT_REPLAY,
		.values = recompute_names,
		.elsewhere = "gradient-checkpointing recompute-granularity activation-checkpointing", .help =
		"Activations that are recomputed in the backward pass instead of kept. selective: "
		"those that are cheap. matmuls: also the outputs of every second matrix "
		"multiplication, as with torchtitan's option op. full: all but the input of each "
		"layer. auto: the least that fits into --memory."},
	{OPT_INT, 0, "recompute-every", "N", "1", T(recompute_every), OPT_REPLAY, 1, 1e6,
		.needs = "--recompute", .help =
		"Recompute in every Nth block only, and keep the activations of the others."},
	{OPT_INT, 0, "tile", "N", "0", T(tile), OPT_REPLAY, 0, 1024, .help =
		"Gather, multiply and free large layers in N pieces, one after the other: the "
		"weights of the transformer layers, the embedding and the output layer, and their "
		"gradients. The pieces are virtual slices: with --tile N, --virtual tp is N unless "
		"it is given. N is a multiple of --tp, and larger. This needs parameters that are "
		"gathered or read (--fsdp with --zero 3, --offload params or all), a --virtual cp that "
		"equals --cp, and another --dtype than float8. 0: each layer at once."},
	{WORDS("offload", "none", T(offload), OPT_REPLAY, OFFLOAD_WORDS), .help =
		"What is offloaded: to files (--offload-to), or by a GPU without them to host memory. "
		"optimizer: the optimizer state. grads: gradients too, a layer at a time, as soon as "
		"its backward is done. params: optimizer state and parameters, which are read a "
		"layer at a time; this needs --zero 3, or parameters that are not sharded. all: all "
		"three."},
	{OPT_STR, 0, "offload-to", "DIRECTORY", NULL, T(offload_to), OPT_REPLAY,
		.files = "/", .needs = "--offload or --edit-offload", .help =
		"Directory for these files, on a fast disk of every host. The files have no names "
		"and vanish with the program."},
	{OPT_SIZE, 0, "memory", "BYTES", "0", T(memory), OPT_REPLAY, .help =
		"Memory limit of a rank, on its GPU if it has one. 0: its share of the free "
		"memory."},
	{OPT_INT, 't', "threads", "N", "0", T(threads), OPT_REPLAY, 0, 4096, .help =
		"Threads of a rank. 0: the processors of the host, divided among its ranks."},
	{WORDS("device", "auto", T(device), OPT_REPLAY, DEVICE_WORDS), .help =
		"Device to compute on. auto: a GPU if every rank of the host can have one and it "
		"supports all options, else the CPU. cuda: the ranks take the GPUs of their host "
		"in turn, and may share one."},
	{WORDS("comm", "auto", T(comm), OPT_REPLAY, COMM_LIBRARY_WORDS), .help =
		"What transfers data between GPUs. nccl: NCCL, from GPU to GPU. mpi: MPI, through "
		"the memory of the hosts. auto: NCCL, if it is installed and each rank has its own "
		"GPU (or NCCL_HOSTID, with which ranks may share one), else MPI."},
	{WORDS("self-test", "auto", T(self_test), 0, SELF_TEST_WORDS), .help =
		"On a GPU, before training, compare the kernels of this run, at its shapes and on "
		"random numbers, with those of the CPU, and stop if one is wrong. auto: once for "
		"each GPU model, driver, build and set of shapes; the result is kept in "
		"$XDG_CACHE_HOME/pt or ~/.cache/pt."},
	{FLAG("cuda-graph", "no", T(graph), 0), .was = "graph", .help =
		"On a GPU, capture the third step as a CUDA graph and launch that for all later "
		"steps. The bits stay the same. For models so small that kernel launches "
		"dominate. Several ranks need NCCL (--comm)."},
	{OPT_STR, 0, "profile", "FIRST:LAST", NULL, T(profile), 0, .help =
		"On a GPU, measure each kernel in these steps, which makes them slower, and print "
		"a table."},
	{OPT_STR, 0, "trace", "FILE", NULL, T(trace), 0, .files = ".json", .help =
		"Write a timeline of what each rank does, as JSON in the trace event format that "
		"Perfetto (ui.perfetto.dev) opens: computation by layer, waits, and the messages "
		"and collectives of each axis. On a GPU, a rank has two threads: the host, which "
		"enqueues kernels, and the GPU. Of local SGD, the first worker. With --cluster, the "
		"predicted timeline."},
	{OPT_STR, 0, "trace-steps", "FIRST:LAST", NULL, T(trace_steps), 0,
		.needs = "--trace", .help =
		"The steps of --trace, by default the third."},
	{OPT_STR, 0, "hash-tensors", "FILE", NULL, T(hash_tensors), 0, .files = "",
		.help =
		"To locate a wrong result: write to a file a hash of each parameter, activation, "
		"gradient and optimizer state of some steps, one a line, in the order of "
		"computation. The hashes do not depend on the layout, so diff of the files of two "
		"runs finds the first tensor that differs, as pt-compare --locate does. The run ends "
		"after the last of these steps. Not for local SGD."},
	{OPT_STR, 0, "hash-steps", "FIRST:LAST", NULL, T(hash_steps), 0,
		.needs = "--hash-tensors", .help =
		"The steps of --hash-tensors, by default the first."},
	{OPT_SIZE, 0, "bucket", "BYTES", "25M", T(bucket_bytes), OPT_REPLAY, .help =
		"Minimum size of the buckets in which gradients are reduced while the backward "
		"pass continues. Buckets of a small model may take more memory than its gradients; "
		"smaller ones need less."},
	{OPT_LIST, 0, "inject-delay", "RANK:MS[:PROB]", NULL, T(inject_delay), 0,
		.was = "straggle", .help =
		"Delay a rank by so many milliseconds in every step, or with a probability, to see "
		"what a straggler costs. RANK may be random: another rank in every step. May be "
		"given many times."},
	{OPT_STR, 0, "corrupt-batch", "WORKER:FIRST:LAST", NULL, T(corrupt_batch), OPT_ARITH,
		.was = "garble", .help =
		"Replace the tokens of a worker by random ones in steps FIRST to LAST, to see what "
		"bad data costs."},
	{OPT_DOUBLE, 0, "watchdog", "SECONDS", "600", T(watchdog), 0, 0, 1e9, .help =
		"Abort the job when a rank has waited this long for others without any progress, "
		"and print which ranks are missing in which operation. 0: wait for ever."},

	{OPT_GROUP, .name = "Local SGD (EDiT)", .help =
		"Each worker is a group of ranks with its own copy of the model and its share of "
		"every batch; the parallel layout above is that of one worker. pt-local-sgd(7) "
		"describes it."},
	{OPT_INT, 0, "edit-workers", "N", "0", T(edit.workers), OPT_ARITH, 0, 1e6, .help =
		"Number of workers that train independently and synchronise from time to time. 0: "
		"no local SGD."},
	{OPT_INT, 0, "edit-sync-interval", "N", "1", E(interval), OPT_ARITH, 1, 1e12,
		.needs = "--edit-workers", .help =
		"Steps between synchronisations."},
	{OPT_INT, 0, "edit-fragments", "N", "1", E(fragments), OPT_ARITH, 1, 1e4,
		.needs = "--edit-outer or --edit-reducer", .help =
		"Streaming: synchronise the model in N fragments, one at a time and each once in "
		"an interval, which spreads the communication over the interval."},
	{OPT_INT, 0, "edit-sync-delay", "N", "0", E(delay), OPT_ARITH, 0, MANY,
		.needs = "--edit-outer or --edit-reducer", .help =
		"Streaming: train N more steps while a fragment is being reduced."},
	{OPT_DOUBLE, 0, "edit-update-alpha", "FRACTION", "0.5", E(keep), OPT_ARITH, 0, 1,
		.needs = "--edit-sync-delay", .help =
		"Fraction of its own parameters that a worker keeps when it mixes in the reduced "
		"fragment."},
	{FLAG("edit-use-async", "no", T(edit.async), OPT_ARITH), .needs = "--edit-workers", .help =
		"Synchronise by the clock instead of after a number of steps (A-EDiT), so that no "
		"worker waits for a slow one in between. --steps counts those of the fastest "
		"worker; the others continue at its step."},
	{OPT_DOUBLE, 0, "edit-sync-time", "SECONDS", "600", T(edit.sync_time), OPT_ARITH, 0, 1e9,
		.needs = "--edit-use-async", .help =
		"Seconds between synchronisations."},
	{OPT_INT, 0, "edit-min-total-global-steps", "N", "100", T(edit.min_total), OPT_ARITH,
		1, MANY, .needs = "--edit-use-async", .help =
		"Synchronise only if all workers together have done at least N steps since the "
		"last time."},
	{FLAG("edit-use-step-weight", "no", E(weights.by_steps), OPT_ARITH),
		.needs = "--edit-use-async", .help =
		"Weight each worker by the number of its steps."},
	{OPT_DOUBLE, 0, "edit-step-weight-ratio", "FRACTION", "0.5", E(weights.steps_ratio),
		OPT_ARITH, 0, 1, .needs = "--edit-use-step-weight", .help =
		"Fraction of a worker's weight that its number of steps determines. Without "
		"--edit-reducer it is all of it."},
	{FLAG("edit-compat", "no", T(edit.compat), OPT_ARITH),
		.needs = "--edit-use-step-weight", .help =
		"Count all steps since the start, as atorch does, instead of those since the last "
		"synchronisation."},
	{OPT_STR, 0, "edit-replay", "DIRECTORY", NULL, T(edit.replay), 0,
		.files = "/", .needs = "--edit-use-async", .help =
		"Synchronise after the same steps as the run in this directory did, which "
		"reproduces it bit for bit."},
	{OPT_INT, 0, "edit-warmup-steps", "N", "0", T(edit.warmup), OPT_ARITH, 0, MANY,
		.needs = "--edit-workers", .help =
		"First steps that are plain data parallelism: gradients are averaged over all "
		"workers."},
	{FLAG("edit-global-loss", "no", T(edit.global_loss), OPT_RUN),
		.needs = "--edit-workers", .help =
		"Log the mean loss of all workers also after the warm-up, as data parallelism "
		"does, instead of each worker's own. Workers then wait for each other in every "
		"step that is logged."},
	{WORDS("edit-outer", "none", E(outer), OPT_ARITH, EDIT_OUTER_WORDS),
		.needs = "--edit-workers", .help =
		"Outer optimizer. It applies the pseudo-gradient, the difference between the "
		"parameters at the last synchronisation and the workers' parameters now, to the "
		"former. none: average the parameters."},
	{OPT_DOUBLE, 0, "edit-outer-lr", "RATE", "0.7", E(lr), OPT_ARITH, 0, 1e9,
		.needs = "--edit-outer", .help =
		"Learning rate of the outer optimizer."},
	{OPT_DOUBLE, 0, "edit-outer-momentum", "BETA", "0", E(momentum), OPT_ARITH, 0, 0.999999,
		.needs = "--edit-outer sgd", .help =
		"Momentum of the outer optimizer."},
	{OPT_DOUBLE, 0, "edit-outer-dampening", "FRACTION", "0", E(dampening), OPT_ARITH, 0, 1,
		.needs = "--edit-outer-momentum", .help =
		"Dampening of the momentum, as in PyTorch: all gradients but the first are "
		"multiplied by 1 minus this before they are added to it."},
	{FLAG("edit-outer-nesterov", "no", E(nesterov), OPT_ARITH),
		.needs = "--edit-outer-momentum", .help =
		"Use Nesterov momentum."},
	{OPT_DOUBLE, 0, "edit-outer-beta1", "BETA", "0.9", E(beta1), OPT_ARITH, 0, 0.999999,
		.needs = "--edit-outer adamw", .help =
		"Decay rate of its first moment."},
	{OPT_DOUBLE, 0, "edit-outer-beta2", "BETA", "0.99", E(beta2), OPT_ARITH, 0, 0.9999999,
		.needs = "--edit-outer adamw", .help =
		"Decay rate of its second moment."},
	{OPT_DOUBLE, 0, "edit-outer-eps", "EPS", "1e-8", E(eps), OPT_ARITH, 0, 1,
		.needs = "--edit-outer adamw", .help =
		"Epsilon, added to the root of its second moment."},
	{OPT_DOUBLE, 0, "edit-outer-decay", "RATE", "0", E(decay), OPT_ARITH, 0, 1e9,
		.needs = "--edit-outer", .help =
		"Weight decay of the outer optimizer, decoupled in adamw. 0 makes adamw Adam."},
	{WORDS("edit-reducer", "none", E(reducer), OPT_ARITH, EDIT_REDUCER_WORDS),
		.needs = "--edit-workers", .help =
		"How the workers' pseudo-gradients are reduced to one. none: their mean. linear: a "
		"weighted sum. gta: generalized task arithmetic, a weighted sum with a vote on "
		"signs."},
	{FLAG("edit-normalize", "yes", E(normalize), OPT_ARITH), .help =
		"linear, gta: divide by the sum of the weights."},
	{FLAG("edit-pseudo-gradnorm-reduce", "no", E(weights.by_norm), OPT_ARITH),
		.needs = "--edit-reducer linear or gta", .help =
		"Weight each worker by a softmax of minus the norms of the pseudo-gradients."},
	{OPT_DOUBLE, 0, "edit-softmax-temperature", "T", "0", E(weights.temperature), OPT_ARITH,
		0, 1e30, .needs = "--edit-reducer linear or gta", .help =
		"Temperature of this softmax: the norms are divided by it. 0: 1. Without "
		"--edit-pseudo-gradnorm-reduce, all weights are equal and sum to 1."},
	{WORDS("edit-consensus", "none", E(consensus), OPT_ARITH, CONSENSUS_WORDS),
		.needs = "--edit-reducer gta", .help =
		"Elements vote on their sign, by their sum or by their count, and those of the "
		"other sign are left out."},
	{WORDS("edit-sparsification", "none", E(sparsify), OPT_ARITH, EDIT_SPARSIFY_WORDS),
		.needs = "--edit-reducer gta", .help =
		"Which elements of a row a worker contributes: all, the largest, or random ones, "
		"which may be scaled up to make up for the others. magnitude-tensor: the largest of "
		"the whole matrix, and all of the size of the last."},
	{OPT_DOUBLE, 0, "edit-density", "FRACTION", "1", E(density), OPT_ARITH, 1e-6, 1,
		.needs = "--edit-sparsification", .help =
		"Fraction of the elements of a row, or of the matrix, that a worker contributes."},
	{WORDS("edit-wire", "fp32", E(wire), OPT_ARITH, EDIT_WIRE_WORDS),
		.needs = "--edit-outer or --edit-reducer", .help =
		"Format in which pseudo-gradients are sent: in full, in a half or a quarter of the "
		"bytes, or only the largest elements of each row. A worker keeps what was lost and "
		"adds it the next time (error feedback)."},
	{OPT_DOUBLE, 0, "edit-wire-density", "FRACTION", "0.015625", E(wire_density), OPT_ARITH,
		1e-6, 1, .needs = "--edit-wire sparse", .help =
		"Fraction of the elements of a row that are sent, at least one."},
	{OPT_DOUBLE, 0, "edit-clip-pseudo-grad", "NORM", "0", E(clip), OPT_ARITH, 0, 1e30,
		.needs = "--edit-outer or --edit-reducer", .help =
		"Clip the reduced pseudo-gradient to this norm. 0: no clipping."},
	{FLAG("edit-skip-anomaly", "no", E(skip_anomaly), OPT_ARITH),
		.needs = "--edit-outer or --edit-reducer", .help =
		"Leave out a worker whose pseudo-gradient norm is much larger than its earlier "
		"ones. If that is every worker, all return to the parameters of the last "
		"synchronisation. After 3 times in a row, they are included, and a warning says so. "
		"NaN and infinity are always left out, except where parameters are averaged (no "
		"outer optimizer and no reducer)."},
	{OPT_DOUBLE, 0, "edit-ewma-alpha", "GAIN", "0.02", E(detect.alpha), OPT_ARITH, 0, 1,
		.needs = "--edit-skip-anomaly", .help =
		"Gain of the exponentially weighted moving mean and variance of these norms."},
	{OPT_INT, 0, "edit-ewma-warmup", "N", "120", E(detect.warmup), OPT_ARITH, 0, 1e4,
		.needs = "--edit-skip-anomaly", .help =
		"Synchronisations before the first norm is judged; the variance is measured over "
		"them. Norms rise with the learning rate, so a new run whose --warmup takes more "
		"synchronisations than the default has as many as that takes, up to 10000."},
	{OPT_DOUBLE, 0, "edit-ewma-threshold", "Z", "3", E(detect.threshold), OPT_ARITH, 0, 1e30,
		.needs = "--edit-skip-anomaly", .help =
		"A norm this many standard deviations above the mean is an anomaly."},
	{FLAG("edit-by-unit", "yes", E(by_unit), OPT_ARITH), .help =
		"Compute norms, anomalies and clipping for each layer, the embedding and the "
		"output layer separately; else for the whole model."},
	{FLAG("edit-offload", "no", T(edit.offload), 0),
		.needs = "--edit-outer or --edit-reducer", .help =
		"Offload the anchor, the state of the outer optimizer and the residual of --edit-wire: "
		"to files on a CPU (--offload-to), to host memory on a GPU."},

	{OPT_GROUP, .name = "Evaluation"},
	{OPT_INT, 'e', "eval-every", "N", "250", T(eval_every), OPT_RUN, 0, MANY,
		.elsewhere = "eval-steps val-check-interval eval-interval", .help =
		"Evaluate every N steps, and at the end. 0: never."},
	{FLAG("eval-first", "no", T(eval_first), OPT_RUN), .needs = "--eval-every", .help =
		"Also evaluate before the first step, with a sample if there are samples."},
	{OPT_INT, 0, "eval-windows", "N", "240", T(eval_windows), OPT_ARITH, 0, MANY,
		.elsewhere = "eval-iters", .help =
		"Windows of each split that are evaluated, always the same ones, equally spaced. "
		"0: all that fit. No window is evaluated twice."},
	{FLAG("eval-only", "no", T(eval_only), 0), .help =
		"Evaluate the checkpoint of --resume or --init-from, and exit."},
	{OPT_INT, 0, "sample-every", "N", "0", T(sample_every), OPT_RUN, 0, MANY, .help =
		"Generate a sample every N steps. 0: never."},
	{OPT_INT, 0, "sample-tokens", "N", "200", T(sample_tokens), OPT_RUN, 1, 1e9, .help =
		"Length of a sample in tokens."},
	{OPT_STR, 0, "sample-prompt", "TEXT", "\n", T(sample_prompt), OPT_RUN, .help =
		"Prompt of the samples."},

	{OPT_GROUP, .name = "Runs and checkpoints"},
	{OPT_STR, 'o', "out", "DIRECTORY", NULL, T(out), 0, .files = "/",
		.elsewhere = "out-dir output-dir save-dir checkpoint-dir dump-folder", .help =
		"Run directory, for the journal, run.h5 and checkpoints. Without it, the first of "
		"run-001, run-002, ... that does not exist."},
	{FLAG("overwrite", "no", T(overwrite), 0), .help =
		"Start a new run in a directory that already holds one."},
	{OPT_STR, 'r', "resume", "CHECKPOINT", NULL, T(resume), OPT_REPLAY, .files = ".h5",
		.elsewhere = "resume-from-checkpoint resume-from load-checkpoint", .help =
		"Resume from a checkpoint, with its saved options unless others are given. auto: "
		"from the newest valid checkpoint in --out, or start from scratch if there is "
		"none."},
	{FLAG("resume-exact", "no", T(resume_exact), 0), .needs = "--resume", .help =
		"Refuse to resume with other options that determine results than the "
		"checkpoint's, or with other data. Other --steps are refused if the learning rate so far depended on "
		"them. Without this option, a layout may change the virtual degrees and the "
		"micro-batch size, and a warning says so."},
	{OPT_STR, 0, "init-from", "MODEL", NULL, T(init_from), OPT_REPLAY,
		.files = "", .help =
		"Start a new run with the weights of a checkpoint, or of a model that pt-ckpt convert "
		"reads, such as a directory of Hugging Face, and with its model options. Others are "
		"refused, but for --context, --rope-*, --dropout and --norm-eps."},
	{WORDS("ckpt-load", "each", T(load), 0, LOAD_WORDS), .was = "load", .help =
		"Who reads a checkpoint: each rank, or rank 0, which broadcasts it to hosts that "
		"share no file system. Local SGD: rank 0 of each worker."},
	{FLAG("ckpt", "yes", T(ckpt), 0), .help =
		"Write checkpoints. With --no-ckpt, not even the last one is written."},
	{OPT_INT, 'c', "ckpt-every", "N", "0", T(ckpt_every), OPT_RUN, 0, MANY,
		.elsewhere = "save-steps save-every save-interval checkpoint-interval", .help =
		"Write a checkpoint every N steps. 0: only by time, and at the end."},
	{OPT_INT, 0, "ckpt-syncs", "N", "0", T(ckpt_syncs), OPT_RUN, 0, MANY,
		.needs = "--edit-workers", .help =
		"Local SGD: write a checkpoint after every Nth synchronisation, and at the end of "
		"its warmup. 0: only as the other options say."},
	{WORDS("edit-ckpt", "group", T(edit.ckpt), OPT_RUN, EDIT_CKPT_WORDS),
		.needs = "--edit-workers", .help =
		"Local SGD: who writes checkpoints, each worker its own, or only the first worker, "
		"from whose checkpoint all resume. With rank0 they resume from their last "
		"synchronisation, with the optimizer state of the first worker."},
	{OPT_DOUBLE, 0, "ckpt-secs", "SECONDS", "600", T(ckpt_secs), OPT_RUN, 0, 1e9, .help =
		"Write a checkpoint when the last one is this old. 0: never."},
	{FLAG("ckpt-best", "yes", T(ckpt_best), OPT_RUN), .help =
		"Write a checkpoint when the validation loss is the lowest so far, and let best.h5 "
		"point at it."},
	{FLAG("ckpt-wait", "no", T(ckpt_wait), 0), .help =
		"Pause training while a checkpoint is written. Without it, a copy of the state is "
		"written in the background."},
	{OPT_INT, 'k', "keep", "N", "2", T(keep), OPT_RUN, 0, 1e6,
		.elsewhere = "save-total-limit", .help =
		"Keep the last N checkpoints and the best. 0: all."},

	{OPT_GROUP, .name = "Log"},
	{OPT_INT, 0, "log-every", "N", "10", T(log_every), OPT_RUN, 1, MANY,
		.elsewhere = "logging-steps print-every log-interval log-freq", .help =
		"Log every N steps, and the first and the last step."},
	{WORDS("log-format", "auto", T(log_format), 0, LOG_FORMAT_WORDS), .help =
		"What standard output gets of a row. full: all columns, as the journal. short: step, "
		"losses, learning rate, tokens per second and the time left, in the same form. auto: "
		"short on a terminal, else full; so under mpiexec, which is a pipe, full."},
	{FLAG("columns", "no", T(columns), 0), .help =
		"Print what each column of the log means, and exit."},
	{OPT_STR, 0, "tensorboard", "DIRECTORY", NULL, T(tensorboard), 0, .files = "/",
		.elsewhere = "logging-dir tensorboard-dir", .help =
		"Write each row of the log to an event file of TensorBoard in this directory, too; "
		"of local SGD, that of other workers than the first in worker-N below it. A run that "
		"is resumed begins another file there, and TensorBoard shows the rows after the "
		"checkpoint from that one only, but of whole numbers (tokens, memory) those of both."},
	{OPT_DOUBLE, 0, "publish-secs", "SECONDS", "30", T(publish_secs), OPT_RUN, 0, 1e9, .help =
		"Rewrite run.h5 when it is this much older than the journal, or less often where "
		"that would take more than a twentieth of the time."},
	{OPT_INT, 0, "check-replicas-every", "N", "0", T(check_replicas_every), OPT_RUN, 0, MANY, .help =
		"Compare a hash of the parameters across ranks every N steps, and stop if they "
		"differ. 0: never."},
	{OPT_STR, 0, "peak-flops", "FLOPS", NULL, T(peak_flops), 0, .help =
		"Peak FLOP/s of one rank, the denominator of mfu; measure: the rate of a large "
		"matrix multiplication, measured at the start. Without it, for a GPU, the value of "
		"its data sheet or a measurement; for a CPU, mfu is not logged."},
	{FLAG("log-all-ranks", "no", T(log_all_ranks), 0), .help =
		"Print the messages of all ranks, not only of rank 0."},
	{OPT_FLAG, 'v', "verbose", NULL, "no", T(verbose), 0, .help =
		"At the start, also list the tensors of the model, and the versions of libraries. "
		"With --dry-run, list the tensors of a layer too. With local SGD, also say what each "
		"synchronisation left out and clipped, as the journal does."},
	{FLAG("dry-run", "no", T(dry_run), 0), .help =
		"Print the memory, work and communication that the run would need, and exit, with 1 "
		"if the run needs more than --memory."},
	{OPT_STR, 0, "cluster", "NAME,KEY=VALUE,...", NULL, T(cluster), 0,
		.needs = "--dry-run", .help =
		"Also predict the time of a step on such devices, and how much of its communication "
		"is exposed, that is not hidden by computation. NAME: h100, h200, b200, a100 or cpu; "
		"with --device auto, the plan is for that device. Keys, for other values than the name's: gpus, of a host, or ranks of a host of "
		"CPUs; nvlink and net, the bandwidth of a "
		"GPU in each direction, within its host and to others, in GB/s, or GB/s:us with the "
		"latency in microseconds; memory, of a GPU, and pcie, between it and the host's memory, "
		"in GB/s; efficiency, the rate of "
		"matmuls over the peak, and attention, if that of attention is another; flops, the peak of a GPU or a "
		"core in GFLOP/s; cores, of a host, which its ranks share; capacity, the bytes of "
		"memory that a rank can use, for pt-plan."},
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

/* For the manual: by group, the options that are saved with a run. */
static void list_saved(FILE *f)
{
	const struct opt *group = NULL, *said = NULL;
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (const struct opt *t = options; t->type != OPT_END; t++) {
		if (t->type == OPT_GROUP)
			group = t;
		if (t->type == OPT_GROUP || !(t->flags & OPT_RUN))
			continue;
		if (said == group)
			fputs(" ,\n", f);
		else
			fprintf(f, "%s.It %s\n", said ? "\n" : "", group->name);
		fprintf(f, ".Fl -%s", t->name);
		said = group;
	}
	fputs("\n.El\n", f);
}

static void generate(int kind, FILE *f)
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
	.generate = generate,
	.kinds = (const char *const[]){"saved", "absent", NULL},
};
