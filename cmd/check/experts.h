/* experts: steps of mixtures of experts: choices that rounding may turn, and balance losses. */
#pragma once

#include "reference/reference.h"

struct step_check;
struct check_opts;

/* Losses that balance the experts: load_balancing_loss_func() of transformers, aux_loss of
 * Megatron-LM, a sequence's loss as in DeepSeek-V3, and seq_aux_loss of Megatron-LM. Megatron-LM
 * counts the experts with the highest scores, without bias and groups; the other forms count the
 * choices. */
enum balance_form {
	BALANCE_AUTO,
	BALANCE_NONE,
	BALANCE_HF,
	BALANCE_MEGATRON,
	BALANCE_DEEPSEEK,
	BALANCE_MEGATRON_SEQUENCE,
	N_BALANCE_FORMS
};
extern const char *const balance_forms[N_BALANCE_FORMS];

/* Choices of experts: of each token in each layer with experts. */
struct choice_check {
	struct choices all;   /* the reference's */
	int64_t n, n_near;    /* choices; those that rounding may turn */
	int64_t n_near_plain; /* choices by the scores alone that rounding may turn */
	enum balance_form supposed; /* balance loss that is only supposed; 0: none */
	int n_tries;		    /* turns that were tried */
	int n_turned; /* those that the run turned, and the reference after it */
	/* relative: what near choices may change the loss, and the scale of most gradients, by */
	double loss_change, scale_change;
	bool is_widened; /* the bounds include what near choices may change */
	bool too_near;	 /* too many may turn to find wrong gradients */
	int n_hidden; /* tensors whose gradients near choices may change too much for a test */
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
/* Returns true for a checkpoint of pt-train, which has the options of the balance loss. (A
 * checkpoint that pt-ckpt converted lacks them.) */
bool has_stored_balance(const struct step_check *c);
/* Sets the balance loss of the options, or of a checkpoint of pt. */
void balance_begin(struct step_check *c);
/* With --balance auto, uses the balance loss that makes all gradients right, if there is one. With
 * a balance loss, finds the number of micro-batches if the layout does not determine it. */
void balance_adopt(struct step_check *c);
/* With --balance auto, uses the balance loss that fits best, right or not. Returns false if none
 * fits. */
bool balance_suppose(struct step_check *c);
/* Returns the factor of all gradients that is nearest to the run's, c->seen. */
double nearest_factor(const struct step_check *c, const struct gradients *g);
/* Returns true if all gradients in c->seen are within their bounds of g times the best factor. */
bool are_gradients_right(const struct step_check *c, const struct gradients *g);
/* choices.c */
/* Counts the choices of experts that rounding may turn. */
void choices_count(struct step_check *c);
/* Returns how many choices there are: one per layer and position, also without experts. */
int64_t count_margins(const struct step_check *c);
/* Returns the margin of a choice: relative to alternative `other`, 0 to ALTERNATIVES - 1. */
double margin_of_choice(const struct step_check *c, int64_t at, int other);
/* Returns true if rounding may turn a choice, or the choice by the scores alone. */
bool is_near_choice(const struct step_check *c, int64_t at);
bool is_near_plain_choice(const struct step_check *c, int64_t at);
/* Adds to the bounds what these choices may change, where they are not tried one by one. */
void choices_widen_bounds(struct step_check *c);
/* Makes findings notes if choices of experts may explain them. */
void choices_conclude(struct step_check *c);
/* Fails if an optimizer may have skipped experts: those that are separate tensors and idle. */
int choices_check_idle_experts(const struct step_check *c, struct err *e);
/* bias_causes.c: Adds findings about biases that did not change by the counts of choices. */
int judge_biases(struct step_check *c, struct err *e);
/* Appends a line about biases that changed by a known rule; nothing if there are none. */
void append_biases_line(const struct step_check *c, struct str *out);
/* choices.c: Appends a line about the choices; nothing for a dense model. */
void append_choices_line(const struct step_check *c, struct str *out);

/* ---- turns.c ---- */

/* Up to so many near choices are tried one by one. */
enum { MAX_TRIED = 256 };
/* Copies the choices of the reference; the caller frees them. */
void choices_copy(const struct step_check *c, struct choices *x);
/* Exchanges a choice and one of its alternatives. */
void choices_turn(const struct step_check *c, struct choices *x, int64_t at, int other);
/* Computes the gradients with the turned choices, and records all others. */
void choices_gradients(struct step_check *c, struct choices *x, struct gradients *g);
/* Turns the near choices that the run turned, finds its balance loss, and recomputes the reference.
 * Widens the bounds if near choices may still explain a difference. */
int choices_adopt(struct step_check *c, struct err *e);
