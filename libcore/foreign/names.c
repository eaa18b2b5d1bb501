/*
 * Hugging Face's names. Their GPT-2 keeps its matrices as [in, out] (Conv1D), with queries, keys and
 * values in one; their Llama has matrices as ours, and its rotary embedding rotates channel j of a head
 * with channel j + width / 2, as ours does, so that no row of wq and wk moves. (Meta's own files
 * rotate 2 j with 2 j + 1.)
 */
#include "foreign/foreign.h"

#include <stdlib.h>
#include <string.h>

struct stem {
	const char *ours, *theirs;
	bool transposed;
	bool no_bias; /* a module that never has one */
};

struct scheme {
	const char *layers; /* in front of the names of a layer; with its number */
	bool biases;	    /* all modules have one, except no_bias */
	struct stem stems[16];
};

static const struct scheme schemes[ARCHS] = {
	[ARCH_GPT2] = {"transformer.h.", true,
		{
			{"tok_embeddings", "transformer.wte", false, true},
			{"pos_embeddings", "transformer.wpe", false, true},
			{"attention_norm", "ln_1", false, false},
			{"attention.wq", "attn.c_attn", true, false},
			{"attention.wk", "attn.c_attn", true, false},
			{"attention.wv", "attn.c_attn", true, false},
			{"attention.wo", "attn.c_proj", true, false},
			{"ffn_norm", "ln_2", false, false},
			{"feed_forward.w1", "mlp.c_fc", true, false},
			{"feed_forward.w2", "mlp.c_proj", true, false},
			{"norm", "transformer.ln_f", false, false},
			{"output", "lm_head", false, true},
		}},
	[ARCH_LLAMA] = {"model.layers.", false,
		{
			{"tok_embeddings", "model.embed_tokens", false, true},
			{"attention_norm", "input_layernorm", false, true},
			{"attention.wq", "self_attn.q_proj", false, false},
			{"attention.wk", "self_attn.k_proj", false, false},
			{"attention.wv", "self_attn.v_proj", false, false},
			{"attention.q_norm", "self_attn.q_norm", false, true},
			{"attention.k_norm", "self_attn.k_norm", false, true},
			{"attention.wo", "self_attn.o_proj", false, false},
			{"ffn_norm", "post_attention_layernorm", false, true},
			{"feed_forward.w1", "mlp.gate_proj", false, false},
			{"feed_forward.w3", "mlp.up_proj", false, false},
			{"feed_forward.w2", "mlp.down_proj", false, false},
			{"norm", "model.norm", false, true},
			{"output", "lm_head", false, true},
		}},
};

/* The row of a name, whose layer (-1: none) and kind (".weight", ".bias") are cut off. */
static const struct stem *find_stem(
	const struct scheme *s, const char *name, int64_t *layer, const char **kind)
{
	static const char layers[] = "layers.";
	*layer = -1;
	if (!strncmp(name, layers, strlen(layers))) {
		char *end;
		*layer = strtoll(name + strlen(layers), &end, 10);
		name = end + (*end == '.');
	}
	*kind = strrchr(name, '.');
	size_t n = *kind ? (size_t)(*kind - name) : 0;
	for (const struct stem *r = s->stems; n && r->ours; r++)
		if (strlen(r->ours) == n && !memcmp(r->ours, name, n))
			return r;
	return NULL;
}

/* Parts of a fused tensor are at most this many tensors apart. */
enum { LOOK_BACK = 8 };

static struct foreign *find_or_add(struct foreign *list, int *n, const char *name)
{
	for (int i = *n - 1; i >= 0 && i >= *n - LOOK_BACK; i--)
		if (!strcmp(list[i].name, name))
			return &list[i];
	struct foreign *f = &list[(*n)++];
	*f = (struct foreign){.ndim = 0};
	snprintf(f->name, sizeof(f->name), "%s", name);
	return f;
}

static void add_part(struct foreign *f, const struct stem *r, const struct tensor *t,
	int number, int64_t rows)
{
	BUG_ON(f->n_parts == FOREIGN_PARTS);
	f->part[f->n_parts] = number;
	f->outputs[f->n_parts++] = rows;
	f->ndim = t->ndim;
	f->transposed = r->transposed && t->ndim == 2;
	f->dims[f->transposed] += rows;
	if (t->ndim == 2)
		f->dims[!f->transposed] = t->dims[1];
}

/* The bias, zeros, of a module that has none in our model. */
static void add_bias(struct foreign *list, int *n, const struct foreign *weight)
{
	struct foreign *f = &list[(*n)++];
	size_t stem = strlen(weight->name) - strlen("weight");
	*f = (struct foreign){.ndim = 1, .n_parts = weight->n_parts};
	snprintf(f->name, sizeof(f->name), "%.*sbias", (int)stem, weight->name);
	for (int i = 0; i < f->n_parts; i++) {
		f->part[i] = -1;
		f->outputs[i] = weight->outputs[i];
		f->dims[0] += weight->outputs[i];
	}
}

/* Adds tensor i; and its bias if the other program needs one. */
static int add(const struct model *m, int i, int64_t vocab, struct foreign *list, int *n,
	struct err *e)
{
	const struct tensor *t = &m->tensors[i];
	const struct scheme *s = &schemes[m->c.arch];
	const char *kind;
	char name[sizeof(list->name)];
	int64_t layer;
	const struct stem *r = find_stem(s, t->name, &layer, &kind);
	if (!r)
		return err_set(
			e, EX_DATAERR, "%s has no counterpart in this format", t->name);
	if (layer >= 0)
		snprintf(name, sizeof(name), "%s%lld.%s%s", s->layers, (long long)layer,
			r->theirs, kind);
	else
		snprintf(name, sizeof(name), "%s%s", r->theirs, kind);
	bool table = t == m->tokens || t == m->output;
	add_part(find_or_add(list, n, name), r, t, i, table ? vocab : t->dims[0]);
	return 0;
}

int foreign_list(
	const struct model *m, int64_t vocab, struct foreign **out, struct err *e)
{
	const struct scheme *s = &schemes[m->c.arch];
	struct foreign *list = xcalloc(2 * (size_t)m->n_tensors, sizeof(*list));
	int n = 0, rc = 0;
	for (int i = 0; i < m->n_tensors && !rc; i++)
		rc = add(m, i, vocab, list, &n, e);
	int n_own = n;
	for (int i = 0; i < n_own && s->biases && !m->bias && !rc; i++) {
		const char *kind;
		int64_t layer;
		const struct stem *r =
			find_stem(s, m->tensors[list[i].part[0]].name, &layer, &kind);
		if (!r->no_bias)
			add_bias(list, &n, &list[i]);
	}
	*out = list;
	if (rc)
		free(list);
	return rc ? -1 : n;
}
