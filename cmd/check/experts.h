/* experts: steps of mixtures of experts: choices that rounding may turn, and balance losses. */
#pragma once

#include "reference/reference.h"

struct step_check;
struct check_opts;

/* Losses that balance the experts: load_balancing_loss_func() of transformers, aux_loss of
 * Megatron-LM, and a sequence's loss as in DeepSeek-V3. */
enum balance_form {
	BALANCE_AUTO,
	BALANCE_NONE,
	BALANCE_HF,
	BALANCE_MEGATRON,
	BALANCE_DEEPSEEK,
	N_BALANCE_FORMS
};
extern const char *const balance_forms[N_BALANCE_FORMS];

/* Choices of experts: of each token in each layer with experts. */
struct choice_check {
	struct choices all; /* the reference's */
	int64_t n, n_near;  /* choices; those that rounding may turn */
	int n_turned;	    /* those that the run turned, and the reference after it */
	/* relative: what near choices may change the loss, and the scale of most gradients, by */
	double loss_change, scale_change;
	bool too_near;	      /* too many may turn to find wrong gradients */
	bool undecided;	      /* so gradients are neither right nor wrong */
	bool unknown_balance; /* because no --balance was given, and no form fits */
	int n_biases;	      /* routers whose biases changed by a known rule; 0: none */
	double bias_rate;
	bool bias_centered;
};

/* balance.c */
/* Parses --balance: "auto", "none" or FORM=X. */
int balance_parse(const char *text, struct check_opts *o, struct err *e);
/* Sets the balance loss of c->weights, and computes the gradients with another one. */
void balance_set(struct step_check *c, enum balance_form form, double coefficient);
void balance_gradients(struct step_check *c, enum balance_form form, double coefficient,
	struct gradients *g);
/* Sets the balance loss of the options, or of a checkpoint of pt. */
void balance_begin(struct step_check *c);
/* With --balance auto, uses the balance loss that makes all gradients right, if there is one. With
 * a balance loss, finds the number of micro-batches if the layout does not determine it. */
int balance_adopt(struct step_check *c, struct err *e);
/* choices.c */
/* Counts the choices of experts that rounding may turn. */
void choices_count(struct step_check *c);
/* Adds to the bounds what these choices may change, where they are not tried one by one. */
void choices_widen_bounds(struct step_check *c);
/* In fp32, turns the near choices that the run turned, and recomputes the reference. */
int choices_adopt(struct step_check *c, struct err *e);
/* Makes findings notes if choices of experts may explain them. */
void choices_conclude(struct step_check *c);
/* Fails if an optimizer may have skipped experts: those that are separate tensors and idle. */
int choices_check_idle_experts(const struct step_check *c, struct err *e);
/* bias.c: Adds findings about biases of routers that did not change by the counts of choices. */
int judge_biases(struct step_check *c, struct err *e);
/* Appends a line about biases that changed by a known rule; nothing if there are none. */
void append_biases_line(const struct step_check *c, struct str *out);
/* choices.c: Appends a line about the choices; nothing for a dense model. */
void append_choices_line(const struct step_check *c, struct str *out);
