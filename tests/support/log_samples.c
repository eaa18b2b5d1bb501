/* Logs of every format, in texts made here in its form. */
#include "tests/support/logs.h"

#include <math.h>

/* clang-format off */
const struct log_sample log_samples[] = {
	{"wordplay",
		"[2024-07-17 07:40:12.345][\x1b[32mINFO\x1b[0m][configs:442] Tokens per iteration: 65,536\n"
		"[2024-07-17 07:40:13.1][\x1b[32mINFO\x1b[0m][trainer:868] - step=0 loss=4.2512 dt=0.2834 dtf=0.0051 "
		"dtb=0.0112 sps=14.1 sps_per_gpu=3.5 tps=926851 tps_per_gpu=231712.75 mfu=46.288 train_loss=4.3 val_loss=4.4\n"
		"a line between\n"
		"[2024-07-17 07:40:14.2][\x1b[32mINFO\x1b[0m][trainer:868] - \x1b[1mstep=10\x1b[0m loss=3.1234 dt=0.28\n",
		2, 5,
		{{0, "loss", 4.2512}, {0, "dt_forward", 0.0051}, {0, "dt_backward", 0.0112}, {0, "mfu", 0.46288},
		 {0, "tps_per_gpu", 231712.75}, {0, "train_loss", 4.3}, {0, "val_loss", 4.4}, {10, "loss", 3.1234},
		 {10, "dt", 0.28}},
		"tokens-per-step = 65536\n", 0},
	/* ezpz; broken by rich; a spread in parentheses */
	{"wordplay",
		"[I][ezpz/history] iter=180   loss=0.078(\302\2610.026) accuracy=0.984(\302\2619.9e-3) dtf=0.014 lr=0.000059\n"
		"[I][ezpz/history] iter=190   loss=0.071(\302\2610.02) loss/max=0.1\n"
		"                  dtb=0.25\n",
		2, 2,
		{{180, "loss", 0.078}, {180, "accuracy", 0.984}, {180, "lr", 0.000059}, {190, "loss/max", 0.1},
		 {190, "dt_backward", 0.25}}, "", 0},
	{"torchtitan",
		"[titan] 2026-01-01 10:00:00,1 - root - INFO - Trainer is initialized with local batch size 8, global batch size 64, "
		"gradient accumulation steps 1, sequence length 2048, total steps 1000 (warmup 200)\n"
		"\x1b[0m[rank0]:[titan] 2026-02-28 23:59:58,250 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.25301  \x1b[38;2;180;60;0mgrad_norm:  1.2345  "
		"\x1b[36mmemory:  1.50GiB(1.44%)  \x1b[34mtps: 30,123  \x1b[36mtflops: 1,234.50  \x1b[35mmfu: 12.34%\x1b[39m\n"
		"[titan] 2026-03-01 00:00:02,750 - root - INFO - step: 10  loss:  8.12345  grad_norm:  2.0000  memory:  1.50GiB(1.44%)  tps: 31,000  tflops: 0.51  mfu: N/A\n"
		"[titan] - INFO - validate step: 10  loss:  8.1000  memory:  1.50GiB(1.44%)  tps: 9,000\n",
		2, 7,
		{{1, "loss", 12.25301}, {1, "grad_norm", 1.2345}, {1, "mem", 1.5 * 0x1p30}, {1, "tps_per_gpu", 30123},
		 {1, "tflops", 1234.5}, {1, "mfu", 0.1234}, {10, "loss", 8.12345}, {10, "val_loss", 8.1}, {10, "tps_per_gpu", 31000},
		 {1, "elapsed", 0}, {10, "elapsed", 4.5}, {10, "tokens", 10 * 64 * 2048}},
		"batch = 64\ncontext = 2048\nsteps = 1000\nwarmup = 200\n", 0},
	/* every rank prints, and one of them behind output without a line break */
	{"torchtitan",
		"sample[titan] - INFO - validate step:  1  loss: 12.2500  memory: 1.50GiB(1.44%)  tps: 900\n"
		"[titan] - INFO - validate step:  1  loss: 12.2500  memory: 1.50GiB(1.44%)  tps: 901\n"
		"[titan] - INFO - step: 20  loss:  8.1250  grad_norm:  2.0000  memory:  1.50GiB(1.44%)  tps: 31,000  tflops: 0.51  mfu: 1.00%\n"
		"[titan] - INFO - step: 20  loss:  8.1250  grad_norm:  2.0000  memory:  1.50GiB(1.44%)  tps: 31,001  tflops: 0.51  mfu: 1.00%\n",
		2, 4, {{1, "val_loss", 12.25}, {20, "loss", 8.125}, {20, "tps_per_gpu", 31001}}, "", 0},
	{"torchtitan-losses", "1 8.049097061157227\n2 7.75183629989624\n3 7.5\n", 3, 0,
		{{1, "loss", 8.049097061157227}, {2, "loss", 7.75183629989624}}, "", 0},
	{"nanogpt",
		"tokens per iteration will be: 491,520\n"
		"Overriding: batch_size = 12\n"
		"step 0: train loss 10.9876, val loss 10.9912\n"
		"iter 0: loss 10.9877, time 9876.54ms, mfu -100.00%\n"
		"iter 10: loss 9.1234, time 250.00ms, mfu 33.50%\n",
		2, 6,
		{{0, "train_loss", 10.9876}, {0, "val_loss", 10.9912}, {0, "loss", 10.9877}, {0, "dt", 9.87654},
		 {10, "loss", 9.1234}, {10, "mfu", 0.335}}, "tokens-per-step = 491520\n", 0},
	{"nanogpt", "iter 10: loss 10.5924, grad_norm 2.0571, lr 6.00e-05, time 104.3ms\n", 1, 6,
		{{10, "loss", 10.5924}, {10, "grad_norm", 2.0571}, {10, "lr", 6e-5}, {10, "dt", 0.1043}}, "", 0},
	{"nanochat",
		"Vocab size: 65,536\nModel config:\n{\n  \"sequence_len\": 2048,\n  \"n_layer\": 20,\n  \"n_embd\": 1280\n}\n"
		"Total batch size 524,288 => gradient accumulation steps: 1\n"
		"Step 00000 | Validation bpb: 3.312345\n"
		"step 00000/01000 (0.00%) | loss: 11.090355 | lrm: 1.00 | dt: 1234.50ms | tok/sec: 424,690 | bf16_mfu: 42.50 | epoch: 1 | total time: 0.00m\n"
		"step 00001/01000 (0.10%) | loss: 10.500000 | lrm: 1.00 | dt: 600.00ms | tok/sec: 873,813 | bf16_mfu: 50.00 | epoch: 1 | total time: 0.01m\n",
		2, 8,
		{{0, "val_bpb", 3.312345}, {0, "loss", 11.090355}, {0, "dt", 1.2345}, {0, "tps", 424690}, {0, "mfu", 0.425},
		 {1, "loss", 10.5}},
		"vocab = 65536\ncontext = 2048\nlayers = 20\ndim = 1280\ntokens-per-step = 524288\nsteps = 1000\n", 0},
	{"nanochat",
		"Step 00000 | Validation loss: 1.250000\n"
		"Step 00000/00700 | Training loss: 1.125000| lrm: 1.000000| num_tokens: 12,345\n"
		"Step 00001/00700 | Training loss: 1.000000| lrm: 0.998571| num_tokens: 11,000\n"
		"Step 00001 | ChatCORE: 0.1234 | ChatCORE_cat: 0.2345\n",
		2, 4,
		{{0, "val_loss", 1.25}, {0, "loss", 1.125}, {0, "batch_tokens", 12345}, {1, "loss", 1}, {1, "lrm", 0.998571},
		 {1, "chatcore", 0.1234}, {1, "chatcore_cat", 0.2345}}, "steps = 700\n", 0},
	{"modded-nanogpt",
		"import torch\nprint0(f\"step:{step}/{train_steps} val_loss:{val_loss:.4f}\", console=True)\n"
		"====\nstep:0/1390 val_loss:10.8258 train_time:0ms step_avg:nanms\n"
		"step:1/1390 train_time:27610ms step_avg:nanms\n"
		"step:125/1390 val_loss:4.3654 train_time:16234ms step_avg:141.17ms\n"
		"step:126/1390 train_loss:4.3000 train_time:16400ms step_avg:141.20ms\n",
		4, 2,
		{{0, "val_loss", 10.8258}, {1, "train_time", 27.61}, {125, "val_loss", 4.3654}, {125, "dt", 0.14117},
		 {126, "loss", 4.3}}, "steps = 1390\n", 0},
	{"llmc", "s:0 tel:11.0092\ns:0 trl:11.0091 lr:0.000001 norm:15.37\ns:1 trl:10.9000 lr:0.000002 norm:14.00\n"
		"s:250 eval:0.2512\n",
		3, 6,
		{{0, "val_loss", 11.0092}, {0, "loss", 11.0091}, {0, "grad_norm", 15.37}, {1, "lr", 2e-6}, {250, "hellaswag", 0.2512}},
		"", 0},
	{"llmc",
		"| train data pattern    | dev/data/fineweb_train_*.bin                       |\n"
		"| sequence length T     | 1024                                               |\n"
		"| total batch size      | 524288                                             |\n"
		"| learning rate (LR)    | 6.000000e-04                                       |\n"
		"| warmup iterations     | 700                                                |\n"
		"| num_processes         | 8                                                  |\n"
		"val loss 11.009210\n"
		"step    1/19560 | loss 11.009151 (+nanz)| norm 15.3668 (+nanz)| lr 8.57e-07 | 3046.05 ms | 46.4% bf16 MFU | 172119 tok/s\n"
		"step    2/19560 | loss 10.965002 (+nanz)| norm 15.0000 (+nanz)| lr 1.71e-06 | 300.00 ms | 46.0% bf16 MFU | 172000 tok/s\n"
		"val loss 10.500000\n",
		3, 8,
		{{0, "val_loss", 11.00921}, {1, "loss", 11.009151}, {1, "grad_norm", 15.3668}, {1, "lr", 8.57e-7}, {1, "dt", 3.04605},
		 {1, "mfu", 0.464}, {1, "tps", 172119}, {2, "val_loss", 10.5}},
		"data = dev/data/fineweb_train_*.bin\ncontext = 1024\ntokens-per-step = 524288\nlr = 6.000000e-04\nwarmup = 700\nsteps = 19560\n", 8},
	/* its C, float32 CUDA and Python programs */
	{"llmc", "step 0: train loss 5.356189 (took 1452.121000 ms)\nstep 1: train loss 4.301069 (took 1288.673000 ms)\n", 2, 7,
		{{0, "loss", 5.356189}, {0, "dt", 1.452121}, {1, "loss", 4.301069}}, "", 0},
	{"llmc", "step    1/74: train loss 4.367631 (80.639749 ms, 50822 tok/s)\n", 1, 7,
		{{1, "loss", 4.367631}, {1, "dt", 0.080639749}, {1, "tps", 50822}}, "steps = 74\n", 0},
	{"llmc", "step    1/10 | train loss 5.356189 | norm 15.3668 | lr 1.00e-04 | (35.91 ms | 7129 tok/s)\n", 1, 7,
		{{1, "loss", 5.356189}, {1, "dt", 0.03591}, {1, "tps", 7129}, {1, "lr", 1e-4}}, "steps = 10\n", 0},
	{"llmq",
		"[Options]\n  learning-rate      : 0.0001\n  seq-len            : 1024\n  total-batch        : 524288\n\n"
		"[T] step     0 [ 0.0%] | time:   512 ms | norm   2.123456 | loss  11.987654 | tps   123k | sol 50.5%\n"
		"\x1b[1m[V] step     0 [ 0.0%] | time:   100 ms | eval  11.900000 | train 11.987654 | tps 99999\x1b[22m\n"
		"[T] step     1 [ 0.1%] | time:   150  s | norm   2.000000 | loss  11.500000 | tps 99999\n",
		2, 8,
		{{0, "loss", 11.987654}, {0, "grad_norm", 2.123456}, {0, "dt", 0.512}, {0, "tps", 123000}, {0, "sol", 0.505},
		 {0, "val_loss", 11.9}, {1, "dt", 150}, {1, "tps", 99999}},
		"lr = 0.0001\ncontext = 1024\ntokens-per-step = 524288\n", 0},
	{"llmq",
		"[\n  {\"log\": \"option\", \"time\": \"2026\", \"step\": 0, \"name\": \"seq-len\", \"value\": 1024},\n"
		"  {\"log\": \"step\", \"time\": \"2026-01-01 10:00:00\", \"step\": 0, \"step_tokens\": 524288, \"duration_ms\": 500, \"norm\": 2.5, "
		"\"loss\": 11.25, \"lr\": 0.0001, \"lse_max\": 5.5, \"lse_mean\": 1.5, \"loss_1k\": 11.125},\n"
		"  {\"log\": \"eval\", \"time\": \"2026-01-01 10:00:00\", \"step\": 0, \"eval_tokens\": 1000, \"duration_ms\": 5, \"loss\": nan, \"loss_1k\": 11}\n]\n",
		1, 4,
		{{0, "loss", 11.25}, {0, "dt", 0.5}, {0, "loss_1k", 11.125}, {0, "val_loss", NAN}, {0, "step_tokens", 524288}},
		"context = 1024\n", 0},
	{"megatron",
		"  world_size ...................................... 8\n  global_batch_size ............................... 32\n"
		"  seq_length ...................................... 4096\n  lr_warmup_iters ................................. 2\n"
		" [2026-01-01 10:00:00.123456] iteration        1/     100 | consumed samples:           32 | elapsed time per iteration (ms): "
		"5123.4 | throughput per GPU (TFLOP/s/GPU): 400.5 | learning rate: 1.500000E-04 | global batch size:    32 | lm loss: 1.083740E+01 | "
		"loss scale: 1.0 | grad norm: 15.123 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
		" validation loss at iteration 1 on validation set | lm loss value: 1.050000E+01 | lm loss PPL: 3.631550E+04 |\n",
		1, 6,
		{{1, "loss", 10.8374}, {1, "dt", 5.1234}, {1, "lr", 1.5e-4}, {1, "grad_norm", 15.123}, {1, "val_loss", 10.5},
		 {1, "samples", 32}, {1, "tokens", 32 * 4096}, {1, "throughput per GPU (TFLOP/s/GPU)", 400.5}, {1, "number of nan iterations", 0}},
		"batch = 32\ncontext = 4096\nwarmup = 2\nsteps = 100\n", 8},
	{"megatron", " iteration      100/  500 | elapsed time per iteration (ms): 512.5 | learning rate 1.500E-04 | lm loss 9.083740E+00 |\n", 1, 6,
		{{100, "loss", 9.08374}, {100, "lr", 1.5e-4}, {100, "dt", 0.5125}}, "steps = 500\n", 0},
	/* losses of a mixture of experts */
	{"megatron",
		" iteration        2/     100 | learning rate: 1.5E-04 | lm loss: 9.5E+00 | load_balancing_loss: 1.024E+00 | z_loss: 4.5E+00 | loss scale: 1.0 |\n"
		" iteration        3/     100 | learning rate: 1.5E-04 | lm loss: 9.25E+00 | seq_load_balancing_loss: 1.5E+00 | loss scale: 1.0 |\n",
		2, 3, {{2, "loss", 9.5}, {2, "aux_loss", 1.024}, {2, "router_z", 4.5}, {3, "aux_loss", 1.5}}, "steps = 100\n", 0},
	/* a loss that is NaN is left out, and counted */
	{"megatron",
		" iteration      100/  500 | learning rate: 1.5E-04 | lm loss: 9.083740E+00 | number of nan iterations:   0 |\n"
		" iteration      101/  500 | learning rate: 1.5E-04 | loss scale: 1.0 | number of nan iterations:   1 |\n",
		2, 6, {{100, "loss", 9.08374}, {101, "loss", NAN}, {101, "lr", 1.5e-4}}, "steps = 500\n", 0},
	/* a field with two numbers, and one for two ranks */
	{"megatron", "[rank-7/8][INFO ] : iteration 126/ 5000 | elapsed time per iteration (ms): 500.5/500.4 | iteration time: 0.5 s "
		"samples/sec: 3.8 | lm loss: 6.500000E+00 |\n", 1, 2,
		{{126, "loss", 6.5}, {126, "dt", 0.5005}, {126, "iteration time", 0.5}}, "steps = 5000\n", 0},
	{"megatron-golden",
		"{\"lm loss\": {\"start_step\": 1, \"end_step\": 10, \"step_interval\": 1, \"values\": {\"1\": 10.92954, \"10\": 10.91, \"2\": 10.92779}},\n"
		" \"iteration-time\": {\"start_step\": 1, \"end_step\": 10, \"step_interval\": 1, \"values\": {\"1\": \"nan\", \"2\": 1.25}},\n"
		" \"num-zeros\": {\"start_step\": 1, \"end_step\": 3, \"step_interval\": 2, \"values\": [5, 6]}}",
		4, 7,
		{{1, "loss", 10.92954}, {2, "loss", 10.92779}, {10, "loss", 10.91}, {2, "dt", 1.25}, {1, "num-zeros", 5}, {3, "num-zeros", 6}},
		"", 0},
	{"megatron-bridge",
		"{\n    \"0\": {\"lm loss\": 11.89415, \"elapsed time per iteration (ms)\": 284.2, \"GPU utilization\": 1.0},\n"
		"    \"1\": {\"lm loss\": 11.89995}\n}\n",
		2, 7, {{0, "loss", 11.89415}, {0, "dt", 0.2842}, {0, "GPU utilization", 1}, {1, "loss", 11.89995}}, "", 0},
	{"olmo-core",
		"2026-01-01 10:00:00.000\thost:0\tolmo_core.train:1\tINFO\t[step=1/1000,epoch=1,eta=2h]\n"
		"    train/CE loss=11.12\n    optim/total grad norm=1.500\n    optim/LR (group 0)=2.00E-05\n    throughput/total tokens=4.194B\n"
		"    throughput/device/TPS=12,345\n    throughput/device/MFU=41.50\nsomething else\n    train/PPL=5\n"
		"2026-01-01 10:00:01.000\thost:0\tolmo_core.train:1\tINFO\t[step=2/1000,epoch=1]\n"
		"    train/CE loss=11.02\n2026-01-01 10:00:02.000\thost:0\tolmo_core.train:1\tINFO\t[step=3/1000,epoch=1]\n",
		2, 4,
		{{1, "loss", 11.12}, {1, "grad_norm", 1.5}, {1, "lr", 2e-5}, {2, "elapsed", 1}, {1, "tokens", 4.194e9}, {1, "tps_per_gpu", 12345},
		 {1, "mfu", 0.415}}, "steps = 1000\n", 0},
	{"maxtext",
		"Config param global_batch_size_to_train_on: 32\nConfig param max_target_length: 2048\nConfig param warmup_steps_fraction: 0.1\n"
		"completed step: 0, seconds: 12.345, TFLOP/s/device: 1.500, Tokens/s/device: 100.250, total_weights: 65536, loss: 10.871, lm_loss: 10.870, perplexity: 52575.2\n"
		"Completed eval after train step 0, loss=10.500, perplexity=36315.503, total_weights=1000.0, avg_z_loss=0.000\n"
		"completed step: 1, seconds: 0.500, TFLOP/s/device: 55.000, Tokens/s/device: 4000.000, total_weights: 65536, loss: 10.125\n",
		2, 5,
		{{0, "loss", 10.871}, {0, "lm_loss", 10.87}, {0, "dt", 12.345}, {0, "tps_per_gpu", 100.25}, {0, "val_loss", 10.5}, {1, "loss", 10.125}},
		"batch = 32\ncontext = 2048\n", 0},
	{"maxtext", "I0317 10:00:13.224641 metric_logger.py:181] completed step: 0, seconds: 74.031, TFLOP/s/device: 37.835,  loss: 13.424\n", 1, 5,
		{{0, "loss", 13.424}, {0, "tflops", 37.835}}, "", 0},
	{"maxtext", "completed step: 1, seconds: 8.500, TFLOP/s: 1.750, loss: 9.125, main_model_loss: 9.000, mtp_loss: 0.125\n"
		"Completed eval step 9\neval metrics after step: 1, loss=9.875, total_weights=75264.0\n", 1, 4,
		{{1, "loss", 9.125}, {1, "tflops", 1.75}, {1, "main_model_loss", 9}, {1, "mtp_loss", 0.125}, {1, "val_loss", 9.875}}, "", 0},
	{"trainer-state",
		"{\"best_metric\": null, \"epoch\": 1.0, \"global_step\": 20, \"log_history\": [\n"
		"{\"epoch\": 0.5, \"grad_norm\": NaN, \"learning_rate\": 5e-05, \"loss\": 2.5432, \"step\": 10},\n"
		"{\"epoch\": 0.5, \"eval_loss\": 2.4, \"eval_runtime\": 1.5, \"step\": 10},\n"
		"{\"epoch\": 1.0, \"grad_norm\": 1.5, \"learning_rate\": 0.0, \"loss\": 2.25, \"step\": 20},\n"
		"{\"epoch\": 1.0, \"train_loss\": 2.39, \"train_runtime\": 12.5, \"step\": 20}], \"max_steps\": 20, \"train_batch_size\": 8}",
		2, 5,
		{{10, "loss", 2.5432}, {10, "grad_norm", NAN}, {10, "lr", 5e-5}, {10, "val_loss", 2.4}, {20, "loss", 2.25}, {20, "mean_train_loss", 2.39}},
		"steps = 20\nbatch-per-rank = 8\n", 0},
	{"csv", "\"_step\";\"train/loss\";\"_runtime\"\n10;2.5;1.25\n20;2.25;\n30;nan;3\n", 3, 3,
		{{10, "loss", 2.5}, {10, "elapsed", 1.25}, {20, "loss", 2.25}, {30, "loss", NAN}, {30, "elapsed", 3}}, "", 0},
	{"csv", "global_step\ttrain_loss\tval_loss\n10\t2.5\t\n20\t\t2.25\n", 2, 2,
		{{10, "loss", 2.5}, {20, "val_loss", 2.25}}, "", 0},
	{"csv", "0,4.5,1e-3\n1,4.25,2e-3\n", 2, 3, {{0, "loss", 4.5}, {1, "column3", 0.002}}, "", 0},
	{"csv", "loss\r\n,\r\nloss,lr\r\n4.5,1\r\n4.25,2\r\n", 2, 3, {{0, "loss", 4.5}, {1, "loss", 4.25}, {1, "lr", 2}}, "", 0},
	{"jsonl",
		"{\"_step\": 1, \"train/loss\": 2.5, \"lr\": 1e-3, \"note\": \"x\"}\n{\"_step\": 2, \"train/loss\": NaN, \"perf\": {\"mfu\": 0.5}}\n",
		2, 2, {{1, "loss", 2.5}, {1, "lr", 1e-3}, {2, "loss", NAN}, {2, "perf/mfu", 0.5}}, "", 0},
	{"jsonl", "{\"timestamp\": 1.5, \"rank\": 0, \"metrics\": {\"iter\": 3, \"loss\": 0.75}}\n", 1, 2,
		{{3, "loss", 0.75}, {3, "rank", 0}}, "", 0},
	{"jsonl", "{\"learning/loss\": 10.5, \"perf/step_time_seconds\": 0.5, \"step\": 4.0, \"run_name\": \"a\"}\n", 1, 3,
		{{4, "loss", 10.5}, {4, "dt", 0.5}}, "", 0},
	{"nemo",
		"(pid=41) Training epoch 0, iteration 98/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 98 | reduced_train_loss: 2.778 | "
		"train_step_timing in s: 0.189 | consumed_samples: 3168\n"
		"Training epoch 1, iteration 0/99 | lr: 5.8e-06 | global_batch_size: 32 | global_step: 99 | reduced_train_loss: 2.75 | "
		"train_step_timing in s: 0.25 | consumed_samples: 3200 | val_loss: 2.861\n", 2, 4,
		{{98, "loss", 2.778}, {98, "dt", 0.189}, {99, "loss", 2.75}, {99, "val_loss", 2.861}, {99, "lr", 5.8e-6}}, "batch = 32\n", 0},
	{"nanotron",
		"07/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0]: iteration: 5 / 100 | consumed_tokens: 1.31M | elapsed_time_per_iteration_ms: 1.02K | "
		"tokens_per_sec: 257K | tokens_per_sec_per_gpu: 32.1K | global_batch_size: 256 | lm_loss: 10.5 | lr: 0.0003 | grad_norm: 0.86\n", 1, 3,
		{{5, "loss", 10.5}, {5, "dt", 1.02}, {5, "tps", 257e3}, {5, "tps_per_gpu", 32100}, {5, "tokens", 1310000}, {5, "lr", 3e-4},
		 {5, "grad_norm", 0.86}}, "", 0},
	{"picotron",
		"[rank 0] Step: 1     | Loss: 10.5312 | Global batch size:   32.8K | Tokens/s:  120.5K | Tokens/s/GPU:   15.0K | "
		"Tokens:   32.8K/1.0M | MFU:  5.25% | Memory usage:   4.75GB\n", 1, 6,
		{{1, "loss", 10.5312}, {1, "tps", 120500}, {1, "tps_per_gpu", 15000}, {1, "mfu", 0.0525}, {1, "tokens", 32800}, {1, "mem", 4.75e9}}, "", 0},
	{"deepspeed",
		"[2026-01-01 10:00:00,819] [INFO] [logging.py:60:log_dist] [Rank 0] step=10, skipped=2, lr=[1.5e-06, 1.25e-06], mom=[[0.9, 0.95]]\n"
		"steps: 10 loss: 10.7133 iter time (s): 0.283 samples/sec: 226.457\n", 1, 6,
		{{10, "loss", 10.7133}, {10, "dt", 0.283}, {10, "lr", 1.5e-6}, {10, "skipped", 2}}, "", 0},
	{"deepspeed", "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706\n", 1, 5,
		{{200, "loss", 5.5508}, {200, "lm_loss", 5.5103}, {200, "aux_loss", 0.0405}, {200, "dt", 0.936}, {200, "sps", 136.706}},
		"", 0},
	/* its engine alone: times, but no loss */
	{"deepspeed",
		"[2026-03-11 02:06:58,985] [INFO] [logging.py:96:log_dist] [Rank 0] step=40, skipped=0, lr=[5e-05], mom=[[0.9, 0.999]]\n"
		"[2026-03-11 02:06:58,985] [INFO] [timer.py:215:stop] epoch=0/micro_step=80/global_step=40, RunningAvgSamplesPerSec=7.5, "
		"CurrSamplesPerSec=8.25, MemAllocated=1.50GB, MaxMemAllocated=2.50GB\n"
		"[2026-03-11 02:07:14,130] [INFO] [timer.py:189:stop] 0/50, SamplesPerSec=83.7, MemAllocated=0.26GB\n", 1, 0,
		{{40, "lr", 5e-5}, {40, "sps", 8.25}, {40, "mem", 2.5 * 0x1p30}}, "", 0},
	{"torchtune",
		"Writing logs to /tmp/log.txt\n"
		"Step 1 | loss:1.625 lr:2e-05 tokens_per_second_per_gpu:812.5 peak_memory_active:1.5 peak_memory_reserved:2.5 grad_norm:0.75 \n"
		"Step 2 | loss:1.5 lr:2e-05 \nStep 2 | val_loss:1.75\n", 2, 4,
		{{1, "loss", 1.625}, {1, "lr", 2e-5}, {1, "tps_per_gpu", 812.5}, {1, "mem_active", 1.5 * 0x1p30}, {1, "mem", 2.5 * 0x1p30},
		 {1, "grad_norm", 0.75}, {2, "loss", 1.5}, {2, "val_loss", 1.75}}, "", 0},
	{"torchtune", "  0%|          | 0/10 [00:00<?, ?it/s]\r1|1|Loss: 1.625:  10%|#         | 1/10 [00:01<00:09, 1.01s/it]\r"
		"1|2|Loss: 1.5:  10%|#         | 1/10 [00:01<00:09, 1.01s/it]\r1|2|Loss: 1.5:  20%|##        | 2/10 [00:02<00:08]\n", 2, 4,
		{{1, "loss", 1.625}, {2, "loss", 1.5}}, "", 0},
	{"litgpt",
		"Epoch 1 | iter 16 step 4 | loss train: 3.250, val: n/a | iter time: 45.50 ms (step) remaining time: 0:01:54\n"
		"Epoch 1 | iter 32 step 8 | loss train: 3.125, val: n/a | iter time: 45.50 ms (step) remaining time: 0:01:44\n"
		"Validating ...\niter 32: val loss 3.3750, val time: 112.25 ms\n"
		"Epoch 1 | iter 48 step 12 | loss train: 3.000, val: 3.375 | iter time: 45.50 ms (step) remaining time: 0:01:34\n", 3, 4,
		{{16, "loss", 3.25}, {16, "dt", 0.0455}, {32, "loss", 3.125}, {32, "val_loss", 3.375}, {48, "loss", 3}}, "", 0},
	{"composer",
		"[batch=1/100]:\n\t Train time/token: 0\n\t Train loss/train/total: 12.0570\n\t Train throughput/device/mfu: 0.2489\n"
		"a warning between\n\t Train throughput/tokens_per_sec: 6598.0451\n"
		"[batch=2/100]:\n\t Train loss/train/total: 11.5000\n\t Train lr-AdamW/group0: 0.0001\n"
		"[Eval batch=1/2] Eval on eval data\n[Eval batch=2/2] Eval on eval data:\n\t Eval metrics/eval/LanguageCrossEntropy: 11.2500\n", 2, 5,
		{{1, "loss", 12.057}, {1, "mfu", 0.2489}, {1, "tps", 6598.0451}, {1, "tokens", 0}, {2, "loss", 11.5}, {2, "val_loss", 11.25},
		 {2, "lr-AdamW/group0", 1e-4}}, "steps = 100\n", 0},
	/* as srun and a page show it */
	{"composer",
		"0: [batch=1/100]:\n0:       Train time/sample: 8\n0:       Train loss/train/total: 12.0000\n"
		"[batch=2/100]:\n         Train LanguageCrossEntropy: 10.9736\n         Train loss/train/total: 10.9736\n", 2, 6,
		{{1, "loss", 12}, {1, "samples", 8}, {2, "loss", 10.9736}}, "steps = 100\n", 0},
	/* a run that lasts for epochs, and its file */
	{"composer", "[epoch=1][batch=10/10]:\n\t Train loss/train/total: 2.5000\n[epoch=2][batch=1/10]:\n\t Train loss/train/total: 2.2500\n", 2, 3,
		{{10, "loss", 2.5}, {11, "loss", 2.25}}, "", 0},
	{"composer", "[hyperparameter]: seed: 17 \n[metric][batch=0]: trainer/device_train_microbatch_size: 1 \n"
		"[metric][batch=1]: loss/train/total: 12.0570 \n[metric][batch=1]: l2_norm/grad/global: 1.5000 \n", 2, 5,
		{{1, "loss", 12.057}, {1, "grad_norm", 1.5}}, "", 0},
	{"fairseq",
		"2026-01-01 10:00:00 | INFO | train_inner | epoch 001:    100 / 1000 loss=9.255, nll_loss=9.125, ppl=611.12, wps=57.3, ups=0.04, wpb=1613, "
		"bsz=80, num_updates=100, lr=2.8e-05, gnorm=3.25, loss_scale=128, train_wall=13, wall=1236\n"
		"2026-01-01 10:00:01 | INFO | train_inner | epoch 001:    200 / 1000 loss=9.125, ppl=600.5, wps=57.5, num_updates=200, lr=5e-05, gnorm=3.5\n"
		"2026-01-01 10:00:02 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.5 | ppl 724.1 | wps 99 | num_updates 200 | best_loss 9.5\n"
		"2026-01-01 10:00:02 | INFO | train | epoch 001 | loss 9.75 | ppl 861.1 | num_updates 200 | lr 5e-05 | gnorm 3.5\n", 2, 4,
		{{100, "loss", 9.255}, {100, "nll_loss", 9.125}, {100, "tps", 57.3}, {100, "lr", 2.8e-5}, {100, "grad_norm", 3.25}, {100, "loss_scale", 128},
		 {200, "loss", 9.125}, {200, "val_loss", 9.5}, {200, "mean_loss", 9.75}, {200, "elapsed", 1}}, "", 0},
	{"fairseq", "| epoch 017:  40%|4| 14/35 [00:16<00:24,  1.17s/it, loss=11.75, ppl=3444.3, num_updates=574, lr=0.00025, gnorm=0.402, cl\r"
		"| epoch 017:  43%|4| 15/35 [00:17<00:24,  1.23s/it, loss=11.5, ppl=2896.3, num_updates=575, lr=0.00025, gnorm=0.412, cl\n"
		"| epoch 017 | valid on 'valid' subset | valid_loss 8.125 | valid_ppl 279.2 | num_updates 575\n", 2, 4,
		{{574, "loss", 11.75}, {575, "loss", 11.5}, {575, "grad_norm", 0.412}, {575, "val_loss", 8.125}}, "", 0},
	{"jsonl",
		"2026-01-01 10:00:00 | INFO | train_inner | {\"epoch\": 1, \"update\": 0.1, \"loss\": \"15.125\", \"wps\": \"1195.5\", \"num_updates\": \"100\", "
		"\"lr\": \"5e-05\", \"gnorm\": \"1.5\"}\n"
		"2026-01-01 10:00:01 | INFO | valid | {\"epoch\": 1, \"valid_loss\": \"14.5\", \"valid_num_updates\": \"100\", \"valid_best_loss\": \"14.5\"}\n", 1, 5,
		{{100, "loss", 15.125}, {100, "tps", 1195.5}, {100, "lr", 5e-5}, {100, "grad_norm", 1.5}, {100, "val_loss", 14.5}}, "", 0},
	{"lightning",
		"Epoch 0:   0%|          | 0/4 [00:00<?, ?it/s]\rEpoch 0:  25%|##        | 1/4 [00:06<01:44, 14.19it/s, loss=0.5, v_num=7, train_loss=2.5, val_loss=3.5]\r"
		"Epoch 0: 100%|##########| 4/4 [00:09<00:00, 14.1it/s, loss=0.5, v_num=7, train_loss=2.25, val_loss=3.5]\n"
		"Validation DataLoader 0:  50%|#####     | 1/2 [00:00<00:00, 40.91it/s]\n"
		"Epoch 1:  25%|##        | 1/4 [00:01<00:00, 14.1it/s, v_num=7, train_loss=2.125, val_loss=3.25]\n", 3, 4,
		{{1, "loss", 2.5}, {1, "val_loss", 3.5}, {4, "loss", 2.25}, {5, "loss", 2.125}, {5, "val_loss", 3.25},
		 {4, "dt", 1 / 14.1}, {5, "dt", 1 / 14.1}}, "", 0},
	/* the time is the mean of an epoch so far, of which the last counts */
	{"lightning", "Epoch 0:  25%|## | 1/4 [00:06<01:44,  4.47s/it, v_num=0, train_loss_step=2.5]\r"
		"Epoch 0:  50%|## | 2/4 [00:06<01:44,  2.50s/it, v_num=0, train_loss_step=2.25]\n", 2, 3, {{1, "loss", 2.5}, {2, "dt", 2.5}}, "", 0},
	{"lightning",
		"(task, pid=6678) Epoch 0: :   0%|          | 5/300000 [02:16<2281:40:05, v_num=0, reduced_train_loss=11.00, global_step=4.000, "
		"consumed_samples=960.0, train_step_timing in s=10.40, val_loss=11.50]Epoch 0, global step 5: 'val_loss' reached 11.5\n", 1, 2,
		{{4, "loss", 11}, {4, "samples", 960}, {4, "dt", 10.4}, {4, "val_loss", 11.5}}, "", 0},
	/* a loop of one's own counts the bar anew in each epoch */
	{"lightning", "Epoch 1/3:  50%|##   | 2/4 [00:06<01:44,  2.50s/it, loss=2.5]\rEpoch 1/3: 100%|#####| 4/4 [00:09<00:00,  2.25s/it, loss=2.25]\n"
		"Epoch 2/3:  50%|##   | 2/4 [00:06<01:44,  2.50s/it, loss=2, acc=0.5]\r", 3, 3, {{2, "loss", 2.5}, {4, "loss", 2.25}, {6, "loss", 2}, {6, "acc", 0.5}}, "", 0},
	{"lightning", "Epoch 3/400:  1%|          | 3/400 [07:02<00:00, 1.06s/it, v_num=1, train_loss_step=827, train_loss_epoch=888]\n", 1, 3,
		{{3, "loss", 827}, {3, "train_loss_epoch", 888}}, "", 0},
	{"automodel",
		"2026-08-10 15:55:20 | INFO | root | step 9 | epoch 0 | loss 0.6974 | grad_norm 1.5436 | lr 1.00e-05 | mem 24.50 GiB | "
		"tps 11278.56(1409.82/gpu) | num_label_tokens 21541\n"
		"2026-08-10 15:55:23 | INFO | root | [val] name \"default\" | step 9 | epoch 0 | loss 0.7500 | lr 1.00e-05 | num_label_tokens 900\n", 1, 4,
		{{9, "loss", 0.6974}, {9, "grad_norm", 1.5436}, {9, "lr", 1e-5}, {9, "mem", 24.5 * 0x1p30}, {9, "tps", 11278.56}, {9, "val_loss", 0.75}}, "", 0},
	{"verl",
		"\x1b[36m(TaskRunner pid=222265)\x1b[0m step:34 - global_seqlen/mean:458966.5 - actor/pg_loss:np.float64(0.0423) - actor/ppo_kl:-8.5e-06 - "
		"actor/grad_norm:0.125 - perf/mfu/actor:0.25 - actor/lr:1e-06 - training/global_step:34 - critic/rewards/mean:-0.5 - timing_s/gen:29.5 - "
		"perf/max_memory_reserved_gb:1.5 - perf/time_per_step:96.5 - perf/throughput:367.25 - val-core/math/acc/mean@1:0.75\n", 1, 7,
		{{34, "reward", -0.5}, {34, "actor/pg_loss", 0.0423}, {34, "actor/ppo_kl", -8.5e-6}, {34, "grad_norm", 0.125}, {34, "mfu", 0.25},
		 {34, "lr", 1e-6}, {34, "mem", 1.5 * 0x1p30}, {34, "dt", 96.5}, {34, "tps_per_gpu", 367.25}, {34, "val-core/math/acc/mean@1", 0.75}}, "", 0},
	{"mlflow", "1764201600500 2.5 10\n1764201601500 2.25 20\n1764201602500 nan 30\n", 3, 3,
		{{10, "sample", 2.5}, {20, "sample", 2.25}, {30, "sample", NAN}, {20, "elapsed", 1}, {30, "elapsed", 2}}, "", 0},
	{"json", "{\"metrics\": [{\"key\": \"loss\", \"value\": 2.5, \"timestamp\": 1764201600500, \"step\": 10},\n"
		" {\"key\": \"loss\", \"value\": 2.25, \"timestamp\": 1764201601500, \"step\": 20}], \"next_page_token\": \"\"}", 2, 3,
		{{10, "loss", 2.5}, {20, "loss", 2.25}, {20, "elapsed", 1}}, "", 0},
	/* LitGPT's metrics.csv */
	{"csv", "epoch,iter,iter_time,loss,step,val_loss\n0,16,0.5,2.5,15,\n,,,,15,2.75\n0,32,0.5,2.25,31,\n", 2, 3,
		{{15, "loss", 2.5}, {15, "val_loss", 2.75}, {15, "dt", 0.5}, {31, "loss", 2.25}}, "", 0},
	{"trainer",
		"  1%|          | 1/100 [00:01<01:39]\r{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.1}\n"
		"{'loss': '2.25', 'grad_norm': 'nan', 'learning_rate': '4e-05', 'epoch': '0.2'}\n"
		"{'eval_loss': 2.375, 'eval_runtime': 1.5, 'epoch': 0.2}\n"
		"{'train_runtime': 12.5, 'train_loss': 2.4, 'epoch': 0.2}\n", 2, 3,
		{{1, "loss", 2.5}, {1, "grad_norm", 1.25}, {1, "lr", 5e-5}, {2, "loss", 2.25}, {2, "val_loss", 2.375}, {2, "epoch", 0.2}}, "", 0},
	/* TRL, whose last line has a mean of the run; ms-swift, which says the step */
	{"trainer",
		"{'loss': 0.0, 'reward': 1.25, 'reward_std': 0.5, 'kl': 0.0005, 'epoch': 0.1}\n{'loss': 0.0, 'reward': nan, 'epoch': 0.2}\n"
		"{'train_runtime': 12.5, 'train_samples_per_second': 200.25, 'train_steps_per_second': 2.5, 'train_loss': 2.4, 'epoch': 0.2}\n", 2, 0,
		{{1, "loss", 0}, {1, "reward", 1.25}, {1, "kl", 0.0005}, {2, "reward", NAN}, {2, "sps", 200.25}, {2, "dt", 0.4}}, "", 0},
	{"trainer",
		"{'loss': 2.5, 'epoch': 0.31, 'global_step/max_steps': '5/30', 'percentage': '0.13%', 'elapsed_time': '1m 29s', 'memory(GiB)': 1.5}\n"
		"{'loss': 2.25, 'step_time': 2.5, 'epoch': 0.5, 'global_step/max_steps': '10/30'}\n{'train_runtime': 12.5, 'train_steps_per_second': 5.0}\n", 2, 3,
		{{5, "loss", 2.5}, {5, "mem", 1.5 * 0x1p30}, {10, "loss", 2.25}, {10, "dt", 2.5}}, "", 0},
	/* ms-swift's logging.jsonl */
	{"jsonl", "{\"loss\": 2.5, \"memory(GiB)\": 1.5, \"epoch\": 0.25, \"global_step/max_steps\": \"5/30\", \"percentage\": \"0.13%\"}\n"
		"{\"loss\": 2.25, \"epoch\": 0.5, \"global_step/max_steps\": \"10/30\"}\n", 2, 3,
		{{5, "loss", 2.5}, {5, "mem", 1.5 * 0x1p30}, {10, "loss", 2.25}}, "", 0},
	/* slime */
	{"trainer",
		"\x1b[36m(RolloutManager pid=5)\x1b[0m [2026-04-15 07:57:53] rollout.py:1193 - perf 0: {'rollout/response_len/mean': 2773.5, 'rollout/raw_reward': 0.25}\n"
		"(MegatronTrainRayActor pid=9) [2026-04-15 07:58:53] model.py:555 - step 0: {'train/loss': -0.5, 'train/grad_norm': 0.25, 'train/step': 0}\n"
		"(MegatronTrainRayActor pid=9) [2026-04-15 07:59:53] model.py:555 - step 1: {'train/loss': 0.75, 'train/grad_norm': 0.5, 'train/step': 1}\n", 2, 2,
		{{0, "reward", 0.25}, {0, "loss", -0.5}, {0, "grad_norm", 0.25}, {1, "loss", 0.75}}, "", 0},
	/* as a notebook shows it */
	{"csv", "Step\tTraining Loss\tValidation Loss\n10\tNo log\t3.500000\n20\t2.250000\t3.250000\n", 2, 3,
		{{10, "val_loss", 3.5}, {20, "loss", 2.25}, {20, "val_loss", 3.25}}, "", 0},
	/* of the first OLMo; Levanter through W&B */
	{"olmo-core",
		"2026-08-06 09:59:26.181 host:0 olmo.train:908 INFO [step=1/739328,epoch=0]\n    optim/total_grad_norm=231.5\n"
		"    train/CrossEntropyLoss=12.25\n    throughput/total_tokens=1,048,576\n    throughput/device/tokens_per_second=26,668\n", 1, 4,
		{{1, "loss", 12.25}, {1, "grad_norm", 231.5}, {1, "tokens", 1048576}, {1, "tps_per_gpu", 26668}}, "steps = 739328\n", 0},
	{"jsonl", "{\"_step\": 3, \"train/loss\": 2.5, \"throughput/tokens_per_second\": 2048.0, \"throughput/mfu\": 45.5, \"grad/norm/total\": 1.5, "
		"\"optim/learning_rate\": 0.25, \"eval/loss\": 2.75, \"eval/bpb\": 1.25}\n", 1, 2,
		{{3, "loss", 2.5}, {3, "tps", 2048}, {3, "mfu", 0.455}, {3, "grad_norm", 1.5}, {3, "lr", 0.25}, {3, "val_loss", 2.75}, {3, "val_bpb", 1.25}}, "", 0},
	/* ranks under torchrun and slurm, a run that went back */
	{"nanotron",
		"[default0]:10/17/2025 16:31:56 [INFO|DP=0|PP=1|TP=0|ip-26]: iteration: 2 / 10 | consumed_tokens: 1.31M | elapsed_time_per_iteration_ms: 1.02K | "
		"tokens_per_sec: 257K | lm_loss: 10.5 | grad_norm: nan\n", 1, 3,
		{{2, "tokens", 1.31e6}, {2, "dt", 1.02}, {2, "tps", 257e3}, {2, "loss", 10.5}, {2, "grad_norm", NAN}}, "", 0},
	{"megatron",
		"31:  [2026-04-06 02:59:36.123] iteration        9/     100 | consumed samples:         1,152 | elapsed time per iteration (ms): 5444.5 | "
		"global batch size:   128 | lm loss: 1.250000E+00 | grad norm: nan |\n"
		"31:  [2026-04-06 03:59:36.123] iteration        8/     100 | consumed samples:         1024 | elapsed time per iteration (ms): 5444.5 | "
		"global batch size:   128 | lm loss: 1.500000E+00 | grad norm: 1.5 |\n", 1, 2,
		{{8, "loss", 1.5}, {8, "grad_norm", 1.5}, {8, "dt", 5.4445}}, "steps = 100\nbatch = 128\n", 0},
	{"json", "[[1764201600.5, 10, 2.5],\n [1764201601.5, 20, NaN], [1764201602.5, 30, 2.25]]", 3, 3,
		{{10, "loss", 2.5}, {20, "loss", NAN}, {30, "loss", 2.25}, {30, "elapsed", 2}}, "", 0},
	{"json", "[\n  {\"_step\": 1, \"train/loss\": 2.5, \"acc\": 0.5}, {\"_step\": 2, \"train\": {\"loss\": 2.25}, \"_runtime\": 7}]\n", 2, 3,
		{{1, "loss", 2.5}, {1, "acc", 0.5}, {2, "loss", 2.25}, {2, "elapsed", 7}}, "", 0},
	/* exports: of TensorBoard, of W&B, and Lightning's metrics.csv */
	{"csv", "Wall time,Step,Value\n1764201600.5,10,2.5\n1764201601.5,20,2.25\n", 2, 3,
		{{10, "loss", 2.5}, {20, "loss", 2.25}, {20, "elapsed", 1}}, "", 0},
	{"csv", "\"Step\",\"my - run - _step\",\"my - run - train/loss\",\"my - run - train/loss__MIN\",\"my - run - train/loss__MAX\"\n"
		"\"1\",\"1\",\"2.5\",\"2.5\",\"2.5\"\n\"2\",\"\",\"\",\"\",\"\"\n\"3\",\"3\",\"2.25\",\"2.25\",\"2.25\"\n", 2, 3,
		{{1, "loss", 2.5}, {3, "loss", 2.25}}, "", 0},
	{"csv", "epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss\n0,,9,,2.5,\n0,,9,,,2.75\n0,,19,,2.25,\n0,,19,2.375,,\n", 2, 3,
		{{9, "loss", 2.5}, {9, "val_loss", 2.75}, {19, "loss", 2.25}, {19, "train_loss_epoch", 2.375}}, "", 0},
	{"mmengine",
		"2026/01/01 10:00:01 - mmengine - INFO - Epoch(train) [1][ 50/200]  base_lr: 1.0000e-02 lr: 1.0000e-02  eta: 2 days, 7:32:05  time: 0.1285  data_time: 0.0040  "
		"memory: 2560  loss: 0.7175  loss_cls: 0.3750  acc: 92.5000\n"
		"2026/01/01 10:00:02 - mmengine - INFO - Epoch(train)  [2][100/200]  lr: 5.0000e-03  eta: 0:26:28  time: 0.1250  data_time: 0.0050  memory: 2560  grad_norm: nan  loss: 0.5625\n"
		"2026/01/01 10:00:03 - mmengine - INFO - Epoch(val) [2][25/25]    accuracy/top1: 75.5000  accuracy/top5: 95.2500  data_time: 0.0052  time: 0.4238\n", 2, 4,
		{{50, "loss", 0.7175}, {50, "lr", 0.01}, {50, "dt", 0.1285}, {50, "dt_data", 0.004}, {50, "mem", 2560 * 0x1p20}, {50, "acc", 92.5}, {300, "loss", 0.5625},
		 {300, "grad_norm", NAN}, {300, "accuracy/top1", 75.5}, {300, "dt", 0.125}}, "", 0},
	/* XTuner; MMCV */
	{"mmengine",
		"01/29 21:35:34 - mmengine - INFO - Iter(train) [ 10/720]  lr: 9.0000e-05  eta: 0:31:46  time: 2.6875  data_time: 0.0077  memory: 12762  loss: 2.6875\n"
		"01/29 21:36:02 - mmengine - INFO - Iter(train) [ 20/720]  lr: 1.9000e-04  eta: 0:32:01  time: 2.8125  data_time: 0.0071  memory: 13969  loss: 2.5625  grad_norm: 0.9375\n", 2, 5,
		{{10, "loss", 2.6875}, {20, "loss", 2.5625}, {20, "lr", 1.9e-4}, {20, "grad_norm", 0.9375}, {20, "dt", 2.8125}}, "steps = 720\n", 0},
	{"mmengine", "2026-01-01 10:00:01,500 - mmdet - INFO - Epoch [2][50/100]\tlr: 1.250e-02, eta: 1 day, 0:26:28, time: 0.500, data_time: 0.125, memory: 3800, loss_cls: 0.5000, loss: 1.5000\n", 1, 2,
		{{150, "loss", 1.5}, {150, "lr", 0.0125}, {150, "dt", 0.5}, {150, "loss_cls", 0.5}}, "", 0},
	{"speechbrain",
		"epoch: 1, lr: 1.00e-03, steps: 2500, optimizer: AdamW - train loss: 2.35 - valid loss: 2.10, valid PER: 41.25\n"
		"epoch: 2, lr: 8.00e-04, steps: 5000, optimizer: AdamW - train loss: 1.55 - valid loss: 9.50e-01, valid PER: 30.25\n"
		"Epoch loaded: 2 - test loss: 1.05, test PER: 31.50\n", 2, 3,
		{{1, "loss", 2.35}, {1, "val_loss", 2.1}, {1, "valid PER", 41.25}, {2, "lr", 8e-4}, {2, "val_loss", 0.95}, {2, "test PER", 31.5}}, "", 0},
	{"paddle",
		"global step 10, epoch: 1, batch: 9, loss: 0.50125, accu: 0.75000, speed: 5.00 step/s\nglobal step 20, epoch: 1, batch: 19, loss: 0.43750, accu: 0.78125, speed: 4.00 step/s\n"
		"eval loss: 0.46875, accu: 0.81250\n", 2, 5,
		{{10, "loss", 0.50125}, {10, "dt", 0.2}, {20, "loss", 0.4375}, {20, "val_loss", 0.46875}, {20, "accu", 0.8125}, {20, "epoch", 1}}, "", 0},
	{"paddle",
		"[2026-01-01 10:00:16,008] [    INFO] - loss: 3.25806541, learning_rate: 2.9e-05, global_step: 10, interval_runtime: 2.25, interval_samples_per_second: 3.5, "
		"interval_steps_per_second: 4.0, epoch: 0.0265\n"
		"[2026-01-01 10:00:18,258] [    INFO] - loss: 2.78513584, learning_rate: 2.8e-05, global_step: 20, interval_runtime: 2.25, interval_samples_per_second: 3.5, "
		"interval_steps_per_second: 4.0, progress_or_epoch: 0.053\n"
		"[2026-01-01 10:00:19,000] [    INFO] - eval_loss: 2.5, eval_ppl: 12.25, eval_runtime: 0.5, epoch: 0.053\n", 2, 0,
		{{10, "loss", 3.25806541}, {10, "dt", 0.25}, {10, "sps", 3.5}, {10, "lr", 2.9e-5}, {20, "elapsed", 2.25}, {20, "val_loss", 2.5}, {20, "eval_ppl", 12.25}}, "", 0},
	{"deepspeed-chat",
		"Epoch: 0, Step: 0, Rank: 0, loss = 2.5\nEpoch: 0, Step: 0, Rank: 1, loss = 7.5\nEpoch: 0, Step: 1, Rank: 0, loss = 2.375\n"
		"[2026-01-01 10:00:00,819] [INFO] [logging.py:60:log_dist] [Rank 0] step=1, skipped=0, lr=[1.5e-06, 1.25e-06], mom=[[0.9, 0.95]]\n"
		"***** Evaluating perplexity, Epoch 1/2 *****\nppl: 4.5, loss: 1.5\nEpoch: 1, Step: 0, Rank: 0, loss = 2.25\n", 3, 4,
		{{0, "loss", 2.5}, {1, "loss", 2.375}, {1, "lr", 1.5e-6}, {1, "ppl", 4.5}, {1, "val_loss", 1.5}, {2, "loss", 2.25}}, "", 0},
	{"deepspeed-chat",
		"epoch: 0|step: 0|ppo_ep: 1|act_loss: 0.0125|cri_loss: 0.25|unsuper_loss: 0.0\naverage reward score: -2.5\n"
		"epoch: 0|step: 1|ppo_ep: 1|act_loss: 0.0625|cri_loss: 0.125|unsuper_loss: 0.0\naverage reward score: -2.25\n", 2, 3,
		{{0, "loss", 0.0125}, {0, "cri_loss", 0.25}, {0, "reward", -2.5}, {1, "loss", 0.0625}, {1, "reward", -2.25}}, "", 0},
	{"deepspeed-chat",
		"Epoch: 0 | Step: 4 | PPO Epoch: 1 | Actor Loss: 0.0125 | Critic Loss: 0.25 | Unsupervised Loss: 0.0\n"
		"Average reward score: 2.5 | EMA reward score: 2.25\nchosen_last_scores (higher is better) : 2.75, acc (higher is better) : 0.625\n", 1, 3,
		{{4, "loss", 0.0125}, {4, "Critic Loss", 0.25}, {4, "reward", 2.5}, {4, "EMA reward score", 2.25}, {4, "chosen_last_scores", 2.75}, {4, "acc", 0.625}}, "", 0},
	/* Keras 3 in a terminal; Keras 2 with backspaces; verbose=2 */
	{"keras",
		"Epoch 1/2\n\r\x1b[1m 1/20\x1b[0m \x1b[37m\342\224\201\342\224\201\x1b[0m \x1b[1m9s\x1b[0m 500ms/step - accuracy: 0.1250 - loss: 2.5000"
		"\r\x1b[1m20/20\x1b[0m \x1b[32m\342\224\201\342\224\201\x1b[0m\x1b[37m\x1b[0m \x1b[1m0s\x1b[0m 50ms/step - accuracy: 0.2500 - loss: 2.2500"
		"\r\x1b[1m20/20\x1b[0m \x1b[32m\342\224\201\342\224\201\x1b[0m\x1b[37m\x1b[0m \x1b[1m2s\x1b[0m 75ms/step - accuracy: 0.2500 - loss: 2.2475 - val_accuracy: 0.3750 - val_loss: 2.1250\n"
		"Epoch 2/2\n\r\x1b[1m20/20\x1b[0m \x1b[32m\342\224\201\342\224\201\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 50ms/step - accuracy: 0.5000 - loss: 1.5000 - val_accuracy: 0.6250 - val_loss: 1.2500 - learning_rate: 5.0e-04\n", 2, 5,
		{{1, "loss", 2.2475}, {1, "accuracy", 0.25}, {1, "val_loss", 2.125}, {1, "dt", 0.075}, {2, "loss", 1.5}, {2, "val_accuracy", 0.625}, {2, "lr", 5e-4}}, "steps = 2\n", 0},
	{"keras",
		"Train on 32 samples\nEpoch 1/2\n\r16/32 [=====>........] - ETA: 0s - loss: 2.5000\b\b\b\b\b\b\b\b\r32/32 [==============] - 0s 33us/step - loss: 2.3750 - val_loss: 2.2500\n"
		"Epoch 00001: saving model to a.hdf5\nEpoch 2/2\n\r32/32 [==============] - 1s 2s/step - loss: 1.3750 - val_loss: nan\n", 2, 4,
		{{1, "loss", 2.375}, {1, "dt", 33e-6}, {2, "loss", 1.375}, {2, "dt", 2}, {2, "val_loss", NAN}}, "steps = 2\n", 0},
	{"keras", "Epoch 1/2\n - 7s - loss: 0.6250 - acc: 0.5\nEpoch 2/2\n100/100 - 4s - 40ms/step - loss: 0.5000 - acc: 0.75\n", 2, 3,
		{{1, "loss", 0.625}, {1, "acc", 0.5}, {2, "loss", 0.5}, {2, "dt", 0.04}}, "steps = 2\n", 0},
	{"yolo",
		"                  epoch,         train/box_loss,         train/cls_loss,   metrics/precision(B),       val/box_loss,       val/cls_loss,                 lr/pg0\n"
		"                      1,                 1.0245,                 1.9551,                0.63697,            0.97209,            1.44367,               0.067273\n"
		"                      2,                 1.0125,                 1.5000,                0.75000,            0.87500,            1.25000,               0.033000\n", 2, 5,
		{{1, "loss", 2.9796}, {1, "val_loss", 2.41576}, {1, "train/box_loss", 1.0245}, {2, "loss", 2.5125}, {2, "metrics/precision(B)", 0.75}, {2, "lr/pg0", 0.033}}, "", 0},
	{"yolo", "epoch,time,train/loss,metrics/accuracy_top1,metrics/accuracy_top5,val/loss,lr/pg0\n1,2.5,0.625,0.5,0.75,0.5,0.1\n2,5.5,0.5,0.625,0.875,nan,0.05\n", 2, 3,
		{{1, "loss", 0.625}, {1, "metrics/accuracy_top1", 0.5}, {2, "val_loss", NAN}}, "", 0},
	/* programs that are not known: a step within an epoch, samples, a bar, a logger, words alone, an epoch */
	{"plain",
		"Epoch [1/3], Step [100/300], Loss: 2.3125\nEpoch [1/3], Step [200/300], Loss: 2.2500\nEpoch [1/3], Step [300/300], Loss: 2.1250\n"
		"Epoch [2/3], Step [100/300], Loss: 2.0625, Acc: 51.5%\nVal Loss: 2.2031, Val Acc: 50.5%\n", 4, 5,
		{{100, "loss", 2.3125}, {300, "loss", 2.125}, {400, "loss", 2.0625}, {400, "epoch", 2}, {400, "Acc", 51.5}, {400, "val_loss", 2.2031},
		 {400, "Val Acc", 50.5}}, "", 0},
	{"plain",
		"Train Epoch: 1 [0/6400 (0%)]\tLoss: 2.308125\nTrain Epoch: 1 [640/6400 (10%)]\tLoss: 1.915000\nTrain Epoch: 1 [1280/6400 (20%)]\tLoss: 1.417500\n\n"
		"Test set: Average loss: 0.1875, Accuracy: 93/100 (93%)\n\nTrain Epoch: 2 [0/6400 (0%)]\tLoss: 0.506250\n", 4, 7,
		{{0, "loss", 2.308125}, {1280, "loss", 1.4175}, {1280, "val_loss", 0.1875}, {1280, "Accuracy", 0.93}, {6400, "loss", 0.50625}}, "", 0},
	{"plain",
		"train:   0%|          | 0/100 [00:00<?, ?it/s]\rtrain:   3%|3         | 3/100 [00:01<00:32,  3.01it/s, loss=2.31, lr=1e-4]\r"
		"3/100 [00:01<00:32,  3.01it/s, loss=2.3, lr=1e-4]\rtrain:   6%|6         | 6/100 [00:02<00:31,  3.02it/s, loss=2.25, lr=1e-4]\r"
		"train:   9%|9         | 9/100 [00:03<00:30,  3.03it/s, loss=2.2, lr=1e-4]\rtrain:  12%|#2        | 12/100 [00:04<00:29,  3.03it/s, loss=nan, lr=9e-5]\n", 4, 3,
		{{3, "loss", 2.3}, {6, "loss", 2.25}, {9, "lr", 1e-4}, {12, "loss", NAN}, {12, "lr", 9e-5}}, "steps = 100\n", 0},
	{"plain",
		"2026-01-01 10:00:01.500 | INFO     | __main__:train:42 - Step 1/150 | loss=2.375 | dt=250ms | tps=1.5k\n"
		"2026-01-01 10:00:02.500 | INFO     | __main__:train:42 - Step 2/150 | loss=2.25 | dt=250ms | tps=1.5k\n"
		"2026-01-01 10:00:03.000 | INFO     | __main__:evaluate:60 - [eval] step 2 loss 2.5\n"
		"2026-01-01 10:00:03.500 | INFO     | __main__:train:42 - Step 3/150 | loss=2.125 | dt=250ms | tps=1.5k\n"
		"2026-01-01 10:00:04.500 | INFO     | __main__:train:42 - Step 4/150 | loss=2 | dt=250ms | tps=1.5k\n", 4, 4,
		{{1, "loss", 2.375}, {1, "dt", 0.25}, {1, "tps", 1500}, {2, "val_loss", 2.5}, {4, "loss", 2}, {4, "elapsed", 3}}, "steps = 150\n", 0},
	{"plain", "seed 5\nstep 1 loss 5.53 grad_norm 1.59\nstep 2 loss 5.5 grad_norm 1.5\nstep 3 loss 5.25 grad_norm 1.25\nstep 4 loss 5 grad_norm nan\n", 4, 3,
		{{1, "loss", 5.53}, {1, "grad_norm", 1.59}, {4, "loss", 5}, {4, "grad_norm", NAN}}, "", 0},
	{"plain", "Epoch: 1 - Train loss: 1.625, Train accuracy: 0.5, Validation loss: 1.75\nEpoch: 2 - Train loss: 1.5, Train accuracy: 0.5, Validation loss: 1.625\n"
		"Epoch: 3 - Train loss: 1.25, Train accuracy: 0.5, Validation loss: 1.5\nEpoch: 4 - Train loss: 1.125, Train accuracy: 0.75, Validation loss: 1.5\n", 4, 4,
		{{1, "loss", 1.625}, {1, "val_loss", 1.75}, {4, "loss", 1.125}, {4, "Train accuracy", 0.75}, {4, "val_loss", 1.5}}, "", 0},
	/* of PyTorch's example of ImageNet, and with a line before each epoch */
	{"plain", "Epoch: [0][  1/20]\tTime  0.500 ( 0.512)\tLoss 7.0625e+00 (7.0625e+00)\tAcc@1   0.50 (  0.39)\nEpoch: [0][ 11/20]\tTime  0.250 ( 0.312)\tLoss 6.5000e+00 (6.8125e+00)\tAcc@1   1.50 (  0.39)\n"
		"Epoch: [1][  1/20]\tTime  0.500 ( 0.512)\tLoss 6.2500e+00 (6.2500e+00)\tAcc@1   2.50 (  2.50)\nEpoch: [1][ 11/20]\tTime  0.250 ( 0.312)\tLoss 6.0000e+00 (6.1250e+00)\tAcc@1   3.50 (  3.00)\n", 4, 5,
		{{1, "loss", 7.0625}, {11, "loss", 6.5}, {11, "Acc@1", 1.5}, {21, "loss", 6.25}, {31, "loss", 6}, {31, "Time", 0.25}}, "", 0},
	/* and of its DCGAN, whose epochs are numbers without a name; of its language model, with lines of a whole epoch */
	{"plain", "[0/5][0/20]\tLoss_D: 1.25\tLoss_G: 5.5\n[0/5][10/20]\tLoss_D: 1.125\tLoss_G: 4.5\n[1/5][0/20]\tLoss_D: 1\tLoss_G: 3.5\n[1/5][10/20]\tLoss_D: 0.5\tLoss_G: 3.25\n", 4, 4,
		{{0, "loss", 1.25}, {10, "Loss_G", 4.5}, {20, "loss", 1}, {30, "loss", 0.5}, {30, "epoch", 1}}, "", 0},
	{"plain", "| epoch   1 |   200/  400 batches | lr 20.00 | ms/batch 12.31 | loss  5.125 | ppl   168.174\n| epoch   1 |   400/  400 batches | lr 20.00 | ms/batch 12.31 | loss  4.750 | ppl   115.584\n"
		"| end of epoch   1 | time: 3.43s | valid loss  5.000 | valid ppl   148.413\n| end of epoch   1 | mean loss 4.9\n"
		"| epoch   2 |   200/  400 batches | lr 5.00 | ms/batch 12.31 | loss  4.500 | ppl    90.017\n| epoch   2 |   400/  400 batches | lr 5.00 | ms/batch 12.31 | loss  4.250 | ppl    70.105\n", 4, 4,
		{{200, "loss", 5.125}, {400, "loss", 4.75}, {400, "val_loss", 5}, {400, "valid ppl", 148.413}, {600, "loss", 4.5}, {600, "lr", 5}, {800, "ppl", 70.105}}, "", 0},
	{"plain", "Epoch 1/2\nbatch 10 loss: tensor(2.5, device='cuda:0')\nbatch 20 loss: tensor(2.25, device='cuda:0')\nEpoch 2/2\n"
		"batch 10 loss: tensor(2.125, device='cuda:0')\nbatch 20 loss: tensor(2, device='cuda:0')\n", 4, 4,
		{{10, "loss", 2.5}, {20, "loss", 2.25}, {40, "loss", 2.125}, {50, "loss", 2}}, "", 0},
};
/* clang-format on */

const size_t n_log_samples = ARRAY_LEN(log_samples);
