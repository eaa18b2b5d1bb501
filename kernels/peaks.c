/* Peak FLOP/s of GPUs, by NVIDIA's data sheets and architecture white papers: dense matmuls (with
 * sparsity the data sheets give twice these figures), at the boost clock. */
#include "kernels/backend.h"

/* A row matches a name that contains all of `words`, or that equals a word that begins with '='.
 * The first match is used, so special rows precede general ones. Peaks in TFLOP/s; half: bf16 and
 * fp16, with sums in fp32; 0: not supported. */
struct peak {
	const char *words[3];
	double fp8, half, tf32, fp32;
};

static const struct peak peaks[] = {
	/* "NVIDIA Blackwell Architecture Technical Brief" (2024); B200 of a DGX or HGX */
	{{"GB200"}, 5000, 2500, 1250, 80},
	{{"B200"}, 4500, 2250, 1125, 75},
	{{"B300"}, 4500, 2250, 1125, 75},
	{{"B100"}, 3500, 1750, 875, 60},
	/* "NVIDIA H100 Tensor Core GPU Architecture" (2022), table 2, and the H100, H100 NVL,
	 * GH200 and H200 data sheets */
	{{"H100", "PCIe"}, 1513, 756, 378, 51},
	{{"H100", "NVL"}, 1671, 835.5, 417.5, 60},
	{{"H100"}, 1978.9, 989.4, 494.7, 66.9},
	{{"H800"}, 1978.9, 989.4, 494.7, 66.9},
	{{"H200", "NVL"}, 1671, 835.5, 417.5, 60},
	{{"H200"}, 1978.9, 989.4, 494.7, 66.9},
	{{"GH200"}, 1978.9, 989.4, 494.7, 66.9},
	{{"H20"}, 296, 148, 74, 44},
	/* "NVIDIA A100 Tensor Core GPU Architecture" (2020), table 1; A30, A40 and A10 sheets */
	{{"A100"}, 0, 312, 156, 19.5},
	{{"A800"}, 0, 312, 156, 19.5},
	{{"A30"}, 0, 165, 82, 10.3},
	{{"A40"}, 0, 149.7, 74.8, 37.4},
	{{"A10"}, 0, 125, 62.5, 31.2},
	/* "NVIDIA Ada GPU Architecture" (2022), appendix A; L4, L40 and L40S sheets */
	{{"L40S"}, 733, 362.1, 183, 91.6},
	{{"L40"}, 362, 181.1, 90.5, 90.5},
	{{"L4"}, 242.5, 121, 60, 30.3},
	{{"RTX 6000 Ada"}, 728.5, 364.2, 182.1, 91.1},
	{{"=NVIDIA GeForce RTX 4090"}, 330.3, 165.2, 82.6, 82.6},
	/* "NVIDIA RTX Blackwell GPU Architecture" (2025), appendix A */
	{{"=NVIDIA GeForce RTX 5090"}, 419, 209.5, 104.8, 104.8},
	/* "NVIDIA Ampere GA102 GPU Architecture" (2021), table 9 */
	{{"=NVIDIA GeForce RTX 3090 Ti"}, 0, 80, 40, 40},
	{{"=NVIDIA GeForce RTX 3090"}, 0, 71, 35.6, 35.6},
	{{"RTX A6000"}, 0, 154.8, 77.4, 38.7},
};

/* Returns true if `name` has the whole word ("A100" lacks "A10"), or equals the text after '='. */
static bool has_word(const char *name, const char *word)
{
	size_t n = strlen(word);
	if (*word == '=')
		return !strcmp(name, word + 1);
	for (const char *at = name; (at = strstr(at, word)); at++)
		if ((at == name || at[-1] == ' ' || at[-1] == '-') &&
			(!at[n] || at[n] == ' ' || at[n] == '-'))
			return true;
	return false;
}

static bool peak_matches(const struct peak *p, const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(p->words) && p->words[i]; i++)
		if (!has_word(name, p->words[i]))
			return false;
	return true;
}

double device_peak(const struct device *d, enum dtype operands)
{
	for (size_t i = 0; i < ARRAY_LEN(peaks); i++) {
		const struct peak *p = &peaks[i];
		if (!peak_matches(p, d->model))
			continue;
		if (operands == DT_F32)
			return 1e12 * (d->exact ? p->fp32 : p->tf32);
		return 1e12 * (dtype_bytes(operands) == 2 ? p->half : p->fp8);
	}
	return 0;
}
