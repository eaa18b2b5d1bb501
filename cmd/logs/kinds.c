/* The lines of trainers whose logs have numbers behind fixed labels. */
#include "logs/logs_internal.h"

#define END_LABELS               \
	{                        \
		NULL, NULL, NULL \
	}
#define END_KINDS            \
	{                    \
		.mark = NULL \
	}

/* "step: 10  loss:  7.1234  grad_norm:  1.2345  memory:  1.37GiB(1.44%)  tps: 30,123
 * tflops: 12.34  mfu: 3.95%"; tps is per GPU, and was called wps. */
static const struct label torchtitan_train[] = {
	{"loss: ", "loss", NULL},
	{"grad_norm: ", "grad_norm", NULL},
	{"memory: ", "mem", "GiB"},
	{"tps: ", "tps_per_gpu", NULL},
	{"wps: ", "tps_per_gpu", NULL},
	{"tflops: ", "tflops", NULL},
	{"mfu: ", "mfu", "%"},
	END_LABELS,
};
static const struct label torchtitan_val[] = {{"loss: ", "val_loss", NULL}, END_LABELS};
const struct line_kind torchtitan_kinds[] = {
	{"validate step: ", "  loss: ", false, torchtitan_val},
	{"step: ", "  loss: ", true, torchtitan_train},
	END_KINDS,
};

/* "iter 10: loss 3.1234, time 123.45ms, mfu 12.34%", "step 0: train loss 4.1234, val loss
 * 4.2345" */
static const struct label nanogpt_train[] = {
	{"loss ", "loss", NULL},
	{"time ", "dt", "ms"},
	{"mfu ", "mfu", "%"},
	{"grad_norm ", "grad_norm", NULL}, /* of programs derived from it */
	{"lr ", "lr", NULL},
	END_LABELS,
};
static const struct label nanogpt_val[] = {
	{"train loss ", "train_loss", NULL},
	{"val loss ", "val_loss", NULL},
	END_LABELS,
};
const struct line_kind nanogpt_kinds[] = {
	{"iter ", ": loss ", true, nanogpt_train},
	{"step ", ", val loss ", false, nanogpt_val},
	END_KINDS,
};

/* "step 00010/01000 (1.00%) | loss: 9.123456 | lrm: 1.00 | dt: 123.45ms | tok/sec: 1,234,567 |
 * bf16_mfu: 45.67 | ...", "Step 00250 | Validation bpb: 1.234567"; its earlier chat_sft: "Step
 * 00010/00700 | Training loss: 1.234567| lrm: 0.985714| num_tokens: 12,345" */
static const struct label nanochat_train[] = {
	{"loss: ", "loss", NULL},
	{"grad norm: ", "grad_norm", NULL},
	{"lrm: ", "lrm", NULL},
	{"dt: ", "dt", "ms"},
	{"tok/sec: ", "tps", NULL},
	{"bf16_mfu: ", "mfu", "%"},
	{"mfu: ", "mfu", "%"},
	{"epoch: ", "epoch", NULL},
	END_LABELS,
};
static const struct label nanochat_val[] = {
	{"Validation bpb: ", "val_bpb", NULL},
	{"Validation loss: ", "val_loss", NULL},
	{"CORE metric: ", "core_metric", NULL},
	{"ChatCORE: ", "chatcore", NULL},
	{"ChatCORE_cat: ", "chatcore_cat", NULL},
	END_LABELS,
};
static const struct label nanochat_sft[] = {
	{"Training loss: ", "loss", NULL},
	{"lrm: ", "lrm", NULL},
	{"num_tokens: ", "batch_tokens", NULL},
	END_LABELS,
};
const struct line_kind nanochat_kinds[] = {
	{"step ", "| loss: ", true, nanochat_train},
	{"Step ", "| Training loss: ", true, nanochat_sft},
	{"Step ", NULL, false, nanochat_val},
	END_KINDS,
};

/* "step:125/1390 val_loss:4.1234 train_time:12345ms step_avg:123.45ms" */
static const struct label modded_labels[] = {
	{"train_loss:", "loss", NULL},
	{"val_loss:", "val_loss", NULL},
	{"train_time:", "train_time", "time"},
	{"step_avg:", "dt", "time"},
	END_LABELS,
};
const struct line_kind modded_kinds[] = {
	{"step:", "train_loss:", true, modded_labels},
	{"step:", "_time:", false, modded_labels},
	{"step:", "val_loss:", false, modded_labels},
	END_KINDS,
};

/* main.log: "s:250 tel:6.5123", "s:250 trl:6.1234 lr:0.000171 norm:1.14". Standard output of the
 * CUDA, float32 CUDA, C and Python programs: "step 1/10 | loss 4.368700 (+nanz)| norm 15.3668
 * (+nanz)| lr 3.00e-04 | 12.34 ms | 45.6% bf16 MFU | 123456 tok/s", "step 1/74: train loss 4.367631
 * (80.639749 ms, 50822 tok/s)", "step 0: train loss 5.356189 (took 1452.121000 ms)", "step 1/10 |
 * train loss 4.368700 | norm 15.3668 | lr 1.00e-04 | (35.91 ms | 1000 tok/s)". */
static const struct label llmc_file[] = {
	{"trl:", "loss", NULL},
	{"tel:", "val_loss", NULL},
	{"eval:", "hellaswag", NULL},
	{"lr:", "lr", NULL},
	{"norm:", "grad_norm", NULL},
	END_LABELS,
};
static const struct label llmc_stdout[] = {
	{"train loss ", "loss", NULL},
	{"loss ", "loss", NULL},
	{"norm ", "grad_norm", NULL},
	{"lr ", "lr", NULL},
	END_LABELS,
};
static const struct line_kind llmc_kinds[] = {
	{"s:", "trl:", true, llmc_file},
	{"s:", NULL, false, llmc_file},
	{"step ", " ms", true, llmc_stdout},
	END_KINDS,
};

/* "[T] step     1 [ 0.1%] | time:   123 ms | norm   1.234567 | loss  11.012345 | tps 12345 | sol
 * 50.1%", "[V] step   100 [10.0%] | time: 123 ms | eval 4.123456 | train 4.234567 | tps 12345", and
 * a file of JSON objects, one per line. */
static const struct label llmq_train[] = {
	{"time: ", "dt", "time"},
	{"norm ", "grad_norm", NULL},
	{"loss ", "loss", NULL},
	{"tps ", "tps", "count"},
	{"sol ", "sol", "%"},
	END_LABELS,
};
static const struct label llmq_val[] = {
	{"eval ", "val_loss", NULL},
	{"train ", "mean_loss", NULL},
	END_LABELS,
};
static const struct label llmq_json_train[] = {
	{"\"duration_ms\": ", "dt", "ms"},
	{"\"norm\": ", "grad_norm", NULL},
	{"\"loss\": ", "loss", NULL},
	{"\"lr\": ", "lr", NULL},
	{"\"step_tokens\": ", "step_tokens", NULL},
	{"\"lse_max\": ", "lse_max", NULL},
	{"\"lse_mean\": ", "lse_mean", NULL},
	{"\"loss_1k\": ", "loss_1k", NULL},
	END_LABELS,
};
static const struct label llmq_json_val[] = {
	{"\"loss\": ", "val_loss", NULL},
	{"\"loss_1k\": ", "val_loss_1k", NULL},
	END_LABELS,
};
static const struct line_kind llmq_kinds[] = {
	{"[T] step ", " loss ", true, llmq_train},
	{"[V] step ", " eval ", false, llmq_val},
	{"\"step\": ", "\"log\": \"step\"", true, llmq_json_train, .whole = true},
	{"\"step\": ", "\"log\": \"eval\"", false, llmq_json_val, .whole = true},
	END_KINDS,
};

/* "completed step: 5, seconds: 0.512, TFLOP/s/device: 55.123, Tokens/s/device: 1234.567,
 * total_weights: 65536, loss: 10.123", "Completed eval after train step 5, loss=10.123, ..." */
static const struct label maxtext_train[] = {
	{"seconds: ", "dt", NULL},
	{"TFLOP/s/device: ", "tflops", NULL},
	{"TFLOP/s: ", "tflops", NULL}, /* its earlier name */
	{"Tokens/s/device: ", "tps_per_gpu", NULL},
	{"total_weights: ", "total_weights", NULL},
	{"loss: ", "loss", NULL},
	{"lm_loss: ", "lm_loss", NULL},
	{"moe_lb_loss: ", "moe_lb_loss", NULL},
	{"main_model_loss: ", "main_model_loss", NULL},
	{"mtp_loss: ", "mtp_loss", NULL},
	{"perplexity: ", "perplexity", NULL},
	END_LABELS,
};
static const struct label maxtext_val[] = {
	{"loss=", "val_loss", NULL},
	{"perplexity=", "val_perplexity", NULL},
	END_LABELS,
};
const struct line_kind maxtext_kinds[] = {
	{"completed step: ", "seconds: ", true, maxtext_train},
	{"Completed eval after train step ", ", loss=", false, maxtext_val},
	{"eval metrics after step: ", ", loss=", false, maxtext_val},
	END_KINDS,
};

/* "[rank 0] Step: 1     | Loss: 10.5312 | Global batch size:   32.8K | Tokens/s:   120.5K |
 * Tokens/s/GPU:   15.1K | Tokens:   32.8K/1M | MFU:  5.25% | Memory usage:   4.75GB" */
static const struct label picotron_train[] = {
	{"Loss: ", "loss", NULL},
	{"Tokens/s: ", "tps", "count"},
	{"Tokens/s/GPU: ", "tps_per_gpu", "count"},
	{"Tokens: ", "tokens", "count"},
	{"Memory usage: ", "mem", "B"},
	{"MFU: ", "mfu", "%"},
	END_LABELS,
};
const struct line_kind picotron_kinds[] = {
	{"Step: ", "| Loss: ", true, picotron_train},
	END_KINDS,
};

/* "[2026-01-01 10:00:00,819] [INFO] [logging.py:60:log_dist] [Rank 0] step=10, skipped=0, lr=[1.5e-06, 1.5e-06],
 * mom=[[0.9, 0.95]]", "[...:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=7.9, CurrSamplesPerSec=8.0,
 * MemAllocated=9.5GB, MaxMemAllocated=13.5GB", "steps: 10 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706" */
static const struct label deepspeed_train[] = {
	{"lm loss: ", "lm_loss", NULL},
	{"loss: ", "loss", NULL},
	{"moe loss: ", "moe_loss", NULL},
	{"iter time (s): ", "dt", NULL},
	{"samples/sec: ", "sps", NULL},
	END_LABELS,
};
static const struct label deepspeed_rates[] = {
	{"lr=[", "lr", NULL}, /* of the first group */
	{"skipped=", "skipped", NULL},
	END_LABELS,
};
static const struct label deepspeed_timer[] = {
	{"CurrSamplesPerSec=", "sps", NULL},
	{"MaxMemAllocated=", "mem", "GiB"},
	END_LABELS,
};
const struct line_kind deepspeed_kinds[] = {
	{"steps: ", "iter time (s): ", true, deepspeed_train},
	{"step=", "skipped=", false, deepspeed_rates},
	{"global_step=", "CurrSamplesPerSec=", false, deepspeed_timer},
	END_KINDS,
};

/* " iteration       10/     100 | consumed samples: 320 | elapsed time per iteration (ms): 123.4 |
 * learning rate: 1.5E-04 | global batch size: 32 | lm loss: 1.08E+01 | ...", " validation loss at
 * iteration 100 | lm loss value: 3.4E+00 | ..." */
static const struct fields bars = {':', '|', false, NULL};
const struct line_kind megatron_kinds[] = {
	{"validation loss at iteration ", "|", false, .fields = &bars},
	{"iteration ", "|", true, .fields = &bars},
	END_KINDS,
};

/* "2026-08-10 15:55:20 | INFO | root | step 9 | epoch 0 | loss 0.6974 | grad_norm 1.5436 | lr 1.00e-05 | mem 24.90 GiB |
 * tps 11278.56(1409.82/gpu) | num_label_tokens 21541", and of an evaluation, behind "[val]" */
static const struct label automodel_train[] = {
	{"loss ", "loss", NULL},
	{"grad_norm ", "grad_norm", NULL},
	{"lr ", "lr", NULL},
	{"mem ", "mem", "GiB"},
	{"tps ", "tps", NULL},
	END_LABELS,
};
static const struct label automodel_val[] = {{"loss ", "val_loss", NULL}, END_LABELS};
const struct line_kind automodel_kinds[] = {
	{"step ", "[val]", false, automodel_val, .whole = true},
	{"step ", "| num_label_tokens ", true, automodel_train},
	END_KINDS,
};

/* "(TaskRunner pid=1) step:34 - actor/pg_loss:np.float64(0.04) - critic/rewards/mean:0.9 - perf/throughput:367.5" */
static const struct fields words = {':', ' ', false, NULL};
const struct line_kind verl_kinds[] = {
	{"step:", " - ", true, .fields = &words},
	END_KINDS,
};

/* "Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 28 |
 * reduced_train_loss: 2.778 | train_step_timing in s: 0.189 | consumed_samples: 928 | val_loss: 2.861": the
 * iteration is that of the epoch. */
const struct line_kind nemo_kinds[] = {
	{"global_step: ", "loss: ", true, .fields = &bars, .whole = true},
	END_KINDS,
};

/* "iteration: 5 / 100 | consumed_tokens: 1.31M | elapsed_time_per_iteration_ms: 1.02K | tokens_per_sec: 257K |
 * lm_loss: 10.5 | lr: 0.0003 | grad_norm: 0.86 | ..." */
static const struct fields nanotron_fields = {':', '|', true, "lm_loss"};
const struct line_kind nanotron_kinds[] = {
	{"iteration: ", "| lm_loss: ", true, .fields = &nanotron_fields},
	END_KINDS,
};

/* "Step 16 | loss:1.25 lr:2e-05 tokens_per_second_per_gpu:812.5 ", and the progress bar "1|16|Loss: 1.25:   1%|" */
static const struct label torchtune_bar[] = {{"Loss: ", "loss", NULL}, END_LABELS};
const struct line_kind torchtune_kinds[] = {
	{"Step ", "| ", true, .fields = &words},
	{"|", "|Loss: ", true, torchtune_bar},
	END_KINDS,
};

/* "Epoch 1 | iter 16 step 4 | loss train: 3.250, val: 3.375 | iter time: 45.50 ms (step) ...", where val is that of the
 * last evaluation: "iter 16: val loss 3.3750, val time: 112.25 ms" */
static const struct label litgpt_train[] = {
	{"loss train: ", "loss", NULL},
	{"iter time: ", "dt", "ms"},
	END_LABELS,
};
static const struct label litgpt_val[] = {{"val loss ", "val_loss", NULL}, END_LABELS};
const struct line_kind litgpt_kinds[] = {
	{"iter ", "| loss train: ", true, litgpt_train},
	{"iter ", ": val loss ", false, litgpt_val},
	END_KINDS,
};

/* "| epoch 001:  100 / 1000 loss=9.255, ppl=611.1, wps=57.3, num_updates=100, lr=2.8e-05, gnorm=3.2, ...", the
 * same in a progress bar, "| valid on 'valid' subset | loss 9.5 | ... | num_updates 100", and at the end of an
 * epoch its means: "epoch 001 | loss 9.75 | ... | num_updates 100 | ..." */
static const struct label fairseq_train[] = {
	{"loss=", "loss", NULL},
	{"nll_loss=", "nll_loss", NULL},
	{"ppl=", "ppl", NULL},
	{"wps=", "tps", NULL},
	{"lr=", "lr", NULL},
	{"gnorm=", "grad_norm", NULL},
	{"loss_scale=", "loss_scale", NULL},
	END_LABELS,
};
static const struct label fairseq_val[] = {
	{"loss ", "val_loss", NULL},
	{"valid_loss ", "val_loss", NULL},
	END_LABELS,
};
static const struct label fairseq_mean[] = {{"loss ", "mean_loss", NULL}, END_LABELS};
const struct line_kind fairseq_kinds[] = {
	{"num_updates=", " loss=", true, fairseq_train, .whole = true},
	{"num_updates ", "| valid on ", false, fairseq_val, .whole = true},
	{"num_updates ", "| loss ", false, fairseq_mean, .whole = true},
	END_KINDS,
};

/* The program prints "val loss 4.123456" before the step that follows the evaluation. */
static void take_lone_val_loss(struct build *b, struct span line)
{
	double v;
	const char *p = span_begins(line, "val loss ")
				? scan_number((struct span){line.p + 9, line.n - 9}, &v)
				: NULL;
	if (!p || span_trim((struct span){p, (size_t)(line.p + line.n - p)}).n)
		return;
	build_set(b, max64(b->trained, 0), SPAN("val_loss"), v);
}

/* The numbers before " ms" and " tok/s". */
static void set_before(struct build *b, struct span line, const char *unit,
	struct span name, double scale)
{
	const char *at = span_find(line, unit), *p = at;
	double v;
	while (p && p > line.p && (p[-1] == '.' || (p[-1] >= '0' && p[-1] <= '9')))
		p--;
	if (p && p < at && scan_double(p, at, &v) == at)
		build_set(b, b->step, name, scaled(v, scale));
}

bool line_llmc(struct build *b, struct span line)
{
	if (!take_kinds(b, line, llmc_kinds)) {
		take_lone_val_loss(b, line);
		return false;
	}
	set_before(b, line, " ms", SPAN("dt"), 1e-3);
	set_before(b, line, " tok/s", SPAN("tps"), 1);
	set_before(b, line, "% bf16 MFU", SPAN("mfu"), 1e-2);
	return true;
}

/* {"log": "option", "time": "...", "step": 0, "name": "seq-len", "value": 1024} */
static void take_option(struct build *b, struct span line)
{
	static const char name[] = "\"name\": \"", value[] = "\"value\": ";
	const char *end = line.p + line.n, *p = span_find(line, name);
	const char *v = span_find(line, value);
	if (!span_find(line, "\"log\": \"option\"") || !p || !v)
		return;
	p += sizeof(name) - 1;
	v += sizeof(value) - 1;
	const char *quote = memchr(p, '"', (size_t)(end - p));
	const char *key =
		quote ? name_of_setting((struct span){p, (size_t)(quote - p)}) : NULL;
	struct span text = {v, 0};
	while (v + text.n < end && v[text.n] != '}' && v[text.n] != ',')
		text.n++;
	if (text.n >= 2 && *text.p == '"')
		text = (struct span){text.p + 1, text.n - 2};
	if (key)
		build_setting(b, key, text);
}

bool line_llmq(struct build *b, struct span line)
{
	if (take_kinds(b, line, llmq_kinds))
		return true;
	take_option(b, line);
	return false;
}
